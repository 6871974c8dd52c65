"""Maps of the errors of one or two schemes: each cell's worst element, each row's and column's RMS."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.analysis.element import block_index
from explorer.analysis.spread import Spread, error_spread
from explorer.analysis.tensor import MAP_LIMIT, Analysis
from explorer.analysis.tiles import tile_size

ROWS_AT_ONCE = 1 << 21
"""Number of elements whose errors are held at a time."""
Part = tuple[int, int]
"""[start, stop) of rows or columns."""


@dataclass(frozen=True, eq=False)
class ErrorMap:
    """Errors of one scheme in the cells of an error map, on the CPU.

    For the element with the largest error of each cell:

    error          float32, |x̂ - x|
    place          int32, its place in the cell (row · columns of a cell + column)
    value          x
    restored       its restored value by each scheme, in the schemes' order
    in_scales      the error divided by the scale of its block; None if codes are cast without a scale, or a
                   method changes the weight's basis

    rows, columns  float32 [rows] and [columns]: root mean squared error of each row and column
    worst          (row, column) of the largest error of all
    """

    error: Tensor
    place: Tensor
    value: Tensor
    restored: tuple[Tensor, ...]
    in_scales: Tensor | None
    rows: Tensor
    columns: Tensor
    worst: tuple[int, int]


def error_maps(x: Tensor, analyses: Sequence[Analysis]) -> list[ErrorMap]:
    """Map the errors of one or two ``analyses`` of the float matrix ``x`` [rows, cols]."""
    restored = [analysis.restored() for analysis in analyses]
    found = []
    for analysis, own in zip(analyses, restored, strict=True):
        there = x.to(own.device)
        rows, columns = _elements(analysis)
        at = rows.to(own.device), columns.to(own.device)
        scales = _scales_at(analysis, rows, columns)
        found.append(
            ErrorMap(
                analysis.error_map,
                analysis.largest_at,
                there[at].float().cpu(),
                tuple(each.to(own.device)[at].cpu() for each in restored),
                None if scales is None else analysis.error_map / scales,
                *_rms(there, own),
                analysis.report.max_error_at,
            )
        )
    return found


def part_errors(x: Tensor, analysis: Analysis, rows: Part, columns: Part) -> tuple[Spread, float]:
    """Compute the errors of a part of the matrix, and find the largest."""
    restored = analysis.restored()[slice(*rows), slice(*columns)]
    there = x[slice(*rows), slice(*columns)].to(restored.device).float()
    errors = (restored - there).abs_()
    largest = float(errors.max())
    return error_spread(restored, there, float(errors.mean(dtype=torch.float64)), largest), largest


def _elements(analysis: Analysis) -> tuple[Tensor, Tensor]:
    """Locate the element with the largest error of each cell: its row and column, int64 [cells down, cells
    right]."""
    tall, wide = tile_size(analysis.q.shape, MAP_LIMIT)
    place = analysis.largest_at.long()
    down, right = torch.meshgrid(*(torch.arange(size) for size in place.shape), indexing="ij")
    return down * tall + place // wide, right * wide + place % wide


def _scales_at(analysis: Analysis, rows: Tensor, columns: Tensor) -> Tensor | None:
    """|scale| of the block of each element."""
    q = analysis.q
    if q.scheme.scale is None or not analysis.in_own_basis:
        return None
    scales = q.scales.scale.cpu().abs().float()
    return scales[block_index(q, rows, columns)].clamp_min(torch.finfo(torch.float32).tiny)


def _rms(x: Tensor, restored: Tensor) -> tuple[Tensor, Tensor]:
    """Root mean squared error of each row and of each column."""
    rows, columns = [], torch.zeros(x.shape[1], dtype=torch.float64, device=restored.device)
    size = max(1, ROWS_AT_ONCE // max(x.shape[1], 1))
    for before, after in zip(x.split(size), restored.split(size), strict=True):
        squares = (after - before).square_()
        rows.append(squares.mean(1))
        columns += squares.sum(0)
    mean = columns / max(x.shape[0], 1)
    return torch.cat(rows).sqrt().float().cpu(), mean.sqrt().float().cpu()


def clipped_part(ends: Sequence[float], size: int) -> Part:
    """Limit a range of an axis, with elements at whole numbers, to rows or columns [start, stop) within
    ``size``; at least one remains."""
    low, high = sorted(ends)
    start = min(max(math.ceil(low), 0), size - 1)
    return start, min(max(math.floor(high) + 1, start + 1), size)
