"""Analyse a tensor in slices of rows if it is too large for the memory of the GPU, or of the host.

The tensor stays in host memory; one slice at a time is quantized and measured, on a GPU after it was copied
there, and only its codes are kept. The result is that of ``analyse`` on the whole tensor: the range of a
block that spans slices is found first, on the host.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import reduce
from operator import add

import torch
from torch import Tensor

from explorer.analysis.histograms import code_counts, finite_range, histogram
from explorer.analysis.report import MOST_AT_ONCE, RUN_ELEMENTS, Sums, measured_from
from explorer.analysis.spread import Own, error_spread, frame_of, own_part, spread
from explorer.analysis.tensor import MAP_LIMIT, Analysis, analyse
from explorer.analysis.tiles import largest_of_runs, merge_rows, tile_size
from explorer.core.backend import BYTES_AN_ELEMENT, place
from explorer.core.quantize import QuantizedTensor, quantize, quantize_with_scales, scales_of_rows
from explorer.core.ranges import check_finite, find_scales
from explorer.formats.packing import packed_row_bytes
from explorer.progress import checkpoint
from explorer.schemes import Scales, Scheme, join_scales


def rows_that_fit(shape: tuple[int, int], scheme: Scheme, free_bytes: int) -> int:
    """Number of rows in a slice that fits ``free_bytes``: whole blocks of the scheme, at least one."""
    tall = scheme.block[0] or 1 if scheme.scale is not None else 1
    fit = free_bytes // (BYTES_AN_ELEMENT * max(shape[1], 1))
    return max(tall, fit // tall * tall)


def analyse_anywhere(x: Tensor, scheme: Scheme, own: Callable[[], Own] | None = None) -> Analysis:
    """Analyse ``x`` on the device chosen by ``place``: whole, or in slices if it is too large for the memory
    there. A GPU counts ``own`` values again, which is faster than copying them."""
    where = place(x)
    own = own if where.device.type == "cpu" else None
    slice_bytes = where.slice_bytes
    if where.whole and where.device.type == "cpu" and x.numel() > MOST_AT_ONCE:
        slice_bytes = RUN_ELEMENTS * BYTES_AN_ELEMENT
    elif where.whole:
        return analyse(where.move(x), scheme, own)
    rows = rows_that_fit((x.shape[0], x.shape[1]), scheme, slice_bytes)
    return analyse_in_slices(x, scheme, where.device, rows, own)


def analyse_in_slices(
    x: Tensor, scheme: Scheme, device: torch.device, rows_each: int, own: Callable[[], Own] | None = None
) -> Analysis:
    """Analyse the float32 matrix ``x`` [rows, cols] in host memory, slice by slice on ``device``.

    ``rows_each`` rows make a slice, a multiple of the block's height. Schemes with a least-squares scale,
    stochastic rounding or llama.cpp's search are quantized on the host first; those with blocks across rows
    are analysed there.
    """
    if scheme.flat or not x.numel():
        return analyse(x, scheme, own)
    shape = (x.shape[0], x.shape[1])
    searched = scheme.scale is not None and scheme.scale.is_searched
    first = scheme.least_squares_scale or scheme.seed is not None or searched
    known = quantize(x, scheme) if first else None
    scales = _scales(x, scheme, device, rows_each) if known is None else known.scales
    packed = torch.empty(shape[0], packed_row_bytes(scheme.format, shape[1]), dtype=torch.uint8)
    known_own = None if own is None else own()
    low, high = finite_range(x) if known_own is None else known_own.histogram.range
    frame = frame_of(x) if known_own is None else known_own.frame
    sums, (tall, wide) = Sums(), tile_size(shape, MAP_LIMIT)
    seen_parts, left_counts, left_parts, runs = [], [], [], []
    for start, there, q in _slices(x, scheme, known or scales, device, rows_each):
        restored = q.dequantize()
        packed[start : start + len(there)] = q.packed.cpu()
        sums.add_part(there, restored, q, start)
        left = histogram(restored, low, high)
        left_counts.append(left)
        if known_own is None:
            seen_parts.append(own_part(there, low, high, frame))
        left_parts.append(spread(restored, frame, left if frame.whole else None))
        runs.append([part.cpu() for part in largest_of_runs(restored, there, wide)])
    whole = QuantizedTensor(packed, scales, scheme, shape)
    counted = known_own or reduce(add, seen_parts)
    measured = measured_from(sums, whole, counted.histogram, reduce(add, left_counts), code_counts(whole))
    report = measured.report
    errors = reduce(  # in a second pass: their bins depend on the errors
        add,
        (
            error_spread(q.dequantize(), there, report.mae, report.max_error)
            for _, there, q in _slices(x, scheme, whole, device, rows_each)
        ),
    )
    largest, columns = (torch.cat(part) for part in zip(*runs, strict=True))
    error_map, largest_at = merge_rows(largest, columns, tall, wide)
    return Analysis(whole, measured, errors, counted.spread, reduce(add, left_parts), error_map, largest_at)


def _scales(x: Tensor, scheme: Scheme, device: torch.device, rows_each: int) -> Scales:
    """Find the scales of the whole tensor, in host memory; slice by slice on a GPU if no block or tensor
    scale spans slices."""
    rule = scheme.scale
    if device == x.device or rule is None or rule.spans_tensor or scheme.block[0] is None:
        check_finite(x)
        return find_scales(x, scheme)
    try:
        parts = [
            quantize(x[i : i + rows_each].to(device), scheme).scales for i in range(0, x.shape[0], rows_each)
        ]
    except ValueError:
        check_finite(x)
        find_scales(x, scheme)  # its error names the place in the whole tensor, not in a slice
        raise
    return join_scales([part.map_grids(Tensor.cpu) for part in parts], 0)


def _slices(
    x: Tensor, scheme: Scheme, known: QuantizedTensor | Scales, device: torch.device, rows_each: int
) -> Iterator[tuple[int, Tensor, QuantizedTensor]]:
    """Yield each slice: its first row, its values on the device, and its quantization there by known scales
    or codes."""
    for start in range(0, x.shape[0], rows_each):
        checkpoint()
        there = x[start : start + rows_each].to(device)
        if isinstance(known, QuantizedTensor):
            yield start, there, known.rows(start, start + len(there)).to(device)
        else:
            scales = scales_of_rows(known, scheme, start, start + len(there)).to(device)
            yield start, there, quantize_with_scales(there, scheme, scales)
