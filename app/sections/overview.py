"""The top of the Tensor place: the verdict, key numbers, and what became of the values."""

from __future__ import annotations

from collections.abc import Generator, Iterator, Sequence
from dataclasses import dataclass
from typing import ClassVar, Self

import gradio as gr

from app.parts import html
from app.parts.page import Page
from app.parts.views import Shown, shows
from app.parts.widgets import block, figure_pair, plot_card, plot_pair
from app.sections.element import ElementView, build_element, inside, shown_element
from app.state.analyses import Pairs, analyses_of, analysing, each, output_sqnr, sides_of
from app.state.gpu_lock import gpu_lock
from app.state.selection import Selection, matrix_of
from app.theme import plot_data
from explorer.analysis.verdict import judged, verdict
from explorer.bench.quantize import time_one
from explorer.core.backend import gpu_device, gpu_status
from explorer.figures.tensor import error_figure, error_map_figures, scales_figures, usage_figures
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.recordings.quantize import recorded_kernel
from explorer.sources.tensors import Matrix

TIMED_ROWS = 4096
"""Rows of a tensor too large for the GPU that the kernel is timed on."""


@dataclass(frozen=True)
class TensorView(ElementView):
    """Outputs that are updated after every change of the tensor or a scheme: the bar, the verdict, key
    numbers, figures, and a line for rejected input, above the name of the tensor still shown.

    shown: source, file and tensor of the last valid file, for a rejected file. upload_error: the reason of
    a rejection, until it is displayed."""

    begins: ClassVar[str | None] = "(...values) => explorer.asked(values)"
    chips: Shown
    verdict: Shown
    kpis: Shown
    errors: Shown
    error_map: Shown
    second_map: Shown
    scales: Shown
    second_scales: Shown
    usage: Shown
    second_usage: Shown
    notice: Shown
    shown: Shown
    upload_error: Shown

    @classmethod
    def refused(cls, message: str) -> Self:
        return cls.unchanged(notice=_notice(message), upload_error="")

    @classmethod
    def waiting(cls, message: str) -> Self:
        """View while a choice is missing: the previous tensor stays, and no change of a scheme is applied."""
        return cls.unchanged(notice=_notice(message), upload_error="")


def _notice(message: str) -> str:
    return html.status(f"{message}. Still shown: the previous view.") if message else ""


def words_of(matrix: Matrix, pairs: Pairs, outputs: Sequence[float] = ()) -> dict[str, str]:
    """The bar, the verdict and the key numbers, by their names in ``TensorView``."""
    recipes = [recipe for recipe, _ in pairs]
    reports = [analysis.report for _, analysis in pairs]
    if len(recipes) == 2 and recipes[0] == recipes[1]:
        words, why = "A and B are the same scheme: choose another for one of them to compare.", ""
    elif outputs:  # the steps of a repaired weight are not those of its scheme alone
        words, why = f"{output_words(recipes, outputs)} {verdict(*reports)}", ""
    else:
        words, why = judged(*(analysis for _, analysis in pairs))
    return {
        "chips": html.chips(matrix.name, recipes),
        "verdict": html.verdict(matrix.description, recipes, words, why),
        "kpis": html.kpis(reports, outputs),
    }


def first_sight() -> dict[str, str]:
    """``words_of`` what a page without a link shows: they come with the page itself."""
    return words_of(*analyses_of(Selection()))


@shows(TensorView)
def show(
    chosen: Selection, row: float | None, column: float | None, follow: bool, upload_error: str = ""
) -> Iterator[TensorView]:
    """Quantize the chosen tensor by the one or two chosen schemes and show what happened: the numbers, then
    all of it.

    After the selection come the element to inspect (row, column), whether to follow the largest error of
    scheme A instead, and why a file was refused, if one was.
    """
    matrix, pairs = yield from _analysing(chosen)
    numbers: dict[str, Shown] = {
        **words_of(matrix, pairs, output_sqnr(chosen, pairs)),
        "notice": _notice(upload_error),
        "upload_error": "",
        "shown": (chosen.source, chosen.file, chosen.file_tensor),
    }
    yield TensorView.unchanged(**numbers)
    sides = sides_of(pairs)
    first = pairs[0][1]
    position = first.report.max_error_at
    if not follow and row is not None and column is not None:
        position = inside((row, column), first.q.shape)
    name = f"{matrix.name} {' '.join(chosen.schemes)}"
    element = shown_element(matrix, sides, position, name)
    maps = figure_pair(error_map_figures(sides, first.q.shape, position, name))
    scales, usage = figure_pair(scales_figures(sides, name)), figure_pair(usage_figures(sides, name))
    yield TensorView(
        **vars(element),
        **numbers,
        errors=plot_data(error_figure(sides, name)),
        error_map=maps[0],
        second_map=maps[1],
        scales=scales[0],
        second_scales=scales[1],
        usage=usage[0],
        second_usage=usage[1],
    )


def _analysing(chosen: Selection) -> Generator[TensorView, None, tuple[Matrix, Pairs]]:
    """``analysing``, its words in the line above the numbers."""
    found = yield from each(analysing(chosen), lambda words: TensorView.unchanged(notice=_notice(words)))
    return found


def output_words(recipes: Sequence[Recipe], outputs: Sequence[float]) -> str:
    """Describe the layer's output error under a method. Without it the verdict, which rates the weight
    error, would rate down every method that trades weight error for output error."""
    if not outputs:
        return ""
    first, *second = (f"{db:.1f} dB" for db in outputs)
    if not second:
        return f"By {label_of(recipes[0].method)} the layer's output has {first} on held-out inputs."
    gain = outputs[1] - outputs[0]
    better = "B" if gain > 0 else "A"
    return (
        f"The layer's output, which a method optimises, has {first} by A and {second[0]} by B on inputs held "
        f"out: {better} is {abs(gain):.1f} dB better. The weight by itself:"
    )


@shows()
def kernel(chosen: Selection) -> str:
    """The kernel behind scheme A: measured on this machine's GPU, or recorded on a named one."""
    scheme = chosen.recipes[0].scheme
    device = gpu_device()
    if device is not None:
        x = matrix_of(chosen).values
        whole = x.device == device
        with gpu_lock():
            measured = time_one(x if whole else x[:TIMED_ROWS].to(device), scheme)
        part = "the tensor as it is" if whole else f"its first {TIMED_ROWS} rows"
        return html.kernel(measured, f"measured now on {gpu_status().reason}, {part}")
    recorded, source = recorded_kernel(str(scheme))
    if recorded is None:
        return html.status("No recording for this scheme; on a machine with a GPU, its kernel is timed here.")
    return html.kernel(recorded, source)


def build_verdict(page: Page) -> tuple[gr.HTML, gr.HTML]:
    """The verdict and the key numbers."""
    words = first_sight()
    return block(words["verdict"], elem_id="verdict"), block(words["kpis"], elem_id="numbers")


def build_values(page: Page, verdict: gr.HTML, kpis: gr.HTML) -> None:
    """Lay out the values, the error map, one element, scales and codes."""
    with page.section("values"), gr.Row():
        with gr.Column(min_width=380):
            values = plot_card(
                "Values before and after",
                "grey: the tensor; coloured: dequantized values; ticks: the levels of the inspected block",
                "values-plot",
                height=320,
            )
            scales = plot_pair("Scales", "one scale per block", "scales-plot")
        with gr.Column(min_width=380):
            errors = plot_card("Error", "error of each element", "error-plot", height=320)
            usage = plot_pair("Codes used", "frequency of each code, ordered by value", "usage-plot")
    with page.section("element"):
        element = build_element(page, values)
    with (
        page.section("kernel"),
        gr.Accordion("Kernel: time to quantize with A on a GPU", open=False, elem_id="kernel"),
    ):
        page.follow(kernel, [], block(), api_name="kernel")
    outputs = TensorView(
        **vars(element.view),
        chips=page.bar.chips,
        verdict=verdict,
        kpis=kpis,
        errors=errors,
        error_map=element.maps[0],
        second_map=element.maps[1],
        scales=scales[0],
        second_scales=scales[1],
        usage=usage[0],
        second_usage=usage[1],
        notice=page.notice,
        shown=page.shown,
        upload_error=page.upload_error,
    )
    page.follow(show, [*page.position, page.upload_error], outputs, api_name="tensor")
