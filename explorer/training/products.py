"""Linear layers whose three products, one forwards and two backwards, have quantized operands: NVFP4
training.

Y = X Wᵀ, dL/dX = dL/dY W and dL/dW = dL/dYᵀ X are each computed from operands in blocks along the axis that
is summed. The rules are those of NVIDIA, "Pretraining Large Language Models with NVFP4", arXiv 2509.25149:

* weights in tiles of 16 x 16, whose transpose has the same values: both products see the same weight;
* the operands of dL/dW are multiplied by a random Hadamard matrix along tokens, 16 at a time, which the
  product undoes;
* gradients are rounded stochastically, all else to nearest;
* some layers, the last above all, are left as they are.

Their scheme for gradients clips values beyond the reach of the rounded scale; ``NVFP4`` has the range
"unclipped", so that the expected value of a rounded gradient is the gradient. Parameters, gradients of
parameters and sums are in the model's own dtype.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from explorer.core.hadamard import Rotation, find_rotation
from explorer.core.quantize import quantize
from explorer.schemes import SCHEMES, Scheme
from explorer.training.layers import check_plain, replace_linear

MOST_CALLS = 1 << 32
"""Number of calls of one layer whose stochastic roundings have different seeds."""


@dataclass(frozen=True)
class TrainingPrecision:
    """Quantization of the operands of a linear layer's products.

    ``weights`` [N, K] forwards and transposed backwards, ``inputs`` [tokens, K] and ``gradients`` [tokens,
    N], both also transposed for dL/dW; ``stochastic`` rounds the gradients stochastically; ``hadamard``:
    order of the random Hadamard matrix that the operands of dL/dW are multiplied by, 1 for none.
    ``ValueError`` for another order, and for schemes that have a seed already.
    """

    weights: Scheme
    inputs: Scheme
    gradients: Scheme
    stochastic: bool = True
    hadamard: int = 16

    def __post_init__(self) -> None:
        if self.hadamard < 1 or self.hadamard & (self.hadamard - 1):
            raise ValueError(f"a Hadamard matrix here has 1, 2, 4, 8 … rows, not {self.hadamard}")
        if any(scheme.seed is not None for scheme in (self.weights, self.inputs, self.gradients)):
            raise ValueError("seeds of stochastic rounding are the layer's: give schemes without one")


_TILES = Scheme.parse("float4_e2m1fn~16x16~symmetric~nvfp4~minmax")
_UNCLIPPED = Scheme.parse("float4_e2m1fn~1x16~symmetric~nvfp4~unclipped")
NVFP4 = TrainingPrecision(_TILES, SCHEMES["nvfp4"], _UNCLIPPED)
"""NVIDIA's rules, with headroom for gradients."""
_CAST = SCHEMES["bf16"]
BF16 = TrainingPrecision(_CAST, _CAST, _CAST, stochastic=False, hadamard=1)
"""Operands rounded to BF16."""


class TrainedLinear(nn.Module):
    """A linear layer with products computed by ``precision``: operands are restored and multiplied in the
    model's dtype. Its parameters are those of ``linear``, under the same names.

    Under autocast they are multiplied in its dtype. Where the gradient of the output holds an Inf or a NaN,
    as after a loss scale that was too large, both gradients are NaN, and ``GradScaler`` skips the step.
    ``seed``, below 2^31, makes the roundings of one layer differ from another's; ``calls`` counts forward
    passes, so that the roundings of each pass differ; it is in no state dict.
    ``torch.compile`` runs the layer as it is, between compiled parts of the model; with ``fullgraph=True`` it
    raises its own error, with the reason.
    ``ValueError`` for a layer that computes in another way than ``nn.Linear``.
    """

    def __init__(self, linear: nn.Linear, precision: TrainingPrecision, seed: int = 0) -> None:
        super().__init__()
        check_plain(linear)
        if not 0 <= seed < 1 << 31:
            raise ValueError(f"the seed of a layer is from 0 to 2^31 - 1, not {seed}")
        self.weight, self.bias = linear.weight, linear.bias
        self.precision, self.seed, self.calls = precision, seed, 0
        self.train(linear.training)

    @torch.compiler.disable(reason="TrainedLinear checks values on the host while it quantizes them")
    def forward(self, x: Tensor) -> Tensor:
        """Compute [..., N] for ``x`` [..., K]."""
        first = (self.seed * MOST_CALLS + self.calls % MOST_CALLS) * 2
        self.calls += 1
        weight: Tensor = self.weight
        bias: Tensor | None = self.bias
        if torch.is_autocast_enabled(x.device.type):
            dtype = torch.get_autocast_dtype(x.device.type)
            x, weight, bias = x.to(dtype), weight.to(dtype), None if bias is None else bias.to(dtype)
        y: Tensor = _Products.apply(x.reshape(-1, x.shape[-1]), weight, self.precision, first)
        y = y.view(*x.shape[:-1], len(self.weight))
        return y if bias is None else y + bias

    def extra_repr(self) -> str:
        rows, columns = self.weight.shape
        return f"in={columns}, out={rows}, {self.precision.weights.name}"


class _Products(torch.autograd.Function):
    """Autograd function X Wᵀ of quantized operands; ``first`` and ``first`` + 1 are the seeds of the backward
    pass."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, w: Tensor, by: TrainingPrecision, first: int) -> Tensor:
        ctx.save_for_backward(x, w)
        ctx.by, ctx.first = by, first
        return _rounded(x, by.inputs) @ _rounded(w, by.weights).t()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, Tensor | None, None, None]:
        (x, w), by, dx, dw = ctx.saved_tensors, ctx.by, None, None
        if not len(x):
            return torch.zeros_like(x), torch.zeros_like(w), None, None
        if not bool(dy.isfinite().all()):
            return torch.full_like(x, math.nan), torch.full_like(w, math.nan), None, None
        first, second = (ctx.first, ctx.first + 1) if by.stochastic else (None, None)
        if ctx.needs_input_grad[0]:
            dx = _rounded(dy, by.gradients, first) @ _rounded(w.t(), by.weights).t()
        if ctx.needs_input_grad[1]:
            left, right = (_mixed(part.t().contiguous(), by.hadamard) for part in (dy, x))
            dw = _rounded(left, by.gradients, second) @ _rounded(right, by.inputs).t()
        return dx, dw, None, None


def _rounded(x: Tensor, scheme: Scheme, seed: int | None = None) -> Tensor:
    """Quantize ``x`` [rows, cols] by ``scheme`` and restore it in its own dtype; stochastically with a
    ``seed``."""
    if seed is not None:
        scheme = dataclasses.replace(scheme, seed=seed)
    return quantize(x.contiguous(), scheme).dequantize(x.dtype)


def _mixed(x: Tensor, order: int) -> Tensor:
    """Multiply each ``order`` tokens of ``x`` [rows, tokens] by a random Hadamard matrix.

    The last are padded with zeros, which add nothing to a product. All layers and steps have the same signs,
    as NVIDIA's have.
    """
    if order == 1:
        return x
    x = nn.functional.pad(x, (0, -x.shape[1] % order))
    signs = find_rotation(order, device=x.device).signs
    return Rotation(signs.repeat(x.shape[1] // order), 1, order).inputs(x).to(x.dtype)


def prepare_training(
    model: nn.Module, precision: TrainingPrecision = NVFP4, *, keep: Sequence[str] = ()
) -> list[str]:
    """Replace every ``nn.Linear`` of ``model`` in place by a ``TrainedLinear`` that shares its parameters.

    Returns the names replaced. ``keep``: names or patterns of layers that stay as they are. ``ValueError`` as
    ``training.layers.prepare``.
    """
    seeds = itertools.count()
    return replace_linear(model, lambda layer: TrainedLinear(layer, precision, next(seeds)), keep)
