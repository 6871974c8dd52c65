"""The frontier: bits per element against SQNR, with labels where there is room for them."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from explorer.analysis.schemes import ComparisonRow
from explorer.figures.labels import Label, Spot, add_label, place
from explorer.figures.style import (
    FAMILY_COLORS,
    MUTED,
    TEXT,
    A,
    B,
    caption,
    empty,
    family,
    figure,
    legend_below,
    translucent,
)

HEIGHT = 448
TICKS = (1, 1.5, 2, 3, 4, 6, 8, 16, 32)
FONT_SIZE = 11
SMALL, MARKER, RING = 7, 11, 19
"""Pixels across."""
AWAY = (0, 18)
"""Pixels between a point and its label: many more lines than this would be a thicket."""
LEGEND = 48
"""Pixels from the plot down to the legend, which has two lines on a phone."""
LEFT, RIGHT, ABOVE, BELOW = 56, 16, 12, 112
WIDTHS = tuple(width - LEFT - RIGHT for width in (300, 400, 540, 720, 1000, 1400))
"""Widths of a plot in pixels, from the narrowest figure to the widest."""


@dataclass(frozen=True)
class AxisFrame:
    """Axis ranges of a frontier: log10 of the least and most bits, and the dB at the ends of the axes."""

    low: float
    high: float
    bottom: float
    top: float

    def spot(self, row: ComparisonRow, size: float, text: str = "", letter: str = "") -> Spot:
        """A scheme's point, ``size`` pixels across, with its words."""
        across = (math.log10(row.report.bits.total) - self.low) / (self.high - self.low)
        up = (row.report.sqnr_db - self.bottom) / (self.top - self.bottom)
        return Spot(across, up, size / 2, text, letter)


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
    plot = HEIGHT - ABOVE - BELOW
    fig.update_layout(
        legend={"xref": "paper", "yref": "paper", "x": 0, "y": -LEGEND / plot, "yanchor": "top"},
        legend_entrywidth=76,
        legend_font_size=10,
        margin={"l": LEFT, "r": RIGHT, "t": ABOVE, "b": BELOW},
    )
    _line(fig, [r for r in drawn if r.on_frontier])
    for group, color in FAMILY_COLORS.items():
        _points(fig, [r for r in drawn if family(r.scheme.format) == group], group, color)
    for row, letter, color in chosen:
        _ring(fig, row, letter, color)
    for row, label in place_labels(drawn, [(row, letter) for row, letter, _ in chosen], frame):
        color = {"A": A, "B": B}.get(label.text.split()[0], TEXT)
        add_label(fig, label, math.log10(row.report.bits.total), row.report.sqnr_db, color, FONT_SIZE)
    ticks = [t for t in TICKS if frame.low <= math.log10(t) <= frame.high]
    fig.update_xaxes(
        type="log",
        range=[frame.low, frame.high],
        tickvals=ticks,
        ticktext=[f"{t:g}" for t in ticks],
    )
    fig.update_yaxes(range=[frame.bottom, frame.top])
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


def _frame(rows: Sequence[ComparisonRow]) -> AxisFrame:
    """Axes with some room around all points."""
    bits = [math.log10(r.report.bits.total) for r in rows]
    levels = [r.report.sqnr_db for r in rows]
    room, space = max(0.06 * (max(bits) - min(bits)), 0.08), max(0.06 * (max(levels) - min(levels)), 1.0)
    return AxisFrame(min(bits) - room, max(bits) + room, min(levels) - space, max(levels) + space)


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
            "size": [MARKER if r.on_frontier else SMALL for r in members],
            "symbol": symbol,
            "opacity": [1.0 if r.on_frontier else 0.55 for r in members],
        },
        hovertemplate="%{customdata[0]}<br>%{x:.3f} bits, %{y:.2f} dB<extra></extra>",
    )


def _who(row: ComparisonRow) -> list[str]:
    """Name of a point, and the text that makes it A or B."""
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


def place_labels(
    rows: Sequence[ComparisonRow], chosen: Sequence[tuple[ComparisonRow, str]], frame: AxisFrame
) -> list[tuple[ComparisonRow, Label]]:
    """Labels of ``chosen``, A and B by letter, then of the points on the frontier, each where it meets no
    label, point or edge at any of ``WIDTHS``.

    What has no room is left out; of A and B the letter stays, over points if it must be.
    """
    edge = list(_spread_out([r for r in rows if r.on_frontier]))
    names = _short_names([*edge, *(row for row, _ in chosen)])
    taken = {str(r.scheme) for r, _ in chosen}
    spots = [frame.spot(r, RING, f"{letter}  {names[str(r.scheme)]}", letter) for r, letter in chosen]
    for row in edge:
        name = str(row.scheme)
        spots.append(frame.spot(row, MARKER, "" if name in taken else names[name]))
    owners = [*(row for row, _ in chosen), *edge]
    spots += [frame.spot(row, SMALL) for row in rows if not row.on_frontier]
    labels = place(spots, HEIGHT - ABOVE - BELOW, FONT_SIZE, WIDTHS, AWAY)
    return [(row, label) for row, label in zip(owners, labels, strict=False) if label is not None]


def _spread_out(edge: Sequence[ComparisonRow]) -> Iterator[ComparisonRow]:
    """The points in an order in which the first few already stand far apart: every eighth, fourth, second."""
    ordered = sorted(edge, key=lambda r: r.report.bits.total)
    seen: set[int] = set()
    for step in (8, 4, 2, 1):
        for index in range(0, len(ordered), step):
            if index not in seen:
                seen.add(index)
                yield ordered[index]


def _short_names(rows: Sequence[ComparisonRow]) -> dict[str, str]:
    """Map each scheme's text to its label without the part in brackets, unless another of ``rows`` would
    have the same label; the hover text has all of it."""
    full = {str(row.scheme): row.scheme.label.replace(", asymmetric", ", asym.") for row in rows}
    short = {text: caption(label) for text, label in full.items()}
    common = Counter(short.values())
    return {text: label if common[short[text]] > 1 else short[text] for text, label in full.items()}
