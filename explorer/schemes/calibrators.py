"""Calibrators: which range of values the codes of a block should span.

A calibrator maps the blocks of a tensor to one ``Range`` per block, which ``schemes.scale_for`` turns into
scales and zero points. Blocks are views [grid rows, block rows, grid columns, block columns]; reducing dims 1
and 3 leaves one number per block. A new calibrator is one function and one row of ``CALIBRATORS``.

Min-max clips nothing. The others clip a few values for a smaller scale: percentile clips a fixed share, MSE
searches for the least squared error, entropy keeps the shape of the histogram (TensorRT's rule; S. Migacz,
GTC 2017, s7310).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_DIMS = (1, 3)


@dataclass(frozen=True)
class Range:
    """float32 [grid rows, grid columns]: the values that the codes of each block should span.

    ``low`` <= 0 <= ``high``, so that zero is representable, but under schemes with floating-point offsets.
    """

    low: Tensor
    high: Tensor

    @property
    def amax(self) -> Tensor:
        """The largest magnitude: the farther of the two ends."""
        return torch.maximum(-self.low, self.high)


@dataclass(frozen=True)
class CalibrationContext:
    """What a calibrator may use of the scheme: ``restore`` quantizes and dequantizes the blocks under a
    range, ``levels`` is the number of codes on one side of zero. Ranges include zero unless the scheme adds
    a floating-point offset (``zero_included`` False).
    """

    restore: Callable[[Range], Tensor]
    levels: int
    zero_included: bool = True


@dataclass(frozen=True)
class Calibrator:
    """One way to choose a range: ``of(blocks, context)`` gives one entry per block.

    ``headroom`` is how many times a block's largest value its range may reach: a scale over the whole tensor
    leaves that much room above the block scales.
    """

    name: str
    label: str
    of: Callable[[Tensor, CalibrationContext], Range]
    explanation: str
    headroom: float = 1.0


def minmax_range(blocks: Tensor, zero_included: bool = True) -> Range:
    """The smallest and the largest value of each block, and zero if it is to be included."""
    low, high = blocks.amin(BLOCK_DIMS), blocks.amax(BLOCK_DIMS)
    return Range(low.clamp_(max=0), high.clamp_(min=0)) if zero_included else Range(low, high)


def _mean_magnitude(blocks: Tensor) -> Tensor:
    """float32 mean |x| per block, summed in float64 so that the order of the sum does not matter."""
    total = torch.linalg.vector_norm(blocks, 1, BLOCK_DIMS, dtype=torch.float64)
    return (total / (blocks.shape[1] * blocks.shape[3])).to(torch.float32)


def _minmax(blocks: Tensor, context: CalibrationContext) -> Range:
    return minmax_range(blocks, context.zero_included)


def _absmean(blocks: Tensor, _: CalibrationContext) -> Range:
    mean = _mean_magnitude(blocks)
    return Range(-mean, mean)


def _twn(blocks: Tensor, _: CalibrationContext) -> Range:
    mean = _mean_magnitude(blocks) * 1.4
    return Range(-mean, mean)


PERCENTILE = 99.99
"""Percent of the |x| of a block that stay inside the range."""
SHRINKS = tuple(1 - i / 100 for i in range(80))
"""Rule C-1: the thresholds that MSE tries, as shares of the block's largest value."""
ENTROPY_BINS, ENTROPY_FLOOR = 2048, 1e-4


def percentile_threshold(magnitudes: Tensor, percentile: float) -> Tensor:
    """[blocks]: the least value of each row [n] that at least ``percentile`` % of the row do not exceed."""
    n = magnitudes.shape[1]
    rank = min(n, max(1, math.ceil(n * percentile / 100 - 1e-9)))
    return magnitudes.kthvalue(rank, 1).values


def _rows(blocks: Tensor) -> Tensor:
    """[blocks, elements of a block]."""
    return blocks.permute(0, 2, 1, 3).reshape(blocks.shape[0] * blocks.shape[2], -1)


def _clipped(blocks: Tensor, threshold: Tensor) -> Range:
    """Min-max clipped to ± threshold [blocks]."""
    whole, limit = minmax_range(blocks), threshold.view(blocks.shape[0], blocks.shape[2])
    return Range(torch.maximum(whole.low, -limit), torch.minimum(whole.high, limit))


def _percentile(blocks: Tensor, _: CalibrationContext) -> Range:
    return _clipped(blocks, percentile_threshold(_rows(blocks).abs(), PERCENTILE))


def _mse(blocks: Tensor, context: CalibrationContext) -> Range:
    """For each block the shrunken min-max with the least squared error; the widest of equals."""
    whole = minmax_range(blocks)
    best, share = None, torch.ones_like(whole.high)
    for shrink in SHRINKS:
        restored = context.restore(Range(whole.low * shrink, whole.high * shrink))
        error = (restored - blocks).square_().sum(BLOCK_DIMS, dtype=torch.float64)
        if best is None:
            best = error
            continue
        better = error < best
        best = torch.where(better, error, best)
        share = torch.where(better, torch.full_like(share, shrink), share)
    return Range(whole.low * share, whole.high * share)


def entropy_objective(histogram: Tensor, levels: int) -> Tensor:
    """float64 [blocks, bins - levels + 1]: KL(P || Q) in nats for every threshold from ``levels`` to all
    bins of |x|.

    histogram [blocks, bins]. P is the first i bins, with the counts beyond them added to the last one. Q
    merges those bins (without the counts beyond) into ``levels`` groups and spreads each group evenly over
    its nonempty bins; where Q is empty and P is not, Q counts as 1e-4 / i. Prefix sums make a threshold cost
    ``levels`` operations instead of i.
    """
    h = histogram.double()
    bins = h.shape[1]
    mass, nonempty = _prefix_sums(h), _prefix_sums((h > 0).double())
    h_log_h = _prefix_sums(torch.where(h > 0, h * _log(h), 0.0))
    total = mass[:, -1:]
    objectives = []
    for i in range(levels, bins + 1):
        edges = (torch.arange(levels + 1, device=h.device) * i) // levels
        group = mass[:, edges].diff(dim=1)
        mean = group / nonempty[:, edges].diff(dim=1).clamp(min=1)
        # Σ H (log H - log mean) over the bins inside, and the shift between the two totals.
        inside, beyond = mass[:, i : i + 1], total - mass[:, i : i + 1]
        shift = _log(inside) - _log(total)
        kl = h_log_h[:, i : i + 1] - (group * _log(mean)).sum(1, keepdim=True) + inside * shift
        # The last bin of P holds the counts beyond: its term is replaced.
        last, log_mean = h[:, i - 1 : i], _log(mean[:, -1:])
        raised = last + beyond
        old = torch.where(last > 0, last * (_log(last) - log_mean + shift), 0.0)
        in_q = raised * (_log(raised) - log_mean + shift)
        out_of_q = raised * (_log(raised) - _log(total) - math.log(ENTROPY_FLOOR / i))
        new = torch.where(raised > 0, torch.where(last > 0, in_q, out_of_q), 0.0)
        objectives.append((kl - old + new) / total.clamp(min=1e-300))
    return torch.cat(objectives, 1)


def _prefix_sums(values: Tensor) -> Tensor:
    """[blocks, n + 1]: the sum of everything before each place."""
    return torch.nn.functional.pad(values.cumsum(1), (1, 0))


def _log(x: Tensor) -> Tensor:
    """log x, finite at 0, where its factor is 0."""
    return x.clamp(min=1e-300).log()


def magnitude_histogram(magnitudes: Tensor, bins: int = ENTROPY_BINS) -> tuple[Tensor, Tensor]:
    """Counts [blocks, bins] of ``magnitudes`` [blocks, n] from 0 to the largest, and bin widths [blocks]."""
    largest = magnitudes.amax(1)
    width = torch.where(largest > 0, largest / bins, torch.ones_like(largest))
    index = (magnitudes / width[:, None]).long().clamp_(max=bins - 1)
    counts = torch.zeros(len(magnitudes), bins, dtype=torch.int64, device=magnitudes.device)
    return counts.scatter_add_(1, index, torch.ones_like(index)), width


def _entropy(blocks: Tensor, context: CalibrationContext) -> Range:
    """TensorRT's threshold for each block; min-max where a block has too few values for a histogram."""
    rows, levels = _rows(blocks).abs(), context.levels
    if levels >= ENTROPY_BINS or rows.shape[1] < ENTROPY_BINS // 4:
        return minmax_range(blocks)
    thresholds = []
    for part in rows.split(max(1, (1 << 24) // rows.shape[1])):
        histogram, width = magnitude_histogram(part)
        kept_bins = entropy_objective(histogram, levels).argmin(1) + levels
        whole = kept_bins == ENTROPY_BINS
        thresholds.append(torch.where(whole, part.amax(1), (kept_bins + 0.5) * width))
    return _clipped(blocks, torch.cat(thresholds).to(torch.float32))


MINMAX = Calibrator("minmax", "min-max", _minmax, "the smallest and the largest value: nothing is clipped")
ABSMEAN = Calibrator(
    "absmean", "mean magnitude", _absmean, "plus and minus the mean of |x| (BitNet b1.58, XNOR-Net)"
)
TWN = Calibrator(
    "twn",
    "TWN threshold",
    _twn,
    "1.4 mean |x|, so that ternary rounding cuts at 0.7 mean |x| (TWN, arXiv 1605.04711)",
)

_ROWS = (
    MINMAX,
    Calibrator(
        "percentile",
        "99.99th percentile",
        _percentile,
        "the |x| that 99.99 % of a block's values do not exceed; the rest is clipped",
    ),
    Calibrator(
        "mse",
        "least squared error",
        _mse,
        "of 80 thresholds down to a fifth of the largest value the one with the least error",
    ),
    Calibrator(
        "entropy",
        "entropy (KL)",
        _entropy,
        "the threshold whose histogram of |x| keeps most of its shape (TensorRT's rule); "
        "blocks of fewer than 512 values keep all",
    ),
    ABSMEAN,
    TWN,
)
CALIBRATORS: dict[str, Calibrator] = {row.name: row for row in _ROWS}
