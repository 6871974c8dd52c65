"""Labels beside points, and the labels of logarithmic axes.

If these fail, words lie over each other, or an axis reads "5 2 0.1 5 2".
"""

from __future__ import annotations

import itertools
import random

import pytest

from explorer.figures import style
from explorer.figures.labels import WIDTHS, Label, Spot, place
from tests.covering import sampled

HEIGHT, SIZE = 320, 10


def boxes(spots: list[Spot], labels: list[Label | None], width: float) -> list[tuple[float, ...]]:
    """Left, top, right, bottom of every marker and label, in pixels."""
    found = []
    for spot, label in zip(spots, labels, strict=True):
        x, y, r = spot.x * width, (1 - spot.y) * HEIGHT, spot.radius
        found.append((x - r, y - r, x + r, y + r))
        if label:
            wide, tall = 0.55 * SIZE * len(label.text), 1.2 * SIZE
            x, y = x + label.right, y + label.down
            found.append((x - wide / 2, y - tall / 2, x + wide / 2, y + tall / 2))
    return found


@pytest.mark.parametrize("seed", sampled(range(20), range(3)))
def test_no_label_lies_over_another_or_a_point(seed: int) -> None:
    chance = random.Random(seed)
    spots = [Spot(chance.random(), chance.random(), 5, "INT8 W8A8" if i < 8 else "") for i in range(24)]
    labels = place(spots, HEIGHT, SIZE)
    assert labels == place(spots, HEIGHT, SIZE), "the same points, the same labels"
    assert labels[0] is not None and labels[8:] == [None] * 16
    for width in WIDTHS:
        every = boxes(spots, labels, width)
        markers = {b for b, spot in zip(boxes(spots, [None] * 24, width), spots, strict=True)}
        for a, b in itertools.combinations(every, 2):
            if not {a, b} <= markers:
                assert a[2] <= b[0] or b[2] <= a[0] or a[3] <= b[1] or b[3] <= a[1], (a, b)


def test_a_letter_stands_where_words_have_no_room() -> None:
    """A and B are found on the frontier however crowded it is; another label without room is left out."""
    crowd = [Spot(i / 20, j / 20, 9, "", "A" if i == j == 10 else "") for i in range(21) for j in range(21)]
    labels = place(crowd, HEIGHT, SIZE)
    assert [label.text for label in labels if label] == ["A"]
    (long,) = place([Spot(0.5, 0.5, 5, "word" * 30, "A")], HEIGHT, SIZE)
    assert long is not None and long.text == "A"
    same = place([Spot(0.5, 0.5, 5, "word" * 10) for _ in range(200)], HEIGHT, SIZE)
    assert same[0] is not None and same[-1] is None


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
