"""Integer codes and their scales as other programs pack them: unsigned codes, int32 words, float16 scales."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack_bits
from explorer.schemes import MappingType, Scheme
from explorer.schemes.parts import SEPARATOR

_WORD = 4


def integer_refusal(scheme: Scheme, bits: tuple[int, ...], along: int) -> str:
    """Reason why an integer layout of ``bits``, with scales and integer zero points per row or per group
    along rows of ``along`` values, cannot hold ``scheme``; empty if it can."""
    fmt, rule, (height, width) = scheme.format, scheme.scale, scheme.block
    if not isinstance(fmt, IntegerFormat) or rule is None or fmt.bits not in bits:
        return f"it holds INT{', INT'.join(map(str, bits))} codes, not {scheme.label}"
    if scheme.mapping.has_offset:
        return f"it holds integer zero points, not the floating-point offsets of {scheme.label}"
    if rule.has_upper_level or rule.per_tensor:
        return f"it holds one scale a block, not the two levels of {scheme.label}"
    if scheme.flat or height != 1:
        return f"its blocks are rows or groups along a row, not {scheme.granularity}"
    return ragged(along, width)


def ragged(along: int, width: int | None, what: str = "row") -> str:
    """Reason why groups of ``width`` do not fit a row of ``along`` values; empty if they do."""
    return (
        f"a {what} of {along} values is no whole number of groups of {width}" if along % (width or 1) else ""
    )


def groups_in(scheme: Scheme, shape: tuple[int, int]) -> int:
    """Count the scales of a layer [N, K]."""
    return math.prod(scheme.grid(shape))


def unsigned(q: QuantizedTensor) -> Tensor:
    """Shift integer codes to unsigned ones, counted from the lowest, -2^(b-1): uint8 [N, K]."""
    return q.codes ^ (1 << (q.scheme.format.bits - 1))


def zero_codes(q: QuantizedTensor) -> Tensor:
    """The unsigned codes of 0: uint8 [N, groups]."""
    middle = 1 << (q.scheme.format.bits - 1)
    if q.scales.zero_points is None:
        return torch.full(q.scheme.grid(q.shape), middle, dtype=torch.uint8)
    return (q.scales.zero_points.to(torch.int16) + middle).to(torch.uint8)


def int32_words(codes: Tensor, bits: int) -> Tensor:
    """Pack ``codes`` uint8 [rows, cols] into int32 [rows, ceil(cols · bits / 32)]: one stream of bits a row,
    from the lowest bit of the first word up."""
    packed = pack_bits(codes.contiguous(), bits)
    padded = torch.nn.functional.pad(packed, (0, -packed.shape[1] % _WORD)).contiguous()
    return padded.view(-1).view(torch.int32).view(len(codes), -1)


def is_asymmetric(scheme: Scheme) -> bool:
    """True if the scheme has integer zero points."""
    return scheme.mapping is MappingType.ASYMMETRIC


def half_scales_refusal(scheme: Scheme) -> str:
    """Reason why scales of ``scheme`` cannot be stored exactly in float16; empty if they can."""
    rule = scheme.scale
    if rule is not None and rule.format.name == "float16":
        return ""
    word = scheme.text.split(SEPARATOR)
    word[3] = "float16"
    return f"its scales are float16, those of {scheme.label} are not: take {SEPARATOR.join(word)}"


def half_scales(q: QuantizedTensor) -> Tensor:
    """The scales as float16 [groups, N]."""
    return q.scales.scale.to(torch.float16).t().contiguous()
