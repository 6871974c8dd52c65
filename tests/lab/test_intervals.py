"""Intervals and chances of the figures in docs/, against scipy and by hand.

If these fail, the docs call a difference or a correlation real that may be chance, or the other way round.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from scipy.stats import spearmanr

from lab.intervals import at_most, chance, half_interval, paired, spearman, spearman_interval


def test_a_paired_difference_is_free_of_what_both_share() -> None:
    """Groups that are hard for both: the interval of the difference is that of the differences, and never
    wider than both together."""
    groups = np.random.default_rng(0).normal(0, 1, 60)
    change = np.random.default_rng(1).normal(0.1, 0.05, 60)
    before, after = groups.tolist(), (groups + change).tolist()
    mean, half = paired(before, after)
    assert mean == pytest.approx(float(change.mean())) and half == pytest.approx(
        half_interval(change.tolist())
    )
    assert half < 0.1 * half_interval(before)
    opposite = [-value for value in before]
    assert paired(before, opposite)[1] == pytest.approx(
        at_most(half_interval(before), half_interval(opposite))
    )
    with pytest.raises(ValueError, match="shorter"):
        paired([1.0, 2.0], [1.0])


@pytest.mark.parametrize("seed", range(5))
def test_rank_correlations_are_scipys(seed: int) -> None:
    """Ties included; the exact p-value counts orders, here in plain Python."""
    random = np.random.default_rng(seed)
    x, y = random.integers(0, 6, 6).tolist(), random.normal(size=6).tolist()
    assert spearman(x, y) == pytest.approx(float(spearmanr(x, y).statistic))
    found = abs(spearman(x, y))
    orders = [abs(float(spearmanr(x, order).statistic)) for order in itertools.permutations(y)]
    assert chance(x, y) == pytest.approx(sum(one >= found - 1e-9 for one in orders) / len(orders))


def test_clusters_are_drawn_whole() -> None:
    """Copies of a pair tell nothing new: the interval is that of the pairs without copies, and far wider than
    if all were independent."""
    random = np.random.default_rng(3)
    x = random.normal(size=8)
    y = x + random.normal(size=8)
    names = [str(i) for i in range(8)]
    once = spearman_interval(x.tolist(), y.tolist(), names)
    copied = [np.repeat(values, 10).tolist() for values in (x, y)]
    clusters = spearman_interval(*copied, np.repeat(names, 10).tolist())
    assert clusters == pytest.approx(once, abs=0.02)
    low, high = spearman_interval(*copied, [str(i) for i in range(80)])
    assert clusters[1] - clusters[0] > 2 * (high - low)
    with pytest.raises(ValueError, match="equally large"):
        spearman_interval([1, 2, 3], [1, 2, 3], ["a", "a", "b"])
