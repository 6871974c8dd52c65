"""Codes to bytes and back.

One rule for all widths: every row starts on a byte boundary, and within a row code i takes bits
[i·b, (i+1)·b) of a little-endian bit stream. The first of two 4-bit codes is therefore the low nibble,
as in CUDA, torch, compressed-tensors and ONNX (bitsandbytes puts it high)::

    4 bits   c0 c1          -> c1c0                        two to a byte
    6 bits   c0 c1 c2 c3    -> c1c0 | c2c1 | c3c2          four to three bytes
    ternary  t0 ... t4      -> t0 + 3 t1 + 9 t2 + 27 t3 + 81 t4   five to a byte (3^5 = 243)

A format with a ``run`` begins a new byte after every so many codes of a row (256: 52 bytes).

Ternary codes may also be packed densely, 2 bits each, by ``pack_bits(codes, 2)``.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explorer.formats.base import Format
from explorer.formats.codebooks import CodebookFormat
from explorer.progress import checkpoint

_UNIT = {1: 8, 2: 4, 3: 8, 4: 2, 5: 8, 6: 4, 7: 8}
"""Codes in the smallest group, a power of two, that fills whole bytes; by bits of a code."""

_WORD = {2: torch.int16, 4: torch.int32, 8: torch.int64}
"""Integer dtype as wide as one group of unpacked codes, a byte each; by codes in the group."""

_TRITS = 5


def pack(codes: Tensor, fmt: Format) -> Tensor:
    """Pack ``codes`` [rows, cols] in ``fmt.code_dtype`` to uint8 [rows, packed_row_bytes(fmt, cols)]."""
    if codes.numel() == 0:
        return codes.new_zeros((codes.shape[0], packed_row_bytes(fmt, codes.shape[1])), dtype=torch.uint8)
    if isinstance(fmt, CodebookFormat) and fmt.per_byte == _TRITS:
        return _pack_trits(codes, fmt.run)
    if fmt.bits > 8:
        return codes.contiguous().view(torch.uint8)
    return pack_bits(codes, fmt.bits)


def unpack(packed: Tensor, fmt: Format, columns: int) -> Tensor:
    """Unpack ``packed`` [rows, packed_row_bytes(fmt, columns)] to codes [rows, columns]: the inverse of
    ``pack``.

    ``ValueError`` if the rows have another number of bytes.
    """
    expected = packed_row_bytes(fmt, columns)
    if packed.shape[-1] != expected:
        raise ValueError(f"{columns} {fmt.label} codes take {expected} bytes a row, got {packed.shape[-1]}")
    if packed.numel() == 0:
        return packed.new_zeros((packed.shape[0], columns), dtype=fmt.code_dtype)
    if isinstance(fmt, CodebookFormat) and fmt.per_byte == _TRITS:
        return _unpack_trits(packed, columns, fmt.run)
    if fmt.bits > 8:
        return packed.contiguous().view(fmt.code_dtype)
    return unpack_bits(packed, fmt.bits, columns)


def packed_row_bytes(fmt: Format, columns: int) -> int:
    """Bytes of one packed row of ``columns`` codes; the last byte is padded with zeros."""
    if isinstance(fmt, CodebookFormat) and fmt.per_byte:
        runs, rest = divmod(columns, fmt.run) if fmt.run else (0, columns)
        return runs * math.ceil(fmt.run / fmt.per_byte) + math.ceil(rest / fmt.per_byte)
    return math.ceil(columns * fmt.bits / 8)


def pack_bits(codes: Tensor, bits: int) -> Tensor:
    """Pack uint8 ``codes`` [rows, cols], each below 2**bits, to uint8 [rows, ceil(cols·bits/8)]."""
    if bits == 8:
        return codes
    unit, rows, columns = _UNIT[bits], codes.shape[0], codes.shape[1]
    row_bytes = math.ceil(columns * bits / 8)
    words = _pad_columns(codes, unit).view(_WORD[unit])
    packed = words & (2**bits - 1)
    for i in range(1, unit):
        packed |= (words >> (i * (8 - bits))) & ((2**bits - 1) << (i * bits))
    unit_bytes = packed.view(torch.uint8).view(rows, -1, unit)[:, :, : unit * bits // 8]
    return unit_bytes.reshape(rows, -1)[:, :row_bytes].contiguous()


def unpack_bits(packed: Tensor, bits: int, columns: int) -> Tensor:
    """Unpack bytes of ``pack_bits`` to uint8 codes [rows, columns]: 0x21 -> 1, 2 for 4 bits."""
    if bits == 8:
        return packed
    unit, rows = _UNIT[bits], packed.shape[0]
    unit_bytes = unit * bits // 8
    spread = torch.zeros(rows, math.ceil(columns / unit), unit, dtype=torch.uint8, device=packed.device)
    spread[:, :, :unit_bytes] = _pad_columns(packed, unit_bytes).view(rows, -1, unit_bytes)
    words = spread.view(_WORD[unit]).view(rows, -1)
    codes = words & (2**bits - 1)
    for i in range(1, unit):
        codes |= ((words >> (i * bits)) & (2**bits - 1)) << (8 * i)
    return codes.view(torch.uint8)[:, :columns]


def codes_in_words(words: Tensor, bits: int, columns: int) -> Tensor:
    """Unpack int32 words [rows, ceil(columns · bits / 32)] to uint8 codes [rows, columns].

    A row is one stream of bits, from the lowest bit of the first word up.
    """
    raw = words.clone(memory_format=torch.contiguous_format).view(torch.uint8)
    return unpack_bits(raw[:, : -(-columns * bits // 8)].contiguous(), bits, columns)


def _pad_columns(x: Tensor, multiple: int) -> Tensor:
    """Pad ``x`` with zeros to a multiple of columns, contiguous, in the strides of its shape.

    torch calls a single row contiguous whatever its stride between rows; a view as wider integers needs that
    stride too.
    """
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % multiple)).contiguous()
    return padded.view(-1).view(padded.shape)


def _pack_trits(codes: Tensor, run: int = 0) -> Tensor:
    if run:
        rows, columns = codes.shape
        packed = _pack_trits(_pad_columns(codes, run).view(-1, run)).view(rows, -1)
        rest = -(-(columns % run) // _TRITS)
        return packed[:, : columns // run * -(-run // _TRITS) + rest].contiguous()
    digits = _pad_columns(codes, _TRITS).view(codes.shape[0], -1, _TRITS)
    packed = digits[:, :, 4].clone()
    for i in (3, 2, 1, 0):
        checkpoint()
        packed.mul_(3).add_(digits[:, :, i])
    return packed


def _unpack_trits(packed: Tensor, columns: int, run: int = 0) -> Tensor:
    if run:
        each = -(-run // _TRITS)
        digits = _unpack_trits(_pad_columns(packed, each).view(-1, each), run)
        return digits.reshape(packed.shape[0], -1)[:, :columns]
    digits = torch.empty(*packed.shape, _TRITS, dtype=torch.uint8, device=packed.device)
    rest = packed
    for i in range(_TRITS):
        checkpoint()
        quotient = rest // 3
        digits[:, :, i] = rest - quotient * 3
        rest = quotient
    return digits.view(packed.shape[0], -1)[:, :columns]
