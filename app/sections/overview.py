"""Below the first screen: key numbers, the assessment in words, and what became of the values."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.parts import html
from app.parts.page import Page
from app.parts.views import Shown, View, listen, shows
from app.parts.widgets import TOGETHER, block, figure_pair, hidden, plot_card, plot_pair
from app.sections.element import ElementView, arithmetic, build_element, shown_element
from app.state.analyses import Pairs, analyses_of, sides_of
from app.state.estimates import Estimated
from app.state.gpu_lock import gpu_lock
from app.state.record import Record
from app.state.selection import Selection, matrix_of
from app.theme import plot_data
from explorer.analysis.verdict import judged, verdict
from explorer.bench.quantize import time_one
from explorer.core.backend import gpu_device, gpu_status
from explorer.core.serialize import to_json
from explorer.figures.error_map import error_map_figure
from explorer.figures.errors import error_figure
from explorer.figures.tensor import scales_figures, usage_figures
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.recordings.quantize import recorded_kernel
from explorer.sources.tensors import Matrix

TIMED_ROWS = 4096
"""Rows of a tensor too large for the GPU that the kernel is timed on."""


@dataclass(frozen=True)
class TensorView(ElementView):
    """Outputs that change together with what is chosen: the bar, the assessment, key numbers, the element."""

    chips: Shown
    verdict: Shown
    kpis: Shown


@dataclass(frozen=True)
class ValuesView(View):
    """Figures of values, errors, scales and codes, which follow when they are seen."""

    values: Shown
    errors: Shown
    scales: Shown
    second_scales: Shown
    usage: Shown
    second_usage: Shown


@dataclass(frozen=True)
class MapsView(View):
    """The maps of the error, which follow when they are seen."""

    error_map: Shown


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
    words += _shortened(pairs)
    return {
        "chips": html.chips(matrix.name, recipes),
        "verdict": html.verdict(matrix.description, recipes, words, why),
        "kpis": html.kpis(reports, outputs),
    }


def _shortened(pairs: Pairs) -> str:
    """Behind the verdict: whose bits are of rows that no GGUF file holds; empty of others."""
    notes = [recipe.scheme.shortened(analysis.q.shape) for recipe, analysis in pairs]
    whose = [side for side, words in zip(html.SIDES, notes, strict=False) if words]
    if not whose:
        return ""
    words = next(filter(None, notes))
    return f" {' and '.join(whose)}: {words}." if len(pairs) > 1 else f" {words[0].upper()}{words[1:]}."


_WAITS = "The reason follows with the whole tensor."


def words_of_sample(seen: Estimated) -> dict[str, str]:
    """The bar, the verdict and the key numbers by a sample of the tensor, as ``words_of`` names them."""
    words = f"By the sample: {verdict(*seen.reports)}"
    return {
        "chips": html.chips(seen.name, seen.recipes),
        "verdict": html.verdict(seen.description, seen.recipes, words, _WAITS, waits=True),
        "kpis": html.kpis(seen.reports, sampled=seen.estimates),
    }


def first_sight() -> dict[str, str]:
    """``words_of`` what a page without a link shows: they come with the page itself."""
    return words_of(*analyses_of(Record.fresh()))


def element_of(chosen: Record, found: tuple[Matrix, Pairs]) -> dict[str, Shown]:
    """The fields of ``ElementView`` for the record's element."""
    matrix, pairs = found
    position = chosen.position or pairs[0][1].report.max_error_at
    name = matrix.name
    return vars(shown_element(matrix, sides_of(pairs), position, name, chosen.position is None))


def place_of(chosen: Record, found: tuple[Matrix, Pairs]) -> dict[str, Shown]:
    """The record's element, without the figure of the values, which follows when it is seen."""
    matrix, pairs = found
    position = chosen.position or pairs[0][1].report.max_error_at
    return arithmetic(matrix, sides_of(pairs), position, chosen.position is None)


@shows(ValuesView, told=True, seen=True)
def values(chosen: Record) -> ValuesView:
    """What became of the values: their figures, scales and codes."""
    matrix, pairs = found = analyses_of(chosen)
    sides = sides_of(pairs)
    name = matrix.name
    scales, usage = figure_pair(scales_figures(sides, name)), figure_pair(usage_figures(sides, name))
    return ValuesView(
        values=element_of(chosen, found)["values"],
        errors=plot_data(error_figure(sides, name)),
        scales=scales[0],
        second_scales=scales[1],
        usage=usage[0],
        second_usage=usage[1],
    )


@shows(MapsView, told=True, seen=True)
def maps(chosen: Record) -> MapsView:
    """Where the error is."""
    matrix, pairs = analyses_of(chosen)
    position = chosen.position or pairs[0][1].report.max_error_at
    name = matrix.name
    return MapsView(plot_data(error_map_figure(matrix.values, sides_of(pairs), position, name)))


@shows(seen=True)
def tensor(chosen: Selection) -> list[dict[str, Any]]:
    """For programs: what schemes A and B do to the selected tensor, as JSON."""
    matrix, pairs = analyses_of(chosen)
    return [
        {"tensor": matrix.description, "scheme": str(recipe), "describe": recipe.describe()}
        | {"report": to_json(analysis.report)}
        for recipe, analysis in pairs
    ]


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


def build(page: Page, words: Mapping[str, str]) -> TensorView:
    """Lay out the numbers, the values, the error map, one element, scales and codes; ``words`` are what a
    page without a link shows. Returns what shows the tensor."""
    with page.section("numbers", "Numbers"):
        kpis = block(words["kpis"], elem_id="numbers")
        verdict = block(words["verdict"], elem_id="verdict")
    with page.section("values", "Values and error"), gr.Row():
        with gr.Column(min_width=380):
            drawn = plot_card(
                "Values before and after",
                "grey: the tensor; coloured: dequantized values; ticks: the levels of the inspected block",
                "values-plot",
                height=320,
            )
            scales = plot_pair("Scales", "one scale per block", "scales-plot")
        with gr.Column(min_width=380):
            errors = plot_card("Error", "error of each element", "error-plot", height=320)
            usage = plot_pair("Codes used", "frequency of each code, ordered by value", "usage-plot")
        seen = ValuesView(drawn, errors, *scales, *usage)
        page.when_seen(values, page.record, seen, api_name="values")
    with page.section("element", "Element"):
        element = build_element(page, drawn, errors)
        seen_maps = MapsView(element.map)
        page.when_seen(maps, page.record, seen_maps, api_name="element")
    with (
        page.section("kernel", "Kernel"),
        gr.Accordion("Kernel: time to quantize with A on a GPU", open=False, elem_id="kernel"),
    ):
        page.follow(kernel, [], block(), api_name="kernel")
    programs: Any = hidden("/* no script of the page calls trigger('tensor'): programs do */")
    listen(programs.tensor, tensor, page.selection, gr.JSON(visible=False), api_name="tensor", **TOGETHER)
    return TensorView(
        **vars(element.view),
        chips=page.bar.chips,
        verdict=verdict,
        kpis=kpis,
    )
