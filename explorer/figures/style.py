"""Shared look of all figures: palette, axes, traces, notes, buttons, legends, and names of saved files."""

from __future__ import annotations

import html
import math
import re
import textwrap
from collections.abc import Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from explorer.formats import CodebookFormat, Format, IntegerFormat
from explorer.formats.integers import FixedPointFormat
from explorer.recordings.machine import commit
from explorer.version import __version__

Dict = dict[str, Any]
"""Options as plotly takes them."""

SERIES = ("#0072B2", "#E69F00", "#009E73", "#D55E00", "#CC79A7", "#56B4E9")
"""Okabe and Ito's palette, which colour-blind readers can tell apart."""

A, B = "#0072B2", "#D55E00"
"""Colours of the two schemes that are compared, on every figure."""

ORIGINAL = "#7A8699"
"""Colour of the tensor before it is quantized."""

FAMILY_COLORS = {
    "16 bits and wider": "#7A8699",
    "FP8 and smaller": "#009E73",
    "integer": "#AA3F84",
    "codebook": "#E69F00",
}
"""Families of number formats, each with its colour on every figure."""

GRID = "rgba(128,140,160,0.25)"
FAINT = "rgba(128,140,160,0.10)"
CLEAR = "rgba(0,0,0,0)"
MAGNITUDE_SCALE = "Cividis"
MUTED = "#98A2B3"
TEXT = "#344054"
RED = "#d92d20"
"""Colour of the ring around outliers and inspected points."""
FONT = "Inter, Arial, Helvetica, sans-serif"
"""The page and its files hold Inter. The fonts that replace it elsewhere are no wider: labels stay apart."""

_AXIS: Dict = {
    "showgrid": True,
    "gridcolor": GRID,
    "zeroline": False,
    "ticks": "outside",
    "tickcolor": GRID,
    "ticklen": 4,
    "tickfont": {"size": 12},
    "automargin": True,
}

_HOVER = {
    "bgcolor": "#1d2433",
    "bordercolor": "#667085",
    "align": "left",
    "font": {"family": FONT, "size": 12, "color": "#ffffff"},
}
"""Look of hover texts: light on dark in both themes of the page, whose style sheet colours all other text."""

MARGIN = {"l": 56, "r": 16, "t": 12, "b": 44}
"""Pixels around a plot; axes make more room themselves where their labels need it."""

SWITCH_HEIGHT = 26
"""Pixels above a plot for its buttons."""

LEGEND_HEIGHT = 30
"""Pixels under a plot for one line of its legend."""

POWERS = {"exponentformat": "power", "minexponent": 4}
"""Format for a linear axis of values of any size: 6×10⁵ rather than 600k. On a logarithmic one plotly garbles
it."""

FEW_TICKS = {"nticks": 4, "tickangle": 0}
"""Options for a horizontal axis of long numbers: a phone would turn more labels."""

EXTRA = "<extra></extra>"
"""End of a hover text: without it plotly repeats the name of the trace."""


def axis_look(title: str) -> Dict:
    """Return the options of an axis called ``title``, for axes beside a figure's first two."""
    return {**_AXIS, "title": {"standoff": 8, "font": {"size": 12}, "text": title}}


def numbered(axis: str, index: int) -> str:
    """Return plotly's name of the axis at ``index`` (from 0): the first has no number."""
    return axis if index == 0 else f"{axis}{index + 1}"


def figure(x_title: str, y_title: str, name: str, height: int = 340) -> go.Figure:
    """Return an empty figure with titled axes; ``height`` in pixels. ``name`` becomes the saved file's name.

    The visitor's zoom stays when a figure is replaced by one with the same ``uirevision``.
    """
    # In one piece: plotly checks a layout anew at every update, which takes longer than all the rest.
    layout = go.Layout(
        template="none",
        height=height,
        margin=MARGIN,
        paper_bgcolor=CLEAR,
        plot_bgcolor=CLEAR,
        font={"family": FONT, "size": 12, "color": TEXT},
        colorway=SERIES,
        bargap=0,
        legend={"orientation": "h", "x": 0, "y": -0.24, "yanchor": "top", "bgcolor": CLEAR},
        hoverlabel=_HOVER,
        uirevision="same",
        meta={"filename": file_name(name)},
        xaxis=axis_look(x_title),
        yaxis=axis_look(y_title),
    )
    return go.Figure(layout=layout)


def captioned(
    fig: go.Figure, title: str, subject: str, schemes: Sequence[str] = (), elements: int = 0
) -> go.Figure:
    """Give ``fig`` the title and caption that stand on its files, where no page is around it, and add the
    schemes to their names.

    ``subject``: the tensor, model or machine; ``schemes``: labels, lettered where there are two;
    ``elements``: their number n.
    """
    return fig.update_layout(meta=about(fig, title, subject, schemes, elements))


def about(fig: go.Figure, title: str, subject: str, schemes: Sequence[str] = (), elements: int = 0) -> Dict:
    """Return the ``meta`` of the layout with what ``captioned`` sets."""
    letters = "AB" if len(schemes) == 2 else ""
    named = [f"{x}: {scheme}" for x, scheme in zip(letters, schemes, strict=False)] or list(schemes)
    count = f"n = {elements:,} elements" if elements else ""
    shown = "; ".join(filter(None, (subject, *named, count)))
    meta: Dict = fig.layout.meta or {}
    name = file_name(" ".join((meta.get("filename", "figure"), *map(caption, schemes))))
    return {**meta, "filename": name, "title": title, "caption": f"{shown}. {made_by()}."}


def made_by() -> str:
    """Return the program's name, version and, in a checkout, commit."""
    checkout = "" if commit() == "unknown" else f", commit {commit()}"
    return f"Quantization Explorer {__version__}{checkout}"


LINE = 34
"""Number of letters in a message's line that fit a phone's figure."""


def empty(message: str, name: str = "figure") -> go.Figure:
    """Return a figure without axes, with a ``message`` in place of data."""
    fig = figure("", "", name)
    fig.update_xaxes(visible=False)
    fig.update_yaxes(visible=False)
    fig.update_layout(margin={"l": MARGIN["r"]})
    return fig.add_annotation(note(wrapped(message, LINE), 13, x=0.5, y=0.5, xref="paper", yref="paper"))


def fit_height(fig: go.Figure, inside: float) -> go.Figure:
    """Set the height of ``fig`` so that its plot has ``inside`` pixels between the margins."""
    return fig.update_layout(height=inside + fig.layout.margin.t + fig.layout.margin.b)


def add_line(
    fig: go.Figure,
    name: str,
    x: Any,
    y: Any,
    color: str,
    hover: str = "",
    /,
    *,
    width: Any = 2,
    dash: Any = None,
    shape: Any = None,
    size: Any = 0,
    **more: Any,
) -> go.Figure:
    """Add a line ``width`` pixels wide through ``x``, ``y``; with a ``size``, markers of so many pixels too.

    ``hover`` is the template of the text under the mouse; without it the line has none. ``dash`` and
    ``shape`` of the line, and ``more`` options of the scatter trace, are as plotly takes them.
    """
    line = {"color": color, "width": width, "dash": dash, "shape": shape}
    trace: Dict = {"x": x, "y": y, "mode": "lines", "line": {k: v for k, v in line.items() if v}}
    if size:
        trace |= {"mode": "lines+markers", "marker": {"size": size}}
    if name:
        trace["name"] = name
    return fig.add_scatter(**(trace | _told(hover) | more))


def _told(hover: str) -> Dict:
    """Return the options of the hover text."""
    if not hover:
        return {"hoverinfo": "skip"}
    return {"hovertemplate": hover if "<extra>" in hover else hover + EXTRA}


def add_points(
    fig: go.Figure, name: str, x: Any, y: Any, marker: Dict, hover: str = "", /, **more: Any
) -> go.Figure:
    """Add markers at ``x``, ``y``; ``hover`` and ``more`` as in ``add_line``."""
    named = {"name": name} if name else {}
    return fig.add_scatter(x=x, y=y, mode="markers", marker=marker, **(named | _told(hover) | more))


def marker_look(color: str, size: float, symbol: str = "circle", edge: float = 0, rim: str = "") -> Dict:
    """Return the look of a marker with an outline ``edge`` pixels wide, in the colour ``rim`` or its own."""
    return {"color": color, "size": size, "symbol": symbol, "line": {"width": edge, "color": rim or color}}


def note(text: str, size: int = 12, color: str = "", /, **place: Any) -> Dict:
    """Return an annotation without an arrow; ``place``: its position in plotly's terms."""
    font = {"size": size, **({"color": color} if color else {})}
    return {"text": text, "showarrow": False, "font": font, **place}


def panel_title(text: str, x: str, y: str, above: float) -> Dict:
    """Return a title ``above`` pixels over the left end of the panel whose axes are ``x`` and ``y``."""
    place = {"x": 0, "xref": f"{x} domain", "y": 1, "yref": f"{y} domain", "yshift": above}
    return note(text, xanchor="left", yanchor="bottom", **place)


def stacked(count: int, tall: float, between: float) -> list[list[float]]:
    """Return the domains [bottom, top] of ``count`` panels below one another, the first at the top, each
    ``tall`` and ``between`` apart in one unit."""
    whole = count * tall + (count - 1) * between
    tops = [1 - index * (tall + between) / whole for index in range(count)]
    return [[max(top - tall / whole, 0.0), top] for top in tops]


def colour_bar(title: str, ticks: Sequence[float], labels: Sequence[str], thickness: int = 12) -> Dict:
    """Return the bar that explains colours, labelled at the values ``ticks``."""
    named = {"title": {"text": title, "side": "right", "font": {"size": 12}}} if title else {}
    return {**named, "thickness": thickness, "outlinewidth": 0, "tickvals": ticks, "ticktext": labels}


def family(fmt: Format) -> str:
    """Return the key of ``FAMILY_COLORS`` for a format."""
    if isinstance(fmt, IntegerFormat | FixedPointFormat):
        return "integer"
    if isinstance(fmt, CodebookFormat):
        return "codebook"
    return "16 bits and wider" if fmt.bits > 8 else "FP8 and smaller"


def caption(label: str, most: int = 26) -> str:
    """Return a scheme's label without the part in brackets, cut to ``most`` letters to fit a phone."""
    text = re.sub(r" \(.*?\)", "", label)
    return text if len(text) <= most else f"{text[: most - 1].rstrip(' ,')}…"


def wrapped(label: str, width: int = 22) -> str:
    """Return ``label`` in lines of about ``width`` letters, so that a phone keeps room for the plot."""
    return "<br>".join(textwrap.wrap(shown_text(label), width))


def shown_text(text: str) -> str:
    """Return ``text`` for plotly, which takes some tags of HTML for markup."""
    return html.escape(text, quote=False)


def file_name(text: str) -> str:
    """Return ``text`` as a file name of letters, digits, dots and dashes that is not hidden."""
    return re.sub(r"[^A-Za-z0-9.]+", "-", text).lstrip("-.").rstrip("-")[:120] or "figure"


def translucent(color: str, opacity: float) -> str:
    """Return the colour ``color`` (#rrggbb) with an ``opacity`` of 0 … 1."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgba({red},{green},{blue},{opacity:g})"


def switch_axis(fig: go.Figure, axis: str) -> go.Figure:
    """Add buttons that switch ``axis`` ("xaxis" or "yaxis") between linear and logarithmic."""
    return add_buttons(fig, [(kind, {f"{axis}.type": kind}) for kind in ("linear", "log")])


def add_buttons(fig: go.Figure, options: Sequence[tuple[str, Dict]]) -> go.Figure:
    """Add buttons at the left above the plot; each option is a label and the layout changes that it makes.

    The figure's ``meta["switched"]`` lists what they change: code that replaces the figure by a new one
    carries those layout entries over, as ``uirevision`` does not.
    """
    buttons = [{"label": label, "method": "relayout", "args": [change]} for label, change in options]
    changed = list(dict.fromkeys(key for _, change in options for key in change))
    return _with_buttons(fig, [buttons], changed)


Switch = tuple[str, Dict, list[int], Dict]
"""An option of a switch: its label, changes of traces (a list has one entry for each), the numbers of those
traces, and changes of the layout."""


def add_switches(fig: go.Figure, switches: Mapping[str, Sequence[Switch]]) -> go.Figure:
    """Add buttons that change traces: a row for each of ``switches``, whose first option the figure shows.

    The choice is kept in the layout's ``meta``, under the switch's name ("mode" or "order"), which a new
    figure of its kind carries over.
    """
    rows: list[list[Dict]] = []
    for name, options in switches.items():
        rows.append([])
        for label, change, traces, layout in options:
            chosen: Dict = {f"meta.{name}": label}  # first: the page marks the button by it
            rows[-1].append({"label": label, "method": "update", "args": [change, chosen | layout, traces]})
    first = {name: options[0][0] for name, options in switches.items()}
    fig.update_layout(meta={**(fig.layout.meta or {}), **first})
    return _with_buttons(fig, rows, [f"meta.{name}" for name in switches])


LETTER, BUTTON = 6.2, 22
"""Pixels of a letter in a button, and of a button beside its words."""


def _with_buttons(fig: go.Figure, rows: list[list[Dict]], switched: list[str]) -> go.Figure:
    """Add rows of buttons side by side, above the plot."""
    look = {"type": "buttons", "direction": "right", "showactive": False, "font": {"size": 11}}
    look |= {"bgcolor": "rgba(128,140,160,0.12)", "bordercolor": GRID}
    look |= {"x": 0, "xanchor": "left", "y": 1, "yanchor": "bottom"}
    menus, left = [], 0.0
    for buttons in rows:
        menus.append({**look, "buttons": buttons, "pad": {"t": 0, "b": 4, "l": left, "r": 0}})
        left += sum(LETTER * len(button["label"]) + BUTTON for button in buttons) + BUTTON
    meta = {**(fig.layout.meta or {}), "switched": switched}
    return fig.update_layout(meta=meta, margin={"t": MARGIN["t"] + SWITCH_HEIGHT}, updatemenus=menus)


def legend_below(fig: go.Figure, lines: int = 1) -> go.Figure:
    """Reserve space for the lines of the legend under the plot, where it covers and moves nothing."""
    place = {"xref": "container", "x": 0, "yref": "container", "y": 0, "yanchor": "bottom"}
    bottom = {"b": MARGIN["b"] + LEGEND_HEIGHT * lines}
    return fig.update_layout(showlegend=True, legend=place, margin=bottom)


WIDE_DECADES = 6
"""Minimum number of decades for an axis to be labelled in powers of ten."""


def log_axis(fig: go.Figure, axis: str, low: float, high: float, base: int = 10) -> go.Figure:
    """Make ``axis`` ("x" or "y") of every plot in ``fig`` logarithmic from ``low`` to ``high``.

    Labels are whole numbers ("0.2", "500", "1,000"), few enough for a phone, and still there after zooming:
    decades, then 1, 2, 5, then even steps. ``base`` 2 or 4 puts them at its powers instead, for counts that
    double. ``ValueError`` unless 0 < low < high.
    """
    if not 0 < low < high:
        raise ValueError(f"a logarithmic axis goes from above 0 to more, not from {low} to {high}")
    ends = [math.log10(low), math.log10(high)]
    options: Dict = {"type": "log", "range": ends}
    if base != 10:
        options |= {"dtick": math.log10(base), "tickformat": ",.7~r"}
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
    """Number of labels for which plotly uses 1, 2, 5, or only decades if space is short: it labels decades
    from 0.7 of them a label on, and every digit below 0.3."""
    few, most = (2.1, 2.5) if axis == "x" else (1.4, 2.8)
    if decades < few:
        return 3
    return 4 if decades < most else max(3, math.ceil(decades))
