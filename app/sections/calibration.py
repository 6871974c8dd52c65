"""The Calibration section: each calibrator's range for the chosen tensor, its objective, the error."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from typing import Any, ClassVar, Self

import gradio as gr
from torch import Tensor

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.views import Event, Shown, View, listen, shows
from app.parts.widgets import LATEST, block, of_result, plot_card, table
from app.state.controls import DEFAULT_RANGE
from app.state.gpu_lock import gpu_lock
from app.state.memo import Memo
from app.state.selection import Selection, matrix_of, tensor_key
from app.theme import plot_data
from explorer import CALIBRATORS
from explorer.analysis.calibration import (
    ChosenRange,
    StaticVsDynamic,
    calibrated_rows,
    compare_calibrators,
    static_and_dynamic,
    static_summary,
    summary,
    threshold_by_rows,
)
from explorer.figures.calibration import amount_figure, objectives_figure, range_figure
from explorer.methods.recipe import Recipe
from explorer.schemes.calibrators import calibrator_named, share_of_minmax

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
OWN = "own"
"""The visitor's range among the methods."""
NOTE = (
    "One range is drawn here for the whole tensor; in a scheme, the method chooses one for every block, and "
    "yours is that share of every block's largest values. "
    "Choose the inputs of a layer as the tensor to calibrate activations."
)
OwnIndependent = tuple[list[tuple[int, str, float]], StaticVsDynamic | None]
_BY_TENSOR = Memo[OwnIndependent](64)


@dataclass(frozen=True)
class CalibrationView(View):
    """The conclusion, three figures, the table, and static against dynamic scales on held-out rows."""

    sentence: Shown
    ranges: Shown
    objectives: Shown
    amount: Shown
    table: Shown
    held: Shown

    @classmethod
    def refused(cls, message: str) -> Self:
        """Said where the conclusion stands: the section is computed because it is seen, not asked for."""
        return cls.unchanged(sentence=html.refusal(message))


@shows(CalibrationView, told=True)
def show(chosen: Selection, own: float | None) -> CalibrationView:
    """Calibrate the chosen tensor with one scale for all. After the selection comes the visitor's own range,
    as a share (0 … 1) of the largest value. Returns the sentence, three figures, the table, and what static
    and dynamic scales do on held-out rows."""
    matrix, scheme, share = matrix_of(chosen), chosen.recipes[0].scheme, float(own or 1.0)
    if not 0 < share <= 1:
        raise ValueError("your range is a share of the largest value, above 0 and at most 1")
    x = calibrated_rows(matrix.values)
    rows = x.shape[0]
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


class Dragged(Event):
    """A line of the figure was dragged ``from`` one value ``to`` another."""

    FIELDS: ClassVar = {"from": {"type": "number"}, "to": {"type": "number"}}


@shows()
def share_of(own: float, event: Dragged) -> float:
    """The visitor's range, a share of the largest value, after one of its ends was dragged."""
    start, end = float(getattr(event, "from")), float(event.to)
    if start == 0:
        return own
    return round(min(max(own * end / start, 0.02), 1.0), 2)


@shows()
def written(method: str, own: float | None, side: str, first: str) -> str:
    """The act that makes A with another calibrator, or with ``own`` (0 … 1) of min-max where the method is
    "own", the scheme of ``side`` ("a" or "b"). What repairs A repairs it under the new range too."""
    recipe = Recipe.parse(first)
    calibrator = share_of_minmax(float(own or 0)) if method == OWN else calibrator_named(method)
    text = str(Recipe(recipe.scheme.with_ranges_by(calibrator), recipe.method))
    if text == first:
        raise ValueError(f"A has this range already: {calibrator.label}")
    limits.inform(f"Scheme {side.upper()}: ranges by {calibrator.label}")
    return json.dumps([{"do": "scheme", "side": side, "text": text}])


def _independent_of_own_range(chosen: Selection, x: Tensor) -> OwnIndependent:
    """The slow parts, which need not be computed again when the visitor moves the own range."""

    def compute() -> OwnIndependent:
        scheme = chosen.recipes[0].scheme
        held = static_and_dynamic(x, scheme) if x.shape[0] > 1 else None
        return list(threshold_by_rows(x, scheme)), held

    return _BY_TENSOR.get((*tensor_key(chosen), x.shape[0], chosen.scheme), compute, lambda _: 1)


def _row(choice: ChosenRange) -> list[Any]:
    """One line of the table, in the order of ``COLUMNS``; values that are not finite are left empty."""
    r = choice.report
    cells = [choice.low, choice.high, r.sqnr_db, 100 * r.clipped, r.max_error, r.relative_error, r.codes_used]
    return [
        choice.label,
        *(float(f"{v:.5g}") if v is not None and math.isfinite(v) else None for v in cells),
    ]


def build(page: Page) -> None:
    """Lay the section out; it calibrates when it is seen, and follows a range that is dragged."""
    sentence = block(html.computing("Computing the ranges …"), elem_id="calibration-sentence")
    with of_result():
        with gr.Row():
            ranges = plot_card(
                "The range each method chooses",
                "on the histogram of the values; drag your range's ends, or use the slider",
                "ranges",
                height=380,
                draggable=True,
            )
            objectives = plot_card(
                "Objectives",
                "what each method minimises or keeps fixed, by the clipping threshold; points: the choices",
                "objectives",
                height=380,
            )
        own = gr.Slider(
            0.02,
            1.0,
            value=DEFAULT_RANGE,
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
                "Amount of data needed for calibration",
                "the threshold that each method chooses when it has seen only the first rows",
                "amount",
            ),
        )
    _build_use(page, own)
    block(html.note(NOTE))
    page.follow(show, [own], outputs, api_name="calibration")
    inputs = [*page.selection, own]
    unlisted: dict[str, Any] = {**LATEST, "api_visibility": "undocumented"}
    listen(own.release, show, inputs, outputs, api_name="calibration_range", **unlisted)
    dragged = listen(ranges.range, share_of, own, own, api_name="calibration_dragged", **unlisted)
    listen(dragged.then, show, inputs, outputs, api_name="calibration_drawn", **unlisted)
    page.keep("range", own, own.release, dragged.then)


def _build_use(page: Page, own: gr.Slider) -> None:
    """Write a method, or the visitor's ``own`` range, back into the schemes: as A's range, or as scheme B."""
    with gr.Row(elem_classes="tight", elem_id="use-range"):
        method = gr.Dropdown(
            [*((c.label, c.name) for c in CALIBRATORS.values()), ("your range", OWN)],
            value="mse",
            label="Method",
            min_width=180,
        )
        for side, label in (("a", "Use it in A"), ("b", "Compare it as B")):
            button = gr.Button(label, min_width=120)
            inputs = [method, own, gr.State(side), page.pair[0]]
            page.act_of(button.click, written, inputs, api_name=f"use_range_{side}")
