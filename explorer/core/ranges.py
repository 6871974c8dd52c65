"""The range of every block of a matrix, by the scheme's calibrator."""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from explorer.core.blocks import Rectangle, rectangles
from explorer.core.encode import encode_blocks
from explorer.schemes import Scales, Scheme, scale_for
from explorer.schemes.calibrators import CalibrationContext, Range


def check_finite(x: Tensor) -> None:
    """Raise ``ValueError`` with count and first position if ``x`` [rows, cols] holds NaN or Inf."""
    if bool(torch.isfinite(x.sum(dtype=torch.float64))):
        return
    bad = ~torch.isfinite(x)
    count = int(bad.sum())
    if count:
        first = int(bad.reshape(-1).to(torch.uint8).argmax())
        row, column = divmod(first, x.shape[1])
        raise ValueError(
            f"{count} of {x.numel()} values are NaN or Inf, the first at row {row}, column {column}: "
            "no scale can be computed from them; remove them, or pass allow_nonfinite=True"
        )


def find_ranges(x: Tensor, scheme: Scheme) -> Range:
    """The calibrator's range, float32 [grid rows, grid columns], of the blocks of float32 ``x``."""
    grid = scheme.grid((x.shape[0], x.shape[1]))
    low = torch.zeros(grid, dtype=torch.float32, device=x.device)
    high = torch.zeros(grid, dtype=torch.float32, device=x.device)
    if scheme.scale is None:
        return Range(low, high)
    for part in rectangles((x.shape[0], x.shape[1]), scheme.block):
        part_range = scheme.calibrator.of(part.blocks(x), _context(part, x, scheme))
        low[part.grid_rows, part.grid_columns] = part_range.low
        high[part.grid_rows, part.grid_columns] = part_range.high
    return Range(low, high)


def find_scales(x: Tensor, scheme: Scheme) -> Scales:
    """The scales of float32 ``x`` by its blocks' ranges; a tensor scale is that of the largest |x|, as the
    calibrator's search had it, whatever ranges it found."""
    return scale_for(find_ranges(x, scheme), scheme, _largest(x, scheme))


def _largest(x: Tensor, scheme: Scheme) -> Tensor | None:
    """The largest |x|, where a scale over the whole tensor needs it."""
    return x.abs().amax() if x.numel() and scheme.scale is not None and scheme.scale.per_tensor else None


def _context(part: Rectangle, x: Tensor, scheme: Scheme) -> CalibrationContext:
    """How the rectangle's blocks are restored under a range, rounded to nearest."""
    largest, nearest = _largest(x, scheme), dataclasses.replace(scheme, seed=None)

    def restore(clip_range: Range) -> Tensor:
        scales = scale_for(clip_range, nearest, largest)
        alone = _at_origin(part, clip_range)
        codes = encode_blocks(alone, x[part.rows, part.columns].contiguous(), scales, nearest)
        blocks = alone.blocks(scheme.format.decode(codes))
        if scales.zero_points is not None:
            blocks = blocks - alone.cells(scales.zero_points)
        return blocks * alone.cells(scales.scale)

    return CalibrationContext(restore, 1 << (scheme.format.bits - 1), scheme.asymmetric, scheme.scale)


def _at_origin(part: Rectangle, clip_range: Range) -> Rectangle:
    """The rectangle as a matrix of its own."""
    return Rectangle(
        slice(0, part.rows.stop - part.rows.start),
        slice(0, part.columns.stop - part.columns.start),
        slice(0, clip_range.high.shape[0]),
        slice(0, clip_range.high.shape[1]),
        part.height,
        part.width,
    )
