"""Ranges from a stream of batches: calibration data larger than memory.

An ``Observer`` keeps the smallest and largest value, their moving averages, and a histogram of |x|. The
histogram grows by merging pairs of bins: every bin width is the first one times a power of two, so no count
has to be split.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explorer.schemes.calibrators import (
    ENTROPY_BINS,
    PERCENTILE,
    Range,
    check_percentile,
    entropy_objective,
)

MOVING = 0.01
"""The weight of a new batch in the moving average of the range (TensorFlow's and torch's default)."""
OBSERVED = ("minmax", "percentile", "mse", "entropy")
"""The calibrators that an ``Observer`` supports."""


class Observer:
    """Running statistics of batches of any shape. ``ValueError`` for a batch with NaN or Inf."""

    def __init__(self, bins: int = ENTROPY_BINS) -> None:
        if bins < 2 or bins % 2:
            raise ValueError(f"a histogram that merges pairs has an even number of bins, not {bins}")
        self.bins, self.count, self.batches = bins, 0, 0
        self.low = self.high = 0.0
        self.moving_low = self.moving_high = 0.0
        self.histogram = torch.zeros(bins, dtype=torch.int64)
        self.width = 0.0

    @property
    def amax(self) -> float:
        return max(-self.low, self.high)

    def add(self, batch: Tensor) -> None:
        """Add one batch."""
        values = batch.detach().reshape(-1).to(torch.float32)
        if not len(values):
            return
        low, high = (float(v) for v in torch.aminmax(values))
        if not (math.isfinite(low) and math.isfinite(high)):
            raise ValueError("a batch of calibration data holds NaN or Inf")
        low, high = min(low, 0.0), max(high, 0.0)
        self.low, self.high = min(self.low, low), max(self.high, high)
        first = self.batches == 0
        self.moving_low = low if first else self.moving_low + MOVING * (low - self.moving_low)
        self.moving_high = high if first else self.moving_high + MOVING * (high - self.moving_high)
        self._grow(max(-low, high))
        self.count, self.batches = self.count + len(values), self.batches + 1
        if self.width:
            index = (values.abs().double() / self.width).long().clamp_(max=self.bins - 1)
            self.histogram += torch.bincount(index, minlength=self.bins).cpu()

    def _grow(self, largest: float) -> None:
        """Merge pairs of bins until the histogram reaches ``largest``."""
        if largest == 0:
            return
        if not self.width:
            self.width = 2.0 ** math.ceil(math.log2(largest / self.bins))
            self.histogram[0] = self.count  # every value so far was zero
        while largest > self.width * self.bins:
            merged = self.histogram.view(-1, 2).sum(1)
            self.histogram = torch.cat([merged, torch.zeros(self.bins // 2, dtype=torch.int64)])
            self.width *= 2

    def clip_range(self, calibrator: str, levels: int) -> Range:
        """Return the range [1, 1] of all batches by the named calibrator: min-max clipped to its threshold,
        for ``levels`` codes on one side of zero. ``ValueError`` for a name outside ``OBSERVED``."""
        thresholds = {
            "minmax": lambda: self.amax,
            "percentile": self.percentile,
            "mse": lambda: self.squared_error(levels),
            "entropy": lambda: self.entropy(levels),
        }
        if calibrator not in thresholds:
            raise ValueError(f"an observer finds ranges by {', '.join(OBSERVED)}, not by {calibrator!r}")
        limit = thresholds[calibrator]()
        low, high = max(self.low, -limit), min(self.high, limit)
        return Range(torch.full((1, 1), low), torch.full((1, 1), high))

    def percentile(self, percentile: float = PERCENTILE) -> float:
        """Return the upper edge of the bin that holds this percentile of |x|, at most the largest |x|.

        ``ValueError`` unless 0 < percentile ≤ 100.
        """
        check_percentile(percentile)
        if not self.count or not self.width:
            return 0.0
        reached = self.histogram.cumsum(0).double() / self.count >= percentile / 100 - 1e-12
        return min(self.amax, (int(reached.to(torch.uint8).argmax()) + 1) * self.width)

    def entropy(self, levels: int) -> float:
        """Find TensorRT's threshold for ``levels`` codes on one side of zero."""
        if not self.width or levels >= self.bins:
            return self.amax
        used = min(self.bins, max(levels, math.ceil(self.amax / self.width)))
        kept_bins = int(entropy_objective(self.histogram[None, :used], levels).argmin()) + levels
        return self.amax if kept_bins >= used else min(self.amax, (kept_bins + 0.5) * self.width)

    def squared_error(self, levels: int, shrinks: int = 80) -> float:
        """Find the threshold of least squared error for ``levels`` even codes per side, by bin centres."""
        if not self.width:
            return self.amax
        centres = (torch.arange(self.bins, dtype=torch.float64) + 0.5) * self.width
        best, chosen = math.inf, self.amax
        for i in range(shrinks):
            threshold = self.amax * (1 - i / 100)
            scale = threshold / (levels - 1)
            restored = (centres / scale).round().clamp(max=levels - 1) * scale
            error = float((self.histogram * (centres - restored) ** 2).sum())
            if error < best:
                best, chosen = error, threshold
        return chosen
