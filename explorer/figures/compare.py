"""The frontier: bits per element against SQNR, with labels where there is room for them."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from explorer.analysis.schemes import ComparisonRow
from explorer.figures.style import (
    FAMILY_COLORS,
    MUTED,
    A,
    B,
    empty,
    family,
    figure,
    legend_below,
    translucent,
)

HEIGHT = 440
WIDTHS = (340, 680)
"""Pixels of the narrowest and of a usual figure: labels have room at both, and so at all widths between."""
TICKS = (1, 1.5, 2, 3, 4, 6, 8, 16, 32)
FONT_SIZE, CHARACTER = 11, 6.6
"""Pixels: the height of a label's letters, and the most that one is wide on average."""
MARKER, RING = 11, 19


@dataclass(frozen=True)
class Box:
    """A rectangle of a figure in pixels, from the left and from the top."""

    left: float
    top: float
    right: float
    bottom: float

    def meets(self, other: Box) -> bool:
        return (
            self.left < other.right
            and other.left < self.right
            and self.top < other.bottom
            and other.top < self.bottom
        )

    def lies_in(self, other: Box) -> bool:
        return (
            other.left <= self.left
            and self.right <= other.right
            and other.top <= self.top
            and self.bottom <= other.bottom
        )


@dataclass(frozen=True)
class Frame:
    """Where the points of a frontier lie: log10 of the least and most bits, and the dB at the ends of the
    axes."""

    low: float
    high: float
    bottom: float
    top: float

    def plot(self, width: int) -> Box:
        """The inside of the axes of a figure of ``width`` pixels."""
        return Box(LEFT, ABOVE, width - RIGHT, HEIGHT - BELOW)

    def place(self, row: ComparisonRow, width: int) -> tuple[float, float]:
        """(x, y) of a scheme's point in pixels."""
        box = self.plot(width)
        across = (math.log10(row.report.bits.total) - self.low) / (self.high - self.low)
        up = (row.report.sqnr_db - self.bottom) / (self.top - self.bottom)
        return box.left + across * (box.right - box.left), box.bottom - up * (box.bottom - box.top)


LEFT, RIGHT, ABOVE, BELOW = 56, 16, 12, 104

_POSITIONS = {
    "middle left": (-1, 0),
    "top left": (-1, -1),
    "top center": (0, -1),
    "bottom right": (1, 1),
    "middle right": (1, 0),
    "bottom center": (0, 1),
    "bottom left": (-1, 1),
    "top right": (1, -1),
}
"""plotly's names for where a label stands by its point, in the order that they are tried."""


def frontier_figure(
    rows: Sequence[ComparisonRow], name: str, a: ComparisonRow | None = None, b: ComparisonRow | None = None
) -> go.Figure:
    """Bits per element against SQNR, one point a scheme, with a line through those on the frontier.

    ``a`` and ``b``, which need not be among ``rows``, are ringed. A point's ``customdata`` is [label, text of
    the scheme]. Exact schemes (infinite SQNR) cannot be drawn: ``exact_words`` names them. Points on the
    frontier whose label has no room show it when the mouse is over them.
    """
    drawn = [r for r in rows if math.isfinite(r.report.sqnr_db)]
    chosen = [(r, letter, color) for r, letter, color in ((a, "A", A), (b, "B", B)) if r is not None]
    chosen = [c for c in chosen if math.isfinite(c[0].report.sqnr_db)]
    if not drawn and not chosen:
        why = "no scheme has an error that can be drawn" if rows else "no scheme has been compared yet"
        return empty(why, f"{name} frontier")
    frame = _frame([*drawn, *(row for row, _, _ in chosen)])
    fig = legend_below(figure("bits per element, scales included", "SQNR (dB)", f"{name} frontier", HEIGHT))
    fig.update_layout(
        legend={"entrywidth": 84, "font": {"size": 11}},
        margin={"l": LEFT, "r": RIGHT, "t": ABOVE, "b": BELOW},
    )
    _line(fig, [r for r in drawn if r.on_frontier])
    for group, color in FAMILY_COLORS.items():
        _points(fig, [r for r in drawn if family(r.scheme.format) == group], group, color)
    for row, letter, color in chosen:
        _ring(fig, row, letter, color)
    _labels(fig, place_labels(drawn, [(row, letter) for row, letter, _ in chosen], frame))
    ticks = [t for t in TICKS if frame.low <= math.log10(t) <= frame.high]
    fig.update_xaxes(
        type="log",
        range=[frame.low, frame.high],
        tickvals=ticks,
        ticktext=[f"{t:g}" for t in ticks],
        automargin=False,
    )
    fig.update_yaxes(range=[frame.bottom, frame.top], automargin=False)
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


def _frame(rows: Sequence[ComparisonRow]) -> Frame:
    """Axes with some room around all points."""
    bits = [math.log10(r.report.bits.total) for r in rows]
    levels = [r.report.sqnr_db for r in rows]
    room, space = max(0.06 * (max(bits) - min(bits)), 0.08), max(0.06 * (max(levels) - min(levels)), 1.0)
    return Frame(min(bits) - room, max(bits) + room, min(levels) - space, max(levels) + space)


def _line(fig: go.Figure, edge: Sequence[ComparisonRow]) -> None:
    edge = sorted(edge, key=lambda r: r.report.bits.total)
    fig.add_scatter(
        x=[r.report.bits.total for r in edge],
        y=[r.report.sqnr_db for r in edge],
        mode="lines",
        showlegend=False,
        line={"shape": "hv", "width": 1.5, "color": MUTED, "dash": "dot"},
        hoverinfo="skip",
    )


def _points(fig: go.Figure, members: Sequence[ComparisonRow], group: str, color: str) -> None:
    if not members:
        return
    symbol = ["circle", "diamond", "square", "cross"][list(FAMILY_COLORS).index(group)]
    fig.add_scatter(
        x=[r.report.bits.total for r in members],
        y=[r.report.sqnr_db for r in members],
        mode="markers",
        name=group,
        customdata=[_who(r) for r in members],
        marker={
            "color": color,
            "size": [MARKER if r.on_frontier else 7 for r in members],
            "symbol": symbol,
            "opacity": [1.0 if r.on_frontier else 0.55 for r in members],
        },
        hovertemplate="%{customdata[0]}<br>%{x:.3f} bits, %{y:.2f} dB<extra></extra>",
    )


def _who(row: ComparisonRow) -> list[str]:
    """What a point is called, and the text that makes it A or B."""
    return [row.scheme.label, str(row.scheme)]


def _ring(fig: go.Figure, row: ComparisonRow, letter: str, color: str) -> None:
    """A ring with a letter around A or B, whether or not its scheme is one of the rows."""
    fig.add_scatter(
        x=[row.report.bits.total],
        y=[row.report.sqnr_db],
        mode="markers",
        name=letter,
        showlegend=False,
        customdata=[_who(row)],
        marker={
            "symbol": "circle",
            "size": RING,
            "color": translucent(color, 0.2),
            "line": {"width": 2.5, "color": color},
        },
        hovertemplate=f"{letter}: %{{customdata[0]}}<br>%{{x:.3f}} bits, %{{y:.2f}} dB<extra></extra>",
    )


@dataclass(frozen=True)
class Label:
    """The words by a point, and where they stand by plotly's name for it."""

    row: ComparisonRow
    text: str
    position: str
    size: int

    def box(self, frame: Frame, width: int) -> Box:
        """The label's rectangle in a figure of ``width`` pixels, as plotly places text by a marker."""
        x, y = frame.place(self.row, width)
        across, down = _POSITIONS[self.position]
        wide, tall, away = CHARACTER * len(self.text), FONT_SIZE + 4, self.size / 2 + 2
        left = x - wide / 2 + across * (wide / 2 + away)
        top = y - tall / 2 + down * (tall / 2 + away)
        return Box(left, top, left + wide, top + tall)


def place_labels(
    rows: Sequence[ComparisonRow], chosen: Sequence[tuple[ComparisonRow, str]], frame: Frame
) -> list[Label]:
    """Labels of ``chosen``, A and B by letter, then of the points on the frontier, each where it meets no
    label, point of the frontier or edge at any of ``WIDTHS``.

    What has no room is left out; of A and B the letter stays, over points if it must be.
    """
    edge = [r for r in rows if r.on_frontier]
    points = [(r, RING) for r, _ in chosen] + [(r, MARKER) for r in edge]
    placed: list[Label] = []
    for row, letter in chosen:
        options = [(f"{letter}  {_short(row)}", points), (letter, points), (letter, [])]
        found = (_place(row, text, RING, placed, around, frame) for text, around in options)
        placed.append(next(filter(None, found), Label(row, letter, "middle left", RING)))
    taken = {str(r.scheme) for r, _ in chosen}
    for row in _spread_out(edge):
        label = _place(row, _short(row), MARKER, placed, points, frame)
        if label is not None and str(row.scheme) not in taken:
            placed.append(label)
    return placed


def _place(
    row: ComparisonRow,
    text: str,
    size: int,
    placed: Sequence[Label],
    points: Sequence[tuple[ComparisonRow, int]],
    frame: Frame,
) -> Label | None:
    """The first position that is free."""
    options = (Label(row, text, position, size) for position in _POSITIONS)
    return next((label for label in options if _fits(label, placed, points, frame)), None)


def _spread_out(edge: Sequence[ComparisonRow]) -> Iterator[ComparisonRow]:
    """The points in an order in which the first few already stand far apart: every eighth, fourth, second."""
    ordered = sorted(edge, key=lambda r: r.report.bits.total)
    seen: set[int] = set()
    for step in (8, 4, 2, 1):
        for index in range(0, len(ordered), step):
            if index not in seen:
                seen.add(index)
                yield ordered[index]


def _short(row: ComparisonRow) -> str:
    """A label without what stands in brackets: the hover has all of it."""
    return re.sub(r" \(.*?\)", "", row.scheme.label).replace(", asymmetric", ", asym.")


def _fits(
    label: Label, placed: Sequence[Label], points: Sequence[tuple[ComparisonRow, int]], frame: Frame
) -> bool:
    """Whether a label stands free at every one of ``WIDTHS``."""
    for width in WIDTHS:
        box = label.box(frame, width)
        if not box.lies_in(frame.plot(width)) or any(box.meets(p.box(frame, width)) for p in placed):
            return False
        for row, size in points:
            x, y = frame.place(row, width)
            if row is not label.row and box.meets(
                Box(x - size / 2, y - size / 2, x + size / 2, y + size / 2)
            ):
                return False
    return True


def _labels(fig: go.Figure, labels: Sequence[Label]) -> None:
    fig.add_scatter(
        x=[label.row.report.bits.total for label in labels],
        y=[label.row.report.sqnr_db for label in labels],
        mode="markers+text",
        text=[label.text for label in labels],
        textposition=[label.position for label in labels],
        textfont={"size": FONT_SIZE},
        marker={"size": [label.size for label in labels], "color": "rgba(0,0,0,0)"},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
