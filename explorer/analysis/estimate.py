"""Estimate the error of a large matrix under a scheme on a sample of it, with confidence intervals.

A sample consists of units: bands of rows that the scheme's blocks fill, cut into pieces of whole blocks where
rows are long. One pass over the matrix (``sizes_of``) finds the energy and the largest magnitude of every
unit. Units are drawn with a fixed seed, with a probability that grows with their size; the largest are always
drawn, so that a few large rows are never missed. Their number does not depend on the size of the matrix. The
pass also gives scales of a whole tensor or column, if they follow from the smallest and the largest value.

Units are drawn by Pareto sampling: B. Rosén, On sampling with probability proportional to size, Journal of
Statistical Planning and Inference 62 (1997) 159-191. If all units have the same size, it is simple random
sampling. ``intervals`` has the variance.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.analysis.intervals import EVEN, carrying, factor
from explorer.analysis.report import Report, Sums, cosine_of, measure, sqnr_db
from explorer.analysis.schemes import searches, spans_rows
from explorer.core.quantize import quantize
from explorer.progress import checkpoint
from explorer.schemes import BitBudget, Scheme
from explorer.sources.base import Pieces

SEED = 20_011
ELEMENTS, SEARCHED = 1 << 20, 1 << 18
"""Number of elements of a sample; the second for schemes that search for a range, which takes thirty times as
long."""
UNIT, SMALL_UNIT = 1 << 13, 1 << 9
"""Largest number of elements of a unit, unless a band of whole blocks has more; the second for ``overview``,
whose samples are small."""
OVERVIEW, OVERVIEW_SEARCHED = 1 << 17, 1 << 16
"""Number of elements of a sample of ``overview``: all named schemes take about half a second on two cores."""
FEW = 48
"""Smallest number of units of a sample of ``overview``, if the matrix has twice as many."""
MOST_UNITS = 1 << 14
"""Largest number of units of a sample: each unit is a separate read."""
RUN = 1 << 20
"""Number of elements that ``sizes_of`` reads at once."""
FEWEST = 24
"""Smallest number of units of a sample: fewer do not show how far rows differ."""
WORTH, WORTH_SEARCHED = 1 << 23, 1 << 20
"""Number of elements that a CPU analyses in about half a second; the second for schemes that search. Smaller
matrices need no estimate."""
_SMALL = 1e-15
WIDEST = 256
"""Number of elements of a row that share an upper level of scales (GGUF's super-blocks)."""


@dataclass(frozen=True, eq=False)
class Estimate:
    """Report of a sample, with estimates for the whole matrix and their intervals.

    report     SQNR, relative error, MSE, RMSE, MAE, cosine and ``zeroed`` are estimates; ``bits`` and
               ``nbytes`` are exact; ``max_error``, at its place in the matrix, and ``codes_used`` are lower
               bounds; other fields describe the sample, which has more large rows than the matrix
    factors    field of the report -> factor: the ends of the interval of ``CONFIDENCE`` are the value times
               and divided by it
    half_db    half the interval of ``sqnr_db``
    own_range  True if scales over all rows depend on more than the smallest and the largest value. They are
               the sample's own, so that the error of the whole matrix may be larger by any amount
    uneven     True if few of the randomly drawn units hold most of the error; its accuracy is unknown then
    share      share (0 … 1) of the elements that are in the sample
    units      number of units in the sample

    ``factors`` is empty and ``half_db`` None under ``own_range`` and ``uneven``.
    """

    report: Report
    factors: dict[str, float]
    half_db: float | None
    own_range: bool
    share: float
    units: int
    uneven: bool = False

    def interval(self, field: str) -> tuple[float, float] | None:
        """Ends of the interval of a field of the report; None for fields without an interval."""
        value = getattr(self.report, field)
        if field == "sqnr_db":
            return None if self.half_db is None else (value - self.half_db, value + self.half_db)
        factor = self.factors.get(field)
        return None if factor is None else (value / factor, value * factor)


@dataclass(frozen=True)
class Units:
    """Division of a matrix [rows, columns] into units of ``tall`` rows × ``wide`` columns; the last band may
    have fewer rows. ``by_column``: the scheme has scales of whole columns."""

    rows: int
    columns: int
    tall: int
    wide: int
    by_column: bool = False

    @property
    def across(self) -> int:
        """Number of units side by side."""
        return self.columns // self.wide

    @property
    def count(self) -> int:
        return math.ceil(self.rows / self.tall) * self.across

    def place(self, unit: int) -> tuple[int, int]:
        """Row and column of the first element of a unit."""
        band, part = divmod(unit, self.across)
        return band * self.tall, part * self.wide

    def starts(self, units: Sequence[int]) -> tuple[list[int], Tensor]:
        """Row-major index of the first element of each row of ``units``, and bool [units, tall]: rows inside
        the matrix. Rows beyond its end have the index of the unit's first row."""
        first = torch.tensor([self.place(unit) for unit in units])
        rows = first[:, :1] + torch.arange(self.tall)
        inside = rows < self.rows
        places = torch.where(inside, rows, first[:, :1]) * self.columns + first[:, 1:]
        return places.flatten().tolist(), inside

    def drawn(self, elements: int) -> int:
        """Number of units in a sample of about ``elements``; 0 if they are too few."""
        count = min(elements // (self.tall * self.wide), self.count, MOST_UNITS)
        return 0 if count < FEWEST or 2 * count > self.count else count


@dataclass(frozen=True, eq=False)
class Sizes:
    """Size of each unit of a matrix: float64 [units] ``energy`` Σx² and ``peak`` max |x|, in the order of
    ``Units.place``. ``low`` and ``high``: float32 [1], the smallest and the largest value of the matrix, or
    [columns], of each column if the units are ``by_column``."""

    energy: Tensor
    peak: Tensor
    low: Tensor
    high: Tensor


def of_matrix(x: Tensor) -> Pieces:
    """Yield pieces of the contiguous float32 matrix ``x`` in memory; a single piece is a view."""
    flat = x.reshape(-1)

    def pieces(starts: Sequence[int], length: int) -> Tensor:
        found = [flat[start : start + length] for start in starts]
        return found[0][None] if len(found) == 1 else torch.stack(found)

    return pieces


def worth_estimating(shape: tuple[int, int], scheme: Scheme) -> bool:
    """Return whether a CPU takes longer than about a second for the matrix, and a sample of it is
    possible."""
    slow = searches(scheme)
    if shape[0] * shape[1] <= (WORTH_SEARCHED if slow else WORTH):
        return False
    units = units_of(shape, scheme)
    return units is not None and units.drawn(SEARCHED if slow else ELEMENTS) > 0


def sizes_of(pieces: Pieces, units: Units) -> Sizes:
    """Find the sizes of all units in one pass over the matrix. ``ValueError`` if a value is not finite."""
    columns = units.wide if units.tall == 1 else units.columns
    rows = units.rows * units.columns // columns
    step = max(RUN // (units.tall * columns), 1) * units.tall
    energies, peaks, low, high = [], [], torch.full((1,), math.inf), torch.full((1,), -math.inf)
    for first in range(0, rows, step):
        checkpoint()
        count = min(step, rows - first)
        x = pieces([first * columns], count * columns).reshape(-1, units.wide)
        values = x.numpy()  # its minimum and maximum of rows take a tenth of torch's time
        least, greatest = torch.from_numpy(values.min(1)), torch.from_numpy(values.max(1))
        norms = torch.linalg.vector_norm(x, dim=1).double()
        if not bool(((norms > _SMALL) & norms.isfinite()).all()):  # float32 cannot represent the squares
            norms = torch.linalg.vector_norm(x, dim=1, dtype=torch.float64)
        bands = math.ceil(count / units.tall)
        sizes = torch.zeros(2, bands * units.tall, columns // units.wide, dtype=torch.float64)
        sizes[0, :count] = norms.square().view(count, -1)
        sizes[1, :count] = torch.maximum(-least, greatest).view(count, -1)
        banded = sizes.view(2, bands, units.tall, -1)
        energies.append(banded[0].sum(1).flatten())
        peaks.append(banded[1].amax(1).flatten())
        ends = (x.amin(0), x.amax(0)) if units.by_column else (least.amin()[None], greatest.amax()[None])
        low, high = torch.minimum(low, ends[0]), torch.maximum(high, ends[1])
    if not bool(low.isfinite().all() and high.isfinite().all()):
        raise ValueError("the tensor has values that are NaN or Inf")
    return Sizes(torch.cat(energies), torch.cat(peaks), low, high)


@dataclass(frozen=True, eq=False)
class DrawnUnits:
    """Units drawn from a matrix: ``values`` float32 [units · tall, wide]; ``chances`` float64 [units], of
    each to be drawn; ``inside`` bool [units, tall], rows inside the matrix."""

    units: Units
    sizes: Sizes
    drawn: list[int]
    chances: Tensor
    values: Tensor
    inside: Tensor


def drawn_sample(pieces: Pieces, units: Units, sizes: Sizes, count: int, seed: int = SEED) -> DrawnUnits:
    """Draw ``count`` units and read them."""
    drawn, chances = _drawn(sizes, count, seed)
    starts, inside = units.starts(drawn)
    return DrawnUnits(units, sizes, drawn, chances, pieces(starts, units.wide), inside)


def estimate(
    pieces: Pieces,
    shape: tuple[int, int],
    scheme: Scheme,
    elements: int | None = None,
    seed: int = SEED,
    find_sizes: Callable[[Pieces, Units], Sizes] = sizes_of,
) -> Estimate | None:
    """Estimate the error of a matrix of ``shape`` [rows, cols] under ``scheme`` on about ``elements`` of it.
    ``find_sizes`` is ``sizes_of`` for callers that keep its results: most schemes have the same units.

    None if the matrix has too few units for a sample, and if the sample has no error or no signal, which does
    not show that the whole has none. ``ValueError`` if values are not finite.
    """
    units = units_of(shape, scheme)
    count = units.drawn(elements or (SEARCHED if searches(scheme) else ELEMENTS)) if units else 0
    if units is None or not count:
        return None
    return _estimated(drawn_sample(pieces, units, find_sizes(pieces, units), count, seed), shape, scheme)


def overview(
    pieces: Pieces,
    shape: tuple[int, int],
    schemes: Iterable[Scheme],
    find_sizes: Callable[[Pieces, Units], Sizes] = sizes_of,
) -> Iterator[tuple[Scheme, Estimate | None]]:
    """Estimate the error under each scheme on a small sample, those that search last, as ``estimate`` does.
    Schemes with the same units share a sample, which is read once. Reports have no histogram: ``kl`` and
    ``clipped`` are NaN, counts of codes None."""
    samples: dict[tuple[Units, int], DrawnUnits] = {}
    for scheme in sorted(schemes, key=searches):
        checkpoint()
        units = units_of(shape, scheme, SMALL_UNIT)
        elements = OVERVIEW_SEARCHED if searches(scheme) else OVERVIEW
        count = 0 if units is None else units.drawn(max(elements, FEW * units.tall * units.wide))
        if units is None or not count:
            yield scheme, None
            continue
        key = (units, count)
        if key not in samples:
            samples[key] = drawn_sample(pieces, units, find_sizes(pieces, units), count)
        yield scheme, _estimated(samples[key], shape, scheme, brief=True)


def _estimated(
    sample: DrawnUnits, shape: tuple[int, int], scheme: Scheme, brief: bool = False
) -> Estimate | None:
    """Quantize the sample and extend its error to the matrix; ``brief``: without histograms."""
    units, sizes, x, chances = sample.units, sample.sizes, sample.values, sample.chances
    q = quantize(torch.cat((x, _ends(sizes, scheme, units))), scheme)
    q = q.rows(0, len(x)) if q.shape[0] > len(x) else q
    restored = q.dequantize()
    sums = _sums(x.double(), restored.double(), sample.inside)
    whole = {name: float((each / chances).sum()) for name, each in sums.items()}
    if not whole["noise"] or not whole["signal"]:
        return None
    total, energy = shape[0] * shape[1], float(sizes.energy.sum())
    beside = "count" if spans_rows(scheme) else "signal"  # the error of a unit is proportional to it
    noise = whole["noise"] / whole[beside] * (energy if beside == "signal" else total)
    report = _brief(x, restored) if brief else measure(x, q, restored).report
    bits = scheme.bits_per_element(shape)
    at, within = divmod(report.max_error_at[0], units.tall)
    row, column = units.place(sample.drawn[at])
    report = dataclasses.replace(
        report,
        sqnr_db=sqnr_db(energy, noise),
        mse=noise / total,
        rmse=math.sqrt(noise / total),
        mae=whole["absolute"] / whole["count"],
        relative_error=math.sqrt(noise / energy),
        cosine=cosine_of(Sums(signal=whole["signal"], output=whole["output"], inner=whole["inner"])),
        zeroed=whole["zeroed"] / whole["count"],
        bits=bits,
        nbytes=math.ceil(bits.total * total / 8 - 1e-6),
        max_error_at=(row + within, column + report.max_error_at[1]),
    )
    share = float(sums["count"].sum()) / total
    own_range = spans_rows(scheme) and not _by_ends(scheme)
    uneven = not own_range and carrying(sums["noise"], sums["signal"], chances) < EVEN
    if own_range or uneven:
        return Estimate(report, {}, None, own_range, share, len(chances), uneven)
    squared = factor(sums["noise"], sums[beside], chances)
    root, of_mae = math.sqrt(squared), factor(sums["absolute"], sums["count"], chances)
    factors = {"relative_error": root, "mse": squared, "rmse": root, "mae": of_mae}
    return Estimate(report, factors, 10 * math.log10(squared), False, share, len(chances))


def _brief(x: Tensor, restored: Tensor) -> Report:
    """Report of the largest error alone."""
    errors = (restored - x).abs()
    at = divmod(int(errors.argmax()), x.shape[1])
    nan, none = math.nan, BitBudget(0, 0, 0, 0, 0)
    return Report(
        nan, nan, nan, nan, nan, nan, nan, float(errors[at]), at, nan, nan, None, None, None, none, 0
    )


def _sums(x: Tensor, restored: Tensor, inside: Tensor) -> dict[str, Tensor]:
    """float64 [units] each: sums over units, of the rows that are ``inside`` [units, tall], under the names
    of ``report.Sums``, and the ``count`` of elements."""
    errors = restored - x
    terms = {
        "signal": x.square(),
        "noise": errors.square(),
        "output": restored.square(),
        "inner": x * restored,
        "absolute": errors.abs(),
        "zeroed": (restored == 0).logical_and_(x != 0),
    }
    sums = {name: (term.sum(1).view(inside.shape) * inside).sum(1) for name, term in terms.items()}
    return sums | {"count": inside.sum(1).double() * x.shape[1]}


def _drawn(sizes: Sizes, count: int, seed: int) -> tuple[list[int], Tensor]:
    """Draw ``count`` units: their numbers, in order, and their probabilities, float64 [units]."""
    chances = _chances(sizes, count)
    random = torch.rand(len(chances), generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    ranks = random / (1 - random) * (1 - chances) / chances
    units = ranks.topk(count, largest=False).indices.sort().values
    return units.tolist(), chances[units]


def _chances(sizes: Sizes, count: int) -> Tensor:
    """Probability of each unit to be one of ``count``, float64 [units].

    A third of the sample is drawn evenly, a third by the energy of units, and a third by the squares of their
    peaks, which scales follow.
    """
    even = torch.full_like(sizes.energy, 1 / len(sizes.energy))
    shares = [
        each / each.sum() if float(each.sum()) else even for each in (sizes.energy, sizes.peak.square())
    ]
    wanted = torch.stack([even, *shares]).mean(0)
    certain = torch.zeros(len(wanted), dtype=torch.bool)
    while True:
        rest = wanted.masked_fill(certain, 0)
        chances = rest * ((count - int(certain.sum())) / rest.sum())
        more = chances >= 1
        if not bool(more.any()):
            return chances.masked_fill(certain, 1)
        certain |= more


def _ends(sizes: Sizes, scheme: Scheme, units: Units) -> Tensor:
    """Rows that extend the sample's range to that of the whole matrix, or of its columns, if the scheme has a
    scale that follows from it: float32 [0 or 2 · tall, wide]."""
    scale = scheme.scale
    if scale is None or scheme.flat or not (scale.per_tensor or (spans_rows(scheme) and _by_ends(scheme))):
        return torch.empty(0, units.wide)
    ends = torch.stack((sizes.low, sizes.high)).expand(2, units.wide)
    return ends.repeat_interleave(units.tall, 0)


def units_of(shape: tuple[int, int], scheme: Scheme, most: int = UNIT) -> Units | None:
    """Divide a matrix into units of whole blocks of the scheme. None if its blocks end within rows, or if a
    row is too long for one unit and cannot be cut into whole pieces. ``most``: elements of a unit, if a band
    of whole blocks has no more."""
    rows, columns = shape
    height, width = scheme.block if scheme.scale is not None else (1, 1)
    if scheme.flat and columns % (width or columns):
        return None
    tall = height or 1
    by_column = height is None and width is not None
    least = 0
    if width is not None and scheme.block != (None, 1) and tall * columns > most:
        least = math.lcm(width, WIDEST if tall == 1 else 1)
    elif scheme.block == (None, None) and columns > most:
        least = WIDEST
    fits = [n for n in range(least, max(most // tall, least) + 1, least) if columns % n == 0] if least else []
    return Units(rows, columns, tall, fits[-1] if fits and not by_column else columns, by_column)


def _by_ends(scheme: Scheme) -> bool:
    """True if the scales of a scheme follow from the smallest and the largest value of each block."""
    return scheme.calibrator.of_ends and not scheme.least_squares_scale
