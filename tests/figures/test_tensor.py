"""Figures of one and two schemes on ordinary and on degenerate tensors.

If these fail, a figure lies about the tensor, or breaks the page on one that a visitor opens.
"""

from __future__ import annotations

import base64
import dataclasses
import json
from typing import Any

import numpy as np
import plotly.graph_objects as go
import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, words
from explorer.analysis.tensor import Side, analyse, block_levels
from explorer.figures.error_map import DECADES, EQUAL, error_map_figure
from explorer.figures.errors import error_figure, errors_of, multiples_figure
from explorer.figures.maps import CODES, ColourScale
from explorer.figures.style import ORIGINAL, A, B
from explorer.figures.tensor import scales_figures, usage_figures
from explorer.figures.values import values_figure
from tests.cells import largest_in_cell
from tests.covering import sampled

HEAVY = torch.distributions.StudentT(1.0)
torch.manual_seed(5)
TENSORS = {
    "normal": torch.randn(400, 640),
    "heavy": HEAVY.sample((512, 512)),
    "constant": torch.full((40, 64), 3.25),
    "zero": torch.zeros(40, 64),
    "one": torch.full((1, 1), -0.7),
}
PAIRS = [("int4_group128",), ("int4_group128", "nvfp4"), ("fp32", "binary_row")]
CASES = [(name, pair) for name in TENSORS for pair in PAIRS]


def sides_of(x: Tensor, names: tuple[str, ...]) -> list[Side]:
    return [Side(SCHEMES[name].label, analyse(x, SCHEMES[name])) for name in names]


def all_figures(x: Tensor, sides: list[Side]) -> dict[str, list[go.Figure]]:
    at = sides[0].analysis.report.max_error_at
    levels = [block_levels(side.analysis.q, *at) for side in sides]
    return {
        "values": [values_figure(sides[0].analysis.before, sides, levels, "n")],
        "error": [error_figure(sides, "n")],
        "map": [error_map_figure(x, sides, at, "n")],
        "multiples": [multiples_figure(errors_of([*sides, *sides[:1]]), "n")],
        "scales": scales_figures(sides, "n"),
        "usage": usage_figures(sides, "n"),
    }


def numbers(value: Any) -> list[float]:
    """Every number of a figure's JSON, typed arrays decoded."""
    if isinstance(value, dict) and "bdata" in value:
        kind = np.dtype(value["dtype"])
        return [float(v) for v in np.frombuffer(base64.b64decode(value["bdata"]), kind)]
    if isinstance(value, dict):
        return [n for v in value.values() for n in numbers(v)]
    if isinstance(value, list):
        return [n for v in value for n in numbers(v)]
    return [float(value)] if isinstance(value, (int, float)) and not isinstance(value, bool) else []


@pytest.mark.parametrize(("name", "names"), sampled(CASES, CASES[::4]))
def test_every_figure_is_drawn_finite_and_small(name: str, names: tuple[str, ...]) -> None:
    """Finite numbers, a height, a file name, title and caption of its files, room for the zoom to stay; maps
    under 220 kB a side, the others 30."""
    x = TENSORS[name]
    for kind, figures in all_figures(x, sides_of(x, names)).items():
        assert len(figures) == (1 if kind in ("values", "error", "map", "multiples") else len(names))
        for fig in figures:
            plot = json.loads(fig.to_json())
            layout = plot["layout"]
            meta = layout["meta"]
            assert layout["height"] and layout["uirevision"] and meta["filename"] and meta["title"]
            assert meta["caption"].startswith("n; ") and f"n = {x.numel():,} elements" in meta["caption"]
            assert np.isfinite(numbers(plot["data"])).all(), f"{kind} of {name}"
            maps = any(trace["type"] == "heatmap" for trace in plot["data"])
            assert len(json.dumps(plot)) < (220_000 * len(names) if maps else 30_000), kind


def test_the_drawn_shares_are_the_tensor() -> None:
    """Bars of centre and tails together hold all elements of each side, in its colour: A up, B down."""
    for name, x in TENSORS.items():
        sides = [Side("the same", side.analysis) for side in sides_of(x, ("int4_group128", "nvfp4"))]
        fig = values_figure(sides[0].analysis.before, sides, [np.empty(0)] * 2, "n")
        groups = []
        for color in (A, B):
            bars = [t for t in fig.data if t.type == "bar" and t.marker.color == color]
            assert sum(float(np.sum(t.y)) for t in bars) == pytest.approx(1, abs=1e-5)
            (entry,) = (t.legendgroup for t in bars if t.showlegend is not False)
            assert [t for t in fig.data if t.legendgroup == entry] == bars, "a click hides one side"
            groups.append(entry)
        assert groups[0] != groups[1]
        outlines = [t for t in fig.data if t.type == "scatter" and t.line.color == ORIGINAL]
        assert len(outlines) == (6 if name == "heavy" else 2), "one above and one below"
        assert fig.layout.yaxis.range == fig.layout.yaxis4.range[::-1]
        assert name != "zero" or list(fig.layout.xaxis.range) == [-0.5, 0.5]


def test_heavy_tails_stand_beside_a_readable_centre() -> None:
    """The central axis shows most elements on many bins; the extremes are written at the outer ends."""
    sides = sides_of(TENSORS["heavy"], ("int4_group128",))
    before = sides[0].analysis.before
    fig = values_figure(before, sides, [np.empty(0)], "n")
    centre = before.share(before.middle)
    assert 0.998 < centre.sum() < 0.9995 and (centre > 1e-4).sum() > 20
    ends = float(before.below.edges[0]), float(before.above.edges[-1])
    assert {words.number(end) for end in ends} <= {a.text for a in fig.layout.annotations}


def maps_of(fig: go.Figure) -> list[Any]:
    """The heat maps of errors, A's first."""
    return [trace for trace in fig.data if trace.type == "heatmap" and trace.coloraxis == "coloraxis"]


def decoded(typed: dict[str, str]) -> np.ndarray:
    flat = np.frombuffer(base64.b64decode(typed["bdata"]), np.dtype(typed["dtype"]))
    return flat.reshape([int(size) for size in typed["shape"].split(",")])


@pytest.mark.parametrize("name", ["normal", "heavy"])
def test_both_maps_have_one_colour_scale(name: str) -> None:
    """The same code means the same error on both, and a code gives its cell's error back."""
    x = TENSORS[name]
    sides = sides_of(x, ("int4_group128", "nvfp4"))
    maps = maps_of(error_map_figure(x, sides, (0, 0), "n"))
    scale = ("low", "high", "first", "logarithmic", "zero", "cut")
    assert maps[0].meta["logarithmic"] and len({tuple(m.meta[key] for key in scale) for m in maps}) == 1
    for side, drawn in zip(sides, maps, strict=True):
        low, high, error = drawn.meta["low"], drawn.meta["high"], side.analysis.error_map.numpy()
        share = (drawn.z.astype(float) - drawn.meta["first"]) / (CODES - drawn.meta["first"])
        read = low * (high / low) ** share
        some = error > 0
        assert np.allclose(read[some], np.maximum(error, low)[some], rtol=2e-3)
        assert (drawn.z[~some] == 0).all()


def test_what_the_mouse_tells_of_a_cell_is_the_tensor() -> None:
    """Where its largest error is, x, and what both schemes made of it, to 0.1 %: as the page computes it."""
    x = TENSORS["normal"]
    sides = sides_of(x, ("int4_group32", "nvfp4"))
    restored = [side.analysis.q.dequantize() for side in sides]
    fig = error_map_figure(x, sides, (0, 0), "n")
    for index, (side, drawn) in enumerate(zip(sides, maps_of(fig), strict=True)):
        tall, wide = drawn.meta["tall"], drawn.meta["wide"]
        assert drawn.customdata.dtype == np.uint8 and (tall, wide) == (4, 5)
        values = decoded(drawn.meta["values"]).astype(float)
        share = (np.abs(values) - 1) / 32766
        read = np.sign(values) * drawn.meta["values"]["largest"] * 10 ** ((share - 1) * DECADES)
        above = np.unpackbits(decoded(drawn.meta["above"]))
        for down, right in ((0, 0), (99, 127), (60, 17)):
            row, column = divmod(int(drawn.customdata[down][right]), wide)
            at = largest_in_cell(side.analysis, down * tall, right * wide)
            assert at == (down * tall + row, right * wide + column)
            assert read[0, down, right] == pytest.approx(float(x[at]), rel=1e-3)
            assert read[1, down, right] == pytest.approx(float(restored[1 - index][at]), rel=1e-3)
            assert above[down * values.shape[2] + right] == (restored[index][at] > x[at])
    (small,) = sides_of(TENSORS["zero"], ("int4_group128",))
    drawn = error_map_figure(TENSORS["zero"], [small], (0, 0), "n").data[0]
    assert drawn.customdata is None, "where a cell is an element, only its value is sent"


def test_the_difference_says_who_errs_more() -> None:
    """A's colour where A errs more, B's where B does, grey where they err alike or not at all."""
    x = torch.zeros(1, 4)
    (side,) = sides_of(x, ("fp32",))
    for first, second, code in ((1.0, 1.0, EQUAL), (4.0, 1.0, 2 * EQUAL), (1.0, 4.0, 0), (0.0, 0.0, EQUAL)):
        errors = [torch.tensor([[error, 4.0, 1.0, 0.0]]) for error in (first, second)]
        maps = [Side("n", dataclasses.replace(side.analysis, error_map=cells)) for cells in errors]
        fig = error_map_figure(x, maps, (0, 0), "n")
        (drawn,) = (t for t in fig.data if t.type == "heatmap" and t.coloraxis == "coloraxis2")
        assert drawn.z[0].tolist() == [code, EQUAL, EQUAL, EQUAL]


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


@pytest.mark.parametrize(
    ("names", "panels", "switch"),
    [(("int4_row",), 1, True), (("int4_row", "nvfp4"), 3, True), (("fp32", "nvfp4"), 3, False)],
)
def test_panels_and_switch(names: tuple[str, ...], panels: int, switch: bool) -> None:
    """One scheme has one map, two have three; scales are a unit only where both have some. What is inspected
    is circled on every panel, and both largest errors are marked there."""
    x = TENSORS["normal"]
    fig = error_map_figure(x, sides_of(x, names), (3, 5), "n")
    visible = [t for t in fig.data if t.type == "heatmap" and t.visible is not False]
    assert len(visible) == panels == len(fig.layout.annotations)
    assert bool(fig.layout.updatemenus) == switch
    picked = [t for t in fig.data if t.meta and t.meta.get("picked")]
    assert {(t.x[0], t.y[0]) for t in picked} == {(5, 3)} and len(picked) == 2 * panels
    worst = [t for t in fig.data if t.name and "largest" in t.name]
    assert len(worst) == panels * len(names)
