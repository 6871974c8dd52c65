"""The file layout of scales that are themselves quantized: integers, and the scales above them."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
from torch import Tensor

from explorer.formats.packing import pack_bits, unpack_bits
from explorer.schemes import Scales, Scheme
from explorer.schemes.levels import DYNAMIC_MAP, NestedLevel, SuperBlockLevel, integer_limits
from explorer.schemes.rules import NESTED_BLOCK, SUPER_BLOCK

Part = tuple[torch.dtype, tuple[int, ...]]
"""The dtype and shape accepted for a part of a file."""
LEVEL_KEYS = ("super_scale", "super_minimum", "mean")


def packed_levels(scales: Scales, scheme: Scheme) -> dict[str, Tensor]:
    """Return the file's tensors for the upper level of ``scales``; empty without an upper level.
    ``ValueError`` if the scheme has one and only dequantized scales are known."""
    rule, upper = scheme.scale, scales.upper
    if rule is None or not rule.has_upper_level:
        return {}
    if upper is None:
        raise ValueError(f"the scales of this {scheme.label} tensor were taken apart: quantize it again")
    if isinstance(upper, NestedLevel):
        return _packed_nested(scales, upper)
    return _packed_super_blocks(scales, upper, scheme)


def level_parts(scheme: Scheme, shape: tuple[int, int]) -> dict[str, list[Part]]:
    """Return dtype and shape of each part that ``packed_levels`` writes for a tensor of ``shape``."""
    rule, grid, blocks = scheme.scale, scheme.grid(shape), math.prod(scheme.grid(shape))
    if rule is None or rule.super_bits is None:
        above: list[Part] = [(torch.float32, (math.ceil(blocks / NESTED_BLOCK),))]
        return {"scale": [(torch.uint8, grid)], "super_scale": above, "mean": [(torch.float32, ())]}
    supers: list[Part] = [(torch.float16, (shape[0], math.ceil(shape[1] / SUPER_BLOCK)))]
    integers = blocks * (2 if scheme.mapping.has_offset else 1)
    return {
        "scale": [(torch.uint8, (math.ceil(integers * rule.super_bits / 8),))],
        "super_scale": supers,
        "super_minimum": supers if scheme.mapping.has_offset else [],
    }


def unpacked_levels(
    tensors: Mapping[str, Tensor | None], scheme: Scheme, shape: tuple[int, int]
) -> Scales | None:
    """Invert ``packed_levels`` on checked tensors; None without an upper level."""
    rule, present = scheme.scale, {key: tensor for key, tensor in tensors.items() if tensor is not None}
    if rule is None or not rule.has_upper_level:
        return None
    read = _read_nested if rule.nested else _read_super_blocks
    return read(present, scheme, shape)


def _packed_nested(scales: Scales, upper: NestedLevel) -> dict[str, Tensor]:
    codes = torch.searchsorted(DYNAMIC_MAP.to(scales.stored.device), scales.stored.contiguous())
    return {
        "scale": codes.to(torch.uint8),
        "super_scale": upper.scale.reshape(-1)[::NESTED_BLOCK].contiguous(),
        "mean": upper.mean.reshape(-1)[:1].sum().reshape(()),
    }


def _read_nested(tensors: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]) -> Scales:
    codes = tensors["scale"]
    each = tensors["super_scale"].repeat_interleave(NESTED_BLOCK)[: codes.numel()]
    upper = NestedLevel(each.view(codes.shape), tensors["mean"].expand(codes.shape))
    return Scales.of(scheme, DYNAMIC_MAP[codes.long()], None, None, upper=upper)


def block_integers(scales: Scales) -> tuple[Tensor, Tensor | None]:
    """Return the stored integers of the blocks' scales and minimums, int16 [grid] each.

    A minimum times a float16 scale is exact in float32, so the division recovers the integer.
    """
    upper, minimums = scales.upper, None
    assert isinstance(upper, SuperBlockLevel)
    if scales.offsets is not None and upper.minimum is not None:
        whole = (-scales.offsets / upper.minimum).round()
        minimums = torch.where(upper.minimum == 0, torch.zeros_like(whole), whole).to(torch.int16)
    return scales.stored.to(torch.int16), minimums


def super_scales(grid: Tensor, scheme: Scheme) -> Tensor:
    """Reduce a ``grid`` with equal entries in each super-block to float16 [rows, super-blocks]."""
    assert scheme.block[1] is not None
    return grid[:, :: SUPER_BLOCK // scheme.block[1]].to(torch.float16).contiguous()


def _packed_super_blocks(scales: Scales, upper: SuperBlockLevel, scheme: Scheme) -> dict[str, Tensor]:
    bits = scheme.scale.super_bits if scheme.scale else None
    assert bits is not None
    integers = torch.cat([part.reshape(-1) for part in block_integers(scales) if part is not None])
    codes = (integers & ((1 << bits) - 1)).to(torch.uint8)
    tensors = {"scale": pack_bits(codes[None], bits).view(-1)}
    tensors["super_scale"] = super_scales(upper.scale, scheme)
    if upper.minimum is not None:
        tensors["super_minimum"] = super_scales(upper.minimum, scheme)
    return tensors


def _read_super_blocks(tensors: Mapping[str, Tensor], scheme: Scheme, shape: tuple[int, int]) -> Scales:
    bits, width = scheme.scale.super_bits if scheme.scale else None, scheme.block[1]
    assert bits is not None and width is not None
    rows, columns = scheme.grid(shape)
    parts = 2 if "super_minimum" in tensors else 1
    integers = unpack_bits(tensors["scale"].view(1, -1), bits, parts * rows * columns).to(torch.float32)
    low, high = integer_limits(bits, signed=parts == 1)
    integers = torch.where(integers > high, integers - (1 << bits), integers).view(parts, rows, columns)

    def expanded(key: str) -> Tensor:
        each = tensors[key].to(torch.float32).repeat_interleave(SUPER_BLOCK // width, 1)
        return each[:, :columns].contiguous()

    above = expanded("super_minimum") if parts == 2 else None
    offsets = None if above is None else -(integers[1] * above)
    upper = SuperBlockLevel(expanded("super_scale"), above, low, high)
    return Scales.of(scheme, integers[0], None, None, offsets, upper)
