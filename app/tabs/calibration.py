"""The Calibration tab: each calibrator's range for the chosen tensor, its objective, the resulting error."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import gradio as gr
from torch import Tensor

from app import html
from app.cache import BoundedCache
from app.gpu_lock import gpu_lock
from app.page import Page
from app.selection import Selection, matrix_of, tensor_key
from app.theme import plot_data
from app.views import Shown, View, listen, shows
from app.widgets import QUIET, block, plot_card, table
from explorer import Scheme
from explorer.analysis.calibration import (
    ChosenRange,
    StaticVsDynamic,
    compare_calibrators,
    static_and_dynamic,
    static_summary,
    summary,
    threshold_by_rows,
)
from explorer.figures.calibration import amount_figure, objectives_figure, range_figure

TITLE, NAME = "Calibration", "calibration"
MOST_ELEMENTS = 1 << 21
"""Of a larger tensor only the first rows are used: each calibrator quantizes them some eighty times."""
COLUMNS = {
    "method": "str",
    "low": "number",
    "high": "number",
    "SQNR dB": "number",
    "clipped %": "number",
    "max error": "number",
    "relative error": "number",
    "codes used": "number",
}
NOTE = (
    "The sidebar's <i>Range</i> (under Scales and rounding) applies a method to every block of the scheme; "
    "here one range is drawn for the whole tensor. Choose inputs of a layer to calibrate activations."
)
OwnIndependent = tuple[list[tuple[int, str, float]], StaticVsDynamic | None]
_BY_TENSOR = BoundedCache[OwnIndependent](64)


@dataclass(frozen=True)
class CalibrationView(View):
    """The conclusion, three figures, the table, and static against dynamic scales on held-out rows."""

    sentence: Shown
    ranges: Shown
    objectives: Shown
    amount: Shown
    table: Shown
    held: Shown


@shows(CalibrationView)
def show(chosen: Selection, own: float | None) -> CalibrationView:
    """Calibrate the chosen tensor with one scale for all. After the selection comes the visitor's own range,
    as a share (0 … 1) of the largest value. Returns the sentence, three figures, the table, and what static
    and dynamic scales do on held-out rows."""
    matrix, scheme, share = matrix_of(chosen), Scheme.parse(chosen.scheme), float(own or 1.0)
    if not 0 < share <= 1:
        raise ValueError("your range is a share of the largest value, above 0 and at most 1")
    rows = max(1, min(matrix.values.shape[0], MOST_ELEMENTS // max(matrix.values.shape[1], 1)))
    x = matrix.values[:rows].float()
    with gpu_lock():
        report = compare_calibrators(x, scheme, share)
        amounts, held = _independent_of_own_range(chosen, x)
    own_range = report.choices[-1]
    name = f"{matrix.name} {report.scheme.format.name}"
    part = "" if rows == matrix.values.shape[0] else f" Only the first {rows} rows of this tensor are used."
    return CalibrationView(
        sentence=html.sentence(summary(report) + part),
        ranges=plot_data(range_figure(report, own_range.low, own_range.high, name)),
        objectives=plot_data(objectives_figure(report, name)),
        amount=plot_data(amount_figure(amounts, name)),
        table=[_row(choice) for choice in report.choices],
        held=html.status(static_summary(held)),
    )


@shows()
def stale(chosen: Selection) -> str:
    """What stands here once the sidebar has changed: calibrating costs too much to follow every click."""
    return html.status("The tensor or the scheme has changed: press Calibrate, or come back to this tab.")


def _independent_of_own_range(chosen: Selection, x: Tensor) -> OwnIndependent:
    """The slow parts, which need not be computed again when the visitor moves the own range."""

    def compute() -> OwnIndependent:
        scheme = Scheme.parse(chosen.scheme)
        held = static_and_dynamic(x, scheme) if x.shape[0] > 1 else None
        return list(threshold_by_rows(x, scheme)), held

    return _BY_TENSOR.get((*tensor_key(chosen), x.shape[0], chosen.scheme), compute, lambda _: 1)


def _row(choice: ChosenRange) -> list[Any]:
    """One line of the table, in the order of ``COLUMNS``; what is not finite is left empty."""
    r = choice.report
    cells = [choice.low, choice.high, r.sqnr_db, 100 * r.clipped, r.max_error, r.relative_error, r.codes_used]
    return [
        choice.label,
        *(float(f"{v:.5g}") if v is not None and math.isfinite(v) else None for v in cells),
    ]


def build(page: Page) -> None:
    """Lay the tab out; it calibrates when it is opened and when asked to."""
    start = gr.Button("Calibrate", variant="primary", min_width=140)
    sentence = block(elem_id="calibration-sentence")
    with gr.Row():
        ranges = plot_card(
            "The range each method chooses",
            "on the histogram of the values; counts are logarithmic, so that the tail is visible",
            "ranges",
        )
        objectives = plot_card(
            "Objectives",
            "what each method minimises, over the threshold, with the point it chooses",
            "objectives",
        )
    own = gr.Slider(
        0.02,
        1.0,
        value=0.5,
        step=0.01,
        label="Your range, as a share of the largest value",
        elem_id="own-range",
    )
    outputs = CalibrationView(
        sentence=sentence,
        ranges=ranges,
        objectives=objectives,
        table=table(COLUMNS, "calibration-table", pinned_columns=1),
        held=block(elem_id="calibration-held"),
        amount=plot_card(
            "How much data calibration takes", "each method's threshold from the first rows alone", "amount"
        ),
    )
    block(html.note(NOTE))
    page.follow(stale, [], sentence, api_name="calibration_stale")
    inputs = [*page.selection, own]
    listen(start.click, show, inputs, outputs, api_name="calibration", show_progress="minimal")
    unlisted: dict[str, Any] = {"api_visibility": "undocumented"}
    listen(
        page.tab[NAME].select,
        show,
        inputs,
        outputs,
        api_name="calibration_opened",
        show_progress="minimal",
        **unlisted,
    )
    listen(own.release, show, inputs, outputs, api_name="calibration_range", **QUIET, **unlisted)
