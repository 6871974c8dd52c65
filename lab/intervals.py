"""Intervals and chances of figures in docs/: of means, of paired differences, of rank correlations."""

from __future__ import annotations

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import permutations

import numpy as np
from scipy.stats import rankdata

from explorer.survey.interval import standard_errors

NORMAL_95 = 1.96
"""Standard errors on either side that hold 95 % of a normal distribution."""
RESAMPLES = 2000
FEW = 8
"""Up to so many pairs, every order of them is counted."""


def half_interval(groups: Sequence[float]) -> float:
    """Half of the 95 % interval of the mean of ``groups``, which are independent of each other, by Student's
    t: of 4 groups it is 1.6 times as wide as by the normal distribution."""
    return interval(groups)[1]


def interval(values: Sequence[float]) -> tuple[float, float]:
    """Mean and half the width of its 95 % interval, by Student's t; ``ValueError`` for fewer than two."""
    if len(values) < 2:
        raise ValueError("an interval needs at least two values")
    half = standard_errors(len(values)) * statistics.stdev(values) / math.sqrt(len(values))
    return statistics.fmean(values), half


def half_interval_of_share(share: float, count: int) -> float:
    """Half of the 95 % interval of a ``share`` of ``count`` independent draws, by the normal distribution."""
    return NORMAL_95 * math.sqrt(share * (1 - share) / count)


def paired(before: Sequence[float], after: Sequence[float]) -> tuple[float, float]:
    """The mean of ``after`` - ``before``, pair by pair, and half of its 95 % interval: what both share, such
    as a hard group of texts, is in neither."""
    differences = [b - a for a, b in zip(before, after, strict=True)]
    return statistics.fmean(differences), half_interval(differences)


def at_most(*halves: float) -> float:
    """Half of the 95 % interval of the difference of two means at most, from half of that of each: the
    standard error of a difference is never above the sum of both, however they go together."""
    return sum(halves)


@dataclass(frozen=True)
class Mean:
    """A mean, half of its 95 % interval, and the numbers that it is made of; none where they were not
    recorded."""

    value: float
    half: float
    parts: Sequence[float] = ()


def difference(before: Mean, after: Mean) -> tuple[float, float]:
    """``after`` less ``before``, and half of the 95 % interval of that: of pairs of their parts, or its upper
    bound where those were not recorded."""
    if before.parts and after.parts:
        return paired(before.parts, after.parts)
    return after.value - before.value, at_most(before.half, after.half)


def spearman(x: Sequence[float], y: Sequence[float]) -> float:
    """Spearman's rank correlation, ties at the mean of their ranks; NaN where one does not vary."""
    return float(_correlations(rankdata(np.array([x]), axis=1), rankdata(np.array([y]), axis=1))[0])


def chance(x: Sequence[float], y: Sequence[float]) -> float:
    """The two-sided p-value of ``spearman``, exactly: the share of all orders of ``y`` whose correlation is
    at least as far from 0. ``ValueError`` for more than ``FEW`` pairs."""
    if len(x) > FEW:
        raise ValueError(f"every order is counted of up to {FEW} pairs, not {len(x)}")
    ranks = rankdata(np.array([x]), axis=1)
    orders = np.array(list(permutations(rankdata(np.array(y)))))
    every = np.abs(_correlations(ranks, orders))
    return float(np.mean(every >= abs(spearman(x, y)) - 1e-9))


def spearman_interval(x: Sequence[float], y: Sequence[float], clusters: Sequence[str]) -> tuple[float, float]:
    """The 95 % interval of ``spearman`` by the bootstrap over ``clusters``: pairs of one cluster (the same
    layer under several methods) are not independent, so that whole clusters are drawn, of a fixed seed. Rough
    where they are few. The clusters are equally large."""
    names = list(dict.fromkeys(clusters))
    of = [[i for i, one in enumerate(clusters) if one == name] for name in names]
    if len({len(one) for one in of}) != 1:
        raise ValueError("the clusters are not equally large")
    members = np.array(of)
    drawn = np.random.default_rng(0).integers(0, len(names), (RESAMPLES, len(names)))
    places = members[drawn].reshape(RESAMPLES, -1)
    ranks = [rankdata(np.asarray(values)[places], axis=1) for values in (x, y)]
    low, high = np.nanpercentile(_correlations(*ranks), [2.5, 97.5])
    return float(low), float(high)


def _correlations(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """Pearson's correlation of each row."""
    x, y = x - x.mean(1, keepdims=True), y - y.mean(1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray((x * y).sum(1) / np.sqrt((x * x).sum(1) * (y * y).sum(1)))
