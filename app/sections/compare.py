"""The frontier: all schemes on the chosen tensor, drawn as they finish, and their numbers as a table."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import gradio as gr

from app import limits
from app.parts import html
from app.parts.bar import PairView
from app.parts.page import Page
from app.parts.scheme_picker import build_scheme_picker
from app.parts.views import Control, Event, Shown, StatusView, listen, shows
from app.parts.widgets import (
    LATEST,
    QUIET,
    RunButtons,
    block,
    card,
    download_buttons,
    plot,
    stop_button,
    table,
)
from app.state.cache import BoundedCache
from app.state.choices import schemes_of
from app.state.files import NOTHING_YET, Downloads, downloads
from app.state.gpu_lock import locked_steps
from app.state.selection import Selection, matrix_of, tensor_key
from app.theme import plot_data
from explorer import SCHEMES, ComparisonRow, Scheme, compare_schemes, mark_frontier
from explorer.analysis.schemes import comparison_record, sample_rows, searches, survey
from explorer.analysis.why import percent
from explorer.figures.compare import exact_words, frontier_figure
from explorer.methods.recipe import Recipe

USUAL = ("bf16", "fp8_e4m3_tensor", "fp8_e4m3_row", "fp8_e4m3_128x128", "fp8_e5m2_row", "int8_tensor",
         "int8_row", "mxfp8_e4m3", "mxfp6_e2m3", "nvfp4", "mxfp4", "nf4_block64", "int4_row",
         "int4_group128", "int4_group128_asym", "int3_group128_asym", "int2_group64_asym", "ternary_twn",
         "binary_row")  # fmt: skip
COLUMNS = {
    "scheme": "str",
    "bits": "number",
    "codes": "number",
    "scales": "number",
    "zero points": "number",
    "SQNR dB": "number",
    "max error": "number",
    "clipped %": "number",
    "to zero %": "number",
    "entropy": "number",
    "frontier": "str",
}
NOT_YET = "Nothing compared yet."
DRAWN_EVERY = 16
"""Interval in schemes between updates of the figure, which is large compared with a line of text."""


_ROWS = BoundedCache[dict[str, ComparisonRow]](64)
"""Each tensor's rows so far, by the text of the named scheme: the next visit continues a run that was cut."""


@dataclass(frozen=True)
class FrontierView(StatusView):
    """Every named scheme's bits against its error, and a line on how far that is."""

    figure: Shown

    @classmethod
    def waiting(cls, message: str) -> Self:
        """The figure before stays, as all of the place does."""
        return cls.unchanged()


@dataclass(frozen=True)
class CompareView(StatusView):
    """The table: status, rows, the tensor that they are of, and the files of a finished run."""

    table: Shown
    tensor: Shown
    csv_file: Shown
    json_file: Shown


@shows(FrontierView, told=True)
def frontier(chosen: Selection) -> Iterator[FrontierView]:
    """All named schemes, scheme A and scheme B on evenly spaced rows of the chosen tensor, kept for its next
    visit; yields a line and the figure, while it computes and at the end."""
    matrix = matrix_of(chosen)
    own = [recipe.scheme for recipe in chosen.recipes]
    part = _part(sample_rows(matrix.values).share)
    key = (*tensor_key(chosen), limits.current().elements)
    known = _ROWS.get(key, dict, lambda _: 1)
    missing = [scheme for scheme in SCHEMES.values() if scheme.text not in known]
    if missing:
        now = f"{len(known)} of {len(SCHEMES)} schemes on {matrix.name}{part}"
        yield FrontierView(status=html.status(now), figure="")
        for row in locked_steps(survey(matrix.values, missing)):
            known[row.scheme.text] = row
            if len(known) % DRAWN_EVERY == 0:
                words = f"{len(known)} of {len(SCHEMES)} schemes{part}"
                drawn = _drawn(list(known.values()), own, matrix.name)
                yield FrontierView(status=html.status(words), figure=drawn)
    rows = [known[scheme.text] for scheme in sorted(SCHEMES.values(), key=searches)]
    more = locked_steps(survey(matrix.values, [s for s in own if s.text not in known]))
    every = [*rows, *more]
    words = f"{len(rows)} named schemes{part}. {exact_words(every)}{_rings_words(chosen)}"
    yield FrontierView(status=html.status(words), figure=_drawn(every, own, matrix.name))


def _rings_words(chosen: Selection) -> str:
    """Explanation of the rings of schemes with a method."""
    letters = [letter for letter, r in zip("AB", chosen.recipes, strict=False) if r.method]
    return f" {' and '.join(letters)}: ringed as rounded to nearest, without the method." if letters else ""


def _part(share: float) -> str:
    """Part of the tensor that is analysed, if not all of it."""
    return "" if share == 1 else f", on {percent(share)} of the tensor"


def _drawn(rows: Sequence[ComparisonRow], own: Sequence[Scheme], name: str) -> str:
    marked = mark_frontier(rows)
    by_text = {str(row.scheme): row for row in marked}
    return plot_data(frontier_figure(marked, name, *(by_text.get(str(scheme)) for scheme in own)))


class PointClicked(Event):
    """A click on the figure: ``data`` is [label, text] of the point's scheme."""

    FIELDS: ClassVar = {"data": {"type": "array", "items": {"type": "string"}, "minItems": 2, "maxItems": 2}}
    OPTIONAL: ClassVar = frozenset({"data"})


class RowClicked(Event):
    """A click on the table: ``row_value`` is its line, which begins with the scheme's text."""

    FIELDS: ClassVar = {"row_value": {"type": "array", "minItems": 1}}


@shows(PairView)
def taken(which: str, first: str, second: str, event: PointClicked) -> PairView:
    """The scheme of the clicked point as scheme ``which`` ("a" or "b")."""
    if not event.data:
        return PairView.unchanged()
    _, text = event.data
    return with_side(which, str(text), first, second)


def with_side(which: str, text: str, first: str, second: str) -> PairView:
    """Both schemes, with ``text`` as the one that ``which`` names ("a" or "b")."""
    text = str(Recipe.parse(text))
    return PairView(scheme=first, second=text) if which == "b" else PairView(scheme=text, second=second)


def table_row(row: ComparisonRow) -> list[Any]:
    """One line of the table, in the order of ``COLUMNS``; an exact copy's SQNR is left empty."""
    r, bits = row.report, row.report.bits
    cells = [
        bits.total,
        bits.codes,
        bits.scales,
        bits.zero_points,
        r.sqnr_db,
        r.max_error,
        100 * r.clipped,
        100 * r.zeroed,
        r.entropy_bits,
    ]
    rounded = [float(f"{c:.5g}") if c is not None and math.isfinite(c) else None for c in cells]
    return [row.scheme.name, *rounded, "●" if row.on_frontier else ""]


@shows(CompareView)
def run(chosen: Selection, names: list[str]) -> Iterator[CompareView]:
    """Compare the chosen schemes on the chosen tensor, yielding after each.

    After the selection comes the list of schemes' names and texts. Yields status, table, and at the end the
    CSV and JSON files. Stopping keeps what is there.
    """
    if not names:
        raise ValueError("choose at least one scheme to compare")
    schemes = schemes_of(names)
    matrix = matrix_of(chosen)
    rows: list[ComparisonRow] = []
    for row in locked_steps(compare_schemes(matrix.values, schemes)):
        rows.append(row)
        marked = mark_frontier(rows)
        last = len(rows) == len(schemes)
        progress = f"{len(rows)} of {len(schemes)} schemes on {matrix.description}"
        files = _files(marked, matrix.name) if last else NOTHING_YET
        yield CompareView(
            status=html.status(progress if last else f"{progress} · now {row.scheme.label}"),
            table=[table_row(r) for r in marked],
            tensor=tensor_key(chosen),
            csv_file=files.csv,
            json_file=files.json,
        )


def _files(rows: list[ComparisonRow], name: str) -> Downloads:
    """The results as a CSV and a JSON file, ready for their download buttons."""
    records = [comparison_record(r) for r in rows]
    flat = [
        {
            **{k: v for k, v in r.items() if not isinstance(v, dict)},
            **{f"bits.{k}": v for k, v in r["bits"].items()},
        }
        for r in records
    ]
    return downloads(name, flat, records)


@shows(PairView)
def clicked(which: str, first: str, second: str, event: RowClicked) -> PairView:
    """The clicked row's scheme as scheme ``which`` ("a" or "b")."""
    return with_side(which, str(event.row_value[0]), first, second)


@shows(CompareView)
def cleared(chosen: Selection, tensor: Any) -> CompareView:
    """An empty table once another tensor is chosen than the one that it holds the numbers of."""
    if tensor is None or tensor == tensor_key(chosen):
        return CompareView.unchanged()
    waiting = gr.update(interactive=False)
    return CompareView(
        status=html.status(NOT_YET), table=[], tensor=None, csv_file=waiting, json_file=waiting
    )


def build(page: Page) -> None:
    """Lay the section out: the figure, computed when it is seen, and the table, computed when asked for."""
    with card(
        "Which scheme for this tensor?",
        "dotted: the frontier, which no other scheme beats at the same bits or fewer",
    ):
        with gr.Row(elem_classes="tight"):
            which = gr.Radio(
                [("A", "a"), ("B", "b")],
                value="b",
                label="A click on a point makes it",
                elem_id="frontier-side",
            )
            status = block(html.status(""), elem_id="frontier-status")
        figure = plot("frontier", height=420)
    page.follow(frontier, [], FrontierView(status=status, figure=figure), api_name="frontier")
    pair = page.bar.pair()
    page.pair_changed_by(
        listen(figure.point, taken, [which, *pair.in_order()], pair, api_name="take_point", **LATEST), "point"
    )
    with gr.Accordion("All numbers as a table", open=False, elem_id="compare"):
        _build_table(page, which)


def _build_table(page: Page, which: Control) -> None:
    schemes = build_scheme_picker(page, USUAL, "Schemes", "compare-schemes")
    with gr.Row(elem_classes="tight"):
        start = gr.Button("Compare these", variant="primary", min_width=140)
        everything = gr.Button(f"Compare all {len(SCHEMES)}", min_width=140)
        stop = stop_button()
    status = block(html.status(NOT_YET), elem_id="compare-status")
    stopped = block(elem_id="compare-stopped")
    rows = table(COLUMNS, "compare-table", pinned_columns=1, max_height=560, buttons=["copy"])
    block(html.note("Click a heading to sort, a row to make its scheme A or B."))
    csv_file, json_file = download_buttons()
    tensor = gr.State(None)
    outputs = CompareView(status=status, table=rows, tensor=tensor, csv_file=csv_file, json_file=json_file)
    page.follow(cleared, [tensor], outputs, api_name="compare_cleared")
    slow: dict[str, Any] = {**QUIET, "concurrency_id": "compute"}
    buttons = RunButtons((start, everything), stop, stopped)
    buttons.begin_on(start.click, everything.click)
    running = [
        listen(button.click, run, [*page.selection, names], outputs, api_name=name, **slow)
        for button, names, name in (
            (start, schemes, "compare"),
            (everything, gr.State(list(SCHEMES)), "compare_all"),
        )
    ]
    buttons.end_with(*running, message="Stopped; the table holds what was finished.")
    buttons.stop_on(page.tensor_left, *running)
    pair = page.bar.pair()
    page.pair_changed_by(
        listen(rows.select, clicked, [which, *pair.in_order()], pair, api_name="take_scheme", **LATEST), "row"
    )
