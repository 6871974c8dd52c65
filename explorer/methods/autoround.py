"""AutoRound: learn the rounding of each weight and the range of its block by signed gradient descent.

W. Cheng et al., "Optimize Weight Rounding via Signed Gradient Descent for the Quantization of LLMs",
arXiv 2309.05516. With an offset V in [-½, ½] for each weight and two factors α, β ≤ 1 for each block
(their equations 3 and 4):

    Ŵ = s · (clip(⌊W/s + z + V⌉) - z)      s and z from the range β·min W … α·max W
    V ← V - lr · sign(∂L/∂V)               likewise α and β; lr falls from 1/200 to 0 in 200 steps

The gradient passes through the rounding unchanged. L is the mean squared error of this layer's output over
all tokens (the paper's is that of a whole decoder block over a few sequences at a time), and the best step is
kept. V, α and β are not stored, but only the resulting codes, scales and zero points.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor
from explorer.core.ranges import find_ranges
from explorer.formats import IntegerFormat
from explorer.methods.layer import (
    QuantizedLayer,
    check_layer,
    check_objective,
    of_groups,
    row_groups,
    safe_divisor,
    same_gram,
)
from explorer.progress import Progress, checkpoint
from explorer.schemes import MappingType, Scales, Scheme, scale_for

ITERATIONS = 200
TINY = 1e-30


def autoround(
    weight: Tensor, scheme: Scheme, activations: Tensor, progress: Progress | None = None
) -> QuantizedLayer:
    """Quantize ``weight`` [N, K] for the inputs ``activations`` [tokens, K] under an integer scheme of rows
    or groups.

    ``objective`` is L before the first and after each step. ``ValueError`` for other schemes, and if L is Inf
    or NaN.
    """
    check_layer(weight, activations)
    integers = isinstance(scheme.format, IntegerFormat) and not scheme.mapping.has_offset
    if not (integers and scheme.block[0] == 1):
        raise ValueError(
            "AutoRound learns how integers are rounded in rows, or groups along them; "
            f"{scheme.label} is something else"
        )
    if scheme.scale is not None and scheme.scale.is_searched:
        raise ValueError(
            f"AutoRound learns where ranges are clipped; the scales of {scheme.label} are found by "
            f"llama.cpp's search. The same format with ranges is {scheme.of_ranges.text}"
        )
    problem = _Problem(weight.detach().float(), scheme, same_gram(activations.detach().float()))
    offset, shares = torch.zeros_like(problem.w), torch.ones(2, *problem.whole.high.shape).to(problem.w)
    objective: list[float] = []
    best = (offset, shares)
    for step in range(ITERATIONS + 1):
        checkpoint()
        loss, gradients = problem.loss_and_gradients(offset, shares)
        if not objective or loss < min(objective):
            best = (offset, shares)
        objective.append(loss)
        rate = (1 - step / ITERATIONS) / ITERATIONS
        offset = (offset - rate * gradients[0].sign()).clamp(-0.5, 0.5)
        shares = (shares - rate * gradients[1].sign()).clamp(0, 1)
        if progress is not None:
            progress(step, ITERATIONS)
    return QuantizedLayer(problem.quantized(*best), objective=tuple(x / len(activations) for x in objective))


class _Problem:
    """A weight in groups [N, groups, width], the last one padded, and its inputs."""

    def __init__(self, weight: Tensor, scheme: Scheme, inputs: Tensor) -> None:
        self.shape, self.scheme, self.inputs = (weight.shape[0], weight.shape[1]), scheme, inputs
        self.w = row_groups(weight, scheme.block[1] or weight.shape[1])
        self.whole = find_ranges(weight, scheme)

    def loss_and_gradients(self, offset: Tensor, shares: Tensor) -> tuple[float, tuple[Tensor, ...]]:
        """Squared error of the output, summed over tokens and averaged over outputs; its gradients by
        ``offset`` and by ``shares`` [2, N, groups] (of low and high end)."""
        with torch.enable_grad():
            at = (offset.requires_grad_(), shares.requires_grad_())
            codes, zero, scale, _ = self._codes(*at)
            error = ((codes - zero) * scale - self.w).flatten(1)[:, : self.shape[1]]
            loss = (error @ self.inputs.t()).square().sum() / len(error)
            gradients = torch.autograd.grad(loss, at)
        offset.requires_grad_(False)
        shares.requires_grad_(False)
        return check_objective(float(loss.detach())), gradients

    def quantized(self, offset: Tensor, shares: Tensor) -> QuantizedTensor:
        codes, _, _, scales = self._codes(offset, shares)
        return of_groups(codes.round(), scales, self.scheme, self.shape)

    def _codes(self, offset: Tensor, shares: Tensor) -> tuple[Tensor, Tensor, Tensor, Scales]:
        """Codes, and zero points and scales that broadcast over them, all with gradients; and the stored
        scales."""
        low, high = self.whole.low * shares[0], self.whole.high * shares[1]
        found = dataclasses.replace(self.whole, low=low.detach(), high=high.detach())
        scales = scale_for(found, self.scheme)
        # A scale is proportional to its range's size, before it is rounded to be stored.
        size = self._size(low, high).clamp(min=TINY)
        scale = scales.scale * (size / size.detach())
        zero = torch.zeros_like(scale)
        if scales.zero_points is not None:
            zero = _as_if(self.scheme.code_limits[0] - low / safe_divisor(scale), scales.zero_points.float())
        scaled = self.w / safe_divisor(scale)[:, :, None] + zero[:, :, None] + offset
        codes = _as_if(scaled, scaled.detach().round()).clamp(*self.scheme.code_limits)
        return codes, zero[:, :, None], scale[:, :, None], scales

    def _size(self, low: Tensor, high: Tensor) -> Tensor:
        """Extent of a range, which its scale is proportional to; under NO_CLIP in codes of that side."""
        if self.scheme.asymmetric:
            return high - low
        if self.scheme.mapping is MappingType.NO_CLIP:
            least, largest = self.scheme.code_limits
            return torch.maximum(low / least, high / largest)
        return torch.maximum(-low, high)


def _as_if(smooth: Tensor, rounded: Tensor) -> Tensor:
    """Give ``rounded`` the gradient of ``smooth`` (the straight-through estimator)."""
    return smooth + (rounded - smooth).detach()
