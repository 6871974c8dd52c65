"""Rows of gguf: the block formats that its Python package quantizes bit for bit as llama.cpp does.

Its K-quants can only be dequantized there, and no scheme here has scales of scales.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from explorer.conformance.compare import EVERYWHERE, Row
from explorer.conformance.outside import Outside, Quantizer, load
from explorer.schemes import Scheme

PACKAGE = "gguf"
BLOCK = 32
Bytes = np.ndarray[tuple[int, ...], np.dtype[np.uint8]]


def q8_0(x: Tensor) -> Outside:
    """INT8 with a float16 scale."""
    d, codes = _split(_blocks(x, "Q8_0"), 2)
    return Outside(_codes(codes, x), _halves(d, x))


def symmetric(x: Tensor, bits: int) -> Outside:
    """Q4_0 and Q5_0: a float16 scale, which may be negative; codes are stored with 2^(b-1) added."""
    d, rest = _split(_blocks(x, f"Q{bits}_0"), 2)
    codes = _unpacked(rest, bits).astype(np.int16) - 2 ** (bits - 1)
    return Outside(_codes(codes, x), _halves(d, x))


def with_minimum(x: Tensor, bits: int) -> Outside:
    """Q4_1 and Q5_1: a float16 scale and the smallest value in float16; codes from 0."""
    d, rest = _split(_blocks(x, f"Q{bits}_1"), 2)
    minimum, rest = _split(rest, 2)
    codes = _unpacked(rest, bits).astype(np.int16) - 2 ** (bits - 1)
    return Outside(_codes(codes, x), _halves(d, x), minimums=_halves(minimum, x))


def _blocks(x: Tensor, kind: str) -> Bytes:
    """uint8 [blocks, bytes of a block]. Its warnings about 1 / 0 in blocks of zeros are left out."""
    gguf, quants = load("gguf", PACKAGE), load("gguf.quants", PACKAGE)
    with np.errstate(all="ignore"):
        raw: Bytes = quants.quantize(x.numpy(), gguf.GGMLQuantizationType[kind])
    return raw.reshape(x.numel() // BLOCK, -1)


def _split(blocks: Bytes, at: int) -> tuple[Bytes, Bytes]:
    return np.ascontiguousarray(blocks[:, :at]), np.ascontiguousarray(blocks[:, at:])


def _unpacked(rest: Bytes, bits: int) -> Bytes:
    """uint8 [blocks, 32]: low nibbles, then high nibbles; a fifth bit stands in four bytes before them."""
    if bits == 4:
        return np.concatenate([rest & 15, rest >> 4], 1)
    fifth, nibbles = _split(rest, 4)
    high = np.unpackbits(fifth, axis=1, bitorder="little").astype(np.uint8)
    return np.concatenate([nibbles & 15, nibbles >> 4], 1) | (high << np.uint8(4))


def _codes(values: np.ndarray[tuple[int, ...], np.dtype[np.integer]], x: Tensor) -> Tensor:
    return torch.from_numpy(values.astype(np.int16)).reshape(x.shape)


def _halves(raw: Bytes, x: Tensor) -> Tensor:
    """float32 [rows, blocks of a row]."""
    return torch.from_numpy(raw.view(np.float16).astype(np.float32)).reshape(len(x), -1)


UNROUNDED = "codes are rounded with the scale before it is stored in float16, from x · (1 / scale)"
AWAY, UP = "halves away from zero", "halves up"
SIGNED = "the value of largest magnitude falls on the lowest code, so that a scale has a sign"
MINIMUM = "the smallest value is stored in float16 instead of a zero point, and may be above 0"


def _row(name: str, kind: str, call: Quantizer, *reasons: str) -> Row:
    differs = {EVERYWHERE: f"{'; '.join(reasons)}: these conventions together make them equal"}
    return Row(name, PACKAGE, f"quantize, {kind}", call, differs=differs)


ROWS = [
    _row("int8~1x32~SYMMETRIC~float16~minmax", "Q8_0", q8_0, f"{UNROUNDED}, {AWAY}"),
    *(
        _row(
            f"int{bits}~1x32~POWER~float16~minmax",
            f"Q{bits}_0",
            partial(symmetric, bits=bits),
            SIGNED,
            f"{UNROUNDED}, {UP}",
        )
        for bits in (4, 5)
    ),
    *(
        _row(
            str(Scheme.parse(f"int{bits}~1x32~ASYMMETRIC~float16~minmax")),
            f"Q{bits}_1",
            partial(with_minimum, bits=bits),
            MINIMUM,
            f"{UNROUNDED}, {UP}",
        )
        for bits in (4, 5)
    ),
]
