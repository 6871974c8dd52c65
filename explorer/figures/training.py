"""Figures of training: accuracy against bits, curves, learned step sizes, gradients lost by
float16."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from explorer.figures.style import MUTED, SERIES, empty, figure
from explorer.training.digits import (
    FLOAT,
    LONGER,
    LSQ,
    POST,
    STRAIGHT,
    WIDTHS,
    Trained,
    Underflow,
    accuracy_rows,
    stages,
    width_words,
)

NOTHING = "nothing trained yet: press Train"
COLORS = {FLOAT: MUTED, LONGER: "#344054", POST: SERIES[3], STRAIGHT: SERIES[0], LSQ: SERIES[2]}


def accuracy_figure(results: Sequence[Trained]) -> go.Figure:
    """Mean accuracy at each width with its extremes over seeds; float32 as lines across."""
    if not results:
        return empty(NOTHING, "accuracy against bits")
    rows, widths = accuracy_rows(results), [w for w in WIDTHS if any(r.width == w for r in results)]
    fig = figure("bits per weight", "test images recognised, %", "accuracy against bits", height=420)
    for stage in stages(results):
        of_stage = [r for r in rows if r.stage == stage]
        mean = [100 * r.mean for r in of_stage]
        if stage in (FLOAT, LONGER):
            fig.add_scatter(
                x=widths,
                y=[mean[0]] * len(widths),
                mode="lines",
                name=stage,
                line={"color": COLORS[stage], "dash": "dash", "width": 1.5},
                hovertemplate=stage + ": %{y:.2f} %<extra></extra>",
            )
            continue
        fig.add_scatter(
            x=[r.width for r in of_stage],
            y=mean,
            mode="lines+markers",
            name=stage,
            line={"color": COLORS[stage], "width": 2},
            marker={"size": 8},
            error_y={
                "type": "data",
                "symmetric": False,
                "array": [100 * (r.most - r.mean) for r in of_stage],
                "arrayminus": [100 * (r.mean - r.least) for r in of_stage],
                "thickness": 1,
                "width": 3,
            },
            customdata=[width_words(r.width) for r in of_stage],
            hovertemplate=f"{stage}, %{{customdata}}: %{{y:.2f}} %<extra></extra>",
        )
    fig.update_xaxes(type="category", categoryorder="array", categoryarray=widths)
    return fig


def curves_figure(results: Sequence[Trained]) -> go.Figure:
    """Accuracy after each epoch of training on, first seed, a curve per network."""
    first = [r for r in results if r.seed == 0 and r.curve and r.stage != FLOAT]
    if not first:
        return empty(NOTHING, "training curves")
    fig = figure("epoch of training on", "test images recognised, %", "training curves", height=380)
    colors = dict(zip(["32", *WIDTHS], [MUTED, *SERIES, "#8C564B", "#17BECF", "#BCBD22"], strict=False))
    for r in first:
        fig.add_scatter(
            x=list(range(1, len(r.curve) + 1)),
            y=[100 * a for a in r.curve],
            mode="lines",
            name=f"{r.width} {'LSQ' if r.stage == LSQ else ''}".strip(),
            line={"color": colors[r.width], "width": 2, "dash": "dot" if r.stage == LSQ else "solid"},
            hovertemplate=f"{width_words(r.width)}, {r.stage}: %{{y:.2f}} %<extra></extra>",
        )
    return fig


def steps_figure(results: Sequence[Trained]) -> go.Figure:
    """Each layer's mean LSQ step size after training over that before, first seed."""
    first = [r for r in results if r.seed == 0 and r.stage == LSQ and r.steps]
    if not first:
        return empty("LSQ learns step sizes for integer widths: none trained yet", "learned steps")
    fig = figure("bits per weight", "step size after training / before", "learned steps", height=340)
    for layer in range(len(first[0].steps)):
        fig.add_bar(
            x=[r.width for r in first],
            y=[r.steps[layer][1] / r.steps[layer][0] for r in first],
            name=f"layer {layer + 1}",
            marker={"color": SERIES[layer % len(SERIES)]},
            customdata=[[r.steps[layer][0], r.steps[layer][1]] for r in first],
            hovertemplate="%{x} bits: from %{customdata[0]:.4g} to %{customdata[1]:.4g}<extra>layer "
            + str(layer + 1)
            + "</extra>",
        )
    fig.add_hline(y=1, line={"color": MUTED, "dash": "dash", "width": 1})
    fig.update_layout(barmode="group", bargap=0.3)
    fig.update_xaxes(type="category")
    return fig


def underflow_figure(rows: Sequence[Underflow]) -> go.Figure:
    """Share of a batch's gradients that float16 flushes or overflows, and bfloat16 flushes, by loss scale."""
    if not rows:
        return empty(NOTHING, "loss scaling")
    fig = figure("loss scale", "gradients lost, %", "loss scaling", height=340)
    for values, label, color in (
        ([r.lost for r in rows], "FP16: flushed to zero", SERIES[0]),
        ([r.overflowed for r in rows], "FP16: overflow to Inf", SERIES[3]),
        ([r.lost_bf16 for r in rows], "BF16: flushed to zero", SERIES[2]),
    ):
        fig.add_scatter(
            x=[r.loss_scale for r in rows],
            y=[100 * v for v in values],
            mode="lines+markers",
            name=label,
            line={"color": color, "width": 2},
            hovertemplate="scale %{x:.0f}: %{y:.3f} %<extra>" + label + "</extra>",
        )
    fig.update_xaxes(type="log", exponentformat="power")
    return fig
