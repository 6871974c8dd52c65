"""Compute a block's scale and zero point from its range, rounded as they are stored.

Every division is an IEEE float32 division, so that all devices get the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.formats import E4M3, E8M0, EXPONENT_MASK, MANTISSA_BITS, IntegerFormat
from explorer.formats.subnormals import keeps_subnormals
from explorer.schemes.calibrators import Range
from explorer.schemes.levels import UpperLevel, divide, nested, round_scale, super_blocks
from explorer.schemes.rules import Convention, ExponentRule, MappingType, ScaleRule
from explorer.schemes.scheme import Scheme

MANTISSA_MASK = (1 << MANTISSA_BITS) - 1
SMALLEST_TENSOR_SCALE = 2.0**-126
"""The smallest normal float32: a tensor scale keeps full precision, and block scales cover the rest."""


@dataclass(frozen=True)
class Scales:
    """Scales of a quantized matrix: x ≈ scale · (value of the code - zero point) + offset.

    stored        float32 [grid rows, grid columns]  the scales, already rounded to their format
    zero_points   int8 [grid rows, grid columns]     the code of 0; None when symmetric
    tensor_scale  float32 []                         over all stored scales; None without two levels
    raw           [grid rows, grid columns]          ``stored`` in its own dtype, if a kernel wrote it
    offsets       float32 [grid rows, grid columns]  rounded to the scale's format; None without
    first_code    the code value that an offset stands for (``Scheme.first_code``)
    divided       ``tensor_scale`` divides instead of multiplying
    unrounded     float32 [grid rows, grid columns]  the scales before rounding, if codes follow from those
    minimum       float32 [grid rows, grid columns]  likewise the value that codes are counted from
    upper         the level above stored scales that are themselves quantized; None without
    """

    stored: Tensor
    zero_points: Tensor | None
    tensor_scale: Tensor | None
    raw: Tensor | None = None
    offsets: Tensor | None = None
    first_code: int = 0
    divided: bool = False
    unrounded: Tensor | None = None
    minimum: Tensor | None = None
    upper: UpperLevel | None = None

    @classmethod
    def of(
        cls,
        scheme: Scheme,
        stored: Tensor,
        zero_points: Tensor | None,
        tensor_scale: Tensor | None,
        offsets: Tensor | None = None,
        upper: UpperLevel | None = None,
    ) -> Scales:
        """Assemble scales that were stored under ``scheme``, as read back from a file."""
        divided = scheme.scale is not None and scheme.scale.divides_by_tensor_scale
        first = scheme.first_code
        return cls(stored, zero_points, tensor_scale, None, offsets, first, divided, upper=upper)

    def map_grids(self, change: Callable[[Tensor], Tensor]) -> Scales:
        """Apply ``change`` to every tensor with an entry for each block."""

        def changed(grid: Tensor | None) -> Tensor | None:
            return None if grid is None else change(grid)

        return dataclasses.replace(
            self,
            stored=change(self.stored),
            zero_points=changed(self.zero_points),
            offsets=changed(self.offsets),
            unrounded=changed(self.unrounded),
            minimum=changed(self.minimum),
            raw=None,
            upper=None if self.upper is None else self.upper.map_grids(change),
        )

    def to(self, device: torch.device | str) -> Scales:
        """Copy the scales to ``device``."""
        parts = {row.name: getattr(self, row.name) for row in dataclasses.fields(self)}
        moved = {name: part.to(device) for name, part in parts.items() if isinstance(part, Tensor)}
        upper = None if self.upper is None else self.upper.to(device)
        return dataclasses.replace(self, **moved, upper=upper)  # type: ignore[arg-type]

    @property
    def scale(self) -> Tensor:
        """Both levels multiplied, float32 [grid rows, grid columns]."""
        if self.upper is not None:
            return self.upper.restore(self.stored)
        if self.tensor_scale is None:
            return self.stored
        return self.stored / self.tensor_scale if self.divided else self.stored * self.tensor_scale


def join_scales(parts: Sequence[Scales], dim: int) -> Scales:
    """Join the scales of runs of rows (``dim`` 0) or groups of columns (1) of a matrix.

    ``ValueError`` for doubly quantized scales that were found apart.
    """
    upper = parts[0].upper

    def together(grids: Sequence[Tensor | None]) -> Tensor | None:
        there = [grid for grid in grids if grid is not None]
        return torch.cat(there, dim) if there else None

    return dataclasses.replace(
        parts[0],
        stored=torch.cat([part.stored for part in parts], dim),
        zero_points=together([part.zero_points for part in parts]),
        offsets=together([part.offsets for part in parts]),
        unrounded=together([part.unrounded for part in parts]),
        minimum=together([part.minimum for part in parts]),
        raw=None,
        upper=None if upper is None else upper.join([part.upper for part in parts], dim),  # type: ignore[misc]
    )


@keeps_subnormals
def scale_for(clip_range: Range, scheme: Scheme, largest: Tensor | None = None) -> Scales:
    """Map each block's ``clip_range`` to the codes of ``scheme``: scales and zero points, rounded as stored.

    ``largest`` is the amax of the whole tensor, needed for a tensor scale when ``clip_range`` holds only some
    of its blocks. A block with an empty range (all zeros) restores zeros (``ScaleRule.empty``); a constant
    block under an offset restores its value, rounded to the scale's format.
    """
    if scheme.scale is None:
        return Scales(torch.ones_like(clip_range.high), None, None)
    if scheme.codes.bfloat16:
        low, high = (through_bfloat16(end) for end in (clip_range.low, clip_range.high))
        clip_range = dataclasses.replace(clip_range, low=low, high=high)
    if scheme.scale.super_bits is not None:
        return _under_super_blocks(clip_range, scheme)
    raw, tensor_scale = _raw_scale(clip_range, scheme), None
    if scheme.scale.exponent is not None:
        stored = _power_of_two(clip_range.amax, scheme)
    else:
        if scheme.scale.per_tensor:
            amax = clip_range.amax if largest is None else largest
            tensor_scale = tensor_scale_for(amax, scheme)
            raw = raw * tensor_scale if scheme.scale.divides_by_tensor_scale else raw / tensor_scale
        stored = round_scale(raw, scheme.scale)
    # A constant block under MIDPOINT is its offset alone, which a scale of 1 would push out of reach.
    constant = scheme.mapping is MappingType.MIDPOINT
    value = scheme.scale.smallest if constant else scheme.scale.empty(scheme.format)
    empty = torch.full_like(stored, value)
    stored, upper = torch.where(_is_empty(clip_range, scheme), empty, stored), None
    if scheme.scale.nested:
        stored, upper = nested(stored)
    scales = Scales.of(
        scheme,
        stored,
        _zero_points(clip_range, stored, scheme),
        tensor_scale,
        _offsets(clip_range, raw, stored, scheme),
        upper,
    )
    if not scheme.codes.unrounded:
        return scales
    minimum = None if scales.offsets is None else clip_range.low  # nothing is counted from it otherwise
    return dataclasses.replace(scales, unrounded=raw, minimum=minimum)


def _under_super_blocks(clip_range: Range, scheme: Scheme) -> Scales:
    """Compute integer scales and integer minimums (at most 0) under super-blocks."""
    low = clip_range.low.clamp(max=0)
    raw = _raw_scale(Range(low, clip_range.high), scheme)
    minimum = low if scheme.mapping.has_offset else None
    stored, offsets, upper = super_blocks(raw, minimum, scheme)
    scales = Scales.of(scheme, stored, None, None, offsets, upper)
    return dataclasses.replace(scales, unrounded=raw, minimum=minimum) if scheme.codes.unrounded else scales


@keeps_subnormals
def fit_scales(xv: Tensor, vv: Tensor, scales: Scales, rule: ScaleRule) -> Scales:
    """Replace the scale of every block by the least-squares scale, rounded as stored.

    Σ(x - s·v)² is least at s = Σx·v / Σv·v (``xv`` and ``vv``, float64 [grid]; v: code value - zero point, x
    less the offset). The nearest stored scale is the best one, since the parabola is symmetric. A block keeps
    its scale if that leaves a smaller error (the fitted one may exceed the scale format), if v = 0, or if the
    scale is 0.
    """
    fitted = (xv / vv).to(torch.float32)
    if rule.exponent is not None:
        stored = _nearest_power_of_two(fitted)
    elif scales.upper is not None:
        stored = scales.upper.nearest(fitted)
    else:
        if scales.tensor_scale is not None:
            fitted = fitted * scales.tensor_scale if scales.divided else fitted / scales.tensor_scale
        stored = round_scale(fitted, rule)
    refitted = dataclasses.replace(scales, stored=stored, raw=None)
    old, new = scales.scale.double(), refitted.scale.double()
    worse = new * (new * vv - 2 * xv) > old * (old * vv - 2 * xv)
    kept = (vv == 0) | (scales.stored == 0) | worse
    return dataclasses.replace(refitted, stored=torch.where(kept, scales.stored, stored))


def _is_empty(clip_range: Range, scheme: Scheme) -> Tensor:
    spans = scheme.asymmetric or scheme.mapping.has_offset
    return (clip_range.high - clip_range.low == 0) if spans else clip_range.amax == 0


def _raw_scale(clip_range: Range, scheme: Scheme) -> Tensor:
    """Compute the scale before it is rounded to its own format."""
    scale = _exact_scale(clip_range, scheme)
    return through_bfloat16(scale) if scheme.codes.bfloat16 else scale


def _exact_scale(clip_range: Range, scheme: Scheme) -> Tensor:
    fmt, amax = scheme.format, clip_range.amax
    if scheme.mapping is MappingType.SYMMETRIC:
        return divide(amax, fmt.max)
    if scheme.mapping is MappingType.SIGNED_MAX:
        above = clip_range.high >= -clip_range.low
        if clip_range.low_first is not None:
            above &= (clip_range.high != -clip_range.low) | ~clip_range.low_first
        return divide(torch.where(above, clip_range.high, clip_range.low), fmt.min)
    assert isinstance(fmt, IntegerFormat)
    if scheme.mapping is MappingType.FULL:
        return divide(amax, fmt.qmax + 0.5)
    if scheme.mapping is MappingType.POWER:
        return divide(amax, fmt.qmax + 1)
    if scheme.mapping is MappingType.NO_CLIP:
        return torch.maximum(divide(-clip_range.low, -fmt.qmin), divide(clip_range.high, fmt.qmax))
    span = clip_range.high - clip_range.low
    return divide(through_bfloat16(span) if scheme.codes.bfloat16 else span, 2**fmt.bits - 1)


def through_bfloat16(x: Tensor) -> Tensor:
    """Round float32 ``x`` to BF16."""
    return x.to(torch.bfloat16).to(torch.float32)


def tensor_scale_for(amax: Tensor, scheme: Scheme) -> Tensor:
    """Return amax / (6 · 448), float32 scalar, so that the largest block scale is E4M3's maximum; 1 if amax
    is 0.

    The calibrator's headroom is left above it. By compressed-tensors' rules it is the reciprocal; in BF16
    both the reciprocal of amax and its product are BF16 numbers.
    """
    largest = amax.amax() if amax.numel() else amax.new_zeros(())
    full = scheme.format.max * E4M3.max / scheme.calibrator.headroom
    if scheme.scale is not None and scheme.scale.divides_by_tensor_scale:
        rounded = through_bfloat16 if scheme.codes.bfloat16 else torch.Tensor.float
        smallest = rounded(largest).clamp(min=SMALLEST_TENSOR_SCALE)
        inverse = rounded(rounded(smallest.reciprocal()) * full)
        return torch.where(inverse.isinf(), torch.ones_like(inverse), inverse)
    scale = divide(largest, full).clamp(min=SMALLEST_TENSOR_SCALE)
    return torch.where(largest == 0, torch.ones_like(scale), scale)


def _power_of_two(amax: Tensor, scheme: Scheme) -> Tensor:
    """Return 2^e by the scheme's exponent rule, from exponent and mantissa fields (no log2), e in [-127,
    127]."""
    rule, fmt = scheme.scale.exponent if scheme.scale else None, scheme.format
    if rule is ExponentRule.RCEIL:
        exponent = _ceil_log2(divide(amax, fmt.max))
    elif rule is ExponentRule.CEIL:
        exponent = _ceil_log2(amax) - fmt.max_exponent
    elif rule is ExponentRule.EVEN:
        half = 1 << (MANTISSA_BITS - _width_of_even(scheme) - 1)
        exponent = _floor_log2((amax.view(torch.int32) + half).view(torch.float32)) - fmt.max_exponent
    else:
        exponent = _floor_log2(amax) - fmt.max_exponent
    return E8M0.decode((exponent.clamp(-127, 127) + 127).to(torch.uint8))


def _nearest_power_of_two(x: Tensor) -> Tensor:
    """Round positive float32 ``x`` to the closest power of two of E8M0."""
    exponent = _floor_log2(x)
    exponent += (x.view(torch.int32) & MANTISSA_MASK) > MANTISSA_MASK // 2  # beyond 1.5 · 2^exponent
    return E8M0.decode((exponent.clamp(-127, 127) + 127).to(torch.uint8))


def _floor_log2(x: Tensor) -> Tensor:
    """Compute floor(log2 x) of positive float32, int32, from the exponent field; subnormals count as
    2^-127."""
    return ((x.view(torch.int32) & EXPONENT_MASK) >> MANTISSA_BITS) - 127


def _ceil_log2(x: Tensor) -> Tensor:
    return E8M0.encode_unchecked(x).to(torch.int32) - 127


def _width_of_even(scheme: Scheme) -> int:
    """Number of mantissa bits that EVEN rounds amax to: the element's; by compressed-tensors at most one,
    except for 6 bits."""
    assert scheme.scale is not None
    bits = scheme.format.significand_bits
    if scheme.scale.convention is Convention.COMPRESSED_TENSORS and scheme.format.bits != 6:
        return min(bits, 1)
    return bits


def _zero_points(clip_range: Range, scale: Tensor, scheme: Scheme) -> Tensor | None:
    if not scheme.asymmetric or not isinstance(scheme.format, IntegerFormat):
        return None
    fmt, low = scheme.format, torch.where(scale == 0, torch.zeros_like(scale), clip_range.low / scale)
    zero = fmt.qmin - low
    if scheme.codes.bfloat16:
        zero = fmt.qmin - through_bfloat16(low)
        by_theirs = scheme.scale is not None and scheme.scale.convention is Convention.COMPRESSED_TENSORS
        zero = through_bfloat16(zero) if by_theirs else zero
    zero = zero.round().clamp(fmt.qmin, fmt.qmax)
    if scheme.scale is not None and scheme.scale.convention is Convention.COMPRESSED_TENSORS:
        zero = torch.where(_is_empty(clip_range, scheme), torch.zeros_like(zero), zero)
    return zero.to(torch.int8)


def _offsets(clip_range: Range, raw: Tensor, stored: Tensor, scheme: Scheme) -> Tensor | None:
    """The value of the code ``first_code``, rounded to the scale's format: the minimum, or 2^(b-1) scales
    above it."""
    fmt, rule = scheme.format, scheme.scale
    if rule is None or not scheme.mapping.has_offset or not isinstance(fmt, IntegerFormat):
        return None
    offset = clip_range.low
    if scheme.mapping is MappingType.MIDPOINT:
        offset = offset - (raw if scheme.codes.unrounded else stored) * fmt.qmin
    size = offset.abs().clamp(max=rule.format.max)
    return rule.format.nearest(size).copysign(offset)
