"""Error against speed: time and output error of every product."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.figures import style
from explorer.figures.labels import Spot, add_label, place
from explorer.figures.products import NOTHING, SCHEME_COLORS, Dot, Marked, add_dots, products_figure
from explorer.figures.style import MUTED, TEXT
from explorer.products.advice import Point

SLOW, HEIGHT, PLOT_HEIGHT, FONT_SIZE = 6, 480, 320, 10
"""Products slower than this multiple of BF16's time are named next to the plot instead of stretching it."""


def tradeoff_figure(points: Sequence[Point], name: str, marked: Marked | None = None) -> go.Figure:
    """Time against the output's error, a point a product sized by W's bytes; the dotted line joins the
    Pareto frontier. Products many times slower than BF16 are named below the legend."""
    title, marked = f"{name} error against speed", marked or {}
    if not points:
        return style.empty(NOTHING, title)
    usual = next((p.seconds for p in points if p.gemm == "bf16"), max(p.seconds for p in points))
    inside = [p for p in points if p.seconds <= SLOW * usual] or list(points)
    figure = products_figure(
        "time (µs), quantizing X included, logarithmic", "SQNR of the output (dB)", title, HEIGHT
    )
    times, errors = [1e6 * p.seconds for p in inside], [p.sqnr_db for p in inside]
    x_ends, y_ends = (min(times) / 1.25, max(times) * 1.25), (min(errors) - 6, max(errors) + 8)
    _add_frontier(figure, sorted((p for p in inside if p.on_frontier), key=lambda p: p.seconds))
    heaviest = max(p.weight_bytes for p in points)
    dots = [_dot(p, heaviest) for p in inside]
    add_dots(figure, dots, marked)
    _add_labels(figure, inside, dots, x_ends, y_ends, marked)
    _name_the_slow(figure, [p for p in points if p not in inside])
    style.log_axis(figure, "x", *x_ends)
    figure.update_yaxes(range=list(y_ends))
    return figure


def _dot(p: Point, heaviest: int) -> Dot:
    measured = f"{words.duration(p.seconds)}, {p.sqnr_db:.1f} dB"
    hover = f"{p.label} ({words.kernel_name(p.variant)})<br>{measured}<br>W {words.bytes_(p.weight_bytes)}"
    size = 6 + 14 * (p.weight_bytes / heaviest) ** 0.5
    return Dot(p.gemm, p.label, p.native, 1e6 * p.seconds, p.sqnr_db, hover, size, not p.on_frontier)


def _add_frontier(figure: go.Figure, edge: Sequence[Point]) -> None:
    figure.add_scatter(
        x=[p.seconds * 1e6 for p in edge],
        y=[p.sqnr_db for p in edge],
        mode="lines",
        name="frontier",
        line={"shape": "hv", "width": 1.5, "color": MUTED, "dash": "dot"},
        hoverinfo="skip",
    )


def _add_labels(
    figure: go.Figure,
    points: Sequence[Point],
    dots: Sequence[Dot],
    x_ends: tuple[float, float],
    y_ends: tuple[float, float],
    marked: Marked,
) -> None:
    """Names of A, of B and of the frontier's points, as space allows; the rest is in the hover text. A point
    of A or B whose name has no room has its letter."""
    low, span = math.log(x_ends[0]), math.log(x_ends[1] / x_ends[0])
    rows = sorted(zip(points, dots, strict=True), key=lambda row: _turn(row[0], points, marked))
    spots = []
    for point, dot in rows:
        scheme = marked.get(point.gemm)
        text = f"{scheme} · {point.label}" if scheme else point.label if point.on_frontier else ""
        share = (point.sqnr_db - y_ends[0]) / (y_ends[1] - y_ends[0])
        radius = dot.size / 2 + (5 if scheme else 0)
        spots.append(Spot((math.log(dot.x) - low) / span, share, radius, text, scheme or ""))
    for (point, dot), label in zip(rows, place(spots, PLOT_HEIGHT, FONT_SIZE), strict=True):
        if label:
            color = SCHEME_COLORS.get(marked.get(point.gemm, ""), TEXT)
            add_label(figure, label, math.log10(dot.x), point.sqnr_db, color, FONT_SIZE)


def _turn(point: Point, points: Sequence[Point], marked: Marked) -> tuple[int, bool]:
    """When a point's name is placed: A's and B's by turns, the fastest of each first; then the frontier."""
    scheme = marked.get(point.gemm)
    if scheme is None:
        return len(points), not point.on_frontier
    rivals = [p for p in points if marked.get(p.gemm) == scheme and p.seconds < point.seconds]
    return len(rivals), scheme == "B"


def _name_the_slow(figure: go.Figure, slow: Sequence[Point]) -> None:
    if slow:
        named = ", ".join(f"{p.label} {words.duration(p.seconds)} at {p.sqnr_db:.0f} dB" for p in slow[:2])
        more = f" and {len(slow) - 2} more" if len(slow) > 2 else ""
        figure.add_annotation(
            text=f"slower, not drawn:<br>{named}{more}",
            x=0,
            y=1,
            xref="paper",
            yref="paper",
            xanchor="left",
            yanchor="top",
            align="left",
            showarrow=False,
            font={"size": FONT_SIZE},
        )
