"""Names of points, placed where they meet no name, no point and no line, or left out.

Widths of text are estimated from classes of letters of the page's font. A plot has several widths, as the
browser draws it wider or narrower with the page, while a name keeps its distance in pixels from its point.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache

import numpy as np

_NARROW, _WIDE = "iljtfrI.,:;'|!()[] ", "mwMWGOQ@%"
_LINE = 1.3
"""Height of a line in font sizes."""
_GAP, _EDGE = 3.0, 2.0
"""Pixels between a marker and its name, and between a name and the plot's edge."""
_REACHES = (14.0, 26.0, 40.0, 58.0, 80.0, 110.0)
"""Pixels from a point to a name that a thin line joins with it."""
_SIDES = ((1, 0), (-1, 0), (0, -1), (0, 1), (1, -0.6), (-1, -0.6), (1, 0.6), (-1, 0.6))
"""Right and down of the point, in the order in which they are tried."""
_LEADER_STEPS = 12
_ATTEMPTS = 8
"""Orders that are tried: an essential name without room comes first in the next one."""


def text_width(text: str, size: float, bold: bool = False) -> float:
    """Pixels that ``text`` takes at most, in Inter at ``size`` pixels."""
    ems = 0.0
    for letter in text:
        if letter in _NARROW:
            ems += 0.38
        elif letter in _WIDE:
            ems += 0.88
        else:
            ems += 0.72 if letter.isupper() else 0.64
    return ems * size * (1.07 if bold else 1.0)


@dataclass(frozen=True)
class NamedSpot:
    """A point as shares of the axes, 0 … 1 from the left and from below; ``radius`` of its marker in pixels.

    name       its text; empty for a point that only must not be covered
    essential  named wherever there is any room, over faint points if it must be
    faint      a point that an essential name may cover, if there is no other room
    """

    x: float
    y: float
    radius: float
    name: str = ""
    bold: bool = False
    essential: bool = False
    faint: bool = False


@dataclass(frozen=True)
class Callout:
    """The name of a point: its centre in pixels right and down of the point; ``apart``: a line joins them."""

    text: str
    right: float
    down: float
    apart: bool


@dataclass(frozen=True)
class Canvas:
    """A plot ``height`` pixels tall and as wide as any of ``widths``; ``size`` of the font in pixels."""

    height: float
    widths: tuple[float, ...]
    size: float


def placed(
    places: Sequence[NamedSpot], lines: Sequence[tuple[float, float, float, float]], canvas: Canvas
) -> list[Callout | None]:
    """A callout for each place with a name, None where there is no room; earlier ones choose first.

    ``lines`` are segments (x0, y0, x1, y1) along the axes, in their shares.
    """
    order = list(range(len(places)))
    best: dict[int, Callout] = {}
    for _ in range(_ATTEMPTS):
        found = _in_order(places, order, lines, canvas)
        missing = [i for i in order if places[i].essential and places[i].name and i not in found]
        best = max(best, found, key=lambda one: sum(places[i].essential for i in one))
        if not missing:
            break
        order = [missing[0], *(i for i in order if i != missing[0])]
    return [best.get(i) for i in range(len(places))]


def _in_order(
    places: Sequence[NamedSpot],
    order: Sequence[int],
    lines: Sequence[tuple[float, float, float, float]],
    canvas: Canvas,
) -> dict[int, Callout]:
    """Callouts by the index of their place, each where those before it have left room."""
    taken = _Taken(places, lines, canvas)
    found: dict[int, Callout] = {}
    for i in order:
        place = places[i]
        if place.name and (callout := taken.room_for(place)) is not None:
            taken.add(place, callout)
            found[i] = callout
    return found


class _Taken:
    """What names must not cover, at every width: boxes [widths, n, 4] (left, top, right, bottom)."""

    def __init__(
        self,
        places: Sequence[NamedSpot],
        lines: Sequence[tuple[float, float, float, float]],
        canvas: Canvas,
    ) -> None:
        self.canvas = canvas
        self.widths = np.array(canvas.widths)
        self.solid = self._markers([p for p in places if not p.faint])
        self.faint = self._markers([p for p in places if p.faint])
        self.lines = self._lines(lines)
        self.names = np.empty((len(self.widths), 0, 4))
        self.leaders = np.empty((len(self.widths), 0, 4))

    def add(self, place: NamedSpot, callout: Callout) -> None:
        """Keep others off a name and its line."""
        boxes = np.array([[name_box(place, callout, width, self.canvas)] for width in self.widths])
        self.names = np.concatenate([self.names, boxes], 1)
        if callout.apart:
            steps = np.linspace(0.1, 1, _LEADER_STEPS)[:, None] * (callout.right, callout.down)
            at = self._centre(place)[:, None] + steps[None]
            inside = ((at >= boxes[..., :2]) & (at <= boxes[..., 2:])).all(2)
            at[inside] = -99.0
            self.leaders = np.concatenate([self.leaders, np.concatenate([at - 1, at + 1], 2)], 1)

    def room_for(self, place: NamedSpot) -> Callout | None:
        """An essential name may cover faint points, if there is no other room."""
        found = self.first_free(place, True, place.essential)
        if found is None and place.essential:
            found = self.first_free(place, False, True) or self.first_free(place, False, True, crossing=True)
        return found

    def first_free(
        self, place: NamedSpot, clear: bool, everywhere: bool, crossing: bool = False
    ) -> Callout | None:
        """The best position that is free at every width; ``clear``: of faint points too. ``everywhere``: any
        place of the plot will do; ``crossing``: its line may cross others'."""
        wide = text_width(place.name, self.canvas.size, place.bold)
        hard = [self.solid, self.lines, self.leaders, self.names, *([self.faint] if clear else [])]
        boxes = np.concatenate(hard, 1)
        for offsets, apart in _around(place, wide, self.canvas, everywhere):
            free = self._free(place, offsets, apart, wide, boxes, crossing)
            if free.any():
                right, down = map(float, offsets[int(np.argmax(free))])
                return Callout(place.name, right, down, apart)
        return None

    def _free(
        self,
        place: NamedSpot,
        offsets: np.ndarray,
        apart: bool,
        wide: float,
        boxes: np.ndarray,
        crossing: bool,
    ) -> np.ndarray:
        """bool [n]: which offsets keep the name inside of the plot and off all ``boxes``, and its line off
        names and the points that matter."""
        half = np.array([wide / 2, _LINE * self.canvas.size / 2])
        spot = self._centre(place)
        centre = spot[:, None] + offsets[None]
        low, high = centre - half, centre + half
        size = np.stack([self.widths, np.full(len(self.widths), self.canvas.height)], 1)[:, None]
        free: np.ndarray = ((low >= _EDGE) & (high <= size - _EDGE)).all((0, 2))
        left = np.flatnonzero(free)
        free[left] = ~_meets(low[:, left], high[:, left], boxes)
        left = np.flatnonzero(free)
        if apart and len(left):
            others = np.concatenate([self.solid, self.names, *([] if crossing else [self.leaders])], 1)
            own = (abs((others[..., :2] + others[..., 2:]) / 2 - spot[:, None]) < 1).all(2, keepdims=True)
            others = np.where(own, -99.0, others)
            steps = np.linspace(0.15, 1, _LEADER_STEPS)[:, None, None] * offsets[left]
            inside = (abs(steps - offsets[left]) <= half).all(2, keepdims=True)
            at = spot[:, None, None] + np.where(inside, 1e6, steps)[None]
            at = at.reshape(len(self.widths), -1, 2)
            meets = _meets(at - 1, at + 1, others).reshape(_LEADER_STEPS, -1)
            free[left] = ~meets.any(0)
        return free

    def _centre(self, place: NamedSpot) -> np.ndarray:
        """[widths, 2] of a point in pixels from the plot's left and top."""
        y = np.full(len(self.widths), (1 - place.y) * self.canvas.height)
        return np.stack([place.x * self.widths, y], 1)

    def _markers(self, places: Sequence[NamedSpot]) -> np.ndarray:
        if not places:
            return np.empty((len(self.widths), 0, 4))
        at = np.stack([self._centre(place) for place in places], 1)
        reach = np.array([place.radius + 1 for place in places])[None, :, None]
        return np.concatenate([at - reach, at + reach], 2)

    def _lines(self, lines: Sequence[tuple[float, float, float, float]]) -> np.ndarray:
        if not lines:
            return np.empty((len(self.widths), 0, 4))
        x0, y0, x1, y1 = np.array(lines).T
        wide, tall = self.widths[:, None], np.full((len(self.widths), 1), self.canvas.height)
        across = np.sort([x0 * wide, x1 * wide], 0)
        down = np.sort([(1 - y0) * tall, (1 - y1) * tall], 0)
        return np.stack([across[0] - 1.5, down[0] - 1.5, across[1] + 1.5, down[1] + 1.5], 2)


def name_box(place: NamedSpot, callout: Callout, width: float, canvas: Canvas) -> tuple[float, ...]:
    """Left, top, right and bottom of a name in pixels from the plot's left and top."""
    x = place.x * width + callout.right
    y = (1 - place.y) * canvas.height + callout.down
    wide = text_width(callout.text, canvas.size, place.bold) / 2
    tall = _LINE * canvas.size / 2
    return x - wide, y - tall, x + wide, y + tall


def _around(
    place: NamedSpot, wide: float, canvas: Canvas, everywhere: bool
) -> Iterator[tuple[np.ndarray, bool]]:
    """Offsets [n, 2] of a name's centre, best first, and whether a line joins it there."""
    tall = _LINE * canvas.size
    beside = []
    for right, down in _SIDES:
        reach = place.radius * (0.7 if right and down else 1) + _GAP
        beside.append((right * (reach + wide / 2), down * (reach + tall / 2)))
    yield np.array(beside), False
    angles = math.tau * np.arange(16) / 16
    for reach in _REACHES if everywhere else _REACHES[:1]:
        away = place.radius + reach
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
    """bool [n]: which of the rectangles ``low`` … ``high`` [widths, n, 2] meets one of the boxes
    [widths, m, 4] at any width."""
    corner, far = boxes[:, None, :, :2], boxes[:, None, :, 2:]
    met = np.logical_and(low[:, :, None] < far, high[:, :, None] > corner)
    return np.asarray(np.any(np.all(met, 3), (0, 2)))
