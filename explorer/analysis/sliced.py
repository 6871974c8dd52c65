"""A tensor too large for the GPU's memory, analysed there in slices of rows.

The tensor stays in host memory; one slice at a time is copied to the GPU, quantized and measured, and only
its codes come back. The result is that of ``analyse`` on the whole tensor: the range of a block that spans
slices is found first, on the host.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from functools import reduce
from operator import add

import numpy as np
import torch
from torch import Tensor

from explorer.analysis.errors import error_spread
from explorer.analysis.histograms import Histogram, code_counts, finite_range, histogram
from explorer.analysis.report import Report, Sums, measured_from
from explorer.analysis.spread import Spread, frame_of, spread
from explorer.analysis.tensor import MAP_LIMIT, Analysis, analyse
from explorer.analysis.tiles import largest_of_runs, merge_rows, tile_size
from explorer.core.backend import BYTES_AN_ELEMENT, place
from explorer.core.quantize import QuantizedTensor, quantize, quantize_with_scales
from explorer.core.ranges import find_scales
from explorer.formats.packing import packed_row_bytes
from explorer.schemes import Scales, Scheme, join_scales


def rows_that_fit(shape: tuple[int, int], scheme: Scheme, free_bytes: int) -> int:
    """Rows of a slice that fits ``free_bytes``: a whole number of the scheme's blocks, at least one."""
    tall = scheme.block[0] or 1 if scheme.scale is not None else 1
    fit = free_bytes // (BYTES_AN_ELEMENT * max(shape[1], 1))
    return max(tall, fit // tall * tall)


def analyse_anywhere(x: Tensor, scheme: Scheme) -> Analysis:
    """``analyse`` where ``place`` puts ``x``: whole, or in slices where the GPU's memory is too small."""
    where = place(x)
    if where.whole:
        return analyse(where.move(x), scheme)
    rows = rows_that_fit((x.shape[0], x.shape[1]), scheme, where.slice_bytes)
    return analyse_in_slices(x, scheme, where.device, rows)


def analyse_in_slices(x: Tensor, scheme: Scheme, device: torch.device, rows_each: int) -> Analysis:
    """``analyse`` of the float32 matrix ``x`` [rows, cols] in host memory, slice by slice on ``device``.

    ``rows_each`` rows make a slice, a multiple of the block's height. Schemes with a least-squares scale,
    stochastic rounding or blocks across rows need the whole tensor at once and run on the host.
    """
    if scheme.least_squares_scale or scheme.seed is not None or scheme.flat or not x.numel():
        return analyse(x, scheme)
    shape = (x.shape[0], x.shape[1])
    scales = _scales(x, scheme, device, rows_each)
    packed = torch.empty(shape[0], packed_row_bytes(scheme.format, shape[1]), dtype=torch.uint8)
    low, high = finite_range(x)
    sums, before, after = Sums(), np.zeros(256, np.int64), np.zeros(256, np.int64)
    tall, wide = tile_size(shape, MAP_LIMIT)
    frame, seen_parts, left_parts, runs = frame_of(x), [], [], []
    for start, there, q in _slices(x, scheme, scales, device, rows_each):
        restored = q.dequantize()
        packed[start : start + len(there)] = q.packed.cpu()
        sums.add_part(there, restored, q, start)
        seen, left = histogram(there, low, high), histogram(restored, low, high)
        before, after, edges = before + seen.counts, after + left.counts, seen.edges
        seen_parts.append(spread(there, frame, seen if frame.whole else None))
        left_parts.append(spread(restored, frame, left if frame.whole else None))
        runs.append([part.cpu() for part in largest_of_runs(restored, there, wide)])
    whole = QuantizedTensor(packed, scales, scheme, shape)
    measured = measured_from(
        sums, whole, Histogram(edges, before), Histogram(edges, after), code_counts(whole)
    )
    errors = _errors(whole, x, device, rows_each, measured.report)
    largest, columns = (torch.cat(part) for part in zip(*runs, strict=True))
    error_map, largest_at = merge_rows(largest, columns, tall, wide)
    spreads = reduce(add, seen_parts), reduce(add, left_parts)
    return Analysis(whole, measured, errors, *spreads, error_map, largest_at)


def _scales(x: Tensor, scheme: Scheme, device: torch.device, rows_each: int) -> Scales:
    """Scales of the whole tensor, in host memory; slice by slice if no block or tensor scale spans slices."""
    rule = scheme.scale
    if rule is None or rule.spans_tensor or scheme.block[0] is None:
        return find_scales(x, scheme)
    parts = [
        quantize(x[i : i + rows_each].to(device), scheme).scales for i in range(0, x.shape[0], rows_each)
    ]
    return join_scales([part.map_grids(Tensor.cpu) for part in parts], 0)


def _slices(
    x: Tensor, scheme: Scheme, scales: Scales, device: torch.device, rows_each: int
) -> Iterator[tuple[int, Tensor, QuantizedTensor]]:
    """(first row, the slice on the device, its quantization there), slice by slice."""
    for start in range(0, x.shape[0], rows_each):
        there = x[start : start + rows_each].to(device)
        yield (
            start,
            there,
            quantize_with_scales(there, scheme, _scales_of(scales, scheme, start, len(there), device)),
        )


def _scales_of(scales: Scales, scheme: Scheme, start: int, rows: int, device: torch.device) -> Scales:
    """The scales of one slice's blocks, copied to its device."""
    tall = scheme.block[0] if scheme.scale is not None else None
    part = slice(None) if tall is None else slice(start // tall, math.ceil((start + rows) / tall))
    top, there = scales.tensor_scale, scales.map_grids(lambda grid: grid[part].to(device))
    return dataclasses.replace(there, tensor_scale=None if top is None else top.to(device))


def _errors(q: QuantizedTensor, x: Tensor, device: torch.device, rows_each: int, report: Report) -> Spread:
    """``error_spread`` of the whole, in a second pass: its bins depend on the errors."""
    parts = []
    for start in range(0, x.shape[0], rows_each):
        there = x[start : start + rows_each].to(device)
        packed = q.packed[start : start + rows_each].to(device)
        scales = _scales_of(q.scales, q.scheme, start, len(there), device)
        part = QuantizedTensor(packed, scales, q.scheme, (there.shape[0], there.shape[1]))
        parts.append(error_spread(part.dequantize(), there, report))
    return reduce(add, parts)
