"""The multiple-choice knapsack: of each unit one scheme, of the least cost, within one budget or two.

The steps along the lower convex hulls of all units, the one that saves most first, are the frontier of one
budget (``HullPath``): its points are the best of their sizes, and the line between two of them is a bound
(Everett, "Generalized Lagrange multiplier method", 1963). What that leaves open is enumerated unit by unit.
By the multiplier of the line every scheme has a reduced cost; those that sum to more than the step saves are
in no better choice. Of partial choices none is followed that is as large as another and costs as much. Where
too many are left, those of the least reduced cost are followed, and the least of the others is the bound.
What is found serves every budget between the two points, so that more never buys less.

Two budgets: a mean of the sizes, each as a share of its budget, is one budget that every choice within both
keeps to (Glover, "Surrogate constraints", 1968); the mean that bounds best is found by halving.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

_HALVINGS = 12
_WIDTHS = (30, 120, 480, 1_920)
"""Partial choices that are followed at once: anew with more after a better choice was found."""
_STEPS = 64
"""Steps between points of frontiers whose choices are remembered."""
_EXACT = 1e-12
"""Share of a cost, or of a budget, that is no difference."""
_WHOLE = 1 + _EXACT


@dataclass(frozen=True, eq=False)
class HullPath:
    """The frontier of one budget over units × schemes, whose ``sizes`` are bits or seconds, infinite where a
    unit cannot have a scheme: at point k ``path[:k]`` of the steps are taken from ``start``, each (unit, new
    scheme)."""

    sizes: np.ndarray
    costs: np.ndarray
    start: np.ndarray
    path: np.ndarray
    size_at: np.ndarray
    cost_at: np.ndarray

    @classmethod
    def of(cls, sizes: np.ndarray, costs: np.ndarray) -> HullPath:
        units = range(len(sizes))
        hulls = [_hull(sizes[u], costs[u]) for u in units]
        steps = sorted(
            (-(costs[u, b] - costs[u, a]) / (sizes[u, b] - sizes[u, a]), -u, -i, u, b)
            for u, hull in enumerate(hulls)
            for i, (a, b) in enumerate(itertools.pairwise(hull))
        )[::-1]
        start = np.array([hull[0] for hull in hulls])
        now, size, cost = start.copy(), [sizes[units, start].sum()], [costs[units, start].sum()]
        for *_, u, b in steps:
            size.append(size[-1] + sizes[u, b] - sizes[u, now[u]])
            cost.append(cost[-1] + costs[u, b] - costs[u, now[u]])
            now[u] = b
        path = np.array([(u, b) for *_, u, b in steps], dtype=int).reshape(-1, 2)
        return cls(sizes, costs, start, path, np.array(size), np.array(cost))

    @property
    def least(self) -> float:
        """The smallest size of all units."""
        return float(self.size_at[0])

    def at(self, k: int) -> np.ndarray:
        """The scheme of each unit at point ``k``."""
        chosen = self.start.copy()
        for u, b in self.path[:k]:
            chosen[u] = b
        return chosen

    def used(self, sizes: Sequence[np.ndarray]) -> np.ndarray:
        """The sums of other ``sizes`` [units, schemes] at every point: [of each, points]."""
        now, units = self.start.copy(), np.arange(len(self.start))
        steps = np.empty((len(sizes), len(self.path) + 1))
        steps[:, 0] = [size[units, now].sum() for size in sizes]
        for k, (u, b) in enumerate(self.path, 1):
            steps[:, k] = [size[u, b] - size[u, now[u]] for size in sizes]
            now[u] = b
        return steps.cumsum(1)

    def reduced(self, k: int) -> np.ndarray:
        """What each scheme costs more than the best of its unit by the multiplier of the step from ``k``."""
        can, slope = np.isfinite(self.sizes), 0.0
        if k + 1 < len(self.size_at):
            slope = (self.cost_at[k] - self.cost_at[k + 1]) / (self.size_at[k + 1] - self.size_at[k])
        cost = np.where(can, self.costs + slope * np.where(can, self.sizes, 0.0), np.inf)
        return np.asarray(cost - cost.min(1)[:, None])

    def last(self, budget: float) -> int:
        """The last point within ``budget``, -1 if there is none."""
        return int((self.size_at <= budget * _WHOLE).sum()) - 1

    def bound(self, budget: float) -> float:
        """What any choice within ``budget`` costs at least."""
        return float(np.interp(budget, self.size_at, self.cost_at))


@dataclass(frozen=True, eq=False)
class Solved:
    """The scheme of each unit, the sum of their costs, and what any choice within the budgets costs at
    least: as much, where the choice is proved to be the best."""

    chosen: np.ndarray
    cost: float
    bound: float


def least_within(limits: Sequence[tuple[HullPath, float]]) -> Solved | None:
    """The choice of the least cost within one budget, or within two of the same costs; None if there is none.
    ``ValueError`` where neither a choice within two is found nor that there is none."""
    if not all(budget > 0 and path.last(budget) >= 0 for path, budget in limits):
        return None
    if len(limits) > 1:
        return _within_both(limits)
    [(path, budget)] = limits
    sizes, costs, chosen, unfollowed = _between(path, path.last(budget))
    at = max(int((sizes <= budget * _WHOLE).sum()) - 1, 0)
    cost = float(costs[at])
    return Solved(chosen[at], cost, min(cost, path.bound(budget) + unfollowed))


@lru_cache(_STEPS)
def _between(path: HullPath, k: int) -> tuple[np.ndarray, np.ndarray, np.ndarray, float]:
    """The best choices from point ``k`` to the next one: sizes, costs, the schemes of each unit; and the
    least reduced cost of those that were not followed."""
    chosen, units, unfollowed = path.at(k)[None].astype(np.int16), np.arange(len(path.start)), 0.0
    sizes, costs = path.size_at[[k]], path.cost_at[[k]]
    if k + 1 == len(path.size_at):
        return sizes, costs, chosen, np.inf
    end, tables, reduced = path.size_at[k + 1], [path.sizes, path.costs], path.reduced(k)
    for width in _WIDTHS:
        # What the best choice at hand costs more than the line, where the next one does not fit yet.
        room = float((costs - np.interp(np.append(sizes[1:], end), path.size_at, path.cost_at)).max())
        if unfollowed >= room:
            break
        found, unfollowed = _followed(tables, [end * _WHOLE, path.cost_at[k]], reduced, room, width)
        chosen = np.concatenate([chosen, found])
        sizes, costs = path.sizes[units, chosen].sum(1), path.costs[units, chosen].sum(1)
        best = _undominated(sizes, costs)
        sizes, costs, chosen = sizes[best], costs[best], chosen[best]
    return sizes, costs, chosen, unfollowed


def _within_both(limits: Sequence[tuple[HullPath, float]]) -> Solved | None:
    """The choice of the least cost within two budgets."""
    costs = limits[0][0].costs
    low, high, tightest, bound = 0.0, 1.0, limits[0][0], -np.inf
    best, cost, units = None, np.inf, np.arange(len(costs))
    for one, (other, most) in zip(limits, limits[::-1], strict=True):
        alone = least_within([one])
        if alone is not None and other.sizes[units, alone.chosen].sum() <= most * _WHOLE:
            return alone
    shares = [path.sizes / budget for path, budget in limits]
    for step in range(_HALVINGS):
        weight = float(step) if step < 2 else (low + high) / 2
        path = HullPath.of(_mean(shares, weight), costs)
        if path.least > _WHOLE:
            return None
        if path.bound(1.0) > bound:
            bound, tightest = path.bound(1.0), path
        points = path.used(shares)
        within = np.flatnonzero((points <= _WHOLE).all(0))
        if len(within) and path.cost_at[within[-1]] < cost:
            best, cost = path.at(int(within[-1])), float(path.cost_at[within[-1]])
        if cost * (1 - _EXACT) <= bound:
            break
        if step >= 2 and np.interp(1.0, path.size_at, points[1]) > 1:
            low = weight
        elif step >= 2:
            high = weight
    reduced, unfollowed = tightest.reduced(tightest.last(1.0)), 0.0
    for width in _WIDTHS:
        room = cost * (1 - _EXACT) - bound
        if unfollowed >= room:
            break
        found, unfollowed = _followed([*shares, costs], [_WHOLE, _WHOLE, cost], reduced, room, 4 * width)
        sums = costs[units, found].sum(1)
        if len(found) and sums.min() < cost:
            best, cost = found[sums.argmin()], float(sums.min())
    if best is None and unfollowed < np.inf:
        raise ValueError("no choice was found within both budgets; a little more of either gives one")
    return None if best is None else Solved(best, cost, min(cost, bound + unfollowed))


def _mean(shares: Sequence[np.ndarray], weight: float) -> np.ndarray:
    """One size for two: ``weight`` is of the second."""
    can = np.isfinite(shares[0]) & np.isfinite(shares[1])
    first, second = (np.where(can, share, 0.0) for share in shares)
    return np.where(can, (1 - weight) * first + weight * second, np.inf)


def _followed(
    tables: Sequence[np.ndarray], most: Sequence[float], reduced: np.ndarray, room: float, width: int
) -> tuple[np.ndarray, float]:
    """The choices [choices, units] of which each of ``tables``, sizes and last costs, sums to at most
    ``most``, and ``reduced`` costs to less than ``room``; and the least that the latter are for a choice that
    was not followed, infinite if none was left."""
    best, units = reduced.argmin(1), range(len(reduced))
    options = [np.flatnonzero(row < room) for row in reduced]
    order = sorted((u for u in units if len(options[u]) > 1), key=lambda u: len(options[u])) or [0]
    sums = np.array([table[units, best].sum() - table[order, best[order]].sum() for table in tables])[:, None]
    least = np.array([[table[u, options[u]].min() for u in order] for table in tables])
    rest, gone, unfollowed = least.sum(1), np.zeros(1), np.inf
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for place, u in enumerate(order):
        own, before = options[u], len(gone)
        rest = rest - least[:, place]
        cells = np.array([table[u, own] for table in tables])
        sums = (sums[:, None] + cells[:, :, None]).reshape(len(tables), -1)
        gone = np.add.outer(reduced[u, own], gone).ravel()
        fits = (sums + rest[:, None] <= np.array(most)[:, None]).all(0)
        kept = np.flatnonzero(fits & (gone < room))
        if len(tables) == 2 and len(kept):
            kept = kept[_undominated(sums[0, kept], sums[1, kept], most[0] * _EXACT)]
        if len(kept) > width:
            parts = np.argpartition(gone[kept], width)
            room = unfollowed = float(gone[kept[parts[width]]])
            kept = kept[np.sort(parts[:width])]
        steps.append((kept % before, own[kept // before]))
        sums, gone = sums[:, kept], gone[kept]
    at = np.arange(len(gone))
    chosen = np.repeat(best[None].astype(np.int16), len(gone), 0)
    for u, (parents, schemes) in zip(order[::-1], steps[::-1], strict=True):
        chosen[:, u], at = schemes[at], parents[at]
    return chosen, unfollowed


def _undominated(sizes: np.ndarray, costs: np.ndarray, step: float = 0.0) -> np.ndarray:
    """The indices of those that cost less than any other of their size, to ``step``, or a smaller one; by
    size."""
    sizes = np.round(sizes / step) if step else sizes
    order = np.argsort(sizes, kind="stable")  # quick where parts are in order
    least, best = costs[order], np.ones(len(order), dtype=bool)
    best[1:] = least[1:] < np.minimum.accumulate(least)[:-1]
    order = order[best]
    last = np.ones(len(order), dtype=bool)
    last[:-1] = sizes[order[1:]] > sizes[order[:-1]]
    return order[last]


def _hull(sizes: np.ndarray, costs: np.ndarray) -> list[int]:
    """Indices on the lower convex hull of (size, cost), from the smallest on, each cheaper than the last."""
    hull: list[int] = []
    best = _undominated(sizes, costs)
    points = dict(
        zip(best.tolist(), zip(sizes[best].tolist(), costs[best].tolist(), strict=True), strict=True)
    )
    for i, (size, cost) in points.items():
        while len(hull) > 1:
            (size_a, cost_a), (size_b, cost_b) = points[hull[-2]], points[hull[-1]]
            if (cost_b - cost_a) * (size - size_a) < (cost - cost_a) * (size_b - size_a):
                break
            hull.pop()
        hull.append(i)
    return hull
