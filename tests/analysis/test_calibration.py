"""Calibrators compared on one tensor, and observers over batches.

If these fail, the Calibration section draws a threshold that the method did not choose, or a stream of
batches calibrates to another range than the same data at once.
"""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from explorer import CALIBRATORS, SCHEMES
from explorer.analysis.calibration import (
    SHOWN,
    block_ranges,
    block_summary,
    compare_calibrators,
    share_curve,
    static_and_dynamic,
    summary,
    whole_tensor,
)
from explorer.schemes.observer import MOVING, Observer


@pytest.fixture(scope="module")
def heavy() -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(0).standard_t(4, (64, 300)).astype(np.float32))


@pytest.mark.parametrize(
    "name", ["int8_tensor", "int4_group128_asym", "fp8_e4m3_row", "mxfp4", "nf4_block64"]
)
def test_a_comparison_of_calibrators_is_consistent(name: str, heavy: torch.Tensor) -> None:
    """Chosen ranges, curves and histogram of one report agree with each other."""
    report = compare_calibrators(heavy, SCHEMES[name], 0.5)
    assert [c.method for c in report.choices] == [*SHOWN, "own"]
    by_method = {c.method: c for c in report.choices}
    base, best = by_method["minmax"], by_method["mse"]
    assert best.report.mse <= base.report.mse * (1 + 1e-9), (
        "the searched range is never worse than the whole one"
    )
    assert best.report.mse <= by_method["own"].report.mse * 1.02
    assert by_method["own"].threshold == pytest.approx(0.5 * base.threshold)
    assert int(report.counts.sum()) == heavy.numel() and bool((np.diff(report.beyond) <= 0).all())
    assert report.squared_error[-1] == pytest.approx(base.report.relative_error**2)
    assert report.squared_error.min() >= 0.9 * best.report.relative_error**2


def test_static_and_dynamic_scales_on_held_out_rows(heavy: torch.Tensor) -> None:
    comparison = static_and_dynamic(heavy, SCHEMES["int8_tensor"])
    assert comparison.rows == 32 and set(comparison.static) == set(SHOWN)
    assert comparison.dynamic > max(comparison.static.values()), "on this data a scale a row is the better"
    with pytest.raises(ValueError, match="two rows"):
        static_and_dynamic(heavy[:1], SCHEMES["int8_tensor"])


def test_ranges_of_a_schemes_own_blocks(heavy: torch.Tensor) -> None:
    """Each rule's error is that of its scheme; the curve ends at min-max; the sentence names the best."""
    choices = list(block_ranges(heavy, SCHEMES["int4_group128_asym"]))
    assert [choice.method for choice in choices] == list(SHOWN) and choices[0].share == pytest.approx(1)
    best = max(choices, key=lambda choice: choice.report.sqnr_db)
    assert best.method == "mse" and f"{best.report.sqnr_db:.2f} dB" in block_summary(choices)
    curve = dict(share_curve(heavy, SCHEMES["int4_group128_asym"]))
    assert curve[1.0] == pytest.approx(choices[0].report.sqnr_db) and curve[0.1] < curve[0.9]
    assert [choice.method for choice in block_ranges(heavy[:, :256], SCHEMES["q4_k"])] == ["minmax", "mse"]
    with pytest.raises(ValueError, match="is a cast"):
        list(block_ranges(heavy, SCHEMES["bf16"]))


def test_the_summary_says_what_the_numbers_say(heavy: torch.Tensor) -> None:
    """The sentence names the method with the highest SQNR, or that clipping does not pay."""
    for name, pays in (("int4_group128_asym", True), ("fp8_e5m2_row", False)):
        report = compare_calibrators(heavy, SCHEMES[name], 0.5)
        methods = [c for c in report.choices if c.method != "own"]
        best = max(methods, key=lambda c: c.report.sqnr_db)
        assert (best.report.sqnr_db - methods[0].report.sqnr_db >= 0.05) is pays
        assert (f"with {best.label}: {best.report.sqnr_db:.2f} dB" in summary(report)) is pays


def test_the_summary_names_the_best_range_of_the_curve() -> None:
    """Ternary and binary codes err least under ranges below the last that the search tries. If this fails,
    the sentence calls an error the least beside a curve that has a smaller one."""
    x = torch.randn(64, 300, generator=torch.Generator().manual_seed(0))
    x[0, 0] = 12
    for name in ("tq1_0", "ternary_absmean", "binary_row", "int4_row", "int8_row"):
        report = compare_calibrators(x, SCHEMES[name])
        best = max(c.report.sqnr_db for c in report.choices)
        least = -10 * math.log10(report.squared_error.min())
        below = name in ("tq1_0", "ternary_absmean", "binary_row")
        assert (least - best >= 0.05) is below
        assert (f"{least:.2f} dB, the most of the curve" in summary(report)) is below


def test_an_observer_of_batches_is_one_of_the_whole() -> None:
    """Growing by merging pairs loses nothing: the histogram is that of all data in the last bins."""
    r = np.random.default_rng(1)
    batches = [torch.zeros(50)] + [
        torch.from_numpy((r.standard_normal(1000) * 2.0**i).astype(np.float32)) for i in range(8)
    ]
    seen = Observer()
    for batch in batches:
        seen.add(batch)
    everything = torch.cat(batches)
    assert seen.count == len(everything) == int(seen.histogram.sum())
    assert (seen.low, seen.high) == (float(everything.min()), float(everything.max()))
    index = (everything.abs() / seen.width).long().clamp(max=seen.bins - 1)
    assert torch.equal(seen.histogram, torch.bincount(index, minlength=seen.bins))
    exact = float(everything.abs().kthvalue(math.ceil(0.999 * len(everything))).values)
    assert exact <= seen.percentile(99.9) <= exact + seen.width
    assert 0 < seen.entropy(128) <= seen.amax and 0 < seen.squared_error(128) <= seen.amax


def test_an_observers_moving_range() -> None:
    """The moving range follows by a hundredth; bad data and odd histograms are refused."""
    seen = Observer()
    for top in (1.0, 3.0):
        seen.add(torch.tensor([-0.5, top]))
    assert seen.moving_high == pytest.approx(1 + MOVING * 2) and seen.high == 3.0 and seen.moving_low == -0.5
    with pytest.raises(ValueError, match="NaN or Inf"):
        seen.add(torch.tensor([float("nan")]))
    with pytest.raises(ValueError, match="even number of bins"):
        Observer(3)
    assert Observer().percentile() == 0.0


def test_tensors_of_any_size_are_compared(heavy: torch.Tensor) -> None:
    """Histogram, thresholds and SQNR of a scaled tensor are those of the tensor, scaled."""
    usual = compare_calibrators(heavy, SCHEMES["int4_row"])
    for size in (1e-30, 1e-36, 1e30):
        scaled = compare_calibrators(heavy * size, SCHEMES["int4_row"])
        assert int(scaled.counts.sum()) == heavy.numel()
        for a, b in zip(usual.choices, scaled.choices, strict=True):
            assert b.threshold == pytest.approx(a.threshold * size, rel=0.02)
            assert b.report.sqnr_db == pytest.approx(a.report.sqnr_db, abs=0.2)
        np.testing.assert_allclose(scaled.kl, usual.kl, atol=0.05)


def test_an_observer_of_small_values_and_of_wrong_percentiles() -> None:
    """Bins narrower than float32's smallest normal number, and a percentile that would keep nothing."""
    seen = Observer()
    seen.add(torch.linspace(0, 1, 4096) * 1e-41)
    assert int((seen.histogram > 0).sum()) > 1000
    with pytest.raises(ValueError, match="above 0 and at most 100"):
        seen.percentile(0)


def test_a_tensor_of_ones_has_no_kl_below_its_largest() -> None:
    """No value inside a threshold: no histogram to compare, and no point on the curve."""
    report = compare_calibrators(torch.ones(8, 128), SCHEMES["int4_row"])
    assert np.isnan(report.kl[:-1]).all() and report.kl[-1] == 0


def test_a_scheme_with_minimums_is_refused_by_its_name() -> None:
    """And what the refusal names works. A cast has no range either."""
    for name in ("q4_k", "q5_1"):
        with pytest.raises(ValueError, match=f"{SCHEMES[name].label}.*int4_group32") as refused:
            compare_calibrators(torch.randn(4, 256), SCHEMES[name])
        assert SCHEMES[name].with_ranges_by(CALIBRATORS["mse"]).calibrator.name == "mse"
    for name in ("int4_group32", "int4_group32_asym"):
        assert name in str(refused.value)
        assert compare_calibrators(torch.randn(4, 256), SCHEMES[name]).choices
    with pytest.raises(ValueError, match="cast"):
        whole_tensor(SCHEMES["bf16"])
