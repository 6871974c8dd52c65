"""Histograms of signed errors whose bins fit into each other, so that two schemes share them."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import torch
from torch import Tensor

from explorer.analysis.histograms import Histogram, histogram
from explorer.analysis.report import Report
from explorer.analysis.spread import STRETCH, Spread

BINS = 255
REACH = 12.0
"""Extent of the bins in multiples of the mean |error|, if the largest error is more than ``STRETCH`` times
farther out."""
LEAST_POWER = -100
"""The width of the only bin where nothing has an error: narrower than any bin of float32 errors."""


def error_spread(restored: Tensor, x: Tensor, report: Report) -> Spread:
    """Signed errors restored - x in at most ``BINS`` bins, whose width is a power of 3, with one centred
    on zero, and one bin per tail. Bins nest in wider ones, so ``on_same_bins`` loses nothing.
    """
    return _spread(restored, x, report.mae, report.max_error)


def errors_between(restored: Tensor, x: Tensor) -> tuple[Spread, float]:
    """``error_spread`` of a matrix that has no report yet, and its largest |restored - x|."""
    errors = (restored - x).abs_()
    largest = float(errors.max())
    return _spread(restored, x, float(errors.mean(dtype=torch.float64)), largest), largest


def _spread(restored: Tensor, x: Tensor, mean: float, largest: float) -> Spread:
    reach = REACH * mean if largest > STRETCH * REACH * mean else largest
    power = _power(reach)
    width = 3.0**power
    half = math.ceil(reach / width - 0.5) if power > LEAST_POWER else 0
    end = (half + 0.5) * width
    counts = histogram(restored, -end, end, 2 * half + 1, minus=x).counts.copy()
    tails = _tail_counts(restored, x, end) if largest > end else (0, 0)
    counts[[0, -1]] -= tails
    below, above = ([-largest, -end], [end, largest])
    return Spread(
        Histogram(np.arange(-half, half + 2) * width - width / 2, counts),
        Histogram(np.array(below), np.array(tails[:1])),
        Histogram(np.array(above), np.array(tails[1:])),
    )


def _tail_counts(restored: Tensor, x: Tensor, end: float) -> tuple[int, int]:
    """Count the errors below -end and those above end."""
    errors = restored - x
    return int((errors < -end).sum()), int((errors > end).sum())


def _power(reach: float) -> int:
    """The least power of 3 as a width with which ``BINS`` bins span ±``reach``."""
    if not 0 < reach < math.inf:
        return LEAST_POWER
    return max(math.ceil(math.log(2 * reach / BINS, 3)), LEAST_POWER)


def on_same_bins(errors: Sequence[Spread]) -> list[Histogram]:
    """Histograms of the errors between the tails, in the bins of the widest, out to the farthest end."""
    powers = [round(math.log(e.middle.edges[1] - e.middle.edges[0], 3)) for e in errors]
    widest = max(powers)
    merged = [_merged(e.middle.counts, widest - power) for e, power in zip(errors, powers, strict=True)]
    longest = max(map(len, merged))
    edges = (np.arange(longest + 1) - longest / 2) * 3.0**widest
    return [Histogram(edges, np.pad(counts, (longest - len(counts)) // 2)) for counts in merged]


def _merged(counts: np.ndarray, times: int) -> np.ndarray:
    """An odd number of counts, three bins in one so many times, with the middle bin staying the middle."""
    for _ in range(times):
        half = len(counts) // 2
        counts = np.pad(counts, (1 - half) % 3).reshape(-1, 3).sum(1) if half else counts
    return counts
