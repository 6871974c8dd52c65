"""Accuracy against bits on real images, before and after training through the rounding."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence

import plotly.graph_objects as go

from app import limits
from app.parts import html
from app.parts.controls import IntegerInput, MultiSelect, Select
from app.parts.report_files import REPORT_KINDS, report_slots
from app.parts.section import Section, Shown
from app.state.files import write_table
from app.state.query import Query
from app.state.visits import TrainedNetworks, visit
from explorer import Scheme
from explorer.core.serialize import to_json
from explorer.figures.training import accuracy_figure, curves_figure, steps_figure, underflow_figure
from explorer.progress import StoppedError
from explorer.recordings.files import recorded
from explorer.reports import training_report
from explorer.reports.training import Settings
from explorer.training.digits import (
    WIDTHS,
    Trained,
    Underflow,
    accuracy_rows,
    count,
    progress_words,
    summary,
    train,
    underflow_summary,
)
from explorer.words import duration

DRAWN_EVERY_S = 1.0
"""Seconds between updates of the figures, which are large compared with a table."""
WIDTH = MultiSelect(
    key="widths",
    label="Bits per weight",
    usual="8,6,4,3,2,ternary,binary",
    options={width: width for width in WIDTHS},
)
SEEDS = IntegerInput(key="seeds", label="Seeds", usual="3", low=1, high=10, slider=True)
EPOCHS = IntegerInput(key="epochs", label="Epochs in float32", usual="20", low=1, high=60, slider=True)
AGAIN = IntegerInput(key="again", label="Epochs of training on", usual="8", low=1, high=60, slider=True)
INPUTS = Select(
    key="hidden",
    label="Inputs of hidden layers",
    usual="float32",
    options={
        "float32": "float32",
        "int8_row": "INT8 per token",
        "fp8_e4m3_row": "FP8 E4M3 per token",
        "int8_tensor": "INT8, one scale",
    },
)


def view(query: Query) -> Shown:
    """Show the gradients of one batch that float16 loses, by loss scale, as recorded; and which controls of
    the address are not valid."""
    for control in (WIDTH, SEEDS, EPOCHS, AGAIN, INPUTS):
        control.of(query)
    found = recorded("gradients", Underflow)
    words = f"{underflow_summary(found.rows)} {found.sentence}." if found else found.sentence
    return {
        "loss-scaling": underflow_figure(found.rows) if found else "",
        "loss-scaling-words": html.status(words),
    }


def run(query: Query) -> Iterator[Shown]:
    """Train every width and show what there is after each network; stopping keeps it."""
    widths, inputs = WIDTH.of(query), INPUTS.of(query)
    chosen = tuple(width for width in WIDTHS if width in widths)
    activations = "" if inputs == "float32" else inputs
    settings = Settings(chosen, SEEDS.of(query), EPOCHS.of(query), AGAIN.of(query), activations)
    total, longest = count(chosen, settings.seeds), limits.current().run_seconds
    results: list[Trained] = []
    start, drawn_at = time.monotonic(), 0.0
    yield {"status": html.status(f"0 of {total} networks · training in float32 first"), "files": ""}
    of_inputs = Scheme.parse(activations) if activations else None
    for trained in train(chosen, settings.seeds, settings.epochs, settings.again, of_inputs):
        results.append(trained)
        now = time.monotonic()
        each = (now - start) / len(results)
        last, late = len(results) == total, now + each > start + longest
        words = progress_words(trained, len(results), total)
        if not last:
            words += f" · about {duration(each * (total - len(results)), 2)} left"
        drawn = last or late or now - drawn_at > DRAWN_EVERY_S
        drawn_at = now if drawn else drawn_at
        visit().trained = TrainedNetworks(settings, tuple(results))
        yield {"status": html.status(words), **_shown(results, drawn, last or late)}
        if late and not last:
            limit = f"a run here has {longest:.0f} s"
            raise StoppedError(f"stopped after {len(results)} of {total} networks: {limit}; train fewer")


def _shown(results: Sequence[Trained], drawn: bool, finished: bool) -> Shown:
    """The networks so far: conclusion and table, the figures if ``drawn``, and files if ``finished``."""
    rows = [
        {
            "weights": row.width,
            "how": row.stage,
            **{f"{name} %": round(100 * float(getattr(row, name)), 2) for name in ("mean", "least", "most")},
            "seeds": row.seeds,
        }
        for row in accuracy_rows(results)
    ]
    shown: dict[str, str | go.Figure] = {
        "said": html.sentence(summary(results)),
        "table": html.render("rows", rows=rows),
    }
    if drawn:
        shown |= {"accuracy": accuracy_figure(results), "curves": curves_figure(results)}
        shown["steps"] = steps_figure(results)
    if finished:
        shown["files"] = html.downloads(write_table("digits", rows, [to_json(r) for r in results]))
    return shown


def report(query: Query) -> Iterator[Shown]:
    """Make the report of the visitor's run."""
    done = visit().trained
    if done is None:
        raise ValueError("nothing is trained yet: Train first")
    yield from report_slots(query, lambda _: training_report(done.settings, done.results))


SECTION = Section(
    name="training",
    title="Training",
    follows=(),
    controls=(WIDTH, SEEDS, EPOCHS, AGAIN, INPUTS, REPORT_KINDS),
    view=view,
    runs={"train": run, "report": report},
)
