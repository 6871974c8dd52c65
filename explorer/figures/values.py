"""Distribution of values before and after quantization above the representable values, with tails beside
it."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import plotly.graph_objects as go

from explorer import words
from explorer.analysis.histograms import Histogram
from explorer.analysis.spread import Spread
from explorer.analysis.tensor import Side
from explorer.figures.style import (
    EXTRA,
    GRID,
    ORIGINAL,
    POWERS,
    A,
    B,
    Dict,
    add_buttons,
    caption,
    captioned,
    figure,
    fit_height,
    legend_below,
    note,
)

ROW, HALF, TICKS = 300, 170, 26
"""Pixels: the bars of one side, those of each of two, and each side's representable values beside them."""
TAIL, GAP = 0.14, 0.015
"""Widths of a tail's panel and of the gap beside it, in parts of the plot."""
MOST_TICKS = 512
BARS = ("y", "y4")
"""Vertical axes of A's and B's bars."""


def values_figure(
    before: Spread, sides: Sequence[Side], levels: Sequence[np.ndarray], name: str
) -> go.Figure:
    """Draw the distribution of the values before and after, for one or two sides on one axis: of two, A's
    bars go up and B's down.

    ``levels``: values that the inspected block can represent under each side, in a strip for each side below
    A's bars. The share of elements in each bin is drawn logarithmically; values beyond the central range are
    in panels at the left and the right, in growing bins. A zoom is kept for one tensor only.
    """
    tall = HALF if len(sides) > 1 else ROW
    inside = (tall + TICKS) * len(sides)
    fig = legend_below(figure("value", "", f"{name} values"))
    captioned(fig, "Values before and after", name, [side.label for side in sides], before.total)
    _switch(fig, before, sides)
    edges = before.middle.edges
    identity = f"values {edges[0]:.6g} {edges[-1]:.6g} {before.total}"
    fit_height(fig, inside).update_layout(uirevision=identity, barmode="overlay")
    _columns(fig, before, len(sides), 1 - (tall + TICKS / 2) / inside)
    _rows(fig, before, len(sides), tall, inside)
    named = next((row for row, block in enumerate(levels) if 0 < len(block) <= MOST_TICKS), 0)
    for row, (letter, side, block, color) in enumerate(zip("AB", sides, levels, (A, B), strict=False)):
        label, told = caption(side.label), "after"
        if len(sides) > 1:
            label, told = f"{letter}  {label}", f"after, {letter}"
        look: Dict = {"type": "bar", "marker": {"color": color, "line": {"width": 0}}, "yaxis": BARS[row]}
        _histogram(fig, side.analysis.after, label, told, 0.0, legendgroup=color, legendrank=row + 2, **look)
        _ticks(fig, row, block, color, row == named)
        line = {"shape": "hvh", "width": 1.5, "color": ORIGINAL}
        look = {"type": "scatter", "mode": "lines", "line": line, "yaxis": BARS[row], "showlegend": row == 0}
        # An empty bin lies below the logarithmic axis.
        floor = 0.01 / before.total
        _histogram(fig, before, "before", "before", floor, legendgroup="before", legendrank=1, **look)
    return fig


def _limits(before: Spread, sides: Sequence[Side]) -> dict[str, list[float]]:
    """Return the range of the shares for a linear and a logarithmic axis."""
    spreads = [before, *(side.analysis.after for side in sides)]
    parts = [s.share(part) for s in spreads for part in (s.middle, s.below, s.above) if len(part.counts)]
    top = max(float(share.max()) for share in parts)
    floor = 0.6 / before.total
    return {
        "linear": [0, 1.08 * top],
        "log": [math.log10(floor), math.log10(top) + 0.12 * math.log10(top / floor) + 0.05],
    }


def _switch(fig: go.Figure, before: Spread, sides: Sequence[Side]) -> None:
    limits = _limits(before, sides)
    options: dict[str, Dict] = {}
    for kind, limit in limits.items():
        options[kind] = {}
        for axis, ends in zip(("yaxis", "yaxis4")[: len(sides)], (limit, limit[::-1]), strict=False):
            dtick = 1 if kind == "log" else None
            options[kind] |= {f"{axis}.type": kind, f"{axis}.range": ends, f"{axis}.dtick": dtick}
    add_buttons(fig, list(options.items()))
    fig.update_yaxes(type="log", range=limits["log"], dtick=1)
    if len(sides) > 1:
        mirrored = {**fig.layout.yaxis.to_plotly_json(), "range": limits["log"][::-1]}
        fig.update_layout(yaxis4=mirrored)


def _columns(fig: go.Figure, before: Spread, sides: int, beside: float) -> None:
    """Lay out the three horizontal axes: the central range, and the tails that there are; ``beside``: the
    height of the first strip of levels, in parts of the plot."""
    lower, upper = len(before.below.counts) > 0, len(before.above.counts) > 0
    left, right = TAIL * lower, 1 - TAIL * upper
    edges = before.middle.edges
    ends = [float(edges[0]), float(edges[-1])]
    domain = [left + GAP * lower, right - GAP * upper]
    fig.update_xaxes(domain=domain, range=ends, anchor="y4" if sides > 1 else "y2", **POWERS)
    common = {**fig.layout.xaxis.to_plotly_json(), "title": None, "range": [0, 1], "fixedrange": True}
    for there, tail, axis, ends in (
        (lower, before.below, "xaxis2", [0, left]),
        (upper, before.above, "xaxis3", [right, 1]),
    ):
        if there:
            fig.update_layout({axis: {**common, "domain": ends, **_tail_axis(tail)}})
            _tail_panel(fig, ends, before, tail, beside)


def _tail_axis(tail: Histogram) -> Dict:
    """Return lines at powers of ten."""
    edges = tail.edges
    powers = [s * 10.0**p for s in (-1, 1) for p in range(-45, 39) if edges[0] < s * 10.0**p < edges[-1]]
    at = np.interp(powers, edges, np.linspace(0, 1, len(edges)))
    return {"tickvals": at, "ticktext": [""] * len(at)}


def _tail_panel(
    fig: go.Figure, ends: Sequence[float], before: Spread, tail: Histogram, beside: float
) -> None:
    """Shade a tail's panel, and write the share of elements in it, and the extreme value under it."""
    paper = {"xref": "paper", "yref": "paper"}
    ground = {"type": "rect", "fillcolor": GRID, "opacity": 0.35, "line_width": 0, "layer": "below"}
    fig.add_shape(x0=ends[0], x1=ends[1], y0=0, y1=1, **ground, **paper)
    share = f"{words.number(100 * float(before.share(tail).sum()))} %"
    at = {"x": sum(ends) / 2, "y": beside, "yanchor": "middle"}
    told = "of all elements lie beyond the central range"
    fig.add_annotation(note(share, 11, **at, **paper, hovertext=told))
    lower = ends[0] == 0
    extreme = words.number(float(tail.edges[0 if lower else -1]))
    at = {"x": 0 if lower else 1, "xanchor": "left" if lower else "right", "y": 0, "yanchor": "top"}
    told = "the least value" if lower else "the largest value"
    fig.add_annotation(note(extreme, 11, **at, **paper, yshift=-21, hovertext=told))


def _rows(fig: go.Figure, before: Spread, sides: int, tall: int, inside: int) -> None:
    """Lay out the vertical axes: shares, ``tall`` pixels each, and between them without any labels a strip of
    levels for each side."""
    strip = {"range": [0, 1], "visible": False, "fixedrange": True, "anchor": "x"}
    starts = [1 - (tall + TICKS * (row + 1)) / inside for row in range(sides)]
    fig.update_layout(
        {f"yaxis{2 + row}": {**strip, "domain": [at, at + TICKS / inside]} for row, at in enumerate(starts)}
    )
    beside = "x2" if len(before.below.counts) else "x"
    domains = ([1 - tall / inside, 1], [0, tall / inside])
    for axis, domain in zip(("yaxis", "yaxis4")[:sides], domains, strict=False):
        fig.layout[axis].update(domain=domain, anchor=beside, title_text="share of elements", tickformat="~%")


def _histogram(fig: go.Figure, spread: Spread, name: str, told: str, floor: float, **look: Any) -> None:
    """Add the shares of a distribution, ``floor`` at least, in the centre and in the tails, in bins at even
    distances; the tails' hover has their edges."""

    def shares(part: Histogram) -> np.ndarray:
        return np.maximum(spread.share(part), floor).astype(np.float32)

    edges = spread.middle.edges
    place: Dict = {"x0": float(edges[0] + edges[1]) / 2, "dx": float(edges[1] - edges[0])}
    hover = f"{told}, %{{x:.4g}}: %{{y:.3~%}}" + EXTRA
    fig.add_trace({**place, "y": shares(spread.middle), "name": name, "hovertemplate": hover, **look})
    look = {**look, "legendrank": None, "showlegend": False}
    for axis, tail in (("x2", spread.below), ("x3", spread.above)):
        if bins := len(tail.counts):
            ends = np.stack([tail.edges[:-1], tail.edges[1:]], 1).astype(np.float32)
            hover = f"{told}, %{{customdata[0]:.4g}} to %{{customdata[1]:.4g}}: %{{y:.3~%}}" + EXTRA
            place = {"x0": 0.5 / bins, "dx": 1 / bins, "xaxis": axis}
            fig.add_trace({**place, "y": shares(tail), "customdata": ends, "hovertemplate": hover, **look})


def _ticks(fig: go.Figure, row: int, levels: np.ndarray, color: str, named: bool) -> None:
    """Mark the values that the inspected block can represent."""
    if not 0 < len(levels) <= MOST_TICKS:
        return
    fig.add_scatter(
        x=levels.astype(np.float32),
        y=np.full(len(levels), 0.5, np.float32),
        yaxis=f"y{2 + row}",
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 11, "color": color, "line": {"width": 1.2}},
        name="levels of the inspected block",
        legendgroup="levels",
        legendrank=4,
        showlegend=named,
        hovertemplate="%{x:.5g}, a value that the inspected block can represent" + EXTRA,
    )
