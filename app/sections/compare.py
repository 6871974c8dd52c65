"""All schemes on the chosen tensor as a table, whole and in all numbers, when it is asked for."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, ClassVar

import gradio as gr

from app.parts import html
from app.parts.page import Page
from app.parts.scheme_picker import build_scheme_picker
from app.parts.views import Control, Event, Shown, StatusView, listen, shows
from app.parts.widgets import (
    QUIET,
    RunButtons,
    block,
    download_buttons,
    stop_button,
    table,
)
from app.state.choices import schemes_of
from app.state.files import NOTHING_YET, Downloads, downloads
from app.state.gpu_lock import locked_steps
from app.state.selection import Selection, matrix_of, tensor_key
from explorer import SCHEMES, ComparisonRow, compare_schemes, mark_frontier
from explorer.analysis.schemes import comparison_record

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


@dataclass(frozen=True)
class CompareView(StatusView):
    """The table: status, rows, the tensor that they are of, and the files of a finished run."""

    table: Shown
    tensor: Shown
    csv_file: Shown
    json_file: Shown


class RowClicked(Event):
    """A click on the table: ``row_value`` is its line, which begins with the scheme's text."""

    FIELDS: ClassVar = {"row_value": {"type": "array", "minItems": 1}}


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


@shows()
def clicked(which: str, event: RowClicked) -> str:
    """The act that makes the clicked row's scheme A or B, as ``which`` says ("a" or "b")."""
    return json.dumps([{"do": "scheme", "side": which, "text": str(event.row_value[0])}])


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
    """Lay the table out, which is computed when it is asked for."""
    with gr.Accordion("All numbers as a table", open=False, elem_id="compare"):
        which = gr.Radio(
            [("A", "a"), ("B", "b")], value="b", label="A click on a row makes it", elem_id="compare-side"
        )
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
    page.act_of(rows.select, clicked, [which], api_name="take_scheme")
