"""The frontier's labels and rings. If these fail, names lie over each other or clicks take others."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from explorer import SCHEMES, ComparisonRow, Scheme, compare_schemes, mark_frontier
from explorer.figures.compare import (
    ABOVE,
    BELOW,
    FONT_SIZE,
    HEIGHT,
    LEFT,
    RIGHT,
    WIDTHS,
    _frame,
    exact_words,
    frontier_figure,
    place_labels,
)
from explorer.figures.style import A, B

X = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
ROWS = mark_frontier(compare_schemes(X, [s for n, s in SCHEMES.items() if not n.endswith("_k")]))
CUSTOM = next(compare_schemes(X, [Scheme.parse("int4~flat64~asymmetric~float16~minmax")]))
DRAWN = [r for r in ROWS if math.isfinite(r.report.sqnr_db)]
CHOSEN = [[], [DRAWN[0]], [CUSTOM, DRAWN[30]], [DRAWN[5], DRAWN[5]], [DRAWN[-1], CUSTOM]]


@pytest.mark.parametrize("chosen", CHOSEN, ids=range(len(CHOSEN)))
def test_no_two_labels_meet(chosen: list[ComparisonRow]) -> None:
    """At the narrowest width, at the widest, and at those between; all inside of the plot."""
    frame, letters = _frame([*DRAWN, *chosen]), list(zip(chosen, "AB", strict=False))
    placed = place_labels(DRAWN, letters, frame)
    assert len(placed) >= 8 and [label.text[0] for _, label in placed[: len(chosen)]] == list(
        "AB"[: len(chosen)]
    )
    tall = HEIGHT - ABOVE - BELOW
    for width in range(WIDTHS[0], WIDTHS[-1] + 1, 20):
        boxes = []
        for row, label in placed:
            spot, wide = frame.spot(row, 0), 0.55 * FONT_SIZE * len(label.text)
            x, y = spot.x * width + label.right, (1 - spot.y) * tall + label.down
            boxes.append((x - wide / 2, y - 6, x + wide / 2, y + 6))
            assert x - wide / 2 > -LEFT and x + wide / 2 < width + RIGHT and 0 <= y <= tall, label
        for (one, a), (other, b) in itertools.combinations(zip(placed, boxes, strict=True), 2):
            apart = a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1]
            assert apart, f"{one[1].text} and {other[1].text} at {width} px"
    assert placed == place_labels(DRAWN, letters, frame), "not repeatable"


def test_a_and_b_have_different_names() -> None:
    """What stands in brackets is left out only where the rest says which scheme it is."""
    named = {r.scheme.name: r for r in DRAWN}
    pair = [(named["mxfp4"], "A"), (named["mxfp4_even"], "B")]
    placed = place_labels([], pair, _frame([row for row, _ in pair]))
    assert [label.text for _, label in placed] == ["A  MXFP4 (OCP, FLOOR)", "B  MXFP4 (EVEN)"]
    (alone,) = place_labels([], pair[:1], _frame([pair[0][0], named["bf16"]]))
    assert alone[1].text == "A  MXFP4"


def test_a_and_b_are_ringed_even_if_they_are_custom() -> None:
    """Each point carries the text that makes it A or B."""
    fig = frontier_figure(ROWS, "n", DRAWN[3], CUSTOM)
    rings = {t.name: t for t in fig.data if t.name in ("A", "B")}
    assert rings["A"].marker.line.color == A and rings["B"].marker.line.color == B
    assert rings["B"].customdata[0][1] == str(CUSTOM.scheme)
    texts = [who[1] for t in fig.data if t.customdata is not None for who in t.customdata]
    assert {Scheme.parse(text).text for text in texts} >= {r.scheme.text for r in DRAWN}


def test_exact_schemes_are_said_and_not_drawn() -> None:
    drawn = [t for t in frontier_figure(ROWS, "n", ROWS[0], None).data if t.customdata is not None]
    assert not any(who[1] == "fp32" for t in drawn for who in t.customdata)
    assert exact_words(ROWS) == "1 scheme restores this tensor exactly and cannot be drawn: FP32 (32 bits)."
    assert exact_words(DRAWN) == ""
    all_exact = [
        dataclasses.replace(r, report=dataclasses.replace(r.report, sqnr_db=math.inf)) for r in DRAWN[:3]
    ]
    assert exact_words(all_exact) == "Every scheme restores this tensor exactly."
    assert not frontier_figure(all_exact, "n").data


def test_a_single_scheme_has_axes() -> None:
    """One point has room around it."""
    fig = frontier_figure(DRAWN[:1], "n", DRAWN[0])
    low, high = fig.layout.xaxis.range
    assert low < math.log10(DRAWN[0].report.bits.total) < high and fig.layout.xaxis.tickvals
