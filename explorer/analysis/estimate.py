"""The error of a large matrix under a scheme, estimated on a sample of it, with intervals.

A sample is of units: bands of rows that the scheme's blocks fill, cut into pieces of whole blocks where rows
are long. One pass over the matrix (``sizes_of``) finds the energy and the largest magnitude of every unit.
Units are drawn by a fixed seed, the more probably the larger they are, and the largest with certainty: few
large rows are always in the sample. Their number does not depend on the size of the matrix. The pass gives
scales of a whole tensor or column too, where they follow from the least and the greatest value.

Units are drawn by Pareto sampling: B. Rosén, On sampling with probability proportional to size, Journal of
Statistical Planning and Inference 62 (1997) 159-191, which has the variance too. SQNR is a ratio of two sums,
and its variance is that of a ratio estimator, by linearization: W. G. Cochran, Sampling Techniques, 3rd ed.
(1977), sections 2.11, 6.3 and 6.4. Where all units are equally large, both are simple random sampling with
the finite population correction. Intervals are symmetric in the logarithm (the delta method), by Student's t.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from scipy.special import stdtrit
from torch import Tensor

from explorer.analysis.report import Report, measure
from explorer.analysis.schemes import searches
from explorer.core.quantize import quantize
from explorer.progress import checkpoint
from explorer.schemes import BitBudget, Scheme
from explorer.sources.base import Pieces

SEED = 20_011
CONFIDENCE = 0.95
"""The share of samples whose interval holds the value of the whole matrix."""
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
"""Units that carry the error, at least: (Σs)² / Σs² of their sums s, those with certainty left out of the
second sum. Where fewer hold most of it, intervals by the spread of units hold the value far less often than
stated."""
RUN = 1 << 20
"""Elements that the pass for sizes reads at once."""
FEWEST = 24
"""Units of a sample: of fewer there is no estimate, since a few rows do not say how far rows differ."""
WORTH, WORTH_SEARCHED = 1 << 23, 1 << 20
"""Elements of a matrix that is analysed on a CPU in about half a second; the second by schemes that search.
Smaller ones need no estimate."""
_SMALL = 1e-15
WIDEST = 256
"""Elements of a row that blocks under an upper level (GGUF's super-blocks) share."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """The report of a sample, with the sums of the whole matrix as estimates, and their intervals.

    In ``report`` SQNR, relative error, MSE, RMSE, MAE, cosine and ``zeroed`` are estimates; ``bits`` and
    ``nbytes`` are exact; ``max_error``, at its place in the matrix, and ``codes_used`` are lower bounds; all
    else is of the sample, which has more of the large rows than the matrix.
    ``factors``: by the field of the report, what its value is multiplied and divided by at the ends of the
    interval of ``CONFIDENCE``; ``half_db``: half the interval of ``sqnr_db``. They are empty and None where
    ``own_range`` is True: the scheme has scales of all rows that depend on more than the least and the
    greatest value, which here are the sample's own, so that the error of the whole matrix may be larger by
    any amount; and where ``uneven`` is True: few of the units that were drawn at random hold most of the
    error, so that the sample does not say how far it may be off.
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
class UnitLayout:
    """A matrix of so many ``rows`` and ``columns`` cut into units of ``tall`` rows × ``wide`` columns.
    ``by_column``: the scheme has scales of whole columns."""

    rows: int
    columns: int
    tall: int
    wide: int
    by_column: bool = False

    @property
    def across(self) -> int:
        """Units beside each other."""
        return self.columns // self.wide

    @property
    def units(self) -> int:
        """The last band may have fewer rows."""
        return math.ceil(self.rows / self.tall) * self.across

    def place(self, unit: int) -> tuple[int, int]:
        """Row and column of the first element of a unit."""
        band, part = divmod(unit, self.across)
        return band * self.tall, part * self.wide

    def starts(self, units: Sequence[int]) -> tuple[list[int], Tensor]:
        """The places of the rows of units in row-major order, and bool [units, tall]: those of the matrix.
        Rows beyond its end have the place of the unit's first."""
        first = torch.tensor([self.place(unit) for unit in units])
        rows = first[:, :1] + torch.arange(self.tall)
        inside = rows < self.rows
        places = torch.where(inside, rows, first[:, :1]) * self.columns + first[:, 1:]
        return places.flatten().tolist(), inside


@dataclass(frozen=True, eq=False)
class Sizes:
    """How large the units of a matrix are: float64 [units] ``energy`` Σx² and ``peak`` max |x|, in the order
    of ``UnitLayout.place``. ``low`` and ``high``: float32 [1], its least and greatest value, or those of each
    column, [columns], where the layout is ``by_column``."""

    energy: Tensor
    peak: Tensor
    low: Tensor
    high: Tensor

    @property
    def nbytes(self) -> int:
        return sum(each.nbytes for each in (self.energy, self.peak, self.low, self.high))


def of_matrix(x: Tensor) -> Pieces:
    """The pieces of the contiguous float32 matrix ``x`` in memory; a single one is a view."""
    flat = x.reshape(-1)

    def pieces(starts: Sequence[int], length: int) -> Tensor:
        found = [flat[start : start + length] for start in starts]
        return found[0][None] if len(found) == 1 else torch.stack(found)

    return pieces


def worth_estimating(shape: tuple[int, int], scheme: Scheme) -> bool:
    """True if a CPU takes longer than about a second for the matrix, and a sample of it says something."""
    slow = searches(scheme)
    if shape[0] * shape[1] <= (WORTH_SEARCHED if slow else WORTH):
        return False
    layout = layout_of(shape, scheme)
    return layout is not None and _count(layout, SEARCHED if slow else ELEMENTS) > 0


def sizes_of(pieces: Pieces, layout: UnitLayout) -> Sizes:
    """The sizes of all units, in one pass over the matrix. ``ValueError`` if a value is not finite."""
    columns = layout.wide if layout.tall == 1 else layout.columns
    rows = layout.rows * layout.columns // columns
    step = max(RUN // (layout.tall * columns), 1) * layout.tall
    energies, peaks, low, high = [], [], torch.full((1,), math.inf), torch.full((1,), -math.inf)
    for first in range(0, rows, step):
        checkpoint()
        count = min(step, rows - first)
        x = pieces([first * columns], count * columns).reshape(-1, layout.wide)
        norms, least, greatest = _sizes_of_rows(x)
        bands = math.ceil(count / layout.tall)
        sizes = torch.zeros(2, bands * layout.tall, columns // layout.wide, dtype=torch.float64)
        sizes[0, :count] = norms.square().view(count, -1)
        sizes[1, :count] = torch.maximum(-least, greatest).view(count, -1)
        banded = sizes.view(2, bands, layout.tall, -1)
        energies.append(banded[0].sum(1).flatten())
        peaks.append(banded[1].amax(1).flatten())
        ends = (x.amin(0), x.amax(0)) if layout.by_column else (least.amin()[None], greatest.amax()[None])
        low, high = torch.minimum(low, ends[0]), torch.maximum(high, ends[1])
    if not bool(low.isfinite().all() and high.isfinite().all()):
        raise ValueError("the tensor has values that are NaN or Inf")
    return Sizes(torch.cat(energies), torch.cat(peaks), low, high)


def _sizes_of_rows(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """float64 norms of the rows of ``x``, their least values, and their greatest."""
    values = x.numpy()  # whose minimum and maximum of rows take a tenth of torch's time
    least, greatest = torch.from_numpy(values.min(1)), torch.from_numpy(values.max(1))
    norms = torch.linalg.vector_norm(x, dim=1).double()
    if not bool(((norms > _SMALL) & norms.isfinite()).all()):  # squares that float32 does not hold
        norms = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
    return norms, least, greatest


def estimate(
    pieces: Pieces,
    shape: tuple[int, int],
    scheme: Scheme,
    elements: int | None = None,
    seed: int = SEED,
    sizes: Sizes | None = None,
) -> Estimate | None:
    """Estimate the error of a matrix of ``shape`` [rows, cols] under ``scheme`` on about ``elements`` of it.
    ``sizes`` are those of ``layout_of`` where the caller has them; otherwise the matrix is read for them.

    None where the matrix has too few units for a sample, and where the sample has no error or no signal: that
    says nothing of the whole. ``ValueError`` if values are not finite.
    """
    layout = layout_of(shape, scheme)
    count = _count(layout, elements or (SEARCHED if searches(scheme) else ELEMENTS)) if layout else 0
    if layout is None or not count:
        return None
    sizes = sizes_of(pieces, layout) if sizes is None else sizes
    units, chances = _drawn(sizes, count, seed)
    starts, inside = layout.starts(units)
    x = pieces(starts, layout.wide)
    q = quantize(torch.cat((x, _ends(sizes, scheme, layout))), scheme)
    q = q.rows(0, len(x)) if q.shape[0] > len(x) else q
    restored = q.dequantize()
    report = _in_place(measure(x, q, restored).report, layout, units, scheme.bits_per_element(shape), shape)
    sums = _Sums.of(x.double(), restored.double(), inside)
    return _estimated(report, sums, chances, sizes, scheme, shape)


@dataclass(frozen=True, eq=False)
class _Sums:
    """float64 [units] each, as ``report.Sums`` names them, and ``count``, the elements of each unit."""

    signal: Tensor
    noise: Tensor
    output: Tensor
    inner: Tensor
    absolute: Tensor
    zeroed: Tensor
    count: Tensor

    @classmethod
    def of(cls, x: Tensor, restored: Tensor, inside: Tensor) -> _Sums:
        """Sums over the units of ``x`` and ``restored``, of the rows that are ``inside`` [units, tall]."""

        def each(values: Tensor) -> Tensor:
            return (values.sum(1).view(inside.shape) * inside).sum(1)

        errors = restored - x
        return cls(
            signal=each(x.square()),
            noise=each(errors.square()),
            output=each(restored.square()),
            inner=each(x * restored),
            absolute=each(errors.abs()),
            zeroed=each((restored == 0).logical_and_(x != 0)),
            count=inside.sum(1).double() * x.shape[1],
        )


def _estimated(
    report: Report, sums: _Sums, chances: Tensor, sizes: Sizes, scheme: Scheme, shape: tuple[int, int]
) -> Estimate | None:
    """The estimate by ``sums`` of units that were drawn with ``chances``; ``report`` is the sample's."""
    whole = {
        field.name: float((getattr(sums, field.name) / chances).sum()) for field in dataclasses.fields(sums)
    }
    if not whole["noise"] or not whole["signal"]:
        return None
    beside = "count" if _spans_rows(scheme) else "signal"  # what the error of a unit goes with
    energy, elements = float(sizes.energy.sum()), shape[0] * shape[1]
    noise = whole["noise"] / whole[beside] * (energy if beside == "signal" else elements)
    ratio, mse = noise / energy, noise / elements
    report = dataclasses.replace(
        report,
        sqnr_db=-10 * math.log10(ratio),
        mse=mse,
        rmse=math.sqrt(mse),
        mae=whole["absolute"] / whole["count"],
        relative_error=math.sqrt(ratio),
        cosine=whole["inner"] / math.sqrt(whole["signal"]) / math.sqrt(whole["output"])
        if whole["output"]
        else 0.0,
        zeroed=whole["zeroed"] / whole["count"],
    )
    share, units = float(sums.count.sum()) / elements, len(chances)
    own_range = _spans_rows(scheme) and not _by_ends(scheme)
    uneven = _carrying(sums, chances) < EVEN
    if own_range or uneven:
        return Estimate(report, {}, None, own_range, share, units, uneven and not own_range)
    squared = _factor(sums.noise, getattr(sums, beside), chances)
    factors = {
        "relative_error": math.sqrt(squared),
        "mse": squared,
        "rmse": math.sqrt(squared),
        "mae": _factor(sums.absolute, sums.count, chances),
    }
    return Estimate(report, factors, 10 * math.log10(squared), False, share, units)


def _carrying(sums: _Sums, chances: Tensor) -> float:
    """How many units of equal errors would be as uneven as these, which were drawn with ``chances``."""
    weighted = sums.noise / chances
    at_random = float((weighted.square() * (1 - chances)).sum())
    if at_random:
        return float(weighted.sum()) ** 2 / at_random
    silent = bool((sums.signal[chances < 1] == 0).all())
    return math.inf if silent else 0.0  # values without an error in all of them may be luck


def _factor(numbers: Tensor, weights: Tensor, chances: Tensor) -> float:
    """What Σnumbers / Σweights is multiplied and divided by at the ends of its interval; ``chances``: of each
    unit to be drawn."""
    at_random = int((chances < 1).sum())
    if at_random < 2:
        return 1.0 if not at_random else math.inf
    total = (numbers / chances).sum()
    residues = (numbers - total / (weights / chances).sum() * weights) / chances
    rest = 1 - chances
    centred = residues - (rest * residues).sum() / rest.sum()
    deviation = float((rest * centred.square()).sum().mul(at_random / (at_random - 1)).sqrt() / total)
    return math.exp(float(stdtrit(at_random - 1, (1 + _QUANTILE) / 2)) * deviation)


def _count(layout: UnitLayout, elements: int) -> int:
    """How many units a sample has; 0 where there are too few."""
    count = min(elements // (layout.tall * layout.wide), layout.units, MOST_UNITS)
    return 0 if count < FEWEST or 2 * count > layout.units else count


def _drawn(sizes: Sizes, count: int, seed: int) -> tuple[list[int], Tensor]:
    """The units that are drawn, in order, and float64 [units] the chances that they had."""
    chances = _chances(sizes, count)
    random = torch.rand(len(chances), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ranks = random / (1 - random) * (1 - chances) / chances
    units = ranks.topk(count, largest=False).indices.sort().values
    return units.tolist(), chances[units]


def _chances(sizes: Sizes, count: int) -> Tensor:
    """float64 [units]: the chance of each to be one of ``count``. A third of the sample is drawn evenly, a
    third by the energy of units, and a third by the squares of their peaks, which steps of scales follow."""
    even = torch.full_like(sizes.energy, 1 / len(sizes.energy))
    shares = [
        each / each.sum() if float(each.sum()) else even for each in (sizes.energy, sizes.peak.square())
    ]
    shares = [even, *shares]
    wanted = torch.stack(shares).mean(0)
    certain = torch.zeros(len(wanted), dtype=torch.bool)
    while True:
        rest = wanted.masked_fill(certain, 0)
        chances = rest * ((count - int(certain.sum())) / rest.sum())
        more = chances >= 1
        if not bool(more.any()):
            return chances.masked_fill(certain, 1)
        certain |= more


def _ends(sizes: Sizes, scheme: Scheme, layout: UnitLayout) -> Tensor:
    """float32 [0 or 2 · tall, wide]: rows that give the sample the range of the whole matrix, or of its
    columns, where the scheme has a scale that follows from it."""
    scale = scheme.scale
    if scale is None or scheme.flat or not (scale.per_tensor or (_spans_rows(scheme) and _by_ends(scheme))):
        return torch.empty(0, layout.wide)
    ends = torch.stack((sizes.low, sizes.high)).expand(2, layout.wide)
    return ends.repeat_interleave(layout.tall, 0)


def layout_of(shape: tuple[int, int], scheme: Scheme) -> UnitLayout | None:
    """The units of a matrix: whole blocks of the scheme. None where its blocks end within rows, or a row has
    no whole number of pieces and is too long to be one."""
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
    return UnitLayout(rows, columns, tall, wide, height is None and width is not None)


def _spans_rows(scheme: Scheme) -> bool:
    """True if the scheme has scales of all rows."""
    return scheme.scale is not None and scheme.block[0] is None


def _by_ends(scheme: Scheme) -> bool:
    """True if the scales of a scheme follow from the least and the greatest value of each block."""
    return scheme.calibrator.of_ends and not scheme.least_squares_scale


def _in_place(
    report: Report, layout: UnitLayout, units: Sequence[int], bits: BitBudget, shape: tuple[int, int]
) -> Report:
    """The sample's report with the matrix's bits and bytes, and the place in it of the largest error."""
    at, within = divmod(report.max_error_at[0], layout.tall)
    row, column = layout.place(units[at])
    where = (row + within, column + report.max_error_at[1])
    nbytes = math.ceil(bits.total * shape[0] * shape[1] / 8 - 1e-6)
    return dataclasses.replace(report, bits=bits, nbytes=nbytes, max_error_at=where)
