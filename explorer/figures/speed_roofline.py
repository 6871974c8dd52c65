"""Roofline of the products: the slope of memory bandwidth and the ceilings of the core types."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.figures import style
from explorer.figures.products import NOTHING, Dot, Marked, add_dots, products_figure
from explorer.figures.style import MUTED
from explorer.products.advice import fastest
from explorer.recordings.gemm import GemmTiming
from explorer.recordings.machine import MachineLimits

CORES_DRAWN = {
    "f32": "float32",
    "tf32": "TF32",
    "bf16": "BF16",
    "e4m3": "FP8",
    "s8": "INT8",
    "b1": "1 bit",
    "dp4a": "dp4a",
}
"""Core types -> how their ceilings are labelled."""
HEIGHT, ALIKE = 490, 1.15
"""Pixels; rates that differ by less are labelled together."""


def roofline_figure(
    timings: Sequence[GemmTiming], limits: MachineLimits | None, name: str, marked: Marked | None = None
) -> go.Figure:
    """Each product by operations a byte against operations a second, under the roofs of memory and of each
    core type; slope and ceilings meet where a byte feeds just as many operations as the cores do."""
    best = fastest(timings)
    if not best or limits is None:
        return style.empty("its roofs were not measured" if best else NOTHING, f"{name} roofline")
    figure = products_figure("operations per byte moved", "TFLOP/s", f"{name} roofline", HEIGHT)
    dots = [_dot(t) for t in best]
    roofs = {core: limits.rates[core] for core in CORES_DRAWN if core in limits.rates}
    ridges = [rate / limits.copy for rate in roofs.values()]
    low, high = min([d.x for d in dots] + ridges) / 2, max([d.x for d in dots] + ridges) * 2
    rates = [float(d.y) for d in dots] + [rate / 1e12 for rate in roofs.values()]
    bottom, top = min(rates) / 2, max(rates) * 1.6
    _add_slope(figure, limits, low, sorted(ridges) or [high])
    _add_ceilings(figure, limits, roofs, high)
    _add_labels(figure, roofs)
    add_dots(figure, dots, marked or {})
    style.log_axis(figure, "x", low, high)
    style.log_axis(figure, "y", bottom, top)
    figure.update_layout(margin={"r": 44})
    return figure


def _dot(t: GemmTiming) -> Dot:
    share = f", {100 * t.share:.0f} % of its limit" if t.share else ""
    hover = f"{t.label}<br>{words.number(t.tflops)} TFLOP/s{share}<br>{words.kernel_name(t.variant)}"
    return Dot(t.gemm, t.label, t.native, t.operations / t.bytes_moved, t.tflops, hover)


def _add_slope(figure: go.Figure, limits: MachineLimits, low: float, ridges: Sequence[float]) -> None:
    """Memory's roof from ``low`` operations a byte on, through every ridge."""
    xs = [low, *ridges]
    figure.add_scatter(
        x=xs,
        y=[x * limits.copy / 1e12 for x in xs],
        mode="lines",
        name=f"memory, {words.bytes_(limits.copy)}/s",
        line={"color": MUTED, "width": 2},
        hoverinfo="skip",
    )


def _add_ceilings(figure: go.Figure, limits: MachineLimits, roofs: dict[str, float], high: float) -> None:
    for core, rate in roofs.items():
        ridge = rate / limits.copy
        figure.add_scatter(
            x=[ridge, high],
            y=[ridge * limits.copy / 1e12] * 2,
            mode="lines",
            line={"color": MUTED, "width": 1.5, "dash": "dash"},
            name=CORES_DRAWN[core],
            showlegend=False,
            hovertemplate=f"{CORES_DRAWN[core]}: {words.number(rate / 1e12)} TFLOP/s<extra></extra>",
        )


def _add_labels(figure: go.Figure, roofs: dict[str, float]) -> None:
    """Each ceiling's name right of the plot; ceilings that lie together share a line."""
    groups: list[list[str]] = []
    for core in sorted(roofs, key=lambda core: roofs[core]):
        if groups and roofs[core] < ALIKE * roofs[groups[-1][-1]]:
            groups[-1].append(core)
        else:
            groups.append([core])
    for cores in groups:
        figure.add_annotation(
            x=1.0,
            y=math.log10(roofs[cores[-1]] / 1e12),
            xref="paper",
            xanchor="left",
            yanchor="middle",
            text="<br>".join(CORES_DRAWN[core] for core in cores),
            showarrow=False,
            font={"size": 10},
        )
