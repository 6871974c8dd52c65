"""The Speed section's first figure: the time of every product at one shape."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.figures import style
from explorer.figures.products import (
    NOTHING,
    Dot,
    Marked,
    add_dots,
    color_of,
    products_figure,
    row_axis,
    tagged,
)
from explorer.figures.style import MUTED, wrapped
from explorer.products.advice import fastest, usual_of
from explorer.recordings.gemm import GemmTiming

SMALL_M = 64
"""Maximum number of tokens at which a product is memory-bound, so that its rate is given in bytes per
second."""
LEGEND_HEIGHT = 240
TOP, ROW_HEIGHT, SLOW = 230, 29, 4
"""Pixels of legend and axis, as many as a phone needs, and of a row; end of the axis in multiples of the
usual product's time: slower ones are drawn there with an arrow."""


def speed_figure(timings: Sequence[GemmTiming], name: str, marked: Marked | None = None) -> go.Figure:
    """The time of each product's fastest kernel, the fastest product first, on one logarithmic axis with
    torch's baseline and the chip's limit: further left is faster. ``marked``: whose weights A or B has."""
    best, marked = sorted(fastest(timings), key=lambda t: t.seconds), marked or {}
    if not best:
        return style.empty(NOTHING, f"{name} speed")
    figure = products_figure("time (µs), logarithmic", "", f"{name} speed", TOP + ROW_HEIGHT * len(best))
    figure.update_layout(legend={"maxheight": LEGEND_HEIGHT})
    ends = _ends(best)
    _add_ways(figure, best, ends)
    _add_marks(figure, "limit of the chip, not measured", "line-ns", _floors(best), ends)
    _add_marks(figure, "torch", "x-thin", _baselines(best), ends)
    inside = [t for t in best if 1e6 * t.seconds <= ends[1]]
    add_dots(figure, [_dot(t) for t in inside], marked)
    for timing in best[len(inside) :]:
        _name_beyond(figure, timing, ends[1])
    row_axis(figure, {t.label: tagged(t.gemm, wrapped(t.label), marked) for t in best})
    return style.log_axis(figure, "x", ends[0] / 1.1, ends[1] * 1.1)


def _ends(best: Sequence[GemmTiming]) -> tuple[float, float]:
    """The axis' ends in µs: a little before the fastest product, at most ``SLOW`` times the usual
    product's time.
    Slower products are marked at the end."""
    usual = next((t.seconds for t in best if t.gemm == usual_of(best)[0]), best[-1].seconds)
    slowest = max(s for t in best for s in (t.seconds, t.baseline_graph.median_s if t.baseline_graph else 0))
    return 1e6 * best[0].seconds / 1.4, 1e6 * max(min(1.2 * slowest, SLOW * usual), 1.2 * best[0].seconds)


def _name_beyond(figure: go.Figure, t: GemmTiming, end: float) -> None:
    """The time of a product that the axis does not reach, at its end."""
    figure.add_annotation(
        x=math.log10(end),
        y=t.label,
        text=f"{words.duration(t.seconds)} ▸",
        xanchor="right",
        showarrow=False,
        font={"size": 11, "color": color_of(t.gemm)},
        hovertext=_dot(t).hover,
    )


def _dot(t: GemmTiming) -> Dot:
    low, high = words.duration(t.graph.low_s), words.duration(t.graph.high_s)
    times = f"{words.duration(t.seconds)} (10th to 90th percentile {low} to {high})"
    ahead = f"<br>{words.times(t.speedup)} as fast as {t.baseline}" if t.speedup else ""
    hover = f"{t.label}<br>{times}<br>{rate(t)}{ahead}<br>{words.kernel_name(t.variant)}, {t.on_chip}"
    return Dot(t.gemm, t.label, t.native, 1e6 * t.seconds, t.label, hover)


def rate(t: GemmTiming) -> str:
    """Operations a second, or bytes of X, W and Y a second where the tokens are few."""
    if t.shape[0] <= SMALL_M:
        return f"{words.number(t.bytes_moved / t.seconds / 1e9)} GB/s of X, W and Y"
    return f"{words.number(t.tflops)} {'TOP/s' if t.gemm == 'binary' else 'TFLOP/s'}"


def _add_ways(figure: go.Figure, best: Sequence[GemmTiming], ends: tuple[float, float]) -> None:
    """Line from the limit of the chip to the measurement: the remaining gap."""
    rows = [(1e6 * t.floor_s, 1e6 * t.seconds, t.label) for t in best if t.floor_s]
    figure.add_scatter(
        x=[x for floor, time, _ in rows for x in (max(floor, ends[0]), min(time, ends[1]), None)],
        y=[y for *_, label in rows for y in (label, label, None)],
        mode="lines",
        line={"color": style.GRID, "width": 5},
        hoverinfo="skip",
        showlegend=False,
    )


Mark = tuple[float, str, str]
"""Seconds, the row, and the hover text of a mark."""


def _floors(best: Sequence[GemmTiming]) -> list[Mark]:
    return [(t.floor_s, t.label, f"limit {words.duration(t.floor_s)}") for t in best if t.floor_s]


def _baselines(best: Sequence[GemmTiming]) -> list[Mark]:
    return [
        (t.baseline_graph.median_s, t.label, f"{t.baseline}<br>{words.duration(t.baseline_graph.median_s)}")
        for t in best
        if t.baseline_graph
    ]


def _add_marks(
    figure: go.Figure, name: str, symbol: str, marks: Sequence[Mark], ends: tuple[float, float]
) -> None:
    """Marks of one kind; a triangle at the end of the axis marks a slower product."""
    for shape, members in _by_place(marks, ends, symbol).items():
        figure.add_scatter(
            x=[min(max(1e6 * seconds, ends[0]), ends[1]) for seconds, *_ in members],
            y=[row for _, row, _ in members],
            mode="markers",
            name=name,
            legendgroup=name,
            showlegend=shape == symbol,
            marker={"symbol": shape, "size": 9, "color": MUTED, "line": {"width": 2, "color": MUTED}},
            customdata=[[hover] for *_, hover in members],
            hovertemplate="%{customdata[0]}<extra></extra>",
            cliponaxis=False,
        )


def _by_place(marks: Sequence[Mark], ends: tuple[float, float], symbol: str) -> dict[str, list[Mark]]:
    """Marks by their symbols: ``symbol`` within the axis, arrows at its ends."""
    low, high = ends
    return {
        symbol: [mark for mark in marks if low <= 1e6 * mark[0] <= high],
        "triangle-left": [mark for mark in marks if 1e6 * mark[0] < low],
        "triangle-right": [mark for mark in marks if 1e6 * mark[0] > high],
    }
