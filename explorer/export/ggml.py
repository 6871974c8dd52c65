"""Quantized tensors as the bytes of ggml's types, which llama.cpp reads and the package gguf dequantizes.

The bytes of a block by ggml's ggml-common.h; d, d' and m are float16, e is an exponent + 127. Blocks of 32,
ternary ones of 256, and NVFP4's of 4 · 16::

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

Super-blocks of 256, with integers s and m for the scales and minimums of their blocks::

    Q2_K   16 bytes s | m << 4, 64 of codes, d, d'                              84
    Q3_K   32 bytes of the codes' third bits, 64 of their low ones, 12 of s, d  110
    Q4_K   d, d', 12 bytes of s and m, 128 of codes                             144
    Q5_K   d, d', 12 bytes of s and m, 32 of fifth bits, 128 of low ones        176
    Q6_K   128 bytes of low four bits, 64 of high two, 16 of s, d               210
    IQ4_XS d, 2 bytes of the high two bits of s + 32, 4 of low four, 128 of codes  136

In blocks of 32 the byte i of codes has element i in its low half and element i + 16 in its high half; of
NVFP4, byte i of each 8 has elements i and i + 8 of 16; of TQ2_0, byte i of each 32 has elements i, i + 32,
i + 64 and i + 96 of 128, from the low bits up. Of TQ1_0, byte i of the first 32 has elements i, i + 32 …
i + 128 of 160, byte i of the next 16 elements i, i + 16 … i + 64 of 80, and byte i of the last 4 elements i,
i + 4, i + 8 and i + 12 of 16: the digits of a number n of base 3 with five places, from the highest down, of
which ⌈256 n / 243⌉ is stored.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.core.file_levels import block_integers, super_scales
from explorer.core.quantize import QuantizedTensor
from explorer.formats import E4M3, E8M0, IntegerFormat
from explorer.schemes import MappingType, Scheme
from explorer.schemes.levels import SuperBlockLevel
from explorer.schemes.rules import IQ4_BLOCK, IQ4_FORMAT, SUPER_BLOCK, TQ1_FORMAT

BLOCK, NVFP4_BLOCK = 32, 16
PLAIN = {torch.float32: "F32", torch.float16: "F16", torch.bfloat16: "BF16"}
"""Types without blocks, by the dtype of a cast."""
TRIT_RUNS = ((160, 5), (80, 5), (16, 4))
"""TQ1_0's runs of elements in a block, and the number of elements of each run that share a byte."""


def ggml_type(scheme: Scheme) -> str | None:
    """Name ggml's type that holds the codes and scales of ``scheme`` exactly; None without one."""
    fmt, rule, mapping = scheme.format, scheme.scale, scheme.mapping
    if rule is None:
        return None if scheme.plain_dtype is None else PLAIN[scheme.plain_dtype]
    if rule.super_bits is not None:
        kind = (fmt.name, scheme.block[1], rule.super_bits, mapping.has_offset)
        return _SUPER_TYPES[kind][0] if kind in _SUPER_TYPES else None
    if scheme.flat or rule.nested or rule.per_tensor:
        return None
    half = rule.format.name == "float16"
    if scheme.block == (1, SUPER_BLOCK) and half and mapping is MappingType.SYMMETRIC:
        return {"int2": "TQ2_0", TQ1_FORMAT: "TQ1_0"}.get(fmt.name)
    if scheme.block == (1, NVFP4_BLOCK):
        return "NVFP4" if rule.format is E4M3 and fmt.name == "float4_e2m1fn" else None
    if scheme.block != (1, BLOCK):
        return None
    if rule.format is E8M0:
        return "MXFP4" if fmt.name == "float4_e2m1fn" else None
    if half and fmt.name == IQ4_FORMAT:
        return "IQ4_NL"
    if not half or not isinstance(fmt, IntegerFormat) or scheme.asymmetric:
        return None
    if mapping is MappingType.MINIMUM:
        return {4: "Q4_1", 5: "Q5_1"}.get(fmt.bits)
    return None if mapping.has_offset else {4: "Q4_0", 5: "Q5_0", 8: "Q8_0"}.get(fmt.bits)


def row_multiple(scheme: Scheme) -> int:
    """Number that divides every row length of the type."""
    if scheme.scale is None:
        return 1
    if scheme.scale.super_bits is not None or scheme.block == (1, SUPER_BLOCK):
        return SUPER_BLOCK
    return 4 * NVFP4_BLOCK if scheme.block == (1, NVFP4_BLOCK) else BLOCK


def row_bytes(q: QuantizedTensor) -> Tensor:
    """uint8 [rows, bytes of a row]: ``q`` as ggml stores it.

    ``ValueError`` for a scheme without ``ggml_type``, and for rows that are not whole blocks.
    """
    name, multiple = ggml_type(q.scheme), row_multiple(q.scheme)
    if name is None:
        raise ValueError(
            f"ggml has no type for {q.scheme.label}; its K-quants are q2_k … q6_k, and there is iq4_xs"
        )
    if q.scheme.plain_dtype is not None:
        return q.dequantize(q.scheme.plain_dtype).view(torch.uint8)
    if q.shape[1] % multiple:
        raise ValueError(f"a row of {q.shape[1]} values is no whole number of blocks of {multiple}")
    pack = dict(_SUPER_TYPES.values()).get(name)
    parts = _LAYOUTS.get(name, _blocks_of_32)(q) if pack is None else pack(_super_blocks(q))
    return torch.cat(parts, 1).view(q.shape[0], -1)


def _float16(grid: Tensor) -> Tensor:
    """Bytes of float16 numbers, uint8 [blocks, 2]."""
    return grid.to(torch.float16).reshape(-1, 1).contiguous().view(torch.uint8)


def _folded(values: Tensor, groups: int, bits: int) -> Tensor:
    """Pack the values of each group, all below 2^bits, into uint8 [blocks, bytes]: in 8 / bits runs, one
    above the other from the low bits up."""
    runs = values.unflatten(1, (groups, 8 // bits, -1))
    out = torch.zeros_like(runs[:, :, 0])
    for i in range(8 // bits):
        out |= runs[:, :, i] << (i * bits)
    return out.flatten(1)


def _blocks_of_32(q: QuantizedTensor) -> list[Tensor]:
    codes = q.codes.reshape(-1, BLOCK)
    if not isinstance(q.scheme.format, IntegerFormat):
        half = q.scheme.format.name == IQ4_FORMAT
        stored = q.scales.stored.reshape(-1, 1)
        scale = _float16(stored) if half else E8M0.encode_unchecked(stored).to(torch.uint8)
        return [scale, _folded(codes, 1, 4)]
    bits = q.scheme.format.bits
    scales = [_float16(grid) for grid in (q.scales.stored, q.scales.offsets) if grid is not None]
    if bits == 8:
        return [*scales, codes]
    codes = codes ^ (1 << (bits - 1))
    # Bit i of the four bytes is the fifth of code i.
    fifth = (codes >> 4).unflatten(1, (4, 8)) << torch.arange(8, dtype=torch.uint8)
    return [*scales, *([fifth.sum(2, dtype=torch.uint8)] if bits == 5 else []), _folded(codes & 15, 1, 4)]


def _nvfp4_blocks(q: QuantizedTensor) -> list[Tensor]:
    return [E4M3.encode_unchecked(q.scales.stored).reshape(-1, 4), _folded(q.codes.reshape(-1, 64), 4, 4)]


def _ternary_blocks(q: QuantizedTensor) -> list[Tensor]:
    codes = (q.codes + 1 & 3).reshape(-1, SUPER_BLOCK)
    return [_folded(codes, 2, 2), _float16(q.scales.stored)]


def _trit_blocks(q: QuantizedTensor) -> list[Tensor]:
    runs = q.codes.reshape(-1, SUPER_BLOCK).split([length for length, _ in TRIT_RUNS], 1)
    packed = []
    for run, (_, digits) in zip(runs, TRIT_RUNS, strict=True):
        number = torch.zeros_like(run[:, : run.shape[1] // digits], dtype=torch.int32)
        for digit in run.unflatten(1, (digits, -1)).unbind(1):
            number = number * 3 + digit
        number *= 3 ** (5 - digits)
        packed.append(((number * 256 + 242) // 243).to(torch.uint8))
    return [*packed, _float16(q.scales.stored)]


_LAYOUTS = {"TQ1_0": _trit_blocks, "TQ2_0": _ternary_blocks, "NVFP4": _nvfp4_blocks}


@dataclass(frozen=True)
class _SuperBlocks:
    """The parts of super-blocks.

    codes     uint8 [super-blocks, 256]     from 0
    scales    uint8 [super-blocks, blocks]  the integers s, signed ones in two's complement
    minimums  uint8 [super-blocks, blocks]  the integers m; [super-blocks, 0] without
    d, d_min  uint8 [super-blocks, 2]       float16; d_min [super-blocks, 0] without minimums
    """

    codes: Tensor
    scales: Tensor
    minimums: Tensor
    d: Tensor
    d_min: Tensor


def _super_blocks(q: QuantizedTensor) -> _SuperBlocks:
    fmt, codes = q.scheme.format, q.codes
    if isinstance(fmt, IntegerFormat):
        codes = (fmt.decode(codes) - fmt.qmin).to(torch.uint8)
    upper, count = q.scales.upper, q.shape[0] * q.shape[1] // SUPER_BLOCK
    assert isinstance(upper, SuperBlockLevel)
    scales, minimums = block_integers(q.scales)
    none = torch.empty(count, 0, dtype=torch.uint8, device=q.packed.device)

    def bytes_of(grid: Tensor | None) -> Tensor:
        return none if grid is None else super_scales(grid, q.scheme).view(-1, 1).view(torch.uint8)

    return _SuperBlocks(
        codes.reshape(count, SUPER_BLOCK),
        (scales & 0xFF).to(torch.uint8).reshape(count, -1),
        none if minimums is None else minimums.to(torch.uint8).reshape(count, -1),
        bytes_of(upper.scale),
        bytes_of(upper.minimum),
    )


def _q2_k(b: _SuperBlocks) -> list[Tensor]:
    return [b.scales | b.minimums << 4, _folded(b.codes, 2, 2), b.d, b.d_min]


def _q3_k(b: _SuperBlocks) -> list[Tensor]:
    s = (b.scales + 32) & 63
    low, high = _folded(b.codes & 3, 2, 2), _folded(b.codes >> 2, 1, 1)
    return [high, low, _folded(s & 15, 1, 4), _folded(s >> 4, 1, 2), b.d]


def _q4_k(b: _SuperBlocks) -> list[Tensor]:
    return [b.d, b.d_min, *_six_bits(b), _folded(b.codes, 4, 4)]


def _q5_k(b: _SuperBlocks) -> list[Tensor]:
    return [b.d, b.d_min, *_six_bits(b), _folded(b.codes >> 4, 1, 1), _folded(b.codes & 15, 4, 4)]


def _q6_k(b: _SuperBlocks) -> list[Tensor]:
    return [_folded(b.codes & 15, 2, 4), _folded(b.codes >> 4, 2, 2), b.scales, b.d]


def _six_bits(b: _SuperBlocks) -> list[Tensor]:
    """Pack eight scales and eight minimums of six bits into twelve bytes: the first four of each with the
    high two bits of the last four above them, then the low four bits of these, scales below minimums."""
    (s, s_last), (m, m_last) = (x.unflatten(1, (2, 4)).unbind(1) for x in (b.scales, b.minimums))
    return [s | s_last >> 4 << 6, m | m_last >> 4 << 6, s_last & 15 | (m_last & 15) << 4]


def _iq4_xs(b: _SuperBlocks) -> list[Tensor]:
    s = (b.scales + 32) & 63
    even, odd = s.unflatten(1, (-1, 2)).unbind(2)
    quarters = (s >> 4).unflatten(1, (-1, 4)) << torch.arange(0, 8, 2, dtype=torch.uint8, device=s.device)
    high = quarters.sum(2, dtype=torch.uint8)
    return [b.d, high, (even & 15) | (odd & 15) << 4, _folded(b.codes, 8, 4)]


_SUPER_TYPES: dict[tuple[str, int | None, int, bool], tuple[str, Callable[[_SuperBlocks], list[Tensor]]]] = {
    ("int2", 16, 4, True): ("Q2_K", _q2_k),
    ("int3", 16, 6, False): ("Q3_K", _q3_k),
    ("int4", 32, 6, True): ("Q4_K", _q4_k),
    ("int5", 32, 6, True): ("Q5_K", _q5_k),
    ("int6", 16, 8, False): ("Q6_K", _q6_k),
    (IQ4_FORMAT, IQ4_BLOCK, 6, False): ("IQ4_XS", _iq4_xs),
}
"""Format of codes, length of a block, bits of its scale, True with minimums -> the type's name, and the parts
of its bytes, uint8 [super-blocks, n]."""


def block_scales(kind: str, blocks: Tensor) -> Tensor | None:
    """Read the factors of the codes in ``blocks``, uint8 [blocks, bytes], of ggml's type ``kind``: float32
    [blocks, scales of each]; None for a type whose scales are not read here."""
    read = _SCALES.get(kind)
    return None if read is None else read(blocks)


def _as_float(raw: Tensor) -> Tensor:
    """Read a float16 from its bytes in each block: float32 [blocks, 1]."""
    return raw.contiguous().view(torch.float16).float()


def _leading_scale(blocks: Tensor) -> Tensor:
    return _as_float(blocks[:, :2])


def _last_scale(blocks: Tensor) -> Tensor:
    return _as_float(blocks[:, -2:])


def _q3_k_scales(blocks: Tensor) -> Tensor:
    low, high = blocks[:, 96:104], blocks[:, 104:108]
    low = torch.cat((low & 15, low >> 4), 1)
    high = torch.cat([high >> (2 * run) & 3 for run in range(4)], 1)
    return ((low | high << 4).float() - 32) * _last_scale(blocks)


def _six_bit_scales(blocks: Tensor) -> Tensor:
    first, low = blocks[:, 4:8], blocks[:, 12:16]
    s = torch.cat((first & 63, low & 15 | first >> 6 << 4), 1)
    return s.float() * _leading_scale(blocks)


def _iq4_xs_scales(blocks: Tensor) -> Tensor:
    high, low = blocks[:, 2:4], blocks[:, 4:8]
    low = torch.stack((low & 15, low >> 4), 2).flatten(1)
    high = torch.stack([high >> shift & 3 for shift in range(0, 8, 2)], 2).flatten(1)
    return ((low | high << 4).float() - 32) * _leading_scale(blocks)


_SCALES: dict[str, Callable[[Tensor], Tensor]] = {
    **dict.fromkeys(("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "IQ4_NL"), _leading_scale),
    **dict.fromkeys(("TQ1_0", "TQ2_0"), _last_scale),
    "NVFP4": lambda blocks: E4M3.decode(blocks[:, :4]),
    "MXFP4": lambda blocks: E8M0.decode(blocks[:, :1]),
    "Q2_K": lambda blocks: (blocks[:, :16] & 15).float() * _as_float(blocks[:, 80:82]),
    "Q3_K": _q3_k_scales,
    "Q4_K": _six_bit_scales,
    "Q5_K": _six_bit_scales,
    "Q6_K": lambda blocks: blocks[:, 192:208].contiguous().view(torch.int8).float() * _last_scale(blocks),
    "IQ4_XS": _iq4_xs_scales,
}
