"""K-quants as the bytes of ggml's super-blocks, which llama.cpp reads and the package gguf dequantizes.

One super-block of 256 elements (block_q2_K … block_q6_K of ggml's ggml-common.h); d and d' are float16::

    Q2_K  16 bytes s | m << 4, 64 of codes, d, d'                              84
    Q3_K  32 bytes of the codes' third bits, 64 of their low ones, 12 of s, d  110
    Q4_K  d, d', 12 bytes of s and m, 128 of codes                             144
    Q5_K  d, d', 12 bytes of s and m, 32 of fifth bits, 128 of low ones        176
    Q6_K  128 bytes of low four bits, 64 of high two, 16 of s, d               210
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.core.file_levels import block_integers, super_scales
from explorer.core.quantize import QuantizedTensor
from explorer.formats import IntegerFormat
from explorer.schemes.levels import SuperBlockLevel
from explorer.schemes.rules import SUPER_BLOCK


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
    """uint8 [rows, bytes of a row]: ``q``, quantized by one of ``q2_k`` … ``q6_k``, as ggml stores it.

    ``ValueError`` for other schemes, and for rows that are not whole super-blocks, which ggml has none of.
    """
    rule, fmt = q.scheme.scale, q.scheme.format
    key = (
        fmt.bits,
        q.scheme.block[1],
        None if rule is None else rule.super_bits,
        q.scheme.mapping.has_offset,
    )
    layout = LAYOUTS.get(key)
    if layout is None or not isinstance(fmt, IntegerFormat):
        raise ValueError(f"ggml has the K-quants q2_k … q6_k; {q.scheme.label} is none of them")
    if q.shape[1] % SUPER_BLOCK:
        raise ValueError(
            f"a row of {q.shape[1]} values is no whole number of super-blocks of {SUPER_BLOCK}, as ggml asks"
        )
    return torch.cat(layout(_super_blocks(q, fmt)), 1).view(q.shape[0], -1)


def _super_blocks(q: QuantizedTensor, fmt: IntegerFormat) -> SuperBlocks:
    upper, count = q.scales.upper, q.shape[0] * q.shape[1] // SUPER_BLOCK
    assert isinstance(upper, SuperBlockLevel)
    scales, minimums = block_integers(q.scales)
    none = torch.empty(count, 0, dtype=torch.uint8, device=q.packed.device)

    def bytes_of(grid: Tensor | None) -> Tensor:
        return none if grid is None else super_scales(grid, q.scheme).view(-1, 1).view(torch.uint8)

    return SuperBlocks(
        (fmt.decode(q.codes) - fmt.qmin).to(torch.uint8).reshape(count, SUPER_BLOCK),
        (scales & 0xFF).to(torch.uint8).reshape(count, -1),
        none if minimums is None else minimums.to(torch.uint8).reshape(count, -1),
        bytes_of(upper.scale),
        bytes_of(upper.minimum),
    )


def _folded(values: Tensor, groups: int, bits: int) -> Tensor:
    """uint8 [super-blocks, bytes]: a group's values, each below 2^bits, in 8 / bits runs, one over the other
    from the low bits up."""
    runs = values.unflatten(1, (groups, 8 // bits, -1))
    out = torch.zeros_like(runs[:, :, 0])
    for i in range(8 // bits):
        out |= runs[:, :, i] << (i * bits)
    return out.flatten(1)


def _q2_k(b: SuperBlocks) -> list[Tensor]:
    return [b.scales | b.minimums << 4, _folded(b.codes, 2, 2), b.d, b.d_min]


def _q3_k(b: SuperBlocks) -> list[Tensor]:
    s = (b.scales + 32) & 63
    low, high = _folded(b.codes & 3, 2, 2), _folded(b.codes >> 2, 1, 1)
    return [high, low, _folded(s & 15, 1, 4), _folded(s >> 4, 1, 2), b.d]


def _q4_k(b: SuperBlocks) -> list[Tensor]:
    return [b.d, b.d_min, *_six_bits(b), _folded(b.codes, 4, 4)]


def _q5_k(b: SuperBlocks) -> list[Tensor]:
    return [b.d, b.d_min, *_six_bits(b), _folded(b.codes >> 4, 1, 1), _folded(b.codes & 15, 4, 4)]


def _q6_k(b: SuperBlocks) -> list[Tensor]:
    return [_folded(b.codes & 15, 2, 4), _folded(b.codes >> 4, 2, 2), b.scales, b.d]


def _six_bits(b: SuperBlocks) -> list[Tensor]:
    """Twelve bytes of eight scales and eight minimums: the first four of each with the high two bits of the
    last four above them, then the low four bits of these, scales below minimums."""
    (s, s_last), (m, m_last) = (x.unflatten(1, (2, 4)).unbind(1) for x in (b.scales, b.minimums))
    return [s | s_last >> 4 << 6, m | m_last >> 4 << 6, s_last & 15 | (m_last & 15) << 4]


LAYOUTS: dict[tuple[int, int | None, int | None, bool], Callable[[SuperBlocks], list[Tensor]]] = {
    (2, 16, 4, True): _q2_k,
    (3, 16, 6, False): _q3_k,
    (4, 32, 6, True): _q4_k,
    (5, 32, 6, True): _q5_k,
    (6, 16, 8, False): _q6_k,
}
"""By the bits of a code, the length of a block, the bits of its scale, and whether there are minimums."""
