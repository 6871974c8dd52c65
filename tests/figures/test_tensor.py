"""Figures of one and two schemes on ordinary and on degenerate tensors.

If these fail, a figure lies about the tensor, or breaks the page on one that a visitor opens.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, words
from explorer.analysis.tensor import Side, analyse, block_levels
from explorer.figures.maps import CODES, ColourScale
from explorer.figures.style import ORIGINAL, A, B
from explorer.figures.tensor import error_figure, error_map_figures, scales_figures, usage_figures
from explorer.figures.values import values_figure
from tests.cells import largest_in_cell

HEAVY = torch.distributions.StudentT(1.0)
torch.manual_seed(5)
TENSORS = {
    "normal": torch.randn(400, 640),
    "heavy": HEAVY.sample((512, 512)),
    "constant": torch.full((40, 64), 3.25),
    "zero": torch.zeros(40, 64),
    "one": torch.full((1, 1), -0.7),
}
PAIRS = [
    ("int4_group128",),
    ("int4_group128", "nvfp4"),
    ("fp32", "binary_row"),
    ("int8_tensor", "int8_column"),
]
CASES = [(name, pair) for name in TENSORS for pair in PAIRS]


def sides_of(x: Tensor, names: tuple[str, ...]) -> list[Side]:
    return [Side(SCHEMES[name].label, analyse(x, SCHEMES[name])) for name in names]


def all_figures(x: Tensor, sides: list[Side]) -> dict[str, list[go.Figure]]:
    shape, at = sides[0].analysis.q.shape, sides[0].analysis.report.max_error_at
    levels = [block_levels(side.analysis.q, *at) for side in sides]
    return {
        "values": [values_figure(sides[0].analysis.before, sides, levels, "n")],
        "error": [error_figure(sides, "n")],
        "map": error_map_figures(sides, shape, at, "n"),
        "scales": scales_figures(sides, "n"),
        "usage": usage_figures(sides, "n"),
    }


def numbers(value: Any) -> list[float]:
    """Every number of a figure's JSON, typed arrays decoded."""
    if isinstance(value, dict) and "bdata" in value:
        import base64

        kind = np.dtype(value["dtype"])
        return [float(v) for v in np.frombuffer(base64.b64decode(value["bdata"]), kind)]
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    return [float(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


@pytest.mark.parametrize("name, names", CASES, ids=[f"{n} {'+'.join(p)}" for n, p in CASES])
def test_every_figure_is_drawn_finite_and_small(name: str, names: tuple[str, ...]) -> None:
    """Finite numbers, a height, a file name, room for the zoom to stay; maps under 150 kB, the others 30."""
    x = TENSORS[name]
    for kind, figures in all_figures(x, sides_of(x, names)).items():
        assert len(figures) == (1 if kind in ("values", "error") else len(names))
        for fig in figures:
            plot = json.loads(fig.to_json())
            assert (
                plot["layout"]["height"]
                and plot["layout"]["uirevision"]
                and plot["layout"]["meta"]["filename"]
            )
            assert np.isfinite(numbers(plot["data"])).all(), f"{kind} of {name}"
            maps = any(trace["type"] == "heatmap" for trace in plot["data"])
            assert len(json.dumps(plot)) < (150_000 if maps else 30_000), kind


@pytest.mark.parametrize("name", TENSORS)
def test_the_drawn_shares_are_the_tensor(name: str) -> None:
    """Bars of centre and tails together hold all elements of each side, each row in its side's colour."""
    sides = sides_of(TENSORS[name], ("int4_group128", "nvfp4"))
    fig = values_figure(sides[0].analysis.before, sides, [np.empty(0)] * 2, "n")
    for color in (A, B):
        bars = [t for t in fig.data if t.type == "bar" and t.marker.color == color]
        assert sum(float(np.sum(t.y)) for t in bars) == pytest.approx(1, abs=1e-5)
    outlines = [t for t in fig.data if t.type == "scatter" and t.line.color == ORIGINAL]
    assert len(outlines) == (6 if name == "heavy" else 2)


@pytest.mark.parametrize("name", TENSORS)
def test_a_click_on_a_legend_entry_hides_one_side(name: str) -> None:
    """Sides that are called the same are not one group: A's entry hides A's bars in the centre and in both
    tails, and none of B's."""
    sides = [Side("the same", side.analysis) for side in sides_of(TENSORS[name], ("int4_group128", "nvfp4"))]
    fig = values_figure(sides[0].analysis.before, sides, [np.empty(0)] * 2, "n")
    entries = {
        t.marker.color: t.legendgroup for t in fig.data if t.type == "bar" and t.showlegend is not False
    }
    assert len(set(entries.values())) == 2
    for color, group in entries.items():
        hidden = [t for t in fig.data if t.legendgroup == group]
        assert hidden == [t for t in fig.data if t.type == "bar" and t.marker.color == color]
        assert len(hidden) == (3 if name == "heavy" else 1)


def test_an_all_zero_tensor_has_its_axis_around_zero() -> None:
    """It ran from 0 to 256."""
    sides = sides_of(TENSORS["zero"], ("int4_group128",))
    fig = values_figure(sides[0].analysis.before, sides, [np.empty(0)], "n")
    assert list(fig.layout.xaxis.range) == [-0.5, 0.5]


def test_heavy_tails_stand_beside_a_readable_centre() -> None:
    """The central axis shows most elements on many bins; the extremes are written at the outer ends."""
    sides = sides_of(TENSORS["heavy"], ("int4_group128",))
    before = sides[0].analysis.before
    fig = values_figure(before, sides, [np.empty(0)], "n")
    centre = before.share(before.middle)
    assert 0.998 < centre.sum() < 0.9995 and (centre > 1e-4).sum() > 20
    told = [a.text for a in fig.layout.annotations]
    assert sum(text.endswith(" %") for text in told) == 2
    ends = float(before.below.edges[0]), float(before.above.edges[-1])
    assert {words.number(end) for end in ends} <= set(told)


@pytest.mark.parametrize("name", ["normal", "heavy"])
def test_both_maps_have_one_colour_scale(name: str) -> None:
    """The same code means the same error on both, and a code gives its cell's error back."""
    x = TENSORS[name]
    sides = sides_of(x, ("int4_group128", "nvfp4"))
    maps = [fig.data[0] for fig in error_map_figures(sides, (x.shape[0], x.shape[1]), (0, 0), "n")]
    assert (
        len({json.dumps([m.meta, m.zmin, m.zmax, m.colorbar.to_plotly_json()], default=str) for m in maps})
        == 1
    )
    for side, drawn in zip(sides, maps, strict=True):
        low, high, error = drawn.meta["low"], drawn.meta["high"], side.analysis.error_map.numpy()
        share = (drawn.z.astype(float) - drawn.meta["first"]) / (CODES - drawn.meta["first"])
        read = low * (high / low) ** share if drawn.meta["logarithmic"] else low + (high - low) * share
        assert np.allclose(read, np.maximum(error, low), rtol=2e-3, atol=high / CODES)
    assert maps[0].meta["logarithmic"] == (name == "heavy")


@pytest.mark.parametrize("logarithmic", [False, True])
@pytest.mark.parametrize("smallest", [0.0, 1e-5])
def test_zero_is_told_from_the_least_that_is_not(logarithmic: bool, smallest: float) -> None:
    """A cell without error had the code, the colour and the words of the least error there is."""
    values = torch.tensor([[0.0, 1e-12, 1e-9, 1e-4, 1.0, 1e3]])
    scale = ColourScale.of([values], logarithmic, smallest)
    codes = scale.codes_of(values)[0]
    assert codes[0] == 0 and (codes[1:] > 0).all() and codes[-1] == CODES
    at, labels = scale.ticks
    assert labels.count("0") == 1 and (at[labels.index("0")] < scale.first) == logarithmic
    (_, zero), *others = scale.colours
    same = [place for place, colour in others if colour == zero]
    assert same == ([scale.first / CODES] if logarithmic else [])
    whole = ColourScale.of([values[:, 1:]], True, 0.0)
    assert whole.first == 0 and "0" not in whole.ticks[1], "no room is kept where nothing is zero"


def test_a_map_says_where_each_cell_has_its_largest_error() -> None:
    """What the page computes from ``customdata`` and ``meta`` is what the server says."""
    x = TENSORS["normal"]
    (side,) = sides_of(x, ("int4_group128",))
    drawn = error_map_figures([side], (400, 640), (0, 0), "n")[0].data[0]
    tall, wide = drawn.meta["tall"], drawn.meta["wide"]
    assert drawn.customdata.dtype == np.uint8 and (tall, wide) == (3, 4)
    for down, right in ((0, 0), (133, 159), (60, 17)):
        row, column = divmod(int(drawn.customdata[down][right]), wide)
        place = down * tall + row, right * wide + column
        assert place == largest_in_cell(side.analysis, down * tall, right * wide)


def test_a_small_matrix_needs_no_places() -> None:
    """Where a cell is an element, only its value is sent."""
    (side,) = sides_of(TENSORS["zero"], ("int4_group128",))
    assert error_map_figures([side], (40, 64), (0, 0), "n")[0].data[0].customdata is None


def test_an_exact_side_hides_nothing_of_the_other() -> None:
    """Beside a copy without error, the other's histogram, colours and levels are those that it has alone."""
    both, alone = (
        sides_of(TENSORS["normal"], names) for names in (("fp32", "int8_tensor"), ("int8_tensor",))
    )
    drawn = error_figure(both, "n")
    assert len(drawn.data) == 1 and "A has no error" in drawn.layout.annotations[0].text
    maps = [error_map_figures(sides, (400, 640), (0, 0), "n")[-1].data[0] for sides in (both, alone)]
    assert maps[0].meta == maps[1].meta and not maps[0].meta["logarithmic"]
    levels = [block_levels(side.analysis.q, 0, 0) for side in both]
    shown = [
        t.name
        for t in values_figure(both[0].analysis.before, both, levels, "n").data
        if t.showlegend is not False
    ]
    assert shown.count("representable") == 1
