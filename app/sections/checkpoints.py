"""Two checkpoints: a model, and the same model as somebody else quantized it, layer by layer."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import dataclass
from typing import ClassVar

import gradio as gr
import numpy as np

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.views import Control, Event, Shown, StatusView, listen, shows
from app.parts.widgets import (
    LATEST,
    QUIET,
    RunButtons,
    block,
    download_buttons,
    heading,
    plot_card,
    results_column,
    stop_button,
    table,
)
from app.state.files import NOTHING_YET, Downloads, downloads
from app.state.gpu_lock import gpu_lock, locked_steps
from app.state.memo import Memo
from app.theme import plot_data
from explorer import words
from explorer.analysis.tensor import Side
from explorer.checkpoints.diff import (
    Diff,
    LayerDiff,
    Opened,
    Row,
    analysis_of,
    assembled,
    compared,
    open_pair,
)
from explorer.checkpoints.diff_words import COLUMNS as NAMES
from explorer.checkpoints.diff_words import flat, line, sentences, shown
from explorer.core.serialize import to_json
from explorer.figures.diff import depth_figure
from explorer.figures.error_map import error_map_figure
from explorer.figures.errors import error_figure
from explorer.figures.values import values_figure
from explorer.sources.models import folder_stamp

NUMBERS = ("bits", "SQNR dB", "error %", "cosine", "largest error", "in steps")
COLUMNS = {name: "number" if name in NUMBERS else "str" for name in NAMES}
NOT_YET = "Nothing compared yet."
SHOWN_EVERY_S = 0.7
IN_TIME = 0.9
"""Share of a run's time limit after which it ends by itself, with what was done."""
_OPENED = Memo[Opened](8)


@dataclass(frozen=True)
class DiffView(StatusView):
    """How far the comparison is, what it says, the figure along depth, the table, its files, and what the
    rows are of (``Compared``)."""

    sentence: Shown
    figure: Shown
    table: Shown
    csv_file: Shown
    json_file: Shown
    compared: Shown


@dataclass(frozen=True)
class LayerView(StatusView):
    """One layer before and after, as figures of a tensor."""

    values: Shown
    errors: Shown
    error_map: Shown


@dataclass(frozen=True)
class Compared:
    """The two checkpoints, as they were named, that the table shows."""

    original: str
    quantized: str


class LayerRowClicked(Event):
    """A click on the table: ``row_value`` is its line, which begins with the weight's name."""

    FIELDS: ClassVar = {"row_value": {"type": "array", "minItems": 1}}


class LayerPointClicked(Event):
    """A click on the figure: ``data`` begins with the weight's name."""

    FIELDS: ClassVar = {"data": {"type": "array", "minItems": 1}}
    OPTIONAL: ClassVar = frozenset({"data"})


def _opened(original: str, quantized: str) -> Opened:
    """Both checkpoints, their headers read once. ``ValueError`` for what is not named, or may not be."""
    first, second = original.strip(), quantized.strip()
    for name, which in ((first, "the original"), (second, "the quantized one")):
        if not name:
            raise ValueError(f"name {which}: {_accepted()}")
    bounds = limits.current().sources
    key = (first, folder_stamp(first, bounds), second, folder_stamp(second, bounds), bounds)
    return _OPENED.get(key, lambda: open_pair(first, second, bounds), lambda _: 1)


def _accepted() -> str:
    """What may be named here."""
    return (
        "a folder, a .gguf file or a Hub id" if limits.current().sources.folders else "a Hub id (owner/name)"
    )


@shows(DiffView)
def run(original: str, quantized: str) -> Iterator[DiffView]:
    """A quantized checkpoint held against its original, each a folder, a .gguf file or a Hub id: layer by
    layer what is stored, in how many bits, and its error. Yields status, conclusion, figure, table; at the
    end the CSV and JSON files. Stopping keeps what is there."""
    yield DiffView.unchanged(status=html.status("Reading the headers of both …"))
    opened = _opened(original, quantized)
    pairs, most = opened.pairs.pairs, limits.current().elements
    named, rows, last = Compared(original.strip(), quantized.strip()), list[Row](), 0.0
    end = time.monotonic() + IN_TIME * limits.current().run_seconds
    for row in locked_steps(compared(opened, pairs, most)):
        rows.append(row)
        if time.monotonic() > end and len(rows) < len(pairs):
            told = f"Stopped: the time limit of a run here. {len(rows)} of {len(pairs)} weights."
            yield _view(assembled(opened, pairs, rows), named, told, files=True)
            return
        if time.monotonic() - last > SHOWN_EVERY_S:
            yield _view(
                assembled(opened, pairs, rows), named, f"{len(rows)} of {len(pairs)} weights · now {row.name}"
            )
            last = time.monotonic()
    found = assembled(opened, pairs, rows)
    yield _view(found, named, f"{len(rows)} weights of {found.original} and {found.quantized}.", files=True)


def _view(found: Diff, named: Compared, status: str, files: bool = False) -> DiffView:
    """What was found so far; with ``files`` at the end, with the words that need all of it."""
    ready = _files(found) if files else NOTHING_YET
    return DiffView(
        status=html.status(status),
        sentence=html.sentence(" ".join(sentences(found))) if files else "",
        figure=plot_data(depth_figure(found.layers, found.quantized)),
        table=[line(layer) for layer in shown(found.layers)],
        csv_file=ready.csv,
        json_file=ready.json,
        compared=named,
    )


def _files(found: Diff) -> Downloads:
    if not found.layers:
        return NOTHING_YET
    records = to_json({**vars(found), "layers": list(found.layers)})
    return downloads(f"diff {found.quantized}", [flat(layer) for layer in found.layers], records)


@shows(LayerView)
def clicked(compared: Compared | None, event: LayerRowClicked) -> Iterator[LayerView]:
    """The clicked row's weight before and after."""
    yield from _layer(compared, str(event.row_value[0]))


@shows(LayerView)
def pointed(compared: Compared | None, event: LayerPointClicked) -> Iterator[LayerView]:
    """The weight of the clicked point before and after."""
    if not event.data:
        yield LayerView.unchanged()
        return
    yield from _layer(compared, str(event.data[0]))


def _layer(compared: Compared | None, name: str) -> Iterator[LayerView]:
    if compared is None:
        raise ValueError("compare two checkpoints first: a layer is one of theirs")
    yield LayerView.unchanged(status=html.status(f"Reading {words.plain(name, 200)} …"))
    opened = _opened(compared.original, compared.quantized)
    with gpu_lock():
        x, analysis, row = analysis_of(opened, name, limits.current().elements)
    side = Side(row.kind, analysis)
    file = f"{row.name} {opened.quantized.origin}"
    yield LayerView(
        status=html.status(_about(row)),
        values=plot_data(values_figure(analysis.before, [side], [np.empty(0)], file)),
        errors=plot_data(error_figure([side], file)),
        error_map=plot_data(error_map_figure(x, [side], row.max_error_at, file)),
    )


def _about(row: LayerDiff) -> str:
    """One line over the figures of a layer."""
    shape = " × ".join(f"{n:,}" for n in row.shape)
    at = f"{words.number(row.max_error)} at row {row.max_error_at[0]:,}, column {row.max_error_at[1]:,}"
    steps = "" if row.max_error_steps is None else f" ({words.number(row.max_error_steps)} steps)"
    remark = f" {row.note[0].upper()}{row.note[1:]}." if row.note else ""
    error = "an exact copy" if row.equal else f"{words.number(row.sqnr_db, 4)} dB; largest error {at}{steps}"
    return f"{row.name}, {shape}: {row.kind}, {words.number(row.bits, 4)} bits per weight, {error}.{remark}"


def build(page: Page) -> None:
    """Lay the section out."""
    heading("Two checkpoints", "a model, and the same model quantized by somebody: layer by layer")
    with gr.Row(elem_classes="stacked"):
        original = gr.Textbox(
            "",
            label="Original: folder or Hub id",
            max_lines=1,
            elem_id="diff-original",
            placeholder="owner/name",
        )
        quantized = gr.Textbox(
            "",
            label="Quantized: folder, .gguf file or Hub id",
            max_lines=1,
            elem_id="diff-quantized",
            placeholder="owner/name-AWQ",
        )
    with gr.Row():
        start = gr.Button("Compare", variant="primary", min_width=120, elem_id="diff-start")
        stop = stop_button()
    status = block(html.status(NOT_YET), elem_id="diff-status")
    stopped = block(elem_id="diff-stopped")
    with results_column():
        view, layer = _build_results(status)
    buttons = RunButtons((start,), stop, stopped)
    buttons.begin_on(start.click, quantized.submit)
    running = [
        listen(event, run, [original, quantized], view, api_name=name, concurrency_id="compute", **QUIET)
        for event, name in ((start.click, "diff"), (quantized.submit, "diff_by_key"))
    ]
    buttons.end_with(*running, message="Stopped; the table holds what was finished.")
    _wire_layer(view, layer)


def _build_results(status: Control) -> tuple[DiffView, LayerView]:
    sentence = block(elem_id="diff-sentence")
    figure = plot_card(
        "Error along the depth",
        "each point a layer with other values; a ring marks one that stands out among those stored alike; "
        "a click shows it",
        "diff-depth",
    )
    rows = table(COLUMNS, "diff-table", max_height=480, buttons=["copy"], wrap=True)
    block(
        html.note("Click a heading to sort, a row to see the layer. Tensors kept as they were are left out.")
    )
    csv_file, json_file = download_buttons()
    about = block(elem_id="diff-layer")
    with gr.Row():
        values = plot_card(
            "Values before and after", "grey: the original; coloured: the other checkpoint", "diff-values"
        )
        errors = plot_card("Error", "error of each element", "diff-errors")
    error_map = plot_card("Where the error is", "the largest |error| of each cell", "diff-map")
    view = DiffView(
        status=status,
        sentence=sentence,
        figure=figure,
        table=rows,
        csv_file=csv_file,
        json_file=json_file,
        compared=gr.State(None),
    )
    return view, LayerView(status=about, values=values, errors=errors, error_map=error_map)


def _wire_layer(view: DiffView, layer: LayerView) -> None:
    """A click on a row or point shows its layer."""
    for event, handler, name in (
        (view.table.select, clicked, "diff_layer"),
        (view.figure.point, pointed, "diff_point"),
    ):
        listen(event, handler, [view.compared], layer, api_name=name, api_visibility="undocumented", **LATEST)
