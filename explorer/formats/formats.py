"""Every number format as a row of primary facts.

A new format of up to 8 bits needs no more than a row: its values, limits, encoding and packing follow from
it, and every picker, plot and test reads the table. Formats without a sign bit are for scales only.
"""

from __future__ import annotations

import torch

from explorer.formats.base import Format
from explorer.formats.codebooks import (
    AF4_LEVELS,
    BNB_FP4_LEVELS,
    IQ4_LEVELS,
    NF4_LEVELS,
    CodebookFormat,
    LevelTies,
)
from explorer.formats.floats import FloatFormat, PowerOfTwoScale, Specials, TruncatedFloat32
from explorer.formats.integers import FixedPointFormat, IntegerFormat

_ROWS: tuple[Format, ...] = (
    TruncatedFloat32(
        name="float32", label="FP32", bits=32, exponent=8, mantissa=23, bias=127, specials=Specials.IEEE,
        tensor_cores="none (CUDA cores)", torch_dtype=torch.float32,
    ),
    TruncatedFloat32(
        name="tfloat32", label="TF32", bits=32, exponent=8, mantissa=10, bias=127, specials=Specials.IEEE,
        away=True, tensor_cores="sm_80+", note="19 bits held in a 32-bit word: no memory is saved",
        torch_dtype=torch.float32,
    ),
    TruncatedFloat32(
        name="bfloat16", label="BF16", bits=16, exponent=8, mantissa=7, bias=127, specials=Specials.IEEE,
        tensor_cores="sm_80+", torch_dtype=torch.bfloat16,
    ),
    FloatFormat(
        name="float16", label="FP16", bits=16, exponent=5, mantissa=10, bias=15, specials=Specials.IEEE,
        tensor_cores="sm_70+", torch_dtype=torch.float16,
    ),
    FloatFormat(
        name="float8_e4m3fn", label="FP8 E4M3", bits=8, exponent=4, mantissa=3, bias=7, specials=Specials.FN,
        tensor_cores="sm_89+", note="conversion instructions from sm_89", torch_dtype=torch.float8_e4m3fn,
    ),
    FloatFormat(
        name="float8_e5m2", label="FP8 E5M2", bits=8, exponent=5, mantissa=2, bias=15, specials=Specials.IEEE,
        tensor_cores="sm_89+", note="conversion instructions from sm_89", torch_dtype=torch.float8_e5m2,
    ),
    FloatFormat(
        name="float8_e4m3fnuz", label="FP8 E4M3 FNUZ", bits=8, exponent=4, mantissa=3, bias=8,
        specials=Specials.FNUZ, note="AMD MI300", torch_dtype=torch.float8_e4m3fnuz,
    ),
    FloatFormat(
        name="float8_e5m2fnuz", label="FP8 E5M2 FNUZ", bits=8, exponent=5, mantissa=2, bias=16,
        specials=Specials.FNUZ, note="AMD MI300", torch_dtype=torch.float8_e5m2fnuz,
    ),
    FloatFormat(
        name="float6_e2m3fn", label="FP6 E2M3", bits=6, exponent=2, mantissa=3, bias=1,
        specials=Specials.NONE, tensor_cores="sm_100a, sm_120a", note="conversion instructions from sm_100a",
    ),
    FloatFormat(
        name="float6_e3m2fn", label="FP6 E3M2", bits=6, exponent=3, mantissa=2, bias=3,
        specials=Specials.NONE, tensor_cores="sm_100a, sm_120a", note="conversion instructions from sm_100a",
    ),
    FloatFormat(
        name="float4_e2m1fn", label="FP4 E2M1", bits=4, exponent=2, mantissa=1, bias=1,
        specials=Specials.NONE, tensor_cores="sm_100a, sm_120a", note="conversion instructions from sm_100a",
    ),
    IntegerFormat(name="int8", label="INT8", bits=8, tensor_cores="sm_75+", note="DP4A from sm_61"),
    IntegerFormat(name="int6", label="INT6", bits=6),
    IntegerFormat(name="int5", label="INT5", bits=5),
    IntegerFormat(
        name="int4", label="INT4", bits=4, tensor_cores="sm_75 to sm_89",
        note="s4 instructions still assemble for sm_90 and later, which emulate them",
    ),
    IntegerFormat(name="int3", label="INT3", bits=3),
    IntegerFormat(name="int2", label="INT2", bits=2),
    FixedPointFormat(
        name="ocp_int8", label="INT8 (OCP MX)", bits=8, fraction=6,
        note="q / 64: the elements of MXINT8",
    ),
    CodebookFormat(
        name="nf4", label="NF4", bits=4, table=NF4_LEVELS, ties=LevelTies.LOWER,
        note="an index into quantiles of the normal distribution (QLoRA)",
    ),
    CodebookFormat(
        name="af4", label="AF4", bits=4, table=AF4_LEVELS, ties=LevelTies.LOWER,
        note="AbnormalFloat: levels of least mean absolute error for blocks of 64 (arXiv 2306.06965)",
    ),
    CodebookFormat(
        name="bnb_fp4", label="FP4 (bitsandbytes)", bits=4, table=BNB_FP4_LEVELS, ties=LevelTies.LOWER,
        note="15 levels, not E2M1; a code is a level's place in order, bitsandbytes stores other bits",
    ),
    CodebookFormat(
        name="iq4_nl", label="IQ4_NL", bits=4, table=IQ4_LEVELS, ties=LevelTies.UPPER, has_codec=False,
        note="llama.cpp's 16 levels from -127 to 113, for IQ4_NL and IQ4_XS",
    ),
    CodebookFormat(
        name="ternary", label="Ternary", bits=2, table=(-1.0, 0.0, 1.0), ties=LevelTies.ZERO, per_byte=5,
        note="log2(3) = 1.585 bits of information; five to a byte",
    ),
    CodebookFormat(
        name="ternary_run256", label="Ternary (256 in 52 bytes)", bits=2, table=(-1.0, 0.0, 1.0),
        ties=LevelTies.AWAY, per_byte=5, run=256, has_codec=False,
        note="as llama.cpp's TQ1_0: 256 in 52 bytes, five to a byte",
    ),
    CodebookFormat(
        name="binary", label="Binary", bits=1, table=(-1.0, 1.0), ties=LevelTies.UPPER,
        tensor_cores="sm_75+ (AND/XOR with popcount)", note="sign(0) = +1",
    ),
    PowerOfTwoScale(
        name="float8_e8m0fnu", label="E8M0 (scale only)", bits=8, exponent=8, mantissa=0, bias=127,
        specials=Specials.SCALE, signed=False, tensor_cores="sm_100a, sm_120a (block scale)",
        torch_dtype=torch.float8_e8m0fnu,
    ),
)  # fmt: skip

FORMATS: dict[str, Format] = {row.name: row for row in _ROWS}
"""Every format by its name, which is ml_dtypes' where it has one."""


def format_named(name: str) -> Format:
    """The row of ``FORMATS`` called ``name``; ``KeyError`` if there is none. Pickled formats call it."""
    return FORMATS[name]


def float_format(name: str) -> FloatFormat:
    """The floating-point format called ``name``; ``KeyError`` if there is none."""
    row = FORMATS[name]
    if not isinstance(row, FloatFormat):
        raise KeyError(f"{name} is not a floating-point format")
    return row


FLOAT32 = float_format("float32")
E8M0 = float_format("float8_e8m0fnu")
E4M3 = float_format("float8_e4m3fn")
