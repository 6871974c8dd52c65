"""A figure of named points as SVG, as plotly would draw it, for a page whose scripts have not started."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from explorer.figures.labels import text_width

X_PIXELS, FEWEST, MOST = 80, 4, 9
"""Pixels of a horizontal axis for each label, and how many steps between labels there are at least and at
most, as in plotly's ``autoTicks``."""
_STEPS = (1, 2, 5, 10)
_DASHES = {"dot": "3px 3px"}
"""Dash pattern of a line of 1.5 pixels in plotly's dots."""
_OF_ESTIMATE = 0.84
"""Least share of ``text_width`` that a name takes; its halo keeps a line out of the rest."""
_HALO = "paint-order:stroke;stroke:var(--background-fill-primary);stroke-width:4px;stroke-linejoin:round"
"""Halo of a name, which keeps its line out of it."""
_WAYS = {"triangle-right": 0, "triangle-down": 90, "triangle-left": 180, "triangle-up": 270}
"""Direction of a triangle -> degrees by which one that points to the right is turned."""


def still(figure: Mapping[str, Any]) -> str:
    """Return ``figure``, plotly's JSON, as HTML: a box of its height that fills the width. Points keep their
    share of the width, names their distance in pixels from the points.

    It draws axes, markers, lines with steps, and the annotations of the set in the layout's
    ``meta["callouts"]`` that ``assets/figure.js`` takes at that width: container queries choose it. A point
    has its scheme's text in ``data-scheme``. The page's style sheet colours it by plotly's names of classes.
    ``ValueError`` for a figure that holds anything else.
    """
    layout = figure["layout"]
    plane = _Plane(layout)
    traces = "".join(_trace(trace, plane) for trace in figure["data"])
    sets = layout["meta"]["callouts"]
    ends = [None, *(widest for widest, _ in sets)]
    names = [
        _between(f"names-{i}", ends[i], widest, "".join(_name(one, plane) for one in notes))
        for i, (widest, notes) in enumerate(sets)
    ]
    margin = layout["margin"]
    inside = f"left:{margin['l']}px;right:{margin['r']}px;top:{margin['t']}px;height:{plane.height}px"
    return (
        f'<div class="figure js-plotly-plot" style="height:{layout["height"]}px;position:relative;'
        f'container-type:inline-size"><div style="position:absolute;{inside}">'
        '<svg class="main-svg" width="100%" height="100%" style="display:block;overflow:visible" '
        f'font-size="{layout["font"]["size"]}" font-family="{escape(layout["font"]["family"])}">'
        f"{_rows(plane)}{_columns(plane)}{traces}{''.join(names)}</svg></div></div>"
    )


class _Plane:
    """Places of values in the plot: across in percent of its width, down in pixels."""

    def __init__(self, layout: Mapping[str, Any]) -> None:
        margin = layout["margin"]
        self.height = layout["height"] - margin["t"] - margin["b"]
        self.margins = margin["l"] + margin["r"]
        self.x, self.y = layout["xaxis"], layout["yaxis"]
        if self.y.get("type", "linear") != "linear" or "nticks" not in self.y:
            raise ValueError("the vertical axis is linear, with nticks")
        if any(axis.get("automargin") for axis in (self.x, self.y)):
            raise ValueError("margins that plotly finds are not known here")
        self.logarithmic = self.x.get("type") == "log"

    def across(self, value: float, on_axis: bool = False) -> float:
        """Return the percent at a value; ``on_axis``: it is log10 already on a logarithmic axis."""
        low, high = self.x["range"]
        at = math.log10(value) if self.logarithmic and not on_axis else value
        return 100 * (at - low) / (high - low)

    def down(self, value: float) -> float:
        low, high = self.y["range"]
        return float(self.height * (high - value) / (high - low))


def step(rough: float) -> float:
    """Return plotly's step between labels of at least ``rough``: 1, 2 or 5 times a power of 10."""
    power = 10 ** math.floor(math.log10(rough))
    return next(factor * power for factor in _STEPS if factor * power >= rough * (1 - 1e-9))


def steps_by_width(length: float, margins: float) -> list[tuple[float | None, float]]:
    """Return the steps between labels of a horizontal axis of this ``length``: (the widest figure in pixels
    that has the step, or None; the step), the narrowest first; ``margins``: pixels beside the axis."""
    found: list[tuple[float | None, float]] = []
    now, last = step(length / (FEWEST + 1)), step(length / (MOST + 1))
    while now > last * (1 + 1e-9):
        power = 10 ** math.floor(math.log10(now) - 1)
        candidates = [factor * power * scale for scale in (1, 10) for factor in _STEPS[:3]]
        finer = max(s for s in candidates if s < now * (1 - 1e-9))
        found.append((X_PIXELS * (length / finer - 1) + margins, now))
        now = finer
    return [*found, (None, now)]


def _ticks(low: float, high: float, every: float) -> list[float]:
    slack = every * 1e-6
    first, last = math.ceil((low - slack) / every), math.floor((high + slack) / every)
    return [i * every for i in range(first, last + 1)]


def _label(value: float) -> str:
    return f"{value:g}".replace("-", "−")


def _rows(plane: _Plane) -> str:
    """Draw labels and lines of the vertical axis; no line at its ends, as in plotly."""
    axis, (low, high) = plane.y, plane.y["range"]
    opacity = axis["gridcolor"].rpartition(",")[2].rstrip(")")  # the style sheet has the colour
    parts = []
    for value in _ticks(low, high, step((high - low) / axis["nticks"])):
        at = plane.down(value)
        if 1 < at < plane.height - 1:
            parts.append(
                f'<line x2="100%" y1="{at:.0f}" y2="{at:.0f}" shape-rendering="crispEdges" '
                f'style="stroke:var(--border-color-primary);stroke-opacity:{opacity}"/>'
            )
        tick = f'<line x1="-5" x2="-1" y1="{at:.0f}" y2="{at:.0f}" style="stroke:{axis["tickcolor"]}"/>'
        parts.append(f'{tick}<text x="-7.4" y="{at + 4.2:.1f}" text-anchor="end">{_label(value)}</text>')
    return "".join(parts)


def _columns(plane: _Plane) -> str:
    """Draw labels of the horizontal axis, whose number depends on the width, and its title."""
    axis, (low, high) = plane.x, plane.x["range"]
    words = escape(axis["title"]["text"])
    title = f'<text x="50%" y="{plane.height + 36.3:.1f}" text-anchor="middle">{words}</text>'
    if "tickvals" in axis:
        named = zip(axis["tickvals"], axis["ticktext"], strict=True)
        return title + "".join(_column(plane, plane.across(value), text) for value, text in named)
    if plane.logarithmic:
        raise ValueError("a logarithmic axis has tickvals")
    found, narrower = [title], None
    for i, (widest, every) in enumerate(steps_by_width(high - low, plane.margins)):
        labels = ((plane.across(value), _label(value)) for value in _ticks(low, high, every))
        columns = "".join(_column(plane, at, text) for at, text in labels)
        found.append(_between(f"ticks-{i}", narrower, widest, columns))
        narrower = widest
    return "".join(found)


def _column(plane: _Plane, at: float, text: str) -> str:
    x, low = f"{at:.3f}%", plane.height
    tick = f'<line x1="{x}" x2="{x}" y1="{low + 1}" y2="{low + 5}" style="stroke:{plane.x["tickcolor"]}"/>'
    return f'{tick}<text x="{x}" y="{low + 19.4:.1f}" text-anchor="middle">{escape(text)}</text>'


def _between(name: str, narrower: float | None, widest: float | None, content: str) -> str:
    """Show ``content`` only in figures wider than ``narrower`` and at most ``widest`` pixels."""
    others = []
    if narrower is not None:
        others.append(f"(max-width: {narrower:g}px)")
    if widest is not None:
        others.append(f"(min-width: {widest + 0.01:g}px)")
    rules = "".join(f"@container {other} {{ .{name} {{ display: none; }} }}" for other in others)
    return f'<style>{rules}</style><g class="{name}">{content}</g>'


def _trace(trace: Mapping[str, Any], plane: _Plane) -> str:
    if trace.get("mode") == "lines" and trace["line"].get("shape") == "hv":
        return _steps(trace, plane)
    if trace.get("mode") == "markers":
        return _markers(trace, plane)
    raise ValueError(f"a trace of {trace.get('type')} in the mode {trace.get('mode')} is not drawn here")


def _steps(trace: Mapping[str, Any], plane: _Plane) -> str:
    """Draw one path as wide as the plot; its dots keep their size."""
    corners = [(plane.across(x), plane.down(y)) for x, y in zip(trace["x"], trace["y"], strict=True)]
    if not corners:
        return ""
    ways = [f"M{corners[0][0]:.3f},{corners[0][1]:.2f}"]
    ways += [f"H{x:.3f}V{y:.2f}" for _, (x, y) in itertools.pairwise(corners)]
    line = trace["line"]
    style = f"fill:none;stroke:{line['color']};stroke-width:{line['width']}px"
    dashes = f";stroke-dasharray:{_DASHES[line['dash']]}" if line.get("dash") else ""
    box = f'viewBox="0 0 100 {plane.height}" width="100%" height="{plane.height}"'
    return (
        f'<svg {box} preserveAspectRatio="none">'
        f'<path d="{"".join(ways)}" vector-effect="non-scaling-stroke" style="{style}{dashes}"/></svg>'
    )


def _markers(trace: Mapping[str, Any], plane: _Plane) -> str:
    marker = trace["marker"]
    line = marker.get("line", {})
    edge = f";stroke:{line['color']};stroke-width:{line['width']}px" if line.get("width") else ""
    found = []
    for i in range(len(trace["x"])):
        color, size, symbol, opacity = (
            _of(marker, key, i, usual)
            for key, usual in (("color", ""), ("size", 6), ("symbol", "circle"), ("opacity", 1))
        )
        label, text = trace["customdata"][i]
        x, y = f"{plane.across(trace['x'][i]):.3f}%", f"{plane.down(trace['y'][i]):.2f}"
        look = f'style="fill:{color};opacity:{opacity:g}{edge}" data-scheme="{escape(text)}"'
        title = f"<title>{escape(label)}</title>"
        if symbol == "circle":
            found.append(f'<circle cx="{x}" cy="{y}" r="{size / 2:g}" {look}>{title}</circle>')
        elif symbol in _WAYS:
            half, tall = size / 4, size / math.sqrt(3)
            shape = f"M{-half:.2f},{-tall:.2f}V{tall:.2f}L{size / 2:g},0Z"
            path = f'<path d="{shape}" transform="rotate({_WAYS[symbol]})" {look}>{title}</path>'
            found.append(f'<svg x="{x}" y="{y}" style="overflow:visible">{path}</svg>')
        else:
            raise ValueError(f"markers of the shape {symbol} are not drawn here")
    return "".join(found)


def _of(marker: Mapping[str, Any], key: str, i: int, usual: Any) -> Any:
    """Return a property of the i-th point, which may be one value for all."""
    value = marker.get(key, usual)
    return value[i] if isinstance(value, Sequence) and not isinstance(value, str) else value


def _name(note: Mapping[str, Any], plane: _Plane) -> str:
    """Draw the name of a point and the line to it, or a text at a corner of the plot."""
    if not note["showarrow"]:
        if (note["x"], note["y"]) != (0, 1):
            raise ValueError("a text without a point stands at the left above the plot")
        at = f'x="{note["xshift"] + 2}" y="{-note["yshift"] - 5}"'
        return f"<text {at}>{escape(note['text'])}</text>"
    right, down, away = note["ax"], note["ay"], note["standoff"]
    text = note["text"]
    bold = text.startswith("<b>")
    text = text.removeprefix("<b>").removesuffix("</b>")
    line = ""
    if away:
        size = note["font"]["size"]
        wide, tall = _OF_ESTIMATE * text_width(text, size, bold) / 2, 0.6 * size
        inside = min(wide / abs(right) if right else math.inf, tall / abs(down) if down else math.inf)
        start, end = away / math.hypot(right, down), max(1 - inside, 0)
        if start < end:
            ends = (right * start, down * start, right * end, down * end)
            x1, y1, x2, y2 = (f"{value:.1f}" for value in ends)
            line = f'<line x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}" style="stroke:{note["arrowcolor"]}"/>'
    weight = ";font-weight:bold" if bold else ""
    style = f"fill:{_rgb(note['font']['color'])}{weight};{_HALO};white-space:pre"
    x, y = plane.across(note["x"], on_axis=True), plane.down(note["y"])
    middle = f'text-anchor="middle" style="{style}"'
    named = f'<text x="{right}" y="{down + 4.4:.1f}" {middle}>{escape(text)}</text>'
    return f'<svg x="{x:.3f}%" y="{y:.2f}" style="overflow:visible">{line}{named}</svg>'


def _rgb(color: str) -> str:
    """Return a colour "#rrggbb" as plotly writes it, by which the style sheet knows A's and B's."""
    red, green, blue = (int(color[i : i + 2], 16) for i in (1, 3, 5))
    return f"rgb({red}, {green}, {blue})"
