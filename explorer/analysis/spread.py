"""Distribution of a tensor's values, and of its errors, in bins that two schemes share.

With a single outlier a million times the usual size, equal bins over the whole range put everything else into
one. The ``Frame`` of a tensor therefore has equal bins over about its central 99.9 %, and growing bins for
the tails; every count is exact. Bins of errors have powers of 3 as widths, so that they nest in wider ones.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from torch import Tensor

from explorer.analysis.histograms import Histogram, around, finite_range, histogram

OUTSIDE = 0.0005
"""Share of a sample beyond each end of the central range."""
SAMPLE = 1 << 17
"""Number of elements of the evenly spaced sample from which the central range is found."""
STRETCH = 2.0
"""Ratio of distances from the centre, of an extreme value and an end of the range, up to which the end is
moved to the extreme."""
BINS, TAIL_BINS = 256, 24
_RUN = 1 << 21
"""Number of elements of a run of rows; temporary tensors take a fourth of its size."""
ERROR_BINS = 255
REACH = 12.0
"""Extent of the bins of errors in multiples of the mean |error|, if the largest error is more than
``STRETCH`` times farther out."""
LEAST_POWER = -100
"""Power of 3 of the only bin's width if there are no errors: narrower than any bin of float32 errors."""


@dataclass(frozen=True)
class Frame:
    """The bins of a tensor: its central range ``low`` … ``high``, and its extremes ``least``, ``largest``."""

    low: float
    high: float
    least: float
    largest: float

    @property
    def whole(self) -> bool:
        """True if no value lies outside the central range."""
        return self.least >= self.low and self.largest <= self.high

    @property
    def below(self) -> np.ndarray:
        """Edges of the lower tail's bins from ``least`` to ``low``; one edge if there is no such tail."""
        return self._tail(self.low, self.least)[::-1]

    @property
    def above(self) -> np.ndarray:
        """Edges of the upper tail's bins from ``high`` to ``largest``; one edge if there is no such tail."""
        return self._tail(self.high, self.largest)

    def _tail(self, start: float, end: float) -> np.ndarray:
        """Bins whose distance from the centre grows by one factor; one edge if ``end`` is not farther."""
        centre = (self.low + self.high) / 2
        if abs(end - centre) <= abs(start - centre):
            return np.array([start])
        edges = centre + np.geomspace(start - centre, end - centre, TAIL_BINS + 1)
        edges[[0, -1]] = start, end
        return edges


@dataclass(frozen=True, eq=False)
class Spread:
    """Counts of every finite value in the central range and in the tails, which have no bins if they are
    empty. Values beyond the extremes of the frame count in a tail's last bin."""

    middle: Histogram
    below: Histogram
    above: Histogram

    @property
    def total(self) -> int:
        return max(sum(int(part.counts.sum()) for part in (self.middle, self.below, self.above)), 1)

    def share(self, part: Histogram) -> np.ndarray:
        """float64: the share of all values in each bin of one of the three parts."""
        return part.counts / self.total

    def __add__(self, other: Spread) -> Spread:
        """Add the counts of other values in the same bins."""
        return Spread(self.middle + other.middle, self.below + other.below, self.above + other.above)


@dataclass(frozen=True, eq=False)
class Own:
    """Counts of a matrix itself, whatever the scheme: its histogram in ``BINS`` bins over its finite range,
    its frame, and its spread in the frame's bins."""

    histogram: Histogram
    frame: Frame
    spread: Spread

    def __add__(self, other: Own) -> Own:
        """Add another part of the matrix."""
        return Own(self.histogram + other.histogram, self.frame, self.spread + other.spread)


def own_values(x: Tensor) -> Own:
    """Count the float32 matrix ``x`` [rows, cols], a run of rows at a time."""
    low, high = finite_range(x)
    frame, rows = frame_of(x), max(1, _RUN // max(x.shape[1], 1))
    return reduce(add, (own_part(part, low, high, frame) for part in x.split(rows)))


def own_part(part: Tensor, low: float, high: float, frame: Frame) -> Own:
    """Count some rows of a matrix with the finite range [low, high] and the given frame."""
    seen = histogram(part, low, high, BINS)
    return Own(seen, frame, spread(part, frame, seen if frame.whole else None))


def frame_of(x: Tensor) -> Frame:
    """Find the frame of the finite values of a float32 tensor of any shape; [0, 1] if there are none."""
    least, largest = finite_range(x)
    # Even distances share no factor with the rows' length: else only a few columns would be seen.
    flat = x.reshape(-1)
    step = max(1, flat.numel() // SAMPLE)
    while step > 1 and math.gcd(step, x.shape[-1]) > 1:
        step += 1
    sample = flat[::step]
    sample = sample[sample.isfinite()]
    if not len(sample) or least == largest:
        low, high = around(least, largest)
        return Frame(low, high, least, largest)
    outside = max(1, int(OUTSIDE * len(sample)))
    low, high = (float(sample.kthvalue(k).values) for k in (outside, len(sample) + 1 - outside))
    centre, reach = (low + high) / 2, (high - low) / 2
    if largest - centre <= STRETCH * reach or reach == 0:
        high = largest
    if centre - least <= STRETCH * reach or reach == 0:
        low = least
    return Frame(low, high, least, largest)


def spread(x: Tensor, frame: Frame, known: Histogram | None = None) -> Spread:
    """Count float32 ``x``, of any shape, in the bins of ``frame``.

    ``known``: its ``histogram`` in ``BINS`` bins over the central range, if it exists already.
    """
    middle = known or histogram(x, frame.low, frame.high, BINS)
    below, above = _tail(x, frame.below, x < frame.low), _tail(x, frame.above, x > frame.high)
    counts = middle.counts.copy()
    counts[0] -= below.counts.sum()
    counts[-1] -= above.counts.sum()
    return Spread(Histogram(middle.edges, counts), below, above)


def _tail(x: Tensor, edges: np.ndarray, outside: Tensor) -> Histogram:
    """Count the values of ``x`` that are ``outside`` in the bins of one tail."""
    if len(edges) < 2:
        return Histogram(edges, np.zeros(0, np.int64))
    values = x[outside].double().cpu().numpy()
    return Histogram(edges, np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0])


def error_spread(restored: Tensor, x: Tensor, mean: float, largest: float) -> Spread:
    """Count signed errors restored - x in at most ``ERROR_BINS`` bins, one of them centred on zero, and one
    bin per tail. ``mean`` and ``largest`` are those of |restored - x|."""
    reach = REACH * mean if largest > STRETCH * REACH * mean else largest
    power = LEAST_POWER
    if 0 < reach < math.inf:
        power = max(math.ceil(math.log(2 * reach / ERROR_BINS, 3)), LEAST_POWER)
    width = 3.0**power
    half = math.ceil(reach / width - 0.5) if power > LEAST_POWER else 0
    end = (half + 0.5) * width
    counts = histogram(restored, -end, end, 2 * half + 1, minus=x).counts.copy()
    tails = (0, 0)
    if largest > end:
        errors = restored - x
        tails = int((errors < -end).sum()), int((errors > end).sum())
    counts[[0, -1]] -= tails
    return Spread(
        Histogram(np.arange(-half, half + 2) * width - width / 2, counts),
        Histogram(np.array([-largest, -end]), np.array(tails[:1])),
        Histogram(np.array([end, largest]), np.array(tails[1:])),
    )


def on_same_bins(errors: Sequence[Spread]) -> list[Histogram]:
    """Merge the errors between the tails into the bins of the widest, out to the farthest end."""
    powers = [round(math.log(e.middle.edges[1] - e.middle.edges[0], 3)) for e in errors]
    widest = max(powers)
    merged = [_merged(e.middle.counts, widest - power) for e, power in zip(errors, powers, strict=True)]
    longest = max(map(len, merged))
    edges = (np.arange(longest + 1) - longest / 2) * 3.0**widest
    return [Histogram(edges, np.pad(counts, (longest - len(counts)) // 2)) for counts in merged]


def _merged(counts: np.ndarray, times: int) -> np.ndarray:
    """Merge an odd number of bins by threes, ``times`` times; the middle bin stays in the middle."""
    for _ in range(times):
        half = len(counts) // 2
        counts = np.pad(counts, (1 - half) % 3).reshape(-1, 3).sum(1) if half else counts
    return counts
