"""Distribution of a tensor's values: equal bins over its central range, and growing bins for the tails.

With a single outlier a million times the usual size, equal bins over the whole range put everything else
into one. Here the ``Frame`` of a tensor is the range of about its central 99.9 %, and every count is exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add

import numpy as np
from torch import Tensor

from explorer.analysis.histograms import Histogram, around, finite_range, histogram

OUTSIDE = 0.0005
"""The share of a sample that lies beyond each end of the central range."""
SAMPLE = 1 << 17
"""Elements of the sample, at even distances, that the central range is found from."""
STRETCH = 2.0
"""An end is not cut off if its extreme value is at most this many times as far from the centre."""
BINS, TAIL_BINS = 256, 24


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
    """Counts of every finite value: in the central range, and in the tails (without bins where there is
    none). What lies beyond the extremes of the frame counts in a tail's last bin."""

    middle: Histogram
    below: Histogram
    above: Histogram

    @property
    def total(self) -> int:
        return max(sum(int(part.counts.sum()) for part in (self.middle, self.below, self.above)), 1)

    def share(self, part: Histogram) -> np.ndarray:
        """float64: the share of all values that each bin of one of the three parts holds."""
        return part.counts / self.total

    def __add__(self, other: Spread) -> Spread:
        """Both tensors' values in the same bins."""
        pairs = zip(vars(self).values(), vars(other).values(), strict=True)
        return Spread(*(Histogram(a.edges, a.counts + b.counts) for a, b in pairs))


@dataclass(frozen=True, eq=False)
class Own:
    """What is counted of a matrix alone, whatever scheme it is quantized by: its histogram in ``BINS`` bins
    over its finite range, its frame, and its spread in that."""

    histogram: Histogram
    frame: Frame
    spread: Spread

    @property
    def range(self) -> tuple[float, float]:
        """The ends of the histogram."""
        return float(self.histogram.edges[0]), float(self.histogram.edges[-1])

    def __add__(self, other: Own) -> Own:
        """Both parts of a matrix."""
        counts = self.histogram.counts + other.histogram.counts
        return Own(Histogram(self.histogram.edges, counts), self.frame, self.spread + other.spread)


def own_values(x: Tensor) -> Own:
    """``Own`` of the float32 matrix ``x`` [rows, cols], counted a run of rows at a time."""
    low, high = finite_range(x)
    frame, rows = frame_of(x), max(1, _RUN // max(x.shape[1], 1))
    return reduce(add, (own_part(part, low, high, frame) for part in x.split(rows)))


def own_part(part: Tensor, low: float, high: float, frame: Frame) -> Own:
    """``Own`` of some rows of a matrix whose finite range is [low, high] and whose frame is ``frame``."""
    seen = histogram(part, low, high, BINS)
    return Own(seen, frame, spread(part, frame, seen if frame.whole else None))


_RUN = 1 << 21
"""Elements of a run: what is made of it beside it is a fourth of its size."""


def frame_of(x: Tensor) -> Frame:
    """The frame of a float32 tensor of any shape: of its finite values, [0, 1] if there are none."""
    least, largest = finite_range(x)
    sample = _sample(x)
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


def _sample(x: Tensor) -> Tensor:
    """About ``SAMPLE`` finite values at even distances, which share no factor with the rows' length: or only
    a few columns would be seen."""
    flat = x.reshape(-1)
    step = max(1, flat.numel() // SAMPLE)
    while step > 1 and math.gcd(step, x.shape[-1]) > 1:
        step += 1
    sample = flat[::step]
    return sample[sample.isfinite()]


def spread(x: Tensor, frame: Frame, known: Histogram | None = None) -> Spread:
    """Count float32 ``x``, of any shape, in the bins of ``frame``.

    ``known`` is its ``histogram`` in ``BINS`` bins over the central range where the caller has it already.
    """
    middle = known or histogram(x, frame.low, frame.high, BINS)
    below, above = _tail(x, frame.below, x < frame.low), _tail(x, frame.above, x > frame.high)
    counts = middle.counts.copy()
    counts[0] -= below.counts.sum()
    counts[-1] -= above.counts.sum()
    return Spread(Histogram(middle.edges, counts), below, above)


def _tail(x: Tensor, edges: np.ndarray, outside: Tensor) -> Histogram:
    """Counts of the values of ``x`` that are ``outside``, in the bins of one tail."""
    if len(edges) < 2:
        return Histogram(edges, np.zeros(0, np.int64))
    values = x[outside].double().cpu().numpy()
    return Histogram(edges, np.histogram(np.clip(values, edges[0], edges[-1]), edges)[0])
