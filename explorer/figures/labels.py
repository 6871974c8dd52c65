"""Words beside points, placed so that none lies over another, on narrow pages and on wide ones."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from explorer.figures import style

WIDTHS = (230, 1000)
"""Of a plot in pixels, on a phone and on a wide screen: a label has to be clear of the others on both."""
_SIDES = ((0, -1), (0, 1), (1, 0), (-1, 0), (1, -1), (-1, -1), (1, 1), (-1, 1))
"""Right and down of the point, in the order in which they are tried."""
_AWAY = (0, 18, 36, 60)
"""Pixels between point and label; from the second on a line joins them."""
_EM, _LINE, _GAP, _OVERHANG = 0.6, 1.25, 2, 8
"""Width of a letter and height of a line in font sizes; pixels around a label, and beyond the plot's edge."""


@dataclass(frozen=True)
class Spot:
    """A point that may be labelled: its place as shares of the axes, 0 … 1 from the left and from below, the
    radius of its marker in pixels, and its words; empty for one that only must not be covered."""

    x: float
    y: float
    radius: float
    text: str = ""


@dataclass(frozen=True)
class Offset:
    """From a point to the middle of its label, in pixels; ``apart``: so far that a line has to join them."""

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
    spots: Sequence[Spot], height: float, size: float = 10, widths: Sequence[float] = WIDTHS
) -> list[Offset | None]:
    """Where each spot's label stands, None where it has no room; earlier spots choose first.

    ``height`` of the plot and ``size`` of the font in pixels. No label covers a marker or another label, or
    leaves the plot, at any of ``widths``.
    """
    taken = [[_marker(spot, width, height) for spot in spots] for width in widths]
    chosen: list[Offset | None] = []
    for spot in spots:
        offset = _first_free(spot, height, size, widths, taken) if spot.text else None
        if offset is not None:
            for width, boxes in zip(widths, taken, strict=True):
                boxes.append(_label(spot, offset, width, height, size))
        chosen.append(offset)
    return chosen


def add_label(
    figure: go.Figure, text: str, x: float, y: float, offset: Offset, color: str, size: float
) -> None:
    """Write ``text`` at ``offset`` from a point, with a line to it where they are apart; ``x`` and ``y`` in
    the axes' own units, log10 on a logarithmic one."""
    figure.add_annotation(
        text=text,
        x=x,
        y=y,
        ax=offset.right,
        ay=offset.down,
        showarrow=True,
        arrowhead=0,
        arrowwidth=1,
        arrowcolor=style.MUTED if offset.apart else "rgba(0,0,0,0)",
        standoff=4,
        borderpad=0,
        font={"size": size, "color": color},
    )


def _first_free(
    spot: Spot, height: float, size: float, widths: Sequence[float], taken: Sequence[Sequence[_Box]]
) -> Offset | None:
    for away in _AWAY:
        for right, down in _SIDES:
            reach = spot.radius + _GAP + away
            wide, tall = _EM * size * len(spot.text), _LINE * size
            offset = Offset(right * (reach + wide / 2), down * (reach + tall / 2), away > 0)
            if all(
                _is_free(_label(spot, offset, width, height, size), width, height, boxes)
                for width, boxes in zip(widths, taken, strict=True)
            ):
                return offset
    return None


def _is_free(box: _Box, width: float, height: float, taken: Sequence[_Box]) -> bool:
    inside = (
        box.left >= -_OVERHANG and box.right <= width + _OVERHANG and box.top >= 0 and box.bottom <= height
    )
    return inside and not any(box.meets(other) for other in taken)


def _marker(spot: Spot, width: float, height: float) -> _Box:
    x, y = spot.x * width, (1 - spot.y) * height
    return _Box(x - spot.radius, x + spot.radius, y - spot.radius, y + spot.radius)


def _label(spot: Spot, offset: Offset, width: float, height: float, size: float) -> _Box:
    wide, tall = _EM * size * len(spot.text), _LINE * size
    x, y = spot.x * width + offset.right, (1 - spot.y) * height + offset.down
    return _Box(x - wide / 2, x + wide / 2, y - tall / 2, y + tall / 2)
