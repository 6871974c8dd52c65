"""The frontier: bits per element against SQNR, cropped to what one asks about, with names where there is
room for them."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go

from explorer.analysis.goals import GOALS, Goal, adapted
from explorer.analysis.schemes import ComparisonRow
from explorer.figures.callouts import Callout, Canvas, NamedSpot, placed
from explorer.figures.style import FONT, MUTED, TEXT, A, B, caption, empty, figure, file_name, translucent

HEIGHT = 330
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
"""Widest figure in pixels that one set of names is for, and the widths at which they must not meet."""
NEAR = 7.0
"""Points that lie nearer to a drawn one, in pixels of a figure ``TYPICAL`` wide, are named when the mouse is
over that one, and not drawn."""
TYPICAL = 880
OTHERS = {379: 0, 499: 0, 859: 5, None: 9}
"""The most names in a class beside those that must be there: few can be read, many are a thicket."""
_MIDDLE = 2
"""The class whose names the figure has before a browser chooses."""


@dataclass(frozen=True)
class Window:
    """The part of the plane that is drawn: bits per element and dB at the ends of the axes."""

    bits: tuple[float, float]
    db: tuple[float, float]
    logarithmic: bool

    def x(self, bits: float) -> float:
        """As the axis takes it: log10 on a logarithmic one."""
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
        """The row's point, or the one of the window's edge that is nearest to it."""
        bits, db = _at(row)
        return min(max(bits, self.bits[0]), self.bits[1]), min(max(db, self.db[0]), self.db[1])


@dataclass(frozen=True)
class DrawnScheme:
    """One drawn scheme. ``letter``: "A", "B" or none; ``listed``: of the shortlist; ``asked``: named where
    there is room; ``hidden``: labels of schemes that lie at the same place."""

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
    """Bits per element against SQNR, one point a scheme, with a dotted line through those on the frontier.

    ``goal`` crops it, "everything" by default. ``a`` and ``b``, which need not be among ``rows``, are ringed,
    and the ``shortlist`` is drawn larger; all of these are named, at the edge where they lie outside. Others
    are small and grey, and named where there is room. A point's ``customdata`` is [label, text of the
    scheme]. Exact schemes (infinite SQNR) cannot be drawn: ``exact_words`` names them.

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
    callouts = [
        [widest, _annotations(points, edge, window, widths, OTHERS[widest])] for widest, widths in CLASSES
    ]
    fig = figure("bits per element, scales included", "", f"{name} frontier", HEIGHT)
    fig.update_layout(
        xaxis_automargin=False, yaxis_automargin=False
    )  # the names are placed for these margins
    traces = [_line(edge, window), *_faint(points, window), *_rings(points, window), *_listed(points, window)]
    fig.add_traces(traces)
    low, high = map(window.x, window.bits)
    xaxis: dict[str, Any] = {"range": [low, high], "showgrid": False, "title_standoff": 6}
    if window.logarithmic:
        ticks = [t for t in TICKS if window.bits[0] <= t <= window.bits[1]]
        xaxis |= {"type": "log", "tickvals": ticks, "ticktext": [f"{t:g}" for t in ticks]}
    fig.update_layout(
        margin={"l": LEFT, "r": RIGHT, "t": ABOVE, "b": BELOW},
        showlegend=False,
        hoverdistance=14,
        meta={"filename": file_name(f"{name} frontier"), "callouts": callouts},
        annotations=callouts[_MIDDLE][1],
        xaxis=xaxis,
        yaxis={"range": list(window.db), "nticks": 7},
        uirevision=f"frontier {goal.name} {window.db}",
    )
    return fig


def exact_words(rows: Sequence[ComparisonRow]) -> str:
    """The schemes without any error, which the figure cannot show, in a sentence; empty if there are none."""
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
    """The goal's axes, adapted to the points that matter: its own, A and B, and the frontier."""
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
    """Every scheme that can be drawn once, the more important first."""
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
    """The points without those that would only blur another: what lies within ``NEAR`` of a drawn one."""
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
            kept[near] = DrawnScheme(**{**vars(kept[near]), "hidden": hidden})
    return kept


def callouts_of(
    points: Sequence[DrawnScheme],
    edge: Sequence[ComparisonRow],
    window: Window,
    widths: Sequence[int],
    others: int,
) -> tuple[list[tuple[DrawnScheme, NamedSpot, Callout]], Canvas]:
    """Each name that has room in figures of these ``widths``, with its point; the first are essential."""
    narrow = widths[-1] < 500
    named = [p for p in points if p.essential]
    named += [p for p in points if p.asked and not p.essential][:others]
    names = _short_names([p.row for p in named])
    places = []
    for point in points:
        bits, db = window.nearest(point.row)
        text = names[point.row.text] if point in named else ""
        if text and narrow:
            text = text.replace(" group ", " g").replace(" block ", " b").replace(",", "")
        if text and point.letter:
            text = f"{point.letter}  {text}"
        if text and not window.holds(point.row):
            text += f" ({point.row.report.bits.total:.3g} bits, {point.row.report.sqnr_db:.1f} dB)"
        spot = window.across(bits), window.up(db), point.size / 2
        faint = not point.essential
        places.append(NamedSpot(*spot, text, bool(point.letter), point.essential, faint))
    inside = tuple(float(width - LEFT - RIGHT) for width in widths)
    canvas = Canvas(HEIGHT - ABOVE - BELOW, inside, FONT_SIZE)
    found = placed(places, segments(edge, window), canvas)
    return [(p, q, c) for p, q, c in zip(points, places, found, strict=True) if c is not None], canvas


def segments(edge: Sequence[ComparisonRow], window: Window) -> list[tuple[float, float, float, float]]:
    """The steps of the dotted line inside of the window, in shares of its axes."""
    corners = [(window.across(bits), window.up(db)) for bits, db in map(_at, edge)]
    found = []
    for (x0, y0), (x1, y1) in itertools.pairwise(corners):
        found += [(x0, y0, x1, y0), (x1, y0, x1, y1)]
    clipped = [tuple(min(max(v, 0.0), 1.0) for v in part) for part in found]
    return [
        (x0, y0, x1, y1)
        for (x0, y0, x1, y1), raw in zip(clipped, found, strict=True)
        if (x0, y0) != (x1, y1) and max(raw[1], raw[3]) >= 0 and min(raw[1], raw[3]) <= 1
    ]


def _annotations(
    points: Sequence[DrawnScheme],
    edge: Sequence[ComparisonRow],
    window: Window,
    widths: Sequence[int],
    others: int,
) -> list[dict[str, Any]]:
    found, _ = callouts_of(points, edge, window, widths, others)
    notes = [_annotation(point, callout, window) for point, _, callout in found]
    corner = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "bottom"}
    title = corner | {
        "text": "SQNR, dB",
        "xshift": 8 - LEFT,
        "yshift": 6,
        "showarrow": False,
        "font": {"size": FONT_SIZE},
    }
    return [title, *notes]


def _annotation(point: DrawnScheme, callout: Callout, window: Window) -> dict[str, Any]:
    """As plotly takes it; the line to the point is drawn where they are apart."""
    bits, db = window.nearest(point.row)
    color = {"A": A, "B": B}.get(point.letter, TEXT)
    text = f"<b>{callout.text}</b>" if point.letter else callout.text
    return {
        "text": text,
        "x": window.x(bits),
        "y": db,
        "ax": round(callout.right, 1),
        "ay": round(callout.down, 1),
        "showarrow": True,
        "arrowhead": 0,
        "arrowwidth": 1,
        "arrowcolor": MUTED if callout.apart else "rgba(0,0,0,0)",
        "standoff": point.size / 2 + 1 if callout.apart else 0,
        "borderpad": 0,
        "font": {"size": FONT_SIZE, "color": color, "family": FONT},
    }


def _line(edge: Sequence[ComparisonRow], window: Window) -> go.Scatter:
    """The dotted line, from the last point before the window to the first one after it."""
    before = [r for r in edge if r.report.bits.total < window.bits[0]][-1:]
    after = [r for r in edge if r.report.bits.total > window.bits[1]][:1]
    inside = [r for r in edge if window.bits[0] <= r.report.bits.total <= window.bits[1]]
    seen = [_at(r) for r in [*before, *inside, *after]]
    return go.Scatter(
        x=[bits for bits, _ in seen],
        y=[db for _, db in seen],
        mode="lines",
        line={"shape": "hv", "width": 1.5, "color": MUTED, "dash": "dot"},
        hoverinfo="skip",
    )


def _faint(points: Sequence[DrawnScheme], window: Window) -> list[go.Scatter]:
    """The other schemes: small and grey, lighter where the frontier passes above them."""
    members = [p for p in points if not p.essential]
    marker = {
        "color": MUTED,
        "size": [p.size for p in members],
        "line": {"width": 0},
        "opacity": [0.95 if p.row.on_frontier else 0.5 for p in members],
    }
    return [_markers(members, window, marker)] if members else []


def _listed(points: Sequence[DrawnScheme], window: Window) -> list[go.Scatter]:
    members = [p for p in points if p.listed and not p.letter]
    symbols = [_symbol(p, window) for p in members]
    marker = {"color": SLATE, "size": MARKER, "symbol": symbols, "line": {"width": 0}}
    return [_markers(members, window, marker)] if members else []


def _rings(points: Sequence[DrawnScheme], window: Window) -> list[go.Scatter]:
    """A ring around A and B, whether or not their schemes are among the rows, and a point within."""
    traces = []
    for point in sorted((p for p in points if p.letter), key=lambda p: p.letter, reverse=True):
        color = A if point.letter == "A" else B
        ring = {
            "symbol": _symbol(point, window),
            "size": RING,
            "color": translucent(color, 0.2),
            "line": {"width": 2.5, "color": color},
        }
        dot = {"symbol": "circle", "size": SMALL + 1, "color": color}
        traces += [_markers([point], window, dot), _markers([point], window, ring, point.letter)]
    return traces


def _symbol(point: DrawnScheme, window: Window) -> str:
    """A triangle that points out of the window where the scheme lies beyond its edge."""
    bits, db = _at(point.row)
    if bits > window.bits[1] or bits < window.bits[0]:
        return "triangle-right" if bits > window.bits[1] else "triangle-left"
    if db > window.db[1] or db < window.db[0]:
        return "triangle-up" if db > window.db[1] else "triangle-down"
    return "circle"


def _markers(
    members: Sequence[DrawnScheme], window: Window, marker: dict[str, Any], letter: str = ""
) -> go.Scatter:
    at = [window.nearest(p.row) for p in members]
    mark = f"{letter}: " if letter else ""
    return go.Scatter(
        x=[bits for bits, _ in at],
        y=[db for _, db in at],
        mode="markers",
        name=letter or "schemes",
        cliponaxis=False,
        customdata=[_who(p.row) for p in members],
        text=[_numbers(p) for p in members],
        marker=marker,
        hovertemplate=f"{mark}%{{customdata[0]}}<br>%{{text}}<extra></extra>",
    )


def _numbers(point: DrawnScheme) -> str:
    bits, db = _at(point.row)
    here = f"<br>also here: {', '.join(point.hidden)}" if point.hidden else ""
    return f"{bits:.3f} bits, {db:.2f} dB{here}"


def _who(row: ComparisonRow) -> list[str]:
    """Name of a point, and the text that makes it A or B."""
    return [row.label, row.text]


def _at(row: ComparisonRow) -> tuple[float, float]:
    return row.report.bits.total, row.report.sqnr_db


def _finite(row: ComparisonRow) -> bool:
    return math.isfinite(row.report.sqnr_db)


def _short_names(rows: Sequence[ComparisonRow]) -> dict[str, str]:
    """Map each scheme's text to its label without the part in brackets, unless another of ``rows`` would
    have the same label; the hover text has all of it."""
    full = {row.text: row.label.replace(", asymmetric", ", asym.").removeprefix("GGUF ") for row in rows}
    short = {text: caption(label) for text, label in full.items()}
    common = Counter(short.values())
    return {text: label if common[short[text]] > 1 else short[text] for text, label in full.items()}
