"""Labels beside points, and the labels of logarithmic axes.

If these fail, words lie over each other, or an axis reads "5 2 0.1 5 2".
"""

from __future__ import annotations

import itertools
import math
import random

import pytest

from explorer.figures import labels as placing
from explorer.figures import style
from explorer.figures.labels import WIDTHS, Canvas, Spot, label_box, place, segments_of
from explorer.progress import stoppable
from tests.covering import sampled

CANVAS = Canvas.of(WIDTHS, [320], 10)


@pytest.mark.parametrize("seed", sampled(range(20), range(3)))
def test_no_label_lies_over_another_or_a_point(seed: int) -> None:
    """Nor does one leave the plot, at any width."""
    chance = random.Random(seed)
    spots = [Spot(chance.random(), chance.random(), 5, "INT8 W8A8" if i < 8 else "") for i in range(24)]
    labels = place(spots, CANVAS)
    assert labels == place(spots, CANVAS), "the same points, the same labels"
    assert any(labels[:8]) and labels[8:] == [None] * 16
    for width, height in CANVAS.plots:
        named = [
            label_box(s, label, (width, height), 10) for s, label in zip(spots, labels, strict=True) if label
        ]
        at = [(spot.x * width, (1 - spot.y) * height) for spot in spots]
        markers = [(x - 5, y - 5, x + 5, y + 5) for x, y in at]
        for a, b in [*itertools.combinations(named, 2), *itertools.product(named, markers)]:
            assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)
        assert all(a[0] >= 0 and a[1] >= 0 and a[2] <= width and a[3] <= height for a in named)


def test_a_letter_stands_where_words_have_no_room() -> None:
    """A and B are found on the frontier however crowded it is; another label without room is left out."""
    crowd = [Spot(i / 20, j / 20, 9, faint=True) for i in range(21) for j in range(21)]
    long = Spot(0.5, 0.5, 9, "word" * 30, essential=True, short="A")
    labels = place([*crowd, long], CANVAS)
    assert labels[:-1] == [None] * len(crowd) and labels[-1] is not None and labels[-1].text == "A"
    same = place([Spot(0.5, 0.5, 5, "word" * 2) for _ in range(200)], CANVAS)
    assert same[0] is not None and same[-1] is None


def test_many_boxes_are_compared_in_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """A line of many pieces takes no more memory than one of few, and can be stopped."""
    spots = [Spot(0.1 * i, 0.5, 5, f"name {i}", essential=True) for i in range(1, 9)]
    line = segments_of([(i / 500, 0.5 + 0.3 * math.sin(i)) for i in range(501)])
    whole, passed = place(spots, CANVAS, line), list[None]()
    monkeypatch.setattr(placing, "_CELLS", 1 << 12)
    with stoppable(lambda: passed.append(None)):
        assert place(spots, CANVAS, line) == whole
    assert len(passed) > 1000


def test_log_axes_have_labels_that_are_numbers() -> None:
    """plotly's own are bare digits between decades."""
    ends = [(40, 420), (9, 11), (3, 200), (1e-3, 2), (1e-8, 1e3), (4, 17_000)]
    for axis, (low, high) in itertools.product("xy", ends):
        figure = style.log_axis(style.figure("x", "y", "n"), axis, low, high)
        layout = figure.layout[f"{axis}axis"]
        assert layout.type == "log" and 10 ** layout.range[0] == pytest.approx(low)
        formats = [layout.tickformat, *(stop.value for stop in layout.tickformatstops or ())]
        assert ",~r" in formats
    for low, high in ((0, 1), (2, 1), (-1, 1), (1, 1)):
        with pytest.raises(ValueError, match="above 0"):
            style.log_axis(style.figure("x", "y", "n"), "x", low, high)
