"""Rows of bitsandbytes, by its functions for the CPU: NF4, its FP4, and INT8 of rows."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from lab.conformance.cases import ALL, ALL_BF16, BF16, BOUNDARIES, FP16, SUBNORMALS, share_of_sample
from lab.conformance.compare import Row
from lab.conformance.differences import Difference
from lab.conformance.outside import Outside, load

PACKAGE = "bitsandbytes"
FP4_ORDER = (7, 8, 13, 14, 11, 12, 9, 10, 7, 6, 1, 0, 3, 2, 5, 4)
"""The place among its 15 levels of each of its FP4 codes: of 0, 1/16, 8, 12, 4, 6, 2, 3, then with sign."""


def four_bits(x: Tensor, kind: str, nested: bool = False) -> Outside:
    """``quantize_4bit`` in blocks of 64 of the flattened matrix; ``nested`` quantizes the absmax as well."""
    functional = load("bitsandbytes.functional", PACKAGE)
    packed, state = functional.quantize_4bit(x, blocksize=64, quant_type=kind, compress_statistics=nested)
    pairs = packed.view(torch.uint8).reshape(-1)
    codes = torch.stack((pairs >> 4, pairs & 15), 1).reshape(x.shape)
    absmax = state.absmax
    if nested:
        absmax = functional.dequantize_blockwise(state.absmax, state.state2) + state.offset
    absmax = absmax.reshape(len(x), -1)
    if kind == "nf4":
        return Outside(codes, absmax)
    return Outside(torch.tensor(FP4_ORDER, dtype=torch.uint8)[codes.long()], absmax)


def int8_rows(x: Tensor) -> Outside:
    """``int8_vectorwise_quant``, LLM.int8()'s quantization of rows."""
    load("bitsandbytes", PACKAGE)
    codes, amax, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(x, 0.0)
    return Outside(codes.view(torch.uint8), amax[:, None] / 127)


def _midpoints(share: float) -> Difference:
    why = (
        "midpoints between levels are rounded to float32 there, exact here; values on such a midpoint differ"
    )
    return Difference(why, codes=share, steps=1)


def _int8(share: float) -> Difference:
    why = "codes are rounded from x · (127 / amax) there, from x / scale here"
    return Difference(why, codes=share, steps=1)


ZERO_SCALES = "scales may be 0"
LEAST = 2.0**-149
"""The smallest float32 above 0."""


def _tiny(steps: int) -> Difference:
    """All codes of the blocks that it says may differ: how many do was not the same on two machines."""
    why = (
        "an amax below 1e-38 counts as 1e-38 when values are divided there; 1 / amax may be Inf here; how "
        "many of these codes differ depends on the machine"
    )
    return Difference(why, codes=share_of_sample(8896), steps=steps, under=(LEAST, 1e-38))


INT8_INVERSE = Difference(
    "127 / amax is Inf there for an amax below 2^-121, and its products become 0 as integers",
    codes=share_of_sample(8704),
    steps=127,
    under=(LEAST, 2.0**-128),
)
NF4 = {ALL: _midpoints(1e-6), SUBNORMALS: _tiny(8)}
FP4 = {
    "ties": _midpoints(0.025),
    BOUNDARIES: _midpoints(1e-4),
    SUBNORMALS: _tiny(7),
    BF16: _midpoints(1e-3),
    FP16: _midpoints(1e-4),
    ALL: _midpoints(1e-6),
    ALL_BF16: _midpoints(1e-3),
}
INT8 = {
    BOUNDARIES: _int8(1e-3),
    SUBNORMALS: INT8_INVERSE,
    BF16: _int8(1e-3),
    FP16: _int8(1e-4),
    ALL: _int8(1e-5),
    ALL_BF16: _int8(1e-3),
}

ROWS = [
    Row("nf4_block64_bnb", PACKAGE, "quantize_4bit, nf4", partial(four_bits, kind="nf4"), differs=NF4),
    Row("nf4_block64_double", PACKAGE, "quantize_4bit, nf4, compress_statistics",
        partial(four_bits, kind="nf4", nested=True), differs=NF4),
    Row("fp4_block64_bnb", PACKAGE, "quantize_4bit, fp4", partial(four_bits, kind="fp4"), differs=FP4),
    Row("int8_row", PACKAGE, "int8_vectorwise_quant", int8_rows,
        "int8~row~symmetric~float32-zero~minmax", ZERO_SCALES, differs=INT8),
]  # fmt: skip
