"""Rows of compressed-tensors, which llm-compressor and vLLM quantize with: integers, FP8, MX and NVFP4."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.conformance.cases import ALL
from explorer.conformance.compare import EVERYWHERE, Row
from explorer.conformance.outside import FULL_RANGE, ZERO_E8M0, Outside, load
from explorer.formats import FORMATS, IntegerFormat
from explorer.schemes.text import ELEMENT_FORMATS

PACKAGE = "compressed-tensors"
FUNCTION = "calculate_qparams, quantize"


def integers(x: Tensor, bits: int, block: tuple[int, int], symmetric: bool = True) -> Outside:
    """Integers of ``bits``; ``block``: rows and columns that share a scale, -1 for the whole axis."""
    args = _args(num_bits=bits, type="int", symmetric=symmetric, **_strategy(block))
    scale, zero, values = _quantize(x, args, block)
    fmt = ELEMENT_FORMATS[f"int{bits}"]
    assert isinstance(fmt, IntegerFormat)
    return Outside(fmt.codes_of(values), scale, None if symmetric else zero)


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


def nvfp4(x: Tensor) -> Outside:
    """NVFP4 under ``generate_gparam``'s global scale, which is the reciprocal of ours."""
    dtypes = {"scale_dtype": torch.float8_e4m3fn, "zp_dtype": torch.float8_e4m3fn}
    groups = {"strategy": "tensor_group", "group_size": 16}
    args = _args(num_bits=4, type="float", symmetric=True, **groups, **dtypes)
    helpers = load("compressed_tensors.quantization.utils.helpers", PACKAGE)
    low, high = torch.aminmax(x)
    top = helpers.generate_gparam(low, high)
    scale, _, values = _quantize(x, args, (1, 16), top)
    return Outside(FORMATS["float4_e2m1fn"].encode_unchecked(values), scale, tensor_scale=1 / top)


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


EPS = "a block of zeros has float32's eps as scale there, 1 here; the codes are the same"
ZERO_POINT = "a block of zeros has the scale eps and the zero point 0 there, 1 and the lowest code here"
ZERO_ADDED = (
    "the sum x / scale + zero point is rounded there, x / scale here; adding the zero point before rounding "
    "makes them equal"
)
EVEN = (
    "the largest value is rounded to one mantissa bit there, as if the element were E2M1; the EVEN rule of "
    "one mantissa bit makes them equal"
)
NVFP4 = (
    "the tensor scale is stored as its reciprocal 2688 / amax there and multiplies amax / 6, and a block "
    "scale of 0 becomes 0.125; that order and that floor make them equal"
)
BLOCKS = {"tensor": (-1, -1), "row": (1, -1)}


def _integer_row(name: str, word: str, differs: dict[str, str]) -> Row:
    bits, block = int(name[3]), BLOCKS.get(word) or (1, int(word.split("x")[1]))
    symmetric, kind = not name.endswith("_asym"), "symmetric" if not name.endswith("_asym") else "asymmetric"
    float32 = "" if bits == 8 and word in BLOCKS else "float32 scales"
    words = "; ".join(part for part in (FULL_RANGE if symmetric else "", float32) if part)
    text = f"int{bits}~{word}~{'FULL' if symmetric else 'ASYMMETRIC'}~float32~minmax" if words else ""
    call = partial(integers, bits=bits, block=block, symmetric=symmetric)
    return Row(name, PACKAGE, f"{FUNCTION}, {kind}", call, text, words, differs)


INTEGERS = (
    ("int8_row", "row"), ("int4_row", "row"), ("int4_group32", "1x32"), ("int4_group64", "1x64"),
    ("int4_group128", "1x128"), ("int3_group128", "1x128"), ("int2_group64", "1x64"),
)  # fmt: skip
"""Integer schemes compared in both mappings, and the words of their blocks."""


def _integer_rows() -> list[Row]:
    rows = [
        _integer_row("int8_tensor", "tensor", {}),
        _integer_row("int8_tensor_asym", "tensor", {ALL: ZERO_ADDED}),
        _integer_row("int8_group128", "1x128", {"zeros": EPS}),
    ]
    for name, word in INTEGERS:
        symmetric = f"{name}_full" if name.startswith("int2") else name
        rows.append(_integer_row(symmetric, word, {"zeros": EPS}))
        rows.append(_integer_row(f"{name}_asym", word, {EVERYWHERE: ZERO_ADDED, "zeros": ZERO_POINT}))
    return rows


def _float8_row(word: str, block: tuple[int, int]) -> Row:
    differs = {} if word == "tensor" else {"zeros": EPS}
    return Row(f"fp8_e4m3_{word}", PACKAGE, FUNCTION, partial(float8, block=block), differs=differs)


ROWS = [
    *_integer_rows(),
    *(_float8_row(word, block) for word, block in (
        ("tensor", (-1, -1)), ("row", (1, -1)), ("1x128", (1, 128)), ("128x128", (128, 128)),
    )),
    Row("mxfp4_even", PACKAGE, FUNCTION, partial(mx, bits=4), differs={"zeros": ZERO_E8M0}),
    Row("float6_e2m3fn~1x32~SYMMETRIC~EVEN~minmax", PACKAGE, FUNCTION, partial(mx, bits=6),
        differs={"zeros": ZERO_E8M0}),
    Row("float8_e4m3fn~1x32~SYMMETRIC~EVEN~minmax", PACKAGE, FUNCTION, partial(mx, bits=8),
        differs={EVERYWHERE: EVEN}),
    Row("nvfp4", PACKAGE, FUNCTION, nvfp4, differs={EVERYWHERE: NVFP4}),
]  # fmt: skip
