"""Multiple-choice knapsack: one scheme for each unit, at the least total cost within a budget.

Steps along the lower convex hulls of all units, the step that saves most per size first, make the frontier of
the budget (``HullPath``). Its points are the best choices of their sizes, and the line between two of them is
a lower bound (Everett, "Generalized Lagrange multiplier method", 1963).

Between two points, choices are enumerated unit by unit. By the multiplier of the line every scheme has a
reduced cost; schemes whose reduced costs sum to more than the step saves are in no better choice. A partial
choice is dropped if another is smaller and costs less. If too many are left, those of the least reduced cost
are followed, and the least reduced cost of the others becomes the bound. The result serves every budget
between the two points, so that a larger budget never gives a worse choice.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field

import numpy as np

from explorer.progress import checkpoint

_WIDTHS = (30, 120, 480, 1_920)
"""Numbers of partial choices that are followed at once: the larger ones after a better choice was found."""
_CELLS = 1 << 21
"""Largest number of choices that are followed at once times units: what they need of memory and time."""
_STEPS, _KEPT = 16, 1 << 20
"""Steps between frontier points whose choices a path keeps, and their bytes; the newest in any case."""
_INDEX = np.dtype(np.int16)
Found = tuple[np.ndarray, np.ndarray, float]
"""Sizes of choices, the scheme of each unit in each, and the least reduced cost of a choice that was not
followed."""
_EXACT = 1e-12
_WHOLE = 1 + _EXACT
"""Rounding error by which a budget may be exceeded."""


@dataclass(frozen=True, eq=False)
class HullPath:
    """Frontier of one budget over units × schemes.

    ``sizes`` are bits or seconds, infinite for a scheme that a unit cannot have. Point k is reached from
    ``start`` by the first k steps of ``path``, each (unit, new scheme); ``size_at`` and ``cost_at`` are the
    sums there. ``kept``: the choices that were found from some of these points to the next ones.
    """

    sizes: np.ndarray
    costs: np.ndarray
    start: np.ndarray
    path: np.ndarray
    size_at: np.ndarray
    cost_at: np.ndarray
    kept: list[tuple[int, Found]] = field(default_factory=list)

    @classmethod
    def of(cls, sizes: np.ndarray, costs: np.ndarray) -> HullPath:
        """Compute the frontier of ``sizes`` and ``costs`` [units, schemes]."""
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
        """The smallest total size of all units."""
        return float(self.size_at[0])

    @property
    def room(self) -> int:
        """Bytes that ``kept`` may come to have."""
        units = len(self.start)
        return max(_KEPT, (1 + sum(_widths(units))) * (_INDEX.itemsize * units + 8))

    def at(self, k: int) -> np.ndarray:
        """The scheme of each unit at point ``k``."""
        chosen = self.start.copy()
        for u, b in self.path[:k]:
            chosen[u] = b
        return chosen

    def reduced(self, k: int) -> np.ndarray:
        """Costs above each unit's best one, under the multiplier of the step from point ``k``."""
        can = np.isfinite(self.sizes)
        slope = (self.cost_at[k] - self.cost_at[k + 1]) / (self.size_at[k + 1] - self.size_at[k])
        cost = np.where(can, self.costs + slope * np.where(can, self.sizes, 0.0), np.inf)
        return np.asarray(cost - cost.min(1)[:, None])


@dataclass(frozen=True, eq=False)
class Solved:
    """Scheme of each unit, and the sum of their costs. No choice within the budget costs less than ``bound``,
    which equals ``cost`` if the choice is proved to be the best."""

    chosen: np.ndarray
    cost: float
    bound: float


def least_within(path: HullPath, budget: float) -> Solved | None:
    """Return the choice of the least cost within ``budget``; None if there is none."""
    last = int((path.size_at <= budget * _WHOLE).sum()) - 1
    if not budget > 0 or last < 0:
        return None
    sizes, chosen, unfollowed = _between(path, last)
    picked = chosen[max(int((sizes <= budget * _WHOLE).sum()) - 1, 0)]
    # Sums along the path differ in their last digits, which are all of a cost near 0.
    cost = float(path.costs[np.arange(len(picked)), picked].sum())
    line = float(np.interp(budget, path.size_at, path.cost_at))
    return Solved(picked, cost, min(cost, line + unfollowed))


def _widths(units: int) -> list[int]:
    return sorted({min(width, max(1, _CELLS // units)) for width in _WIDTHS})


def _between(path: HullPath, k: int) -> Found:
    """Find the best choices from point ``k`` to the next one; the last ones are kept with the path."""
    known = next((found for at, found in tuple(path.kept) if at == k), None)
    if known is None:
        known = _searched(path, k)
        kept = [(k, known), *path.kept][:_STEPS]
        bytes_ = np.cumsum([sizes.nbytes + chosen.nbytes for _, (sizes, chosen, _) in kept])
        path.kept[:] = kept[: max(1, int((bytes_ <= _KEPT).sum()))]
    return known


def _searched(path: HullPath, k: int) -> Found:
    chosen, units, unfollowed = path.at(k)[None].astype(_INDEX), np.arange(len(path.start)), 0.0
    sizes, costs = path.size_at[[k]], path.cost_at[[k]]
    if k + 1 == len(path.size_at):
        return sizes, chosen, np.inf
    end, reduced = path.size_at[k + 1], path.reduced(k)
    for width in _widths(len(units)):
        # What the best choice at hand costs more than the line, where the next one does not fit yet.
        room = float((costs - np.interp(np.append(sizes[1:], end), path.size_at, path.cost_at)).max())
        if unfollowed >= room:
            break
        found, unfollowed = _followed(path, (end * _WHOLE, path.cost_at[k]), reduced, room, width)
        chosen = np.concatenate([chosen, found])
        sizes, costs = path.sizes[units, chosen].sum(1), path.costs[units, chosen].sum(1)
        best = _undominated(sizes, costs)
        sizes, costs, chosen = sizes[best], costs[best], chosen[best]
    return sizes, chosen, unfollowed


def _followed(
    path: HullPath, most: tuple[float, float], reduced: np.ndarray, room: float, width: int
) -> tuple[np.ndarray, float]:
    """Enumerate the choices [choices, units] whose size and cost are at most ``most``, and whose ``reduced``
    costs sum to less than ``room``. Second, the least reduced cost of a choice that was not followed,
    infinite if all were."""
    tables = (path.sizes, path.costs)
    best, units = reduced.argmin(1), range(len(reduced))
    options = [np.flatnonzero(row < room) for row in reduced]
    order = sorted((u for u in units if len(options[u]) > 1), key=lambda u: len(options[u])) or [0]
    sums = np.array([table[units, best].sum() - table[order, best[order]].sum() for table in tables])[:, None]
    least = np.array([[table[u, options[u]].min() for u in order] for table in tables])
    rest, gone, unfollowed = least.sum(1), np.zeros(1), np.inf
    steps: list[tuple[np.ndarray, np.ndarray]] = []
    for place, u in enumerate(order):
        checkpoint()
        own, before = options[u], len(gone)
        rest = rest - least[:, place]
        cells = np.array([table[u, own] for table in tables])
        sums = (sums[:, None] + cells[:, :, None]).reshape(2, -1)
        gone = np.add.outer(reduced[u, own], gone).ravel()
        fits = (sums + rest[:, None] <= np.array(most)[:, None]).all(0)
        kept = np.flatnonzero(fits & (gone < room))
        if len(kept):
            kept = kept[_undominated(sums[0, kept], sums[1, kept], most[0] * _EXACT)]
        if len(kept) > width:
            parts = np.argpartition(gone[kept], width)
            room = unfollowed = float(gone[kept[parts[width]]])
            kept = kept[np.sort(parts[:width])]
        steps.append((kept % before, own[kept // before]))
        sums, gone = sums[:, kept], gone[kept]
    at = np.arange(len(gone))
    chosen = np.repeat(best[None].astype(_INDEX), len(gone), 0)
    for u, (parents, schemes) in zip(order[::-1], steps[::-1], strict=True):
        chosen[:, u], at = schemes[at], parents[at]
    return chosen, unfollowed


def _undominated(sizes: np.ndarray, costs: np.ndarray, step: float = 0.0) -> np.ndarray:
    """Indices, by size, of the points that cost less than every smaller or equal one; sizes within ``step``
    are equal."""
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
    checkpoint()
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
