"""Rows of gguf: the block formats that its Python package quantizes bit for bit as llama.cpp does.

Its K-quants, IQ4_NL, IQ4_XS, TQ1_0, TQ2_0 and NVFP4 are dequantized there: what is compared are the values
that it restores from our codes and scales, written as ggml's bytes. ``tests/schemes/test_k_quants.py``
compares the bytes with ggml's C.
"""

from __future__ import annotations

from functools import partial

import numpy as np
import torch
from torch import Tensor

from explorer.core.quantize import quantize
from explorer.export.ggml import row_bytes
from explorer.schemes import SCHEMES
from explorer.schemes.rules import SUPER_BLOCK
from lab.conformance.cases import SUBNORMALS, share_of_sample
from lab.conformance.compare import Row
from lab.conformance.differences import Difference
from lab.conformance.outside import Outside, load

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


def restored(x: Tensor, name: str, kind: str) -> Outside:
    """``x`` quantized here by ``name``, and its bytes dequantized there as those of the type ``kind``."""
    gguf, quants = load("gguf", PACKAGE), load("gguf.quants", PACKAGE)
    raw = row_bytes(quantize(x, SCHEMES[name])).numpy()
    values = quants.dequantize(raw, gguf.GGMLQuantizationType[kind])
    return Outside(restored=torch.from_numpy(values).reshape(x.shape))


def _blocks(x: Tensor, kind: str) -> Bytes:
    """uint8 [blocks, bytes of a block]. Its warnings about 1 / 0 in blocks of zeros are left out."""
    gguf, quants = load("gguf", PACKAGE), load("gguf.quants", PACKAGE)
    with np.errstate(all="ignore"):
        raw: Bytes = quants.quantize(x.float().numpy(), gguf.GGMLQuantizationType[kind])
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


OVERFLOW = Difference(
    "float16 scales beyond 65504 become Inf there, 65504 here; the codes are the same",
    scales=0.6,
    special=True,
)
TINY = {"q8_0": 8512, "q4_0": 9088, "q5_0": 9472, "q4_1": 9152, "q5_1": 9568}
"""By type the codes of the case ``SUBNORMALS`` in blocks whose scale is above 0 and at most 2^-128."""


def _inverse(name: str) -> Difference:
    """All codes of these blocks may differ: C leaves open what Inf gives as an integer, and two machines
    gave two counts."""
    why = (
        "1 / scale is Inf for scales up to 2^-128: codes saturate here, there they are what Inf gives as an "
        "integer on that machine; float16 has 0 for such a scale, and all restore 0"
    )
    steps = 127 if name == "q8_0" else 2 ** int(name[1]) - 1
    return Difference(why, codes=share_of_sample(TINY[name]), steps=steps, under=(2.0**-149, 2.0**-128))


ROWS = [
    Row(
        f"q{bits}_{kind}",
        PACKAGE,
        f"quantize, Q{bits}_{kind}",
        call,
        differs={"spreads": OVERFLOW, SUBNORMALS: _inverse(f"q{bits}_{kind}")},
    )
    for bits, kind, call in (
        (8, 0, q8_0),
        (4, 0, partial(symmetric, bits=4)),
        (5, 0, partial(symmetric, bits=5)),
        (4, 1, partial(with_minimum, bits=4)),
        (5, 1, partial(with_minimum, bits=5)),
    )
]


_DECODED = ("q2_k", "q3_k", "q4_k", "q5_k", "q6_k", "iq4_nl", "iq4_xs", "tq1_0", "tq2_0", "nvfp4_gguf")
ROWS += [
    Row(name, PACKAGE, f"dequantize, {kind}", partial(restored, name=name, kind=kind), row_length=SUPER_BLOCK)
    for name, kind in ((name, name.removesuffix("_gguf").upper()) for name in _DECODED)
]
