"""Figures of what one or two schemes did to one tensor: their scales and codes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from explorer import words
from explorer.analysis.tensor import MAP_LIMIT, Side
from explorer.analysis.tiles import tile_maximum
from explorer.core.quantize import QuantizedTensor
from explorer.figures.maps import ColourScale, map_figure
from explorer.figures.style import (
    A,
    B,
    empty,
    figure,
    switch_axis,
)
from explorer.formats import FloatFormat, float_format

LINE_POINTS = 1024
"""The most points of a line of scales; each is the largest of its run."""
COLORS = (A, B)


def scales_figures(sides: Sequence[Side], name: str) -> list[go.Figure]:
    """The scales over the matrix for each of one or two ``sides``: a map, or a line where there is one a row
    or one a column; on one range of scales."""
    grids = [_scales_of(side.analysis.q) for side in sides]
    scale = ColourScale.of([grid for grid in grids if grid is not None and grid.numel() > 1], True)
    return [
        _scales_figure(grid, scale, color, f"{name} scales{f' {letter}' if len(sides) > 1 else ''}")
        for grid, color, letter in zip(grids, COLORS, "AB", strict=False)
    ]


def _scales_of(q: QuantizedTensor) -> Tensor | None:
    """The magnitudes of the scales; None for a cast."""
    return None if q.scheme.scale is None else q.scales.scale.cpu().abs()


def _scales_figure(scales: Tensor | None, scale: ColourScale, color: str, name: str) -> go.Figure:
    if scales is None:
        return empty("this scheme casts without a scale", name)
    if scales.numel() == 1:
        return empty(f"one scale for the whole tensor: {words.number(float(scales), 6)}", name)
    if 1 in scales.shape:
        return _scale_line(scales.reshape(-1), scales.shape[0] > 1, color, name)
    grid = (scales.shape[0], scales.shape[1])
    return map_figure(tile_maximum(scales, MAP_LIMIT), grid, name, "scale", scale, "block ")


def _scale_line(scales: Tensor, along_rows: bool, color: str, name: str) -> go.Figure:
    fig = figure("row" if along_rows else "column", "scale", name)
    stride = math.ceil(len(scales) / LINE_POINTS)
    fig.add_scatter(
        x0=0,
        dx=stride,
        y=tile_maximum(scales[None, :], LINE_POINTS)[0].numpy(),
        mode="lines",
        line={"width": 1.2, "color": color, "shape": "hv"},
        hovertemplate="%{x}: %{y:.5g}<extra></extra>",
    )
    fig.update_layout(uirevision=f"scales {len(scales)}")
    return switch_axis(fig, "yaxis")


def usage_figures(sides: Sequence[Side], name: str) -> list[go.Figure]:
    """Frequency of each code under one or two ``sides``, ordered by value; for 16 and 32 bits, frequency
    of each exponent."""
    figures = []
    for side, color, letter in zip(sides, COLORS, "AB", strict=False):
        q, counts = side.analysis.q, side.analysis.measured.code_counts
        suffix = f" {letter}" if len(sides) > 1 else ""
        if counts is None or (q.scheme.format.bits > 8 and isinstance(q.scheme.format, FloatFormat)):
            title = f"{name} exponents used{suffix}"
            figures.append(_exponent_usage(q, float_format(q.scheme.format.name), color, title))
        else:
            figures.append(_code_usage(q, counts, color, f"{name} codes used{suffix}"))
    return figures


def _code_usage(q: QuantizedTensor, counts: Tensor, color: str, name: str) -> go.Figure:
    fig = figure("value of the code", "share of elements", name)
    values = q.scheme.format.values.numpy()
    shown = np.isfinite(values)
    share = (counts / max(int(counts.sum()), 1)).numpy()[shown]
    order = np.argsort(values[shown], kind="stable")
    labels = ["−0" if v == 0 and np.signbit(v) else words.number(v, 4) for v in values[shown][order]]
    fig.add_bar(
        x0=0,
        dx=1,
        y=share[order].astype(np.float32),
        marker={"color": color},
        customdata=labels,
        hovertemplate="%{customdata}: %{y:.3~%}<extra></extra>",
    )
    every = 1 << max(0, math.ceil(math.log2(len(labels) / 12)))
    fig.update_xaxes(tickvals=list(range(0, len(labels), every)), ticktext=labels[::every], tickangle=0)
    fig.update_yaxes(tickformat="~%")
    fig.update_layout(bargap=0.15, uirevision=f"codes {q.scheme.format.name}")
    return switch_axis(fig, "yaxis")


def _exponent_usage(q: QuantizedTensor, fmt: FloatFormat, color: str, name: str) -> go.Figure:
    fig = figure("exponent (power of two)", "share of elements", name)
    field = next(f for f in fmt.fields if f.name == "exponent")
    counts = torch.zeros(2**fmt.exponent, dtype=torch.int64, device=q.packed.device)
    for piece in q.code_pieces():
        exponents = (piece.reshape(-1).to(torch.int32) >> field.low) & (2**fmt.exponent - 1)
        counts += torch.bincount(exponents, minlength=len(counts))
    counts = counts.cpu()
    used = torch.nonzero(counts).reshape(-1)
    first, last = (int(used[0]), int(used[-1])) if len(used) else (0, 0)
    fig.add_bar(
        x0=first - fmt.bias,
        dx=1,
        y=(counts[first : last + 1] / max(int(counts.sum()), 1)).numpy(),
        marker={"color": color},
        hovertemplate="2^%{x}: %{y:.3~%}<extra></extra>",
    )
    fig.update_xaxes(tickformat="d", dtick=1 if last - first < 12 else None)
    fig.update_yaxes(tickformat="~%")
    fig.update_layout(bargap=0.15, uirevision=f"exponents {fmt.name}")
    return switch_axis(fig, "yaxis")
