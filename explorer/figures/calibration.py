"""Figures of calibration: ranges over a histogram, objectives, thresholds by amount of data."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from explorer import words
from explorer.analysis.calibration import CalibrationReport, ChosenRange
from explorer.figures.style import ORIGINAL, POWERS, A, axis_look, empty, figure, legend_below, translucent
from explorer.schemes.calibrators import CALIBRATORS

COLORS = {"minmax": "#56B4E9", "percentile": "#E69F00", "mse": "#009E73", "entropy": "#CC79A7", "own": A}
"""A colour a method, none of which is that of a scheme; the range chosen by hand is scheme A's."""

HANDLES = ("low", "high")
"""Names of the two shapes that the visitor drags."""

_BAND, _HISTOGRAM = 18, 230
"""Pixels: the height of one calibrator's bar, and of the histogram."""
_PANEL, _BETWEEN = 96, 18
"""Pixels: the height of one objective's panel, and between two."""


def range_figure(report: CalibrationReport, low: float, high: float, name: str, color: str = A) -> go.Figure:
    """The histogram of the values with a range [low, high] on it, over the ranges that the methods choose.

    Counts are logarithmic, so that the tails show. The range's two ends are the shapes called ``HANDLES``, in
    this order: with plotly's ``edits.shapePosition`` they are dragged, and their ``x0`` is the new end. What
    lies outside the range, and is clipped, is shaded.
    """
    bands = [choice for choice in report.choices if choice.method != "own"]
    inside = _HISTOGRAM + _BAND * len(bands) + 8
    fig = figure("value", "number of elements", f"{name} ranges")
    fig.update_layout(height=inside + fig.layout.margin.t + fig.layout.margin.b, showlegend=False)
    centres = (report.edges[1:] + report.edges[:-1]) / 2
    fig.add_bar(
        x=centres.astype(np.float32),
        y=report.counts,
        width=float(report.edges[1] - report.edges[0]),
        marker={"color": ORIGINAL, "line": {"width": 0}},
        opacity=0.7,
        hovertemplate="%{x:.4g}: %{y:,}<extra></extra>",
    )
    room = 0.04 * float(report.edges[-1] - report.edges[0])
    lows, highs = [choice.low for choice in bands], [choice.high for choice in bands]
    ends = min(float(report.edges[0]), low, *lows) - room, max(float(report.edges[-1]), high, *highs) + room
    _handles(fig, (low, high), ends, color)
    _bands(fig, bands, inside)
    top = math.log10(max(int(report.counts.max()), 1)) + 0.15
    fig.update_xaxes(range=ends, **POWERS)
    counts: dict[str, object] = {
        "type": "log",
        "range": [-0.3, top],
        "domain": [0, _HISTOGRAM / inside],
        "dtick": 1,
    }
    fig.update_layout(yaxis={**counts, "tickformat": ",d"})
    fig.update_layout(uirevision=f"range {report.edges[0]:.6g} {report.edges[-1]:.6g}")
    return fig


def _handles(fig: go.Figure, ends: tuple[float, float], outer: tuple[float, float], color: str) -> None:
    """Two draggable lines, before all other shapes, and shading of the clipped parts."""
    for handle, end in zip(HANDLES, ends, strict=True):
        fig.add_shape(
            name=handle,
            type="line",
            x0=end,
            x1=end,
            y0=0,
            y1=1,
            xref="x",
            yref="y domain",
            line={"color": color, "width": 3},
        )
    for end, far in zip(ends, outer, strict=True):
        fig.add_shape(
            type="rect",
            x0=far,
            x1=end,
            y0=0,
            y1=1,
            xref="x",
            yref="y domain",
            layer="below",
            line_width=0,
            fillcolor=translucent(color, 0.1),
            editable=False,
        )


def _bands(fig: go.Figure, choices: Sequence[ChosenRange], inside: int) -> None:
    """Draw each method's range as a separate bar above the histogram, labelled at the left."""
    for index, choice in enumerate(choices):
        fig.add_scatter(
            x=[choice.low, choice.high],
            y=[index, index],
            yaxis="y2",
            mode="lines+markers",
            line={"color": COLORS[choice.method], "width": 4},
            marker={
                "symbol": "line-ns-open",
                "size": 11,
                "line": {"width": 2, "color": COLORS[choice.method]},
            },
            customdata=[choice.method] * 2,
            hovertemplate=f"{choice.label}: {words.number(choice.low)} to {words.number(choice.high)}, "
            f"{choice.report.sqnr_db:.2f} dB<extra></extra>",
        )
    fig.update_layout(
        yaxis2={
            "domain": [1 - _BAND * len(choices) / inside, 1],
            "range": [len(choices) - 0.5, -0.5],
            "tickvals": list(range(len(choices))),
            "ticktext": [choice.label for choice in choices],
            "tickfont": {"size": 11},
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
            "automargin": True,
        }
    )


def objectives_figure(report: CalibrationReport, name: str) -> go.Figure:
    """What the methods minimise or fix, over the threshold, in a panel each: the squared error, the KL
    divergence, the share of values beyond the threshold. Each method's point is in the panel of its own
    quantity, by its name; those without one (min-max, a range by hand) are in that of the squared error."""
    fig = figure("threshold on |x|", "", f"{name} objectives")
    curves = (
        ("mse", report.squared_error, "squared error<br>/ signal", "squared error / signal"),
        ("entropy", report.kl, "KL divergence,<br>nats", "KL divergence in nats"),
        ("percentile", report.beyond, "share of values<br>beyond", "share of values beyond the threshold"),
    )
    inside = len(curves) * _PANEL + (len(curves) - 1) * _BETWEEN
    owners = [method for method, *_ in curves]
    layout: dict[str, object] = {"showlegend": False}
    for index, (method, values, title, label) in enumerate(curves):
        axis, top = "" if index == 0 else str(index + 1), 1 - index * (_PANEL + _BETWEEN) / inside
        layout[f"yaxis{axis}"] = {
            **axis_look(title),
            "type": "log",
            "exponentformat": "power",
            "dtick": _decades(values),
            "domain": [max(top - _PANEL / inside, 0), top],
        }
        fig.add_scatter(
            x=report.thresholds,
            y=values,
            yaxis=f"y{axis}",
            mode="lines",
            name=label,
            line={"color": COLORS[method], "width": 2},
            hovertemplate=f"{label} at %{{x:.4g}}: %{{y:.4g}}<extra></extra>",
        )
        own = [c for c in report.choices if (c.method if c.method in owners else "mse") == method]
        _points(fig, report, own, values, f"y{axis}")
    fig.update_layout(layout)
    margin = fig.layout.margin
    ends = [float(report.thresholds[0]), float(report.thresholds[-1])]
    room = 0.04 * (ends[1] - ends[0])
    fig.update_xaxes(**POWERS, anchor=f"y{len(curves)}", range=[ends[0] - room, ends[1] + room])
    fig.update_layout(height=inside + margin.t + margin.b)
    return fig


def _decades(values: np.ndarray) -> int:
    """Decades between the ticks of a panel, for at most four of them."""
    shown = values[np.isfinite(values) & (values > 0)]
    return max(1, math.ceil(math.log10(float(shown.max() / shown.min())) / 3)) if len(shown) else 1


def _points(
    fig: go.Figure, report: CalibrationReport, choices: Sequence[ChosenRange], values: np.ndarray, axis: str
) -> None:
    """The thresholds that methods chose, on the curve of ``values``, each with its name towards the middle of
    the panel, one above and the next below the curve."""
    middle = float(report.thresholds[0] + report.thresholds[-1]) / 2
    ordered = sorted(choices, key=lambda choice: choice.threshold)
    for place, choice in enumerate(ordered):
        here, before = np.interp([choice.threshold, 0.93 * choice.threshold], report.thresholds, values)
        side = "right" if choice.threshold < middle else "left"
        above = place % 2 == 0 if before < 1.5 * here else side == "right"  # beside a curve that falls
        fig.add_scatter(
            x=[choice.threshold],
            y=[float(here)],
            yaxis=axis,
            mode="markers+text",
            text=[choice.label],
            textposition=f"{'top' if above else 'bottom'} {side}",
            textfont={"size": 11},
            cliponaxis=False,
            marker={"color": COLORS[choice.method], "size": 11, "line": {"width": 1, "color": "#ffffff"}},
            hovertemplate=f"{choice.label}: %{{x:.4g}}<extra></extra>",
        )


def amount_figure(points: Sequence[tuple[int, str, float]], name: str) -> go.Figure:
    """Each method's threshold against the number of rows that it calibrated on: (rows, method, threshold)."""
    if len({rows for rows, _, _ in points}) < 2:
        return empty("one row of data: no amounts to compare", f"{name} amount of data")
    fig = figure("rows of calibration data", "threshold on |x|", f"{name} amount of data", height=300)
    legend_below(fig)
    for method in dict.fromkeys(m for _, m, _ in points):
        fig.add_scatter(
            x=[rows for rows, m, _ in points if m == method],
            y=[threshold for _, m, threshold in points if m == method],
            mode="lines+markers",
            name=CALIBRATORS[method].label,
            line={"color": COLORS[method], "width": 2},
            hovertemplate="%{x} rows: %{y:.4g}<extra></extra>",
        )
    amounts = sorted({rows for rows, _, _ in points})
    fig.update_xaxes(type="log", tickvals=amounts, ticktext=[f"{n:,}" for n in amounts])
    fig.update_yaxes(**POWERS)
    return fig
