"""Formats against independent implementations (ml_dtypes, gfloat, torch), exhaustively.

If these fail, every number the explorer shows is suspect: codes no longer match the vendors'.
"""

from __future__ import annotations

import bisect
import dataclasses
import math
from typing import Any

import gfloat
import gfloat.formats
import ml_dtypes
import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import FORMATS
from explorer.formats import (
    E8M0,
    CodebookFormat,
    FloatFormat,
    Format,
    IntegerFormat,
    Specials,
    TruncatedFloat32,
)
from explorer.formats.base import FEW
from explorer.formats.codebooks import LevelTies
from explorer.formats.rounding import Rounding, philox_block, philox_uniform
from tests.new_rows import E3M4, ROWS, UE5M3

SMALL = [f for f in ROWS.values() if f.bits <= 8]
FLOATS = [f for f in ROWS.values() if isinstance(f, FloatFormat)]
SIGNED = [f for f in FLOATS if f.signed]
CAST_TO = [f for f in ROWS.values() if not f.scale_only]
"""Formats that values of either sign are rounded to."""

PEERS = {f.name: getattr(ml_dtypes, f.name) for f in SIGNED if hasattr(ml_dtypes, f.name)} | {
    "float16": np.float16
}
"""The floating-point formats that ml_dtypes (or numpy) has."""
GFLOAT = {
    "float8_e4m3fn": gfloat.formats.format_info_ocp_e4m3,
    "float8_e5m2": gfloat.formats.format_info_ocp_e5m2,
    "float6_e2m3fn": gfloat.formats.format_info_ocp_e2m3,
    "float6_e3m2fn": gfloat.formats.format_info_ocp_e3m2,
    "float4_e2m1fn": gfloat.formats.format_info_ocp_e2m1,
    "float8_e8m0fnu": gfloat.formats.format_info_ocp_e8m0,
    "bfloat16": gfloat.formats.format_info_bfloat16,
    "float16": gfloat.formats.format_info_binary16,
}
"""The formats that gfloat describes itself; ``gfloat_row`` describes the others to it."""


def label(fmt: Format) -> str:
    return fmt.name


def gfloat_row(fmt: FloatFormat) -> gfloat.FormatInfo:
    """The primary facts of a row in gfloat's terms. Its arithmetic, in float64, is independent of ours."""
    nan_magnitudes = {Specials.IEEE: 2**fmt.mantissa - 1, Specials.FN: 1, Specials.SCALE: 1}
    return gfloat.FormatInfo(
        fmt.name,
        fmt.signed + fmt.exponent + fmt.mantissa,
        fmt.mantissa + 1,
        bias=fmt.bias,
        is_signed=fmt.signed,
        domain=gfloat.Domain.Extended if fmt.specials is Specials.IEEE else gfloat.Domain.Finite,
        has_nz=fmt.signed and fmt.specials is not Specials.FNUZ,
        num_high_nans=nan_magnitudes.get(fmt.specials, 0),
        has_subnormals=fmt.specials is not Specials.SCALE,
        is_twos_complement=False,
    )


def all_sixteen_bit(kind: torch.dtype) -> Tensor:
    return torch.arange(65536, dtype=torch.int32).to(torch.int16).view(kind).to(torch.float32)


def peer_codes(x: Tensor, name: str) -> Tensor:
    values = x.numpy().astype(PEERS[name])
    return torch.from_numpy(values.view(np.uint8 if ROWS[name].bits <= 8 else np.int16))


def assert_same_codes(got: Tensor, want: Tensor, x: Tensor) -> None:
    """Equal, or: how many differ, and the first with its input and both codes."""
    differ = (got != want).reshape(-1).nonzero().reshape(-1)
    if len(differ):
        i = int(differ[0])
        pytest.fail(
            f"{len(differ)} of {x.numel()} differ; first x={x.reshape(-1)[i].item()!r}: "
            f"got {got.reshape(-1)[i]:#x}, want {want.reshape(-1)[i]:#x}"
        )


def neighbours(values: Tensor) -> Tensor:
    """Each value, and the float32 one step to either side of it."""
    infinity = torch.full_like(values, math.inf)
    return torch.cat([values, torch.nextafter(values, infinity), torch.nextafter(values, -infinity)])


def boundaries(fmt: Format) -> Tensor:
    """Every value and every midpoint between neighbours of a format of up to 8 bits, ±1 ulp."""
    levels = torch.tensor(fmt.levels, dtype=torch.float64)
    points = torch.cat([levels, (levels[1:] + levels[:-1]) / 2]).to(torch.float32)
    return neighbours(points)


@pytest.mark.parametrize("fmt", SMALL, ids=label)
def test_every_code_round_trips(fmt: Format) -> None:
    """The fast decode equals the exact scalar ``value`` for every code, and encode(decode(code)) == code for
    all codes but NaN's twins and the negative zero of FNUZ. The saturation threshold is halfway to the value
    that would follow ``max``: what reports count as clipped."""
    codes = torch.arange(fmt.code_count, dtype=torch.uint8)
    values, want = fmt.decode(codes), torch.tensor([fmt.value(c) for c in range(fmt.code_count)])
    assert torch.equal(values.nan_to_num(1234.5), want.float().nan_to_num(1234.5))
    finite = torch.isfinite(values)
    assert_same_codes(fmt.encode(values[finite]), codes[finite], values[finite])
    assert fmt.saturation_threshold == fmt.max + (fmt.levels[-1] - fmt.levels[-2]) / 2


@pytest.mark.parametrize("fmt", [f for f in SMALL if f in CAST_TO], ids=label)
def test_every_boundary_takes_the_nearest_value(fmt: Format) -> None:
    """A search through the sorted values agrees at every value and midpoint, ±1 ulp, and beyond the ends.

    This needs no other implementation of the format, so that every row is checked against something.
    """
    x = torch.cat([boundaries(fmt), torch.tensor([4 * fmt.max, -4 * fmt.max])])
    got = fmt.decode(fmt.encode(x))
    want = torch.tensor([nearest_value(v, fmt) for v in x.tolist()])
    assert torch.equal(got, want), [t[got != want].tolist()[:3] for t in (x, got, want)]


@pytest.mark.parametrize("fmt", ROWS.values(), ids=label)
def test_nearest_gives_what_the_codes_restore(fmt: Format) -> None:
    """Bit for bit, zeros' signs too, of many numbers and of a few, which are looked up. Else GPTQ makes up
    for errors that are not those of its codes. Every bit of a code has one meaning in its fields."""
    x = all_sixteen_bit(torch.bfloat16)
    x = torch.cat([x[~x.isnan()], boundaries(fmt) if fmt.bits <= 8 else x[:0]])
    for rounding in (Rounding.NEAREST, Rounding.AWAY):
        want = fmt.decode(fmt.encode_unchecked(x, rounding)).view(torch.int32)
        few = torch.cat([fmt.nearest(few, rounding) for few in x.split(FEW)])
        for got in (fmt.nearest(x, rounding), few):
            assert_same_codes(got.view(torch.int32), want, x)
    covered = [i for f in fmt.fields for i in range(f.low, f.high + 1)]
    assert sorted(covered) == list(range(fmt.bits))


def nearest_value(x: float, fmt: Format) -> float:
    """The value of ``fmt`` next to ``x``; midpoints of float32 values are exact in Python's floats."""
    above = bisect.bisect_right(fmt.levels, x)
    if above in (0, len(fmt.levels)):
        return fmt.levels[max(above - 1, 0)]
    lower, upper = fmt.levels[above - 1], fmt.levels[above]
    if x == (lower + upper) / 2:
        return tie_winner(fmt, lower, upper)
    return upper if x > (lower + upper) / 2 else lower


def tie_winner(fmt: Format, lower: float, upper: float) -> float:
    """Which of two neighbouring values the value halfway between them rounds to."""
    if isinstance(fmt, CodebookFormat):
        towards_upper = {
            LevelTies.LOWER: False,
            LevelTies.UPPER: True,
            LevelTies.ZERO: lower < 0,
            LevelTies.AWAY: lower >= 0,
        }[fmt.ties]
        return upper if towards_upper else lower
    if isinstance(fmt, IntegerFormat):
        return lower if lower % 2 == 0 else upper
    code_of = {float(v): code for code, v in enumerate(fmt.values.tolist())}
    return lower if code_of[lower] % 2 == 0 else upper


def test_rows_have_the_facts_that_gfloat_states() -> None:
    """A wrong bias or wrong special codes are consistent with themselves: only another source tells."""
    for name, theirs in GFLOAT.items():
        fmt = FORMATS[name]
        assert isinstance(fmt, FloatFormat)
        assert {**vars(gfloat_row(fmt)), "name": ""} == {**vars(theirs), "name": ""}, name


@pytest.mark.parametrize("fmt", [f for f in FLOATS if f.bits <= 16], ids=label)
def test_values_match_gfloat(fmt: FloatFormat) -> None:
    """Every code's value, the special ones too, equals gfloat's of a format with the row's facts."""
    codes = np.arange(fmt.code_count)
    want = gfloat.decode_ndarray(gfloat_row(fmt), codes)
    got = np.array([fmt.value(int(code)) for code in codes])
    differ = codes[~((got == want) | (np.isnan(got) & np.isnan(want)))]
    assert not len(differ), f"code {differ[0]:#x}: {got[differ[0]]} is not {want[differ[0]]}"


@pytest.mark.parametrize("fmt", [f for f in FLOATS if f.name not in {"float32", "float8_e8m0fnu"}], ids=label)
def test_rounding_matches_gfloat(fmt: FloatFormat) -> None:
    """All finite bfloat16 and a hundred thousand float32 bit patterns, rounded and saturated; E8M0 rounds up
    and has a test of its own."""
    bits = torch.randint(-(2**31), 2**31 - 1, (100_000,), generator=torch.Generator().manual_seed(2))
    x = torch.cat([all_sixteen_bit(torch.bfloat16), bits.to(torch.int32).view(torch.float32)])
    x = x[x.isfinite()] if fmt.signed else x[x.isfinite()].abs()
    away = isinstance(fmt, TruncatedFloat32) and fmt.away
    ties = gfloat.RoundMode.TiesToAway if away else gfloat.RoundMode.TiesToEven
    want = gfloat.round_ndarray(gfloat_row(fmt), x.double().numpy(), ties, sat=True)
    got = fmt.decode(fmt.encode(x)).double().numpy()
    differ = (got != want).nonzero()[0]
    assert not len(differ), f"{x[differ[0]]}: {got[differ[0]]} is not {want[differ[0]]}"


@pytest.mark.parametrize("name", PEERS)
def test_all_sixteen_bit_inputs_match_ml_dtypes(name: str) -> None:
    """All 65,536 inputs of both types, a million random float32 bit patterns, subnormals among them, every
    representable value and every midpoint ±1 ulp; beyond the largest value clamped first."""
    fmt = ROWS[name]
    bits = torch.randint(-(2**31), 2**31 - 1, (1_000_000,), generator=torch.Generator().manual_seed(0))
    every = boundaries(fmt) if fmt.bits <= 8 else torch.zeros(0)
    halves = (all_sixteen_bit(kind) for kind in (torch.bfloat16, torch.float16))
    x = torch.cat([*halves, bits.to(torch.int32).view(torch.float32), every])
    x = x[~torch.isnan(x)].clamp(fmt.min, fmt.max)
    assert_same_codes(fmt.encode(x), peer_codes(x, name), x)


@pytest.mark.parametrize("fmt", SIGNED, ids=label)
def test_overflow_infinity_and_nan(fmt: FloatFormat) -> None:
    """Beyond the maximum and at ±Inf: the maximum. NaN: the canonical NaN, or an error without one. A tiny
    negative becomes -0, except in FNUZ formats, which have none."""
    if fmt.name != "float32":
        x = torch.tensor([math.inf, -math.inf, 3.4028234663852886e38, -3.4028234663852886e38, -1e-44])
        *ends, restored = fmt.decode(fmt.encode(x)).tolist()
        assert ends == [fmt.max, -fmt.max, fmt.max, -fmt.max] and restored == 0
        assert (math.copysign(1, restored) == -1) == ("fnuz" not in fmt.name)
    nan = torch.tensor([math.nan, 1.0])
    if fmt.has_nan:
        assert math.isnan(fmt.decode(fmt.encode(nan))[0])
    else:
        with pytest.raises(ValueError, match="NaN"):
            fmt.encode(nan)


TIES = {
    "float8_e4m3fn": [
        (0.1, 0.1015625), (17, 16), (19, 20), (1.0625, 1.0), (1.1875, 1.25), (336, 320), (268.8, 256),
        (0.01, 0.009765625), (2**-10, 0), (1.0001 * 2**-10, 2**-9), (1.5 * 2**-9, 2**-8),
        (2.5 * 2**-9, 2**-8), (464, 448),
    ],
    "float8_e5m2": [
        (0.1, 0.09375), (1.125, 1.0), (1.375, 1.5), (17, 16), (18, 16), (3e-5, 2**-15), (2**-17, 0),
        (1.001 * 2**-17, 2**-16),
    ],
    "float4_e2m1fn": [
        (0.25, 0), (0.75, 1), (1.25, 1), (1.75, 2), (2.5, 2), (3.5, 4), (5, 4), (0.2501, 0.5), (5.01, 6),
        (7, 6), (-0.2, 0),
    ],
    "float16": [
        (1 + 2**-11, 1), (1 + 3 * 2**-11, 1.001953125), (2049, 2048), (2051, 2052), (2**-25, 0),
    ],
    "bfloat16": [(1.00390625, 1), (1.01171875, 1.015625), (0.1, 0.10009765625)],
    "tfloat32": [(1 + 2**-11, 1.0009765625), (0.1, 0.0999755859375), (4097, 4096)],
    "ternary": [(0.5, 0), (-0.5, 0), (0.5000001, 1)],
    "binary": [(0.0, 1), (-0.0, 1)],
    "nf4": [(0.07958029955625534 / 2, 0)],
}  # fmt: skip
"""(number, the value it rounds to), worked out by hand."""


def test_worked_values() -> None:
    """Rounding is to nearest, ties to even (TF32: away from 0, NF4: down, ternary: to 0)."""
    for name, ties in TIES.items():
        x, want = (torch.tensor(side, dtype=torch.float32) for side in zip(*ties, strict=True))
        assert FORMATS[name].decode(FORMATS[name].encode(x)).tolist() == want.tolist(), name


def test_limits() -> None:
    """Of the formats that ml_dtypes does not have: the largest and the smallest positive value, from the
    specifications, and how many numbers a format has."""
    for name, limits in (
        ("float32", (3.4028234663852886e38, 2**-149)),
        ("tfloat32", (3.4011621342146535e38, 2**-136)),
        ("float16", (65504, 2**-24)),
        ("float8_e8m0fnu", (2.0**127, 2.0**-127)),
    ):
        assert (FORMATS[name].max, FORMATS[name].smallest_subnormal) == limits, name
    finite = {"float8_e4m3fn": 253, "float8_e5m2": 247, "float8_e4m3fnuz": 255, "float8_e8m0fnu": 255,
              "float6_e3m2fn": 63, "float4_e2m1fn": 15, "int8": 256, "nf4": 16, "ternary": 3,
              "binary": 2}  # fmt: skip
    assert {name: len(FORMATS[name].levels) for name in finite} == finite
    assert E3M4.name in PEERS, "a new row meets the other libraries"


@pytest.mark.parametrize("name", [n for n in PEERS if n != "float16"])
def test_limits_match_ml_dtypes(name: str) -> None:
    """Largest, smallest normal and smallest positive value and eps of every format that ml_dtypes has."""
    fmt, info = ROWS[name], ml_dtypes.finfo(PEERS[name])
    assert isinstance(fmt, FloatFormat)
    want = [float(v) for v in (info.max, info.min, info.smallest_normal, info.smallest_subnormal, info.eps)]
    assert [fmt.max, fmt.min, fmt.smallest_normal, fmt.smallest_subnormal, fmt.eps] == want


WRONG_FACTS: list[tuple[dict[str, Any], str]] = [
    ({"bits": 7}, "have 8"), ({"signed": False}, "have 7"), ({"bits": 9, "mantissa": 5}, "codec"),
    ({"bits": 7, "signed": False, "specials": Specials.FNUZ}, "-0"), ({"specials": Specials.SCALE}, "E8M0"),
    ({"torch_dtype": torch.uint8}, "torch.uint8"),
    ({"torch_dtype": torch.float8_e4m3fn}, "torch.float8_e4m3fn"),
    ({"torch_dtype": torch.float16}, "torch.float16"),
]  # fmt: skip


def test_facts_that_contradict_each_other_are_refused() -> None:
    """Where the row is made: its codes would be another format's, silently."""
    for facts, words in WRONG_FACTS:
        with pytest.raises(ValueError, match=f"^FP8 E3M4.*{words}"):
            dataclasses.replace(E3M4, **facts)


def test_an_unsigned_format_holds_magnitudes() -> None:
    """UE5M3 has zero, subnormals and twice the codes of E5M3's magnitudes; a sign is dropped, as in E8M0."""
    facts = (UE5M3.max, UE5M3.min, UE5M3.smallest_subnormal, UE5M3.code_count)
    assert facts == (114688.0, 0.0, 2.0**-17, 256)
    x = torch.tensor([0.0, 1.0, -1.0, 1e9])
    assert UE5M3.encode(x).tolist() == [0, 120, 120, 254] and math.isnan(UE5M3.value(255))
    assert UE5M3.cuda_codec == "FloatCodec<5,3,15,FN,false>" and UE5M3.scale_only and UE5M3.has_zero


def test_tf32_rounds_without_bias_and_keeps_nan() -> None:
    """rna is unbiased over a million normals (truncation would show -3.5e-4), and no NaN turns into Inf."""
    tf32 = FORMATS["tfloat32"]
    x = torch.randn(1_000_000, generator=torch.Generator().manual_seed(0))
    relative = (tf32.decode(tf32.encode(x)) - x) / x
    assert abs(relative.mean().item()) < 2e-6
    assert relative.abs().max().item() <= 2**-11
    low_payload_nan = torch.tensor([0x7F800001], dtype=torch.int32).view(torch.float32)
    assert torch.isnan(tf32.decode(tf32.encode(low_payload_nan))).all()


def test_float32_is_stored_as_it_is() -> None:
    """Random bit patterns come back bit for bit, NaN payloads included."""
    x = torch.randint(-(2**31), 2**31 - 1, (10000,)).to(torch.int32)
    fmt = FORMATS["float32"]
    assert torch.equal(fmt.decode(fmt.encode(x.view(torch.float32))).view(torch.int32), x)


def test_e8m0_rounds_up_to_a_power_of_two() -> None:
    """As ``cvt.rp.satfinite.ue8m0x2``: 1.25 -> 2, never a smaller scale, sign dropped, Inf -> 2^127; one unit
    in the last place above a power of two is the next one."""
    x = torch.tensor([1.0, 1.25, 1.5, -1.75, 0.0, 2.0**-127, 2.0**-127 * 1.5, 3e38, math.inf, math.nan])
    assert E8M0.encode(x).tolist() == [127, 128, 128, 128, 0, 0, 1, 254, 254, 255]
    for exponent in (-126, -1, 0, 100):
        power = torch.tensor(2.0**exponent)
        codes = E8M0.encode(torch.stack([power, torch.nextafter(power, torch.tensor(math.inf))]))
        assert codes.tolist() == [127 + exponent, 128 + exponent]


@pytest.mark.parametrize("fmt", FLOATS, ids=label)
def test_what_a_format_is_said_to_hold_it_holds(fmt: FloatFormat) -> None:
    """Zero, a negative zero, NaN and infinity, each found among its values where there are few."""
    said = fmt.has_zero, fmt.has_negative_zero, fmt.has_nan, fmt.has_infinity
    if fmt.bits > 16:
        assert said == (True, True, True, True)
        return
    values = fmt.decode(torch.arange(fmt.code_count).to(fmt.encode(torch.ones(1)).dtype))
    zeros = values[values == 0]
    held = (len(zeros) > 0, bool(zeros.signbit().any()), values.isnan().any(), values.isinf().any())
    assert said == tuple(map(bool, held)) and all(type(one) is bool for one in said)
    finite = values[values.isfinite()]
    assert fmt.max == float(finite.max()) and fmt.smallest_subnormal == float(finite[finite > 0].min())


@pytest.mark.parametrize("fmt", CAST_TO, ids=label)
def test_stochastic_rounding_is_unbiased(fmt: Format) -> None:
    """Averaged over many draws a value between two neighbours comes back; an exact value never moves."""
    exact, between = 1.0, 0.7
    noise = philox_uniform(3, 0, 200_000)
    x = torch.full((200_000,), between)
    if isinstance(fmt, IntegerFormat):
        noise_free = fmt.decode(fmt.encode(torch.ones(4), Rounding.STOCHASTIC, noise[:4]))
        assert noise_free.tolist() == [exact] * 4
    restored = fmt.decode(fmt.encode(x, Rounding.STOCHASTIC, noise)).double()
    spread = float(restored.std()) / math.sqrt(len(x))
    assert abs(float(restored.mean()) - float(x.double().mean())) <= 5 * spread + 1e-9
    assert len(restored.unique()) <= 2


def test_philox_is_philox() -> None:
    """The known answer of Philox 4x32-10 (Random123's kat_vectors): counter 0, key 0. A chunk draws what the
    whole would."""
    words = [int(w[0]) for w in philox_block(torch.tensor([0]), 0)]
    assert [f"{w:08x}" for w in words] == ["6627e8d5", "e169c58d", "bc57ac4c", "9b00dbd8"]
    assert torch.equal(philox_uniform(9, 123, 77), philox_uniform(9, 0, 1000)[123:200])


def test_the_levels_of_bitsandbytes_fp4_are_its_own() -> None:
    """The constants of ``dDequantizeFP4Tree`` in bitsandbytes' csrc/kernels.cu. If this fails, its FP4
    checkpoints are restored wrongly."""
    positive = [0.005208333, 0.16666667, 0.25, 0.33333333, 0.5, 0.66666667, 1.0]
    levels = [*(-v for v in reversed(positive)), 0.0, *positive]
    fmt = FORMATS["bnb_fp4"]
    assert isinstance(fmt, CodebookFormat) and list(fmt.table) == pytest.approx(levels, rel=1e-7)


def test_facts_by_hand() -> None:
    """``emax_elem`` of OCP MX v1.0 (table 1), and the formats whose codes fill the bytes of a scale."""
    exponents = {"float8_e5m2": 15, "float8_e4m3fn": 8, "float6_e3m2fn": 4, "float6_e2m3fn": 2,
                 "float4_e2m1fn": 2, "ocp_int8": 0, "int8": 6, "float16": 15}  # fmt: skip
    assert {name: FORMATS[name].max_exponent for name in exponents} == exponents
    short = ("float6", "float5", "float4")
    assert [f.name for f in FLOATS if not f.holds_scales] == [n for n in ROWS if n.startswith(short)]
    for name in ("int8", "int4", "int2"):  # two's complement has value bits, not a magnitude
        assert [f.name for f in FORMATS[name].fields] == ["sign", "value"]
