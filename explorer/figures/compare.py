"""Frontier of bits per element against SQNR, cropped to a goal, with names where there is room for them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import plotly.graph_objects as go

from explorer.analysis.goals import GOALS, Goal, adapted
from explorer.analysis.schemes import ComparisonRow
from explorer.figures.labels import Canvas, Label, Segment, Spot, annotation, place
from explorer.figures.style import (
    MUTED,
    TEXT,
    A,
    B,
    about,
    add_line,
    add_points,
    caption,
    empty,
    figure,
    marker_look,
    note,
    translucent,
)

HEIGHT = 306
LEFT, RIGHT, ABOVE, BELOW = 40, 16, 26, 42
FONT_SIZE = 12
TINY, SMALL, MARKER, RING = 5, 6, 11, 19
"""Pixels across: another scheme, one on the frontier, one of the shortlist, A or B."""
SLATE = "#667085"
"""Points of the shortlist: 4.9:1 on white, 3.6:1 on the dark card."""
TICKS = (1, 1.5, 2, 3, 4, 6, 8, 16, 32)
CLASSES = (
    (379, (284, 330, 350, 379)),
    (499, (380, 420, 460, 499)),
    (859, (500, 590, 700, 859)),
    (None, (860, 1000, 1200, 1440)),
)
"""Widest figure in pixels for each set of names, and the widths at which its names must not overlap."""
NEAR = 7.0
"""Distance in pixels, in a figure ``TYPICAL`` wide, below which a point is not drawn beside a drawn one; the
hover text of that one names it."""
TYPICAL = 880
OTHERS = {379: 0, 499: 0, 859: 5, None: 9}
"""Largest number of optional names in a class: more could not be read."""
_MIDDLE = 2
"""Class whose names the figure has until a browser chooses."""


@dataclass(frozen=True)
class Window:
    """Part of the plane that is drawn: bits per element and dB at the ends of the axes."""

    bits: tuple[float, float]
    db: tuple[float, float]
    logarithmic: bool

    def x(self, bits: float) -> float:
        """The coordinate on the axis: log10 on a logarithmic one."""
        return math.log10(bits) if self.logarithmic else bits

    def across(self, bits: float) -> float:
        low, high = map(self.x, self.bits)
        return (self.x(bits) - low) / (high - low)

    def up(self, db: float) -> float:
        return (db - self.db[0]) / (self.db[1] - self.db[0])

    def holds(self, row: ComparisonRow) -> bool:
        bits, db = _at(row)
        return self.bits[0] <= bits <= self.bits[1] and self.db[0] <= db <= self.db[1]

    def nearest(self, row: ComparisonRow) -> tuple[float, float]:
        """The scheme's point, or the nearest one on the window's edge."""
        bits, db = _at(row)
        return min(max(bits, self.bits[0]), self.bits[1]), min(max(db, self.db[0]), self.db[1])


@dataclass(frozen=True)
class DrawnScheme:
    """One drawn scheme. ``letter``: "A", "B" or none; ``listed``: on the shortlist; ``asked``: named if there
    is room; ``hidden``: labels of schemes at the same place."""

    row: ComparisonRow
    letter: str = ""
    listed: bool = False
    asked: bool = False
    hidden: tuple[str, ...] = ()

    @property
    def essential(self) -> bool:
        return bool(self.letter) or self.listed

    @property
    def size(self) -> float:
        if self.letter:
            return RING
        return MARKER if self.listed else SMALL if self.row.on_frontier else TINY


def frontier_figure(
    rows: Sequence[ComparisonRow],
    name: str,
    a: ComparisonRow | None = None,
    b: ComparisonRow | None = None,
    goal: Goal | None = None,
    shortlist: Sequence[ComparisonRow] = (),
) -> go.Figure:
    """Draw bits per element against SQNR, one point a scheme, with a dotted line along the Pareto frontier.

    ``goal`` crops it, "everything" by default. ``a`` and ``b``, which need not be among ``rows``, are ringed,
    and the ``shortlist`` is drawn larger; all of these are named, at the edge if they lie outside. Others are
    small and grey, and named if there is room. A point's ``customdata`` is [label, text of the scheme]. Exact
    schemes (infinite SQNR) cannot be drawn: ``exact_words`` names them.

    ``layout.meta["callouts"]`` holds the names for narrower and wider figures: [widest in pixels or None,
    annotations]; ``assets/figure.js`` takes the first that is wide enough.
    """
    goal = goal or GOALS["all"]
    points = _points(rows, [(a, "A"), (b, "B")], goal, shortlist)
    if not points:
        why = "no scheme has an error that can be drawn" if rows else "no scheme has been compared yet"
        return empty(why, f"{name} frontier")
    window = window_of(goal, points)
    points = thinned(points, window)
    edge = sorted((r for r in rows if r.on_frontier and _finite(r)), key=lambda r: r.report.bits.total)
    callouts = [[most, _annotations(points, edge, window, widths, OTHERS[most])] for most, widths in CLASSES]
    fig = figure("bits per element, scales included", "", f"{name} frontier", HEIGHT)
    # The names are placed for these margins.
    fig.update_layout(xaxis_automargin=False, yaxis_automargin=False)
    _add_frontier(fig, edge, window)
    _add_schemes(fig, points, window)
    chosen = [row.scheme.label for row in (a, b) if row is not None]
    subject, elements = _measured_on(rows, name)
    meta = about(fig, "Accuracy against size of the schemes", subject, chosen, elements)
    low, high = map(window.x, window.bits)
    xaxis: dict[str, Any] = {"range": [low, high], "showgrid": False, "title_standoff": 6}
    if window.logarithmic:
        ticks = [t for t in TICKS if window.bits[0] <= t <= window.bits[1]]
        xaxis |= {"type": "log", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}
    return fig.update_layout(
        margin={"l": LEFT, "r": RIGHT, "t": ABOVE, "b": BELOW},
        showlegend=False,
        hoverdistance=14,
        meta={**meta, "callouts": callouts},
        annotations=callouts[_MIDDLE][1],
        xaxis=xaxis,
        yaxis={"range": list(window.db), "nticks": 7},
        uirevision=f"frontier {goal.name} {window.db}",
    )


def _measured_on(rows: Sequence[ComparisonRow], name: str) -> tuple[str, int]:
    """Return the subject of the caption, and the number of elements; of a sample too where some of ``rows``
    were measured on one."""
    counts = {round(8 * row.report.nbytes / row.report.bits.total) for row in rows if row.report.bits.total}
    few, most = min(counts, default=0), max(counts, default=0)
    return f"{name}, some schemes on a sample of {few:,} elements" if few < 0.99 * most else name, most


def exact_words(rows: Sequence[ComparisonRow]) -> str:
    """Name the schemes without any error, which cannot be drawn, in a sentence; empty if there are none."""
    exact = [r for r in rows if r.report.sqnr_db == math.inf]
    if not exact:
        return ""
    if len(exact) == len(rows):
        return "Every scheme restores this tensor exactly."
    least = min(exact, key=lambda r: r.report.bits.total)
    count = "1 scheme restores" if len(exact) == 1 else f"{len(exact)} schemes restore"
    fewest = "" if len(exact) == 1 else ", with the fewest bits"
    return (
        f"{count} this tensor exactly and cannot be drawn{fewest}: {least.scheme.label} "
        f"({least.report.bits.total:.3g} bits)."
    )


def window_of(goal: Goal, points: Sequence[DrawnScheme]) -> Window:
    """Return the goal's axes, adapted to the points that matter: its own, A and B, and the frontier."""
    matter = [_at(p.row) for p in points if p.essential or p.row.on_frontier] or [_at(p.row) for p in points]
    if goal.logarithmic and goal.most_bits is None:
        bits = [_at(p.row)[0] for p in points]
        low, high = min(bits) / 1.12, max(bits) * 1.12
        levels = [_at(p.row)[1] for p in points]
        room = max(0.05 * (max(levels) - min(levels)), 1.0)
        return Window((low, high), (min(levels) - room, max(levels) + room), True)
    goal = adapted(goal, matter)
    return Window(goal.bits, goal.db, goal.logarithmic)


def _points(
    rows: Sequence[ComparisonRow],
    chosen: Sequence[tuple[ComparisonRow | None, str]],
    goal: Goal,
    shortlist: Sequence[ComparisonRow],
) -> list[DrawnScheme]:
    """List each scheme that can be drawn once, the more important first."""
    letters = {row.text: letter for row, letter in reversed(chosen) if row is not None}
    listed = [r.text for r in shortlist] or list(goal.schemes)
    by_text = {r.text: r for r in (*rows, *shortlist, *(r for r, _ in chosen if r is not None))}
    points = [
        DrawnScheme(row, letters.get(text, ""), text in listed, text in goal.asked)
        for text, row in by_text.items()
        if _finite(row)
    ]
    first_texts = [*sorted(letters, key=letters.__getitem__), *listed, *goal.asked]
    order = {text: i for i, text in enumerate(dict.fromkeys(first_texts))}
    first = [p for p in points if p.row.text in order]
    first.sort(key=lambda p: order[p.row.text])
    rest = [p for p in points if p.row.text not in order]
    return [*first, *sorted(rest, key=lambda p: not p.row.on_frontier)]


def thinned(points: Sequence[DrawnScheme], window: Window) -> list[DrawnScheme]:
    """Leave out the points that lie within ``NEAR`` of a drawn one and would only blur it."""
    wide, tall = TYPICAL - LEFT - RIGHT, HEIGHT - ABOVE - BELOW
    kept: list[DrawnScheme] = []
    spots: list[tuple[float, float]] = []
    for point in points:
        if not point.essential and not window.holds(point.row):
            continue
        bits, db = window.nearest(point.row)
        spot = window.across(bits) * wide, window.up(db) * tall
        near = next((i for i, other in enumerate(spots) if math.dist(spot, other) < NEAR), None)
        if near is None or point.essential:
            kept.append(point)
            spots.append(spot)
        else:
            hidden = (*kept[near].hidden, point.row.label)
            kept[near] = replace(kept[near], hidden=hidden)
    return kept


def labels_of(
    points: Sequence[DrawnScheme],
    edge: Sequence[ComparisonRow],
    window: Window,
    widths: Sequence[int],
    others: int,
) -> tuple[list[tuple[DrawnScheme, Spot, Label]], Canvas]:
    """Return each name that has room in figures of these ``widths``, with its point; essential ones first."""
    named = [p for p in points if p.essential]
    named += [p for p in points if p.asked and not p.essential][:others]
    names = _short_names([p.row for p in named])
    spots = []
    for point in points:
        text = names.get(point.row.text, "")
        if text and widths[-1] < 500:
            text = text.replace(" group ", " g").replace(" block ", " b").replace(",", "")
        if text and point.letter:
            text = f"{point.letter}  {text}"
        if text and not window.holds(point.row):
            text += f" ({point.row.report.bits.total:.3g} bits, {point.row.report.sqnr_db:.1f} dB)"
        bits, db = window.nearest(point.row)
        at = window.across(bits), window.up(db), point.size / 2
        spots.append(Spot(*at, text, bool(point.letter), point.essential, not point.essential))
    canvas = Canvas.of([width - LEFT - RIGHT for width in widths], [HEIGHT - ABOVE - BELOW], FONT_SIZE)
    found = place(spots, canvas, segments(edge, window))
    return [(p, s, c) for p, s, c in zip(points, spots, found, strict=True) if c is not None], canvas


def segments(edge: Sequence[ComparisonRow], window: Window) -> list[Segment]:
    """Return the steps of the dotted line inside of the window, in shares of its axes."""
    corners = [(window.across(bits), window.up(db)) for bits, db in map(_at, edge)]
    found = []
    for (x0, y0), (x1, y1) in itertools.pairwise(corners):
        for step in ((x0, y0, x1, y0), (x1, y0, x1, y1)):
            left, low, right, high = (min(max(v, 0.0), 1.0) for v in step)
            if (left, low) != (right, high) and max(step[1], step[3]) >= 0 and min(step[1], step[3]) <= 1:
                found.append((left, low, right, high))
    return found


def _annotations(
    points: Sequence[DrawnScheme],
    edge: Sequence[ComparisonRow],
    window: Window,
    widths: Sequence[int],
    others: int,
) -> list[dict[str, Any]]:
    corner = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    notes = [note("SQNR, dB", FONT_SIZE, **corner, xshift=8 - LEFT, yshift=6)]
    for point, spot, label in labels_of(points, edge, window, widths, others)[0]:
        bits, db = window.nearest(point.row)
        color = {"A": A, "B": B}.get(point.letter, TEXT)
        notes.append(annotation(spot, label, (window.x(bits), db), color, FONT_SIZE))
    return notes


def _add_frontier(fig: go.Figure, edge: Sequence[ComparisonRow], window: Window) -> None:
    """Add the dotted line, from the last point before the window to the first one after it."""
    low, high = window.bits
    before = [r for r in edge if r.report.bits.total < low][-1:]
    after = [r for r in edge if r.report.bits.total > high][:1]
    seen = [_at(r) for r in [*before, *(r for r in edge if low <= r.report.bits.total <= high), *after]]
    bits, db = [bits for bits, _ in seen], [db for _, db in seen]
    add_line(fig, "", bits, db, MUTED, width=1.5, dash="dot", shape="hv")


def _add_schemes(fig: go.Figure, points: Sequence[DrawnScheme], window: Window) -> None:
    """Add the other schemes small and grey, lighter where the frontier passes above them; then a ring around
    B and A with a point within, and the shortlist."""
    faint = [p for p in points if not p.essential]
    look = {"color": MUTED, "size": [p.size for p in faint], "line": {"width": 0}}
    _markers(fig, faint, window, look | {"opacity": [0.95 if p.row.on_frontier else 0.5 for p in faint]})
    for point in sorted((p for p in points if p.letter), key=lambda p: p.letter, reverse=True):
        color = A if point.letter == "A" else B
        _markers(fig, [point], window, {"symbol": "circle", "size": SMALL + 1, "color": color})
        ring = marker_look(translucent(color, 0.2), RING, _symbol(point, window), 2.5, color)
        _markers(fig, [point], window, ring, point.letter)
    listed = [p for p in points if p.listed and not p.letter]
    symbols = [_symbol(p, window) for p in listed]
    _markers(fig, listed, window, {"color": SLATE, "size": MARKER, "symbol": symbols, "line": {"width": 0}})


def _symbol(point: DrawnScheme, window: Window) -> str:
    """Choose a point's symbol: beyond the window's edge, a triangle that points out of it."""
    bits, db = _at(point.row)
    if bits > window.bits[1] or bits < window.bits[0]:
        return "triangle-right" if bits > window.bits[1] else "triangle-left"
    if db > window.db[1] or db < window.db[0]:
        return "triangle-up" if db > window.db[1] else "triangle-down"
    return "circle"


def _markers(
    fig: go.Figure, members: Sequence[DrawnScheme], window: Window, marker: dict[str, Any], letter: str = ""
) -> None:
    """Add a trace; a point's ``customdata`` is [label, text that makes it A or B]."""
    if not members:
        return
    x, y = zip(*(window.nearest(p.row) for p in members), strict=True)
    who = [[p.row.label, p.row.text] for p in members]
    hover = f"{f'{letter}: ' if letter else ''}%{{customdata[0]}}<br>%{{text}}"
    more = {"customdata": who, "text": [_numbers(p) for p in members], "cliponaxis": False}
    add_points(fig, letter or "schemes", x, y, marker, hover, **more)


def _numbers(point: DrawnScheme) -> str:
    bits, db = _at(point.row)
    here = f"<br>also here: {', '.join(point.hidden)}" if point.hidden else ""
    return f"{bits:.3f} bits, {db:.2f} dB{here}"


def _at(row: ComparisonRow) -> tuple[float, float]:
    return row.report.bits.total, row.report.sqnr_db


def _finite(row: ComparisonRow) -> bool:
    return math.isfinite(row.report.sqnr_db)


def _short_names(rows: Sequence[ComparisonRow]) -> dict[str, str]:
    """Map each scheme's text to its label without the part in brackets, unless another of ``rows`` would have
    the same label; the hover text has the full label."""
    full = {row.text: row.label.replace(", asymmetric", ", asym.").removeprefix("GGUF ") for row in rows}
    short = {text: caption(label) for text, label in full.items()}
    common = Counter(short.values())
    return {text: label if common[short[text]] > 1 else short[text] for text, label in full.items()}
