"""The multiple-choice knapsack: of each unit one scheme, of the least cost, within one budget or several.

One budget: the steps along the lower convex hulls of all units, the one that saves most first, are the
frontier (``HullPath``). Several: a mean of their sizes, each as a share of its budget, is one budget that
every choice within all of them keeps to (Glover, "Surrogate constraints", 1968), so that its frontier is a
bound; the mean that bounds best is found by halving. What the bound allows beside the best choice is then
enumerated: schemes whose reduced costs exceed the gap are in no better choice.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

Limits = Sequence[tuple[np.ndarray, float]]
"""Sizes [units, schemes], infinite where a unit cannot have a scheme, and the budget of their sum."""
_HALVINGS = 24
_MOST_STATES = 20_000
"""Partial choices that are followed at once; of more the most promising."""
_ROUNDS = 3
"""How often the states are followed anew after a better choice was found."""
_EXACT = 1e-12
"""Share of a cost, or of a budget, that is no difference."""
_WHOLE = 1 + _EXACT


@dataclass(frozen=True, eq=False)
class HullPath:
    """The frontier of one budget over units × schemes, whose ``sizes`` are bits or seconds: at point k
    ``path[:k]`` of the steps are taken from ``start``, each (unit, new scheme)."""

    sizes: np.ndarray
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
        return cls(sizes, start, path, np.array(size), np.array(cost))

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

    def point(self, budget: float) -> np.ndarray:
        """The scheme of each unit at the last point within ``budget``."""
        return self.at(max(int(np.searchsorted(self.size_at, budget, side="right")) - 1, 0))

    def used(self, sizes: Sequence[np.ndarray]) -> np.ndarray:
        """The sums of other ``sizes`` [units, schemes] at every point: [of each, points]."""
        now, units = self.start.copy(), np.arange(len(self.start))
        steps = np.empty((len(sizes), len(self.path) + 1))
        steps[:, 0] = [size[units, now].sum() for size in sizes]
        for k, (u, b) in enumerate(self.path, 1):
            steps[:, k] = [size[u, b] - size[u, now[u]] for size in sizes]
            now[u] = b
        return steps.cumsum(1)

    def slope(self, budget: float) -> float:
        """What a unit of size saves at ``budget``."""
        k = int(np.searchsorted(self.size_at, budget, side="right"))
        if not 0 < k < len(self.size_at):
            return 0.0
        size, cost = self.size_at[k] - self.size_at[k - 1], self.cost_at[k - 1] - self.cost_at[k]
        return float(cost / size)

    def bound(self, budget: float) -> float:
        """What any choice within ``budget`` costs at least."""
        return float(np.interp(budget, self.size_at, self.cost_at))


@dataclass(frozen=True, eq=False)
class Solved:
    """The scheme of each unit, the sum of their costs, and what any choice within the budgets costs at
    least."""

    chosen: np.ndarray
    cost: float
    bound: float


def least_within(costs: np.ndarray, limits: Limits) -> Solved | None:
    """The choice of the least cost within all of one or two ``limits``; None if there is none.

    It is the best one if ``bound`` is its cost. With many units it may be another, which costs at most the
    difference less. ``ValueError`` where neither a choice is found nor that there is none.
    """
    if any(budget <= 0 for _, budget in limits):
        return None
    shares = [sizes / budget for sizes, budget in limits]
    low, high, best = 0.0, 1.0, None
    tightest: tuple[float, HullPath] | None = None
    for step in range(1 if len(shares) == 1 else _HALVINGS):
        weight = float(step) if step < 2 else (low + high) / 2
        path = HullPath.of(_mean(shares, weight), costs)
        if path.least > _WHOLE:
            return None
        bound = path.bound(1.0)
        if tightest is None or bound > tightest[0]:
            tightest = bound, path
        points = path.used(shares)
        best = _better(costs, best, _filled(costs, shares, path, points))
        if step < 2:
            continue
        if np.interp(1.0, path.size_at, points[1]) > 1:
            low = weight
        else:
            high = weight
    assert tightest is not None
    return _closed(costs, shares, tightest[1], best)


def _mean(shares: Sequence[np.ndarray], weight: float) -> np.ndarray:
    """One size for several: ``weight`` is of the second."""
    if len(shares) == 1:
        return shares[0]
    can = np.isfinite(shares[0]) & np.isfinite(shares[1])
    first, second = (np.where(can, share, 0.0) for share in shares)
    return np.where(can, (1 - weight) * first + weight * second, np.inf)


def _cost(costs: np.ndarray, chosen: np.ndarray) -> float:
    return float(costs[np.arange(len(chosen)), chosen].sum())


def _better(costs: np.ndarray, one: np.ndarray | None, other: np.ndarray | None) -> np.ndarray | None:
    if one is None or other is None:
        return other if one is None else one
    return other if _cost(costs, other) < _cost(costs, one) else one


def _filled(
    costs: np.ndarray, shares: Sequence[np.ndarray], path: HullPath, points: np.ndarray
) -> np.ndarray | None:
    """The last point of ``path`` within all budgets, and then single changes that save most; None without
    such a point."""
    within = np.flatnonzero((points <= _WHOLE).all(0))
    if not len(within):
        return None
    chosen, every = path.at(int(within[-1])), np.arange(len(costs))
    while True:
        fits = np.ones(costs.shape, dtype=bool)
        for share in shares:
            now = share[every, chosen]
            fits &= share - now[:, None] <= _WHOLE - now.sum()
        saved = np.where(fits, costs[every, chosen][:, None] - costs, -np.inf)
        unit, scheme = np.unravel_index(int(saved.argmax()), saved.shape)
        if not saved[unit, scheme] > 0:
            return chosen
        chosen[unit] = scheme


def _closed(
    costs: np.ndarray, shares: Sequence[np.ndarray], path: HullPath, best: np.ndarray | None
) -> Solved | None:
    """``best``, or a better choice among those that the bound by ``path`` does not rule out."""
    slope, bound = path.slope(1.0), path.bound(1.0)
    reduced = costs + slope * np.where(np.isfinite(path.sizes), path.sizes, 0.0)
    reduced = np.where(np.isfinite(path.sizes), reduced, np.inf)
    reduced = reduced - reduced.min(1)[:, None]
    for _ in range(_ROUNDS):
        room = np.inf if best is None else _cost(costs, best) * (1 - _EXACT) - bound
        if room <= 0:
            break
        found, whole = _enumerated(costs, shares, reduced, room)
        before, best = best, _better(costs, best, found)
        if whole:
            return None if best is None else Solved(best, _cost(costs, best), _cost(costs, best))
        if best is before:
            break
    if best is None:
        raise ValueError("no choice was found within both budgets; a little more of either gives one")
    return Solved(best, _cost(costs, best), min(bound, _cost(costs, best)))


def _enumerated(
    costs: np.ndarray, shares: Sequence[np.ndarray], reduced: np.ndarray, room: float
) -> tuple[np.ndarray | None, bool]:
    """Among the choices within all budgets whose ``reduced`` costs sum to less than ``room`` the one of the
    least cost, None if there is none; and whether all of them were followed."""
    options = [np.flatnonzero(row < room) for row in reduced]
    order = sorted(range(len(costs)), key=lambda u: len(options[u]))
    after = [[0.0] for _ in shares]
    for u in order[:0:-1]:
        for rest, share in zip(after, shares, strict=True):
            rest.append(rest[-1] + float(share[u, options[u]].min()))
    used, gone, cost = [np.zeros(1) for _ in shares], np.zeros(1), np.zeros(1)
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    whole = True
    for place, u in enumerate(order):
        own = options[u]
        next_used = [
            np.add.outer(now, share[u, own]).ravel() for now, share in zip(used, shares, strict=True)
        ]
        next_gone = np.add.outer(gone, reduced[u, own]).ravel()
        keep = next_gone < room
        for now, rest in zip(next_used, after, strict=True):
            keep &= now + rest[len(order) - 1 - place] <= _WHOLE
        kept = np.flatnonzero(keep)
        if len(kept) > _MOST_STATES:
            whole = False
            kept = kept[np.argpartition(next_gone[kept], _MOST_STATES)[:_MOST_STATES]]
        if not len(kept):
            return None, whole
        used, gone = [now[kept] for now in next_used], next_gone[kept]
        cost = np.add.outer(cost, costs[u, own]).ravel()[kept]
        steps.append((kept // len(own), own[kept % len(own)]))
    chosen, at = np.zeros(len(costs), dtype=int), int(cost.argmin())
    for u, (parents, schemes) in zip(order[::-1], steps[::-1], strict=True):
        chosen[u], at = schemes[at], int(parents[at])
    return chosen, whole


def _hull(sizes: np.ndarray, costs: np.ndarray) -> list[int]:
    """Indices on the lower convex hull of (size, cost), from the smallest on, each cheaper than the last."""
    order = sorted(
        (i for i in range(len(sizes)) if np.isfinite(sizes[i])), key=lambda i: (sizes[i], costs[i])
    )
    hull: list[int] = []
    for i in order:
        if hull and costs[i] >= costs[hull[-1]]:
            continue
        while len(hull) > 1:
            a, b = hull[-2:]
            if (costs[b] - costs[a]) * (sizes[i] - sizes[a]) < (costs[i] - costs[a]) * (sizes[b] - sizes[a]):
                break
            hull.pop()
        if hull and sizes[i] == sizes[hull[-1]]:
            hull.pop()
        hull.append(i)
    return hull
