"""Figures of what one or two schemes did to one tensor: their errors, scales and codes."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from explorer import words
from explorer.analysis.errors import on_same_bins
from explorer.analysis.tensor import MAP_LIMIT, Side
from explorer.analysis.tiles import tile_maximum, tile_size
from explorer.core.quantize import QuantizedTensor
from explorer.figures.maps import ColourScale, highest, map_figure
from explorer.figures.style import (
    FEW_TICKS,
    POWERS,
    SWITCH_HEIGHT,
    A,
    B,
    caption,
    empty,
    figure,
    legend_below,
    switch_axis,
    translucent,
)
from explorer.formats import FloatFormat, float_format

LINE_POINTS = 1024
"""The most points of a line of scales; each is the largest of its run."""
COLORS = (A, B)
NOTE_LINE, NOTE_GAP = 14, 8
"""Pixels of a line above a figure's buttons, and between them."""
HEAVY = 40.0
"""Colours are logarithmic if the largest error exceeds the median of the nonzero cells by more than this
factor."""
SMALLEST = 1e-5
"""The least value that a logarithmic scale of errors shows, in parts of the largest."""


def error_figure(sides: Sequence[Side], name: str) -> go.Figure:
    """Histograms of the signed errors x̂ - x of one or two ``sides``, on the same bins."""
    fig = legend_below(figure("error  x̂ − x", "share of elements", f"{name} error"))
    if all(side.analysis.report.max_error == 0 for side in sides):
        return empty("no error: every element is restored exactly", f"{name} error")
    errors = on_same_bins([side.analysis.errors for side in sides])
    for index, (side, counted) in enumerate(zip(sides, errors, strict=True)):
        if side.analysis.report.max_error == 0:
            continue
        width = float(counted.edges[1] - counted.edges[0])
        fig.add_scatter(
            x0=float(counted.edges[0]) - width / 2,
            dx=width,
            y=np.pad(side.analysis.errors.share(counted), 1).astype(np.float32),
            mode="lines",
            line={"shape": "hvh", "width": 1.5, "color": COLORS[index]},
            fill="tozeroy",
            fillcolor=translucent(COLORS[index], 0.18),
            name=_named(sides, index),
            hovertemplate=f"{'AB'[index]}, %{{x:.4g}}: %{{y:.3~%}}<extra></extra>",
        )
    fig.update_yaxes(tickformat="~%")
    fig.update_xaxes(**POWERS, **FEW_TICKS)
    switch_axis(fig, "yaxis")
    _say_beyond(fig, sides)
    return fig


def _say_beyond(fig: go.Figure, sides: Sequence[Side]) -> None:
    """Annotate the number of errors beyond the bins, and the largest, above the buttons."""
    lines = []
    for letter, side in zip("AB", sides, strict=False):
        if side.analysis.report.max_error == 0:
            lines.append(f"{letter} has no error")
        errors, largest = side.analysis.errors, side.analysis.report.max_error
        beyond = float(errors.share(errors.below).sum() + errors.share(errors.above).sum())
        if beyond:
            which = f"{letter} " if len(sides) > 1 else ""
            lines.append(f"{which}{100 * beyond:.2g} % beyond, to {words.number(largest)}")
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


def _named(sides: Sequence[Side], index: int) -> str:
    """Legend name of a side, with its letter if there are two."""
    name = caption(sides[index].label)
    return f"{'AB'[index]}  {name}" if len(sides) > 1 else name


def error_map_figures(
    sides: Sequence[Side], shape: tuple[int, int], picked: tuple[int, int], name: str
) -> list[go.Figure]:
    """|error| over a matrix of ``shape``, a map for each of one or two ``sides`` on one colour scale.

    A cell shows its largest error. Where a cell holds more than one element, the map's ``customdata`` says
    which it is, as ``Analysis.largest_at`` does. Colours are logarithmic where a few errors are much larger
    than all others. ``picked`` (row, column) is marked.
    """
    maps = [side.analysis.error_map for side in sides]
    scale = ColourScale.of(maps, heavy(maps), SMALLEST)
    figures = []
    for index, (side, reduced) in enumerate(zip(sides, maps, strict=True)):
        letter = f" {'AB'[index]}" if len(sides) > 1 else ""
        fig = map_figure(reduced, shape, f"{name} error map{letter}", "|error|", scale)
        if math.prod(tile_size(shape, MAP_LIMIT)) > 1:
            fig.data[0].customdata = _smallest_type(side.analysis.largest_at)
        _mark(fig, *picked)
        figures.append(fig)
    return figures


def heavy(maps: Sequence[Tensor]) -> bool:
    """True if the largest error is much larger than the median of the nonzero cells."""
    positive = torch.cat([reduced[reduced > 0] for reduced in maps])
    return len(positive) > 0 and float(positive.median()) < max(map(highest, maps)) / HEAVY


def _smallest_type(offsets: Tensor) -> np.ndarray:
    """Non-negative integers in the fewest bytes that plotly sends."""
    values = offsets.numpy()
    return values.astype(np.min_scalar_type(int(values.max())))


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


def _mark(fig: go.Figure, row: int, column: int) -> None:
    """A circle with a white rim, so that it shows on every colour."""
    for colour, width in (("#ffffff", 5), ("#d92d20", 2.5)):
        fig.add_scatter(
            x=[column],
            y=[row],
            mode="markers",
            hoverinfo="skip",
            showlegend=False,
            cliponaxis=False,
            marker={"symbol": "circle-open", "size": 16, "color": colour, "line": {"width": width}},
        )


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
