"""K-quants and IQ4_XS as the bytes of ggml's super-blocks, which llama.cpp reads and the package gguf
dequantizes.

One super-block of 256 elements (block_q2_K … block_iq4_xs of ggml's ggml-common.h); d and d' are float16::

    Q2_K  16 bytes s | m << 4, 64 of codes, d, d'                              84
    Q3_K  32 bytes of the codes' third bits, 64 of their low ones, 12 of s, d  110
    Q4_K  d, d', 12 bytes of s and m, 128 of codes                             144
    Q5_K  d, d', 12 bytes of s and m, 32 of fifth bits, 128 of low ones        176
    Q6_K  128 bytes of low four bits, 64 of high two, 16 of s, d               210
    IQ4_XS  d, 2 bytes of the high two bits of s + 32, 4 of low four, 128 of codes  136
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.core.file_levels import block_integers, super_scales
from explorer.core.quantize import QuantizedTensor
from explorer.formats import IntegerFormat
from explorer.schemes import Scheme
from explorer.schemes.levels import SuperBlockLevel
from explorer.schemes.rules import IQ4_BLOCK, IQ4_FORMAT, SUPER_BLOCK


@dataclass(frozen=True)
class SuperBlocks:
    """The parts of super-blocks, all of them below each other.

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


def ggml_bytes(q: QuantizedTensor) -> Tensor:
    """uint8 [rows, bytes of a row]: ``q``, quantized by one of ``q2_k`` … ``q6_k`` or ``iq4_xs``, as ggml
    stores it.

    ``ValueError`` for other schemes, and for rows that are not whole super-blocks, which ggml has none of.
    """
    kind = super_block_type(q.scheme)
    if kind is None:
        raise ValueError(f"ggml has the K-quants q2_k … q6_k, and iq4_xs; {q.scheme.label} is none of them")
    if q.shape[1] % SUPER_BLOCK:
        raise ValueError(
            f"a row of {q.shape[1]} values is no whole number of super-blocks of {SUPER_BLOCK}, as ggml asks"
        )
    return torch.cat(kind.parts(_super_blocks(q)), 1).view(q.shape[0], -1)


def _super_blocks(q: QuantizedTensor) -> SuperBlocks:
    fmt, codes = q.scheme.format, q.codes
    if isinstance(fmt, IntegerFormat):
        codes = (fmt.decode(codes) - fmt.qmin).to(torch.uint8)
    upper, count = q.scales.upper, q.shape[0] * q.shape[1] // SUPER_BLOCK
    assert isinstance(upper, SuperBlockLevel)
    scales, minimums = block_integers(q.scales)
    none = torch.empty(count, 0, dtype=torch.uint8, device=q.packed.device)

    def bytes_of(grid: Tensor | None) -> Tensor:
        return none if grid is None else super_scales(grid, q.scheme).view(-1, 1).view(torch.uint8)

    return SuperBlocks(
        codes.reshape(count, SUPER_BLOCK),
        (scales & 0xFF).to(torch.uint8).reshape(count, -1),
        none if minimums is None else minimums.to(torch.uint8).reshape(count, -1),
        bytes_of(upper.scale),
        bytes_of(upper.minimum),
    )


def folded(values: Tensor, groups: int, bits: int) -> Tensor:
    """uint8 [super-blocks, bytes]: a group's values, each below 2^bits, in 8 / bits runs, one over the other
    from the low bits up."""
    runs = values.unflatten(1, (groups, 8 // bits, -1))
    out = torch.zeros_like(runs[:, :, 0])
    for i in range(8 // bits):
        out |= runs[:, :, i] << (i * bits)
    return out.flatten(1)


def _q2_k(b: SuperBlocks) -> list[Tensor]:
    return [b.scales | b.minimums << 4, folded(b.codes, 2, 2), b.d, b.d_min]


def _q3_k(b: SuperBlocks) -> list[Tensor]:
    s = (b.scales + 32) & 63
    low, high = folded(b.codes & 3, 2, 2), folded(b.codes >> 2, 1, 1)
    return [high, low, folded(s & 15, 1, 4), folded(s >> 4, 1, 2), b.d]


def _q4_k(b: SuperBlocks) -> list[Tensor]:
    return [b.d, b.d_min, *_six_bits(b), folded(b.codes, 4, 4)]


def _q5_k(b: SuperBlocks) -> list[Tensor]:
    return [b.d, b.d_min, *_six_bits(b), folded(b.codes >> 4, 1, 1), folded(b.codes & 15, 4, 4)]


def _q6_k(b: SuperBlocks) -> list[Tensor]:
    return [folded(b.codes & 15, 2, 4), folded(b.codes >> 4, 2, 2), b.scales, b.d]


def _six_bits(b: SuperBlocks) -> list[Tensor]:
    """Twelve bytes of eight scales and eight minimums: the first four of each with the high two bits of the
    last four above them, then the low four bits of these, scales below minimums."""
    (s, s_last), (m, m_last) = (x.unflatten(1, (2, 4)).unbind(1) for x in (b.scales, b.minimums))
    return [s | s_last >> 4 << 6, m | m_last >> 4 << 6, s_last & 15 | (m_last & 15) << 4]


def _iq4_xs(b: SuperBlocks) -> list[Tensor]:
    s = (b.scales + 32) & 63
    even, odd = s.unflatten(1, (-1, 2)).unbind(2)
    quarters = (s >> 4).unflatten(1, (-1, 4)) << torch.arange(0, 8, 2, dtype=torch.uint8, device=s.device)
    high = quarters.sum(2, dtype=torch.uint8)
    return [b.d, high, (even & 15) | (odd & 15) << 4, folded(b.codes, 8, 4)]


@dataclass(frozen=True)
class SuperBlockType:
    """A type of ggml with super-blocks: its name, and the parts of its bytes, uint8 [super-blocks, n]."""

    name: str
    parts: Callable[[SuperBlocks], list[Tensor]]


_TYPES: dict[tuple[str, int, int, bool], SuperBlockType] = {
    ("int2", 16, 4, True): SuperBlockType("Q2_K", _q2_k),
    ("int3", 16, 6, False): SuperBlockType("Q3_K", _q3_k),
    ("int4", 32, 6, True): SuperBlockType("Q4_K", _q4_k),
    ("int5", 32, 6, True): SuperBlockType("Q5_K", _q5_k),
    ("int6", 16, 8, False): SuperBlockType("Q6_K", _q6_k),
    (IQ4_FORMAT, IQ4_BLOCK, 6, False): SuperBlockType("IQ4_XS", _iq4_xs),
}
"""By the format of codes, the length of a block, the bits of its scale, and whether there are minimums."""


def super_block_type(scheme: Scheme) -> SuperBlockType | None:
    """The type of ggml with super-blocks that holds the codes and scales of ``scheme``; None without one."""
    rule, length = scheme.scale, scheme.block[1]
    if rule is None or rule.super_bits is None or length is None:
        return None
    return _TYPES.get((scheme.format.name, length, rule.super_bits, scheme.mapping.has_offset))
