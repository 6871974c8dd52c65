"""The kernels of one product, one by one."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.figures import style
from explorer.figures.products import color_of, products_figure, row_axis
from explorer.figures.style import MUTED, wrapped
from explorer.recordings.gemm import GemmTiming


def ladder_figure(timings: Sequence[GemmTiming], name: str) -> go.Figure:
    """One product's kernels from the slowest to the fastest as points on a logarithmic axis of time, each
    with its time and the factor between it and the one above."""
    timings = sorted(timings, key=lambda t: -t.seconds)
    if not timings:
        return style.empty("its kernels were measured at another shape", f"{name} ladder")
    figure = products_figure("time (µs), logarithmic", "", f"{name} ladder", 110 + 40 * len(timings))
    times = [t.seconds * 1e6 for t in timings]
    factors = ["", *(f", {words.times(before / after)}" for before, after in itertools.pairwise(times))]
    figure.add_scatter(
        x=times,
        y=[words.kernel_name(t.variant) for t in timings],
        mode="lines+markers+text",
        line={"color": style.GRID, "width": 2},
        marker={"color": color_of(timings[0].gemm), "size": 11},
        name="kernels",
        text=[words.duration(t.seconds) + factor for t, factor in zip(timings, factors, strict=True)],
        textposition="top center",
        textfont={"size": 11},
        cliponaxis=False,
        customdata=[[f"{words.number(t.tflops)} TFLOP/s", _where(t)] for t in timings],
        hovertemplate="%{y}: %{text}, %{customdata[0]}<br>%{customdata[1]}<extra></extra>",
    )
    baselines = [t.baseline_graph.median_s for t in timings if t.baseline_graph]
    if baselines:
        _add_baseline_line(figure, timings, baselines[-1])
        times.append(1e6 * baselines[-1])
    row_axis(
        figure, {words.kernel_name(t.variant): wrapped(words.kernel_name(t.variant), 16) for t in timings}
    )
    figure.update_yaxes(range=[len(timings) - 0.5, -0.8])
    style.log_axis(figure, "x", min(times) / 2, max(times) * 2)
    return figure


def _where(timing: GemmTiming) -> str:
    """The kernel's file, or the package that has it."""
    return timing.file if timing.on_cpu else f"kernels/{timing.file}"


def _add_baseline_line(figure: go.Figure, timings: Sequence[GemmTiming], seconds: float) -> None:
    label = f"{timings[-1].baseline}: {words.duration(seconds)}"
    figure.add_scatter(
        x=[1e6 * seconds] * 2,
        y=[words.kernel_name(t.variant) for t in (timings[0], timings[-1])],
        mode="lines",
        name=label,
        line={"color": MUTED, "width": 2, "dash": "dot"},
        hovertemplate=f"{label}<extra></extra>",
    )
