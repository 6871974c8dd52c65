"""Figures of calibration: ranges over a histogram, objectives, SQNR by the width of blocks' ranges."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go

from explorer import words
from explorer.analysis.calibration import BlockRange, CalibrationReport, ChosenRange
from explorer.figures.labels import WIDTHS, Canvas, Spot, annotation, place, segments_of
from explorer.figures.style import (
    EXTRA,
    ORIGINAL,
    POWERS,
    TEXT,
    A,
    add_line,
    add_points,
    axis_look,
    captioned,
    figure,
    fit_height,
    legend_below,
    marker_look,
    numbered,
    stacked,
    translucent,
)

COLORS = {"minmax": "#56B4E9", "percentile": "#E69F00", "mse": "#009E73", "entropy": "#CC79A7", "own": A}
"""Method -> its colour, none of them a scheme's; the custom range has scheme A's."""

HANDLES = ("low", "high")
"""Names of the two shapes that the visitor drags."""

_BAND, _HISTOGRAM = 18, 230
"""Pixels: the height of one calibrator's bar, and of the histogram."""
_PANEL, _BETWEEN = 110, 18
"""Pixels: the height of one objective's panel, and between two."""
_CURVES = (
    ("mse", "squared_error", "squared error<br>/ signal", "squared error / signal"),
    ("entropy", "kl", "KL divergence,<br>nats", "KL divergence in nats"),
    ("percentile", "beyond", "share of values<br>beyond", "share of values beyond the threshold"),
)
"""Objectives: the method that minimises or fixes each, attribute of a report, axis title, and name."""


def range_figure(report: CalibrationReport, low: float, high: float, name: str) -> go.Figure:
    """Draw the histogram of the values with a range [low, high] on it, below the ranges that the methods
    choose.

    Counts are logarithmic, so that the tails show. The range's two ends are the shapes called ``HANDLES``, in
    this order: with plotly's ``edits.shapePosition`` they are dragged, and their ``x0`` is the new end.
    Values outside the range, which are clipped, are shaded.
    """
    bands = [choice for choice in report.choices if choice.method != "own"]
    inside = _HISTOGRAM + _BAND * len(bands) + 8
    fig = fit_height(figure("value", "number of elements", f"{name} ranges"), inside)
    captioned(fig, "Ranges of the calibrators", name, [report.scheme.label], int(report.counts.sum()))
    first, last = float(report.edges[0]), float(report.edges[-1])
    fig.add_bar(
        x=((report.edges[1:] + report.edges[:-1]) / 2).astype(np.float32),
        y=report.counts,
        width=float(report.edges[1] - report.edges[0]),
        marker={"color": ORIGINAL, "line": {"width": 0}},
        opacity=0.7,
        hovertemplate="%{x:.4g}: %{y:,}" + EXTRA,
    )
    room = 0.04 * (last - first)
    outer = (
        min(first, low, *(choice.low for choice in bands)) - room,
        max(last, high, *(choice.high for choice in bands)) + room,
    )
    tall = {"y0": 0, "y1": 1, "xref": "x", "yref": "y domain"}
    for handle, end in zip(HANDLES, (low, high), strict=True):  # before all other shapes
        fig.add_shape(name=handle, type="line", x0=end, x1=end, **tall, line={"color": A, "width": 3})
    shade = {"layer": "below", "line_width": 0, "fillcolor": translucent(A, 0.1), "editable": False}
    for end, far in zip((low, high), outer, strict=True):
        fig.add_shape(type="rect", x0=far, x1=end, **tall, **shade)
    _add_bands(fig, bands, inside)
    fig.update_xaxes(range=outer, **POWERS)
    top = math.log10(max(int(report.counts.max()), 1)) + 0.15
    counts = {"type": "log", "range": [-0.3, top], "domain": [0, _HISTOGRAM / inside], "dtick": 1}
    identity = f"range {report.edges[0]:.6g} {report.edges[-1]:.6g}"
    return fig.update_layout(yaxis={**counts, "tickformat": ",d"}, showlegend=False, uirevision=identity)


def _add_bands(fig: go.Figure, choices: Sequence[ChosenRange], inside: int) -> None:
    """Draw each method's range as a separate bar above the histogram, labelled at the left."""
    for index, choice in enumerate(choices):
        low, high = words.number(choice.low), words.number(choice.high)
        color = COLORS[choice.method]
        marker = {"symbol": "line-ns-open", "size": 11, "line": {"width": 2, "color": color}}
        hover = f"{choice.label}: {low} to {high}, {choice.report.sqnr_db:.2f} dB"
        more = {"yaxis": "y2", "customdata": [choice.method] * 2, "marker": marker}
        add_line(fig, "", [choice.low, choice.high], [index] * 2, color, hover, width=4, size=11, **more)
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
    """Draw the methods' objectives over the threshold, one panel each: the squared error, the KL divergence,
    and the share of values beyond the threshold.

    Each method's point lies in the panel of its own objective, with its name; methods without an objective
    (min-max, a custom range) are in the panel of the squared error.
    """
    fig = figure("threshold on |x|", "", f"{name} objectives")
    captioned(fig, "Objectives of the calibrators", name, [report.scheme.label], int(report.counts.sum()))
    ends = [float(report.thresholds[0]), float(report.thresholds[-1])]
    room = 0.04 * (ends[1] - ends[0])
    x_range = [ends[0] - room, ends[1] + room]
    owners = [method for method, *_ in _CURVES]
    layout: dict[str, object] = {"showlegend": False}
    for index, (method, attribute, title, label) in enumerate(_CURVES):
        values, axis = getattr(report, attribute), numbered("y", index)
        shown = np.log10(values[np.isfinite(values) & (values > 0)])
        y_ends = (float(shown.min()), float(shown.max())) if len(shown) else (0.0, 1.0)
        span = y_ends[1] - y_ends[0] or 1.0
        y_range = [y_ends[0] - 0.35 * span, y_ends[1] + 0.1 * span]  # names fit below the least
        layout[numbered("yaxis", index)] = {
            **axis_look(title),
            "type": "log",
            "exponentformat": "power",
            "dtick": max(1, math.ceil(span / 3)),  # at most four labels
            "domain": stacked(len(_CURVES), _PANEL, _BETWEEN)[index],
            "range": y_range,
        }
        hover = f"{label} at %{{x:.4g}}: %{{y:.4g}}"
        add_line(fig, label, report.thresholds, values, COLORS[method], hover, yaxis=axis)
        own = [c for c in report.choices if (c.method if c.method in owners else "mse") == method]
        _add_points(fig, report, own, values, axis, x_range, y_range)
    fig.update_layout(layout)
    fig.update_xaxes(**POWERS, anchor=f"y{len(_CURVES)}", range=x_range)
    return fit_height(fig, len(_CURVES) * _PANEL + (len(_CURVES) - 1) * _BETWEEN)


def _add_points(
    fig: go.Figure,
    report: CalibrationReport,
    choices: Sequence[ChosenRange],
    values: np.ndarray,
    axis: str,
    x_ends: Sequence[float],
    y_ends: Sequence[float],
) -> None:
    """Add the thresholds that methods chose on the curve of ``values``, with their names beside it."""

    def shares(x: np.ndarray, y: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        logs = np.log10(np.maximum(y, 1e-300))
        return (x - x_ends[0]) / (x_ends[1] - x_ends[0]), (logs - y_ends[0]) / (y_ends[1] - y_ends[0])

    chosen = np.array([choice.threshold for choice in choices])
    heights = np.interp(chosen, report.thresholds, values)
    spots = [
        Spot(x, y, 6, choice.label if 0 <= y <= 1 else "", essential=True)
        for choice, x, y in zip(choices, *shares(chosen, heights), strict=True)
    ]
    x, y = (share.clip(0, 1).tolist() for share in shares(report.thresholds, values))
    curve = segments_of(list(zip(x, y, strict=True)))
    labels = place(spots, Canvas.of(WIDTHS, [_PANEL], 11), curve)
    for choice, height, spot, label in zip(choices, heights.tolist(), spots, labels, strict=True):
        look = marker_look(COLORS[choice.method], 11, edge=1, rim="#ffffff")
        hover = f"{choice.label}: %{{x:.4g}}"
        add_points(fig, choice.label, [choice.threshold], [height], look, hover, yaxis=axis, cliponaxis=False)
        if label:
            at = choice.threshold, math.log10(height)
            fig.add_annotation({**annotation(spot, label, at, TEXT, 11), "yref": axis})


def share_figure(
    choices: Sequence[BlockRange], curve: Sequence[tuple[float, float]], own: float, name: str
) -> go.Figure:
    """Draw the SQNR over the width of the blocks' ranges, as a share of those from the smallest to the
    largest value: the ``curve`` of (share, dB), a point for each rule, and the share ``own`` as a line.

    The line is the only shape: with plotly's ``edits.shapePosition`` it is dragged, and its ``x0`` is the new
    share in percent. A point's data are the changes of the page's address that make its scheme A.
    """
    label = choices[0].scheme.label if choices else ""
    fig = legend_below(figure("width of the ranges, % of min-max", "SQNR, dB", f"{name} ranges"), 2)
    x, y = zip(*((100 * share, db) for share, db in curve), strict=True) if curve else ((), ())
    add_line(fig, "every block by the same share", x, y, ORIGINAL, "%{x:.0f} %: %{y:.2f} dB")
    for choice in choices:
        look = marker_look(COLORS[choice.method], 12, edge=1, rim="#ffffff")
        at = [100 * choice.share], [choice.report.sqnr_db]
        hover = f"{choice.label}: %{{x:.0f}} %, %{{y:.2f}} dB"
        data = {"customdata": [{"set": {"scheme": str(choice.scheme)}}], "cliponaxis": False}
        add_points(fig, choice.label, *at, look, hover, showlegend=True, **data)
    line = {"type": "line", "yref": "y domain", "y0": 0, "y1": 1, "line": {"color": A, "width": 3}}
    fig.add_shape(name="own", x0=100 * own, x1=100 * own, **line)
    best = max((*y, *(choice.report.sqnr_db for choice in choices)), default=1.0)
    worst = min((*y[len(y) // 3 :], *(choice.report.sqnr_db for choice in choices)), default=0.0)
    room = 0.08 * (best - worst) or 1.0
    fig.update_yaxes(range=[worst - room, best + room])
    return captioned(fig, "SQNR by the width of the blocks' ranges", name, [label])
