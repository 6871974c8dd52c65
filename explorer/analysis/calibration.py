"""Compare calibrators on one tensor: the range that each chooses, its objective, and the resulting error.

``compare_calibrators`` uses one scale for the whole tensor, whatever the scheme's blocks, so that a range is
a pair of thresholds that can be drawn on the histogram of the values; ``block_ranges`` uses the scheme's own
blocks.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from explorer.analysis.histograms import around
from explorer.analysis.report import Report, compare
from explorer.core.quantize import quantize
from explorer.core.ranges import errors_under, find_ranges
from explorer.schemes import ScaleRule, Scheme
from explorer.schemes.calibrators import (
    CALIBRATORS,
    ENTROPY_BINS,
    MINMAX,
    SHRINKS,
    Range,
    entropy_objective,
    magnitude_histogram,
    share_of_minmax,
)

SHOWN = ("minmax", "percentile", "mse", "entropy")
"""Calibrators that are compared; the others belong to ternary and binary codes."""
CURVE_POINTS = 60
CALIBRATED = 1 << 21
"""Number of elements whose rows are used of a larger tensor, because each calibrator tries some eighty
ranges."""
HISTOGRAM_BINS = 200
GAIN_DB = 0.05
"""Difference in SQNR below which nothing is reported."""


@dataclass(frozen=True)
class ChosenRange:
    """The range [low, high] that a method chose for the whole tensor, and the resulting error."""

    method: str
    label: str
    low: float
    high: float
    report: Report

    @property
    def threshold(self) -> float:
        """Magnitude beyond which values are clipped."""
        return max(-self.low, self.high)


@dataclass(frozen=True, eq=False)
class CalibrationReport:
    """Every method's range for one tensor, and the objectives as curves over the threshold.

    edges, counts  [bins + 1] and [bins]: the histogram of the values
    thresholds     [points] on |x|
    squared_error  [points]: Σ(x - x̂)² / Σx²
    beyond         [points]: share of elements beyond the threshold
    kl             [points]: the KL divergence in nats that the entropy method minimises; NaN if undefined
    """

    scheme: Scheme
    edges: np.ndarray
    counts: np.ndarray
    thresholds: np.ndarray
    squared_error: np.ndarray
    beyond: np.ndarray
    kl: np.ndarray
    choices: tuple[ChosenRange, ...]


def calibrated_rows(x: Tensor) -> Tensor:
    """Return the first rows of the matrix ``x``, at least one and about ``CALIBRATED`` elements, in
    float32."""
    return x[: max(1, CALIBRATED // max(x.shape[1], 1))].float()


def whole_tensor(scheme: Scheme) -> Scheme:
    """Give ``scheme``'s format and symmetry one float32 scale for the whole tensor.

    ``ValueError`` for a cast, which has no range.
    """
    if scheme.scale is None:
        raise ValueError(f"{scheme.label} is a cast: it has no range to choose; take a scheme with a scale")
    return dataclasses.replace(
        scheme, block=(None, None), scale=ScaleRule(), calibrator=MINMAX, least_squares_scale=False, seed=None
    )


def _calibrated_range(x: Tensor, scheme: Scheme, method: str) -> Range:
    return find_ranges(x, scheme.with_ranges_by(CALIBRATORS[method]))


def with_range(x: Tensor, scheme: Scheme, low: float, high: float, method: str, label: str) -> ChosenRange:
    """Quantize the matrix by a ``whole_tensor`` scheme with a given range, ``low`` ≤ 0 ≤ ``high``
    (``ValueError`` otherwise).

    Under a symmetric scheme the range is widened to ± its larger end.
    """
    clip_range = _given(x, scheme, low, high)
    report = compare(x, quantize(x, scheme, clip_range=clip_range))
    return ChosenRange(method, label, float(clip_range.low), float(clip_range.high), report)


def _given(x: Tensor, scheme: Scheme, low: float, high: float) -> Range:
    if low == high == 0:
        raise ValueError("every value is 0: there is no range to choose")
    if not low <= 0 <= high:
        raise ValueError(f"a range contains zero, unlike {low} … {high}")
    if not scheme.asymmetric:
        low, high = -max(-low, high), max(-low, high)
    return Range(torch.full((1, 1), low, device=x.device), torch.full((1, 1), high, device=x.device))


def compare_calibrators(x: Tensor, scheme: Scheme, own: float | None = None) -> CalibrationReport:
    """Run every method of ``SHOWN`` on the float32 matrix ``x`` [rows, cols], with one scale for all of it.

    ``own`` adds the min-max range scaled by that factor (0 … 1) as a method called "own". ``ValueError`` for
    a scheme that stores a minimum: some methods find a range of |x|.
    """
    if scheme.mapping.has_offset:
        raise ValueError(
            f"{scheme.label} stores a minimum for each block, but percentile and entropy find a range of "
            "|x|: the methods cannot be compared on it. Take a symmetric scheme such as int4_group32, or one "
            "with zero points such as int4_group32_asym. Only the least squared error is used for this scheme"
        )
    scheme = whole_tensor(scheme)
    choices = []
    for method in SHOWN:
        found = _calibrated_range(x, scheme, method)
        label = CALIBRATORS[method].label
        choices.append(with_range(x, scheme, float(found.low), float(found.high), method, label))
    full = choices[0]
    if own is not None:
        choices.append(with_range(x, scheme, full.low * own, full.high * own, "own", "your range"))
    shares = np.linspace(1 / CURVE_POINTS, 1, CURVE_POINTS)
    magnitudes, _ = magnitude_histogram(x.reshape(1, -1).abs())
    below = np.concatenate([[0], np.cumsum(magnitudes[0].cpu().numpy())])
    values = x.double().cpu().numpy()
    counts, edges = np.histogram(values, HISTOGRAM_BINS, around(values.min(), values.max()))
    return CalibrationReport(
        scheme=scheme,
        edges=edges,
        counts=counts,
        thresholds=shares * (full.threshold or 1.0),
        squared_error=_squared_error(x, scheme, full, shares),
        beyond=1 - np.interp(shares, np.linspace(0, 1, ENTROPY_BINS + 1), below / below[-1]),
        kl=_kl(magnitudes, shares, 1 << (scheme.format.bits - 1)),
        choices=tuple(choices),
    )


def _squared_error(x: Tensor, scheme: Scheme, full: ChosenRange, shares: np.ndarray) -> np.ndarray:
    """Σ(x - x̂)² / Σx² with ``full``'s range scaled by each of ``shares``."""
    if x.device.type == "cpu":
        ranges = [_given(x, scheme, full.low * p, full.high * p) for p in shares]
        return np.array(errors_under(x, scheme, ranges)) / float(x.double().square().sum())
    scaled = (with_range(x, scheme, full.low * p, full.high * p, "", "") for p in shares)
    return np.array([choice.report.relative_error**2 for choice in scaled])


def _kl(magnitudes: Tensor, shares: np.ndarray, levels: int) -> np.ndarray:
    """The entropy method's objective at each share of the largest |x|; NaN for fewer than ``levels`` bins,
    and for ranges below all values."""
    if levels >= ENTROPY_BINS:
        return np.full(len(shares), np.nan)
    objective = entropy_objective(magnitudes, levels)[0].cpu().numpy()
    at = np.clip((shares * ENTROPY_BINS).astype(int) - levels, -1, len(objective) - 1)
    return np.where((at >= 0) & np.isfinite(objective[at]), objective[at], np.nan)


def summary(report: CalibrationReport) -> str:
    """Name the method with the smallest error and its trade-off against min-max, and the range of the curve
    with a smaller error than all methods, if there is one."""
    methods = [c for c in report.choices if c.method != "own"]
    base, best = methods[0], max(methods, key=lambda c: c.report.sqnr_db)
    name, gain = report.scheme.format.label, best.report.sqnr_db - base.report.sqnr_db
    if base.report.max_error == 0:
        return f"With one scale for all values, min-max leaves {name} no error: there is nothing to gain."
    beyond = _beyond_methods(report, base, best)
    if best is base or gain < GAIN_DB:
        instead = "gains nothing from clipping" if not beyond else "gains nothing from any method"
        most = f"min-max has {base.report.sqnr_db:.2f} dB.{beyond}"
        return f"With one scale for all values, {name} {instead}: {most}"
    share = best.threshold / base.threshold if base.threshold else 1.0
    return (
        f"With one scale for all values, {name} has the highest SQNR of the methods with {best.label}: "
        f"{best.report.sqnr_db:.2f} dB, {gain:.2f} dB more than min-max. Its range ends at "
        f"{100 * share:.0f} % of the largest value: {100 * best.report.clipped:.3g} % of the values are "
        f"clipped (beyond the outermost codes), and all others are rounded to a finer grid.{beyond}"
    )


def _beyond_methods(report: CalibrationReport, base: ChosenRange, best: ChosenRange) -> str:
    """Point out a range of the curve with a higher SQNR than every method; empty without one. Formats with
    few levels may need a smaller range than the search tries."""
    at = int(report.squared_error.argmin())
    least, share = float(report.squared_error[at]), report.thresholds[at] / (base.threshold or 1.0)
    if not least or -10 * math.log10(least) - best.report.sqnr_db < GAIN_DB:
        return ""
    ends = f"the search for the least squared error ends at {100 * min(SHRINKS):.0f} %"
    why = f", because {ends}" if share < min(SHRINKS) else ""
    most = f"{-10 * math.log10(least):.2f} dB, the most of the curve"
    return f" A range at {100 * share:.0f} % has {most}: no method chooses it{why}."


@dataclass(frozen=True)
class StaticVsDynamic:
    """SQNR in dB on ``rows`` held-out rows, which calibration did not see.

    ``static``: method -> SQNR with a scale fixed beforehand; ``dynamic``: with a scale for each row.
    """

    static: dict[str, float]
    dynamic: float
    rows: int


def static_and_dynamic(x: Tensor, scheme: Scheme) -> StaticVsDynamic:
    """Compare scales fixed on the first half of the rows with scales computed for each row of the second
    half. ``ValueError`` for a single row."""
    if x.shape[0] < 2:
        raise ValueError("static and dynamic scales are compared on at least two rows")
    scheme, half = whole_tensor(scheme), x.shape[0] // 2
    seen, held_out = x[:half], x[half:]
    static = {}
    for method in SHOWN:
        clip_range = _calibrated_range(seen, scheme, method)
        static[method] = compare(held_out, quantize(held_out, scheme, clip_range=clip_range)).sqnr_db
    by_row = dataclasses.replace(scheme, block=(1, None))
    return StaticVsDynamic(static, compare(held_out, quantize(held_out, by_row)).sqnr_db, len(held_out))


@dataclass(frozen=True)
class BlockRange:
    """A rule for the ranges of a scheme's own blocks, and the error that it leaves.

    share: width of the ranges, as a part of those from the smallest to the largest value, on average over the
    blocks.
    """

    method: str
    label: str
    scheme: Scheme
    share: float
    report: Report


def block_ranges(x: Tensor, scheme: Scheme) -> Iterator[BlockRange]:
    """Quantize the float32 matrix ``x`` by ``scheme`` under each rule of ``SHOWN`` that goes with it.
    ``ValueError`` for a cast, which has no range."""
    full = _width(x, _with_scale(scheme).with_ranges_by(MINMAX))
    for method in SHOWN:
        try:
            ruled = scheme.with_ranges_by(CALIBRATORS[method])
        except ValueError:  # a range of |x| says nothing about a stored minimum
            continue
        width = _width(x, ruled)
        share = float((width / full)[full > 0].double().mean()) if bool((full > 0).any()) else 1.0
        yield BlockRange(method, CALIBRATORS[method].label, ruled, share, compare(x, quantize(x, ruled)))


def _with_scale(scheme: Scheme) -> Scheme:
    if scheme.scale is None:
        raise ValueError(f"{scheme.label} is a cast: it has no range to choose; take a scheme with a scale")
    return scheme


def _width(x: Tensor, scheme: Scheme) -> Tensor:
    found = find_ranges(x, scheme)
    return found.high - found.low


SHARES = (0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.65, 0.7, 0.75, 0.8, 0.85, 0.9, 0.95, 1.0)


def share_curve(x: Tensor, scheme: Scheme) -> Iterator[tuple[float, float]]:
    """Yield each of ``SHARES`` with the SQNR in dB that ``scheme`` has where every block's range is that
    share of its smallest and largest value. ``ValueError`` for a cast."""
    for share in SHARES:
        ruled = _with_scale(scheme).with_ranges_by(share_of_minmax(share))
        yield share, compare(x, quantize(x, ruled)).sqnr_db


def block_summary(choices: Sequence[BlockRange]) -> str:
    """Name the rule with the highest SQNR and its trade-off against min-max."""
    base, best = choices[0], max(choices, key=lambda choice: choice.report.sqnr_db)
    gain = best.report.sqnr_db - base.report.sqnr_db
    if base.report.max_error == 0:
        return "Min-max leaves no error: there is nothing to gain."
    if best is base or gain < GAIN_DB:
        return f"No rule gains anything over min-max, which has {base.report.sqnr_db:.2f} dB."
    return (
        f"{best.label[0].upper()}{best.label[1:]} has the highest SQNR: {best.report.sqnr_db:.2f} dB, "
        f"{gain:.2f} dB more than min-max. Its ranges are {100 * best.share:.0f} % as wide on average, and "
        f"{100 * best.report.clipped:.3g} % of the values are clipped."
    )
