"""Rows of compressed-tensors, which llm-compressor and vLLM quantize with: integers, FP8, MX and NVFP4."""

from __future__ import annotations

import dataclasses
from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.formats import FORMATS, IntegerFormat
from explorer.schemes.text import ELEMENT_FORMATS
from lab.conformance.cases import FP16, SUBNORMALS, ZERO_SIGNS, share_of_sample
from lab.conformance.cases import ROWS as ROWS_OF_SAMPLE
from lab.conformance.compare import Row
from lab.conformance.differences import FP16_ARITHMETIC, Difference, integers_in_float16
from lab.conformance.outside import FULL_RANGE, Outside, load

PACKAGE = "compressed-tensors"
FUNCTION = "calculate_qparams, quantize"


def integers(x: Tensor, bits: int, block: tuple[int, int], symmetric: bool = True) -> Outside:
    """Integers of ``bits``; ``block``: rows and columns that share a scale, -1 for the whole axis."""
    args = _args(num_bits=bits, type="int", symmetric=symmetric, **_strategy(block))
    scale, zero, values = _quantize(x, args, block)
    fmt = ELEMENT_FORMATS[f"int{bits}"]
    assert isinstance(fmt, IntegerFormat)
    return Outside(fmt.codes_of(values), scale, None if symmetric else zero)


def in_bfloat16(x: Tensor, bits: int, block: tuple[int, int], symmetric: bool) -> Outside:
    """Integers of BF16 weights."""
    outside = integers(x.to(torch.bfloat16), bits, block, symmetric)
    scales = None if outside.scales is None else outside.scales.float()
    return dataclasses.replace(outside, scales=scales)


def float8(x: Tensor, block: tuple[int, int]) -> Outside:
    """FP8 E4M3."""
    args = _args(num_bits=8, type="float", symmetric=True, **_strategy(block))
    scale, _, values = _quantize(x, args, block)
    return Outside(FORMATS["float8_e4m3fn"].encode_unchecked(values), scale)


def mx(x: Tensor, bits: int) -> Outside:
    """MXFP4, MXFP6 (E2M3) and MXFP8 (E4M3)."""
    dtypes = {"scale_dtype": torch.uint8, "zp_dtype": torch.uint8}
    args = _args(num_bits=bits, type="float", symmetric=True, **dtypes, **_strategy((1, 32)))
    scale, _, values = _quantize(x, args, (1, 32))
    element = {4: "float4_e2m1fn", 6: "float6_e2m3fn", 8: "float8_e4m3fn"}[bits]
    return Outside(FORMATS[element].encode_unchecked(values), scale)


def nvfp4_in_bfloat16(x: Tensor) -> Outside:
    """NVFP4 of BF16 weights: global scale and block scales are BF16 numbers, their product is float32."""
    return nvfp4(x.to(torch.bfloat16))


def nvfp4(x: Tensor) -> Outside:
    """NVFP4 under ``generate_gparam``'s global scale, the reciprocal of what multiplies."""
    dtypes = {"scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}
    groups = {"strategy": "tensor_group", "group_size": 16}
    args = _args(num_bits=4, type="float", symmetric=True, **groups, **dtypes)
    helpers = load("compressed_tensors.quantization.utils.helpers", PACKAGE)
    low, high = torch.aminmax(x)
    top = helpers.generate_gparam(low, high)
    scale, _, values = _quantize(x, args, (1, 16), top)
    return Outside(FORMATS["float4_e2m1fn"].encode_unchecked(values), scale, tensor_scale=top)


def _args(**settings: Any) -> Any:
    return load("compressed_tensors.quantization", PACKAGE).QuantizationArgs(**settings)


def _strategy(block: tuple[int, int]) -> dict[str, Any]:
    if block == (-1, -1):
        return {"strategy": "tensor"}
    if block == (1, -1):
        return {"strategy": "channel"}
    if block[0] == 1:
        return {"strategy": "group", "group_size": block[1]}
    return {"strategy": "block", "block_structure": list(block)}


def _quantize(
    x: Tensor, args: Any, block: tuple[int, int], top: Tensor | None = None
) -> tuple[Tensor, Tensor, Tensor]:
    """Scales and zero points [grid], and the values of codes as float32 [rows, cols]."""
    helpers = load("compressed_tensors.quantization.utils.helpers", PACKAGE)
    forward = load("compressed_tensors.quantization.lifecycle.forward", PACKAGE)
    tall, wide = (size if side == -1 else side for size, side in zip(x.shape, block, strict=True))
    blocks = x.view(len(x) // tall, tall, x.shape[1] // wide, wide)
    low, high = blocks.amin((1, 3)), blocks.amax((1, 3))
    scale, zero = helpers.calculate_qparams(low, high, args, global_scale=top)
    values = forward.quantize(x, scale, zero, args, dtype=torch.float32, global_scale=top)
    return scale, zero, values


SCALES_OF_ZERO = "a scale of 0 becomes the format's epsilon"
ZERO_FIRST = "zero point added before rounding"


def _sign_of_zero(share: float) -> Difference:
    return Difference("the zero point 0 is added there, which makes -0.0 positive", codes=share)


ZERO_POINT_ROWS = 6
"""Rows of the case ``SUBNORMALS`` whose scale is rounded to 0 and whose zero point moves, with all codes."""


def _zero_point(bits: int, dtype: torch.dtype) -> Difference:
    why = "where (max - min) / (2^b - 1) is rounded to 0, the zero point comes from a division by 0 there"
    most, epsilon, share = 2**bits - 1, torch.finfo(dtype).eps, ZERO_POINT_ROWS / ROWS_OF_SAMPLE
    under = (epsilon, epsilon)
    return Difference(why, codes=share, steps=most, moved=share, zero_points=most, under=under)


SIGNS = {ZERO_SIGNS: _sign_of_zero(0.22), SUBNORMALS: _sign_of_zero(share_of_sample(43))}
FP16_FLOAT8 = Difference(FP16_ARITHMETIC, codes=0.01, steps=1, scales=1, factor=1.001)
FP16_NVFP4 = Difference(FP16_ARITHMETIC, codes=0.01, steps=1, scales=0.01, factor=1.125)
EVEN = "EVEN with one mantissa bit, three for E2M3"
BLOCKS = {"tensor": (-1, -1), "row": (1, -1)}


def _integer_row(name: str, word: str) -> Row:
    bits, block = int(name[3]), BLOCKS.get(word) or (1, int(word.split("x")[1]))
    symmetric, kind = not name.endswith("_asym"), "symmetric" if not name.endswith("_asym") else "asymmetric"
    float32 = "" if bits == 8 and word in BLOCKS else "float32 scales"
    parts = (FULL_RANGE if symmetric else ZERO_FIRST, float32, SCALES_OF_ZERO)
    mapping, end = ("FULL", "") if symmetric else ("ASYMMETRIC", "~zerofirst")
    text = f"int{bits}~{word}~{mapping}~float32-ct~minmax{end}"
    call, convention = (
        partial(integers, bits=bits, block=block, symmetric=symmetric),
        "; ".join(filter(None, parts)),
    )
    differs = {FP16: integers_in_float16(bits)}
    if (name, word) == ("int8_row_asym", "row"):
        differs[SUBNORMALS] = _zero_point(8, torch.float32)
    return Row(name, PACKAGE, f"{FUNCTION}, {kind}", call, text, convention, differs, _in_halves(text))


INTEGERS = (
    ("int8_tensor", "tensor"), ("int8_row", "row"), ("int4_row", "row"), ("int4_group32", "1x32"),
    ("int4_group64", "1x64"), ("int4_group128", "1x128"), ("int3_group128", "1x128"),
    ("int2_group64", "1x64"),
)  # fmt: skip
"""Integer schemes compared in both mappings, and the words of their blocks."""


def _integer_rows() -> list[Row]:
    rows = [_integer_row("int8_group128", "1x128")]
    for name, word in INTEGERS:
        symmetric = f"{name}_full" if name.startswith("int2") else name
        rows += [_integer_row(symmetric, word), _integer_row(f"{name}_asym", word)]
    return rows


BF16 = "every operation in BF16"


def _in_halves(text: str) -> dict[torch.dtype, str]:
    """What it does with BF16 values: scales in BF16, and every operation."""
    return {torch.bfloat16: f"{text.replace('float32', 'bfloat16')}~bf16"}


def _bf16_row(name: str, bits: int, block: tuple[int, int], symmetric: bool) -> Row:
    """The weights of a BF16 checkpoint, as llm-compressor quantizes them for vLLM."""
    call = partial(in_bfloat16, bits=bits, block=block, symmetric=symmetric)
    kind = "symmetric" if symmetric else "asymmetric"
    differs = {} if symmetric else {SUBNORMALS: _zero_point(bits, torch.bfloat16)}
    return Row(name, PACKAGE, f"{FUNCTION}, BF16 weights, {kind}", call, differs=differs)


def _float8_row(word: str, block: tuple[int, int]) -> Row:
    text = f"float8_e4m3fn~{word}~symmetric~float32-ct~minmax"
    call = partial(float8, block=block)
    differs = SIGNS | {FP16: FP16_FLOAT8}
    return Row(f"fp8_e4m3_{word}", PACKAGE, FUNCTION, call, text, SCALES_OF_ZERO, differs, _in_halves(text))


def _mx_row(name: str, element: str, bits: int) -> Row:
    text = f"{element}~1x32~symmetric~even-ct~minmax"
    return Row(name, PACKAGE, FUNCTION, partial(mx, bits=bits), text, EVEN, SIGNS)


ROWS = [
    *_integer_rows(),
    _bf16_row("int8_row_vllm", 8, (1, -1), True),
    _bf16_row("int4_group128_vllm", 4, (1, 128), True),
    _bf16_row("int4_group128_asym_vllm", 4, (1, 128), False),
    *(_float8_row(word, block) for word, block in (
        ("tensor", (-1, -1)), ("row", (1, -1)), ("1x128", (1, 128)), ("128x128", (128, 128)),
    )),
    _mx_row("mxfp4_even", "float4_e2m1fn", 4),
    _mx_row("float6_e2m3fn~1x32~symmetric~even~minmax", "float6_e2m3fn", 6),
    _mx_row("float8_e4m3fn~1x32~symmetric~even~minmax", "float8_e4m3fn", 8),
    Row("nvfp4_vllm", PACKAGE, f"{FUNCTION}, BF16 weights", nvfp4_in_bfloat16,
        differs={ZERO_SIGNS: _sign_of_zero(0.22), SUBNORMALS: _sign_of_zero(share_of_sample(2839))}),
    Row("nvfp4_vllm", PACKAGE, FUNCTION, nvfp4, "float4_e2m1fn~1x16~symmetric~nvfp4-ct~minmax",
        "float32 arithmetic", SIGNS | {FP16: FP16_NVFP4}, {torch.bfloat16: "nvfp4_vllm"}),
]  # fmt: skip
