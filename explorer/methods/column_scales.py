"""The scales that columns are rounded under where a method rounds them one after another.

GPTQ computes a group's scales when it reaches the group, from the weights as updated by then. An order that
tears groups apart needs all of them before the first column: static groups, of the original weights.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from explorer.core.quantize import find_ranges
from explorer.formats import IntegerFormat
from explorer.schemes import Scales, Scheme, scale_for


class ColumnScales:
    """One scale per row and group; ``groups[j]`` is the group of the column at position j of the order.

    ``largest`` is the whole weight's largest magnitude, from which a scheme with two levels takes the scale
    of the tensor, so that it is fixed before the first group.
    """

    def __init__(self, scheme: Scheme, groups: list[int], largest: Tensor) -> None:
        self.scheme, self.groups, self.largest = scheme, groups, largest
        self._known: dict[int, Scales] = {}
        self._of_rows: dict[int, tuple[Tensor, Tensor | None]] = {}

    def add_all(self, weight: Tensor) -> None:
        """Static groups: the scales of every group of ``weight`` [N, K]."""
        every = scale_for(find_ranges(weight, self.scheme), self.scheme, self.largest)
        for group in range(every.stored.shape[1]):
            one = slice(group, group + 1)
            zero_points = None if every.zero_points is None else every.zero_points[:, one]
            self._add(group, Scales(every.stored[:, one], zero_points, every.tensor_scale), len(weight))

    def add(self, j: int, weights: Tensor) -> None:
        """The scales of the group that begins at position j, from its weights [D, columns, N]."""
        rows = weights.transpose(1, 2).reshape(-1, weights.shape[1]).float()
        ranges = find_ranges(rows, dataclasses.replace(self.scheme, block=(1, None)))
        self._add(self.groups[j], scale_for(ranges, self.scheme, self.largest), weights.shape[2])

    def _add(self, group: int, scales: Scales, n: int) -> None:
        zero_points = None if scales.zero_points is None else scales.zero_points.view(-1, n)
        self._known[group], self._of_rows[group] = scales, (scales.scale.view(-1, n), zero_points)

    def due(self, j: int) -> int:
        """How many columns from position j on are of a group whose scales are still to be added."""
        group, stop = self.groups[j], j
        while group not in self._known and stop < len(self.groups) and self.groups[stop] == group:
            stop += 1
        return stop - j

    def round(self, column: Tensor, j: int) -> Tensor:
        """The column at position j, [D, N], rounded and dequantized in float32 as ``quantize`` does it."""
        scale, zero_point = self._of_rows[self.groups[j]]
        scaled = column.float() / scale
        if not isinstance(self.scheme.format, IntegerFormat):
            return self.scheme.format.decode(self.scheme.format.encode_unchecked(scaled)) * scale
        low, high = self.scheme.code_limits
        if zero_point is None:
            return scaled.round_().clamp_(low, high).mul_(scale)
        return scaled.round_().add_(zero_point).clamp_(low, high).sub_(zero_point).mul_(scale)

    def all(self) -> Scales:
        """The scales of every group, [N, groups], in the order that the groups lie in."""
        every = [self._known[group] for group in sorted(self._known)]
        zero_points = [scales.zero_points for scales in every if scales.zero_points is not None]
        stored = torch.cat([scales.stored for scales in every], 1)
        return Scales(stored, torch.cat(zero_points, 1) if zero_points else None, every[0].tensor_scale)
