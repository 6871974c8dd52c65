"""The range of each block of a matrix, by the scheme's calibrator."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import torch
from torch import Tensor

from explorer.core.blocks import pieces, runs_of_blocks
from explorer.core.encode import UnderScales
from explorer.core.flat import unrolled
from explorer.core.k_quants import find_k_scales
from explorer.formats.subnormals import keeps_subnormals
from explorer.schemes import MappingType, Scales, Scheme, join_scales, scale_for
from explorer.schemes.calibrators import CalibrationContext, Range, low_first
from explorer.schemes.sorted_part import squared_errors
from explorer.words import IN_PYTHON

LARGEST, LARGEST_OF_BOTH_ENDS = 2.0**127, 2.0**126
"""Largest magnitudes that are scaled. Codes restored from ranges up to here are finite in float32 and
bfloat16, however scales and codes were rounded. The second is for ranges with two ends, whose width must be
finite too."""


def check_finite(x: Tensor) -> None:
    """Raise ``ValueError`` with count and first position if ``x`` [rows, cols] holds NaN, Inf, or float64
    values beyond float32."""
    if all(bool(torch.isfinite(piece.to(torch.float32).sum(dtype=torch.float64))) for piece in pieces(x)):
        return
    if x.dtype == torch.float64:
        beyond = torch.isfinite(x) & ~torch.isfinite(x.to(torch.float32))
        _refuse(beyond, "beyond float32, whose largest value is 3.4e38", "scale the tensor down first")
    advice = f"no scale can be computed from them; replace them with finite numbers{IN_PYTHON}"
    _refuse(~torch.isfinite(x), "NaN or Inf", advice)


def _refuse(bad: Tensor, what: str, advice: str) -> None:
    """Raise ``ValueError`` with count and first position if any element of ``bad`` [rows, cols] is set."""
    count = int(bad.sum())
    if count:
        raise ValueError(f"{count} of {bad.numel()} values are {what}, the first at {_first(bad)}: {advice}")


def _first(which: Tensor) -> str:
    """Locate the first element of ``which`` [rows, cols] that is set: "row 2, column 3"."""
    row, column = divmod(int(which.reshape(-1).to(torch.uint8).argmax()), which.shape[1])
    return f"row {row}, column {column}"


SCALED_AT_ONCE = 1 << 20
"""Number of blocks in one computation of scales, which makes several float32 grids."""


def check_range(clip_range: Range, scheme: Scheme, x: Tensor | None = None) -> None:
    """Raise ``ValueError`` if a block's range, float32 [grid], is too large to be restored under ``scheme``.
    It names the first such value if ``x`` [rows, cols] is given."""
    both = scheme.asymmetric or scheme.mapping.has_offset
    limit, count, largest = LARGEST_OF_BOTH_ENDS if both else LARGEST, 0, 0.0
    rows = max(1, SCALED_AT_ONCE // max(clip_range.low.shape[1], 1))
    for start in range(0, len(clip_range.low), rows):
        amax = clip_range.rows(start, start + rows).amax
        if beyond := int((amax > limit).sum()):
            count, largest = count + beyond, max(largest, float(amax.max()))
    if count:
        large = None if x is None else x.abs() > limit
        where = "" if large is None or not large.any() else f", the first value at {_first(large)}"
        raise ValueError(
            f"the range of {count} of {clip_range.low.numel()} blocks is larger than "
            f"{'2^126 (8.5e37)' if both else '2^127 (1.7e38)'}, up to "
            f"{largest:.3g}{where}: scaled codes would not all be finite in float32; "
            "scale the tensor down first"
        )


@keeps_subnormals
def find_ranges(x: Tensor, scheme: Scheme, largest: Tensor | None = None) -> Range:
    """Return the calibrator's range of each block of float32 ``x``, float32 [grid rows, grid columns].

    ``largest`` is the amax of the whole tensor if ``x`` is part of it and the scheme has a tensor scale.
    ``ValueError`` for ranges too large to be scaled (``check_range``).
    """
    found = _ranges(x, scheme, largest)
    check_range(found, scheme, x)
    return found


def _ranges(x: Tensor, scheme: Scheme, largest: Tensor | None) -> Range:
    """Find ranges without the check of ``find_ranges``."""
    grid = scheme.grid((x.shape[0], x.shape[1]))
    if scheme.flat:
        view, along_rows = unrolled((x.shape[0], x.shape[1]), scheme)
        found = _ranges(x.reshape(view), along_rows, largest)
        first = None if found.low_first is None else found.low_first.view(grid)
        return Range(found.low.view(grid), found.high.view(grid), first)
    low = torch.zeros(grid, dtype=torch.float32, device=x.device)
    high = torch.zeros(grid, dtype=torch.float32, device=x.device)
    if scheme.scale is None:
        return Range(low, high)
    context, first = _context(x, scheme, largest), None
    # A search judges every range by the positive end's sign, and that is what it found.
    if scheme.mapping is MappingType.SIGNED_MAX and scheme.calibrator.name != "mse":
        first = torch.zeros(grid, dtype=torch.bool, device=x.device)
    for part in runs_of_blocks((x.shape[0], x.shape[1]), scheme.block, x.device):
        part_range = scheme.calibrator.of(part.blocks(x), context)
        low[part.grid_rows, part.grid_columns] = part_range.low
        high[part.grid_rows, part.grid_columns] = part_range.high
        if first is not None:
            first[part.grid_rows, part.grid_columns] = low_first(part.blocks(x))
    return Range(low, high, first)


@keeps_subnormals
def find_scales(x: Tensor, scheme: Scheme) -> Scales:
    """Return the scales of float32 ``x`` from its blocks' ranges. A tensor scale follows from the largest
    |x|, whatever ranges a calibrator's search found."""
    found, largest, rule = find_ranges(x, scheme), _largest(x, scheme), scheme.scale
    if rule is not None and rule.is_searched:
        return find_k_scales(x, scheme).scales
    rows = max(1, SCALED_AT_ONCE // max(found.low.shape[1], 1))
    if len(found.low) <= rows or rule is None or rule.nested:
        return scale_for(found, scheme, largest)
    starts = range(0, len(found.low), rows)
    parts = [scale_for(found.rows(start, start + rows), scheme, largest) for start in starts]
    del found  # of a large matrix in small blocks as large as what is joined here
    return join_scales(parts, 0)


@keeps_subnormals
def errors_under(x: Tensor, scheme: Scheme, ranges: Sequence[Range]) -> list[float]:
    """Return Σ(x - x̂)² of the float32 matrix ``x`` [rows, cols] on a CPU under each of ``ranges`` [1, 1],
    for a ``scheme`` with one scale for the whole tensor; accurate to six digits, from sorted values."""
    context = _context(x, scheme, None)
    scales = [context.scales(clip_range) for clip_range in ranges]
    return [error for error, _ in squared_errors([x], [context.restore_of(each) for each in scales])]


def _largest(x: Tensor, scheme: Scheme) -> Tensor | None:
    """The largest |x| if a scale over the whole tensor needs it, else None."""
    if not x.numel() or scheme.scale is None or not scheme.scale.per_tensor:
        return None
    low, high = torch.aminmax(x)
    return torch.maximum(-low, high).abs()


def _context(x: Tensor, scheme: Scheme, largest: Tensor | None) -> CalibrationContext:
    """Return the context that dequantizes blocks of ``x`` under their ranges, rounded to nearest."""
    rule = scheme.scale
    largest = _largest(x, scheme) if largest is None else largest
    above = rule is not None and rule.has_upper_level
    nearest = scheme
    if above or scheme.seed is not None:  # a copy is checked, which takes longer than the scales of a group
        nearest = dataclasses.replace(scheme, seed=None, scale=rule and rule.of_a_block_alone)

    def scales(clip_range: Range) -> Scales:
        return scale_for(clip_range, nearest, largest)

    def restore(blocks: Tensor, under: Scales) -> Tensor:
        return UnderScales(under, nearest).rounded(blocks)

    offset = scheme.mapping.has_offset
    return CalibrationContext(
        scales,
        restore,
        levels=1 << (scheme.format.bits - 1),
        asymmetric=scheme.asymmetric or offset,
        zero_included=above or not offset,
        scale=rule,
    )
