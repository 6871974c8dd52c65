"""Squared errors of one large block under many ranges, without restoring the block under each.

Rounding to nearest is monotone, so the restored values of sorted values form a staircase. The values are
sorted once and cut into short runs. If both ends of a run restore to the same number, so does the whole run,
and its error follows from Σx and Σx². Only runs that contain a step are restored: at most one for each code,
so a range costs a few hundredths of restoring the block.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor

from explorer.progress import checkpoint

RUN = 128
"""Sorted values processed together."""
PART = 1 << 22
"""Values sorted at a time: the size of a copy, whatever the size of the block."""
FEWEST = 1 << 17
"""Block size below which restoring all values is as fast."""

Restore = Callable[[Tensor], Tensor]
"""Quantize float32 [n] under a range, rounded to nearest, and restore it."""


def squared_errors(values: Sequence[Tensor], restores: Sequence[Restore]) -> list[tuple[float, float]]:
    """Return the squared error of one block's float32 ``values`` under each of ``restores``, and a bound on
    its distance from the float64 sum over all values. Infinite if a value restores to a non-finite number.

    ``values`` are the parts of a block on a CPU, of any shape.
    """
    errors, signal = [0.0] * len(restores), 0.0
    for value in values:
        for piece in value.reshape(-1).split(PART):
            part = SortedPart(piece)
            signal += part.signal
            for i, restore in enumerate(restores):
                checkpoint()
                errors[i] += part.error(restore)
    return [(error, _bound(error, signal) if math.isfinite(error) else 0.0) for error in errors]


def _bound(error: float, signal: float) -> float:
    """Bound the rounding error of a sum.

    float32 differences are off by 2^-24 of themselves, their squares by 2^-23; a run's Σx² - 2cΣx + nc² by
    less than 2 · ``RUN`` roundings of 2^-53 of its terms, whose sizes are at most Σx², and twice that and the
    error. Both are taken twice.
    """
    return 2.0**-22 * error + 2 * RUN * 2.0**-53 * 16 * (signal + error)


class SortedPart:
    """The float32 ``values`` [n], sorted and cut into runs."""

    def __init__(self, values: Tensor) -> None:
        ordered = torch.from_numpy(np.sort(values.numpy()))
        whole = len(ordered) - len(ordered) % RUN
        self.runs, self.rest = ordered[:whole].view(-1, RUN), ordered[whole:]
        wide = self.runs.double()
        self.sums, self.squares = wide.sum(1), wide.square_().sum(1)
        self.signal = float(self.squares.sum()) + float(self.rest.double().square().sum())

    def error(self, restore: Restore) -> float:
        """Compute Σ(restored - x)² of the part."""
        ends = restore(self.runs[:, [0, -1]].reshape(-1)).view(-1, 2)
        level = (ends[:, 0] == ends[:, 1]).logical_and_(ends[:, 0].isfinite())
        constant, steps = ends[:, 0].double(), torch.cat([self.runs[~level].reshape(-1), self.rest])
        flat = self.squares + constant * (RUN * constant - 2 * self.sums)
        flat = torch.where(level, flat, 0.0).clamp_(min=0)
        total = float(flat.sum()) + float((restore(steps) - steps).double().square_().sum())
        return total if math.isfinite(total) else math.inf
