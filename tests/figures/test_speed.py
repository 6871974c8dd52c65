"""The Speed section's figures, from what was recorded: order, lengths, ends of axes, roofs, names, colours.

If these fail, the fastest product is drawn as the shortest, or a limit lies beyond the axis without a word.
"""

from __future__ import annotations

from typing import Any

import pytest

from explorer.figures import style
from explorer.figures.speed import ladder_figure, roofline_figure, speed_figure, sweep_figure, tradeoff_figure
from explorer.products.advice import at_shape, fastest, points
from explorer.products.gemms import GEMMS
from explorer.recordings.gemm import recorded_gemms
from tests.covering import sampled

RECORDED = recorded_gemms()
SHAPES = ((4096, 4096, 4096), (8192, 8192, 8192), (1, 8192, 8192))
EACH_SHAPE = pytest.mark.parametrize("shape", sampled([(one,) for one in SHAPES], [(SHAPES[2],)]), ids=str)
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


@EACH_SHAPE
def test_nothing_lies_beyond_the_axis_without_a_mark(shape: tuple[int, int, int]) -> None:
    """Every product, limit and baseline stands within the axis, or an arrow at its end stands for it."""
    here = at_shape(RECORDED.rows, shape)
    figure = speed_figure(here, "x")
    low, high = x_range(figure)
    for trace in figure.to_dict()["data"]:
        assert all(low <= x <= high for x in trace["x"] if x is not None), trace.get("name")
    best = fastest(here)
    assert sum(len(t["x"]) for t in traces(figure, "limit of the chip, not measured")) == sum(
        t.floor_s is not None for t in best
    )
    named = {a.y for a in figure.layout.annotations}
    assert set(dots(figure)) | named == {t.label for t in best} and not set(dots(figure)) & named
    for trace in traces(figure, "limit of the chip, not measured"):
        floors = {t.label: 1e6 * t.floor_s for t in best if t.floor_s}
        for x, row in zip(trace["x"], trace["y"], strict=True):
            beyond = trace["marker"]["symbol"] != "line-ns"
            assert beyond == (floors[row] != pytest.approx(x)), f"{row}: an arrow only where it is needed"


def every_figure() -> dict[str, Any]:
    swept = [t for t in RECORDED.rows if t.shape[1:] == (8192, 8192)]
    return {
        "bars": speed_figure(SQUARE, "x", MARKED),
        "tradeoff": tradeoff_figure(points(SQUARE), "x", MARKED),
        "sweep": sweep_figure(swept, "x", MARKED),
        "roofline": roofline_figure(SQUARE, RECORDED.limits, "x", MARKED),
    }


def test_a_family_has_one_color() -> None:
    """Colours say which family the weights' format is of, and A's and B's products are told apart."""
    drawn = {name: figure.to_dict()["data"] for name, figure in every_figure().items()}
    for name, figure in drawn.items():
        for family, color in style.FAMILY_COLORS.items():
            assert all(t["marker"]["color"] == color for t in figure if t.get("name") == family)
        rings = {t["name"]: t["marker"]["color"] for t in figure if t.get("name", "").startswith("scheme")}
        assert name == "sweep" or rings == {"scheme A": style.A, "scheme B": style.B}
    colors = {t["name"]: t["line"]["color"] for t in drawn["sweep"]}
    assert colors["A · " + GEMMS["w_nvfp4"].label] == style.A
    assert colors[GEMMS["int8"].label] == style.FAMILY_COLORS["integer"]
    curves = [t for t in drawn["sweep"] if "marker" in t]
    looks = [(t["line"]["color"], t["line"]["dash"], t["marker"]["symbol"][0]) for t in curves]
    assert len(set(looks)) == len(looks), "two curves look the same"


@EACH_SHAPE
def test_the_ladder_ends_with_the_fastest(shape: tuple[int, int, int]) -> None:
    """Each kernel is at least as fast as the one above it."""
    here = at_shape(RECORDED.rows, shape)
    for gemm in {t.gemm for t in here}:
        figure = ladder_figure([t for t in here if t.gemm == gemm], "x")
        assert list(figure.data[0].x) == sorted(figure.data[0].x, reverse=True)
