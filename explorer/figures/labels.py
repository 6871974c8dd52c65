"""Labels of points, placed without overlaps on narrow and on wide pages."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from explorer.figures import style

WIDTHS = (230, 1000)
"""Widths of a plot in pixels, on a phone and on a wide screen: labels must not overlap on either."""
_SIDES = ((0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1))
"""Right and down of the point, in the order in which they are tried."""
AWAY = (0, 18, 36, 60)
"""Pixels between point and label; from the second on a line joins them."""
_EM, _LINE, _GAP, _OVERHANG = 0.6, 1.25, 2, 8
"""Width of a letter and height of a line in font sizes; pixels around a label, and beyond the plot's edge."""


@dataclass(frozen=True)
class Spot:
    """A point that may be labelled: its place as shares of the axes, 0 … 1 from the left and from below, the
    radius of its marker in pixels, and its text; empty for points that only must not be covered. ``letter``
    stands there where the words have no room, over whatever lies there if it must."""

    x: float
    y: float
    radius: float
    text: str = ""
    letter: str = ""


@dataclass(frozen=True)
class Label:
    """Label of a point, and the offset of its centre in pixels; ``apart``: far enough to need a connecting
    line."""

    text: str
    right: float
    down: float
    apart: bool


@dataclass(frozen=True)
class _Box:
    """Edges in pixels from the plot's left and top."""

    left: float
    right: float
    top: float
    bottom: float

    def meets(self, other: _Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )


def place(
    spots: Sequence[Spot],
    height: float,
    size: float = 10,
    widths: Sequence[float] = WIDTHS,
    away: Sequence[float] = AWAY,
) -> list[Label | None]:
    """Place a label for each spot, None without free space; earlier spots choose first.

    ``height`` of the plot, ``size`` of the font and the distances ``away`` in pixels. No label covers a
    marker or another label, or leaves the plot, at any of ``widths``, but for letters that have no room.
    """
    taken = [[_marker(spot, width, height) for spot in spots] for width in widths]
    chosen: list[Label | None] = []
    for spot in spots:
        texts = filter(None, (spot.text, spot.letter))
        options = [label for text in texts for label in _around(spot, text, size, away)]
        label = _first_free(spot, options, height, size, widths, taken)
        if label is not None:
            for width, boxes in zip(widths, taken, strict=True):
                boxes.append(_box(spot, label, width, height, size))
        chosen.append(label)
    return chosen


def add_label(figure: go.Figure, label: Label, x: float, y: float, color: str, size: float) -> None:
    """Write ``label`` beside a point, with a line to it where they are apart; ``x`` and ``y`` in the axes'
    own units, log10 on a logarithmic one."""
    figure.add_annotation(
        text=label.text,
        x=x,
        y=y,
        ax=label.right,
        ay=label.down,
        showarrow=True,
        arrowhead=0,
        arrowwidth=1,
        arrowcolor=style.MUTED if label.apart else "rgba(0,0,0,0)",
        standoff=4,
        borderpad=0,
        font={"size": size, "color": color},
    )


def _first_free(
    spot: Spot,
    options: Sequence[Label],
    height: float,
    size: float,
    widths: Sequence[float],
    taken: Sequence[Sequence[_Box]],
) -> Label | None:
    for label in options:
        if all(
            _is_free(_box(spot, label, width, height, size), width, height, boxes)
            for width, boxes in zip(widths, taken, strict=True)
        ):
            return label
    return next((label for label in options if label.text == spot.letter), None)


def _around(spot: Spot, text: str, size: float, distances: Sequence[float]) -> Iterator[Label]:
    """Yield candidate positions of ``text``, in order of preference."""
    wide, tall = _EM * size * len(text), _LINE * size
    for away in distances:
        for right, down in _SIDES:
            reach = spot.radius + _GAP + away
            yield Label(text, right * (reach + wide / 2), down * (reach + tall / 2), away > 0)


def _is_free(box: _Box, width: float, height: float, taken: Sequence[_Box]) -> bool:
    inside = (
        box.left >= -_OVERHANG and box.right <= width + _OVERHANG and box.top >= 0 and box.bottom <= height
    )
    return inside and not any(box.meets(other) for other in taken)


def _marker(spot: Spot, width: float, height: float) -> _Box:
    x, y = spot.x * width, (1 - spot.y) * height
    return _Box(x - spot.radius, x + spot.radius, y - spot.radius, y + spot.radius)


def _box(spot: Spot, label: Label, width: float, height: float, size: float) -> _Box:
    wide, tall = _EM * size * len(label.text), _LINE * size
    x, y = spot.x * width + label.right, (1 - spot.y) * height + label.down
    return _Box(x - wide / 2, x + wide / 2, y - tall / 2, y + tall / 2)
