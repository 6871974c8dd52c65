"""Figures of the methods: what each method leaves of the error, and how it got there."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from explorer import words
from explorer.figures.products import products_figure, row_axis
from explorer.figures.style import (
    GRID,
    MAGNITUDE_SCALE,
    MUTED,
    SERIES,
    axis_look,
    empty,
    figure,
    log_axis,
    wrapped,
)
from explorer.methods import METHODS, objective_axis
from explorer.methods.evaluate import Outcome
from explorer.methods.llm_int8 import THRESHOLD
from explorer.models.evaluate import EmbeddingDrift
from explorer.schemes.scheme import label_of_text

NOTHING = "nothing run yet"
COLORS = (*SERIES, "#8C564B", "#5B3A8E", "#17BECF", "#BCBD22")
SNAPSHOT_ROWS, SNAPSHOT_COLUMNS, SLIDER_STEPS = 24, 128, 13
MAP_ROWS, MAP_CHANNELS, DARKEST = 64, 192, 256
"""Cells of a heat map, and how many times the largest magnitude is the darkest."""
PANEL_HEIGHT, DASHES = 190, ("solid", "dot", "dash", "dashdot")


def output_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """SQNR of the layer's output by method, the best under the first scheme at the top, schemes side by
    side."""
    rows = [o for o in outcomes if not o.refused]
    if not rows:
        return empty(NOTHING, f"{name} methods")
    schemes = list(dict.fromkeys(o.scheme for o in rows))
    ranked = sorted(rows, key=lambda o: (schemes.index(o.scheme), -o.output_sqnr_db))
    labels = {o.label: wrapped(o.label) for o in ranked}
    height = 110 + (18 + 16 * len(schemes)) * len(labels)
    fig = products_figure("output SQNR on held-out inputs (dB)", "", f"{name} methods", height)
    for index, scheme in enumerate(schemes):
        of_scheme = [o for o in rows if o.scheme == scheme]
        fig.add_bar(
            x=[o.output_sqnr_db for o in of_scheme],
            y=[o.label for o in of_scheme],
            orientation="h",
            name=label_of_text(scheme),
            marker={"color": SERIES[index % len(SERIES)]},
            text=[f"{o.output_sqnr_db:.1f}" for o in of_scheme],
            textposition="outside",
            cliponaxis=False,
            customdata=[[_costs(o)] for o in of_scheme],
            hovertemplate="%{y}<br>%{x:.2f} dB, %{customdata[0]}<extra></extra>",
        )
    fig.update_layout(barmode="group", bargap=0.3, margin={"l": 10, "r": 36})
    row_axis(fig, labels)
    return fig


def _costs(o: Outcome) -> str:
    error = f"{words.number(100 * o.output_error)} % of the output"
    return f"{error}<br>{o.bits:.3f} bits per weight, {words.duration(o.seconds)}"


def objective_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """The objective of each method, relative to its start, with the minimum marked: one plot per x-axis
    quantity. A method has one colour, a scheme one dash; a click on the legend hides a method.
    """
    drawn = [o for o in outcomes if objective_axis(o.method) and o.objective and o.objective[0]]
    if not drawn:
        searching = ", ".join(row.label for row in METHODS.values() if row.objective is not None)
        return empty(
            f"none of these searches; run one of {searching}",
            f"{name} objectives",
        )
    axes = list(dict.fromkeys(objective_axis(o.method) for o in drawn))
    fig = products_figure("", "", f"{name} objectives", 90 + PANEL_HEIGHT * len(axes))
    fig.set_subplots(rows=len(axes), cols=1, vertical_spacing=0.3 / len(axes) if len(axes) > 1 else 0)
    colors = _colors(outcomes)
    schemes = list(dict.fromkeys(o.scheme for o in drawn))
    for outcome in drawn:
        row = axes.index(objective_axis(outcome.method)) + 1
        first = outcome.scheme == next(o.scheme for o in drawn if o.label == outcome.label)
        look = {
            "color": colors[outcome.label],
            "dash": DASHES[schemes.index(outcome.scheme) % len(DASHES)],
        }
        _add_objective(fig, outcome, row, look, first)
    if len(schemes) > 1:
        _add_dashes(fig, schemes)
    for row, axis in enumerate(axes, 1):
        assert axis is not None
        fig.update_xaxes(axis_look(axis.label), row=row, col=1)
        if axis.log:
            fig.update_xaxes(type="log", tickformat=",~r", nticks=3, row=row, col=1)
        fig.update_yaxes({**axis_look("share of its start"), "nticks": 5}, row=row, col=1)
    return fig


def _colors(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """A colour for each method's label, the same in every figure of one run."""
    return dict(zip(dict.fromkeys(o.label for o in outcomes), itertools.cycle(COLORS), strict=False))


def _add_objective(fig: go.Figure, outcome: Outcome, row: int, look: dict[str, str], first: bool) -> None:
    """One method's curve in the plot ``row``, and its least value."""
    axis, objective = objective_axis(outcome.method), outcome.objective
    assert axis is not None
    xs = axis.values or np.linspace(0, 1, len(objective))
    shares = [v / objective[0] for v in objective]
    best = int(np.argmin(objective))
    what = f"{outcome.label}, {outcome.scheme_label}"
    fig.add_scatter(
        x=xs,
        y=shares,
        mode="lines",
        name=outcome.label,
        legendgroup=outcome.label,
        showlegend=first,
        line={**look, "width": 2},
        hovertemplate=what + "<br>%{x:.3~g}: %{y:.4f}<extra></extra>",
        row=row,
        col=1,
    )
    fig.add_scatter(
        x=[xs[best]],
        y=[shares[best]],
        mode="markers",
        legendgroup=outcome.label,
        showlegend=False,
        marker={"color": look["color"], "size": 9},
        hovertemplate=what
        + (f"<br>chosen {axis.label}" if axis.values else "<br>least at")
        + " %{x:.3~g}: %{y:.4f}<extra></extra>",
        row=row,
        col=1,
    )


def _add_dashes(fig: go.Figure, schemes: Sequence[str]) -> None:
    """Add legend entries that assign dashes to schemes."""
    for index, scheme in enumerate(schemes):
        line = {"color": MUTED, "dash": DASHES[index % len(DASHES)], "width": 2}
        fig.add_scatter(x=[None], y=[None], mode="lines", name=label_of_text(scheme), line=line)


def snapshots_figure(outcome: Outcome | None, weight: Tensor | None, name: str) -> go.Figure:
    """GPTQ at work: how far the first rows' weights are from the originals, after each block of columns.

    Left of the front that is their rounding error, right of it the updates that make up for it.
    """
    snapshots = outcome.layer.snapshots if outcome and outcome.layer else None
    if snapshots is None or weight is None or snapshots.shape[2] != weight.shape[1]:
        return empty("run GPTQ to see it at work", f"{name} film")
    moved = (snapshots - weight[: snapshots.shape[1]].float().cpu()).abs()
    chosen = np.unique(np.linspace(0, len(moved) - 1, min(SLIDER_STEPS, len(moved))).astype(int))
    size = (min(SNAPSHOT_ROWS, moved.shape[1]), min(SNAPSHOT_COLUMNS, moved.shape[2]))
    small = torch.nn.functional.adaptive_max_pool2d(moved[chosen][None], size)[0]
    k, top, last = moved.shape[2], float(small.amax()), len(small) - 1
    fig = figure("input channel", "output channel", f"{name} film", height=400)
    xs = np.linspace(0, k - 1, small.shape[2]).round().astype(int)
    ys = np.linspace(0, moved.shape[1] - 1, small.shape[1]).round().astype(int)
    for index, frame in enumerate(small):
        fig.add_heatmap(
            z=np.round(255 * frame.numpy() / (top or 1.0)).astype(np.uint8),
            x=xs,
            y=ys,
            coloraxis="coloraxis",
            visible=index == last,
            hovertemplate="input channel %{x}, output channel %{y}<extra></extra>",
        )
    steps = []
    for index, block in enumerate(chosen):
        shown = [other == index for other in range(len(small))]
        done = f"{round(100 * (int(block) + 1) / len(moved))} %"
        steps.append({"method": "restyle", "label": done, "args": [{"visible": shown}]})
    slider = {
        "steps": steps,
        "active": last,
        "currentvalue": {"prefix": "columns rounded: "},
        "pad": {"t": 36},
        "bordercolor": GRID,
        "bgcolor": "rgba(128,140,160,0.25)",
    }
    colors = {
        "colorscale": MAGNITUDE_SCALE,
        "cmin": 0,
        "cmax": 255,
        "colorbar": {
            "title": {"text": "moved", "side": "right", "font": {"size": 12}},
            "thickness": 10,
            "outlinewidth": 0,
            "tickvals": [0, 127.5, 255],
            "ticktext": [words.number(share * top, 2) for share in (0, 0.5, 1)],
        },
    }
    fig.update_layout(sliders=[slider], margin={"b": 110, "t": 8}, coloraxis=colors)
    return fig


def channel_error_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """Each output channel's relative error under the first scheme, sorted, a curve a method."""
    rows = [o for o in outcomes if not o.refused and o.scheme == outcomes[0].scheme]
    if not rows:
        return empty(NOTHING, f"{name} channels")
    y_title = f"relative error, {rows[0].scheme_label}"
    fig = products_figure("output channels, least error first (%)", y_title, f"{name} channel error", 460)
    colors = _colors(outcomes)
    for index, o in enumerate(rows[:12]):
        values = np.sort(np.asarray(o.channel_error))
        at = np.unique(np.linspace(0, len(values) - 1, min(len(values), 200)).astype(int))
        fig.add_scatter(
            x=np.round(100 * at / max(len(values) - 1, 1), 2),
            y=[float(f"{v:.4g}") for v in values[at]],
            mode="lines",
            name=o.label,
            line={
                "color": colors[o.label],
                "width": 2,
                "dash": "solid" if index < len(COLORS) else "dot",
            },
            hovertemplate="%{y:.3g}<extra></extra>",
        )
    errors = [float(v) for trace in fig.data for v in trace.y if v > 0]
    return log_axis(fig, "y", min(errors) / 1.2, max(errors) * 1.2) if errors else fig


def channels_figure(
    x: Tensor | None, w: Tensor | None, x_after: Tensor | None, w_after: Tensor | None, name: str
) -> go.Figure:
    """The largest magnitude of each input channel, of inputs and weights, before and after a transform.

    The line at 6.0 is LLM.int8()'s: columns above it are outliers.
    """
    if x is None or w is None:
        return empty(NOTHING, f"{name} input channels")
    fig = products_figure("input channel", "largest magnitude", f"{name} input channels", 480)
    shown = [(x, "inputs", SERIES[0], "solid"), (w, "weights", SERIES[1], "solid")]
    if x_after is not None and w_after is not None:
        shown += [
            (x_after, "inputs, changed", SERIES[0], "dot"),
            (w_after, "weights, changed", SERIES[1], "dot"),
        ]
    for values, label, color, dash in shown:
        top = values.abs().amax(0).float().cpu().numpy()
        fig.add_scatter(
            x=np.arange(len(top)),
            y=[float(f"{v:.3g}") for v in top],
            mode="lines",
            name=label,
            line={"color": color, "width": 1.2, "dash": dash},
            hovertemplate="channel %{x}: %{y:.3g}<extra>" + label + "</extra>",
        )
    top = x.abs().amax(0).float().cpu().numpy()
    outliers = np.flatnonzero(top >= THRESHOLD)
    if len(outliers):
        fig.add_scatter(
            x=outliers,
            y=top[outliers],
            mode="markers",
            name="outlier columns (LLM.int8())",
            marker={"color": SERIES[3], "size": 9, "symbol": "circle-open", "line": {"width": 2}},
            hovertemplate="channel %{x}: %{y:.3g}<extra></extra>",
        )
    fig.add_hline(y=THRESHOLD, line={"color": MUTED, "dash": "dash", "width": 1})
    drawn = [float(v) for trace in fig.data for v in trace.y if v > 0]
    return log_axis(fig, "y", min(drawn) / 1.3, max(*drawn, THRESHOLD) * 1.3) if drawn else fig


def before_after_figure(
    before: Tensor | None, after: Tensor | None, side: str, label: str, name: str
) -> go.Figure:
    """Two heat maps of magnitudes [rows, channels] on one logarithmic scale, ``before`` above ``after``;
    ``label`` names the latter, ``side`` what a row is.

    The largest of each tile, so that no outlier vanishes. Magnitudes below 1/256 of the largest have its
    colour.
    """
    title = f"{name} {side}s before and after"
    if before is None or after is None:
        return empty("run SmoothQuant, AWQ or a rotation to see this before and after", title)
    top = float(max(values.abs().max() for values in (before, after))) or 1.0
    fig = figure("", "", title, height=420)
    fig.set_subplots(
        rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.14, subplot_titles=("as they come", label)
    )
    for row, values in enumerate((before, after), 1):
        size = (min(MAP_ROWS, values.shape[0]), min(MAP_CHANNELS, values.shape[1]))
        tiles = torch.nn.functional.adaptive_max_pool2d(values.abs().float().cpu()[None], size)[0]
        shares = (tiles / top).clamp(min=1 / DARKEST).log2().numpy()
        fig.add_heatmap(
            z=np.round(255 * (1 + shares / math.log2(DARKEST))).astype(np.uint8),
            x=np.linspace(0, values.shape[1] - 1, size[1]).round().astype(np.int32),
            y=np.linspace(0, values.shape[0] - 1, size[0]).round().astype(np.int32),
            coloraxis="coloraxis",
            hovertemplate="channel %{x}, " + side + " %{y}<extra></extra>",
            row=row,
            col=1,
        )
        fig.update_yaxes({**axis_look(side), "nticks": 4, "showgrid": False}, row=row, col=1)
        fig.update_xaxes(
            {**axis_look("input channel" if row == 2 else ""), "showgrid": False}, row=row, col=1
        )
    ticks = [DARKEST ** (step / 4) / DARKEST for step in range(5)]
    fig.update_layout(
        margin={"t": 22, "b": 44, "l": 52},
        coloraxis={
            "colorscale": MAGNITUDE_SCALE,
            "cmin": 0,
            "cmax": 255,
            "colorbar": {
                "thickness": 10,
                "outlinewidth": 0,
                "tickvals": [255 * step / 4 for step in range(5)],
                "ticktext": [words.number(top * share, 2) for share in ticks],
            },
        },
    )
    fig.update_annotations(font={"size": 12})
    return fig


def drift_figure(rows: Sequence[EmbeddingDrift], name: str) -> go.Figure:
    """Agreement of embeddings with the originals (cosine, ranks, neighbours) against bits per weight."""
    if not rows:
        return empty(NOTHING, f"{name} embeddings")
    y_title = "agreement with the original model"
    fig = products_figure("bits per weight", y_title, f"{name} embeddings", 420)
    for values, label, color, symbol in (
        ([r.cosine for r in rows], "cosine to the original (mean)", SERIES[0], "circle"),
        ([r.rank for r in rows], "rank correlation of similarities", SERIES[1], "diamond"),
        ([r.neighbours for r in rows], "same nearest sentence", SERIES[2], "square"),
    ):
        fig.add_scatter(
            x=[round(r.bits, 3) for r in rows],
            y=[round(v, 5) for v in values],
            mode="markers",
            name=label,
            marker={"color": color, "size": 10, "symbol": symbol},
            customdata=[[f"{r.scheme}, {r.method}"] for r in rows],
            hovertemplate="%{customdata[0]}<br>%{y:.4f} at %{x:.3f} bits<extra></extra>",
        )
    fig.update_yaxes(range=[min(0, *(r.cosine for r in rows)), 1.03])
    return fig
