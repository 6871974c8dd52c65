"""Calibration: which range of values a block's codes should span.

A calibrator looks at the blocks of a tensor and answers with a ``Range`` per block; ``schemes.scale_for``
turns that into scales and zero points. Blocks arrive as views [grid rows, block rows, grid columns,
block columns], so that a reduction over dims 1 and 3 leaves one number a block.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

BLOCK_DIMS = (1, 3)


@dataclass(frozen=True)
class Range:
    """Per block [grid rows, grid columns], float32: the values that the codes should span.

    ``low`` <= 0 <= ``high`` always, so that zero is representable.
    """

    low: Tensor
    high: Tensor

    @property
    def amax(self) -> Tensor:
        return torch.maximum(-self.low, self.high)


@dataclass(frozen=True)
class Calibrator:
    """One way to choose a range. ``of(blocks)`` -> Range, one entry a block."""

    name: str
    label: str
    of: Callable[[Tensor], Range]
    explanation: str


def _minmax(blocks: Tensor) -> Range:
    return Range(blocks.amin(BLOCK_DIMS).clamp_(max=0), blocks.amax(BLOCK_DIMS).clamp_(min=0))


def _mean_magnitude(blocks: Tensor) -> Tensor:
    """float32 mean |x| per block, summed in float64 so that the order of the sum does not matter."""
    total = torch.linalg.vector_norm(blocks, 1, BLOCK_DIMS, dtype=torch.float64)
    return (total / (blocks.shape[1] * blocks.shape[3])).to(torch.float32)


def _absmean(blocks: Tensor) -> Range:
    mean = _mean_magnitude(blocks)
    return Range(-mean, mean)


def _twn(blocks: Tensor) -> Range:
    mean = _mean_magnitude(blocks) * 1.4
    return Range(-mean, mean)


MINMAX = Calibrator("minmax", "min-max", _minmax, "the smallest and the largest value: nothing is clipped")
ABSMEAN = Calibrator("absmean", "mean magnitude", _absmean, "plus and minus the mean of |x| (BitNet b1.58, XNOR-Net)")
TWN = Calibrator(
    "twn", "TWN threshold", _twn, "1.4 mean |x|, so that ternary rounding cuts at 0.7 mean |x| (TWN, arXiv 1605.04711)"
)

CALIBRATORS: dict[str, Calibrator] = {row.name: row for row in (MINMAX, ABSMEAN, TWN)}
