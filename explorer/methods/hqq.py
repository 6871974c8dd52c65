"""HQQ: real-valued zero points by half-quadratic splitting, without calibration data.

H. Badri, A. Shaji, "Half-Quadratic Quantization of Large Machine Learning Models",
mobiusml.github.io/hqq_blog. The error is measured by |W - Ŵ|^p with p = 0.7, which gives less weight to the
outliers that set a group's range. Two steps alternate: the error is shrunk by their generalized soft
threshold, and the zero point becomes the mean of the remainder. Scales are those of min-max. The codes are
stored with the zero point rounded; its fraction is stored as an offset of the group.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor
from explorer.core.ranges import find_ranges
from explorer.formats import IntegerFormat
from explorer.methods.layer import (
    QuantizedLayer,
    Residue,
    as_float16,
    check_layer,
    check_objective,
    of_groups,
    row_groups,
    safe_divisor,
)
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme, scale_for

NORM, BETA, GROWTH, ITERATIONS = 0.7, 10.0, 1.01, 20


@dataclass(frozen=True, eq=False)
class GroupOffset(Residue):
    """``offset`` float16 [N, groups] is added to all weights of a group of ``width`` columns."""

    offset: Tensor
    width: int
    names: ClassVar[tuple[str, ...]] = ("offset",)

    def product(self, x: Tensor, remaining: Tensor) -> Tensor:
        return row_groups(remaining, self.width).sum(2) @ self.offset.to(remaining.dtype).t()

    def merged(self, values: Tensor) -> Tensor:
        return values + self.offset.to(values.dtype).repeat_interleave(self.width, 1)[:, : values.shape[1]]

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], q: QuantizedTensor) -> GroupOffset:
        return cls(tensors["offset"], q.scheme.block[1] or q.shape[1])


def hqq(
    weight: Tensor, scheme: Scheme, activations: Tensor, progress: Progress | None = None
) -> QuantizedLayer:
    """Quantize ``weight`` [N, K] under an asymmetric integer scheme of rows or row groups; the activations
    are not used.

    ``objective`` is the mean of |W - Ŵ|^0.7 before the first and after each iteration; the best one is kept.
    ``ValueError`` for other schemes, and for weights with an error or offsets beyond float32 or float16.
    """
    check_layer(weight, activations)
    if not (isinstance(scheme.format, IntegerFormat) and scheme.asymmetric and scheme.block[0] == 1):
        raise ValueError(
            "HQQ moves zero points: it needs an asymmetric integer scheme of rows or groups, "
            f"{scheme.label} has none"
        )
    w = weight.float()
    width = scheme.block[1] or w.shape[1]
    ranges = find_ranges(w, scheme)
    scales = scale_for(ranges, scheme)
    assert scales.zero_points is not None
    problem = _Problem(w, scales.scale[:, :, None], width, scheme)
    zero = (scheme.code_limits[0] - ranges.low / safe_divisor(scales.scale))[:, :, None]
    codes, beta = problem.codes(zero), BETA
    objective, best = [problem.loss(codes, zero)], (codes, zero)
    for iteration in range(ITERATIONS):
        checkpoint()
        zero = problem.better_zero(codes, zero, beta)
        codes, beta = problem.codes(zero), beta * GROWTH
        loss = problem.loss(codes, zero)
        if loss < min(objective):
            best = (codes, zero)
        objective.append(loss)
        if progress is not None:
            progress(iteration + 1, ITERATIONS)
    codes, zero = best
    rounded = zero.round().clamp(*scheme.code_limits)
    offset = as_float16(((rounded - zero) * problem.scale)[:, :, 0], "the offsets of groups")
    stored = dataclasses.replace(scales, zero_points=rounded[:, :, 0].to(scales.zero_points.dtype))
    q = of_groups(codes, stored, scheme, (w.shape[0], w.shape[1]))
    return QuantizedLayer(q, residues=(GroupOffset(offset, width),), objective=tuple(objective))


class _Problem:
    """A weight in groups [N, groups, width], the last one padded, under fixed scales [N, groups, 1]."""

    def __init__(self, weight: Tensor, scale: Tensor, width: int, scheme: Scheme) -> None:
        self.scale, self.limits, self.elements = scale, scheme.code_limits, weight.numel()
        self.divisor = safe_divisor(scale)
        self.w, self.inside = row_groups(weight, width), row_groups(torch.ones_like(weight[:1]), width)

    def codes(self, zero: Tensor) -> Tensor:
        return (self.w / self.divisor + zero).round().clamp(*self.limits)

    def loss(self, codes: Tensor, zero: Tensor) -> float:
        """Mean of |W - Ŵ|^p."""
        error = (self.w - (codes - zero) * self.scale).abs().pow(NORM)
        return check_objective(float((error * self.inside).sum() / self.elements))

    def better_zero(self, codes: Tensor, zero: Tensor, beta: float) -> Tensor:
        """The mean over each group of codes - (W - shrunk error) / scale, [N, groups, 1]."""
        error = self.w - (codes - zero) * self.scale
        size = error.abs()
        shrunk = error.sign() * (size - size.clamp(min=1e-12).pow(NORM - 1) / beta).clamp(min=0)
        wanted = (codes - (self.w - shrunk) / self.divisor) * self.inside
        return wanted.sum(2, keepdim=True) / self.inside.sum(2, keepdim=True)
