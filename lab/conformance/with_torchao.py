"""Rows of torchao: FP8 tensors, affine integers, MX and NVFP4."""

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.formats import FORMATS, FloatFormat
from explorer.formats.packing import unpack
from explorer.schemes import ExponentRule, Scheme
from lab.conformance.cases import BOUNDARIES, FP16, HALVES, SUBNORMALS, ZERO_SIGNS, share_of_sample
from lab.conformance.compare import Row
from lab.conformance.differences import Difference, integers_in_float16
from lab.conformance.outside import FULL_RANGE, Outside, load

PACKAGE = "torchao"
MX_ELEMENTS = {
    "float8_e4m3fn": torch.float8_e4m3fn,
    "float8_e5m2": torch.float8_e5m2,
    "float6_e2m3fn": "fp6_e2m3",
    "float6_e3m2fn": "fp6_e3m2",
    "float4_e2m1fn": getattr(torch, "float4_e2m1fn_x2", None),
}
"""Our element formats, and what torchao calls them."""


def float8(x: Tensor, dtype: torch.dtype, block: tuple[int, int]) -> Outside:
    """``Float8Tensor.from_hp``; ``block``: rows and columns that share a scale, -1 for the whole axis."""
    module: Any = load("torchao.quantization", PACKAGE)
    granularity = {(-1, -1): module.PerTensor, (1, -1): module.PerRow}.get(
        block, lambda: module.PerBlock(block)
    )()
    q = module.Float8Tensor.from_hp(x, dtype, granularity)
    return Outside(q.qdata.view(torch.uint8), q.scale.reshape(_grid(x, block)))


def affine(x: Tensor, bits: int, block: tuple[int, int], mapping: str) -> Outside:
    """``choose_qparams_affine`` and ``quantize_affine``."""
    module = load("torchao.quantization.quant_primitives", PACKAGE)
    sizes = [x.shape[i] if side == -1 else side for i, side in enumerate(block)]
    low, high = -(2 ** (bits - 1)), 2 ** (bits - 1) - 1
    kind = module.MappingType[mapping]
    scale, zero = module.choose_qparams_affine(
        x, kind, sizes, torch.int8, low, high, zero_point_dtype=torch.int32
    )
    codes = module.quantize_affine(x, sizes, scale, zero, torch.int8, low, high)
    grid = _grid(x, block)
    zeros = zero.reshape(grid) if mapping == "ASYMMETRIC" else None
    return Outside(codes.view(torch.uint8), scale.reshape(grid), zeros)


def mx(x: Tensor, element: str, rule: str) -> Outside:
    """``to_mx`` in blocks of 32; it takes no FP16."""
    module = load("torchao.prototype.mx_formats.mx_tensor", PACKAGE)
    rules: Any = load("torchao.prototype.mx_formats.config", PACKAGE).ScaleCalculationMode
    scales, data = module.to_mx(_not_in_float16(x), MX_ELEMENTS[element], 32, rules[rule])
    codes = _fp4_codes(data, x) if element == "float4_e2m1fn" else data.view(torch.uint8)
    return Outside(codes, scales.float())


def nvfp4(x: Tensor) -> Outside:
    """``nvfp4_quantize`` under ``per_tensor_amax_to_scale``; it takes no FP16."""
    module, x = load("torchao.prototype.mx_formats.nvfp4_tensor", PACKAGE), _not_in_float16(x)
    top = module.per_tensor_amax_to_scale(x.abs().amax())
    scales, packed = module.nvfp4_quantize(x, 16, top)
    return Outside(_fp4_codes(packed, x), scales.float(), tensor_scale=top)


def _not_in_float16(x: Tensor) -> Tensor:
    return x.float() if x.dtype == torch.float16 else x


def _fp4_codes(packed: Tensor, x: Tensor) -> Tensor:
    return unpack(packed.view(torch.uint8).reshape(len(x), -1), FORMATS["float4_e2m1fn"], x.shape[1])


def _grid(x: Tensor, block: tuple[int, int]) -> tuple[int, int]:
    rows, columns = (1 if side == -1 else size // side for size, side in zip(x.shape, block, strict=True))
    return rows, columns


ZERO_SCALES = "scales may be 0"


def _nan_of_zeros(share: float) -> Difference:
    why = "zeros under a scale of 0 become NaN there (0 / 0), zeros here"
    return Difference(why, codes=share, special=True)


UNDER_ZERO = {
    "e4m3fn": (3072, 126), "e5m2": (4608, 123), "e4m3fnuz": (2304, 127), "e5m2fnuz": (4608, 127),
}  # fmt: skip
"""By format the codes of the case ``SUBNORMALS`` under a scale that is rounded to 0, all of which differ, and
by how many steps: 0 is as far from the largest code as there are positive ones."""
SMALLEST_SCALE = 2.0**-127
"""E8M0's."""
MX_SMALLEST = {
    "float8_e4m3fn": (8, {"FLOOR": 6692, "CEIL": 6020, "EVEN": 6660}),
    "float8_e5m2": (4, {"FLOOR": 12018, "CEIL": 11794, "EVEN": 11986}),
    "float6_e2m3fn": (8, {"FLOOR": 1894, "CEIL": 1434, "EVEN": 1862}),
    "float6_e3m2fn": (4, {"FLOOR": 3120, "CEIL": 2899, "EVEN": 3120}),
    "float4_e2m1fn": (2, {"FLOOR": 987, "CEIL": 593, "EVEN": 958}),
}
"""By element the steps between a value and its half, two to the power of the mantissa's bits; and by rule the
codes of the case ``SUBNORMALS`` that differ."""
RCEIL_SMALLEST = {
    "float8_e4m3fn": (6929, 123), "float8_e5m2": (12218, 122), "float6_e2m3fn": (2182, 29),
    "float6_e3m2fn": (3357, 30), "float4_e2m1fn": (1127, 7),
}  # fmt: skip
"""By element the codes that differ under RCEIL, and by how many steps: to 0 from the largest code that there
is."""


def _under_zero(fmt: str) -> Difference:
    codes, steps = UNDER_ZERO[fmt]
    why = (
        "under a scale that is rounded to 0, zeros become NaN there (0 / 0) and other values the largest "
        "code (x / 0), zeros here"
    )
    return Difference(why, codes=share_of_sample(codes), steps=steps, special=True, under=(0.0, 0.0))


def _under_smallest(element: str, rule: ExponentRule) -> Difference:
    if rule is ExponentRule.RCEIL:
        why, (codes, steps) = "under the scale 2^-127 values are not divided there", RCEIL_SMALLEST[element]
    else:
        why = "the scale 2^-127 is stored, and values are divided by 2^-126 there"
        steps, by_rule = MX_SMALLEST[element]
        codes = by_rule[rule.name]
    smallest = (SMALLEST_SCALE, SMALLEST_SCALE)
    return Difference(why, codes=share_of_sample(codes), steps=steps, under=smallest)


RCEIL_LOGARITHM = Difference(
    "an amax 1 or 2 ulp above max · 2^k counts as max · 2^k there, for most k: the logarithm is rounded to "
    "float32 before it is rounded up; exact here",
    codes=0.09,
    steps=8,
    scales=0.09,
    factor=2,
)
TORCHAO = "scales of at least the smallest normal number"
RECIPROCAL = "multiplication by the reciprocal"
NO_CLIP = "nothing clipped: max(-min / 2^(b-1), max / (2^(b-1) - 1))"
BLOCKS = {"tensor": (-1, -1), "row": (1, -1), "column": (-1, 1)}
"""Blocks by their words in a scheme's text; the others are rows x columns."""


def _block(word: str) -> tuple[int, int]:
    if word in BLOCKS:
        return BLOCKS[word]
    rows, columns = map(int, word.split("x"))
    return rows, columns


def _float8_row(short: str, word: str) -> Row:
    fmt = FORMATS[f"float8_{short}"]
    assert isinstance(fmt, FloatFormat) and fmt.torch_dtype is not None
    call = partial(float8, dtype=fmt.torch_dtype, block=_block(word))
    name = f"fp8_{'e4m3' if short == 'e4m3fn' else short}_{word}"
    text = f"{fmt.name}~{word}~symmetric~float32-zero~minmax"
    under_zero = {ZERO_SIGNS: _nan_of_zeros(0.13), SUBNORMALS: _under_zero(short)}
    differs = {
        "tensor": {},
        "row": {"zeros": _nan_of_zeros(0.21), **under_zero},
        "1x128": {"zeros": _nan_of_zeros(0.61), **under_zero},
        "128x128": {"zeros": _nan_of_zeros(0.5)},
    }[word]
    halves = {dtype: text.replace("float32", str(dtype).removeprefix("torch.")) for dtype in HALVES.values()}
    return Row(name, PACKAGE, "Float8Tensor.from_hp", call, text, ZERO_SCALES, differs, halves)


def _affine_row(name: str, word: str, mapping: str) -> Row:
    """``name``'s row; ``word``: the block in a scheme's text; ``mapping``: torchao's word."""
    bits = int(name[3])
    ours = {"SYMMETRIC": "FULL", "SYMMETRIC_NO_CLIPPING_ERR": "NO_CLIP"}.get(mapping, mapping)
    words = {"FULL": FULL_RANGE, "NO_CLIP": NO_CLIP, "ASYMMETRIC": ""}[ours]
    parts = (words, "" if bits == 8 else "float32 scales", TORCHAO, RECIPROCAL)
    text = f"int{bits}~{word}~{ours}~float32-torchao~minmax~reciprocal"
    call = partial(affine, bits=bits, block=_block(word), mapping=mapping)
    convention = "; ".join(filter(None, parts))
    differs = {FP16: integers_in_float16(bits)}
    halves = {torch.bfloat16: f"{text.replace('float32', 'bfloat16')}~bf16"}
    return Row(name, PACKAGE, f"quantize_affine, {mapping}", call, text, convention, differs, halves)


AFFINE = (
    ("int8_tensor", "tensor"), ("int8_row", "row"), ("int8_column", "column"), ("int4_row", "row"),
    ("int4_group32", "1x32"), ("int4_group64", "1x64"), ("int4_group128", "1x128"), ("int3_row", "row"),
    ("int3_group64", "1x64"), ("int3_group128", "1x128"), ("int2_group32", "1x32"), ("int2_group64", "1x64"),
    ("int2_group128", "1x128"),
)  # fmt: skip
"""Integer schemes compared in both mappings, and the words of their blocks."""


def _affine_rows() -> list[Row]:
    rows = []
    for name, word in AFFINE:
        symmetric = f"{name}_full" if name.startswith("int2") else name
        for ours, mapping in ((symmetric, "SYMMETRIC"), (f"{name}_asym", "ASYMMETRIC")):
            rows.append(_affine_row(ours, word, mapping))
    return [*rows, _affine_row("int8_row", "row", "SYMMETRIC_NO_CLIPPING_ERR")]


def _mx_row(element: str, rule: ExponentRule) -> Row:
    call = partial(mx, element=element, rule=rule.name)
    name = str(Scheme.parse(f"{element}~1x32~symmetric~{rule.name}~minmax"))
    text = f"{element}~1x32~symmetric~{rule.name}-torchao~minmax"
    differs = {SUBNORMALS: _under_smallest(element, rule)}
    if rule is ExponentRule.RCEIL:
        differs[BOUNDARIES] = RCEIL_LOGARITHM
    return Row(name, PACKAGE, f"to_mx, {rule.name}", call, text, TORCHAO, differs)


ROWS = [
    *(
        _float8_row(short, word)
        for short in ("e4m3fn", "e5m2")
        for word in ("tensor", "row", "1x128", "128x128")
    ),
    *(_float8_row(short, "row") for short in ("e4m3fnuz", "e5m2fnuz")),
    *_affine_rows(),
    *(_mx_row(element, rule) for element in MX_ELEMENTS for rule in ExponentRule),
    Row("nvfp4", PACKAGE, "nvfp4_quantize", nvfp4,
        "float4_e2m1fn~1x16~symmetric~nvfp4-torchao~minmax~reciprocal", f"{TORCHAO}; {RECIPROCAL}"),
]  # fmt: skip
