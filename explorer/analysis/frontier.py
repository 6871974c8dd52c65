"""Pareto frontier: the choices that no other choice beats at the same cost or less."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import TypeVar

Item = TypeVar("Item")


def on_frontier(
    items: Sequence[Item], cost: Callable[[Item], float], gain: Callable[[Item], float]
) -> list[bool]:
    """For each item whether none of the same ``cost`` or less has a ``gain`` as high (the Pareto frontier).

    Of items with equal cost and gain the first is marked; one whose gain is NaN never is.
    """
    ordered = sorted(
        (i for i, item in enumerate(items) if not math.isnan(gain(item))),
        key=lambda i: (cost(items[i]), -gain(items[i])),
    )
    marks, best = [False] * len(items), -math.inf
    for i in ordered:
        if gain(items[i]) > best:
            best, marks[i] = gain(items[i]), True
    return marks
