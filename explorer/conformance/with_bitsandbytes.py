"""Rows of bitsandbytes, by its functions for the CPU: NF4, its FP4, and INT8 of rows."""

from __future__ import annotations

from functools import partial

import torch
from torch import Tensor

from explorer.conformance.cases import ALL
from explorer.conformance.compare import EVERYWHERE, Row
from explorer.conformance.outside import Outside, load

PACKAGE = "bitsandbytes"
FP4_ORDER = (0, 1, 6, 7, 4, 5, 2, 3)
"""The place in the order of magnitudes of each of its FP4 codes: 0, 1/192, 8, 12, 4, 6, 2, 3 of 12."""


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
    order = torch.tensor(FP4_ORDER, dtype=torch.uint8)
    return Outside((codes & 8) | order[(codes & 7).long()], absmax / 6)


def int8_rows(x: Tensor) -> Outside:
    """``int8_vectorwise_quant``, LLM.int8()'s quantization of rows."""
    load("bitsandbytes", PACKAGE)
    codes, amax, _ = torch.ops.bitsandbytes.int8_vectorwise_quant(x, 0.0)
    return Outside(codes.view(torch.uint8), amax[:, None] / 127)


RECIPROCAL = (
    "codes are rounded from x · (1 / absmax) there, from x / absmax here, and midpoints between levels are "
    "rounded to float32; multiplication by the reciprocal and such midpoints make them equal"
)
ZERO = "a block of zeros has the scale 0 there, 1 here; the codes are the same"
NESTED = "the absmax is stored in 8 bits there; doubly quantized absmax makes them equal"
FP4_VALUES = "another format: its smallest magnitude is 1/192 of the largest, E2M1's is 1/12"
INT8 = "codes are rounded from x · (127 / amax) there, from x / scale here; that product makes them equal"
FP4 = "float4_e2m1fn~1x64~SYMMETRIC~float32~minmax"

ROWS = [
    Row(
        "nf4_block64",
        PACKAGE,
        "quantize_4bit, nf4",
        partial(four_bits, kind="nf4"),
        differs={"zeros": ZERO, ALL: RECIPROCAL},
    ),
    Row(
        "nf4_block64",
        PACKAGE,
        "quantize_4bit, nf4, compress_statistics",
        partial(four_bits, kind="nf4", nested=True),
        differs={EVERYWHERE: NESTED},
    ),
    Row(
        FP4,
        PACKAGE,
        "quantize_4bit, fp4",
        partial(four_bits, kind="fp4"),
        differs={EVERYWHERE: FP4_VALUES},
    ),
    Row("int8_row", PACKAGE, "int8_vectorwise_quant", int8_rows, differs={"zeros": ZERO, ALL: INT8}),
]
