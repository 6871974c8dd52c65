"""Columns rounded one by one against ``quantize``'s arithmetic on the whole matrix.

If these fail, GPTQ makes up for errors that are not those of the codes that it returns.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scheme
from explorer.core.quantize import quantize_with_scales
from explorer.methods.column_scales import ColumnScales
from tests.covering import by_pairs, parts_of

RULES = (
    "int4~1x32~asymmetric~float16~mse", "int4~1x32~full~float16~minmax", "int3~1x32~minimum~float16~minmax",
    "int4~1x32~midpoint~float16~minmax~up~reciprocal~unrounded",
    "int4~1x32~symmetric~float16-zero~minmax~reciprocal", "int8~1x32~symmetric~bfloat16-ct~minmax~bf16",
    "int8~1x32~asymmetric~bfloat16-ct~minmax~zerofirst~bf16",
    "float4_e2m1fn~1x16~symmetric~nvfp4-ct~minmax~bf16", "float4_e2m1fn~1x32~symmetric~rceil~minmax~away",
    "nf4~1x64~symmetric~float32-zero~minmax~reciprocal", "int4~1x32~symmetric~float16~minmax~s7",
)  # fmt: skip
"""Rules of rounding that no row of GPTQ's has, or that rows have rarely."""
SERVED = [
    name
    for name, scheme in SCHEMES.items()
    if scheme.scale is not None
    and scheme.block[0] == 1
    and not scheme.scale.has_upper_level
    and not scheme.scale.is_searched
]


@pytest.mark.parametrize("text", [*by_pairs(SERVED, parts_of), *RULES])
def test_columns_are_rounded_as_quantize_rounds_them(text: str) -> None:
    """Every column of the groups of two weights side by side, which have scales of their own; bit for bit."""
    scheme = Scheme.parse(text)
    both = torch.stack([difficult(8, 72), difficult(8, 72).flip(1) * 0.75]).mT
    width = scheme.block[1] or 72
    columns = ColumnScales(scheme, [j // width for j in range(72)], both.abs().amax().float())
    for j in range(0, 72, width):
        columns.add(j, both[:, j : j + width])
    got = torch.stack([columns.round(both[:, j], j) for j in range(72)], 1)
    plain = dataclasses.replace(scheme, seed=None, least_squares_scale=False)
    flat = both.mT.reshape(16, 72).float()
    want = quantize_with_scales(flat, plain, columns.all()).dequantize()
    numbers = got.mT.reshape(16, 72) + 0.0  # zeros of integers have no sign
    assert torch.equal(numbers.view(torch.int32), (want + 0.0).view(torch.int32))


def difficult(n: int, k: int) -> Tensor:
    """float64 [n, k]: rows of ordinary numbers, zeros, one sign, tiny and huge ones, and one outlier."""
    w = torch.randn(n, k, generator=torch.Generator().manual_seed(5), dtype=torch.float64)
    w[1], w[2, ::2], w[3] = 0.0, -0.0, w[3].abs()
    w[4], w[5], w[6, 0] = w[4] * 1e-42, w[5] * 1e30, 1e6
    return w
