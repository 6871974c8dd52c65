"""Scales, blocks and whole schemes: reference values, independent implementations, and properties.

If these fail, tensors are quantized with wrong scales, or blocks of one row leak into another.
"""

from __future__ import annotations

import dataclasses
import math
from functools import partial

import gfloat
import gfloat.formats
import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from explorer import (
    FORMATS,
    SCHEMES,
    ExponentRule,
    MappingType,
    Range,
    ScaleRule,
    Scheme,
    compare,
    quantize,
    quantize_with_scales,
)
from explorer.core.ranges import find_scales
from explorer.formats import E4M3, E8M0, CodebookFormat, IntegerFormat
from explorer.formats.rounding import philox_uniform, round_stochastic
from explorer.schemes import through_bfloat16
from explorer.schemes.rules import SUPER_BLOCK
from explorer.schemes.scales import _nearest_power_of_two
from tests.covering import EACH_SCHEME, FEW, sampled

SQNR = {
    "tf32": 73.66, "fp16": 73.66, "bf16": 55.58, "fp8_e4m3_tensor": 31.54, "fp8_e4m3_row": 31.56,
    "fp8_e4m3_1x128": 31.80, "fp8_e5m2_tensor": 25.57, "fp8_e5m2_row": 25.58, "fp8_e5m2_1x128": 25.80,
    "int8_tensor": 38.90, "int8_row": 42.08, "mxfp8_e4m3_floor": 30.64, "mxfp8_e4m3": 31.53,
    "mxfp8_e5m2": 25.54, "mxfp6_e2m3": 30.94, "mxfp4": 18.79, "mxfp4_rceil": 18.76, "mxfp4_even": 19.02,
    "mxint8": 41.66, "nvfp4": 20.44, "nf4_block64": 20.73, "int4_group32": 20.27,
    "int4_group32_asym": 21.86, "int4_group64": 19.36, "int4_group64_asym": 20.82, "int4_group128": 18.60,
    "int4_group128_asym": 19.95, "int4_group128_full": 19.11, "int2_group32_full": 6.53,
    "int2_group32": 8.14, "int2_group32_asym": 7.83, "int2_group128_full": 5.19, "int2_group128": 7.26,
    "int2_group128_asym": 5.96, "ternary_absmean": 5.80, "ternary_absmean_ls": 6.72, "ternary_twn": 7.18,
    "binary_row": 4.40,
}  # fmt: skip
"""dB on N(0, 1), numpy's default_rng(0), 1024 x 1024, computed with torchao, ml_dtypes and numpy."""


@pytest.mark.parametrize("name", SQNR)
def test_sqnr_table(name: str, gaussian: Tensor) -> None:
    """The published accuracy of each scheme on Gaussian data, within 0.05 dB."""
    assert compare(gaussian, quantize(gaussian, SCHEMES[name])).sqnr_db == pytest.approx(SQNR[name], abs=0.05)


BITS = {
    "int4_group128": 4.125, "int4_group128_asym": 4.15625, "int4_group64": 4.25, "int4_group32": 4.5,
    "nvfp4": 4.5 + 32 / 2**24, "mxfp4": 4.25, "mxfp6_e2m3": 6.25, "mxfp8_e4m3": 8.25,
    "fp8_e4m3_1x128": 8.25, "fp8_e4m3_128x128": 8 + 32 / 128**2, "nf4_block64": 4.5,
    "binary_row": 1 + 32 / 4096, "tf32": 32, "bf16": 16,
    "q2_k": 2.625, "q3_k": 3.4375, "q4_k": 4.5, "q5_k": 5.5, "q6_k": 6.5625,
    "iq4_nl": 4.5, "iq4_xs": 4.25, "tq1_0": 1.6875, "tq2_0": 2.0625, "nvfp4_gguf": 4.5,
    "nf4_block64_double": 4 + 8 / 64 + 32 / (64 * 256) + 32 / 2**24,
}  # fmt: skip


def test_bits_per_element() -> None:
    """Scales and zero points are counted: the size on the page is the size in the file."""
    found = {name: SCHEMES[name].bits_per_element((4096, 4096)).total for name in BITS}
    assert found == pytest.approx(BITS, rel=1e-12)


MX_EXPONENTS = {
    "float4_e2m1fn": {1.0: (-2, -2, -2, -2), 1.4: (-2, -2, -1, -2), 1.51: (-2, -1, -1, -2),
                      1.75: (-2, -1, -1, -1), 6.0: (0, 0, 1, 0), 6.5: (0, 1, 1, 0), 7.0: (0, 1, 1, 1)},
    "float8_e4m3fn": {1.75: (-8, -8, -7, -8), 1.76: (-8, -7, -7, -8), 448.0: (0, 0, 1, 0),
                      460.0: (0, 1, 1, 0), 500.0: (0, 1, 1, 1)},
    "float6_e2m3fn": {1.9: (-2, -1, -1, -2)},
    "float6_e3m2fn": {1.9: (-4, -3, -3, -3)},
}  # fmt: skip


def test_mx_exponent_rules() -> None:
    """The four ways to choose a power-of-two scale, against torchao's answers."""
    rules = (ExponentRule.FLOOR, ExponentRule.RCEIL, ExponentRule.CEIL, ExponentRule.EVEN)
    cases = ((name, *case) for name, amaxes in MX_EXPONENTS.items() for case in amaxes.items())
    for name, amax, wanted in cases:
        x = torch.zeros(1, 32)
        x[0, 5] = -amax
        schemes = [Scheme("t", "t", FORMATS[name], (1, 32), ScaleRule(E8M0, rule)) for rule in rules]
        got = tuple(round(math.log2(float(quantize(x, scheme).scales.stored))) for scheme in schemes)
        assert got == wanted, f"{name} amax {amax}"


def test_mx_blocks_match_gfloat(gaussian: Tensor) -> None:
    """MXFP4 and MXFP8 with the OCP rule, code for code, against gfloat's block quantizer."""
    for scheme, info in (
        (SCHEMES["mxfp4"], gfloat.formats.format_info_ocp_e2m1),
        (SCHEMES["mxfp8_e4m3_floor"], gfloat.formats.format_info_ocp_e4m3),
    ):
        x = gaussian[:8, :256]
        restored = quantize(x, scheme).dequantize()
        for row in range(8):
            for start in range(0, 256, 32):
                block = x[row, start : start + 32].double().numpy()
                scale = 2.0 ** (math.floor(math.log2(np.abs(block).max())) - scheme.format.max_exponent)
                want = gfloat.round_ndarray(info, block / scale, sat=True) * scale
                np.testing.assert_array_equal(restored[row, start : start + 32].double().numpy(), want)


def test_nvfp4_worked_block() -> None:
    """Sixteen values worked out by hand: tensor scale, block scale, codes, bytes, restored values."""
    block = [0.11, -0.52, 0.03, 0.27, -0.9, 1.3, -0.01, 0.44, 0.66, -0.77, 0.05, 0.2, -0.33, 0.6, 1.1, -0.15]
    other = [3.2] + [0.0] * 15
    q = quantize(torch.tensor([block + other]), SCHEMES["nvfp4"])
    assert float(q.scales.tensor_scale) == pytest.approx(0.0011904762, rel=1e-7)
    assert float(q.scales.stored[0, 0]) == 176.0
    assert q.codes[0, :16].tolist() == [1, 12, 0, 3, 14, 7, 8, 4, 5, 14, 0, 2, 11, 5, 7, 9]
    assert q.packed[0, :8].numpy().tobytes().hex(" ").upper() == "C1 30 7E 48 E5 20 5B 97"
    error = q.dequantize()[0, :16] - torch.tensor(block)
    assert float((error**2).mean()) == pytest.approx(0.0034567, abs=1e-7)


def test_integer_scale_variants() -> None:
    """[1, -1, .5, .3] under each definition of a symmetric integer scale."""
    for name, mapping, codes in (
        ("int8", MappingType.SYMMETRIC, [127, -127, 64, 38]),
        ("int8", MappingType.POWER, [127, -128, 64, 38]),
        ("int4", MappingType.SYMMETRIC, [7, -7, 3, 2]),
        ("int4", MappingType.FULL, [7, -8, 4, 2]),
        ("int4", MappingType.POWER, [7, -8, 4, 2]),
        ("int8", MappingType.NO_CLIP, [127, -127, 64, 38]),
    ):
        q = quantize(torch.tensor([[1, -1, 0.5, 0.3]]), Scheme("t", "t", FORMATS[name], mapping=mapping))
        got = FORMATS[name].decode(q.codes)[0].tolist()
        if mapping is MappingType.FULL:
            # amax / 7.5 puts both ends on a tie, which float rounding decides.
            assert abs(got[0]) in (7, 8) and got[2:] == codes[2:]
        else:
            assert got == codes, (name, mapping)
        if (name, mapping) == ("int8", MappingType.SYMMETRIC):
            assert q.dequantize()[0].tolist() == pytest.approx([1, -1, 0.50394, 0.29921], abs=1e-5)


def test_the_end_that_would_clip_decides_the_scale() -> None:
    """MappingType.NO_CLIP: the larger of -min / 128 and max / 127, whichever end it is."""
    for ends, scale in (([-9.0, 1.0], 9 / 128), ([-1.0, 9.0], 9 / 127)):
        q = quantize(torch.tensor([ends]), Scheme("t", "t", FORMATS["int8"], mapping=MappingType.NO_CLIP))
        assert q.scales.scale.item() == pytest.approx(scale, rel=1e-6)


def test_asymmetric_ranges_contain_zero() -> None:
    """Scale and zero point (counted from qmin) of 8-bit ranges; [10, 11] is extended to 0."""
    for values, scale, zero in (
        ([-1.0, 3.0], 4 / 255, 64),
        ([-0.73, 2.14], 2.87 / 255, 65),
        ([-0.1, 0.0], 0.1 / 255, 255),
        ([10.0, 11.0], 11 / 255, 0),
    ):
        q = quantize(torch.tensor([values]), SCHEMES["int8_tensor_asym"])
        assert q.scales.zero_points is not None
        assert float(q.scales.stored) == pytest.approx(scale, rel=1e-6)
        assert int(q.scales.zero_points) + 128 == zero


@pytest.mark.parametrize("least", [-1.33e-6, -1.5e6])
def test_a_zero_point_is_a_code(least: float) -> None:
    """Where the float16 scale is rounded far down, at either end of its range, it ends at the last code."""
    x = torch.zeros(1, 32)
    x[0, 0] = least
    zeros = quantize(x, SCHEMES["int4_group32_asym"]).scales.zero_points
    assert zeros is not None and int(zeros) == 7


def matrices() -> st.SearchStrategy[Tensor]:
    """Matrices of awkward shapes whose blocks differ in scale by many orders of magnitude."""

    def draw(rows: int, columns: int, seed: int, spread: int) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        exponents = torch.randint(-spread, spread + 1, (rows, columns), generator=generator).double()
        return (torch.randn(rows, columns, generator=generator).double() * 2.0**exponents).float()

    return st.builds(
        draw, st.integers(1, 40), st.integers(1, 150), st.integers(0, 10**6), st.sampled_from([0, 3, 12])
    )


def naive(x: Tensor, scheme: Scheme) -> Tensor:
    """The scheme block by block with plain slices: the reference for the blocked code's order and shapes."""
    out = torch.empty_like(x)
    height, width = scheme.block[0] or x.shape[0], scheme.block[1] or x.shape[1]
    whole, rule = find_scales(x, scheme).scale, scheme.scale
    searched = rule is not None and (rule.is_searched or rule.super_bits is not None)
    if searched:
        height, width = 16, SUPER_BLOCK  # several rows at once: each search takes milliseconds
    for r in range(0, x.shape[0], height):
        for c in range(0, x.shape[1], width):
            block = x[r : r + height, c : c + width]
            if searched:
                out[r : r + height, c : c + width] = quantize(block, scheme).dequantize()
                continue
            single = dataclasses.replace(scheme, block=(None, None), scale=rule and rule.of_a_block_alone)
            if rule is not None and rule.nested:
                codes = quantize(block, single).codes
                out[r : r + height, c : c + width] = (
                    scheme.format.decode(codes) * whole[r // height, c // width]
                )
            elif rule is not None and rule.per_tensor:
                step = whole[r // height, c // width]
                block = through_bfloat16(block) if scheme.codes.bfloat16 else block
                codes = scheme.format.encode(block / step)
                out[r : r + height, c : c + width] = scheme.format.decode(codes) * step
            else:
                out[r : r + height, c : c + width] = quantize(block, single).dequantize()
    return out


@pytest.mark.parametrize("name", EACH_SCHEME)
@settings(max_examples=4, deadline=None)
@given(x=matrices())
def test_blocks_are_independent_and_within_half_a_step(name: str, x: Tensor) -> None:
    """Blocked quantization equals quantizing each block by itself, ragged last blocks included; inside the
    range no element moves further than half the local gap, and zero stays exactly zero."""
    scheme = SCHEMES[name]
    q = quantize(x, scheme)
    assert torch.equal(q.dequantize(), naive(x, scheme))
    if scheme.least_squares_scale:  # the codes were found under the scale before
        scheme = dataclasses.replace(scheme, least_squares_scale=False)
        q = quantize(x, scheme)
    restored = q.dequantize()
    if not isinstance(scheme.format, CodebookFormat) and not scheme.mapping.has_offset:
        assert bool((restored[x == 0] == 0).all())
    if isinstance(scheme.format, IntegerFormat) and scheme.scale is not None:
        spread = partial(spread_over_blocks, shape=x.shape, scheme=scheme)
        step, low, high = spread(q.scales.scale), *scheme.code_limits
        zero = 0 if q.scales.zero_points is None else spread(q.scales.zero_points.float())
        offset = 0 if q.scales.offsets is None else spread(q.scales.offsets)
        units = (x - offset) / step + zero + (q.scales.first_code if q.scales.offsets is not None else 0)
        inside = (units >= low) & (units <= high) & (step != 0)
        # Codes that are computed in BF16 may be one off, by three roundings (x, its quotient, the sum with a
        # zero point); so may those of a scale before it is rounded to FP16, by 2⁻²⁵ where that is subnormal.
        rounding = (2**-25 / step.abs().double()).clamp(min=2**-11) if scheme.codes.unrounded else 0
        wrong = (high - low) * (3 * 2**-9 if scheme.codes.bfloat16 else rounding)
        quotient = (high - low) * 2.0**-22  # x / scale is rounded to float32 before it is rounded to a code
        error, allowed = (
            (restored.double() - x.double()).abs(),
            (0.5 * (1 + 1e-5) + quotient + wrong) * step.abs().double(),
        )
        assert bool((error <= allowed + 2**-11 * abs(offset) + 1e-44)[inside].all())


def spread_over_blocks(grid: Tensor, shape: tuple[int, int], scheme: Scheme) -> Tensor:
    """[rows, cols]: for each element its block's entry."""
    height, width = scheme.block[0] or shape[0], scheme.block[1] or shape[1]
    return grid.repeat_interleave(height, 0).repeat_interleave(width, 1)[: shape[0], : shape[1]]


IDEMPOTENT = [
    name
    for name, scheme in SCHEMES.items()
    if not scheme.least_squares_scale
    and scheme.calibrator.name == "minmax"
    and not scheme.codes.bfloat16  # restored values are float32: BF16 rounds them once more
]


@pytest.mark.parametrize("name", sampled(IDEMPOTENT, FEW))
def test_idempotent(name: str) -> None:
    """Quantizing what was quantized, with the same scales, changes nothing."""
    x = torch.randn(20, 200, generator=torch.Generator().manual_seed(5))
    q = quantize(x, SCHEMES[name])
    again = quantize_with_scales(q.dequantize(), SCHEMES[name], q.scales)
    assert torch.equal(q.dequantize(), again.dequantize())


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_degenerate_blocks(name: str) -> None:
    """All-zero, constant, subnormal and huge blocks give finite answers, and zeros give zeros. (Larger ranges
    than the last are refused where they have two ends.)"""
    for value in (0.0, 3.7, -2.5, 1e-42, 8e37):
        x = torch.full((3, 130), value)
        restored = quantize(x, SCHEMES[name]).dequantize()
        assert bool(torch.isfinite(restored).all()), value
        if value == 0 and SCHEMES[name].format.has_zero:
            assert bool((restored == 0).all())
        if value in (3.7, -2.5) and name in ("int8_column_asym", "fp8_e4m3_row", "int4_row"):
            assert torch.allclose(restored, x, rtol=2e-3)


def test_non_finite_is_refused_with_count_and_place() -> None:
    x = torch.randn(4, 256)
    x[2, 17], x[3, 5] = math.nan, math.inf
    for name in ("int4_group128", "nvfp4", "fp8_e4m3_tensor"):
        with pytest.raises(ValueError, match=r"2 of 1024 .* row 2, column 17"):
            quantize(x, SCHEMES[name])


def test_propagate() -> None:
    """On request NaN stays NaN and Inf saturates where the format can say so; elsewhere it is refused."""
    x = torch.randn(4, 256)
    x[2, 17], x[3, 5] = math.nan, -math.inf
    restored = quantize(x, SCHEMES["fp8_e4m3_row"], allow_nonfinite=True).dequantize()
    assert math.isnan(restored[2, 17]) and math.isfinite(restored[3, 5]) and restored[3, 5] < 0
    with pytest.raises(ValueError, match="no code for NaN"):
        quantize(x, SCHEMES["nvfp4"], allow_nonfinite=True)


WRONG: list[dict[str, object]] = [
    {"format": FORMATS["float4_e2m1fn"], "mapping": MappingType.ASYMMETRIC},
    {"format": FORMATS["int8"], "scale": None},
    {"format": FORMATS["int8"], "mapping": MappingType.ASYMMETRIC,
     "scale": ScaleRule(E8M0, ExponentRule.FLOOR)},
    {"format": E8M0},
    {"format": FORMATS["bfloat16"]},
    {"format": FORMATS["int8"], "block": (0, 4)},
    {"format": FORMATS["int8"], "seed": 2**64},
    {"format": FORMATS["int8"], "seed": -1},
]  # fmt: skip


def test_wrong_combinations_cannot_be_written() -> None:
    """Each differs in one part from a scheme that can be."""
    for fields in WRONG:
        with pytest.raises(ValueError):
            Scheme("t", "t", **fields)  # type: ignore[arg-type]
    for part in ({"format": FORMATS["int8"]}, {"format": FORMATS["float4_e2m1fn"]}):
        assert Scheme("t", "t", **part, block=(1, 4), seed=2**64 - 1).seed == 2**64 - 1


def test_wrong_scale_rules_cannot_be_written() -> None:
    for fields in (
        {"format": E8M0},
        {"format": FORMATS["float16"], "exponent": ExponentRule.CEIL},
        {"per_tensor": True},
    ):
        with pytest.raises(ValueError):
            ScaleRule(**fields)  # type: ignore[arg-type]
    assert ScaleRule(E4M3, per_tensor=True).smallest == 2**-9


FITTED = [name for name, s in SCHEMES.items() if s.scale is not None and not s.scale.is_searched]
"""Schemes that may be refitted: llama.cpp's search has done so."""


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_stored_scales_are_representable(name: str, gaussian: Tensor) -> None:
    """Rounding a stored scale to its format again changes nothing: what is saved is what was measured."""
    rule = SCHEMES[name].scale
    for fitted in (False, True)[: 0 if rule is None else 1 if rule.is_searched else 2]:
        scheme = dataclasses.replace(SCHEMES[name], least_squares_scale=fitted)
        stored, fmt = quantize(gaussian[:16], scheme).scales.stored, rule.format
        assert torch.equal(fmt.decode(fmt.encode(stored)), stored)


@pytest.mark.parametrize("name", sampled(FITTED, FEW))
@settings(max_examples=4, deadline=None)
@given(x=matrices())
def test_least_squares_scales_never_add_error(name: str, x: Tensor) -> None:
    """The fitted scale of a block leaves no more squared error than the scale that chose its codes, as far as
    float32 products can tell."""
    plain = quantize(x, dataclasses.replace(SCHEMES[name], least_squares_scale=False))
    fitted = quantize(x, dataclasses.replace(SCHEMES[name], least_squares_scale=True))
    assert torch.equal(plain.packed, fitted.packed)
    before, after = ((q.dequantize().double() - x.double()).square().sum() for q in (plain, fitted))
    assert float(after) <= float(before) * (1 + 1e-6) + 1e-80


def test_the_nearest_power_of_two() -> None:
    """E8M0's scales by least squares: below 1.5 down, above up, and 1.5 itself, as far from both, up."""
    middle = torch.tensor(1.5)
    below, above = (torch.nextafter(middle, torch.tensor(end)) for end in (1.0, 2.0))
    for unit in (2.0**-100, 1.0, 2.0**100):
        x = torch.stack([torch.tensor(1.0), below, middle, above, torch.tensor(1.99)]) * unit
        assert (_nearest_power_of_two(x) / unit).tolist() == [1, 1, 2, 2, 2]


def test_ties_up_are_counted_from_the_least_code() -> None:
    """llama.cpp rounds -0.50000006 by truncating the float32 -0.50000006 + 8.5, which is 8: the code of 0."""
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([8.0, 0.5, 0.50000006, 0.5000005])  # d = 8 / -8
    q = quantize(x, SCHEMES["q4_0"])
    assert float(q.scales.stored) == -1
    assert q.codes[0, :4].tolist() == [(c & 15) for c in (-8, 0, 0, -1)]


def test_stochastic_rounding_is_reproducible_and_unbiased(gaussian: Tensor) -> None:
    """One seed gives one answer, another another; the mean error vanishes."""
    base = SCHEMES["int4_group128"]
    one, same, other = (quantize(gaussian, dataclasses.replace(base, seed=s)).dequantize() for s in (1, 1, 2))
    assert torch.equal(one, same) and not torch.equal(one, other)
    assert abs(float((one - gaussian).mean())) < 5 * float((one - gaussian).std()) / 1024
    assert torch.equal(quantize(gaussian[:300], dataclasses.replace(base, seed=1)).dequantize(), one[:300])


def test_each_element_has_its_own_noise() -> None:
    """Rows in different chunks agree by chance alone, and a value as far above a code as its noise stays."""
    scheme, unit = dataclasses.replace(SCHEMES["int8_tensor"], seed=1), torch.full((1, 1), 127.0)
    codes = quantize(torch.full((1024, 1024), 0.5), scheme, clip_range=Range(-unit, unit)).codes
    assert all(0.45 < float((codes[:256] == part).float().mean()) < 0.55 for part in codes.split(256)[1:])
    noise = philox_uniform(1, 0, 256)
    assert not quantize(noise.view(1, -1), scheme, clip_range=Range(-unit, unit)).codes.any()
    assert not round_stochastic(noise, noise).any()


def test_given_ranges_are_used() -> None:
    """Static quantization: the caller's range decides, not the tensor's."""
    x = torch.tensor([[0.5, 4.0]])
    q = quantize(x, SCHEMES["int8_tensor"], clip_range=Range(torch.tensor([[-1.0]]), torch.tensor([[1.0]])))
    assert float(q.scales.stored) == pytest.approx(1 / 127)
    assert q.dequantize()[0, 1] == pytest.approx(1.0)


def test_the_sentence_says_what_shares_a_scale() -> None:
    """A reader takes a scale of a row for one of a column otherwise."""
    for block, words in (
        ("tensor", "tensor"), ("row", "every row"), ("column", "every column"),
        ("1x64", "64 along a row"), ("64x1", "64 rows × 1 columns"), ("flat64", "64 of the flattened tensor"),
    ):  # fmt: skip
        assert words in Scheme.parse(f"int8~{block}~symmetric~float16~minmax").describe()
