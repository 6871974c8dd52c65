"""How the scales of blocks are stored: rounded to a format, or as integers under scales of super-blocks.

Every division is an IEEE float32 division, so that all devices get the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.formats import FLOAT32
from explorer.schemes.rules import SUPER_BLOCK, Convention, ScaleRule
from explorer.schemes.scheme import Scheme


@dataclass(frozen=True)
class UpperLevel:
    """What restores the stored scales of blocks: stored · scale.

    scale     float32 [grid rows, grid columns]  the same number for all blocks of a super-block
    minimum   likewise what a block's integer minimum is multiplied by, with minus an offset; None without
    low, high the least and the largest integer that a scale is stored as
    """

    scale: Tensor
    minimum: Tensor | None
    low: int
    high: int

    def restore(self, stored: Tensor) -> Tensor:
        """float32 [grid]: what multiplies a code's value."""
        return stored * self.scale

    def nearest(self, scale: Tensor) -> Tensor:
        """float32 [grid]: what is stored of float32 scales [grid] under this level."""
        return _whole(scale, self.scale, self.low, self.high)

    def map_grids(self, change: Callable[[Tensor], Tensor]) -> UpperLevel:
        """The level with ``change`` applied to every tensor that has an entry for each block."""
        minimum = None if self.minimum is None else change(self.minimum)
        return dataclasses.replace(self, scale=change(self.scale), minimum=minimum)

    def join(self, parts: Sequence[UpperLevel]) -> UpperLevel:
        """The level over runs of rows, one below the other."""
        minimums = [part.minimum for part in parts if part.minimum is not None]
        return dataclasses.replace(
            self,
            scale=torch.cat([part.scale for part in parts]),
            minimum=torch.cat(minimums) if minimums else None,
        )


def divide(x: Tensor, by: float) -> Tensor:
    """IEEE division by a number: torch on a GPU multiplies by the reciprocal of a Python number."""
    return x / torch.full_like(x, by)


def round_scale(raw: Tensor, rule: ScaleRule) -> Tensor:
    """``raw`` rounded to the scale format, as float32; its magnitude is at least ``rule.smallest``."""
    size = raw.abs().clamp(rule.smallest, rule.format.max)
    if rule.format is not FLOAT32:
        size = rule.format.decode(rule.format.encode_unchecked(size))
    if rule.convention is Convention.COMPRESSED_TENSORS:
        size = torch.where(size == 0, torch.full_like(size, rule.format.eps), size)
    return size.copysign(raw)


def super_blocks(
    raw: Tensor, minimum: Tensor | None, scheme: Scheme
) -> tuple[Tensor, Tensor | None, UpperLevel]:
    """Stored scales [grid], offsets [grid] and the level above, of float32 scales ``raw`` [grid].

    As GGUF's K-quants have them. With a ``minimum`` [grid], at most 0: scales d · s and offsets -(d' · m), s
    and m unsigned. Without: scales d · s of either sign, the one of largest magnitude as the least integer.
    """
    rule, width = scheme.scale, scheme.block[1]
    assert rule is not None and rule.super_bits is not None and width is not None
    low, high = integer_limits(rule.super_bits, signed=minimum is None)
    each = SUPER_BLOCK // width
    scale = round_scale(divide(_largest(raw, each), float(low or high)), rule)
    stored = _whole(raw, scale, low, high)
    if minimum is None:
        return stored, None, UpperLevel(scale, None, low, high)
    above = round_scale(divide(_largest(-minimum, each), float(high)), rule)
    return stored, -(_whole(-minimum, above, low, high) * above), UpperLevel(scale, above, low, high)


def integer_limits(bits: int, signed: bool) -> tuple[int, int]:
    """The least and the largest integer that the scale of a block is stored as."""
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _whole(x: Tensor, unit: Tensor, low: int, high: int) -> Tensor:
    """float32 ``x`` in whole ``unit``s, 0 where the unit is 0."""
    whole = (x / unit).round().clamp(low, high)
    return torch.where(unit == 0, torch.zeros_like(whole), whole)


def _largest(x: Tensor, each: int) -> Tensor:
    """float32 [grid rows, grid columns]: of every ``each`` columns the entry of largest magnitude, the first
    of equals, in all their places."""
    runs = torch.nn.functional.pad(x, (0, -x.shape[1] % each)).unflatten(1, (-1, each))
    largest = runs.gather(2, runs.abs().argmax(2, keepdim=True))
    return largest.expand(runs.shape).flatten(1)[:, : x.shape[1]]
