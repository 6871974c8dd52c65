"""Placement of names beside points: no name covers another name, a point or a line, or leaves the plot.

Widths of text are estimated from classes of letters of the page's font. A plot has several widths, as the
browser draws it wider or narrower with the page, while a name keeps its distance in pixels from its point.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Self

import numpy as np

from explorer.figures.style import CLEAR, FONT, MUTED
from explorer.progress import checkpoint

WIDTHS = (220.0, 290.0, 360.0, 600.0, 800.0, 1000.0, 1280.0)
"""Widths of a plot in pixels, from a phone to a wide screen, at which names must not overlap."""
_NARROW, _WIDE = "iljtfrI.,:;'|!()[] ", "mwMWGOQ@%"
_LINE = 1.3
"""Height of a line in font sizes."""
_GAP, _EDGE = 3.0, 2.0
"""Pixels between a marker and its name, and between a name and the plot's edge."""
_REACHES = (14.0, 26.0, 40.0, 58.0, 80.0, 110.0)
"""Pixels from a point to a name that a thin line joins with it."""
_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -0.6), (-1, -0.6), (1, 0.6), (-1, 0.6))
"""Directions from the point, right and down, in the order in which they are tried."""
_LEADER_STEPS = 12
_PIECES = 32
_CELLS = 1 << 21
"""Number of rectangles times boxes that are compared at once."""
_ATTEMPTS = 8
"""Number of orders that are tried: an essential name without room comes first in the next one."""

Segment = tuple[float, float, float, float]
"""x0, y0, x1, y1 of a line that names must not cover, as shares of the axes."""


@dataclass(frozen=True)
class Spot:
    """Point as shares of the axes, 0 … 1 from the left and from below; ``radius`` of its marker in pixels.

    name       its text; empty for a point that only must not be covered
    short      a shorter name, used if the name has no room
    essential  True: named wherever there is room, over faint points if necessary
    faint      True: essential names may cover it if there is no other room
    """

    x: float
    y: float
    radius: float
    name: str = ""
    bold: bool = False
    essential: bool = False
    faint: bool = False
    short: str = ""


@dataclass(frozen=True)
class Label:
    """Placed name of a point: its centre in pixels right and down of the point; ``apart``: a line joins
    them."""

    text: str
    right: float
    down: float
    apart: bool


@dataclass(frozen=True)
class Canvas:
    """Plot in any of several sizes.

    plots  (width, height) in pixels
    size   of the font in pixels
    far    number of ``_REACHES`` that an optional name may be away from its point
    """

    plots: tuple[tuple[float, float], ...]
    size: float
    far: int = 1

    @classmethod
    def of(cls, widths: Sequence[float], heights: Sequence[float], size: float, far: int = 1) -> Self:
        """Return the plots of all these widths and heights."""
        return cls(tuple(itertools.product(widths, heights)), size, far)


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Return an upper bound on the width of ``text`` in pixels, in Inter at ``size`` pixels."""
    ems = 0.0
    for letter in text:
        if letter in _NARROW:
            ems += 0.38
        elif letter in _WIDE:
            ems += 0.88
        else:
            ems += 0.72 if letter.isupper() else 0.64
    return ems * size * (1.07 if bold else 1.0)


def place(spots: Sequence[Spot], canvas: Canvas, lines: Sequence[Segment] = ()) -> list[Label | None]:
    """Return a label for each spot with a name, None where there is no room; earlier spots choose first."""
    order = list(range(len(spots)))
    best: dict[int, Label] | None = None
    for _ in range(_ATTEMPTS):
        taken, found = _Taken(spots, lines, canvas), dict[int, Label]()
        for i in order:
            checkpoint()
            if (label := taken.room_for(spots[i])) is not None:
                taken.add(spots[i], label)
                found[i] = label
        missing = [i for i in order if spots[i].essential and spots[i].name and i not in found]
        essential = sum(spots[i].essential for i in found)
        if best is None or essential > sum(spots[i].essential for i in best):
            best = found
        if not missing:
            break
        order = [missing[0], *(i for i in order if i != missing[0])]
    return [(best or {}).get(i) for i in range(len(spots))]


def annotation(spot: Spot, label: Label, at: tuple[float, Any], color: str, size: float) -> dict[str, Any]:
    """Return ``label`` as an annotation of plotly, with a line to the point if they are apart.

    ``at`` is the point in the axes' own units, log10 on a logarithmic one; ``size`` of the font in pixels.
    """
    look = {"showarrow": True, "arrowhead": 0, "arrowwidth": 1, "arrowcolor": MUTED if label.apart else CLEAR}
    return {
        "text": f"<b>{label.text}</b>" if spot.bold else label.text,
        "x": at[0],
        "y": at[1],
        "ax": round(label.right, 1),
        "ay": round(label.down, 1),
        "standoff": spot.radius + 1 if label.apart else 0,
        "borderpad": 0,
        "font": {"size": size, "color": color, "family": FONT},
        **look,
    }


def label_box(spot: Spot, label: Label, plot: tuple[float, float], size: float) -> tuple[float, ...]:
    """Return left, top, right and bottom of a label in pixels from the left and top of a ``plot``."""
    x, y = spot.x * plot[0] + label.right, (1 - spot.y) * plot[1] + label.down
    wide, tall = text_width(label.text, size, spot.bold) / 2, _LINE * size / 2
    return x - wide, y - tall, x + wide, y + tall


def segments_of(corners: Sequence[tuple[float, float]]) -> list[Segment]:
    """Return the segments of the line through ``corners``, which are shares of the axes."""
    return [(*start, *end) for start, end in itertools.pairwise(corners)]


class _Taken:
    """Areas that names must not cover, in every size of the plot: boxes [plots, n, 4] (left, top, right,
    bottom)."""

    def __init__(self, spots: Sequence[Spot], lines: Sequence[Segment], canvas: Canvas) -> None:
        self.canvas = canvas
        self.plots = np.array(canvas.plots)
        self.solid = self._markers([spot for spot in spots if not spot.faint])
        self.faint = self._markers([spot for spot in spots if spot.faint])
        self.lines = self._lines(lines)
        self.names = self.leaders = np.empty((len(self.plots), 0, 4))

    def add(self, spot: Spot, label: Label) -> None:
        """Reserve the place of a name and its line."""
        boxes = np.array([[label_box(spot, label, plot, self.canvas.size)] for plot in self.canvas.plots])
        self.names = np.concatenate([self.names, boxes], 1)
        if label.apart:
            steps = np.linspace(0.1, 1, _LEADER_STEPS)[:, None] * (label.right, label.down)
            at = self._centre(spot)[:, None] + steps[None]
            inside = ((at >= boxes[..., :2]) & (at <= boxes[..., 2:])).all(2)
            at[inside] = -99.0
            self.leaders = np.concatenate([self.leaders, np.concatenate([at - 1, at + 1], 2)], 1)

    def room_for(self, spot: Spot) -> Label | None:
        """Return the place of a spot's name, or of its short name; None without room. An essential name may
        cover faint points, if there is no other room."""
        for text in filter(None, (spot.name, spot.short)):
            found = self._first_free(spot, text, True, spot.essential)
            if found is None and spot.essential:
                found = self._first_free(spot, text, False, True)
                found = found or self._first_free(spot, text, False, True, crossing=True)
            if found is not None:
                return found
        return None

    def _first_free(
        self, spot: Spot, text: str, clear: bool, everywhere: bool, crossing: bool = False
    ) -> Label | None:
        """Return the best position that is free in every size. ``clear``: free of faint points too;
        ``everywhere``: anywhere in the plot; ``crossing``: its line may cross others'."""
        wide = text_width(text, self.canvas.size, spot.bold)
        hard = [self.solid, self.lines, self.leaders, self.names, *([self.faint] if clear else [])]
        boxes = np.concatenate(hard, 1)
        for offsets, apart in _around(spot, wide, self.canvas, everywhere):
            free = self._free(spot, offsets, apart, wide, boxes, crossing)
            if free.any():
                right, down = map(float, offsets[int(np.argmax(free))])
                return Label(text, right, down, apart)
        return None

    def _free(
        self, spot: Spot, offsets: np.ndarray, apart: bool, wide: float, boxes: np.ndarray, crossing: bool
    ) -> np.ndarray:
        """bool [n]: True for offsets that keep the name inside of the plot and off all ``boxes``, and its
        line off names and important points."""
        half = np.array([wide / 2, _LINE * self.canvas.size / 2])
        point = self._centre(spot)
        centre = point[:, None] + offsets[None]
        low, high = centre - half, centre + half
        free: np.ndarray = ((low >= _EDGE) & (high <= self.plots[:, None] - _EDGE)).all((0, 2))
        left = np.flatnonzero(free)
        free[left] = ~_meets(low[:, left], high[:, left], boxes)
        left = np.flatnonzero(free)
        if apart and len(left):
            others = np.concatenate([self.solid, self.names, *([] if crossing else [self.leaders])], 1)
            own = (abs((others[..., :2] + others[..., 2:]) / 2 - point[:, None]) < 1).all(2, keepdims=True)
            others = np.where(own, -99.0, others)
            steps = np.linspace(0.15, 1, _LEADER_STEPS)[:, None, None] * offsets[left]
            inside = (abs(steps - offsets[left]) <= half).all(2, keepdims=True)
            at = point[:, None, None] + np.where(inside, 1e6, steps)[None]
            at = at.reshape(len(self.plots), -1, 2)
            meets = _meets(at - 1, at + 1, others).reshape(_LEADER_STEPS, -1)
            free[left] = ~meets.any(0)
        return free

    def _centre(self, spot: Spot) -> np.ndarray:
        """Point in pixels from the plot's left and top, [plots, 2]."""
        return self.plots * (spot.x, 1 - spot.y)

    def _markers(self, spots: Sequence[Spot]) -> np.ndarray:
        if not spots:
            return np.empty((len(self.plots), 0, 4))
        at = np.stack([self._centre(spot) for spot in spots], 1)
        reach = np.array([spot.radius + 1 for spot in spots])[None, :, None]
        return np.concatenate([at - reach, at + reach], 2)

    def _lines(self, lines: Sequence[Segment]) -> np.ndarray:
        if not lines:
            return np.empty((len(self.plots), 0, 4))
        x0, y0, x1, y1 = np.array([piece for line in lines for piece in _pieces(line)]).T
        wide, tall = self.plots[:, :1], self.plots[:, 1:]
        across = np.sort([x0 * wide, x1 * wide], 0)
        down = np.sort([(1 - y0) * tall, (1 - y1) * tall], 0)
        return np.stack([across[0] - 1.5, down[0] - 1.5, across[1] + 1.5, down[1] + 1.5], 2)


def _pieces(line: Segment) -> list[Segment]:
    """Cut a slanted line into pieces, as each takes the box around it."""
    across, up = abs(line[2] - line[0]), abs(line[3] - line[1])
    if not (across and up):
        return [line]
    count = max(1, math.ceil(_PIECES * max(across, up)))
    x, y = (np.linspace(line[i], line[i + 2], count + 1).tolist() for i in (0, 1))
    return segments_of(list(zip(x, y, strict=True)))


def _around(spot: Spot, wide: float, canvas: Canvas, everywhere: bool) -> Iterator[tuple[np.ndarray, bool]]:
    """Offsets [n, 2] of a name's centre, best first, and True for those that need a line."""
    tall = _LINE * canvas.size
    beside = []
    for right, down in _SIDES:
        reach = spot.radius * (0.7 if right and down else 1) + _GAP
        beside.append((right * (reach + wide / 2), down * (reach + tall / 2)))
    yield np.array(beside), False
    angles = math.tau * np.arange(16) / 16
    for reach in _REACHES if everywhere else _REACHES[: canvas.far]:
        away = spot.radius + reach
        around = [np.cos(angles) * (away + wide / 2), np.sin(angles) * (away + tall / 2)]
        yield np.stack(around, 1), True
    if everywhere:
        yield _grid(), True


@cache
def _grid() -> np.ndarray:
    """Offsets all over a plot, the nearest first."""
    grid = [(x, y) for x in range(-400, 401, 16) for y in range(-240, 241, 12)]
    return np.array(sorted(grid, key=lambda o: math.hypot(*o)), float)


def _meets(low: np.ndarray, high: np.ndarray, boxes: np.ndarray) -> np.ndarray:
    """bool [n]: True for each rectangle ``low`` … ``high`` [plots, n, 2] that overlaps one of the boxes
    [plots, m, 4] in any size."""
    met = np.zeros(low.shape[1], dtype=bool)
    step = max(1, _CELLS // max(low[..., 0].size, 1))
    for first in range(0, boxes.shape[1], step):
        checkpoint()
        some = boxes[:, None, first : first + step]
        inside = np.logical_and(low[:, :, None] < some[..., 2:], high[:, :, None] > some[..., :2])
        met |= np.any(np.all(inside, 3), (0, 2))
    return met
