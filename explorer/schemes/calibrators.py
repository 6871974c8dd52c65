"""Calibrators choose the range of values that the codes of a block span.

A calibrator maps the blocks of a tensor to one ``Range`` per block, which ``schemes.scale_for`` turns into
scales and zero points. Blocks are views [grid rows, block rows, grid columns, block columns]; reducing dims 1
and 3 leaves one number per block. A new calibrator is one function and one row of ``CALIBRATORS``.

Min-max clips only values beyond the reach of the rounded stored scale; min-max with headroom clips none. The
others clip a few values for a smaller scale: percentile clips a fixed share, MSE searches for the least
squared error, entropy preserves the shape of the histogram (TensorRT's rule; S. Migacz, GTC 2017, s7310).
"""

from __future__ import annotations

import dataclasses
import itertools
import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explorer.formats import E4M3
from explorer.progress import checkpoint
from explorer.schemes.rules import ScaleRule
from explorer.schemes.search import LONGEST, TILE, Grids, Search, Trial
from explorer.schemes.sorted_part import FEWEST, squared_errors

BLOCK_DIMS = (1, 3)


@dataclass(frozen=True)
class Range:
    """Range of values that the codes of each block span, float32 [grid rows, grid columns].

    ``low`` <= 0 <= ``high``, so that zero is representable, except under schemes with floating-point offsets.
    ``low_first``, bool of the same shape, is True where the first of a block's largest magnitudes is
    negative. If both ends are equally far from zero, it gives the sign of a scale that may be negative;
    without it the positive end does.
    """

    low: Tensor
    high: Tensor
    low_first: Tensor | None = None

    @property
    def amax(self) -> Tensor:
        """The largest magnitude: the farther of the two ends."""
        return torch.maximum(-self.low, self.high)

    def scaled(self, low: Tensor | float, high: Tensor | float) -> Range:
        """The range with its ends multiplied."""
        return dataclasses.replace(self, low=self.low * low, high=self.high * high)

    def rows(self, start: int, stop: int) -> Range:
        """The range of the grid's rows from ``start`` to ``stop``: views."""
        first = None if self.low_first is None else self.low_first[start:stop]
        return Range(self.low[start:stop], self.high[start:stop], first)


@dataclass(frozen=True)
class CalibrationContext:
    """Parts of a scheme that a calibrator may use.

    ``scales``         computes the scales of blocks under a range
    ``restore``        quantizes and dequantizes blocks under such scales, also some of them in another grid
    ``levels``         number of codes on one side of zero
    ``asymmetric``     True if both ends of a range count
    ``scale``          storage of scales
    ``zero_included``  False only for schemes with floating-point offsets, with ranges that may exclude zero
    """

    scales: Callable[[Range], Grids]
    restore: Callable[[Tensor, Any], Tensor]
    levels: int
    asymmetric: bool = False
    zero_included: bool = True
    scale: ScaleRule | None = None

    def restored(self, blocks: Tensor, clip_range: Range) -> Tensor:
        """Quantize ``blocks`` [grid rows, height, grid columns, width] under a range and restore them."""
        return self.restore(blocks, self.scales(clip_range))

    def restore_of(self, scales: Grids) -> Callable[[Tensor], Tensor]:
        """Return a function that quantizes and restores float32 [n] of one block under its ``scales`` [1,
        1]."""
        return lambda values: self.restore(values.view(1, 1, 1, -1), scales).view(-1)

    def error(self, blocks: Tensor, clip_range: Range) -> Tensor:
        """Return the squared error that ``restored`` leaves in each block, float64 [grid rows, grid columns].

        Float64 because float32 cannot hold squares of values beyond 1e±19.
        """
        scales, total = self.scales(clip_range), None
        for part in _parts(blocks):
            error = (self.restore(part, scales) - part).double().square_().sum(BLOCK_DIMS)
            total = error if total is None else total + error
        return torch.zeros_like(clip_range.high, dtype=torch.float64) if total is None else total


@dataclass(frozen=True)
class Calibrator:
    """Rule for ranges: ``of(blocks, context)`` returns one entry per block.

    ``headroom``       factor on a scale over the whole tensor that leaves block scales room above it (Four
                       Over Six: E4M3 up to 256 instead of 448)
    ``of_magnitudes``  True if the range follows from |x|, and so includes zero
    ``of_ends``        True if the range follows from the least and the greatest value of a block
    """

    name: str
    label: str
    of: Callable[[Tensor, CalibrationContext], Range]
    explanation: str
    headroom: float = 1.0
    of_magnitudes: bool = True
    of_ends: bool = False

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a row of ``CALIBRATORS`` as its name, since its function may have none."""
        if CALIBRATORS.get(self.name) is self:
            return calibrator_named, (self.name,)
        return super().__reduce_ex__(protocol)


def minmax_range(blocks: Tensor, zero_included: bool = True) -> Range:
    """Find the smallest and the largest value of each block, extended to zero if ``zero_included``."""
    low, high = blocks.amin(BLOCK_DIMS), blocks.amax(BLOCK_DIMS)
    return Range(low.clamp_(max=0), high.clamp_(min=0)) if zero_included else Range(low, high)


PIECE = {"cpu": 1 << 20, "cuda": 1 << 26}
"""Elements of a block that are processed at a time, so that a large block needs no second tensor of its
size."""


def _parts(blocks: Tensor) -> tuple[Tensor, ...]:
    """Split ``blocks`` into runs of rows, or of columns if a row is large; most blocks are one part."""
    height, width, most = blocks.shape[1], blocks.shape[3], PIECE[blocks.device.type]
    if height * width <= most:
        return (blocks,)
    rows = blocks.split(max(1, most // width), 1)
    return tuple(part for run in rows for part in run.split(most, 3))


def low_first(blocks: Tensor) -> Tensor:
    """Return bool [grid rows, grid columns]: True if the first of a block's values of largest magnitude is
    negative."""
    values = blocks.permute(0, 2, 1, 3).flatten(2)
    return values.gather(2, values.abs().argmax(2, keepdim=True))[:, :, 0] < 0


def _mean_magnitude(blocks: Tensor) -> Tensor:
    """The mean |x| of each block, float32, summed in float64 so that the order of summation does not
    matter."""
    parts = _parts(blocks)
    total = sum(
        (torch.linalg.vector_norm(part, 1, BLOCK_DIMS, dtype=torch.float64) for part in parts[1:]),
        start=torch.linalg.vector_norm(parts[0], 1, BLOCK_DIMS, dtype=torch.float64),
    )
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
"""Percentage of a block's |x| that stays inside the range."""
SHRINKS = tuple(1 - i / 100 for i in range(80))
"""Factors on min-max that the search for the least squared error tries, in this order."""
POWERS_OF_TWO = (1.0, 2.0, 0.5, 0.25, 0.125)
"""Factors for E8M0 scales: others change such a scale by a power of two or not at all."""
SIXTEENTH_OCTAVES = (1.0, *(2 ** (i / 16) for i in range(14, -38, -1) if i))
"""The factors for E4M3 scales, from 1.83 to 0.2: neighbouring scales are 1/16 to 1/8 apart, and each is
met."""
BOTH_ENDS, LOW_END, HIGH_END = (True, True), (True, False), (False, True)
ENTROPY_BINS, ENTROPY_FLOOR = 2048, 1e-4


def check_percentile(percentile: float) -> None:
    """Raise ``ValueError`` unless 0 < ``percentile`` ≤ 100: the 0th would clip everything."""
    if not 0 < percentile <= 100:
        raise ValueError(f"a percentile is above 0 and at most 100, not {percentile}")


def _rank(n: int, percentile: float) -> int:
    """Rank, from 1, of the percentile among ``n`` sorted numbers."""
    return min(n, max(1, math.ceil(n * percentile / 100 - 1e-9)))


def percentile_threshold(magnitudes: Tensor, percentile: float) -> Tensor:
    """Return [blocks]: the least value of each row [n] that at least ``percentile`` % of the row do not
    exceed.

    If that value is 0 because nearly all are, the row's largest: a range of 0 would hold no value.
    """
    check_percentile(percentile)
    threshold = magnitudes.kthvalue(_rank(magnitudes.shape[1], percentile), 1).values
    return torch.where(threshold > 0, threshold, magnitudes.amax(1))


def _threshold_of_large(block: Tensor) -> Tensor:
    """Compute ``percentile_threshold`` of one large block [1, rows, 1, columns], float32 [].

    Positive floats are ordered like their bits. The upper 16 bits are counted first, then the lower 16 of the
    values that share the threshold's upper bits.
    """
    rank, found = _rank(block.shape[1] * block.shape[3], PERCENTILE), 0
    for shift in (16, 0):
        counts = torch.zeros(1 << 16, dtype=torch.int64)
        for part in _parts(block):
            bits = part.abs().view(torch.int32).reshape(-1)
            inside = bits if shift else bits[bits >> 16 == found >> 16]
            counts += torch.bincount((inside >> shift) & 0xFFFF, minlength=1 << 16)
        below = counts.cumsum(0)
        place = int(torch.searchsorted(below, rank))
        rank -= int(below[place] - counts[place])
        found |= place << shift
    threshold = torch.tensor(found, dtype=torch.int32).view(torch.float32)
    return threshold if found else torch.stack([part.abs().amax() for part in _parts(block)]).amax()


def _rows(blocks: Tensor) -> Tensor:
    """Reshape to [blocks, elements of a block]."""
    return blocks.permute(0, 2, 1, 3).reshape(blocks.shape[0] * blocks.shape[2], -1)


def _clipped(blocks: Tensor, threshold: Tensor) -> Range:
    """Clip min-max to ± threshold [blocks]."""
    whole, limit = minmax_range(blocks), threshold.view(blocks.shape[0], blocks.shape[2])
    return Range(torch.maximum(whole.low, -limit), torch.minimum(whole.high, limit))


def _percentile(blocks: Tensor, _: CalibrationContext) -> Range:
    if blocks.shape[1] * blocks.shape[3] > PIECE["cpu"] and blocks.device.type == "cpu":
        each = [_threshold_of_large(block) for row in blocks.split(1) for block in row.split(1, 2)]
        return _clipped(blocks, torch.stack(each))
    return _clipped(blocks, percentile_threshold(_rows(blocks).abs(), PERCENTILE))


def _factors(scale: ScaleRule | None) -> tuple[float, ...]:
    """List the factors on min-max that the search tries, 1 first.

    Factors above 1 are for coarse scales: min-max asks for a scale that is then rounded, and a block may fit
    better if its largest value meets a smaller code (a block of FP4 on 0 … 4 instead of 0 … 6).
    """
    if scale is not None and scale.exponent is not None:
        return POWERS_OF_TWO
    return SIXTEENTH_OCTAVES if scale is not None and scale.format is E4M3 else SHRINKS


def _mse(blocks: Tensor, context: CalibrationContext) -> Range:
    """Return the multiple of min-max with the least squared error of each block; the first tried of equals.

    With zero points both ends are moved together first, then the low end alone, then the high one.
    """
    whole = minmax_range(blocks, context.zero_included)
    ends = (BOTH_ENDS, LOW_END, HIGH_END) if context.asymmetric else (BOTH_ENDS,)
    if blocks.device.type == "cpu" and blocks.shape[1] == 1 and blocks.shape[3] <= LONGEST:
        return _mse_of_short(blocks, whole, ends, context)
    if blocks.device.type == "cpu" and blocks.shape[1] * blocks.shape[3] >= FEWEST:
        return _mse_of_large(blocks, whole, ends, context)
    low = high = torch.ones_like(whole.high)
    least = torch.full_like(whole.high, math.inf, dtype=torch.float64)
    for moves_low, moves_high in ends:
        for factor in _factors(context.scale):
            checkpoint()
            moved = torch.full_like(whole.high, factor)
            new_low, new_high = moved if moves_low else low, moved if moves_high else high
            error = context.error(blocks, _moved(whole, new_low, new_high, context))
            better = error < least
            least = torch.where(better, error, least)
            low, high = torch.where(better, new_low, low), torch.where(better, new_high, high)
    return _moved(whole, low, high, context)


def _mse_of_short(
    blocks: Tensor, whole: Range, ends: Sequence[tuple[bool, bool]], context: CalibrationContext
) -> Range:
    """Compute ``_mse`` of blocks along rows by a search that skips candidates that cannot win. Only on a CPU:
    it inspects each result before the next candidate, and would wait for a GPU each time."""

    def scales(low: Tensor, high: Tensor) -> Grids:
        return context.scales(Range(low, high))

    def moved(low: Tensor, high: Tensor, low_factor: Tensor, high_factor: Tensor) -> tuple[Tensor, Tensor]:
        found = _moved(Range(low, high), low_factor, high_factor, context)
        return found.low, found.high

    trial = Trial(moved, scales, context.restore)
    rows, grid = blocks.reshape(-1, blocks.shape[3]), whole.low.shape
    low, high = whole.low.reshape(-1), whole.high.reshape(-1)
    tile = max(1, TILE // rows.shape[1])
    for start in range(0, len(rows), tile):
        some = slice(start, start + tile)
        search = Search(rows[some], low[some], high[some], trial)
        for moves_low, moves_high in ends:
            search.try_factors(_factors(context.scale), moves_low, moves_high)
        low[some], high[some] = moved(low[some], high[some], search.low_factor, search.high_factor)
    return Range(low.view(grid), high.view(grid))


def _mse_of_large(
    blocks: Tensor, whole: Range, ends: Sequence[tuple[bool, bool]], context: CalibrationContext
) -> Range:
    """Compute ``_mse`` of large blocks one after another. Errors are summed over all values only if the
    bounds from sorted values leave the winner open."""
    low, high = torch.empty_like(whole.low), torch.empty_like(whole.high)
    for row, column in itertools.product(range(blocks.shape[0]), range(blocks.shape[2])):
        at = (slice(row, row + 1), slice(column, column + 1))
        block, own = blocks[at[0], :, at[1]], Range(whole.low[at], whole.high[at])
        best = (1.0, 1.0)
        for i, (moves_low, moves_high) in enumerate(ends):
            tried = [
                (factor if moves_low else best[0], factor if moves_high else best[1])
                for factor in _factors(context.scale)
            ]
            ranges = {pair: _moved_by(own, pair, context) for pair in ([best] if i else []) + tried}
            best = _least(block, ranges, context)
        found = _moved_by(own, best, context)
        low[at], high[at] = found.low, found.high
    return Range(low, high)


def _moved_by(whole: Range, pair: tuple[float, float], context: CalibrationContext) -> Range:
    """Apply ``_moved`` with numbers."""
    low, high = (torch.full_like(whole.high, factor) for factor in pair)
    return _moved(whole, low, high, context)


def _least(
    block: Tensor, ranges: dict[tuple[float, float], Range], context: CalibrationContext
) -> tuple[float, float]:
    """Return the key of the range with the least squared error of one block; the first of equals."""
    scales = [context.scales(clip_range) for clip_range in ranges.values()]
    known = squared_errors(_parts(block), [context.restore_of(each) for each in scales])
    most = min(error + bound for error, bound in known)
    left = [pair for pair, (error, bound) in zip(ranges, known, strict=True) if error <= most + bound]
    if len(left) == 1:
        return left[0]

    def exact(pair: tuple[float, float]) -> float:
        error = float(context.error(block, ranges[pair]))
        return error if math.isfinite(error) else math.inf  # 0 · inf, of a scale that rounds to 0

    return min(left, key=exact)


def _moved(whole: Range, low: Tensor, high: Tensor, context: CalibrationContext) -> Range:
    """Multiply the distances of the ends of ``whole`` from zero, or from its middle if zero need not lie in
    it."""
    if context.zero_included:
        return Range(whole.low * low, whole.high * high)
    middle = whole.low / 2 + whole.high / 2
    return Range(middle + (whole.low - middle) * low, middle + (whole.high - middle) * high)


FOUR_OVER_SIX = (1.0, 1.5)
"""The ranges of a block of E2M1: its largest magnitude takes the code 6 or the code 4."""


def _four_over_six(blocks: Tensor, context: CalibrationContext) -> Range:
    """Choose for each block the range of ``FOUR_OVER_SIX`` with the least squared error; 6 of equals."""
    whole = minmax_range(blocks)
    ranges = [Range(whole.low * factor, whole.high * factor) for factor in FOUR_OVER_SIX]
    six, four = (context.error(blocks, r) for r in ranges)
    better = four < six
    return Range(
        torch.where(better, ranges[1].low, whole.low), torch.where(better, ranges[1].high, whole.high)
    )


def _wider(scale: ScaleRule | None) -> list[float]:
    """List factors on min-max, ascending from 1, one of which gives a stored scale that is large enough.

    Rounding to nearest makes a normal scale too small by a factor below 1 + eps/2: 17/16 for E4M3, a power of
    two for E8M0. For a subnormal scale of k units the factor is 1 + 1/2k.
    """
    if scale is None or scale.exponent is not None:
        return [1.0, 2.0]
    eps = scale.format.eps
    return sorted({1.0, *(1 + eps * part for part in (0.5, 1, 2, 4)), 9 / 8, 5 / 4, 3 / 2})


def _unclipped(blocks: Tensor, context: CalibrationContext) -> Range:
    """Return for each block min-max, or the smallest wider range with codes that reach both ends of the
    block."""
    whole = minmax_range(blocks, context.zero_included)
    most = torch.finfo(torch.float32).max
    beyond = (torch.stack((whole.low, whole.high), 2)[:, None] * 4).clamp(-most, most)
    found, short = whole, torch.ones_like(whole.high, dtype=torch.bool)
    for factor in _wider(context.scale):
        factors = torch.full_like(whole.high, factor)
        moved = whole if factor == 1 else _moved(whole, factors, factors, context)
        found = Range(torch.where(short, moved.low, found.low), torch.where(short, moved.high, found.high))
        reached = context.restored(beyond, found)
        short = (reached[:, 0, :, 0] > whole.low) | (reached[:, 0, :, -1] < whole.high)
        if blocks.device.type == "cpu" and not bool(short.any()):  # a GPU would have to be waited for
            break
    return found


_AT_ONCE = 1 << 18
"""Number of groups of bins processed together: on a GPU a single threshold would be all overhead."""


def entropy_objective(histogram: Tensor, levels: int) -> Tensor:
    """float64 [blocks, bins - levels + 1]: KL(P || Q) ≥ 0 in nats for every threshold from ``levels`` to all
    bins of |x|; inf where no value lies inside the threshold.

    With H = ``histogram`` [blocks, bins] (T values in all) and the threshold after bin i (I values inside):

        P_j = R_j / T          R = H of the first i bins, with the T - I counts beyond added to the last one
        Q_j = m_g(j) / I       the bins of H in ``levels`` groups; m: a group's count over its nonempty bins

    and Q_j = 0 where H_j = 0. Only the last bin of P can be positive there: Q is then 1e-4 / i, and divided
    by its new sum. The bin at zero is given its neighbour's count first: exact zeros (a ReLU's) stay zero
    under any threshold, and a spike of them would outweigh everything else.

    KL = Σ P log P - Σ P log Q is a sum over bins and a sum over groups, since Q is constant in a group:
    with prefix sums over bins a threshold costs ``levels`` operations instead of i.
    """
    h = histogram.double()
    h = torch.cat([h[:, 1:2], h[:, 1:]], 1)
    bins, total = h.shape[1], h.sum(1)
    counts, nonempty, h_log_h = _prefix_sums(h), _prefix_sums((h > 0).double()), _prefix_sums(h.xlogy(h))
    objectives = []
    thresholds = torch.arange(levels, bins + 1, device=h.device)
    for i in thresholds.split(max(1, _AT_ONCE // max(1, len(h) * levels))):
        checkpoint()
        edges = torch.arange(levels + 1, device=h.device) * i[:, None] // levels  # [thresholds, levels + 1]
        group, inside, last = counts[:, edges].diff(dim=2), counts[:, i], h[:, i - 1]
        q = (
            group / nonempty[:, edges].diff(dim=2).clamp(min=1) / inside[..., None]
        )  # Q_j of each group's bins
        raised = last + total[:, None] - inside  # R_j of the last bin; of the others it is H_j
        floor = ((last == 0) & (raised > 0)).double() * (ENTROPY_FLOOR / i.double())
        q_last = torch.where(last > 0, q[..., -1], floor)
        r_log_r = h_log_h[:, i] - last.xlogy(last) + raised.xlogy(raised)
        r_log_q = group.xlogy(q).sum(2) - last.xlogy(q_last) + raised.xlogy(q_last)
        kl = (r_log_r - r_log_q) / total[:, None] - total[:, None].log() + floor.log1p()
        objectives.append(torch.where(inside > 0, kl.clamp(min=0), math.inf))
    return torch.cat(objectives, 1)


def _prefix_sums(values: Tensor) -> Tensor:
    """Sum everything before each place: [blocks, n + 1]."""
    return torch.nn.functional.pad(values.cumsum(1), (1, 0))


def magnitude_histogram(
    magnitudes: Tensor, bins: int = ENTROPY_BINS, largest: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Count ``magnitudes`` [blocks, n] from 0 to the ``largest`` [blocks] in [blocks, bins].

    Also returns float64 bin widths [blocks] (in float32 the width of a small range is subnormal, or 0).
    """
    largest = magnitudes.amax(1) if largest is None else largest
    largest = torch.where(largest > 0, largest, torch.ones_like(largest))
    index = (magnitudes / largest[:, None] * bins).long().clamp_(max=bins - 1)
    counts = torch.zeros(len(magnitudes), bins, dtype=torch.int64, device=magnitudes.device)
    return counts.scatter_add_(1, index, torch.ones_like(index)), largest.double() / bins


def _entropy(blocks: Tensor, context: CalibrationContext) -> Range:
    """Find TensorRT's threshold for each block; min-max for blocks with too few values for a histogram."""
    levels, size = context.levels, blocks.shape[1] * blocks.shape[3]
    if levels >= ENTROPY_BINS or size < ENTROPY_BINS // 4:
        return minmax_range(blocks)
    amax, thresholds = minmax_range(blocks).amax.reshape(-1), []
    if len(_parts(blocks)) > 1:
        counted = [magnitude_histogram(_rows(part).abs(), largest=amax) for part in _parts(blocks)]
        histogram, width = torch.stack([counts for counts, _ in counted]).sum(0), counted[0][1]
        thresholds.append(_entropy_threshold(histogram, width, amax, levels))
    else:
        each = max(1, (1 << 24) // size)
        for part, largest in zip(_rows(blocks).abs().split(each), amax.split(each), strict=True):
            thresholds.append(_entropy_threshold(*magnitude_histogram(part), largest, levels))
    return _clipped(blocks, torch.cat(thresholds).to(torch.float32))


def _entropy_threshold(histogram: Tensor, width: Tensor, amax: Tensor, levels: int) -> Tensor:
    """Return [blocks]: the middle of the bin after the best threshold, or all, from counts [blocks, bins]."""
    kept_bins = entropy_objective(histogram, levels).argmin(1) + levels
    return torch.where(kept_bins == ENTROPY_BINS, amax, (kept_bins + 0.5) * width)


MINMAX = Calibrator(
    "minmax",
    "min-max",
    _minmax,
    "the smallest and the largest value: nothing is clipped",
    of_magnitudes=False,
    of_ends=True,
)
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
        "of 80 ranges from min-max down to a fifth of it the one with the least error; with zero points each "
        "end for itself, for E4M3 and E8M0 scales wider ranges too",
        of_magnitudes=False,
    ),
    Calibrator(
        "entropy",
        "entropy (KL)",
        _entropy,
        "the threshold whose histogram of |x|, zeros apart, keeps most of its shape (TensorRT's rule); "
        "blocks of fewer than 512 values keep all",
    ),
    Calibrator(
        "four_over_six",
        "four over six",
        _four_over_six,
        "a block's largest magnitude takes the code 6 of E2M1 or the code 4, whichever errs less "
        "(arXiv 2512.02010)",
        headroom=1.75,
    ),
    Calibrator(
        "unclipped",
        "min-max with headroom",
        _unclipped,
        "min-max, wider where the scale as it is stored would clip it (E4M3: by 17/16), so that stochastic "
        "rounding is unbiased",
        headroom=17 / 16,
        of_magnitudes=False,
        of_ends=True,
    ),
    ABSMEAN,
    TWN,
)
CALIBRATORS: dict[str, Calibrator] = {row.name: row for row in _ROWS}

SHARE = re.compile(r"share(1(\.0{1,4})?|0?\.[0-9]{1,4})", re.ASCII | re.IGNORECASE)
"""The prefix of calibrators outside the table: ``share0.31`` spans 0.31 of min-max in every block."""
SHARES = "share0.0001 … share1"
"""The accepted shares, for messages."""


def calibrator_named(name: str) -> Calibrator:
    """Return the row of ``CALIBRATORS`` in any case, or the one that ``SHARE`` describes; ``ValueError`` for
    others."""
    lower = name.lower()
    if lower in CALIBRATORS:
        return CALIBRATORS[lower]
    found = SHARE.fullmatch(lower)
    if found is None or float(found[1]) == 0:
        raise ValueError(f"{name!r} is no range; accepted: {', '.join(CALIBRATORS)}, {SHARES}")
    return share_of_minmax(float(found[1]))


@dataclass(frozen=True)
class _Share:
    """Min-max times ``share``; equal shares are equal calibrators, however often they are spelled."""

    share: float

    def __call__(self, blocks: Tensor, context: CalibrationContext) -> Range:
        whole = minmax_range(blocks, context.zero_included)
        ends = torch.full_like(whole.high, self.share)
        return _moved(whole, ends, ends, context)


def share_of_minmax(share: float) -> Calibrator:
    """Return the calibrator that multiplies both ends of min-max by ``share`` (above 0, at most 1), to four
    decimals; for 1 min-max itself.

    ``ValueError`` for other shares.
    """
    share = round(share, 4)
    if not 0 < share <= 1:
        raise ValueError(f"a share of min-max is at least 0.0001 and at most 1, not {share}")
    if share == 1:
        return MINMAX
    return Calibrator(
        f"share{share}",
        f"{share} of min-max",
        _Share(share),
        f"{share} of the way from zero to the smallest and the largest value; the rest is clipped",
        of_magnitudes=False,
        of_ends=True,
    )
