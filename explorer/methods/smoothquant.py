"""SmoothQuant: move the activations' outliers into the weights, where they do less harm.

G. Xiao et al., "SmoothQuant: Accurate and Efficient Post-Training Quantization for Large Language Models",
arXiv 2211.10438. A channel's scale is s = max|X|^α / max|W|^(1-α) (their equation 4); activations are divided
by it, weights multiplied, and the product stays what it was. It is meant for products with both sides
quantized: with float inputs it only moves where the error is made.

α = 0.5 is their default, 0.75 what they take for models with larger outliers. ``smoothquant_search`` takes
the α with the least error of the output on the calibration inputs, as AWQ does with its own.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from explorer.methods.awq import ALPHAS
from explorer.methods.factors import Readers, least_error
from explorer.methods.layer import Diagonal, Objective, check_layer
from explorer.schemes import Scheme

SMALLEST = 1e-5
"""Floor of maxima and scales, so that a channel without values is left alone."""


def smoothing(activations: Tensor, weights: Sequence[Tensor], alpha: float = 0.5) -> Tensor:
    """float32 [K]: the scale of each input channel of all ``weights`` [N, K] that share ``activations``
    [tokens, K]; that of channels without input is the geometric mean of the others.

    ``ValueError`` for α outside 0 … 1 and for shapes that do not match.
    """
    if not 0 <= alpha <= 1:
        raise ValueError(f"α is between 0 and 1, not {alpha}")
    for weight in weights:
        check_layer(weight, activations)
    largest_w = weights[0].abs().amax(0)
    for weight in weights[1:]:
        largest_w = largest_w.maximum(weight.abs().amax(0))
    largest_x = activations.abs().amax(0)
    numerator = largest_x.float().clamp(min=SMALLEST).pow(alpha)
    scale = (numerator / largest_w.float().clamp(min=SMALLEST).pow(1 - alpha)).clamp(min=SMALLEST)
    seen = largest_x > 0
    return torch.where(seen, scale, scale[seen].log().mean().exp() if bool(seen.any()) else 1.0)


def smoothquant_factor(readers: Readers) -> tuple[Diagonal, Objective]:
    """The transform of layers that read the same inputs, with α = 0.5, whatever the schemes."""
    return readers.tied(smoothing(readers.activations, readers.weights)), ()


def smoothquant_search_factor(readers: Readers) -> tuple[Diagonal, Objective]:
    """The transform with the best of twenty α, and the mean squared error of the outputs at each: weights are
    rounded to nearest, inputs quantized by ``readers.of_inputs`` if given."""
    scales = (smoothing(readers.activations, readers.weights, alpha) for alpha in ALPHAS)
    return least_error(readers, scales)


def smoothquant(
    weight: Tensor, activations: Tensor, scheme: Scheme, of_inputs: Scheme | None
) -> tuple[Diagonal, Objective]:
    """The transform for one ``weight`` [N, K] and its inputs ``activations`` [tokens, K], with α = 0.5,
    whatever the schemes."""
    return smoothquant_factor(Readers((weight,), (scheme,), activations, of_inputs))


def smoothquant_search(
    weight: Tensor, activations: Tensor, scheme: Scheme, of_inputs: Scheme | None
) -> tuple[Diagonal, Objective]:
    """The transform with the best of twenty α, and the mean squared error of the output at each.

    ``weight`` [N, K] is rounded to nearest by ``scheme``, ``activations`` [tokens, K] by ``of_inputs`` if
    given.
    """
    return smoothquant_search_factor(Readers((weight,), (scheme,), activations, of_inputs))
