"""AWQ: enlarge the input channels that matter before rounding, and shrink their activations to match.

J. Lin et al., "AWQ: Activation-aware Weight Quantization", arXiv 2306.00978. A channel's importance is its mean activation
magnitude; weights are multiplied by s = importance^α (their equation 5), activations divided by it, and α is the one of twenty
with the least error of the layer's output (their section 3.2). 1/s belongs into the operation before the layer.
"""

from __future__ import annotations

import torch
from torch import Tensor

from explorer.methods.result import Repaired, check_layer
from explorer.numerics.quantize import quantize
from explorer.numerics.schemes import Scheme

ALPHAS = tuple(i / 20 for i in range(20))


def channel_scale(importance: Tensor, alpha: float) -> Tensor:
    """[K]: importance^α, centred so that the largest and the smallest are each other's inverse."""
    s = importance.clamp(min=1e-8).pow(alpha).clamp(min=1e-4)
    return s / (s.max() * s.min()).sqrt()


def duo_scale(importance: Tensor, weight: Tensor, group: int, alpha: float) -> Tensor:
    """[K]: importance^α over (mean |w| / its group's largest)^(1-α), as AutoAWQ has it; centred likewise."""
    n, k = weight.shape
    padded = torch.nn.functional.pad(weight.abs(), (0, -k % group)).view(n, -1, group)
    relative = (padded / padded.amax(2, keepdim=True).clamp(min=1e-12)).view(n, -1)[:, :k].mean(0)
    s = (importance.clamp(min=1e-8).pow(alpha) / (relative.pow(1 - alpha) + 1e-4)).clamp(min=1e-4)
    return s / (s.max() * s.min()).sqrt()


def awq(weight: Tensor, scheme: Scheme, activations: Tensor, *, duo: bool = False) -> Repaired:
    """Quantize ``weight`` [N, K] for the inputs ``activations`` [tokens, K]; ``film`` is the mean squared output error at each α.

    ``ValueError`` for shapes that do not match.
    """
    check_layer(weight, activations)
    w, x = weight.float(), activations.float()
    importance, truth = x.abs().mean(0), x.double() @ w.double().t()
    film, best, chosen = [], float("inf"), torch.ones_like(importance)
    for alpha in ALPHAS:
        s = duo_scale(importance, w, scheme.block[1] or w.shape[1], alpha) if duo else channel_scale(importance, alpha)
        restored = quantize(w * s, scheme).dequantize() / s
        film.append(float((x.double() @ restored.double().t() - truth).square().mean()))
        if film[-1] < best:
            best, chosen = film[-1], s
    return Repaired(quantize(w * chosen, scheme), chosen, tuple(film))
