"""The look that all figures share: layout, palette, buttons, and the name of a saved figure's file."""

from __future__ import annotations

import re
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer.formats import CodebookFormat, Format, IntegerFormat
from explorer.formats.integers import FixedPointFormat

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
MAGNITUDE_SCALE = "Cividis"
MUTED = "#98A2B3"
FONT = "Inter, system-ui, sans-serif"

_AXIS = {
    "showgrid": True,
    "gridcolor": GRID,
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": GRID,
    "ticklen": 4,
    "tickfont": {"size": 12},
    "automargin": True,
    "title": {"standoff": 8, "font": {"size": 12}},
}


def figure(x_title: str, y_title: str, name: str, height: int = 340) -> go.Figure:
    """An empty figure with titled axes; ``height`` in pixels. ``name`` becomes the saved file's name."""
    fig = go.Figure()
    fig.update_layout(
        template="none",
        height=height,
        margin={"l": 60, "r": 16, "t": 34, "b": 48},
        paper_bgcolor="rgba(0,0,0,0)",
        plot_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12, "color": "#344054"},
        colorway=SERIES,
        bargap=0,
        legend={"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "bgcolor": "rgba(0,0,0,0)"},
        hoverlabel={"font": {"family": FONT}},
        meta={"filename": file_name(name)},
        xaxis={**_AXIS, "title": {**_AXIS["title"], "text": x_title}},  # type: ignore[dict-item]
        yaxis={**_AXIS, "title": {**_AXIS["title"], "text": y_title}},  # type: ignore[dict-item]
    )
    return fig


def family(fmt: Format) -> str:
    """Which of ``FAMILY_COLORS`` a format belongs to."""
    if isinstance(fmt, IntegerFormat | FixedPointFormat):
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


def empty(message: str, name: str = "figure") -> go.Figure:
    """A figure without axes whose ``message`` says why there is nothing to draw."""
    fig = figure("", "", name)
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    fig.add_annotation(
        text=message, showarrow=False, x=0.5, y=0.5, xref="paper", yref="paper", font={"size": 13}
    )
    return fig
