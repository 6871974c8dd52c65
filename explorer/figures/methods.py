"""Figures of the Methods tab: what each method leaves of the error, and how it got there."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.subplots import make_subplots
from torch import Tensor

from explorer.figures.style import FONT, GRID, MAGNITUDE_SCALE, MUTED, SERIES, empty, figure, file_name
from explorer.methods import METHODS, objective_axis
from explorer.methods.evaluate import Outcome
from explorer.methods.llm_int8 import THRESHOLD
from explorer.methods.method import ObjectiveAxis
from explorer.models.evaluate import EmbeddingDrift

NOTHING = "nothing run yet"
SNAPSHOT_ROWS, SNAPSHOT_COLUMNS, SLIDER_STEPS = 24, 128, 13
SURFACE_TOKENS, SURFACE_CHANNELS = 48, 96


def output_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """SQNR of the layer's output by method, schemes side by side."""
    rows = [o for o in outcomes if not o.refused]
    if not rows:
        return empty(NOTHING, f"{name} methods")
    labels = list(dict.fromkeys(o.label for o in rows))[::-1]
    schemes = list(dict.fromkeys(o.scheme for o in rows))
    fig = figure(
        "SQNR of the output on held-out inputs, dB",
        "",
        f"{name} methods",
        height=140 + 26 * len(labels) * len(schemes),
    )
    for index, scheme in enumerate(schemes):
        of_scheme = [o for o in rows if o.scheme == scheme]
        fig.add_bar(
            x=[o.output_sqnr_db for o in of_scheme],
            y=[o.label for o in of_scheme],
            orientation="h",
            name=scheme,
            marker={"color": SERIES[index % len(SERIES)]},
            customdata=[[100 * o.output_error, o.bits, o.seconds] for o in of_scheme],
            hovertemplate="%{y}<br>%{x:.2f} dB, %{customdata[0]:.3g} % of the output<br>"
            "%{customdata[1]:.3f} bits per weight, %{customdata[2]:.2f} s<extra></extra>",
        )
    fig.update_layout(barmode="group", bargap=0.25, margin={"l": 10})
    fig.update_yaxes(categoryorder="array", categoryarray=labels, showgrid=False)
    return fig


def objective_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """What each method minimised, relative to its start, and its choice: over α and over iterations by the
    axis below, GPTQ over its damping by the logarithmic one above."""
    axes = _objective_axes()
    titles = {
        log: ", ".join(f"{axis.label} ({label})" for axis, label in axes.items() if axis.log is log)
        for log in (False, True)
    }
    fig = figure(titles[False], "objective relative to its start", f"{name} objectives", height=480)
    for outcome in outcomes:
        axis, objective = objective_axis(outcome.method), outcome.objective
        if axis is None or not objective or not objective[0]:
            continue
        xs = axis.values or np.linspace(0, 1, len(objective))
        best = int(np.argmin(objective))
        color = SERIES[len(fig.data) // 2 % len(SERIES)]
        on = {"xaxis": "x2" if axis.log else "x"}
        fig.add_scatter(
            x=xs,
            y=[v / objective[0] for v in objective],
            mode="lines",
            name=f"{outcome.label}, {outcome.scheme}",
            line={"color": color, "width": 2, "dash": "dot" if axis.log else "solid"},
            hovertemplate="%{x:.3~g}: %{y:.4f}<extra></extra>",
            **on,
        )
        chosen = f"chosen {axis.label}" if axis.values else "least at"
        fig.add_scatter(
            x=[xs[best]],
            y=[objective[best] / objective[0]],
            mode="markers",
            showlegend=False,
            marker={"color": color, "size": 10},
            hovertemplate=chosen + " %{x:.3~g}: %{y:.4f}<extra></extra>",
            **on,
        )
    if not fig.data:
        return empty(f"run {' or '.join(axes.values())} to see what they minimise", f"{name} objectives")
    fig.update_layout(legend={"y": -0.3})
    if any(trace.xaxis == "x2" for trace in fig.data):
        above = {"overlaying": "x", "side": "top", "type": "log", "title": {"text": titles[True]}}
        fig.update_layout(xaxis2={**above, "showgrid": False}, margin={"t": 60})
    return fig


def _objective_axes() -> dict[ObjectiveAxis, str]:
    """Every axis that a method's objective is drawn over, with the first such method's label."""
    axes: dict[ObjectiveAxis, str] = {}
    for row in METHODS.values():
        if row.objective is not None:
            axes.setdefault(row.objective, row.label)
    return axes


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
            z=np.round(frame.numpy() / (top or 1.0), 3),
            x=xs,
            y=ys,
            coloraxis="coloraxis",
            visible=index == last,
            hovertemplate="channel %{x}: %{z:.2f}<extra></extra>",
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
        "cmax": 1,
        "colorbar": {"title": {"text": "moved", "side": "right"}, "thickness": 10},
    }
    fig.update_layout(sliders=[slider], margin={"b": 110}, coloraxis=colors)
    return fig


def channel_error_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """Each output channel's relative error under the first scheme, sorted, a curve a method."""
    rows = [o for o in outcomes if not o.refused and o.scheme == outcomes[0].scheme]
    if not rows:
        return empty(NOTHING, f"{name} channels")
    fig = figure(
        "output channels, from the least error to the most (%)",
        f"relative error, {rows[0].scheme}",
        f"{name} channel error",
        height=440,
    )
    for index, o in enumerate(rows[:12]):
        values = np.sort(np.asarray(o.channel_error))
        at = np.unique(np.linspace(0, len(values) - 1, min(len(values), 200)).astype(int))
        fig.add_scatter(
            x=np.round(100 * at / max(len(values) - 1, 1), 2),
            y=[float(f"{v:.4g}") for v in values[at]],
            mode="lines",
            name=o.label,
            line={
                "color": SERIES[index % len(SERIES)],
                "width": 2,
                "dash": "solid" if index < len(SERIES) else "dot",
            },
            hovertemplate="%{y:.3g}<extra></extra>",
        )
    fig.update_yaxes(type="log")
    fig.update_layout(legend={"y": -0.3})
    return fig


def channels_figure(
    x: Tensor | None, w: Tensor | None, x_after: Tensor | None, w_after: Tensor | None, name: str
) -> go.Figure:
    """The largest magnitude of each input channel, of inputs and weights, before and after a transform.

    The line at 6.0 is LLM.int8()'s: columns above it are outliers.
    """
    if x is None or w is None:
        return empty(NOTHING, f"{name} input channels")
    fig = figure("input channel", "largest magnitude", f"{name} input channels", height=660)
    fig.update_layout(legend={"y": -0.12})
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
    fig.update_yaxes(type="log")
    return fig


def surface_figure(
    x: Tensor | None, w: Tensor | None, x_after: Tensor | None, w_after: Tensor | None, label: str, name: str
) -> go.Figure:
    """|X| by token and channel, below it |W| by output and input channel, before and after a transform.

    The largest of each tile, so that no outlier vanishes; each pair shares one height axis.
    """
    if x is None or w is None or x_after is None or w_after is None:
        return empty(
            "run SmoothQuant, AWQ or a rotation to see inputs and weights before and after", f"{name} surface"
        )
    fig = make_subplots(
        rows=2,
        cols=2,
        specs=[[{"type": "surface"}] * 2] * 2,
        horizontal_spacing=0.01,
        vertical_spacing=0.06,
        subplot_titles=("inputs as they come", label, "weights as they come", label),
    )
    axis = {"tickfont": {"size": 10, "color": MUTED}, "gridcolor": GRID, "showbackground": False}
    font = {"size": 11, "color": MUTED}  # drawn by WebGL, where a style sheet does not reach
    scenes = {}
    for row, (pair, side, height) in enumerate(
        (((x, x_after), "token", "|x|"), ((w, w_after), "output channel", "|w|")), 1
    ):
        top = float(max(values.abs().max() for values in pair))
        for column, values in enumerate(pair, 1):
            size = (min(SURFACE_TOKENS, values.shape[0]), min(SURFACE_CHANNELS, values.shape[1]))
            small = torch.nn.functional.adaptive_max_pool2d(values.abs().float().cpu()[None], size)[0].numpy()
            fig.add_surface(
                z=np.round(small / top, 3) * top,
                x=np.linspace(0, values.shape[1] - 1, size[1]).round(),
                y=np.linspace(0, values.shape[0] - 1, size[0]).round(),
                colorscale=MAGNITUDE_SCALE,
                cmin=0,
                cmax=top,
                showscale=False,
                row=row,
                col=column,
                hovertemplate="channel %{x}, " + side + " %{y}: %{z:.3g}<extra></extra>",
            )
            scenes[f"scene{2 * row + column - 2}".replace("scene1", "scene")] = {
                "xaxis": {**axis, "title": {"text": "channel", "font": font}},
                "yaxis": {**axis, "title": {"text": side, "font": font}},
                "zaxis": {**axis, "title": {"text": height, "font": font}, "range": [0, top]},
                "camera": {"eye": {"x": 1.5, "y": -1.5, "z": 0.9}},
                "aspectmode": "manual",
                "aspectratio": {"x": 1.3, "y": 1, "z": 0.7},
            }
    fig.update_layout(
        template="none",
        height=680,
        margin={"l": 0, "r": 0, "t": 28, "b": 0},
        paper_bgcolor="rgba(0,0,0,0)",
        font={"family": FONT, "size": 12, "color": "#344054"},
        meta={"filename": file_name(f"{name} surface")},
        **scenes,
    )
    fig.update_annotations(font={"size": 13})
    return fig


def drift_figure(rows: Sequence[EmbeddingDrift], name: str) -> go.Figure:
    """Agreement of embeddings with the originals (cosine, ranks, neighbours) against bits per weight."""
    if not rows:
        return empty(NOTHING, f"{name} embeddings")
    fig = figure("bits per weight", "agreement with the original model", f"{name} embeddings", height=380)
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
