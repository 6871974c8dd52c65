"""The Compare tab: many schemes on the chosen tensor, shown as they finish."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import html
from app.files import NOTHING_YET, Downloads, downloads
from app.gpu_lock import locked_steps
from app.page import Page
from app.scheme_picker import build_scheme_picker
from app.selection import Selection, matrix_of
from app.sidebar import SchemeView, show_scheme
from app.theme import plot_data
from app.views import Control, Shown, StatusView, listen, shows
from app.widgets import (
    PRIVATE,
    QUIET,
    RunButtons,
    block,
    download_buttons,
    plot_card,
    stop_button,
    table,
)
from explorer import SCHEMES, ComparisonRow, Scheme, compare_schemes, mark_frontier
from explorer.analysis.schemes import comparison_record
from explorer.figures.compare import frontier_figure

TITLE, NAME = "Compare", "compare"
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
DRAWN_EVERY = 8
"""The figure is large beside a line of text: it is sent once for so many schemes, and at the end."""


@dataclass(frozen=True)
class CompareView(StatusView):
    """The tab: status, table, figure, and the files of a finished run."""

    table: Shown
    figure: Shown
    csv_file: Shown
    json_file: Shown


@dataclass(frozen=True)
class TakenView(SchemeView):
    """The scheme controls, and which tab is open."""

    tabs: Shown


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

    After the selection comes the list of schemes' names. Yields status, table, frontier figure, and at
    the end the CSV and JSON files. Stopping keeps what is there.
    """
    if not names:
        raise ValueError("choose at least one scheme to compare")
    schemes = [Scheme.parse(name) for name in names]
    matrix = matrix_of(chosen)
    rows: list[ComparisonRow] = []
    for row in locked_steps(compare_schemes(matrix.values, schemes)):
        rows.append(row)
        marked = mark_frontier(rows)
        last = len(rows) == len(schemes)
        progress = f"{len(rows)} of {len(schemes)} schemes on {matrix.description}"
        drawn = last or len(rows) % DRAWN_EVERY == 0
        files = _files(marked, matrix.name) if last else NOTHING_YET
        yield CompareView(
            status=html.status(progress if last else f"{progress} · now {row.scheme.label}"),
            table=[table_row(r) for r in marked],
            figure=plot_data(frontier_figure(marked, matrix.name)) if drawn else gr.skip(),
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


@shows(TakenView)
def clicked(event: gr.SelectData) -> TakenView:
    """Take over the clicked row's scheme: what every scheme control shows, and the Tensor tab opened."""
    name, *_ = event.row_value
    return TakenView(**vars(show_scheme(str(name))), tabs=gr.Tabs(selected="tensor"))


def build(page: Page) -> None:
    """Lay the tab out. A click on a row takes its scheme to the Tensor tab."""
    schemes = build_scheme_picker(page, USUAL, "Schemes", "compare-schemes")
    with gr.Row():
        start = gr.Button("Compare these", variant="primary", min_width=140)
        everything = gr.Button(f"Compare all {len(SCHEMES)}", min_width=140)
        stop = stop_button()
    status = block(html.status("Nothing compared yet."), elem_id="compare-status")
    stopped = block(elem_id="compare-stopped")
    figure = plot_card(
        "Bits against error",
        "dotted: the frontier, which no other scheme beats at the same bits or fewer",
        "frontier",
        frontier_figure([], "compare"),
    )
    rows = table(COLUMNS, "compare-table", pinned_columns=1, max_height=560, buttons=["copy"])
    block(html.note("Click a heading to sort, a row to open its scheme in the Tensor tab."))
    csv_file, json_file = download_buttons()
    outputs = CompareView(status=status, table=rows, figure=figure, csv_file=csv_file, json_file=json_file)

    inputs, slow = [*page.selection, schemes], {**QUIET, "concurrency_id": "compute"}
    buttons = RunButtons((start, everything), stop, stopped)
    buttons.begin_on(start.click, everything.click)
    running = listen(start.click, run, inputs, outputs, api_name="compare", **slow)
    all_named = everything.click(lambda: list(SCHEMES), None, schemes, **PRIVATE)
    running_all = listen(all_named.then, run, inputs, outputs, api_name="compare_all", **slow)
    buttons.end_with(running, running_all, message="Stopped; the table holds what was finished.")
    _wire_rows(page, rows)


def _wire_rows(page: Page, rows: Control) -> None:
    outputs = TakenView(**vars(page.sidebar.scheme), tabs=page.tabs)
    page.changed_by(listen(rows.select, clicked, None, outputs, api_name="take_scheme", **QUIET), "row")
