"""The Tensor tab: what the chosen scheme does to the chosen tensor."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Self

import gradio as gr

from app import html
from app.gpu_lock import gpu_lock
from app.page import Page
from app.selection import Selection, analysis_of, matrix_of
from app.theme import plot_data
from app.views import Control, Shown, View, listen, shows
from app.widgets import PRIVATE, QUIET, block, plot_card
from explorer import Scheme
from explorer.analysis.element import inspect_element
from explorer.analysis.tensor import Side, block_levels
from explorer.bench.quantize import recorded_kernel, time_one
from explorer.core.backend import gpu_device, gpu_status
from explorer.figures.tensor import error_figure, error_map_figures, scales_figures, usage_figures
from explorer.figures.values import values_figure

TITLE, NAME = "Tensor", "tensor"
TIMED_ROWS = 4096
"""Rows of a tensor too large for the GPU that the kernel is timed on."""


@dataclass(frozen=True)
class TensorView(View):
    """The line above the tabs, key numbers, five figures, the inspected element with its position, and a line
    for what was refused, above the name of what is still shown."""

    summary: Shown
    kpis: Shown
    values: Shown
    errors: Shown
    error_map: Shown
    scales: Shown
    usage: Shown
    inspector: Shown
    packed: Shown
    row: Shown
    column: Shown
    notice: Shown

    @classmethod
    def refused(cls, message: str) -> Self:
        return cls.unchanged(notice=html.status(f"{message}. Still shown:"))


@dataclass(frozen=True)
class PositionView(View):
    """Which element is inspected: this one, or the one with the largest error."""

    row: Shown
    column: Shown
    follow: Shown


@shows(TensorView)
def show(chosen: Selection, row: float | None, column: float | None, follow: bool) -> TensorView:
    """Quantize the chosen tensor by the chosen scheme and show what happened.

    After the selection come the element to inspect (row, column) and whether to follow the largest error
    instead. Returns the description, key numbers, five figures, the inspected element and its bytes.
    """
    matrix, scheme, analysis = analysis_of(chosen)
    position = analysis.report.max_error_at
    if not follow and row is not None and column is not None:
        position = (int(row), int(column))
    element = inspect_element(matrix.values, analysis.q, *position)
    name, q, sides = f"{matrix.name} {chosen.scheme}", analysis.q, [Side(scheme.label, analysis)]
    levels = [block_levels(q, *position)]
    return TensorView(
        summary=html.summary_line(matrix.description, scheme),
        kpis=html.kpis(analysis.report),
        values=plot_data(values_figure(analysis.before, sides, levels, name)),
        errors=plot_data(error_figure(sides, name)),
        error_map=plot_data(error_map_figures(sides, q.shape, position, name)[0]),
        scales=plot_data(scales_figures(sides, name)[0]),
        usage=plot_data(usage_figures(sides, name)[0]),
        inspector=html.inspector(element),
        packed=html.packed(element, scheme),
        row=element.row,
        column=element.column,
        notice="",
    )


@shows(told=True)
def kernel(chosen: Selection) -> str:
    """The kernel behind the chosen scheme: measured on this machine's GPU, or recorded on a named one."""
    scheme = Scheme.parse(chosen.scheme)
    device = gpu_device()
    if device is not None:
        x = matrix_of(chosen).values
        whole = x.device == device
        with gpu_lock():
            measured = time_one(x if whole else x[:TIMED_ROWS].to(device), scheme)
        part = "the tensor as it is" if whole else f"its first {TIMED_ROWS} rows"
        return html.kernel(measured, f"measured now on {gpu_status().reason}, {part}")
    recorded, source = recorded_kernel(chosen.scheme)
    if recorded is None:
        return html.status(
            "Nothing was recorded for this scheme; on a machine with a GPU its kernel is timed here."
        )
    return html.kernel(recorded, source)


@shows(PositionView)
def picked(event: gr.EventData) -> PositionView:
    """The element under a click on the error map; stops following the largest error."""
    return PositionView(row=int(event.row), column=int(event.column), follow=False)


def build(page: Page) -> None:
    """Lay the tab out and wire it to the sidebar."""
    kpis = block()
    with gr.Row():
        values = plot_card(
            "Values before and after",
            "on the same bins; below, the values one block can represent",
            "values-plot",
        )
        errors = plot_card("Error", "how far each element moved", "error-plot")
    with gr.Row():
        error_map = plot_card(
            "Where the error is", "largest |error| under each cell; click to inspect an element", "error-map"
        )
        with gr.Column(min_width=380):
            position = _build_position()
            inspector = block()
    with gr.Row():
        scales = plot_card("Scales", "one scale per block", "scales-plot")
        usage = plot_card("Codes used", "how often each code occurs, by its value", "usage-plot")
    packed = block()
    with gr.Accordion("Kernel: what quantizing costs on a GPU", open=False, elem_id="kernel"):
        kernel_facts = block()
    outputs = TensorView(
        summary=page.summary,
        kpis=kpis,
        values=values,
        errors=errors,
        error_map=error_map,
        scales=scales,
        usage=usage,
        inspector=inspector,
        packed=packed,
        row=position.row,
        column=position.column,
        notice=page.notice,
    )
    page.follow(show, position.in_order(), outputs, api_name="tensor")
    page.follow(kernel, [], kernel_facts, api_name="kernel")
    _wire_position(page, position, outputs)


def _build_position() -> PositionView:
    with gr.Row():
        return PositionView(
            row=gr.Number(label="Row", precision=0, minimum=0, min_width=80),
            column=gr.Number(label="Column", precision=0, minimum=0, min_width=80),
            follow=gr.Checkbox(True, label="Follow the largest error", min_width=180),
        )


def _wire_position(page: Page, position: PositionView, outputs: TensorView) -> None:
    """An element is chosen by a click on the map, by its row or column, or by its error."""
    clicks: Control = gr.HTML(
        "",
        html_template="<span hidden></span>",
        js_on_load="explorer.onPlotClick('#error-map', point => trigger('pick', point))",
    )
    inputs = [*page.selection, *position.in_order()]
    clicked = listen(clicks.pick, picked, None, position, api_name="pick", **QUIET)
    listen(clicked.then, show, inputs, outputs, api_name="tensor_at", **QUIET)
    for number, axis in ((position.row, "row"), (position.column, "column")):
        typed = number.submit(lambda: False, None, position.follow, **PRIVATE)
        listen(typed.then, show, inputs, outputs, api_name=f"tensor_{axis}", **QUIET)
    listen(position.follow.input, show, inputs, outputs, api_name="tensor_follow", **QUIET)
