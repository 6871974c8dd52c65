"""The frontier's names and rings. If these fail, names lie over each other or clicks take others."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from explorer import SCHEMES, ComparisonRow, Scheme, compare_schemes, mark_frontier
from explorer.analysis.goals import GOALS
from explorer.figures.compare import (
    CLASSES,
    LEFT,
    OTHERS,
    RIGHT,
    _points,
    exact_words,
    frontier_figure,
    labels_of,
    segments,
    thinned,
    window_of,
)
from explorer.figures.labels import label_box
from explorer.figures.style import A, B
from tests.covering import sampled

_RANDOM = torch.Generator().manual_seed(0)
X = torch.randn(64, 512, generator=_RANDOM)
TAILS = X * torch.exp(1.2 * torch.randn(64, 512, generator=_RANDOM))


def rows_of(x: torch.Tensor) -> list[ComparisonRow]:
    return mark_frontier(compare_schemes(x[:16] if x is TAILS else x, SCHEMES.values()))


ROWS = {"normal": rows_of(X[:16]), "heavy tails": rows_of(TAILS)}
CUSTOM = next(compare_schemes(X, [Scheme.parse("int4~flat64~asymmetric~float16~minmax")]))
DRAWN = [r for r in ROWS["normal"] if math.isfinite(r.report.sqnr_db)]
Box = tuple[float, ...]


def meet(one: Box, other: Box) -> bool:
    return one[0] < other[2] and other[0] < one[2] and one[1] < other[3] and other[1] < one[3]


CASES = [*itertools.product(ROWS, GOALS)]


@pytest.mark.parametrize(("tensor", "name"), sampled(CASES, CASES[::4]))
def test_no_name_lies_on_a_name_a_point_or_the_line(tensor: str, name: str) -> None:
    """At every width of a class, all inside of the plot. Every scheme of the shortlist is named."""
    rows, goal = ROWS[tensor], GOALS[name]
    by_name = {row.scheme.name: row for row in rows}
    listed = [by_name[name] for name in goal.schemes]
    points = _points(rows, [(by_name[goal.a], "A"), (by_name[goal.b], "B")], goal, listed)
    window = window_of(goal, points)
    points = thinned(points, window)
    edge = sorted((r for r in rows if r.on_frontier and r in DRAWN + rows), key=lambda r: r.report.bits.total)
    edge = [r for r in edge if math.isfinite(r.report.sqnr_db)]
    for widest, widths in CLASSES:
        found, canvas = labels_of(points, edge, window, widths, OTHERS[widest])
        named = {str(point.row.scheme) for point, _, _ in found}
        assert named >= {str(row.scheme) for row in listed if math.isfinite(row.report.sqnr_db)}
        for width, height in canvas.plots:
            assert width + LEFT + RIGHT in widths
            boxes = [label_box(spot, label, (width, height), canvas.size) for _, spot, label in found]
            for box in boxes:
                assert box[0] >= 0 and box[1] >= 0 and box[2] <= width and box[3] <= height
            for one, other in itertools.combinations(boxes, 2):
                assert not meet(one, other), f"{goal.name} at {width}"
            for point in points:
                if point.essential:
                    bits, db = window.nearest(point.row)
                    x, y = window.across(bits) * width, (1 - window.up(db)) * height
                    half = point.size / 2
                    assert not any(meet(box, (x - half, y - half, x + half, y + half)) for box in boxes)
            for x0, y0, x1, y1 in segments(edge, window):
                top, bottom = sorted(((1 - y0) * height, (1 - y1) * height))
                line = (x0 * width - 0.5, top - 0.5, x1 * width + 0.5, bottom + 0.5)
                assert not any(meet(box, line) for box in boxes), f"{goal.name} at {width}"


def test_a_and_b_are_ringed_even_if_they_are_custom() -> None:
    """Each point carries the text that makes it A or B; what is not drawn is named by its neighbour."""
    fig = frontier_figure(ROWS["normal"], "n", DRAWN[3], CUSTOM)
    rings = {t.name: t for t in fig.data if t.name in ("A", "B")}
    assert rings["A"].marker.line.color == A and rings["B"].marker.line.color == B
    assert rings["B"].customdata[0][1] == str(CUSTOM.scheme)
    texts = {who[1] for t in fig.data if t.customdata is not None for who in t.customdata}
    said = " ".join(text for t in fig.data if t.text is not None for text in t.text)
    hidden = [r for r in DRAWN if str(r.scheme) not in texts]
    assert hidden and all(r.scheme.label in said for r in hidden)


def test_a_scheme_beyond_the_crop_is_at_its_edge() -> None:
    """With its bits and decibels, and a mark that points to where it is: A never vanishes."""
    bf16 = next(r for r in DRAWN if r.scheme.name == "bf16")
    fig = frontier_figure(DRAWN, "n", bf16, goal=GOALS["4-bit"])
    ring = next(t for t in fig.data if t.name == "A")
    assert ring.x[0] == 6 == fig.layout.xaxis.range[1] and ring.marker.symbol == "triangle-right"
    for _, notes in fig.layout.meta["callouts"]:  # the browser takes the first set that is wide enough
        assert any("A  BF16 (16 bits, " in note["text"] for note in notes)
    alone = frontier_figure(DRAWN[:1], "n", DRAWN[0]).layout.xaxis
    assert alone.range[0] < math.log10(DRAWN[0].report.bits.total) < alone.range[1] and alone.tickvals


def test_exact_schemes_are_said_and_not_drawn() -> None:
    rows = ROWS["normal"]
    drawn = [t for t in frontier_figure(rows, "n", rows[0], None).data if t.customdata is not None]
    assert not any(who[1] == "fp32" for t in drawn for who in t.customdata)
    assert "FP32" in exact_words(rows) and exact_words(DRAWN) == ""
    without = dataclasses.replace(DRAWN[0].report, sqnr_db=math.inf)
    exact = [dataclasses.replace(row, report=without) for row in DRAWN[:3]]
    assert exact_words(exact) and not frontier_figure(exact, "n").data
