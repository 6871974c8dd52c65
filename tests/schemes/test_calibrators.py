"""Calibrators by their published values and by plain loops.

If these fail, a range is chosen by another rule than the one it is named after.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest
import torch
from torch import Tensor

from explorer import CALIBRATORS, FORMATS, SCHEMES, MappingType, Scheme, compare, quantize
from explorer.core.quantize import find_ranges
from explorer.schemes.calibrators import (
    ENTROPY_FLOOR,
    _wider,
    entropy_objective,
    magnitude_histogram,
    percentile_threshold,
    share_of_minmax,
)
from tests.covering import FEW, sampled


@pytest.fixture(scope="module")
def outliers() -> Tensor:
    """The reference's data: 200,000 of N(0, 1) and 200 of N(0, 64), magnitudes."""
    r = np.random.default_rng(0)
    return torch.from_numpy(
        np.abs(np.concatenate([r.standard_normal(200000), 8 * r.standard_normal(200)])).astype(np.float32)
    )


def threshold(x: Tensor, calibrator: str, fmt: str = "int8") -> float:
    scheme = Scheme("t", "t", FORMATS[fmt], calibrator=CALIBRATORS[calibrator])
    return float(find_ranges(x.view(1, -1), scheme).high)


@pytest.mark.parametrize("name", [name for name in CALIBRATORS if name != "four_over_six"])
def test_every_calibrator_gives_a_range_for_every_block(name: str) -> None:
    """Finite ends with zero between them; of ordinary, empty, one-sided, tiny and huge blocks. (Four over six
    takes FP4 alone.)"""
    row = CALIBRATORS[name]
    x = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    x[1], x[2], x[3] = 0, x[2].abs() + 3, -x[3].abs() - 3
    x[4], x[5], x[6] = x[4] * 1e-40, x[5] * 1e30, 0.5
    for scheme in ("int4_group128", "int4_group128_asym", "fp8_e4m3_row", "ternary_absmean"):
        found = find_ranges(x, dataclasses.replace(SCHEMES[scheme], calibrator=row))
        assert bool(found.low.isfinite().all() & found.high.isfinite().all())
        assert bool((found.low <= 0).all() & (found.high >= 0).all()) and row.headroom >= 1
        if SCHEMES[scheme].block[0] == 1:
            assert float(found.amax[1].max()) == 0 < float(found.amax[[0, 2, 3, 4, 5, 6]].min())


def test_reference_thresholds(outliers: Tensor) -> None:
    """MSE for INT4 is the least that rule C-1 tries; the rule for empty bins moves entropy's by a few."""
    assert threshold(outliers, "minmax") == pytest.approx(23.74, abs=0.005)
    assert threshold(outliers, "percentile") == pytest.approx(13.68, abs=0.02)
    assert float(percentile_threshold(outliers.view(1, -1), 99.9)) == pytest.approx(3.60, abs=0.005)
    assert threshold(outliers, "mse") == pytest.approx(16.86, abs=0.005)
    assert threshold(outliers, "mse", "int4") == pytest.approx(23.74 * 0.21, abs=0.005)
    assert threshold(outliers, "entropy") == pytest.approx(13.41, abs=0.25)
    x = torch.randn(4, 256)  # blocks too small for a histogram keep all
    scheme = Scheme("t", "t", FORMATS["int8"], (1, 128), calibrator=CALIBRATORS["entropy"])
    whole = find_ranges(x, dataclasses.replace(scheme, calibrator=CALIBRATORS["minmax"]))
    assert torch.equal(find_ranges(x, scheme).high, whole.high)


def test_the_entropy_threshold_is_the_middle_of_a_bin(outliers: Tensor) -> None:
    """TensorRT's rule: (i + 1/2) · width for the best threshold of i bins. With the outliers inside Q the
    first one has a divergence of exactly 0, and 1.49 would be returned."""
    histogram, width = magnitude_histogram(outliers[None])
    objective = entropy_objective(histogram, 128)[0]
    kept = int(objective.argmin()) + 128
    assert float(objective[0]) > 0 and 128 < kept < 2047 and bool((objective >= 0).all())
    want = torch.tensor((kept + 0.5) * float(outliers.amax().double() / 2048)).item()
    assert threshold(outliers, "entropy") == pytest.approx(want, rel=1e-6) and want > 5
    assert float(width) == pytest.approx(float(outliers.amax()) / 2048, rel=1e-12)


def naive_objective(h: np.ndarray, levels: int) -> list[float]:
    answers, h = [], np.r_[h[1], h[1:]]
    for i in range(levels, len(h) + 1):
        if not h[:i].sum():
            answers.append(math.inf)
            continue
        p, q = h[:i].astype(float), np.zeros(i)
        p[-1] += h[i:].sum()
        for g in range(levels):
            a, b = g * i // levels, (g + 1) * i // levels
            seen = h[a:b] > 0
            if seen.any():
                q[a:b][seen] = h[a:b].sum() / seen.sum()
        p, q = p / p.sum(), q / h[:i].sum()
        q = np.where((q == 0) & (p > 0), ENTROPY_FLOOR / i, q)
        q = q / q.sum()
        answers.append(float(np.sum(p[p > 0] * np.log(p[p > 0] / q[p > 0]))))
    return answers


def test_prefix_sums_give_the_objective_of_the_plain_loop() -> None:
    r = np.random.default_rng(0)
    h = np.stack(
        [
            np.histogram(np.abs(r.standard_t(3, 3000)), 200)[0],
            r.integers(0, 3, 200),
            np.eye(1, 200, 199)[0].astype(int),
        ]
    )
    got = entropy_objective(torch.from_numpy(h), 16)
    for row in range(len(h)):
        assert got[row].tolist() == pytest.approx(naive_objective(h[row], 16), abs=1e-9)


RANGED = [
    name
    for name, s in SCHEMES.items()
    if s.calibrator.name == "minmax" and s.scale is not None and not s.scale.is_searched
]


@pytest.mark.parametrize("name", sampled(RANGED, FEW))
def test_searching_is_never_worse_than_min_max(name: str) -> None:
    """The first of the thresholds tried is min-max itself. (Under NVFP4 a narrower top moves the tensor
    scale a little.)
    """
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0)) ** 3
    base = compare(x, quantize(x, SCHEMES[name])).mse
    found = compare(x, quantize(x, dataclasses.replace(SCHEMES[name], calibrator=CALIBRATORS["mse"]))).mse
    assert found <= base * (1.02 if "nvfp4" in name else 1 + 1e-6)


def test_the_best_clip_of_a_gaussian() -> None:
    """The known optimum of N(0, 1), to the hundredths of the largest value that are tried."""
    x = torch.randn(1, 400_000, generator=torch.Generator().manual_seed(0))
    for bits, clip, decibels in (("int2", 1.22, 7.21), ("int3", 1.96, 13.29), ("int4", 2.48, 18.91),
                                 ("int8", 3.94, 40.46)):  # fmt: skip
        q = quantize(x, Scheme("t", "t", FORMATS[bits], calibrator=CALIBRATORS["mse"]))
        assert float(q.scales.scale) * FORMATS[bits].max == pytest.approx(clip, abs=0.03)
        assert compare(x, q).sqnr_db == pytest.approx(decibels, abs=0.15)


@pytest.mark.parametrize("calibrator", ["percentile", "mse", "entropy"])
def test_every_granularity_and_symmetry(calibrator: str) -> None:
    """Ranges lie inside min-max, contain zero, and shapes are the grid's; ragged blocks included."""
    x = torch.randn(33, 700, generator=torch.Generator().manual_seed(1)) + 0.5
    blocks = ((None, None), (1, None), (1, 128), (None, 1), (16, 64))
    for mapping, block in itertools.product((MappingType.SYMMETRIC, MappingType.ASYMMETRIC), blocks):
        scheme = Scheme("t", "t", FORMATS["int4"], block, mapping=mapping, calibrator=CALIBRATORS[calibrator])
        whole = find_ranges(x, dataclasses.replace(scheme, calibrator=CALIBRATORS["minmax"]))
        found = find_ranges(x, scheme)
        assert found.low.shape == scheme.grid((33, 700))
        assert bool((found.low <= 0).all() and (found.high >= 0).all())
        assert bool((found.low >= whole.low).all() and (found.high <= whole.high).all())


def activations(kind: str) -> Tensor:
    """[64, 1024] of N(0, 1) after an activation function."""
    x = torch.randn(64, 1024, generator=torch.Generator().manual_seed(0))
    return {"relu": torch.relu, "gelu": torch.nn.functional.gelu, "silu": torch.nn.functional.silu}[kind](x)


def test_zeros_do_not_decide_the_entropy() -> None:
    """Half of a ReLU's outputs are zeros, which every threshold keeps: none may be lost for their sake."""
    x = activations("relu")
    scheme = Scheme("t", "t", FORMATS["int8"], calibrator=CALIBRATORS["entropy"])
    whole = dataclasses.replace(scheme, calibrator=CALIBRATORS["minmax"])
    assert float(find_ranges(x, scheme).high) > 0.75 * float(x.amax())
    assert compare(x, quantize(x, scheme)).sqnr_db > compare(x, quantize(x, whole)).sqnr_db - 1


@pytest.mark.parametrize("kind", ["relu", "gelu", "silu"])
def test_least_squares_moves_each_end_by_itself(kind: str) -> None:
    """Within 1 % of the best of 80 × 80 pairs of ends: a GELU's low end is worth keeping where its high one
    is not."""
    x = activations(kind)[:8]
    low, high = float(x.amin().clamp(max=0)), float(x.amax())
    shares = torch.arange(0.2, 1.001, 0.02)
    for bits in ("int3", "int4", "int8"):
        scheme = Scheme(
            "t", "t", FORMATS[bits], mapping=MappingType.ASYMMETRIC, calibrator=CALIBRATORS["mse"]
        )
        n, best = 2 ** FORMATS[bits].bits - 1, math.inf
        for a in low * shares if low else torch.zeros(1):
            ends = (high * shares)[:, None, None]
            step = (ends - a) / n
            zero = (-a / step).round()
            restored = ((x / step + zero).round().clamp(0, n) - zero) * step
            best = min(best, float((restored - x).square().mean((1, 2)).min()))
        assert compare(x, quantize(x, scheme)).mse <= 1.01 * best


@pytest.mark.parametrize("mapping", [MappingType.SYMMETRIC, MappingType.ASYMMETRIC])
def test_least_squares_does_not_depend_on_the_unit(mapping: MappingType) -> None:
    """Squares of very small or large values are no float32 numbers; the range stays the same share."""
    x = torch.randn(4, 512, generator=torch.Generator().manual_seed(0))
    scheme = Scheme("t", "t", FORMATS["int4"], (1, None), mapping=mapping, calibrator=CALIBRATORS["mse"])
    one = find_ranges(x, scheme)
    assert bool((one.amax < x.abs().amax(1, keepdim=True)).all())
    for size in (1e-25, 1e-12, 1e30):
        scaled = find_ranges(x * size, scheme)
        torch.testing.assert_close(scaled.high / size, one.high, rtol=1e-4, atol=0)
        torch.testing.assert_close(scaled.low / size, one.low, rtol=1e-4, atol=0)


@pytest.mark.parametrize(("name", "gain"), [("nvfp4", 1.2), ("mxfp4", 0.2), ("mxfp4_rceil", 0.2)])
def test_coarse_scales_may_be_larger_than_min_max_asks_for(name: str, gain: float) -> None:
    """A block whose largest value meets code 4 instead of 6 often has the smaller error: worth ``gain`` dB
    over min-max here, and as good as the best scale of each block."""
    scheme = SCHEMES[name]
    x = torch.randn(64, 256, generator=torch.Generator().manual_seed(0))
    found = quantize(x, dataclasses.replace(scheme, calibrator=CALIBRATORS["mse"]))
    base = quantize(x, scheme)
    assert compare(x, found).sqnr_db >= compare(x, base).sqnr_db + gain
    # Every stored scale from an eighth of min-max's to three times as much, under min-max's tensor scale.
    width, values = scheme.block[1], torch.tensor(sorted(scheme.format.levels))
    assert width is not None and scheme.scale is not None
    every = scheme.scale.format.values
    every = every[every.isfinite() & (every > 0)]
    top = 1.0 if base.scales.tensor_scale is None else float(base.scales.tensor_scale)
    least = torch.full((64, 256 // width), math.inf)
    for stored in every[(every >= base.scales.stored.min() / 8) & (every <= 3 * base.scales.stored.max())]:
        scale = float(stored) * top
        nearest = values[((x / scale)[..., None] - values).abs().argmin(-1)]
        error = (nearest * scale - x).square().view(64, -1, width).sum(2)
        least = torch.minimum(least, error)
    assert compare(x, found).mse <= 1.02 * float(least.sum()) / x.numel()


def test_the_tensor_scale_is_the_tensors_under_every_calibrator() -> None:
    """NVFP4's upper scale comes from the largest value, as the search assumed, not from the ranges found."""
    x = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    want = quantize(x, SCHEMES["nvfp4"]).scales.tensor_scale
    for name in ("mse", "percentile"):
        got = quantize(x, dataclasses.replace(SCHEMES["nvfp4"], calibrator=CALIBRATORS[name]))
        assert got.scales.tensor_scale is not None and want is not None
        assert torch.equal(got.scales.tensor_scale, want)


def test_the_tensor_scale_by_hand() -> None:
    """6 · 256 by Four Over Six: block scales end at 256 of E4M3's 448, so that 1.5 times as large a one (384)
    exists. NVFP4 itself has 6 · 448. Of so small a tensor that it would be 2^-131.4, a subnormal with too few
    bits left, it is the least normal number."""
    x = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    x[2, 5] = 6 * 256
    for name, scale in (("nvfp4", 4 / 7), ("nvfp4_four_over_six", 1.0)):
        assert float(quantize(x, SCHEMES[name]).scales.tensor_scale) == pytest.approx(scale, rel=1e-7)
    x[2, 5] = 1
    x = x / x.abs().max() * 2.0**-120
    q = quantize(x, SCHEMES["nvfp4"])
    assert float(q.scales.tensor_scale) == 2.0**-126 and compare(x, q).sqnr_db > 19


def mean_error_in_standard_errors(x: Tensor, scheme: Scheme, seeds: int) -> float:
    """Mean of sign(x) · (x̂ - x) over ``x`` and ``seeds`` stochastic roundings, over its standard error."""
    errors = [quantize(x, dataclasses.replace(scheme, seed=seed)).dequantize() - x for seed in range(seeds)]
    each = torch.stack(errors).double() * x.sign()
    return float(each.mean() / (each.var(0).sum() / seeds).sqrt() * x.numel())


def test_stochastic_rounding_is_unbiased_where_nothing_is_clipped() -> None:
    """NVFP4's E4M3 scales are rounded, half of them down: the largest value of such a block is clipped, and
    all magnitudes together lose some of their mean. With headroom they do not."""
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(0))
    x[::3] *= torch.logspace(-6, 0, 43)[:, None]  # blocks whose scales are subnormal, too
    nvfp4 = SCHEMES["nvfp4"]
    assert mean_error_in_standard_errors(x, nvfp4, 24) < -8
    assert abs(mean_error_in_standard_errors(x, nvfp4.with_ranges_by(CALIBRATORS["unclipped"]), 24)) < 3


@pytest.mark.parametrize("scale", ["nvfp4", "float8_e4m3fn", "floor", "float16", "bfloat16"])
def test_with_headroom_the_codes_reach_every_value(scale: str) -> None:
    """The largest code under the stored scale is at least the block's largest magnitude, by less than a step
    of scales more."""
    x = torch.randn(128, 256, generator=torch.Generator().manual_seed(1))
    x[:, 32:48] = 0
    for block in ("1x16", "16x16"):
        q = quantize(x, Scheme.parse(f"float4_e2m1fn~{block}~symmetric~{scale}~unclipped"))
        height, width = q.scheme.block
        assert height and width
        amax = x.unflatten(1, (-1, width)).unflatten(0, (-1, height)).abs().amax((1, 3))
        reach = q.scales.scale * 6
        assert bool((reach >= amax).all()) and torch.count_nonzero(q.dequantize()[:, 32:48]) == 0
        full = amax > 0
        assert float((reach / amax)[full].max()) <= (2 if scale == "floor" else 1 + 1 / 8)


def test_histograms_of_ranges_with_subnormal_bins() -> None:
    """The same counts as at size 1, to the rounding of the values themselves."""
    x = (torch.arange(2048).float() + 0.5)[None] / 2048
    for size in (1e-30, 1e-38, 1e-44):
        counts, width = magnitude_histogram(x * size)
        assert int(counts.sum()) == 2048 and float(width) * 2048 == pytest.approx(float((x * size).amax()))
        if size > 1e-35:
            assert torch.equal(counts, magnitude_histogram(x)[0])


def test_a_percentile_keeps_something() -> None:
    """Of a block with more zeros than that all is kept; a percentile that would clip all is refused."""
    x = torch.zeros(1, 100_000)
    x[0, 5] = 3.0
    scheme = Scheme("t", "t", FORMATS["int8"], calibrator=CALIBRATORS["percentile"])
    assert float(quantize(x, scheme).scales.scale) == pytest.approx(3 / 127)
    for wrong in (0, -1, 101):
        with pytest.raises(ValueError, match="100"):
            percentile_threshold(x, wrong)


@pytest.mark.parametrize(
    "name", ["int8_tensor", "int4_group32_asym", "nvfp4", "int4~1x32~minimum~super6~minmax"]
)
def test_a_share_of_min_max(name: str) -> None:
    """``share0.31`` spans 0.31 of every block's min-max, is written and read as that, and 1 is min-max: else
    a range that was dragged on the page, or its link, is another one."""
    x = torch.randn(32, 256, generator=torch.Generator().manual_seed(0))
    plain = Scheme.parse(name)
    scheme = dataclasses.replace(plain, name="", calibrator=share_of_minmax(0.31))
    assert Scheme.parse(str(scheme)).calibrator == scheme.calibrator and "~share0.31" in str(scheme)
    whole, shared = find_ranges(x, plain), find_ranges(x, scheme)
    if not plain.mapping.has_offset:
        torch.testing.assert_close(shared.high, 0.31 * whole.high, rtol=1e-6, atol=0)
        torch.testing.assert_close(shared.low, 0.31 * whole.low, rtol=1e-6, atol=0)
    assert compare(x, quantize(x, scheme)).clipped > 0 or plain.mapping.has_offset
    assert share_of_minmax(1.0) is CALIBRATORS["minmax"]


def test_a_share_is_what_its_text_says() -> None:
    """Of a share with more digits than its text: else a saved tensor's scheme is another than was used, and
    one that was spelled twice is not the same. What is no share is refused; 0 would clip everything."""
    for share in (0.0001, 0.123456, 1 / 3, 0.99996):
        scheme = dataclasses.replace(SCHEMES["int8_row"], name="", calibrator=share_of_minmax(share))
        assert Scheme.parse(str(scheme)).calibrator == scheme.calibrator == share_of_minmax(share)
    for word in ("share", "share0", "share1.5", "share-1", "share0.31x", "sharp"):
        with pytest.raises(ValueError, match=r"share0\.0001"):
            Scheme.parse(f"int8~1xall~symmetric~float32~{word}")


def test_a_scale_of_one_subnormal_unit_needs_half_as_much_again() -> None:
    """1.49 units are rounded to 1: the largest factor that is tried is 3/2, and none is coarser."""
    assert _wider(SCHEMES["nvfp4"].scale)[-1] == 1.5
