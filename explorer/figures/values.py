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

ROW, BETWEEN, TICKS = 210, 24, 26
"""Pixels: a row's bars, the room between two rows, and the representable values under a row's bars."""
TAIL, GAP = 0.14, 0.015
"""Widths of a tail's panel and of the gap beside it, in parts of the plot."""
MOST_TICKS = 512


def values_figure(
    before: Spread, sides: Sequence[Side], levels: Sequence[np.ndarray], name: str
) -> go.Figure:
    """Distribution of the values before and after, one row per side over the same axis.

    ``levels`` are the values that the inspected block can represent under each side. The share of elements
    in each bin is drawn logarithmically; values beyond the central range are in panels at the left and the
    right, in growing bins.
    """
    rows = len(sides)
    inside = rows * (ROW + TICKS) + (rows - 1) * BETWEEN
    fig = figure("value", "", f"{name} values")
    legend_below(fig)
    _switch(fig, before, sides)
    margin = fig.layout.margin
    fig.update_layout(height=inside + margin.t + margin.b, uirevision=_identity(before))
    _columns(fig, before, rows, inside)
    named = next((row for row, block in enumerate(levels) if 0 < len(block) <= MOST_TICKS), 0)
    for row, (side, block, color) in enumerate(zip(sides, levels, (A, B), strict=False)):
        top = inside - row * (ROW + TICKS + BETWEEN)
        domains = [(top - ROW) / inside, top / inside], [(top - ROW - TICKS) / inside, (top - ROW) / inside]
        _row(fig, row, domains, before)
        _bars(fig, row, side, color, f"after, {'AB'[row]}" if rows > 1 else "after")
        _outline(fig, row, before)
        _ticks(fig, row, block, color, row == named)
        _caption(fig, row, f"{'AB'[row]}  {caption(side.label)}" if rows > 1 else caption(side.label), color)
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
    axes = [_name("yaxis", 2 * row + 1) for row in range(len(sides))]
    limits = _limits(before, sides)
    options: list[tuple[str, dict[str, object]]] = []
    for kind, limit in limits.items():
        new = {"type": kind, "range": limit, "dtick": 1 if kind == "log" else None}
        options.append((kind, {f"{axis}.{key}": value for axis in axes for key, value in new.items()}))
    add_buttons(fig, options)
    for axis in axes:
        fig.update_layout({axis: {"type": "log", "range": limits["log"], "dtick": 1}})


def _name(axis: str, number: int) -> str:
    """plotly's name of an axis: the first has no number."""
    return axis if number == 1 else f"{axis}{number}"


def _columns(fig: go.Figure, before: Spread, rows: int, inside: int) -> None:
    """The three horizontal axes: the central range, and the tails that there are."""
    lower, upper = len(before.below.counts) > 0, len(before.above.counts) > 0
    anchor = f"y{2 * rows}"
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


def _row(fig: go.Figure, row: int, domains: tuple[list[float], list[float]], before: Spread) -> None:
    """A row's vertical axes: shares above, and without any labels the strip of representable values."""
    style = fig.layout.yaxis.to_plotly_json()
    shares, strip = _name("yaxis", 2 * row + 1), _name("yaxis", 2 * row + 2)
    fig.update_layout(
        {
            shares: {
                **style,
                "domain": domains[0],
                "anchor": "x2" if len(before.below.counts) else "x",
                "title": {**style["title"], "text": "share of elements"},
                "tickformat": "~%",
            },
            strip: {
                "domain": domains[1],
                "anchor": "x",
                "range": [0, 1],
                "visible": False,
                "fixedrange": True,
            },
        }
    )


def _bars(fig: go.Figure, row: int, side: Side, color: str, name: str) -> None:
    """Draw the counts after quantization, in the centre and in the tails."""
    after, common = (
        side.analysis.after,
        {
            "yaxis": _name("y", 2 * row + 1),
            "marker": {"color": color, "line": {"width": 0}},
            "legendgroup": color,
        },
    )
    edges = after.middle.edges
    fig.add_bar(
        x0=float(edges[0] + edges[1]) / 2,
        dx=float(edges[1] - edges[0]),
        y=after.share(after.middle).astype(np.float32),
        name=name,
        legendrank=row + 2,
        hovertemplate="after, %{x:.4g}: %{y:.3~%}<extra></extra>",
        **common,
    )
    for axis, tail in (("x2", after.below), ("x3", after.above)):
        if len(tail.counts):
            fig.add_bar(xaxis=axis, showlegend=False, **_tail_bins(after, tail, "after"), **common)


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


def _outline(fig: go.Figure, row: int, before: Spread) -> None:
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
        yaxis=_name("y", 2 * row + 1),
        name="before",
        legendrank=1,
        showlegend=row == 0,
        hovertemplate="before, %{x:.4g}: %{y:.3~%}<extra></extra>",
        **line,
    )
    for axis, tail in (("x2", before.below), ("x3", before.above)):
        if len(tail.counts):
            bins = _tail_bins(before, tail, "before")
            bins["y"] = np.maximum(before.share(tail), floor).astype(np.float32)
            fig.add_scatter(xaxis=axis, yaxis=_name("y", 2 * row + 1), showlegend=False, **bins, **line)


def _ticks(fig: go.Figure, row: int, levels: np.ndarray, color: str, named: bool) -> None:
    """Mark the values that the inspected block can represent."""
    if not 0 < len(levels) <= MOST_TICKS:
        return
    fig.add_scatter(
        x=levels.astype(np.float32),
        y=np.full(len(levels), 0.6, np.float32),
        yaxis=f"y{2 * row + 2}",
        mode="markers",
        marker={"symbol": "line-ns-open", "size": 11, "color": color, "line": {"width": 1.2}},
        name="representable",
        legendgroup="levels",
        legendrank=4,
        showlegend=named,
        hovertemplate="%{x:.5g}, a value that the inspected block can represent<extra></extra>",
    )


def _caption(fig: go.Figure, row: int, text: str, color: str) -> None:
    fig.add_annotation(
        text=text,
        x=0.005,
        xref="x domain",
        y=1,
        yref=f"{_name('y', 2 * row + 1)} domain",
        xanchor="left",
        yanchor="top",
        showarrow=False,
        font={"size": 12, "color": color},
    )
