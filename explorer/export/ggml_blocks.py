"""Blocks of 32, ternary ones of 256 and NVFP4's of 4 · 16, as the bytes of ggml's types; those under
super-blocks are in ``export.ggml``.

One block (ggml's ggml-common.h); d and m are float16, e is an exponent + 127::

    Q8_0   d, 32 codes                                   34 bytes
    Q4_0   d, 16 of codes                                18       value d · (u - 8)
    Q4_1   d, m, 16 of codes                             20       value d · u + m
    Q5_0   d, 4 of fifth bits, 16 of codes               22       value d · (u - 16)
    Q5_1   d, m, 4 of fifth bits, 16 of codes            24
    MXFP4  e, 16 of codes                                17
    IQ4_NL d, 16 of codes                                18       value d · level
    TQ1_0  52 of codes, d                                54       value d · (u - 1)
    TQ2_0  64 of codes, d                                66
    NVFP4  4 scales in E4M3, 32 of codes                 36

The byte i of codes has element i in its low half and element i + 16 in its high half; of NVFP4, byte i of
each 8 has elements i and i + 8 of 16; of TQ2_0, byte i of each 32 has elements i, i + 32, i + 64 and i + 96
of 128, from the low bits up. Of TQ1_0, byte i of the first 32 has elements i, i + 32 … i + 128 of 160, byte i
of the next 16 elements i, i + 16 … i + 64 of 80, and byte i of the last 4 elements i, i + 4, i + 8 and i + 12
of 16. They are the digits of a number n of base 3 with five places, from the highest down; ⌈256 n / 243⌉ is
stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor
from explorer.export.ggml import folded, ggml_bytes, super_block_type
from explorer.formats import E4M3, E8M0, IntegerFormat
from explorer.schemes import MappingType, Scheme
from explorer.schemes.rules import IQ4_FORMAT, SUPER_BLOCK, TQ1_FORMAT

BLOCK, NVFP4_BLOCK = 32, 16
PLAIN = {"float32": "F32", "float16": "F16", "bfloat16": "BF16"}
"""Types that are no blocks, by the format of a cast."""


def ggml_type(scheme: Scheme) -> str | None:
    """The name of ggml's type that holds the codes and scales of ``scheme`` as they are; None without one."""
    fmt, rule = scheme.format, scheme.scale
    if rule is None:
        return PLAIN.get(fmt.name)
    if rule.super_bits is not None:
        kind = super_block_type(scheme)
        return None if kind is None else kind.name
    if scheme.flat or rule.nested or rule.per_tensor:
        return None
    if scheme.block == (1, SUPER_BLOCK):
        if rule.format.name != "float16" or scheme.mapping is not MappingType.SYMMETRIC:
            return None
        return {"int2": "TQ2_0", TQ1_FORMAT: "TQ1_0"}.get(fmt.name)
    if scheme.block == (1, NVFP4_BLOCK):
        return "NVFP4" if rule.format is E4M3 and fmt.name == "float4_e2m1fn" else None
    if scheme.block != (1, BLOCK):
        return None
    if rule.format is E8M0:
        return "MXFP4" if fmt.name == "float4_e2m1fn" else None
    if rule.format.name == "float16" and fmt.name == IQ4_FORMAT:
        return "IQ4_NL"
    if rule.format.name != "float16" or not isinstance(fmt, IntegerFormat) or scheme.asymmetric:
        return None
    if scheme.mapping is MappingType.MINIMUM:
        return {4: "Q4_1", 5: "Q5_1"}.get(fmt.bits)
    return None if scheme.mapping.has_offset else {4: "Q4_0", 5: "Q5_0", 8: "Q8_0"}.get(fmt.bits)


def row_multiple(scheme: Scheme) -> int:
    """Number that the row length must be a multiple of."""
    if scheme.scale is None:
        return 1
    if scheme.block == (1, NVFP4_BLOCK) and scheme.scale.super_bits is None:
        return 4 * NVFP4_BLOCK
    super_blocks = scheme.scale.super_bits is not None or scheme.block == (1, SUPER_BLOCK)
    return SUPER_BLOCK if super_blocks else BLOCK


def row_bytes(q: QuantizedTensor) -> Tensor:
    """uint8 [rows, bytes of a row]: ``q`` as ggml stores it.

    ``ValueError`` for a scheme without ``ggml_type``, and for rows that are not whole blocks.
    """
    name = ggml_type(q.scheme)
    if name is None:
        raise ValueError(f"ggml has no type for {q.scheme.label}")
    if q.scheme.scale is None:
        dtype = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}[name]
        return q.dequantize(dtype).view(torch.uint8)
    if q.shape[1] % row_multiple(q.scheme):
        raise ValueError(f"a row of {q.shape[1]} values is no whole number of {row_multiple(q.scheme)}")
    if q.scheme.scale.super_bits is not None:
        return ggml_bytes(q)
    layout = {"TQ1_0": _trit_blocks, "TQ2_0": _ternary_blocks, "NVFP4": _nvfp4_blocks}.get(
        name, _blocks_of_32
    )
    return torch.cat(layout(q), 1).view(q.shape[0], -1)


def _ternary_blocks(q: QuantizedTensor) -> list[Tensor]:
    """The parts of all blocks of 256, each uint8 [blocks, bytes]."""
    codes = (q.codes + 1 & 3).reshape(-1, SUPER_BLOCK)
    return [folded(codes, 2, 2), _float16(q.scales.stored)]


TRIT_RUNS = ((160, 5), (80, 5), (16, 4))
"""TQ1_0's runs of elements of a block, and how many of each run share a byte."""


def _trit_blocks(q: QuantizedTensor) -> list[Tensor]:
    """The parts of all blocks of 256, each uint8 [blocks, bytes]."""
    runs = q.codes.reshape(-1, SUPER_BLOCK).split([length for length, _ in TRIT_RUNS], 1)
    packed = []
    for run, (_, digits) in zip(runs, TRIT_RUNS, strict=True):
        number = torch.zeros_like(run[:, : run.shape[1] // digits], dtype=torch.int32)
        for digit in run.unflatten(1, (digits, -1)).unbind(1):
            number = number * 3 + digit
        number *= 3 ** (5 - digits)
        packed.append(((number * 256 + 242) // 243).to(torch.uint8))
    return [*packed, _float16(q.scales.stored)]


def _nvfp4_blocks(q: QuantizedTensor) -> list[Tensor]:
    """The parts of all runs of four blocks, each uint8 [runs, bytes]."""
    scales = E4M3.encode_unchecked(q.scales.stored).reshape(-1, 4)
    low, high = q.codes.reshape(-1, 4, 2, NVFP4_BLOCK // 2).unbind(2)
    return [scales, (low | high << 4).flatten(1)]


def _blocks_of_32(q: QuantizedTensor) -> list[Tensor]:
    """The parts of all blocks, each uint8 [blocks, bytes]."""
    if isinstance(q.scheme.format, IntegerFormat):
        bits = q.scheme.format.bits
        scales = [_float16(q.scales.stored)]
        scales += [] if q.scales.offsets is None else [_float16(q.scales.offsets)]
        if bits == 8:
            return [*scales, q.codes.reshape(-1, BLOCK)]
        codes = (q.codes ^ (1 << (bits - 1))).reshape(-1, BLOCK)
        fifth = [_fifth_bits(codes)] if bits == 5 else []
        return [*scales, *fifth, _halves(codes & 15)]
    if q.scheme.format.name == IQ4_FORMAT:
        return [_float16(q.scales.stored), _halves(q.codes.reshape(-1, BLOCK))]
    exponents = E8M0.encode_unchecked(q.scales.stored).to(torch.uint8)
    return [exponents.reshape(-1, 1), _halves(q.codes.reshape(-1, BLOCK))]


def _float16(grid: Tensor) -> Tensor:
    return grid.to(torch.float16).reshape(-1, 1).contiguous().view(torch.uint8)


def _halves(codes: Tensor) -> Tensor:
    low, high = codes.unflatten(1, (2, BLOCK // 2)).unbind(1)
    return low | high << 4


def _fifth_bits(codes: Tensor) -> Tensor:
    """uint8 [blocks, 4]: bit i of the 32 is the fifth of code i."""
    bits = (codes >> 4).unflatten(1, (4, 8))
    return (bits << torch.arange(8, dtype=torch.uint8)).sum(2, dtype=torch.uint8)


def block_scales(kind: str, blocks: Tensor) -> Tensor | None:
    """float32 [blocks, scales of each]: what multiplies the codes of ggml's type ``kind`` in ``blocks``,
    uint8 [blocks, bytes]; None for a type whose scales are not read here."""
    if kind in _LEADING:
        return _as_float(blocks[:, :2])
    if kind == "NVFP4":
        return E4M3.decode(blocks[:, :4])
    if kind in ("TQ1_0", "TQ2_0"):
        return _as_float(blocks[:, -2:])
    if kind == "MXFP4":
        return E8M0.decode(blocks[:, :1])
    found = _K_SCALES.get(kind)
    return None if found is None else found(blocks)


def _as_float(raw: Tensor) -> Tensor:
    """float32 [blocks, 1] of the bytes of a float16 in each."""
    return raw.contiguous().view(torch.float16).float()


def _q2_k_scales(blocks: Tensor) -> Tensor:
    return (blocks[:, :16] & 15).float() * _as_float(blocks[:, 80:82])


def _q3_k_scales(blocks: Tensor) -> Tensor:
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    low = torch.cat((low & 15, low >> 4), 1)
    high = torch.cat([high >> (2 * run) & 3 for run in range(4)], 1)
    return ((low | high << 4).float() - 32) * _as_float(blocks[:, 108:110])


def _six_bit_scales(blocks: Tensor) -> Tensor:
    """Of Q4_K and Q5_K."""
    first, low = blocks[:, 4:8], blocks[:, 12:16]
    s = torch.cat((first & 63, low & 15 | first >> 6 << 4), 1)
    return s.float() * _as_float(blocks[:, :2])


def _iq4_xs_scales(blocks: Tensor) -> Tensor:
    high, low = blocks[:, 2:4], blocks[:, 4:8]
    low = torch.stack((low & 15, low >> 4), 2).flatten(1)
    high = torch.stack([high >> shift & 3 for shift in range(0, 8, 2)], 2).flatten(1)
    return ((low | high << 4).float() - 32) * _as_float(blocks[:, :2])


def _q6_k_scales(blocks: Tensor) -> Tensor:
    return blocks[:, 192:208].contiguous().view(torch.int8).float() * _as_float(blocks[:, 208:210])


_LEADING = ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL")
"""Types whose blocks begin with their one scale."""
_K_SCALES = {
    "Q2_K": _q2_k_scales,
    "Q3_K": _q3_k_scales,
    "Q4_K": _six_bit_scales,
    "Q5_K": _six_bit_scales,
    "Q6_K": _q6_k_scales,
    "IQ4_XS": _iq4_xs_scales,
}
