"""The look that all figures share: layout, palette, buttons, and the name of a saved figure's file."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer.formats import CodebookFormat, Format, IntegerFormat

SERIES = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

A, B = "#0072B2", "#D55E00"
"""The two schemes that are compared, on every figure."""

ORIGINAL = "#7A8699"
"""The tensor before it is quantized."""

FAMILY_COLORS = {
    "16 bits and wider": "#7A8699",
    "FP8 and smaller": "#009E73",
    "integer": "#AA3F84",
    "codebook": "#E69F00",
}
"""Families of number formats, each with its colour on every figure."""

GRID = "rgba(128,140,160,0.25)"
FAINT = "rgba(128,140,160,0.10)"
MAGNITUDE_SCALE = "Cividis"
MUTED = "#98A2B3"
TEXT = "#344054"
FONT = "Inter, system-ui, sans-serif"

_AXIS: dict[str, object] = {
    "showgrid": True,
    "gridcolor": GRID,
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": GRID,
    "ticklen": 4,
    "tickfont": {"size": 12},
    "automargin": True,
}


def axis_look(title: str) -> dict[str, object]:
    """The options of an axis called ``title``, for axes that a figure gets beside its first two."""
    return {**_AXIS, "title": {"standoff": 8, "font": {"size": 12}, "text": title}}


def figure(x_title: str, y_title: str, name: str, height: int = 340) -> go.Figure:
    """An empty figure with titled axes; ``height`` in pixels. ``name`` becomes the saved file's name."""
    fig = go.Figure()
    fig.update_layout(
        template="none",
        height=height,
        margin={"l": 60, "r": 16, "t": 34, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12, "color": TEXT},
        colorway=SERIES,
        bargap=0,
        legend={"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"},
        hoverlabel={"font": {"family": FONT}},
        meta={"filename": file_name(name)},
        xaxis=axis_look(x_title),
        yaxis=axis_look(y_title),
    )
    return fig


def family(fmt: Format) -> str:
    """Which of ``FAMILY_COLORS`` a format belongs to."""
    if isinstance(fmt, IntegerFormat):
        return "integer"
    if isinstance(fmt, CodebookFormat):
        return "codebook"
    return "16 bits and wider" if fmt.bits > 8 else "FP8 and smaller"


def file_name(text: str) -> str:
    """``text`` as a file name: letters, digits, dots and dashes."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).strip("-")[:120] or "figure"


def switch_axis(fig: go.Figure, axis: str) -> go.Figure:
    """Add buttons that switch ``axis`` ("xaxis" or "yaxis") between linear and logarithmic."""
    return add_buttons(fig, [(kind, {f"{axis}.type": kind}) for kind in ("linear", "log")])


def add_buttons(fig: go.Figure, options: Sequence[tuple[str, dict[str, object]]]) -> go.Figure:
    """Add buttons above the plot; each option is a label and the layout changes that it makes."""
    buttons = [{"label": label, "method": "relayout", "args": [change]} for label, change in options]
    fig.update_layout(
        updatemenus=[
            {
                "type": "buttons",
                "direction": "right",
                "buttons": buttons,
                "x": 1,
                "xanchor": "right",
                "y": 1.02,
                "yanchor": "bottom",
                "pad": {"t": 0, "b": 0},
                "showactive": False,
                "bgcolor": "rgba(128,140,160,0.12)",
                "bordercolor": GRID,
                "font": {"size": 11},
            }
        ]
    )
    return fig


WIDE_DECADES = 6
"""An axis of so many decades and more is labelled in powers of ten."""


def log_axis(fig: go.Figure, axis: str, low: float, high: float, base: int = 10) -> go.Figure:
    """Make ``axis`` ("x" or "y") of every plot in ``fig`` logarithmic from ``low`` to ``high``.

    Labels are whole numbers ("0.2", "500", "1,000"), few enough for a phone, and still there after zooming:
    decades, then 1, 2, 5, then even steps. ``base`` 2 or 4 puts them at its powers instead, for counts that
    double. ``ValueError`` unless 0 < low < high.
    """
    if not 0 < low < high:
        raise ValueError(f"a logarithmic axis goes from above 0 to more, not from {low} to {high}")
    ends = [math.log10(low), math.log10(high)]
    options: dict[str, object] = {"type": "log", "range": ends}
    if base != 10:
        options |= {"dtick": math.log10(base), "tickformat": ",.4~r"}
    elif ends[1] - ends[0] < WIDE_DECADES and low >= 1e-4 and high <= 1e6:
        decades = ends[1] - ends[0]
        options |= {"nticks": _label_count(axis, decades), "tickformat": ",~r"}
        if decades < 3:
            options["minor"] = {"dtick": "D1", "showgrid": True, "gridcolor": FAINT}
    else:
        finer = {"dtickrange": [None, "D2"], "value": ",~r"}  # what shows after zooming
        options |= {"nticks": 6, "exponentformat": "power", "tickformatstops": [finer]}
    return fig.update_xaxes(options) if axis == "x" else fig.update_yaxes(options)


def _label_count(axis: str, decades: float) -> int:
    """What plotly makes 1, 2, 5 of, or decades where there is no room for those: it labels decades from 0.7
    of them a label on, and every digit below 0.3."""
    few, most = (2.1, 2.5) if axis == "x" else (1.4, 2.8)
    if decades < few:
        return 3
    return 4 if decades < most else max(3, math.ceil(decades))


def empty(message: str, name: str = "figure") -> go.Figure:
    """A figure without axes whose ``message`` says why there is nothing to draw."""
    fig = figure("", "", name)
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    fig.add_annotation(
        text=message, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper", font={"size": 13}
    )
    return fig
