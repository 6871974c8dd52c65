"""Histograms of errors: of one or two schemes on one axis, or of up to five in separate panels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import plotly.graph_objects as go

from explorer import words
from explorer.analysis.histograms import Histogram
from explorer.analysis.spread import Spread, on_same_bins
from explorer.analysis.tensor import Side
from explorer.figures.style import (
    EXTRA,
    FEW_TICKS,
    MARGIN,
    POWERS,
    SWITCH_HEIGHT,
    A,
    B,
    Dict,
    about,
    axis_look,
    caption,
    captioned,
    empty,
    figure,
    legend_below,
    note,
    numbered,
    panel_title,
    stacked,
    switch_axis,
    translucent,
)

COLORS = (A, B, "#009E73", "#CC79A7", "#7A8699")
X_TITLE, Y_TITLE = "error  x̂ − x", "share of elements"
NOTE_LINE, NOTE_GAP = 14, 8
"""Pixels of a line above a figure's buttons, and between them."""
PANEL, PANEL_GAP, TITLE, GAP = 170, 76, 20, 0.02
"""Pixels of a panel's height, between panels below one another, and of a title's line; between panels side by
side, in parts of the plot."""


@dataclass(frozen=True)
class Errors:
    """Signed errors of the scheme called ``label``: their histogram, and the largest. ``whole``: SQNR and
    size of all elements, in words."""

    label: str
    spread: Spread
    largest: float
    whole: str = ""


def errors_of(sides: Sequence[Side]) -> list[Errors]:
    """Return the errors of all elements."""
    found = []
    for side in sides:
        report = side.analysis.report
        sqnr = f"{report.sqnr_db:.2f} dB" if report.max_error else "exact"
        whole = f"{sqnr}, {report.bits.total:.4g} bits"
        found.append(Errors(side.label, side.analysis.errors, report.max_error, whole))
    return found


def error_figure(sides: Sequence[Side], name: str) -> go.Figure:
    """Draw the errors of all elements of one or two ``sides`` by ``histogram_figure``."""
    return histogram_figure(errors_of(sides), name)


def histogram_figure(errors: Sequence[Errors], name: str, part: str = "") -> go.Figure:
    """Draw histograms of the signed errors x̂ - x of one or two schemes, on the same bins; ``part`` names the
    part of the matrix, unless it is all."""
    about_all = (f"{name}, {part}" if part else name, [each.label for each in errors], errors[0].spread.total)
    if all(each.largest == 0 for each in errors):
        where = f" in {part}" if part else ""
        fig = empty(f"no error{where}: every element is restored exactly", f"{name} error")
        return captioned(fig, "Errors of the elements", *about_all)
    fig = legend_below(figure(X_TITLE, Y_TITLE, f"{name} error"))
    counted = on_same_bins([each.spread for each in errors])
    for letter, color, each, shared in zip("AB", COLORS, errors, counted, strict=False):
        if each.largest > 0:
            label = caption(each.label)
            title = f"{letter}  {label}" if len(errors) > 1 else label
            hover = f"{letter}, %{{x:.4g}}: %{{y:.3~%}}" + EXTRA
            fig.add_scatter(**_outline(each.spread, shared, color), name=title, hovertemplate=hover)
    fig.update_yaxes(tickformat="~%")
    fig.update_xaxes(**POWERS, **FEW_TICKS)
    switch_axis(fig, "yaxis")
    captioned(fig, "Errors of the elements", *about_all)
    return _say_beyond(fig, errors, part)


def _outline(spread: Spread, shared: Histogram, color: str) -> Dict:
    """Return a histogram's shares as a filled outline."""
    width = float(shared.edges[1] - shared.edges[0])
    return {
        "x0": float(shared.edges[0]) - width / 2,
        "dx": width,
        "y": np.pad(spread.share(shared), 1).astype(np.float32),
        "mode": "lines",
        "line": {"shape": "hvh", "width": 1.5, "color": color},
        "fill": "tozeroy",
        "fillcolor": translucent(color, 0.18),
    }


def _say_beyond(fig: go.Figure, errors: Sequence[Errors], part: str) -> go.Figure:
    """Write above the buttons which part is shown, the share of errors beyond the bins, and the largest."""
    lines = [f"only {part}"] if part else []
    for letter, each in zip("AB", errors, strict=False):
        if each.largest == 0:
            lines.append(f"{letter} has no error")
        spread = each.spread
        beyond = float(spread.share(spread.below).sum() + spread.share(spread.above).sum())
        if beyond:
            which = f"{letter}: " if len(errors) > 1 else ""
            lines.append(f"{which}{100 * beyond:.2g} % lie outside, up to ±{words.number(each.largest)}")
    if not lines:
        return fig
    corner = {"x": 1, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "right", "yanchor": "bottom"}
    text = note("<br>".join(lines), 10, **corner, yshift=SWITCH_HEIGHT + NOTE_GAP, align="right")
    margin = {"t": fig.layout.margin.t + NOTE_GAP + NOTE_LINE * len(lines)}
    return fig.update_layout(margin=margin, annotations=[text])


def multiples_figure(errors: Sequence[Errors], name: str) -> go.Figure:
    """Draw the histogram of errors of up to five schemes on one tensor, a panel each on the same axes and
    bins, titled with the scheme and its SQNR. On a narrow page the panels stand below one another.

    ``ValueError`` for none, or more than there are colours.
    """
    if not 1 <= len(errors) <= len(COLORS):
        raise ValueError(f"from 1 to {len(COLORS)} schemes can be shown side by side, not {len(errors)}")
    counted = on_same_bins([each.spread for each in errors])
    data: list[Dict] = []
    for index, (each, shared) in enumerate(zip(errors, counted, strict=True)):
        axes = {"xaxis": numbered("x", index), "yaxis": numbered("y", index), "showlegend": False}
        told = {"hovertemplate": "%{x:.4g}: %{y:.3~%}" + EXTRA, "name": each.label}
        data.append({"type": "scatter", **_outline(each.spread, shared, COLORS[index]), **axes, **told})
    shares = [e.spread.share(c) for e, c in zip(errors, counted, strict=True) if e.largest > 0]
    top = max((float(share.max()) for share in shares), default=1.0)
    ends = float(counted[0].edges[0]), float(counted[0].edges[-1])
    base = figure("", Y_TITLE, f"{name} errors of {len(errors)} schemes")
    layout = base.layout.to_plotly_json() | _panels(errors, ends, top)
    labels = [each.label for each in errors]
    meta = about(base, "Errors of the elements by scheme", name, labels, errors[0].spread.total)
    layout["meta"] |= meta
    return go.Figure(data, layout)


def _panels(errors: Sequence[Errors], ends: tuple[float, float], top: float) -> Dict:
    """Return the axes and titles of panels in one row; on a narrow page, below one another."""
    count = len(errors)
    around = 2 * TITLE + MARGIN["b"]
    changes: Dict = {"height": PANEL * count + (count - 1) * PANEL_GAP + around}
    axes: Dict = {}
    wide = (1 - GAP * (count - 1)) / count
    for index, below in enumerate(stacked(count, PANEL, PANEL_GAP)):
        across, down = numbered("xaxis", index), numbered("yaxis", index)
        left = index * (wide + GAP)
        x = {"range": ends, "domain": [left, left + wide], "anchor": numbered("y", index), "nticks": 3}
        y = {"range": [0, 1.05 * top], "domain": [0, 1], "anchor": numbered("x", index), "tickformat": "~%"}
        if index:
            x["matches"] = "x"
            y |= {"matches": "y", "showticklabels": False}
        axes[across] = {**axis_look(X_TITLE), **POWERS, "tickangle": 0, **x}
        axes[down] = {**axis_look("" if index else Y_TITLE), "nticks": 5, **y}
        changes |= {f"{across}.domain": [0, 1], f"{down}.domain": below}
        changes |= {f"{down}.showticklabels": True, f"{down}.title.text": Y_TITLE}
        changes |= {} if index == count - 1 else {f"{across}.title.text": ""}
    return {
        **axes,
        "height": PANEL + around,
        "margin": {**MARGIN, "t": 2 * TITLE},
        "annotations": [_title(each, index) for index, each in enumerate(errors)],
        "meta": {"narrow": {"below": 200 * count, "changes": changes}},
    }


def _title(each: Errors, index: int) -> Dict:
    """Return a panel's title: the scheme, its SQNR and size."""
    text = f"<b>{caption(each.label)}</b><br>{each.whole}"
    return {**panel_title(text, numbered("x", index), numbered("y", index), 4), "align": "left"}
