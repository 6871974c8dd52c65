"""The ends of the number range: tiny and huge tensors, empty blocks, flushed subnormals, odd strides.

If these fail, a layer with small weights loses its precision in the scales, a row of zeros comes back as
ones, finite numbers come back as Inf, or the result depends on the state or the threads of the process.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator

import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import FORMATS, SCHEMES, Scheme, compare, quantize
from explorer.core.backend import backend_for
from explorer.core.encode import not_clipped
from explorer.formats import E8M0, CodebookFormat, FloatFormat, Format
from explorer.formats.code import in_every_format
from explorer.formats.packing import pack_bits, unpack_bits
from explorer.schemes.calibrators import Range
from explorer.schemes.text import ELEMENT_FORMATS
from tests.covering import EACH_SCHEME


def sqnr(x: Tensor, scheme: str | Scheme) -> float:
    row = Scheme.parse(scheme) if isinstance(scheme, str) else scheme
    return compare(x, quantize(x, row)).sqnr_db


def test_subnormal_float16_scales_are_used(gaussian: Tensor) -> None:
    """Scales below 2^-14 keep what precision FP16 has left, instead of being raised to 2^-14; dB with
    subnormal scales as compressed-tensors has them."""
    for name, *least in (
        ("int8_group128", 43.7, 18.7), ("int4_group128", 18.6, 15.0), ("int4_group128_asym", 19.9, 14.0)
    ):  # fmt: skip
        for factor, decibels in zip((3e-4, 1e-5), least, strict=True):
            assert sqnr(gaussian[:256] * factor, name) > decibels - 0.2, (name, factor)


def test_subnormal_float32_scales_are_used(gaussian: Tensor) -> None:
    """A tensor of 2^-130 has subnormal scales; its accuracy is that of the tensor scaled up, nearly."""
    x = gaussian[:64]
    for name in ("int8_row", "fp8_e4m3_row", "nf4_block64", "ternary_twn"):
        assert sqnr(x * 2.0**-130, name) > sqnr(x, name) - 0.5, name


def test_underflow_below_the_smallest_scale_is_zero() -> None:
    """What remains when even the smallest FP16 scale is too large: codes of 0, no NaN."""
    x = torch.full((1, 128), 1e-9)
    assert torch.equal(quantize(x, SCHEMES["int8_group128"]).dequantize(), torch.zeros_like(x))


def test_mxint8_exponent_is_that_of_ocp() -> None:
    """OCP MX v1.0: INT8 elements are q / 64, so a block whose largest magnitude is 1 has the exponent 0."""
    x = torch.zeros(1, 32)
    x[0, :3] = torch.tensor([1.0, -0.5, 1 / 64])
    q = quantize(x, SCHEMES["mxint8"])
    assert int(E8M0.encode(q.scales.stored)[0, 0]) - 127 == 0
    assert q.codes[0, :3].view(torch.int8).tolist() == [64, -32, 1]
    assert torch.equal(q.dequantize(), x)


LARGEST = float(np.finfo(np.float32).max)


@pytest.mark.parametrize("device_name", ["cpu", pytest.param("cuda", marks=pytest.mark.gpu)])
@pytest.mark.parametrize("name", EACH_SCHEME)
def test_zeros_stay_zeros_and_finite_is_finite(name: str, device_name: str) -> None:
    """A block of zeros comes back as zeros, though binary has no code for 0. Up to 2^127 everything is
    restored finite and reported; above, a scaled scheme refuses and says where."""
    scheme = SCHEMES[name]
    x = torch.randn(4, 256, device=device_name)
    beside = x if scheme.block != (None, None) and scheme.block[0] in (1, None) else torch.zeros_like(x)
    assert not quantize(torch.cat([beside[:1] * 0, beside[1:]]), scheme).dequantize()[0].any()
    end = 2.0**126 if scheme.asymmetric or scheme.mapping.has_offset else 2.0**127
    x[0, 0], x[0, 1], x[1, 7] = end, -end, -end
    q = quantize(x, scheme)
    assert bool(torch.isfinite(q.dequantize()).all())
    assert not math.isnan(compare(x, q).relative_error)
    x[2, 3] = LARGEST
    if scheme.scale is None or scheme.calibrator.name in ("absmean", "twn"):
        assert bool(torch.isfinite(quantize(x, scheme).dequantize()).all())
        return
    with pytest.raises(ValueError, match=r"2\^12[67] .* row 2, column 3:"):
        quantize(x, scheme)


def test_half_precision_restored_finite() -> None:
    """Restoring in float16 saturates: 65504 under amax / 7.5 is 69872 on the grid."""
    scheme = Scheme.parse("int4~1x32~full~float32~minmax")
    x = torch.full((1, 32), -65504.0)
    assert bool(torch.isfinite(quantize(x, scheme).dequantize(torch.float16)).all())


def test_float64_beyond_float32_is_named() -> None:
    """1e300 is neither NaN nor Inf: the refusal says that it lies beyond float32."""
    x = torch.ones(2, 32, dtype=torch.float64)
    x[1, 3] = 1e300
    with pytest.raises(ValueError, match=r"beyond float32.*row 1, column 3"):
        quantize(x, SCHEMES["int8_row"])


@pytest.fixture
def flushed() -> Iterator[None]:
    """A process that flushes subnormals to zero, as audio programs and some inference servers set it."""
    assert torch.set_flush_denormal(True), "this processor cannot flush subnormals"
    yield
    torch.set_flush_denormal(False)


EXACT = torch.cat([torch.arange(-300, 300) / 37.0, torch.tensor([1e-8, 3e-6, 2.0**-149, 2.0**-130])])[None]


def test_codes_do_not_depend_on_flushing(request: pytest.FixtureRequest) -> None:
    """Codes and values of a format are the same under ``torch.set_flush_denormal(True)``."""
    codes = {name: fmt.encode(EXACT) for name, fmt in ELEMENT_FORMATS.items()}
    values = {name: ELEMENT_FORMATS[name].decode(codes[name]).view(torch.int32).clone() for name in codes}
    request.getfixturevalue("flushed")
    for name, fmt in ELEMENT_FORMATS.items():
        assert torch.equal(fmt.encode(EXACT), codes[name]), name
        assert torch.equal(fmt.decode(codes[name]).view(torch.int32), values[name]), name


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_quantization_does_not_depend_on_flushing(name: str, request: pytest.FixtureRequest) -> None:
    """Codes, scales and restored values are the same, for values whose scales are subnormal as well."""
    x = torch.randn(8, 256) * torch.tensor([2.0**-140, 2.0**-120, 1e-6, 1.0] * 2)[:, None]
    before = quantize(x, SCHEMES[name])
    restored = before.dequantize().view(torch.int32).clone()
    request.getfixturevalue("flushed")
    after = quantize(x, SCHEMES[name])
    assert torch.equal(after.packed, before.packed)
    assert torch.equal(after.scales.stored.view(torch.int32), before.scales.stored.view(torch.int32))
    assert torch.equal(after.dequantize().view(torch.int32), restored)
    assert torch.equal(quantize(x, SCHEMES[name], allow_nonfinite=True).packed, before.packed)


def test_report_does_not_depend_on_threads(gaussian: Tensor) -> None:
    """Sums are added in one order, so a report can be compared digit by digit between machines."""
    reports, threads, x = set(), torch.get_num_threads(), gaussian[:256]
    q = quantize(x, SCHEMES["int4_group128"])
    for count in (1, 2, 3):
        torch.set_num_threads(count)
        found = compare(x, q)
        reports.add((found.sqnr_db, found.mae, found.cosine))
    torch.set_num_threads(threads)
    assert len(reports) == 1


def test_packing_takes_any_stride() -> None:
    """One row cut out of a larger tensor, by rows or by columns, packs like its copy."""
    for bits in range(1, 8):
        codes = torch.randint(0, 2**bits, (24, 7), dtype=torch.uint8)
        for view in (codes.t()[2:3], codes[:1, ::2], codes.t()[:, 1:2], codes[3:4]):
            packed = pack_bits(view, bits)
            assert torch.equal(packed, pack_bits(view.clone(memory_format=torch.contiguous_format), bits))
            assert torch.equal(unpack_bits(packed, bits, view.shape[1]), view)


def test_a_number_is_rounded_once() -> None:
    """1.06250001 lies above the middle of 1 and 1.125; rounding it to float32 first would make it a tie."""
    values = {row.format.name: row.value for row in in_every_format(1.06250001)}
    assert values["float8_e4m3fn"] == 1.125
    assert values["bfloat16"] == 1.0625 and values["float16"] == 1.0625
    values = {row.format.name: row.value for row in in_every_format(2.5 + 1e-12)}
    assert values["int8"] == 3.0 and values["int4"] == 3.0 and values["float4_e2m1fn"] == 3.0
    assert {row.format.name: row.value for row in in_every_format(1e300)}["float16"] == 65504.0


def just_off_every_tie(fmt: Format) -> tuple[Tensor, Tensor]:
    """float64: the middles of all neighbouring values of ``fmt`` and a float64 step to either side of each;
    then what they are rounded to."""
    levels = torch.tensor(fmt.levels, dtype=torch.float64)
    middles, infinity = (levels[1:] + levels[:-1]) / 2, torch.tensor(math.inf, dtype=torch.float64)
    if isinstance(fmt, CodebookFormat):
        levels = levels.float().double()
        middles = torch.tensor([middle for middle, _ in fmt.boundaries], dtype=torch.float64)
        up = torch.tensor([goes_up for _, goes_up in fmt.boundaries])
        ties = torch.where(up, levels[1:], levels[:-1])
    else:  # these middles are float32
        ties = fmt.decode(fmt.encode(middles.float())).double()
    x = torch.cat([middles, torch.nextafter(middles, infinity), torch.nextafter(middles, -infinity)])
    return x, torch.cat([ties, levels[1:], levels[:-1]])


def test_a_tensor_of_doubles_is_rounded_once() -> None:
    """By way of the nearest float32 all of these would be ties."""
    for fmt in (f for f in FORMATS.values() if f.bits <= 8 and not f.scale_only):
        x, want = just_off_every_tie(fmt)
        values = fmt.decode(fmt.encode(x)).double()
        assert torch.equal(values, want), fmt.name
        if isinstance(fmt, FloatFormat):
            cast = Scheme("t", "t", fmt, scale=None)
            assert torch.equal(quantize(x.view(1, -1), cast).dequantize()[0].double(), want), fmt.name
        ends = torch.tensor([1e300, -1e300], dtype=torch.float64)
        assert fmt.decode(fmt.encode(ends)).tolist() == [fmt.max, fmt.min], fmt.name


def test_one_double_is_rounded_once() -> None:
    """Worked by hand: each lies just off the middle of two values, which the nearest float32 is."""
    for name, number, value in (
        ("float8_e4m3fn", 1.06250001, 1.125),
        ("bfloat16", 1 + 2.0**-8 + 2.0**-40, 1 + 2.0**-7),
        ("float16", 1 + 2.0**-11 + 2.0**-40, 1 + 2.0**-10),
        ("tfloat32", 1 + 2.0**-11 - 2.0**-40, 1.0),
        ("float32", 1 + 2.0**-24 + 2.0**-40, 1 + 2.0**-23),
    ):
        fmt, x = FORMATS[name], torch.tensor([[number]], dtype=torch.float64)
        assert float(fmt.decode(fmt.encode(x))) == value, name
        assert float(quantize(x, Scheme("t", "t", fmt, scale=None)).dequantize()) == value, name


def test_casts_to_bfloat16_saturate(device: torch.device) -> None:
    """The largest float32 lies beyond bfloat16's largest number, to which it is restored: not to Inf."""
    x, largest = torch.tensor([[LARGEST, -LARGEST, 3.39e38, 1.0]]), float(torch.finfo(torch.bfloat16).max)
    for name in ("fp32", "tf32"):
        q = quantize(x.to(device), SCHEMES[name])
        assert q.dequantize(torch.bfloat16).float().tolist() == [[largest, -largest, largest, 1.0]]
    x = torch.tensor([[math.inf, -math.inf]], device=device)
    infinite = quantize(x, SCHEMES["fp32"], allow_nonfinite=True)
    assert infinite.dequantize(torch.bfloat16).tolist() == [[math.inf, -math.inf]]


def test_the_least_element_of_mxint8_is_not_clipped(device: torch.device) -> None:
    """-2 is a value of the format (OCP MX v1.0, section 5.3.4): -128.5 / 64 rounds to it, 127.5 / 64 does not
    round to the largest, 127 / 64."""
    x = torch.zeros(1, 32)
    x[0, :4] = torch.tensor([-2.0, -128.5 / 64, 127.25 / 64, 127.75 / 64]) * 0.99999
    x[0, 4] = -1.0
    scheme = SCHEMES["mxint8"]
    q = quantize(x, scheme, clip_range=Range(torch.tensor([[-1.0]]), torch.tensor([[1.0]])))
    assert float(q.scales.scale) == 1.0 and q.codes[0, :4].view(torch.int8).tolist() == [-128, -128, 127, 127]
    assert not_clipped(x, q.scales, scheme)[0, :5].tolist() == [True, True, True, False, True]
    assert compare(x, q).clipped == 1 / 32
    x[0, :4] = torch.tensor([-1.99, -1.995, -1.999, 1.0])
    x = x.to(device)
    restored, kept = backend_for(x).fake_quantize(x, scheme)
    assert bool(kept.all()) and float(restored.min()) == -2.0


def test_zeros_beside_a_subnormal_stay_zeros() -> None:
    """Where the scale's reciprocal is beyond float32, 0 · inf has no code: zeros came back as -1e-39."""
    x = torch.zeros(1, 256)
    names = [name for name, row in SCHEMES.items() if row.codes.reciprocal]
    for name, least in itertools.product(names, (1e-39, 2.0**-149)):
        x[0, 3] = least
        restored = quantize(x, SCHEMES[name]).dequantize()
        assert not restored[0, :3].any() and not restored[0, 4:].any(), name
        assert float(restored[0, 3]) in (0.0, torch.tensor(least).item()), name


def test_what_is_no_floating_point_is_refused() -> None:
    """If this fails, the imaginary part of a complex matrix is dropped without a word."""
    for dtype in (torch.complex64, torch.int32, torch.bool):
        with pytest.raises(ValueError, match="floating-point"):
            quantize(torch.ones(2, 8, dtype=dtype), SCHEMES["int8_row"])


@pytest.mark.parametrize("fmt", ["float4_e2m1fn", "float6_e2m3fn", "float8_e4m3fn", "nf4", "int4"])
def test_a_scale_of_zero_restores_zeros(fmt: str) -> None:
    """0 / 0 has no code: a row of zeros came back as -6, as NaN, or stopped with an IndexError."""
    x = torch.randn(4, 64)
    x[1] = 0
    for rule in ("float16~minmax~unrounded", "float16-zero~minmax~fit", "float16-zero~mse",
                 "float32-zero~minmax~bf16", "floor~minmax~unrounded", "nested~mse"):  # fmt: skip
        q = quantize(x, Scheme.parse(f"{fmt}~1x16~symmetric~{rule}"))
        assert torch.equal(q.dequantize()[1], torch.zeros(64)), rule
        assert compare(x, q).sqnr_db > 5, rule


def test_a_constant_block_under_an_offset_is_its_offset() -> None:
    """It has no width: the offset alone restores it, as exactly as its format stores it."""
    for value, mapping, (scale, bits) in itertools.product(
        (0.001, 0.3, -7.25, 1000.0),
        ("minimum", "midpoint"),
        (("float32", 23), ("bfloat16", 7), ("float16", 10)),
    ):
        x = torch.full((2, 128), value)
        restored = quantize(x, Scheme.parse(f"int4~1x128~{mapping}~{scale}~minmax")).dequantize()
        assert bool(((restored - x).abs() <= abs(value) * 2.0 ** -(bits + 1)).all()), (value, mapping, scale)


def test_an_offset_makes_the_error_independent_of_the_mean() -> None:
    """Searching calibrators move the ends of a range toward its middle, not toward a zero outside it."""
    scheme, x = Scheme.parse("int4~1x128~minimum~float32~mse"), torch.randn(8, 128)
    x[:, 3] *= 4
    near, far = (compare(shifted, quantize(shifted, scheme)).mse for shifted in (x, x + 100))
    assert far == pytest.approx(near, rel=0.02)
    with pytest.raises(ValueError, match=r"range of \|x\|"):
        Scheme.parse("int4~1x128~minimum~float32~percentile")


def test_fitting_keeps_a_scale_that_is_better() -> None:
    """The nearest scale of the format may lie far away: the block keeps the one it had."""
    for text, values in (
        ("float4_e2m1fn~1x32~symmetric~floor~minmax", [2.0**-127 * v for v in (1, 2, 4, -6)] * 8),
        ("binary~row~symmetric~float16-ct~minmax", [5e-8] + [1e-8] * 63),
    ):
        x = torch.tensor([values])
        before, after = (
            float((quantize(x, s).dequantize().double() - x.double()).square().sum())
            for s in (Scheme.parse(text), Scheme.parse(f"{text}~fit"))
        )
        assert after <= before, text


def _hard_rows() -> Tensor:
    """float32 [24, 512]: rows of every magnitude from 2^-149 to 2^40, in which scales of many formats round
    to 0, a row of zeros and one of -0.0, rows that are mostly zeros."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randn(24, 512, generator=generator)
    x[:16] = torch.ldexp(x[:16], torch.linspace(-149, 40, 16)[:, None].int())
    x[16:19] *= 2.0**-24
    x[19], x[20] = 0.0, -0.0
    x[21:] = torch.where(torch.rand(3, 512, generator=generator) < 0.95, 0.0, x[21:] * 1e-6)
    return x


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_nonfinite_values_change_nothing_beside_them(name: str) -> None:
    """The permission alone changes no bit; an Inf is taken for 0 where scales are found, and no code of
    another value changes."""
    x, scheme = _hard_rows(), SCHEMES[name]
    usual, allowed = quantize(x, scheme), quantize(x, scheme, allow_nonfinite=True)
    assert torch.equal(allowed.packed, usual.packed)
    assert torch.equal(allowed.scales.scale, usual.scales.scale)
    x[2, 7] = x[23, 511] = 0.0
    usual = quantize(x, scheme)
    x[2, 7], x[23, 511] = math.inf, -math.inf
    allowed, finite = quantize(x, scheme, allow_nonfinite=True), x.isfinite()
    assert torch.equal(allowed.codes[finite], usual.codes[finite])
    assert torch.equal(allowed.scales.scale, usual.scales.scale)
    restored = allowed.dequantize()[~finite].tolist()
    assert not any(map(math.isnan, restored)), "Inf saturates"
