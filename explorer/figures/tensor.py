"""Figures of one or two schemes' scales and codes on one tensor."""

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
from explorer.figures.maps import ColourScale, scale_map_figure
from explorer.figures.style import EXTRA, A, B, captioned, empty, figure, switch_axis
from explorer.formats import FloatFormat, float_format

LINE_POINTS = 1024
"""Largest number of points of a line of scales; each is the largest of its run."""


def scales_figures(sides: Sequence[Side], name: str) -> list[go.Figure]:
    """Draw the scales over the matrix for each of one or two ``sides``, on one range of scales: a map, or a
    line where there is one a row or one a column."""
    each = [side.analysis.q for side in sides]
    grids = [None if q.scheme.scale is None else q.scales.scale.cpu().abs() for q in each]
    scale = ColourScale.of([grid for grid in grids if grid is not None and grid.numel() > 1], True)
    suffixes = (" A", " B") if len(sides) > 1 else ("",)
    return [
        captioned(
            _scales_figure(grid, scale, color, f"{name} scales{suffix}"),
            "Scales of the blocks",
            name,
            [side.label],
            math.prod(side.analysis.q.shape),
        )
        for side, grid, color, suffix in zip(sides, grids, (A, B), suffixes, strict=False)
    ]


def _scales_figure(scales: Tensor | None, scale: ColourScale, color: str, name: str) -> go.Figure:
    if scales is None:
        return empty("this scheme casts without a scale", name)
    if scales.numel() == 1:
        return empty(f"one scale for the whole tensor: {words.number(float(scales), 6)}", name)
    rows, columns = scales.shape
    if 1 not in scales.shape:
        return scale_map_figure(tile_maximum(scales, MAP_LIMIT), (rows, columns), name, scale)
    line = scales.reshape(-1)
    fig = figure("row" if rows > 1 else "column", "scale", name)
    fig.add_scatter(
        x0=0,
        dx=math.ceil(len(line) / LINE_POINTS),
        y=tile_maximum(line[None, :], LINE_POINTS)[0].numpy(),
        mode="lines",
        line={"width": 1.2, "color": color, "shape": "hv"},
        hovertemplate="%{x}: %{y:.5g}" + EXTRA,
    )
    return switch_axis(fig.update_layout(uirevision=f"scales {len(line)}"), "yaxis")


def usage_figures(sides: Sequence[Side], name: str) -> list[go.Figure]:
    """Draw the frequency of each code under one or two ``sides``, ordered by value; for 16 and 32 bits, of
    each exponent."""
    figures = []
    for side, color, letter in zip(sides, (A, B), "AB", strict=False):
        q, counts = side.analysis.q, side.analysis.measured.code_counts
        suffix = f" {letter}" if len(sides) > 1 else ""
        if counts is None or (q.scheme.format.bits > 8 and isinstance(q.scheme.format, FloatFormat)):
            title = f"{name} exponents used{suffix}"
            fig = _exponent_usage(q, float_format(q.scheme.format.name), color, title)
        else:
            fig = _code_usage(q, counts, color, f"{name} codes used{suffix}")
        fig.update_yaxes(tickformat="~%")
        captioned(fig, "Codes used", name, [side.label], math.prod(q.shape))
        figures.append(switch_axis(fig.update_layout(bargap=0.15), "yaxis"))
    return figures


def _code_usage(q: QuantizedTensor, counts: Tensor, color: str, name: str) -> go.Figure:
    fig = figure("value of the code", "share of elements", name)
    values = q.scheme.format.values.numpy()
    shown = np.isfinite(values)
    share = (counts / max(int(counts.sum()), 1)).numpy()[shown]
    order = np.argsort(values[shown], kind="stable")
    labels = ["−0" if v == 0 and np.signbit(v) else words.number(v, 4) for v in values[shown][order]]
    hover, look = "%{customdata}: %{y:.3~%}" + EXTRA, {"color": color}
    fig.add_bar(
        x0=0, dx=1, y=share[order].astype(np.float32), marker=look, customdata=labels, hovertemplate=hover
    )
    every = 1 << max(0, math.ceil(math.log2(len(labels) / 12)))
    fig.update_xaxes(tickvals=list(range(0, len(labels), every)), ticktext=labels[::every], tickangle=0)
    return fig.update_layout(uirevision=f"codes {q.scheme.format.name}")


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
    share = (counts[first : last + 1] / max(int(counts.sum()), 1)).numpy()
    hover = "2^%{x}: %{y:.3~%}" + EXTRA
    fig.add_bar(x0=first - fmt.bias, dx=1, y=share, marker={"color": color}, hovertemplate=hover)
    fig.update_xaxes(tickformat="d", dtick=1 if last - first < 12 else None)
    return fig.update_layout(uirevision=f"exponents {fmt.name}")
