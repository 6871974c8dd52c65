"""The error of a large matrix under a scheme, estimated on a random sample of it, with intervals.

A sample is of units: bands of rows that the scheme's blocks fill, cut into pieces of whole blocks where rows
are long. Units are drawn without replacement by a fixed seed, and their number does not depend on the size
of the matrix. Sums over the matrix are estimated from the sums of each unit.

SQNR is a ratio of two sums, and its variance is that of a ratio estimator, by linearization, with the finite
population correction: W. G. Cochran, Sampling Techniques, 3rd ed. (1977), sections 2.11, 6.3 and 6.4.
Intervals are symmetric in the logarithm (the delta method), by Student's t with units - 1 degrees of freedom.
Rows whose like no unit has, such as a single row of outliers, are in no interval.
"""

from __future__ import annotations

import dataclasses
import math
import random
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from explorer.analysis.report import Report, measure
from explorer.analysis.schemes import searches
from explorer.core.quantize import quantize
from explorer.schemes import BitBudget, Scheme
from explorer.sources.base import Pieces

SEED = 20_011
CONFIDENCE = 0.95
"""The share of samples whose interval holds the value of the whole matrix, if its rows are alike enough that
a sample shows how they differ."""
_QUANTILE = 0.99
"""The share for which intervals are computed: rows with few large errors are skewed, so that intervals for
0.95 hold the value in only 0.90 to 0.95 of samples (tests/analysis/test_estimate.py)."""
ELEMENTS, SEARCHED = 1 << 20, 1 << 18
"""Elements of a sample; the second of schemes that search for a range, which takes thirty times as long."""
UNIT = 1 << 13
"""Elements of a unit, at most, unless a band of whole blocks has more."""
MOST_UNITS = 1 << 14
"""Units of a sample, at most, however small they are: each is a read of its own."""
EVEN = 10.0
"""Units that carry the error, and the signal, at least: (Σs)² / Σs² of their sums s. Where fewer hold most of
it, intervals by the spread of units hold the value far less often than stated."""
FEWEST = 24
"""Units of a sample: of fewer there is no estimate, since a few rows do not say how far rows differ."""
WORTH, WORTH_SEARCHED = 1 << 23, 1 << 20
"""Elements of a matrix that is analysed on a CPU in about half a second; the second by schemes that search.
Smaller ones need no estimate."""
WIDEST = 256
"""Elements of a row that blocks under an upper level (GGUF's super-blocks) share."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """The report of a sample, with the sums of the whole matrix as estimates, and their intervals.

    In ``report`` SQNR, relative error, MSE, RMSE and MAE are estimates; ``bits`` and ``nbytes`` are exact;
    ``max_error``, at its place in the matrix, and ``codes_used`` are lower bounds; all else is of the sample.
    ``factors``: by the field of the report, what its value is multiplied and divided by at the ends of the
    interval of ``CONFIDENCE``; ``half_db``: half the interval of ``sqnr_db``. They are empty and None where
    ``own_range`` is True: the scheme has scales of all rows, which here are the sample's own, so that the
    error of the whole matrix may be larger by any amount; and where ``uneven`` is True: few units hold most
    of the error or of the signal, so that the sample does not say how far it may be off.
    ``share`` (0 … 1) of the elements are in the sample, in so many ``units``.
    """

    report: Report
    factors: dict[str, float]
    half_db: float | None
    own_range: bool
    share: float
    units: int
    uneven: bool = False

    def interval(self, field: str) -> tuple[float, float] | None:
        """The ends of the interval of a field of the report; None for one that has none."""
        value = getattr(self.report, field)
        if field == "sqnr_db":
            return None if self.half_db is None else (value - self.half_db, value + self.half_db)
        factor = self.factors.get(field)
        return None if factor is None else (value / factor, value * factor)


@dataclass(frozen=True)
class _Layout:
    """A matrix of so many ``columns`` cut into units of ``tall`` rows × ``wide`` columns."""

    columns: int
    tall: int
    wide: int
    across: int
    units: int

    def place(self, unit: int) -> tuple[int, int]:
        """Row and column of the first element of a unit."""
        band, part = divmod(unit, self.across)
        return band * self.tall, part * self.wide

    def starts(self, unit: int) -> list[int]:
        """The places of its rows in row-major order."""
        row, column = self.place(unit)
        return [(row + i) * self.columns + column for i in range(self.tall)]


def of_matrix(x: Tensor) -> Pieces:
    """The pieces of the contiguous float32 matrix ``x`` in memory."""
    flat = x.reshape(-1)
    return lambda starts, length: torch.stack([flat[start : start + length] for start in starts])


def worth_estimating(shape: tuple[int, int], scheme: Scheme) -> bool:
    """True if a CPU takes longer than about a second for the matrix, and a sample of it says something."""
    slow = searches(scheme)
    if shape[0] * shape[1] <= (WORTH_SEARCHED if slow else WORTH):
        return False
    return _drawn(shape, scheme, SEARCHED if slow else ELEMENTS) is not None


def estimate(
    pieces: Pieces, shape: tuple[int, int], scheme: Scheme, elements: int | None = None, seed: int = SEED
) -> Estimate | None:
    """Estimate the error of a matrix of ``shape`` [rows, cols] under ``scheme`` on about ``elements`` of it.

    None where the matrix has too few units for a sample, and where the sample has no error or no signal: that
    says nothing of the whole. ``ValueError`` if what was drawn is not finite.
    """
    drawn = _drawn(shape, scheme, elements or (SEARCHED if searches(scheme) else ELEMENTS), seed)
    if drawn is None:
        return None
    layout, units = drawn
    x = pieces([start for unit in units for start in layout.starts(unit)], layout.wide)
    q = quantize(x, scheme)
    restored = q.dequantize()
    report = _in_place(measure(x, q, restored).report, layout, units, scheme.bits_per_element(shape), shape)
    share = x.numel() / (shape[0] * shape[1])
    own_range = _spans_rows(scheme)
    errors = restored.double() - x.double()
    noise, size, signal = (
        each.view(len(units), -1).sum(1) for each in (errors.square(), errors.abs(), x.double().square())
    )
    if not float(noise.sum()) or not float(signal.sum()):
        return None
    uneven = min(_carrying(noise), _carrying(signal)) < EVEN
    if own_range or uneven:
        return Estimate(report, {}, None, own_range, share, len(units), uneven and not own_range)
    among = len(units) / layout.units
    ratio, mse, mae = (
        _factor(numbers, weights, among)
        for numbers, weights in ((noise, signal), (noise, None), (size, None))
    )
    factors = {"relative_error": math.sqrt(ratio), "mse": mse, "rmse": math.sqrt(mse), "mae": mae}
    return Estimate(report, factors, 10 * math.log10(ratio), False, share, len(units))


def _carrying(sums: Tensor) -> float:
    """How many units of equal sums would be as uneven as these."""
    return float(sums.sum().square() / sums.square().sum())


def _factor(numbers: Tensor, weights: Tensor | None, among: float) -> float:
    """What Σnumbers / Σweights (all 1 if None) is multiplied and divided by at the ends of its interval;
    ``among``: the share of all units that was drawn."""
    count = len(numbers)
    weights = torch.ones_like(numbers) if weights is None else weights
    residues = numbers / numbers.mean() - weights / weights.mean()
    deviation = float((residues.square().sum() / (count - 1) * (1 - among) / count).sqrt())
    return math.exp(float(stdtrit(count - 1, (1 + _QUANTILE) / 2)) * deviation)


def _drawn(
    shape: tuple[int, int], scheme: Scheme, elements: int, seed: int = SEED
) -> tuple[_Layout, list[int]] | None:
    """The units and those that are drawn, in order; None where there are too few."""
    layout = _layout(shape, scheme)
    count = min(elements // (layout.tall * layout.wide), layout.units, MOST_UNITS) if layout else 0
    if layout is None or count < FEWEST or 2 * count > layout.units:
        return None
    return layout, sorted(random.Random(seed).sample(range(layout.units), count))


def _layout(shape: tuple[int, int], scheme: Scheme) -> _Layout | None:
    """The units of a matrix: whole blocks of the scheme. None where its blocks end within rows, or a row has
    no whole number of pieces and is too long to be one.

    Rows at the end that fill no band are in no unit.
    """
    rows, columns = shape
    height, width = scheme.block if scheme.scale is not None else (1, 1)
    if scheme.flat and columns % (width or columns):
        return None
    tall = height or 1
    wide = columns
    if width is not None and scheme.block != (None, 1) and tall * columns > UNIT:
        least = math.lcm(width, WIDEST if tall == 1 else 1)
        fits = [n for n in range(least, max(UNIT // tall, least) + 1, least) if columns % n == 0]
        wide = fits[-1] if fits else columns
    elif scheme.block == (None, None) and columns > UNIT:
        fits = [n for n in range(WIDEST, UNIT + 1, WIDEST) if columns % n == 0]
        wide = fits[-1] if fits else columns
    if height is None and scheme.scale is not None and width is not None:
        wide = columns
    across = columns // wide
    return _Layout(columns, tall, wide, across, rows // tall * across)


def _spans_rows(scheme: Scheme) -> bool:
    """True if the scheme has scales of all rows."""
    return scheme.scale is not None and scheme.block[0] is None


def _in_place(
    report: Report, layout: _Layout, units: Sequence[int], bits: BitBudget, shape: tuple[int, int]
) -> Report:
    """The sample's report with the matrix's bits and bytes, and the place in it of the largest error."""
    at, within = divmod(report.max_error_at[0], layout.tall)
    row, column = layout.place(units[at])
    where = (row + within, column + report.max_error_at[1])
    nbytes = math.ceil(bits.total * shape[0] * shape[1] / 8 - 1e-6)
    return dataclasses.replace(report, bits=bits, nbytes=nbytes, max_error_at=where)
