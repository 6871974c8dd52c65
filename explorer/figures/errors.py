"""Histograms of errors: of one or two schemes on one axis, of up to five in panels of their own."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import plotly.graph_objects as go

from explorer import words
from explorer.analysis.histograms import Histogram
from explorer.analysis.spread import Spread, on_same_bins
from explorer.analysis.tensor import Side
from explorer.figures.style import (
    FEW_TICKS,
    MARGIN,
    POWERS,
    SWITCH_HEIGHT,
    A,
    B,
    axis_look,
    caption,
    empty,
    figure,
    legend_below,
    switch_axis,
    translucent,
)

COLORS = (A, B)
OTHERS = ("#009E73", "#CC79A7", "#7A8699")
"""Of the third scheme and those after it."""
MOST_PANELS = 5
"""Of ``multiples_figure``."""
NOTE_LINE, NOTE_GAP = 14, 8
"""Pixels of a line above a figure's buttons, and between them."""
PANEL, PANEL_GAP, TITLE, GAP = 170, 76, 20, 0.02
"""Pixels of a panel's height, between panels below one another, and of a title's line; between panels side by
side, in parts of the plot."""


@dataclass(frozen=True)
class Errors:
    """Signed errors of one scheme, whose name is ``label``: their histogram, and the largest."""

    label: str
    spread: Spread
    largest: float


def errors_of(sides: Sequence[Side]) -> list[Errors]:
    """The errors of all elements."""
    return [Errors(s.label, s.analysis.errors, s.analysis.report.max_error) for s in sides]


def error_figure(sides: Sequence[Side], name: str) -> go.Figure:
    """``histogram_figure`` of all errors of one or two ``sides``."""
    return histogram_figure(errors_of(sides), name)


def histogram_figure(errors: Sequence[Errors], name: str, part: str = "") -> go.Figure:
    """Histograms of the signed errors x̂ - x of one or two schemes, on the same bins; ``part`` says which
    part of the matrix they are of, if not of all."""
    fig = legend_below(figure("error  x̂ − x", "share of elements", f"{name} error"))
    if all(each.largest == 0 for each in errors):
        where = f" in {part}" if part else ""
        return empty(f"no error{where}: every element is restored exactly", f"{name} error")
    counted = on_same_bins([each.spread for each in errors])
    for index, (each, shared) in enumerate(zip(errors, counted, strict=True)):
        if each.largest == 0:
            continue
        label = caption(each.label)
        fig.add_scatter(
            **_steps(each.spread, shared, COLORS[index]),
            name=f"{'AB'[index]}  {label}" if len(errors) > 1 else label,
            hovertemplate=f"{'AB'[index]}, %{{x:.4g}}: %{{y:.3~%}}<extra></extra>",
        )
    fig.update_yaxes(tickformat="~%")
    fig.update_xaxes(**POWERS, **FEW_TICKS)
    switch_axis(fig, "yaxis")
    _say_beyond(fig, errors, part)
    return fig


def _steps(spread: Spread, shared: Histogram, color: str) -> dict[str, object]:
    """A filled outline of a histogram's shares."""
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


def multiples_figure(sides: Sequence[Side], name: str) -> go.Figure:
    """The histogram of errors of up to five schemes on one tensor, a panel each on the same axes and bins,
    titled with the scheme and its SQNR. On a narrow page the panels stand below one another.

    ``ValueError`` for none, or more than ``MOST_PANELS``.
    """
    if not 1 <= len(sides) <= MOST_PANELS:
        raise ValueError(f"from 1 to {MOST_PANELS} schemes can be shown side by side, not {len(sides)}")
    errors = errors_of(sides)
    counted = on_same_bins([each.spread for each in errors])
    base = figure("", "share of elements", f"{name} errors of {len(sides)} schemes")
    data: list[dict[str, object]] = []
    for index, (each, shared) in enumerate(zip(errors, counted, strict=True)):
        steps = _steps(each.spread, shared, (A, B, *OTHERS)[index])
        axes = {"xaxis": _key("x", index), "yaxis": _key("y", index), "showlegend": False}
        hover = {"hovertemplate": "%{x:.4g}: %{y:.3~%}<extra></extra>", "name": each.label}
        data.append({"type": "scatter", **steps, **axes, **hover})
    shares = [e.spread.share(c) for e, c in zip(errors, counted, strict=True) if e.largest > 0]
    top = max((float(share.max()) for share in shares), default=1.0)
    ends = float(counted[0].edges[0]), float(counted[0].edges[-1])
    layout = base.layout.to_plotly_json() | _panels(sides, ends, top)
    layout["meta"] |= base.layout.meta
    return go.Figure(data, layout)


def _key(axis: str, index: int) -> str:
    """plotly's name of an axis: the first has no number."""
    return axis if index == 0 else f"{axis}{index + 1}"


def _panels(sides: Sequence[Side], ends: tuple[float, float], top: float) -> dict[str, Any]:
    """The axes and titles of panels in one row; on a narrow page, below one another."""
    count = len(sides)
    tall = PANEL * count + (count - 1) * PANEL_GAP
    layout: dict[str, Any] = {"height": PANEL + 2 * TITLE + MARGIN["b"], "annotations": []}
    layout["margin"] = {**MARGIN, "t": 2 * TITLE}
    changes: dict[str, object] = {"height": tall + 2 * TITLE + MARGIN["b"]}
    for index, side in enumerate(sides):
        across, down = _key("xaxis", index), _key("yaxis", index)
        wide = (1 - GAP * (count - 1)) / count
        left = index * (wide + GAP)
        start = 1 - (index * (PANEL + PANEL_GAP) + PANEL) / tall
        x = {"range": ends, "domain": [left, left + wide], "anchor": _key("y", index), "nticks": 3}
        y = {"range": [0, 1.05 * top], "domain": [0, 1], "anchor": _key("x", index), "tickformat": "~%"}
        if index:
            x |= {"matches": "x"}
            y |= {"matches": "y", "showticklabels": False}
        layout[across] = {**axis_look("error  x̂ − x"), **POWERS, "tickangle": 0, **x}
        layout[down] = {**axis_look("" if index else "share of elements"), "nticks": 5, **y}
        changes |= {f"{across}.domain": [0, 1], f"{down}.domain": [start, start + PANEL / tall]}
        changes |= {f"{down}.showticklabels": True, f"{down}.title.text": "share of elements"}
        changes |= {} if index == count - 1 else {f"{across}.title.text": ""}
        layout["annotations"].append(_title(side, index))
    return layout | {"meta": {"narrow": {"below": 200 * count, "changes": changes}}}


def _title(side: Side, index: int) -> dict[str, object]:
    """A panel's title: the scheme, its SQNR and size."""
    report = side.analysis.report
    sqnr = "exact" if report.max_error == 0 else f"{report.sqnr_db:.2f} dB"
    return {
        "text": f"<b>{caption(side.label)}</b><br>{sqnr}, {report.bits.total:.4g} bits",
        "x": 0,
        "xref": f"{_key('x', index)} domain",
        "y": 1,
        "yref": f"{_key('y', index)} domain",
        "yshift": 4,
        "xanchor": "left",
        "yanchor": "bottom",
        "align": "left",
        "showarrow": False,
        "font": {"size": 12},
    }


def _say_beyond(fig: go.Figure, errors: Sequence[Errors], part: str) -> None:
    """Annotate which part is shown, the number of errors beyond the bins, and the largest, above the
    buttons."""
    lines = [f"only {part}"] if part else []
    for letter, each in zip("AB", errors, strict=False):
        if each.largest == 0:
            lines.append(f"{letter} has no error")
        spread = each.spread
        beyond = float(spread.share(spread.below).sum() + spread.share(spread.above).sum())
        if beyond:
            which = f"{letter}: " if len(errors) > 1 else ""
            lines.append(f"{which}{100 * beyond:.2g} % lie outside, up to ±{words.number(each.largest)}")
    if lines:
        fig.update_layout(margin={"t": fig.layout.margin.t + NOTE_GAP + NOTE_LINE * len(lines)})
        fig.add_annotation(
            text="<br>".join(lines),
            x=1,
            y=1,
            yshift=SWITCH_HEIGHT + NOTE_GAP,
            xref="paper",
            yref="paper",
            xanchor="right",
            yanchor="bottom",
            align="right",
            showarrow=False,
            font={"size": 10},
        )
