"""The Speed section's figures, from what was recorded: order, lengths, ends of axes, roofs, names, colours.

If these fail, the fastest product is drawn as the shortest, or a limit lies beyond the axis without a word.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

import pytest

from explorer.figures import style
from explorer.figures.speed import speed_figure
from explorer.figures.speed_ladder import ladder_figure
from explorer.figures.speed_roofline import roofline_figure
from explorer.figures.speed_sweep import sweep_figure
from explorer.figures.speed_tradeoff import tradeoff_figure
from explorer.products.advice import at_shape, fastest, points
from explorer.products.table import GEMMS
from explorer.recordings.gemm import GemmTiming, recorded_gemms

RECORDED = recorded_gemms()
SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (1, 8192, 8192))
SQUARE = at_shape(RECORDED.rows, SHAPES[0])
MARKED = {"w_nvfp4": "A", "nvfp4": "A", "w4a16_group128": "B"}


def traces(figure: Any, name: str) -> list[dict[str, Any]]:
    return [t for t in figure.to_dict()["data"] if t.get("name") == name]


def dots(figure: Any) -> dict[str, float]:
    """Where each product's point stands, by the row's name."""
    return {
        y: x
        for family in style.FAMILY_COLORS
        for trace in traces(figure, family)
        for x, y in zip(trace["x"], trace["y"], strict=True)
    }


def x_range(figure: Any) -> tuple[float, float]:
    low, high = figure.layout.xaxis.range
    return 10**low, 10**high


@pytest.mark.parametrize("shape", SHAPES)
def test_rows_are_ordered_by_what_is_drawn(shape: tuple[int, int, int]) -> None:
    """Down the rows the time rises, and so does the distance from the left."""
    here = at_shape(RECORDED.rows, shape)
    figure = speed_figure(here, "x")
    rows, at = list(figure.layout.yaxis.categoryarray), dots(figure)
    assert rows == [t.label for t in sorted(fastest(here), key=lambda t: t.seconds)]
    assert figure.layout.yaxis.range[0] > figure.layout.yaxis.range[1], "the first row stands at the top"
    drawn = [at[row] for row in rows if row in at]
    assert drawn == sorted(drawn) and len(drawn) > len(rows) // 2
    seconds = {t.label: t.seconds for t in fastest(here)}
    assert all(x == pytest.approx(1e6 * seconds[row]) for row, x in at.items())


@pytest.mark.parametrize("shape", SHAPES)
def test_nothing_lies_beyond_the_axis_without_a_mark(shape: tuple[int, int, int]) -> None:
    """Every product, limit and baseline stands within the axis, or an arrow at its end stands for it."""
    here = at_shape(RECORDED.rows, shape)
    figure = speed_figure(here, "x")
    low, high = x_range(figure)
    for trace in figure.to_dict()["data"]:
        assert all(low <= x <= high for x in trace["x"] if x is not None), trace.get("name")
    best = fastest(here)
    assert sum(len(t["x"]) for t in traces(figure, "limit of the chip (modelled)")) == sum(
        t.floor_s is not None for t in best
    )
    named = {a.y for a in figure.layout.annotations}
    assert set(dots(figure)) | named == {t.label for t in best} and not set(dots(figure)) & named
    for trace in traces(figure, "limit of the chip (modelled)"):
        floors = {t.label: 1e6 * t.floor_s for t in best if t.floor_s}
        for x, row in zip(trace["x"], trace["y"], strict=True):
            beyond = trace["marker"]["symbol"] != "line-ns"
            assert beyond == (floors[row] != pytest.approx(x)), f"{row}: an arrow only where it is needed"


@pytest.mark.parametrize("shape", SHAPES)
def test_ceilings_meet_the_slope_of_memory(shape: tuple[int, int, int]) -> None:
    """Each ceiling begins on the slope, which reaches from below the lowest of them to the highest."""
    limits = RECORDED.limits
    assert limits is not None
    figure = roofline_figure(at_shape(RECORDED.rows, shape), limits, "x").to_dict()["data"]
    slope = next(t for t in figure if t["name"].startswith("memory"))
    ceilings = [t for t in figure if t.get("mode", "").startswith("lines") and t is not slope]
    corners = set(zip(slope["x"], slope["y"], strict=True))
    assert len(ceilings) > 3
    for ceiling in ceilings:
        start = (ceiling["x"][0], ceiling["y"][0])
        assert start in corners and ceiling["y"][0] == ceiling["y"][1] and ceiling["x"][1] > start[0]
    for (x, y), (x2, y2) in itertools.pairwise(sorted(corners)):
        assert math.log(y2 / y) == pytest.approx(math.log(x2 / x)), "a slope of one"


def test_kernels_are_points_where_their_axis_has_no_zero() -> None:
    """A bar's length on a logarithmic axis means nothing: 1,520 × was drawn as 11 : 1."""
    for gemm in ("int8", "bf16"):
        figure = ladder_figure([t for t in SQUARE if t.gemm == gemm], "x")
        bars = [t for t in figure.to_dict()["data"] if t["type"] == "bar"]
        assert figure.layout.xaxis.type != "log" or not bars
        assert "ms" in figure.data[0].text[0] and "e+" not in " ".join(figure.data[0].text)


def every_figure() -> dict[str, Any]:
    swept = [t for t in RECORDED.rows if t.shape[1:] == (8192, 8192)]
    return {
        "bars": speed_figure(SQUARE, "x", MARKED),
        "tradeoff": tradeoff_figure(points(SQUARE), "x", MARKED),
        "sweep": sweep_figure(swept, "x", MARKED),
        "roofline": roofline_figure(SQUARE, RECORDED.limits, "x", MARKED),
    }


@pytest.mark.parametrize("name", every_figure())
def test_a_family_has_one_color(name: str) -> None:
    """Colours say which family the weights' format is of, and A's and B's products are told apart."""
    figure = every_figure()[name].to_dict()["data"]
    for family, color in style.FAMILY_COLORS.items():
        members = [t for t in figure if t.get("name") == family]
        assert all(t["marker"]["color"] == color for t in members)
    if name != "sweep":
        rings = {t["name"]: t["marker"]["color"] for t in figure if t.get("name", "").startswith("scheme")}
        assert rings == {"scheme A": style.A, "scheme B": style.B}
        return
    colors = {t["name"]: t["line"]["color"] for t in figure}
    assert colors["A · " + GEMMS["w_nvfp4"].label] == style.A
    assert colors[GEMMS["int8"].label] == style.FAMILY_COLORS["integer"]
    curves = [t for t in figure if "marker" in t]
    looks = [(t["line"]["color"], t["line"]["dash"], t["marker"]["symbol"][0]) for t in curves]
    assert len(set(looks)) == len(looks), "two curves look the same"


def test_native_and_emulated_are_told_apart_without_color() -> None:
    figure = speed_figure(SQUARE, "x").to_dict()["data"]
    keys = [t for t in figure if t.get("name", "").split(":")[0] in ("filled", "open")]
    symbols = {t["name"]: t["marker"]["symbol"] for t in keys}
    assert symbols == {"filled: native": "circle", "open: emulated": "circle-open"}
    native = {t.label: t.native for t in fastest(SQUARE)}
    for trace in figure:
        if trace.get("name") in style.FAMILY_COLORS:
            assert all(native[row] == (trace["marker"]["symbol"] == "circle") for row in trace["y"])


def test_a_product_that_is_gone_from_the_table_is_still_drawn() -> None:
    """Recordings outlive the table of products."""
    gone: list[GemmTiming] = [dataclasses.replace(SQUARE[0], gemm="gone", label="Gone")]
    assert [t.y for t in speed_figure(gone, "x").data if t.name == "not in the table any more"] == [("Gone",)]


@pytest.mark.parametrize("shape", SHAPES)
def test_slow_products_are_named_beside_the_plot(shape: tuple[int, int, int]) -> None:
    every = points(at_shape(RECORDED.rows, shape))
    figure = tradeoff_figure(every, "x")
    low, high = x_range(figure)
    beyond = [p for p in every if not low <= 1e6 * p.seconds <= high]
    notes = " ".join(a.text for a in figure.layout.annotations)
    assert all(p.label in notes for p in beyond[:2])


@pytest.mark.parametrize(
    "marked", [MARKED, {"w_mxfp4": "A", "mxfp4": "A", "w4a16_group128": "B", "w4a8_int": "B"}]
)
def test_a_and_b_are_both_labelled(marked: dict[str, str]) -> None:
    """Whose point is whose is written at A's as at B's, by the letter where the name has no room."""
    figure = tradeoff_figure(points(SQUARE), "x", marked)
    written = [a.text for a in figure.layout.annotations]
    assert {text[0] for text in written if text in ("A", "B") or " · " in text} == {"A", "B"}


def test_the_legend_of_the_sweep_has_no_faded_line_but_one() -> None:
    """Curves that are not drawn at first stand behind one entry, not as fourteen faded names."""
    figure = sweep_figure([t for t in RECORDED.rows if t.shape[1:] == (8192, 8192)], "x", MARKED)
    hidden = [t for t in figure.data if t.visible == "legendonly" and t.showlegend is not False]
    behind = [t for t in figure.data if t.visible == "legendonly" and t.showlegend is False]
    assert [t.name for t in hidden] == [f"{len(behind)} more (click)"]
    assert {t.legendgroup for t in [*hidden, *behind]} == {"more"}


@pytest.mark.parametrize("shape", SHAPES)
def test_the_ladder_ends_with_the_fastest(shape: tuple[int, int, int]) -> None:
    """Each kernel is at least as fast as the one above it."""
    here = at_shape(RECORDED.rows, shape)
    for gemm in {t.gemm for t in here}:
        figure = ladder_figure([t for t in here if t.gemm == gemm], "x")
        assert list(figure.data[0].x) == sorted(figure.data[0].x, reverse=True)
