"""From the range of a block's values to its scale and zero point, rounded as they are stored.

Every division is an IEEE float32 division, so that all devices get the same bits.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.formats import E4M3, E8M0, EXPONENT_MASK, FLOAT32, MANTISSA_BITS, Format, IntegerFormat
from explorer.formats.subnormals import keeps_subnormals
from explorer.schemes.calibrators import Range
from explorer.schemes.rules import ExponentRule, MappingType, ScaleRule
from explorer.schemes.scheme import Scheme

MANTISSA_MASK = (1 << MANTISSA_BITS) - 1
SMALLEST_TENSOR_SCALE = 2.0**-126
"""The smallest normal float32: a tensor scale keeps all its bits, so that block scales can do the rest."""


@dataclass(frozen=True)
class Scales:
    """Scales of a quantized matrix: x is about scale · (value of the code - zero point).

    stored        float32 [grid rows, grid columns]  the scales, already rounded to their format
    zero_points   int8 [grid rows, grid columns]     the code of 0; None when symmetric
    tensor_scale  float32 []                         multiplies every stored scale; None without two levels
    raw           [grid rows, grid columns]          ``stored`` in its own dtype, where a kernel wrote it so
    """

    stored: Tensor
    zero_points: Tensor | None
    tensor_scale: Tensor | None
    raw: Tensor | None = None

    @property
    def scale(self) -> Tensor:
        """float32 [grid rows, grid columns]: the product of both levels."""
        return self.stored if self.tensor_scale is None else self.stored * self.tensor_scale


@keeps_subnormals
def scale_for(clip_range: Range, scheme: Scheme, largest: Tensor | None = None) -> Scales:
    """Scales and zero points that map each block's ``clip_range`` to the codes of ``scheme``, rounded as
    stored.

    ``largest`` is the whole tensor's amax, needed for a per-tensor scale when ``clip_range`` holds only some
    of its blocks. A block whose range is empty (all zeros) restores zeros (``ScaleRule.empty``).
    """
    if scheme.scale is None:
        return Scales(torch.ones_like(clip_range.high), None, None)
    raw, tensor_scale = _raw_scale(clip_range, scheme), None
    if scheme.scale.exponent is not None:
        stored = _power_of_two(clip_range.amax, scheme)
    else:
        if scheme.scale.per_tensor:
            tensor_scale = tensor_scale_for(clip_range.amax if largest is None else largest, scheme.format)
            raw = raw / tensor_scale
        stored = _round_scale(raw, scheme.scale)
    empty = torch.full_like(stored, scheme.scale.empty(scheme.format))
    stored = torch.where(_is_empty(clip_range, scheme), empty, stored)
    return Scales(stored, _zero_points(clip_range, stored, scheme), tensor_scale)


@keeps_subnormals
def fit_scales(xv: Tensor, vv: Tensor, scales: Scales, rule: ScaleRule) -> Scales:
    """``scales`` with the least-squares scale of every block, rounded as stored.

    Σ(x - s·v)² is least at s = Σx·v / Σv·v (``xv`` and ``vv``, float64 [grid]; v: code's value - zero point).
    Of the stored scales the nearest one is the best, the parabola being symmetric. Blocks with v = 0, and
    blocks of zeros whose scale is 0, keep their scale.
    """
    fitted = (xv / vv).to(torch.float32)
    if rule.exponent is not None:
        stored = _nearest_power_of_two(fitted)
    else:
        stored = _round_scale(fitted if scales.tensor_scale is None else fitted / scales.tensor_scale, rule)
    kept = (vv == 0) | (scales.stored == 0)
    return Scales(torch.where(kept, scales.stored, stored), scales.zero_points, scales.tensor_scale)


def _is_empty(clip_range: Range, scheme: Scheme) -> Tensor:
    return (clip_range.high - clip_range.low == 0) if scheme.asymmetric else clip_range.amax == 0


def _raw_scale(clip_range: Range, scheme: Scheme) -> Tensor:
    """The scale before it is rounded to its own format."""
    fmt, amax = scheme.format, clip_range.amax
    if scheme.mapping is MappingType.SYMMETRIC or not isinstance(fmt, IntegerFormat):
        return _divide(amax, fmt.max)
    if scheme.mapping is MappingType.ASYMMETRIC:
        return _divide(clip_range.high - clip_range.low, 2**fmt.bits - 1)
    if scheme.mapping is MappingType.FULL:
        return _divide(amax, fmt.qmax + 0.5)
    if scheme.mapping is MappingType.POWER:
        return _divide(amax, fmt.qmax + 1)
    return torch.maximum(_divide(-clip_range.low, -fmt.qmin), _divide(clip_range.high, fmt.qmax))


def _divide(x: Tensor, by: float) -> Tensor:
    """IEEE division by a number: torch on a GPU multiplies by the reciprocal of a Python number."""
    return x / torch.full_like(x, by)


def tensor_scale_for(amax: Tensor, fmt: Format) -> Tensor:
    """float32 scalar amax / (6 · 448), so that the largest block scale is E4M3's maximum; 1 if amax is 0."""
    largest = amax.amax() if amax.numel() else amax.new_zeros(())
    scale = _divide(largest, fmt.max * E4M3.max).clamp(min=SMALLEST_TENSOR_SCALE)
    return torch.where(largest == 0, torch.ones_like(scale), scale)


def _round_scale(raw: Tensor, rule: ScaleRule) -> Tensor:
    """``raw`` clamped to the scale format's positive range and rounded to it, as float32."""
    clamped = raw.clamp(rule.smallest, rule.format.max)
    if rule.format is FLOAT32:
        return clamped
    return rule.format.decode(rule.format.encode_unchecked(clamped))


def _power_of_two(amax: Tensor, scheme: Scheme) -> Tensor:
    """2^e by the scheme's exponent rule, from exponent and mantissa fields (no log2), e in [-127, 127]."""
    rule, fmt = scheme.scale.exponent if scheme.scale else None, scheme.format
    if rule is ExponentRule.RCEIL:
        exponent = _ceil_log2(_divide(amax, fmt.max))
    elif rule is ExponentRule.CEIL:
        exponent = _ceil_log2(amax) - fmt.max_exponent
    elif rule is ExponentRule.EVEN:
        half = 1 << (MANTISSA_BITS - fmt.significand_bits - 1)
        exponent = _floor_log2((amax.view(torch.int32) + half).view(torch.float32)) - fmt.max_exponent
    else:
        exponent = _floor_log2(amax) - fmt.max_exponent
    return E8M0.decode((exponent.clamp(-127, 127) + 127).to(torch.uint8))


def _nearest_power_of_two(x: Tensor) -> Tensor:
    """The power of two of E8M0 with the least distance from positive float32 ``x``."""
    exponent = _floor_log2(x)
    exponent += (x.view(torch.int32) & MANTISSA_MASK) > MANTISSA_MASK // 2  # beyond 1.5 · 2^exponent
    return E8M0.decode((exponent.clamp(-127, 127) + 127).to(torch.uint8))


def _floor_log2(x: Tensor) -> Tensor:
    """int32 floor(log2 x) of positive float32, from the exponent field; subnormals count as 2^-127."""
    return ((x.view(torch.int32) & EXPONENT_MASK) >> MANTISSA_BITS) - 127


def _ceil_log2(x: Tensor) -> Tensor:
    return E8M0.encode_unchecked(x).to(torch.int32) - 127


def _zero_points(clip_range: Range, scale: Tensor, scheme: Scheme) -> Tensor | None:
    if not scheme.asymmetric or not isinstance(scheme.format, IntegerFormat):
        return None
    fmt = scheme.format
    return (fmt.qmin - clip_range.low / scale).round().clamp(fmt.qmin, fmt.qmax).to(torch.int8)
