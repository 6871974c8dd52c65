"""LQER and QERA: the largest part of the rounding error, as weighted by the inputs, in two float16 factors.

C. Zhang et al., "LQER: Low-Rank Quantization Error Reconstruction for LLMs", arXiv 2402.02446. This is their
L²QER (section 3.2), transposed, since weights are [N, K] here: with E = W - Ŵ and the diagonal S of the input
channels' mean magnitudes,

    E · S = U Σ Vᵀ              the singular value decomposition of the weighted error
    E ≈ B · A                   B = U_k Σ_k [N, k],  A = V_kᵀ S⁻¹ [k, K]
    Y = Ŵ X + B · (A · X)       a product of rank k beside the quantized one

where s_i = a_i / √(min a · max a), and a_i is the mean of |x_i| over the calibration tokens, at least 1e-4,
as their code's ``statistic_profiler/scale.py`` computes it for one sample.

C. Zhang et al., "QERA: an Analytical Framework for Quantization Error Reconstruction", arXiv 2410.06040, take
S = R^½ instead (their theorem 1), the root of the inputs' autocorrelation R = Σ x xᵀ / tokens. E·S then has
the norm of the output's error, and by Eckart and Young no product of that rank has a smaller error on these
tokens. Any L with L·Lᵀ = R gives the same product: here it is [K, r] by a singular value decomposition of x.

Here Σ_k is split evenly between the factors, which keeps float16 out of its subnormals and does not change
the product. After another method they correct the remaining error.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from explorer.methods.layer import QuantizedLayer, Residue, as_float16, check_layer, same_gram

RANK = 16
SMALLEST_MAGNITUDE, SMALLEST_ENERGY = 1e-4, 1e-12


@dataclass(frozen=True, eq=False)
class LowRank(Residue):
    """up · down is added to the weight: ``down`` float16 [k, K], ``up`` float16 [N, k] (LoRA's A and B)."""

    down: Tensor
    up: Tensor
    names: ClassVar[tuple[str, ...]] = ("low_rank.down", "low_rank.up")

    def product(self, x: Tensor, remaining: Tensor) -> Tensor:
        return remaining @ self.down.to(remaining.dtype).t() @ self.up.to(remaining.dtype).t()

    def merged(self, values: Tensor) -> Tensor:
        return values + self.up.to(values.dtype) @ self.down.to(values.dtype)


def lqer(layer: QuantizedLayer, weight: Tensor, activations: Tensor, *, rank: int = RANK) -> LowRank:
    """Correct the error of ``layer`` against ``weight`` [N, K] for its inputs ``activations`` [tokens, K].

    ``rank`` is limited to min(N, K). ``ValueError`` for a rank below one, for shapes that do not match and
    for factors beyond float16.
    """
    error, x = _error_and_inputs(layer, weight, activations, rank)
    s = channel_weights(x)
    up, down = factor(error * s, min(rank, *error.shape))
    return _in_float16(down / s, up)


def qera(layer: QuantizedLayer, weight: Tensor, activations: Tensor, *, rank: int = RANK) -> LowRank:
    """Correct the error as ``lqer`` does, with the smallest error of the output for ``activations`` of any
    product of that rank."""
    error, x = _error_and_inputs(layer, weight, activations, rank)
    root, inverse = autocorrelation_roots(x)
    up, down = factor(error @ root, min(rank, len(error), root.shape[1]))
    return _in_float16(down @ inverse, up)


def _in_float16(down: Tensor, up: Tensor) -> LowRank:
    return LowRank(*(as_float16(t, "the correction's factors") for t in (down, up)))


def _error_and_inputs(
    layer: QuantizedLayer, weight: Tensor, activations: Tensor, rank: int
) -> tuple[Tensor, Tensor]:
    """float64 [N, K] and float32 [tokens, K] in the basis of the codes: the weight error, and the inputs."""
    check_layer(weight, activations)
    if rank < 1:
        raise ValueError(f"the rank of a correction is at least 1, not {rank}")
    error = layer.transform_weight(weight.float()) - layer.transformed_weight()
    return error.double(), layer.transform_inputs(activations.float())


def autocorrelation_roots(activations: Tensor) -> tuple[Tensor, Tensor]:
    """Factor R = xᵀx / tokens of ``activations`` [tokens, K]: float64 L [K, r] with L·Lᵀ = R, and its
    pseudo-inverse [r, K].

    r ≤ min(tokens, K): directions with less than 1e-12 of the largest energy count as empty. With fewer
    tokens than channels R has no inverse, and errors in directions without tokens are not corrected.
    """
    _, sizes, directions = torch.linalg.svd(same_gram(activations.double()), full_matrices=False)
    sizes = sizes / len(activations) ** 0.5
    seen = (sizes > SMALLEST_ENERGY**0.5 * sizes[0]).nonzero()[:, 0]
    sizes, directions = sizes[seen], directions[seen]
    return directions.t() * sizes, directions / sizes[:, None]


def channel_weights(activations: Tensor) -> Tensor:
    """float64 [K]: the diagonal of S, the channels' mean magnitudes, scaled to max · min = 1."""
    mean = activations.double().abs().mean(0).clamp(min=SMALLEST_MAGNITUDE)
    return mean / (mean.min() * mean.max()).sqrt()


def factor(matrix: Tensor, rank: int) -> tuple[Tensor, Tensor]:
    """Factor a float64 ``matrix`` [N, K] into U_k √Σ_k [N, k] and √Σ_k V_kᵀ [k, K].

    Singular vectors of the shorter side come from its Gram matrix: squared singular values keep eight digits
    in float64, more than float16 factors can hold, at a fraction of a full decomposition's time.
    """
    if matrix.shape[0] > matrix.shape[1]:
        up, down = factor(matrix.t(), rank)
        return down.t(), up.t()
    _, vectors = torch.linalg.eigh(matrix @ matrix.t())  # ascending
    u = vectors[:, -rank:].flip(1)
    sigma_v = u.t() @ matrix
    root = sigma_v.norm(dim=1).clamp(min=1e-30).sqrt()
    return u * root, sigma_v / root[:, None]
