"""Storage of block scales: rounded to a format, as integers under scales of super-blocks, or doubly
quantized.

Every division is an IEEE float32 division, so that all devices get the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.formats import FLOAT32
from explorer.schemes.rules import NESTED_BLOCK, SUPER_BLOCK, Convention, ScaleRule
from explorer.schemes.scheme import Scheme


@dataclass(frozen=True)
class SuperBlockLevel:
    """The level above integer block scales: stored · scale.

    scale      float32 [grid rows, grid columns]  the same number for all blocks of a super-block
    minimum    likewise                           factor on a block's integer minimum; None without
    low, high                                     least and largest integer of a stored scale
    """

    scale: Tensor
    minimum: Tensor | None
    low: int
    high: int

    def restore(self, stored: Tensor) -> Tensor:
        """Return the factors on the codes' values, float32 [grid]."""
        return stored * self.scale

    def nearest(self, scale: Tensor) -> Tensor:
        """Round float32 scales [grid] to those that can be stored under this level."""
        return _whole(scale, self.scale, self.low, self.high)

    def map_grids(self, change: Callable[[Tensor], Tensor]) -> SuperBlockLevel:
        """Apply ``change`` to every tensor with an entry for each block."""
        minimum = None if self.minimum is None else change(self.minimum)
        return dataclasses.replace(self, scale=change(self.scale), minimum=minimum)

    def to(self, device: torch.device | str) -> SuperBlockLevel:
        """Copy the level to ``device``."""
        return self.map_grids(lambda grid: grid.to(device))

    def join(self, parts: Sequence[SuperBlockLevel], dim: int) -> SuperBlockLevel:
        """Join the levels of a matrix's parts."""
        minimums = [part.minimum for part in parts if part.minimum is not None]
        return dataclasses.replace(
            self,
            scale=torch.cat([part.scale for part in parts], dim),
            minimum=torch.cat(minimums, dim) if minimums else None,
        )


@dataclass(frozen=True)
class NestedLevel:
    """The level above doubly quantized scales: stored · scale + mean, where stored is one of ``DYNAMIC_MAP``.

    scale  float32 [grid rows, grid columns]  the same number for all of ``NESTED_BLOCK`` blocks
    mean   float32 [grid rows, grid columns]  one number, of the whole tensor
    """

    scale: Tensor
    mean: Tensor

    def restore(self, stored: Tensor) -> Tensor:
        """Return the factors on the codes' values, float32 [grid]."""
        return stored * self.scale + self.mean

    def nearest(self, scale: Tensor) -> Tensor:
        """Round float32 scales [grid] to those that can be stored under this level."""
        share = (scale - self.mean) / self.scale
        levels = DYNAMIC_MAP.to(scale.device)
        return levels[torch.bucketize(torch.nan_to_num(share, 0.0), (levels[1:] + levels[:-1]) / 2)]

    def map_grids(self, change: Callable[[Tensor], Tensor]) -> NestedLevel:
        """Apply ``change`` to every tensor with an entry for each block."""
        return NestedLevel(change(self.scale), change(self.mean))

    def to(self, device: torch.device | str) -> NestedLevel:
        """Copy the level to ``device``."""
        return self.map_grids(lambda grid: grid.to(device))

    def join(self, parts: Sequence[NestedLevel], dim: int) -> NestedLevel:
        """Join the levels of a matrix's parts; ``ValueError`` if they were found apart."""
        if any(not torch.equal(part.mean.view(-1)[:1], self.mean.view(-1)[:1]) for part in parts):
            raise ValueError(
                "doubly quantized scales are found for a whole tensor, not for one part after another"
            )
        scale, mean = (torch.cat([getattr(part, name) for part in parts], dim) for name in ("scale", "mean"))
        return NestedLevel(scale, mean)


UpperLevel = SuperBlockLevel | NestedLevel


def divide(x: Tensor, by: float) -> Tensor:
    """Divide by a number with IEEE rounding: torch on a GPU multiplies by the reciprocal of a Python
    number."""
    return x / torch.full_like(x, by)


def round_scale(raw: Tensor, rule: ScaleRule) -> Tensor:
    """Round ``raw`` to the scale format, as float32; its magnitude is at least ``rule.smallest``."""
    size = raw.abs().clamp(rule.smallest, rule.format.max)
    if rule.format is not FLOAT32:
        size = rule.format.nearest(size)
    if rule.convention is Convention.COMPRESSED_TENSORS:
        size = torch.where(size == 0, torch.full_like(size, rule.format.eps), size)
    return size.copysign(raw)


def super_blocks(
    raw: Tensor, minimum: Tensor | None, scheme: Scheme
) -> tuple[Tensor, Tensor | None, SuperBlockLevel]:
    """Return stored scales [grid], offsets [grid] and the level above, from float32 scales ``raw`` [grid].

    The storage is that of GGUF's K-quants; scales from llama.cpp's search are rounded in ``core.k_quants``.
    With a ``minimum`` [grid], at most 0: scales d · s and offsets -(d' · m), s and m unsigned. Without:
    scales d · s of either sign; the one of largest magnitude takes the least integer.
    """
    rule, width = scheme.scale, scheme.block[1]
    assert rule is not None and rule.super_bits is not None and width is not None
    low, high = integer_limits(rule.super_bits, signed=minimum is None)
    each = SUPER_BLOCK // width
    scale = round_scale(divide(_largest(raw, each), float(low or high)), rule)
    stored = _whole(raw, scale, low, high)
    if minimum is None:
        return stored, None, SuperBlockLevel(scale, None, low, high)
    above = round_scale(divide(_largest(-minimum, each), float(high)), rule)
    return stored, -(_whole(-minimum, above, low, high) * above), SuperBlockLevel(scale, above, low, high)


def nested(raw: Tensor) -> tuple[Tensor, NestedLevel]:
    """Return stored scales [grid] and the level above, from nonnegative float32 scales ``raw`` [grid].

    The storage is bitsandbytes' (``compress_statistics``): less their mean, divided by the largest magnitude
    of each ``NESTED_BLOCK``, rounded to the nearest of 65536 even steps of -1 … 1 and then of
    ``DYNAMIC_MAP``. The mean is torch's on the CPU: above 32768 scales its last bit may depend on the number
    of threads.
    """
    flat, mean = raw.reshape(1, -1), _mean(raw.cpu()).to(raw.device)
    above = flat - mean
    scale = _largest(above, NESTED_BLOCK).abs()
    share = torch.where(scale == 0, torch.full_like(above, -1.0), above / scale)
    steps = ((share + 1) * 32767.5 + 0.5).floor()
    levels = DYNAMIC_MAP.to(raw.device)
    on_grid = divide(steps.double(), 32767.5).sub(1).float()
    stored = levels[torch.bucketize(on_grid, (levels[1:] + levels[:-1]) / 2)]
    return stored.view(raw.shape), NestedLevel(scale.view(raw.shape), mean.expand(raw.shape))


def _mean(x: Tensor) -> Tensor:
    """Compute torch's mean, float32 []; in float64 if the sum exceeds float32, and 0 for an empty tensor."""
    mean = x.mean() if x.numel() else x.new_zeros(())
    return mean if bool(mean.isfinite()) else x.double().mean().float()


def _dynamic_map() -> Tensor:
    """Build float32 [256], ascending: 0, 1, and ± the middles of 2^i even intervals of 10^(i-6) · (0.1 … 1)
    for i from 0 to 6 (dynamic tree quantization; Dettmers, arXiv 1511.04561 and 2110.02861)."""
    positive = []
    for i in range(7):
        ends = torch.linspace(0.1, 1, 2**i + 1, dtype=torch.float32)
        positive.append((ends[:-1] + ends[1:]) / 2 * 10.0 ** (i - 6))
    levels = torch.cat(positive)
    return torch.cat([-levels, torch.tensor([0.0, 1.0]), levels]).sort().values


DYNAMIC_MAP = _dynamic_map()
"""The values of doubly quantized scales by 8-bit code: bitsandbytes' dynamic map."""


def integer_limits(bits: int, signed: bool) -> tuple[int, int]:
    """The least and the largest integer of a stored block scale."""
    return (-(1 << (bits - 1)), (1 << (bits - 1)) - 1) if signed else (0, (1 << bits) - 1)


def _whole(x: Tensor, unit: Tensor, low: int, high: int) -> Tensor:
    """Divide float32 ``x`` by ``unit`` and round; 0 if the unit is 0. Integers have no -0.0."""
    whole = (x / unit).round().clamp(low, high) + 0.0
    return torch.where(unit == 0, torch.zeros_like(whole), whole)


def _largest(x: Tensor, each: int) -> Tensor:
    """Replace every ``each`` columns by their entry of largest magnitude, float32 [grid rows, grid columns];
    the first of equals.

    A zero is +0.0, since a GPU may choose another of equals.
    """
    runs = torch.nn.functional.pad(x, (0, -x.shape[1] % each)).unflatten(1, (-1, each))
    largest = runs.gather(2, runs.abs().argmax(2, keepdim=True))
    return (largest + 0.0).expand(runs.shape).flatten(1)[:, : x.shape[1]]
