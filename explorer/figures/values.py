"""The values before and after over the grid of representable values, with the tails beside the centre."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from explorer import words
from explorer.analysis.histograms import Histogram
from explorer.analysis.spread import Spread
from explorer.analysis.tensor import Side
from explorer.figures.style import GRID, ORIGINAL, POWERS, A, B, add_buttons, caption, figure, legend_below

ROW, TICKS = 300, 26
"""Pixels: the bars, and each side's representable values under them."""
TAIL, GAP = 0.14, 0.015
"""Widths of a tail's panel and of the gap beside it, in parts of the plot."""
MOST_TICKS = 512


def values_figure(
    before: Spread, sides: Sequence[Side], levels: Sequence[np.ndarray], name: str
) -> go.Figure:
    """Distribution of the values before and after, by one or two sides over each other on one axis.

    ``levels`` are the values that the inspected block can represent under each side, a strip each under the
    bars. The share of elements in each bin is drawn logarithmically; values beyond the central range are in
    panels at the left and the right, in growing bins.
    """
    inside = ROW + TICKS * len(sides)
    fig = figure("value", "", f"{name} values")
    legend_below(fig)
    _switch(fig, before, sides)
    margin = fig.layout.margin
    height = inside + margin.t + margin.b
    fig.update_layout(height=height, uirevision=_identity(before), barmode="overlay")
    _columns(fig, before, len(sides), inside)
    _rows(fig, before, len(sides), inside)
    named = next((row for row, block in enumerate(levels) if 0 < len(block) <= MOST_TICKS), 0)
    for row, (side, block, color) in enumerate(zip(sides, levels, (A, B), strict=False)):
        label = caption(side.label)
        _bars(fig, row, side, color, f"{'AB'[row]}  {label}" if len(sides) > 1 else label, len(sides))
        _ticks(fig, row, block, color, row == named)
    _outline(fig, before)
    return fig


def _identity(before: Spread) -> str:
    """The same for all schemes on one tensor: its bins. A zoom applies to one tensor only."""
    return f"values {before.middle.edges[0]:.6g} {before.middle.edges[-1]:.6g} {before.total}"


def _limits(before: Spread, sides: Sequence[Side]) -> dict[str, list[float]]:
    """The range of the shares' axis for both kinds of axis."""
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
    options: list[tuple[str, dict[str, object]]] = []
    for kind, limit in limits.items():
        new = {"type": kind, "range": limit, "dtick": 1 if kind == "log" else None}
        options.append((kind, {f"yaxis.{key}": value for key, value in new.items()}))
    add_buttons(fig, options)
    fig.update_yaxes(type="log", range=limits["log"], dtick=1)


def _columns(fig: go.Figure, before: Spread, rows: int, inside: int) -> None:
    """The three horizontal axes: the central range, and the tails that there are."""
    lower, upper = len(before.below.counts) > 0, len(before.above.counts) > 0
    anchor = f"y{1 + rows}"
    left, right = TAIL * lower, 1 - TAIL * upper
    edges = before.middle.edges
    fig.update_xaxes(
        domain=[left + GAP * lower, right - GAP * upper],
        range=[float(edges[0]), float(edges[-1])],
        anchor=anchor,
        **POWERS,
    )
    common = {**fig.layout.xaxis.to_plotly_json(), "title": None, "range": [0, 1], "fixedrange": True}
    if lower:
        fig.update_layout(xaxis2={**common, "domain": [0, left], **_tail_axis(before.below)})
        _tail_panel(fig, 0, left, before, before.below, inside)
    if upper:
        fig.update_layout(xaxis3={**common, "domain": [right, 1], **_tail_axis(before.above)})
        _tail_panel(fig, right, 1, before, before.above, inside)


def _tail_axis(tail: Histogram) -> dict[str, object]:
    """Lines at powers of ten."""
    edges = tail.edges
    powers = [s * 10.0**p for s in (-1, 1) for p in range(-45, 39) if edges[0] < s * 10.0**p < edges[-1]]
    at = np.interp(powers, edges, np.linspace(0, 1, len(edges)))
    return {"tickvals": at, "ticktext": [""] * len(at)}


def _tail_panel(
    fig: go.Figure, left: float, right: float, before: Spread, tail: Histogram, inside: int
) -> None:
    """The ground of a tail's panel, the share of elements that lie in it, and the extreme value under it."""
    place: dict[str, object] = {"xref": "paper", "yref": "paper"}
    look: dict[str, object] = {**place, "showarrow": False, "font": {"size": 11}}
    fig.add_shape(
        type="rect",
        x0=left,
        x1=right,
        y0=0,
        y1=1,
        fillcolor=GRID,
        opacity=0.35,
        line_width=0,
        layer="below",
        **place,
    )
    fig.add_annotation(
        text=f"{words.number(100 * float(before.share(tail).sum()))} %",
        hovertext="of all elements lie beyond the central range",
        x=(left + right) / 2,
        y=1 - (ROW + TICKS / 2) / inside,
        yanchor="middle",
        **look,
    )
    lower = left == 0
    fig.add_annotation(
        text=words.number(float(tail.edges[0 if lower else -1])),
        hovertext="the least value" if lower else "the largest value",
        x=0 if lower else 1,
        xanchor="left" if lower else "right",
        y=0,
        yanchor="top",
        yshift=-21,
        **look,
    )


def _rows(fig: go.Figure, before: Spread, sides: int, inside: int) -> None:
    """The vertical axes: shares, and without any labels a strip of representable values for each side."""
    strip = {"range": [0, 1], "visible": False, "fixedrange": True, "anchor": "x"}
    starts = [1 - (ROW + TICKS * (row + 1)) / inside for row in range(sides)]
    fig.update_layout(
        {f"yaxis{2 + row}": {**strip, "domain": [at, at + TICKS / inside]} for row, at in enumerate(starts)}
    )
    fig.layout.yaxis.update(
        domain=[1 - ROW / inside, 1],
        anchor="x2" if len(before.below.counts) else "x",
        title_text="share of elements",
        tickformat="~%",
    )


def _bars(fig: go.Figure, row: int, side: Side, color: str, name: str, sides: int) -> None:
    """Draw the counts after quantization, in the centre and in the tails; of two sides one shows through the
    other."""
    after, letter = side.analysis.after, "AB"[row]
    common = {
        "marker": {"color": color, "line": {"width": 0}},
        "legendgroup": color,
        "opacity": 0.6 if sides > 1 else 1.0,
    }
    told = f"after, {letter}" if sides > 1 else "after"
    edges = after.middle.edges
    fig.add_bar(
        x0=float(edges[0] + edges[1]) / 2,
        dx=float(edges[1] - edges[0]),
        y=after.share(after.middle).astype(np.float32),
        name=name,
        legendrank=row + 2,
        hovertemplate=f"{told}, %{{x:.4g}}: %{{y:.3~%}}<extra></extra>",
        **common,
    )
    for axis, tail in (("x2", after.below), ("x3", after.above)):
        if len(tail.counts):
            fig.add_bar(xaxis=axis, showlegend=False, **_tail_bins(after, tail, told), **common)


def _tail_bins(spread: Spread, tail: Histogram, what: str) -> dict[str, object]:
    """The bins of a tail at even distances, with their edges for the hover."""
    bins = len(tail.counts)
    return {
        "x0": 0.5 / bins,
        "dx": 1 / bins,
        "y": spread.share(tail).astype(np.float32),
        "customdata": np.stack([tail.edges[:-1], tail.edges[1:]], 1).astype(np.float32),
        "hovertemplate": what + ", %{customdata[0]:.4g} to %{customdata[1]:.4g}: %{y:.3~%}<extra></extra>",
    }


def _outline(fig: go.Figure, before: Spread) -> None:
    """The tensor itself as steps; an empty bin's lie below the logarithmic axis."""
    line = {
        "mode": "lines",
        "line": {"shape": "hvh", "width": 1.5, "color": ORIGINAL},
        "legendgroup": "before",
    }
    edges, floor = before.middle.edges, 0.01 / before.total
    fig.add_scatter(
        x0=float(edges[0] + edges[1]) / 2,
        dx=float(edges[1] - edges[0]),
        y=np.maximum(before.share(before.middle), floor).astype(np.float32),
        name="before",
        legendrank=1,
        hovertemplate="before, %{x:.4g}: %{y:.3~%}<extra></extra>",
        **line,
    )
    for axis, tail in (("x2", before.below), ("x3", before.above)):
        if len(tail.counts):
            bins = _tail_bins(before, tail, "before")
            bins["y"] = np.maximum(before.share(tail), floor).astype(np.float32)
            fig.add_scatter(xaxis=axis, showlegend=False, **bins, **line)


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
        hovertemplate="%{x:.5g}, a value that the inspected block can represent<extra></extra>",
    )
