"""A whole model: its sentence embeddings before and after quantization."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.scheme_picker import build_scheme_picker
from app.parts.views import Shown, StatusView, listen, shows
from app.parts.widgets import QUIET, RunButtons, block, plot_card, results_column, stop_button, table
from app.state.choices import (
    INPUT_SCHEMES,
    MOST_METHODS,
    MOST_PATTERNS,
    input_scheme,
    method_choices,
    schemes_of,
)
from app.state.gpu_lock import locked_steps
from app.state.models import runnable_model
from app.theme import plot_data
from explorer import Scheme
from explorer.figures.methods import drift_figure
from explorer.methods import label_of, names_in
from explorer.models.capture import Model
from explorer.models.evaluate import (
    MODEL,
    EmbeddingDrift,
    OriginalModel,
    evaluate_embeddings,
    needs_inputs,
    sentences,
)

USUAL = ("int8_row", "nvfp4", "mxfp4", "int4_group128", "int3_group128", "ternary_absmean")
COLUMNS = {
    "weights": "str",
    "method": "str",
    "inputs": "str",
    "cosine": "number",
    "least cosine": "number",
    "rank correlation": "number",
    "same neighbour %": "number",
    "bits": "number",
    "MB": "number",
}


@dataclass(frozen=True)
class DriftView(StatusView):
    """Drift of the embeddings: status, conclusion, figure and table."""

    sentence: Shown
    figure: Shown
    table: Shown


@shows(DriftView)
def run_drift(where: str, schemes: list[str], ways: list[str], inputs: str, keep: str) -> Iterator[DriftView]:
    """A model's sentence embeddings by scheme and method; yields status, conclusion, figure, table after
    each."""
    if not schemes or not ways:
        raise ValueError("choose at least one scheme and one method")
    once = list(dict.fromkeys(ways))
    if len(once) > MOST_METHODS:
        raise ValueError(f"{len(once)} methods in one request; at most {MOST_METHODS} are taken")
    for way in once:
        names_in(way)
    jobs = [(s, m) for s in schemes_of(schemes) for m in once]
    of_inputs = input_scheme(inputs)
    patterns = [k.strip() for k in keep.split(",") if k.strip()]
    yield DriftView.unchanged(status=html.status(f"Loading {where} …"))
    yield from _drifts(runnable_model(where), jobs, of_inputs, patterns)


def _drifts(
    model: Model, jobs: list[tuple[Scheme, str]], of_inputs: Scheme | None, keep: list[str]
) -> Iterator[DriftView]:
    original, rows = OriginalModel(model, tuple(keep)), list[EmbeddingDrift]()
    embedding = f"Embedding {len(sentences())} sentences with the original …"
    yield DriftView.unchanged(status=html.status(embedding))
    original.embeddings  # noqa: B018  computed here, so that the line above is shown meanwhile
    end = time.monotonic() + limits.current().run_seconds
    if any(needs_inputs(way) for _, way in jobs):
        yield DriftView.unchanged(status=html.status("Capturing every layer's inputs …"))
        original.layers  # noqa: B018  as above
    for row in locked_steps(evaluate_embeddings(original, *job, of_inputs) for job in jobs):
        rows.append(row)
        late = time.monotonic() > end and len(rows) < len(jobs)
        stopped = "Stopped: the time limit of a run here. " if late else ""
        yield DriftView(
            status=html.status(stopped + _progress(rows, jobs)),
            sentence=html.sentence(_summary(rows, model.name)),
            figure=plot_data(drift_figure(rows, model.name)),
            table=[_line(r) for r in rows],
        )
        if late:
            return


def _progress(rows: list[EmbeddingDrift], jobs: list[tuple[Scheme, str]]) -> str:
    """Progress of the run, and the numbers of the last row."""
    last = rows[-1]
    return (
        f"{len(rows)} of {len(jobs)} · {last.scheme}, {label_of(last.method)}: cosine {last.cosine:.4f}, "
        f"rank correlation {last.rank:.4f}"
    )


def _summary(rows: list[EmbeddingDrift], name: str) -> str:
    """Name the schemes and methods with the least and the largest drift."""

    def words(row: EmbeddingDrift) -> str:
        return f"{row.scheme}, {label_of(row.method)}: cosine {row.cosine:.4f} with the original"

    best, worst = max(rows, key=lambda r: r.cosine), min(rows, key=lambda r: r.cosine)
    if best is worst:
        return f"{name} by {words(best)}, {best.megabytes:.0f} MB."
    return (
        f"{name} keeps its embeddings best by {words(best)}, {best.megabytes:.0f} MB; "
        f"worst by {words(worst)}, {worst.megabytes:.0f} MB."
    )


def _line(r: EmbeddingDrift) -> list[Any]:
    """One line of the table, in the order of ``COLUMNS``."""
    numbers = (r.cosine, r.least_cosine, r.rank, 100 * r.neighbours, r.bits, r.megabytes)
    return [r.scheme, label_of(r.method), r.activations or "float32", *(float(f"{v:.5g}") for v in numbers)]


def build_whole_model(page: Page) -> None:
    """Lay the section out."""
    block(
        html.figure_title(
            "A whole model",
            f"embeddings of {len(sentences())} sentences before and after every linear layer is quantized",
        )
    )
    with gr.Row():
        where = gr.Textbox(MODEL, label="Model: folder or Hub id", max_lines=1, elem_id="survive-model")
        schemes = build_scheme_picker(page, USUAL, "Weights", "survive-schemes")
        ways = gr.Dropdown(
            method_choices(),
            value=["rtn"],
            multiselect=True,
            label="Rounded by",
            min_width=200,
            elem_id="survive-methods",
        )
        inputs = gr.Dropdown(
            list(INPUT_SCHEMES), value="as they are", label="Inputs of every layer", min_width=150
        )
        keep = gr.Textbox(
            "",
            label="Layers left as they are",
            max_length=MOST_PATTERNS,
            placeholder="*.output.dense, encoder.layer.0.*",
            max_lines=1,
            min_width=160,
        )
    with gr.Row():
        start = gr.Button("Embed", variant="primary", min_width=120)
        stop = stop_button()
    status = block(html.status("Not run yet."), elem_id="survive-status")
    stopped = block()
    with results_column():
        outputs = DriftView(
            status=status,
            sentence=block(elem_id="survive-sentence"),
            figure=plot_card("Agreement with the original", "1 means unchanged", "survival"),
            table=table(COLUMNS, "survive-table", buttons=["copy"]),
        )
    buttons = RunButtons((start,), stop, stopped)
    buttons.begin_on(start.click)
    running = listen(
        start.click,
        run_drift,
        [where, schemes, ways, inputs, keep],
        outputs,
        api_name="survive",
        concurrency_id="compute",
        **QUIET,
    )
    buttons.end_with(running)
