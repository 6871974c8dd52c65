"""Scales for columns that are rounded one after another.

GPTQ computes a group's scales when it reaches the group, from the weights as updated by then. Static groups
take all scales from the original weights. They are needed before the first column if the order tears groups
apart, and by schemes that quantize scales or search them.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from torch import Tensor

from explorer.cached import cached_property
from explorer.core.encode import UnderScales
from explorer.core.importances import takes_importance
from explorer.core.quantize import find_ranges, quantize
from explorer.formats.subnormals import keeps_subnormals
from explorer.schemes import Scales, Scheme, join_scales, scale_for


def finds_scales_together(scheme: Scheme) -> bool:
    """True if a group's scale depends on other groups: scales are quantized too, or found by llama.cpp's
    search under importances."""
    return takes_importance(scheme) or (scheme.scale is not None and scheme.scale.has_upper_level)


class ColumnScales:
    """One scale per row and group; ``groups[j]`` is the group of the column at position j of the order.

    ``largest`` is the whole weight's largest magnitude. Schemes with two levels derive the tensor's scale
    from it, so that it is fixed before the first group.
    """

    def __init__(self, scheme: Scheme, groups: list[int], largest: Tensor) -> None:
        self.scheme, self.groups, self.largest = scheme, groups, largest
        self._known: dict[int, UnderScales] = {}

    @cached_property
    def _one_group(self) -> Scheme:
        return dataclasses.replace(self.scheme, block=(1, None))

    def add_all(self, weight: Tensor, energy: Tensor) -> None:
        """Add static scales of every group of ``weight`` [N, K]. ``energy`` [K], the mean square of each
        input, weights llama.cpp's search."""
        if takes_importance(self.scheme):
            importance = energy.float() if bool(energy.any()) else None
            every = quantize(weight, self.scheme, importance=importance).scales
        elif finds_scales_together(self.scheme):
            every = quantize(weight, self.scheme).scales
        else:
            every = scale_for(find_ranges(weight, self.scheme), self.scheme, self.largest)
        for group in range(every.stored.shape[1]):
            one = every.map_grids(partial(Tensor.narrow, dim=1, start=group, length=1))
            self._add(group, one, len(weight))

    def add(self, j: int, weights: Tensor) -> None:
        """Add the scales of the group that begins at position j, from its weights [D, columns, N]."""
        rows = weights.transpose(1, 2).reshape(-1, weights.shape[1]).float()
        ranges = find_ranges(rows, self._one_group, self.largest)
        self._add(self.groups[j], scale_for(ranges, self.scheme, self.largest), weights.shape[2])

    def _add(self, group: int, scales: Scales, rows: int) -> None:
        """Add scales [D · rows, 1] of one group; static ones, [rows, 1], serve all D dampings."""
        self._known[group] = UnderScales(scales, self.scheme, lambda grid: grid.view(-1, rows))

    def due(self, j: int) -> int:
        """Number of columns from position j on whose groups have no scales yet."""
        group, stop = self.groups[j], j
        while group not in self._known and stop < len(self.groups) and self.groups[stop] == group:
            stop += 1
        return stop - j

    @keeps_subnormals
    def round(self, column: Tensor, j: int) -> Tensor:
        """Round the column at position j, [D, N], and dequantize it in float32 as ``quantize`` does."""
        return self._known[self.groups[j]].rounded(column.float())

    def all(self) -> Scales:
        """Scales of every group, [N, groups], in the weight's order."""
        return join_scales([self._known[group].scales for group in sorted(self._known)], 1)
