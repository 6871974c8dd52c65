"""Figures of training: accuracy against bits, curves, learned step sizes, gradients lost by float16."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from explorer.figures.style import MUTED, SERIES, TEXT, add_line, captioned, empty, figure
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
DIGITS = "a network that reads 8 × 8 handwritten digits"
RECOGNISED = "test images recognised, %"
COLORS = {FLOAT: MUTED, LONGER: TEXT, POST: SERIES[3], STRAIGHT: SERIES[0], LSQ: SERIES[2]}


def accuracy_figure(results: Sequence[Trained]) -> go.Figure:
    """Draw the mean accuracy at each width with its extremes over seeds; float32 as lines across."""
    name = "accuracy against bits"
    if not results:
        return empty(NOTHING, name)
    rows, widths = accuracy_rows(results), [w for w in WIDTHS if any(r.width == w for r in results)]
    fig = captioned(figure("bits per weight", RECOGNISED, name, height=420), "Accuracy against bits", DIGITS)
    for stage in stages(results):
        members = [r for r in rows if r.stage == stage]
        mean = [100 * r.mean for r in members]
        if stage in (FLOAT, LONGER):
            hover, look = stage + ": %{y:.2f} %", {"width": 1.5, "dash": "dash"}
            add_line(fig, stage, widths, mean[:1] * len(widths), COLORS[stage], hover, **look)
            continue
        bars = {
            "type": "data",
            "symmetric": False,
            "array": [100 * (r.most - r.mean) for r in members],
            "arrayminus": [100 * (r.mean - r.least) for r in members],
            "thickness": 1,
            "width": 3,
        }
        hover, told = f"{stage}, %{{customdata}}: %{{y:.2f}} %", [width_words(r.width) for r in members]
        more = {"error_y": bars, "customdata": told}
        add_line(fig, stage, [r.width for r in members], mean, COLORS[stage], hover, size=8, **more)
    return fig.update_xaxes(type="category", categoryorder="array", categoryarray=widths)


def curves_figure(results: Sequence[Trained]) -> go.Figure:
    """Draw the accuracy after each epoch of training on, first seed, a curve per network."""
    first = [r for r in results if r.seed == 0 and r.curve and r.stage != FLOAT]
    if not first:
        return empty(NOTHING, "training curves")
    fig = figure("epoch of training on", RECOGNISED, "training curves", height=380)
    captioned(fig, "Accuracy while training on", DIGITS)
    colors = dict(zip(["32", *WIDTHS], [MUTED, *SERIES, "#8C564B", "#17BECF", "#BCBD22"], strict=False))
    for r in first:
        name, dash = (f"{r.width} LSQ", "dot") if r.stage == LSQ else (r.width, "solid")
        epochs, curve = list(range(1, len(r.curve) + 1)), [100 * a for a in r.curve]
        hover = f"{width_words(r.width)}, {r.stage}: %{{y:.2f}} %"
        add_line(fig, name, epochs, curve, colors[r.width], hover, dash=dash)
    return fig


def steps_figure(results: Sequence[Trained]) -> go.Figure:
    """Draw each layer's mean LSQ step size after training, relative to before, first seed."""
    first = [r for r in results if r.seed == 0 and r.stage == LSQ and r.steps]
    if not first:
        return empty("LSQ learns step sizes for integer widths: none trained yet", "learned steps")
    fig = figure("bits per weight", "step size after training / before", "learned steps")
    captioned(fig, "Step sizes that LSQ learned", DIGITS)
    for layer in range(len(first[0].steps)):
        fig.add_bar(
            x=[r.width for r in first],
            y=[r.steps[layer][1] / r.steps[layer][0] for r in first],
            name=f"layer {layer + 1}",
            marker={"color": SERIES[layer % len(SERIES)]},
            customdata=[list(r.steps[layer]) for r in first],
            hovertemplate="%{x} bits: from %{customdata[0]:.4g} to %{customdata[1]:.4g}"
            f"<extra>layer {layer + 1}</extra>",
        )
    fig.add_hline(y=1, line={"color": MUTED, "dash": "dash", "width": 1})
    fig.update_xaxes(type="category")
    return fig.update_layout(barmode="group", bargap=0.3)


def underflow_figure(rows: Sequence[Underflow]) -> go.Figure:
    """Draw the share of a batch's gradients that float16 flushes or overflows, and bfloat16 flushes, by loss
    scale."""
    if not rows:
        return empty(NOTHING, "loss scaling")
    fig = figure("loss scale", "gradients lost, %", "loss scaling")
    captioned(fig, "Gradients lost by float16", DIGITS)
    for attribute, label, color in (
        ("lost", "FP16: flushed to zero", SERIES[0]),
        ("overflowed", "FP16: overflow to Inf", SERIES[3]),
        ("lost_bf16", "BF16: flushed to zero", SERIES[2]),
    ):
        scales, shares = [r.loss_scale for r in rows], [100 * getattr(r, attribute) for r in rows]
        hover = f"scale %{{x:.0f}}: %{{y:.3f}} %<extra>{label}</extra>"
        add_line(fig, label, scales, shares, color, hover, mode="lines+markers")
    return fig.update_xaxes(type="log", exponentformat="power")
