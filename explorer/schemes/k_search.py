"""llama.cpp's search of the scales of K-quants and of IQ4_NL's codebook, vectorised over blocks and
candidates.

A block's scale (and minimum, if it has one) is the candidate with the least weighted error among a few dozen,
each refitted to its codes by weighted least squares (ggml's reference quantizer). Q3_K has one start, which
is improved one code at a time. Sums are taken in ggml's order and every operation is rounded to float32, so
that scales, minimums and codes equal those of ggml's C bit for bit, if that is compiled without fused
multiply-adds.

Blocks lie [width, n]: element i of all n blocks is one row.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor

SMALLEST = 1e-15
"""Magnitude below which all values of a block without minimums count as zeros."""
_SHIFT = 12582912.0  # 1.5 · 2^23: of a sum with it, the mantissa holds the nearest whole number


@dataclass(frozen=True)
class Found:
    """Result of the search for n blocks.

    scale    float32 [n]          of either sign without minimums
    minimum  float32 [n] or None  subtracted, at least 0
    codes    float32 [width, n]   counted from 0, under the scale before it is rounded; None for a codebook,
                                  where codes follow by ``IQ4_CODES``
    """

    scale: Tensor
    minimum: Tensor | None
    codes: Tensor | None


@dataclass(frozen=True)
class Steps:
    """Candidates: the range takes ``codes`` - 1 + first + i · step steps, for i = 0 … count, after
    ``codes`` - 1 itself."""

    first: float
    step: float
    count: int

    def factors(self, largest: int, device: torch.device) -> Tensor:
        """The numbers of steps that a range is divided into, float32 [count + 2], accumulated with ggml's
        rounding."""
        i = torch.arange(self.count + 1, dtype=torch.float32, device=device)
        moved = i * torch.tensor(self.step, device=device) + torch.tensor(self.first, device=device) + largest
        return torch.cat([torch.full_like(moved[:1], largest), moved])


def sum_in_order(rows: Tensor) -> Tensor:
    """Sum ``rows`` [width, n] from the first to the last, float32 [n]."""
    total = rows[0].clone()
    for row in rows[1:]:
        total += row
    return total


def nearest_whole(x: Tensor) -> Tensor:
    """Round ``x`` to nearest, ties to even, int32, as ggml does: beyond 2^22 and for NaN it gives the low
    bits of a sum."""
    return (x + _SHIFT).view(torch.int32).bitwise_and_(0x7FFFFF).sub_(0x400000)


def root(x: Tensor) -> Tensor:
    """The correctly rounded float32 square root of ``x``; torch's may be an ulp off on a CPU."""
    return x.double().sqrt_().float()


def search_with_minimum(
    x: Tensor, weights: Tensor, codes: int, steps: Steps, absolute: bool = False
) -> Found:
    """Search scale and minimum of each block of ``x`` [width, n] for the least Σ w · (x' - x)² (or Σ w · |x'
    - x|) under ``weights`` [width, n]; the first tried of equals.

    Each candidate starts from the best minimum so far, so candidates are tried one after another.
    """
    low, high = x.amin(0).clamp_(max=0), x.amax(0)
    flat, factors = high == low, steps.factors(codes - 1, x.device).split(1)
    sum_w, sum_x = sum_in_order(weights), sum_in_order(weights * x)
    per_unit = factors[0] / (high - low)
    level, terms = torch.empty_like(x), x.new_empty(len(x), 3, x.shape[1])
    _levels(x, low, per_unit, codes, level)
    scale, minimum, best_unit, best_start = 1 / per_unit, low, per_unit, low
    least = _weighted_error(x, weights, level, scale, minimum, absolute)
    for factor in factors[1:]:
        per_unit = factor / (high - minimum)
        _levels(x, minimum, per_unit, codes, level)
        product = torch.mul(level, weights, out=terms[:, 0])
        torch.mul(product, level, out=terms[:, 1])
        torch.mul(product, x, out=terms[:, 2])
        sum_l, sum_l2, sum_xl = sum_in_order(terms)
        determinant = sum_w * sum_l2 - sum_l * sum_l
        new_scale = (sum_w * sum_xl - sum_x * sum_l) / determinant
        new_minimum = (sum_l2 * sum_x - sum_l * sum_xl) / determinant
        positive = new_minimum > 0
        new_scale = torch.where(positive, sum_xl / sum_l2, new_scale)
        new_minimum.masked_fill_(positive, 0)
        error = _weighted_error(x, weights, level, new_scale, new_minimum, absolute)
        better = (determinant > 0) & (error < least)
        best_unit = torch.where(better, per_unit, best_unit)
        best_start = torch.where(better, minimum, best_start)
        least, scale = torch.where(better, error, least), torch.where(better, new_scale, scale)
        minimum = torch.where(better, new_minimum, minimum)
    _levels(x, best_start, best_unit, codes, level)
    # No candidate has a number for a scale where sums overflow: the range has one.
    beyond = ~(scale.isfinite() & minimum.isfinite())
    scale = torch.where(beyond, (high - low) / torch.full_like(low, codes - 1), scale)
    minimum = torch.where(flat | beyond, low, minimum)
    flat |= best_unit.isinf()
    return Found(scale.masked_fill(high == low, 0), -minimum, level.masked_fill_(flat, 0))


def _levels(x: Tensor, low: Tensor, per_unit: Tensor, codes: int, out: Tensor) -> None:
    """Round ``x`` [width, n] to codes counted from 0 at ``low`` [n]."""
    torch.sub(x, low, out=out).mul_(per_unit).round_().clamp_(0, codes - 1)


def _weighted_error(
    x: Tensor, weights: Tensor, level: Tensor, scale: Tensor, minimum: Tensor, absolute: bool
) -> Tensor:
    """Compute Σ w · (scale · level + minimum - x)², or of magnitudes: float32 [n]."""
    error = (level * scale).add_(minimum).sub_(x)
    return sum_in_order((error.abs_() if absolute else error.square_()).mul_(weights))


def search_signed(x: Tensor, weights: Tensor, half: int) -> Found:
    """Search the scale of each block of ``x`` [width, n] with the largest (Σ w·x·l)² / Σ w·l·l, for codes l
    from -half to half - 1. The value of largest magnitude takes about the code -half."""
    extreme, zero = first_largest(x)
    offsets = torch.tensor([0, *range(-9, 0), *range(1, 10)], dtype=torch.float32, device=x.device)
    steps = offsets * torch.tensor(0.1, device=x.device) + half
    per_unit = -steps[:, None] / extreme
    weighted = weights * x
    sum_xl, sum_l2 = torch.zeros_like(per_unit), torch.zeros_like(per_unit)
    level, part = torch.empty_like(per_unit), torch.empty_like(per_unit)
    for i in range(len(x)):
        torch.mul(per_unit, x[i], out=level).round_().clamp_(-half, half - 1)
        sum_xl += torch.mul(level, weighted[i], out=part)
        sum_l2 += torch.mul(level, weights[i], out=part).mul_(level)
    scale, best = _best_fit(sum_xl, sum_l2)
    chosen = per_unit.gather(0, best[None])[0]
    levels = (x * chosen).round_().clamp_(-half, half - 1) + half
    scale = torch.where(scale.isfinite(), scale, extreme / torch.full_like(extreme, -half))
    return Found(scale.masked_fill_(zero, 0), None, levels.masked_fill_(zero, 0))


def _best_fit(sum_xl: Tensor, sum_l2: Tensor) -> tuple[Tensor, Tensor]:
    """Return the least-squares scale, float32 [n], of the candidate with the largest (Σ w·x·l)² / Σ w·l·l,
    from sums [candidates, n], and its index, int64 [n]: the first of equals as ggml compares them."""
    ratio = torch.where(sum_l2 == 0, torch.zeros_like(sum_l2), sum_xl / sum_l2)
    squares, products = sum_xl * sum_xl, ratio * sum_xl
    scale, best = ratio[0], products[0]
    chosen = torch.zeros_like(scale, dtype=torch.int64)
    for i in range(1, len(ratio)):
        better = (sum_l2[i] > 0) & (squares[i] > best * sum_l2[i])
        scale, best = torch.where(better, ratio[i], scale), torch.where(better, products[i], best)
        chosen.masked_fill_(better, i)
    return scale, chosen


def search_levels(x: Tensor, weights: Tensor, levels: Levels) -> Found:
    """Search the scale of each block of ``x`` [width, n] with the largest (Σ w·x·l)² / Σ w·l·l, where l is
    the nearest of ``levels``. The value of largest magnitude is first placed on minus the least level, then
    near the least level."""
    extreme, zero = first_largest(x)
    least = levels.values[0]
    steps = torch.arange(-7, 8, dtype=torch.float32, device=x.device) + least
    first = 1 / (extreme / torch.full_like(extreme, -least))
    per_unit = torch.cat([first[None], steps[:, None] / extreme])
    sum_xl, sum_l2 = torch.zeros_like(per_unit), torch.zeros_like(per_unit)
    for i in range(len(x)):
        level = levels.nearest(per_unit * x[i])
        product = level * weights[i]
        sum_l2 += product * level
        sum_xl += product.mul_(x[i])
    scale, _ = _best_fit(sum_xl, sum_l2)
    scale = torch.where(scale.isfinite(), scale, extreme / torch.full_like(extreme, least))
    return Found(scale.masked_fill_(zero, 0), None, None)


class Levels:
    """Integers in ascending order; a value takes the nearest, the upper one at a tie."""

    def __init__(self, values: Sequence[float]) -> None:
        self.values = tuple(values)
        doubled = [int(a + b) for a, b in pairwise(self.values)]
        self._low, self._high = doubled[0] - 1, doubled[-1]
        # Twice the middle of two whole numbers is one: the floor of twice a value says between which it lies.
        of_floor = [sum(middle <= at for middle in doubled) for at in range(self._low, self._high + 1)]
        self._table = torch.tensor([self.values[at] for at in of_floor], dtype=torch.float32)

    def nearest(self, x: Tensor) -> Tensor:
        """Return the level that each of ``x`` takes, float32; NaN takes the largest."""
        index = (x + x).floor_().clamp_(self._low, self._high).nan_to_num_(self._high).sub_(self._low)
        return self._table.to(x.device).index_select(0, index.int().view(-1)).view(x.shape)


def search_by_code(x: Tensor, half: int) -> Found:
    """Search the scale of each block of ``x`` [width, n] under weights x²: its codes are improved one after
    another, five times over."""
    extreme, zero = first_largest(x)
    level = (-half / extreme).mul(x).round_().clamp_(-half, half - 1)
    w = x * x
    wx = w * x
    sum_xl, sum_l2 = sum_in_order(wx * level), sum_in_order(w * level * level)
    for _ in range(5):
        changed = torch.zeros_like(zero)
        for i in range(len(x)):
            old = level[i]
            xl, l2 = sum_xl - wx[i] * old, sum_l2 - w[i] * old * old
            new = nearest_whole(x[i] * l2 / xl).clamp_(-half, half - 1).float()
            new_xl, new_l2 = xl + wx[i] * new, l2 + w[i] * new * new
            better = new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            better &= (xl > 0) & (new != old) & (new_l2 > 0)
            level[i] = torch.where(better, new, old)
            sum_xl, sum_l2 = torch.where(better, new_xl, sum_xl), torch.where(better, new_l2, sum_l2)
            changed |= better
        if not bool(changed.any()):
            break
    scale = torch.where(sum_l2 > 0, sum_xl / sum_l2, torch.zeros_like(sum_l2))
    scale = torch.where(scale.isfinite(), scale, extreme / torch.full_like(extreme, -half))
    return Found(scale.masked_fill_(zero, 0), None, level.add_(half).masked_fill_(zero, 0))


def search_positive(x: Tensor, weights: Tensor, largest: int) -> tuple[Tensor, Tensor]:
    """Search a scale [n] for nonnegative ``x`` [m, n], and integers int32 [m, n] up to ``largest``: the least
    weighted error of nine scales, then improved one number at a time."""
    high = x.amax(0).clamp_(min=0)
    offsets = torch.tensor([0, *range(-4, 0), *range(1, 5)], dtype=torch.float32, device=x.device)
    per_unit = (offsets * torch.tensor(0.1, device=x.device) + largest)[:, None] / high
    unit, error = 1 / per_unit, torch.zeros_like(per_unit)
    for i in range(len(x)):
        whole = nearest_whole(per_unit * x[i])
        whole[1:].clamp_(max=largest)
        difference = x[i] - unit * whole
        error += weights[i] * difference * difference
    error[1:].masked_fill_(error[1:].isnan(), torch.inf)
    best = error.argmin(0, keepdim=True).masked_fill_(error[:1].isnan(), 0)
    level = nearest_whole(per_unit.gather(0, best) * x).clamp_(0, largest).float()
    wx = weights * x
    sum_xl, sum_l2 = sum_in_order(wx * level), sum_in_order(weights * level * level)
    for _ in range(5):
        changed = torch.zeros_like(high, dtype=torch.bool)
        for i in range(len(x)):
            old, w = level[i], weights[i]
            xl, l2 = sum_xl - wx[i] * old, sum_l2 - w * old * old
            new = nearest_whole(x[i] * l2 / xl).clamp_(0, largest).float()
            new_xl, new_l2 = xl + wx[i] * new, l2 + w * new * new
            better = new_xl * new_xl * sum_l2 > sum_xl * sum_xl * new_l2
            better &= (xl > 0) & (l2 > 0) & (new != old)
            level[i] = torch.where(better, new, old)
            sum_xl, sum_l2 = torch.where(better, new_xl, sum_xl), torch.where(better, new_l2, sum_l2)
            changed |= better
        if not bool(changed.any()):
            break
    zero = high == 0
    scale = torch.where(sum_l2 > 0, sum_xl / sum_l2, torch.zeros_like(high))
    scale = torch.where(scale.isfinite(), scale, high / torch.full_like(high, largest))
    return scale.masked_fill_(zero, 0), level.masked_fill_(zero, 0).int()


def first_largest(x: Tensor) -> tuple[Tensor, Tensor]:
    """Return for each column of ``x`` [width, n] the first value of largest magnitude, float32 [n], and bool
    [n]: True if it is practically zero."""
    magnitude = x.abs()
    extreme = x.gather(0, magnitude.argmax(0, keepdim=True))[0]
    return extreme, extreme.abs() < SMALLEST
