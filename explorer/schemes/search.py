"""Search the ranges of many short blocks for the least squared error.

A candidate's error is the float64 sum of squares that ``calibrators`` defines; the least wins, the first
tried of equals. That sum is computed only for candidates that two bounds leave open:

1. the error of the block's smallest and largest value alone, a lower bound of the whole error;
2. the sum in float32, with bounded rounding.

The bounds are safe, so the ranges equal those of the plain search.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, Protocol

import torch
from torch import Tensor

from explorer.progress import checkpoint

LONGEST = 1024
"""Block length up to which the bound on a float32 sum of squares is tight enough to be of use."""
TILE = 1 << 16
"""Elements processed at a time: 256 kB of float32, which stay in a core's cache with their temporaries."""
SPARSE = 0.5
"""Share of the blocks below which those that a candidate can win are gathered first."""


class Grids(Protocol):
    """Scales of blocks: tensors with an entry for each block of a grid."""

    def map_grids(self, change: Callable[[Tensor], Tensor]) -> Grids:
        """Apply ``change`` to every tensor."""
        ...


@dataclass(frozen=True)
class Trial:
    """The functions that try a candidate.

    ``moved``    moves the ends of a range, low and high, by two factors; all of shapes that broadcast
    ``scales``   gives the scales of blocks under a range, low and high [grid rows, grid columns]
    ``restore``  quantizes and restores blocks [grid rows, height, grid columns, width] under scales
    """

    moved: Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
    scales: Callable[[Tensor, Tensor], Any]
    restore: Callable[[Tensor, Any], Tensor]


class Search:
    """Short blocks [n, width] along rows, with their min-max ranges [n], and the best factors so far."""

    def __init__(self, rows: Tensor, low: Tensor, high: Tensor, trial: Trial) -> None:
        self.rows, self.low, self.high, self.trial = rows, low, high, trial
        self.across = rows.t().contiguous()
        self.ends = torch.stack([rows.amin(1), rows.amax(1)]) if rows.shape[1] > 1 else self.across
        self.low_factor, self.high_factor = torch.ones_like(low), torch.ones_like(low)
        self.least: Tensor | None = None  # float32 [n]: the error of these factors, once one was taken
        n = rows.shape[1]
        # γ of n squares and n - 1 sums, for both of two sums that are compared, twice.
        self.slack, self.tiny = 1 + 4 * (n + 2) * 2.0**-24, n * 2.0**-147

    def try_factors(self, factors: Sequence[float], moves_low: bool, moves_high: bool) -> None:
        """Adopt for each block the first of ``factors`` with the least error, if that is below the best so
        far."""
        f = torch.tensor(factors, dtype=torch.float32, device=self.low.device)[:, None]
        new_low = f.expand(-1, len(self.low)) if moves_low else self.low_factor.expand(len(f), -1)
        new_high = f.expand(-1, len(self.low)) if moves_high else self.high_factor.expand(len(f), -1)
        if self.least is not None:  # the best so far is the first candidate
            new_low = torch.cat([self.low_factor[None], new_low])
            new_high = torch.cat([self.high_factor[None], new_high])
        low, high = self.trial.moved(self.low, self.high, new_low, new_high)
        same = (low[1:] == low[:-1]) & (high[1:] == high[:-1])
        scales = self.trial.scales(low, high)
        errors = self._errors(scales, same)
        chosen = self._first_of_least(errors, scales)[None]
        self.low_factor = new_low.gather(0, chosen)[0]
        self.high_factor = new_high.gather(0, chosen)[0]
        self.least = errors.gather(0, chosen)[0]

    def _errors(self, scales: Grids, same: Tensor) -> Tensor:
        """Errors under scales [candidates, n], float32 [candidates, n]; inf where another candidate is
        certainly better, or the range equals (``same``) that of the candidate before."""
        n, count = len(self.rows), len(same) + 1
        ends = self.ends[:, None].expand(-1, count, -1).reshape(len(self.ends), -1)
        bound = self._sums(ends, scales.map_grids(lambda grid: grid.reshape(1, -1))).view(count, n)
        bound[1:].masked_fill_(same, torch.inf)
        errors, first = torch.full_like(bound, torch.inf), 0
        if self.least is not None:
            errors[0], first = self.least, 1
        least = errors[0]
        for i in range(first, count):
            checkpoint()
            may_win = bound[i] <= least * self.slack + self.tiny
            left = int(may_win.sum())
            if left > SPARSE * n:
                these = scales.map_grids(itemgetter(slice(i, i + 1)))
                errors[i] = self._sums(self.across, these).masked_fill_(~may_win, torch.inf)
            elif left:
                which = may_win.nonzero()[:, 0]
                these = scales.map_grids(itemgetter((slice(i, i + 1), which)))
                errors[i, which] = self._sums(self.across[:, which], these)
            least = torch.minimum(least, errors[i])
        return errors

    def _sums(self, across: Tensor, scales: Grids) -> Tensor:
        """Compute Σ(restored - x)² of blocks [width, n] under scales [1, n], float32 [n]."""
        blocks = across[None, :, :, None]
        return self.trial.restore(blocks, scales).sub_(blocks).square_().sum((0, 1, 3))

    def _first_of_least(self, errors: Tensor, scales: Grids) -> Tensor:
        """The first candidate with the least error, int64 [n]; float64 decides where float32 leaves it
        open."""
        least, chosen = errors.min(0)
        near = errors <= least * self.slack + self.tiny
        several = near.sum(0) > 1
        if not bool(several.any()):
            return chosen
        candidate, block = (near & several).nonzero(as_tuple=True)
        part = self.rows[block][:, None, None]
        restored = self.trial.restore(part, scales.map_grids(lambda grid: grid[candidate, block][:, None]))
        sums = (restored - part).double().square_().sum((1, 3))[:, 0]
        exact = torch.full(errors.shape, torch.inf, dtype=torch.float64, device=errors.device)
        exact[candidate, block] = sums.nan_to_num_(torch.inf, torch.inf)
        return torch.where(several, exact.argmin(0), chosen)
