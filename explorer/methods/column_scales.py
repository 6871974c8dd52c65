"""The scales that columns are rounded under where a method rounds them one after another.

GPTQ computes a group's scales when it reaches the group, from the weights as updated by then. An order that
tears groups apart needs all of them before the first column, and so do schemes that quantize scales or search
them: static groups, of the original weights.
"""

from __future__ import annotations

import dataclasses
from functools import partial

from torch import Tensor

from explorer.core.blocks import Rectangle
from explorer.core.encode import encode_blocks, restore_blocks
from explorer.core.importances import takes_importance
from explorer.core.quantize import find_ranges, quantize
from explorer.schemes import Scales, Scheme, join_scales, scale_for


def finds_scales_together(scheme: Scheme) -> bool:
    """Whether a group has no scale before others have theirs: scales are quantized too, or are those of
    llama.cpp's search under importances."""
    return takes_importance(scheme) or (scheme.scale is not None and scheme.scale.has_upper_level)


class ColumnScales:
    """One scale per row and group; ``groups[j]`` is the group of the column at position j of the order.

    ``largest`` is the whole weight's largest magnitude, from which a scheme with two levels takes the scale
    of the tensor, so that it is fixed before the first group.
    """

    def __init__(self, scheme: Scheme, groups: list[int], largest: Tensor) -> None:
        self.scheme, self.groups, self.largest = scheme, groups, largest
        self._known: dict[int, Scales] = {}
        self._nearest = dataclasses.replace(scheme, seed=None)

    def add_all(self, weight: Tensor, energy: Tensor) -> None:
        """Static groups: the scales of every group of ``weight`` [N, K]. ``energy`` [K], the mean square of
        each input, weighs llama.cpp's search."""
        if takes_importance(self.scheme):
            importance = energy.float() if bool(energy.any()) else None
            every = quantize(weight, self.scheme, importance=importance).scales
        elif finds_scales_together(self.scheme):
            every = quantize(weight, self.scheme).scales
        else:
            every = scale_for(find_ranges(weight, self.scheme), self.scheme, self.largest)
        for group in range(every.stored.shape[1]):
            self._known[group] = every.map_grids(partial(Tensor.narrow, dim=1, start=group, length=1))

    def add(self, j: int, weights: Tensor) -> None:
        """The scales of the group that begins at position j, from its weights [D, columns, N]."""
        rows = weights.transpose(1, 2).reshape(-1, weights.shape[1]).float()
        ranges = find_ranges(rows, dataclasses.replace(self.scheme, block=(1, None)), self.largest)
        self._known[self.groups[j]] = scale_for(ranges, self.scheme, self.largest)

    def due(self, j: int) -> int:
        """Number of columns from position j on in groups whose scales are not added yet."""
        group, stop = self.groups[j], j
        while group not in self._known and stop < len(self.groups) and self.groups[stop] == group:
            stop += 1
        return stop - j

    def round(self, column: Tensor, j: int) -> Tensor:
        """The column at position j, [D, N], rounded and dequantized in float32 as ``quantize`` does it."""
        scales, flat = self._known[self.groups[j]], column.float().reshape(-1, 1)
        if copies := len(flat) // len(scales.stored) - 1:  # static groups serve every damping
            scales = scales.map_grids(lambda grid: grid.repeat(copies + 1, 1))
        rows = slice(0, len(flat))
        cells = Rectangle(rows, slice(0, 1), rows, slice(0, 1), height=1, width=1)
        values = self.scheme.format.decode(encode_blocks(cells, flat, scales, self._nearest))
        return restore_blocks(cells, cells.blocks(values), scales).view(column.shape)

    def all(self) -> Scales:
        """The scales of every group, [N, groups], in the order that the groups lie in."""
        return join_scales([self._known[group] for group in sorted(self._known)], 1)
