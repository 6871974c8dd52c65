"""The frontier's labels and rings. If these fail, names lie over each other or clicks take others."""

from __future__ import annotations

import dataclasses
import itertools
import math

import pytest
import torch

from explorer import SCHEMES, ComparisonRow, Scheme, compare_schemes, mark_frontier
from explorer.figures.compare import WIDTHS, _frame, exact_words, frontier_figure, place_labels
from explorer.figures.style import A, B

X = torch.randn(64, 512, generator=torch.Generator().manual_seed(0))
ROWS = mark_frontier(compare_schemes(X, [s for n, s in SCHEMES.items() if not n.endswith("_k")]))
CUSTOM = next(compare_schemes(X, [Scheme.parse("int4~flat64~ASYMMETRIC~float16~minmax")]))
DRAWN = [r for r in ROWS if math.isfinite(r.report.sqnr_db)]
CHOSEN = [[], [DRAWN[0]], [CUSTOM, DRAWN[30]], [DRAWN[5], DRAWN[5]], [DRAWN[-1], CUSTOM]]


@pytest.mark.parametrize("chosen", CHOSEN, ids=range(len(CHOSEN)))
def test_no_two_labels_meet(chosen: list[ComparisonRow]) -> None:
    """At the narrowest width, at a usual one, and at those between; all inside of the plot."""
    frame = _frame([*DRAWN, *chosen])
    labels = place_labels(DRAWN, list(zip(chosen, "AB", strict=False)), frame)
    assert len(labels) >= 8 and [label.text[0] for label in labels[: len(chosen)]] == list(
        "AB"[: len(chosen)]
    )
    for width in range(WIDTHS[0], WIDTHS[1] + 1, 20):
        boxes = [label.box(frame, width) for label in labels]
        assert all(box.lies_in(frame.plot(width)) for box in boxes)
        for (one, a), (other, b) in itertools.combinations(zip(labels, boxes, strict=True), 2):
            assert not a.meets(b), f"{one.text} and {other.text} at {width} px"
    assert labels == place_labels(DRAWN, list(zip(chosen, "AB", strict=False)), frame), "not repeatable"


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
