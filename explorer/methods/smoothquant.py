"""SmoothQuant: move the activations' outliers into the weights, which they affect less.

G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
arXiv 2211.10438. A channel's scale is s = max|X|^α / max|W|^(1-α) (their equation 4); activations are divided
by it, weights multiplied, and the product stays the same. It is meant for products with both sides
quantized: with float inputs it only moves the error from one weight to another.

α = 0.5 is their default, 0.75 their value for models with larger outliers. ``smoothquant_search`` takes the α
with the smallest error of the output on the calibration inputs, as AWQ does.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from explorer.methods.awq import ALPHAS
from explorer.methods.factors import Readers, least_error
from explorer.methods.layer import Diagonal, Objective, check_layer

SMALLEST = 1e-5
"""Lower limit of maxima and scales, so that a channel without values does not change."""


def smoothing(activations: Tensor, weights: Sequence[Tensor], alpha: float = 0.5) -> Tensor:
    """Compute the scale float32 [K] of the input channels of all ``weights`` [N, K] that share
    ``activations`` [tokens, K]; channels without input have the geometric mean of the others.

    ``ValueError`` for α outside 0 … 1 and for shapes that do not match.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"α is between 0 and 1, not {alpha}")
    for weight in weights:
        check_layer(weight, activations)
    largest_w = torch.stack([weight.abs().amax(0) for weight in weights]).amax(0)
    largest_x = activations.abs().amax(0)
    numerator = largest_x.float().clamp(min=SMALLEST).pow(alpha)
    scale = (numerator / largest_w.float().clamp(min=SMALLEST).pow(1 - alpha)).clamp(min=SMALLEST)
    seen = largest_x > 0
    return torch.where(seen, scale, scale[seen].log().mean().exp() if bool(seen.any()) else 1.0)


def smoothquant(readers: Readers) -> tuple[Diagonal, Objective]:
    """Compute the transform of layers that read the same inputs, with α = 0.5, whatever the schemes."""
    return readers.tied(smoothing(readers.activations, readers.weights)), ()


def smoothquant_search(readers: Readers) -> tuple[Diagonal, Objective]:
    """Search the best of twenty α, with the mean squared error of the outputs at each: weights are rounded to
    nearest, inputs quantized by ``readers.of_inputs`` if given."""
    scales = (smoothing(readers.activations, readers.weights, alpha) for alpha in ALPHAS)
    return least_error(readers, scales)
