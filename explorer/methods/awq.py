"""AWQ: enlarge important input channels before rounding, and shrink their activations to match.

J. Lin et al., "AWQ: Activation-aware Weight Quantization", arXiv 2306.00978. A channel's importance is its
mean activation magnitude. Weights are multiplied by s = importance^α (their equation 5), activations divided
by it, and α is the one of twenty with the smallest error of the layer's output (their section 3.2). The
operation before the layer absorbs 1/s.
"""

from __future__ import annotations

import dataclasses

import torch
from torch import Tensor

from explorer.core.quantize import quantize_with_scales
from explorer.core.ranges import find_ranges
from explorer.methods.factors import Readers, least_error
from explorer.methods.layer import Diagonal, Objective, QuantizedLayer, check_layer, row_groups
from explorer.methods.rtn import rtn
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme, scale_for
from explorer.schemes.calibrators import Range

ALPHAS = tuple(i / 20 for i in range(20))
SHRINKS = tuple(1 - i / 20 for i in range(10))
CLIP_TOKENS = 512
"""Tokens of the clipping search; its time and memory grow with them."""


def channel_scale(importance: Tensor, alpha: float) -> Tensor:
    """Scale of the channels: importance^α, scaled to max · min = 1; 1 for channels without importance.
    float16 [K]."""
    return _centred(importance.clamp(min=1e-8).pow(alpha), importance > 0)


def duo_scale(importance: Tensor, relative: Tensor, alpha: float) -> Tensor:
    """Scale of the channels as in AutoAWQ: importance^α over relative^(1-α), centred like ``channel_scale``.
    float16 [K]. ``relative`` [K]: ``relative_size`` of the weights."""
    scale = importance.clamp(min=1e-8).pow(alpha) / (relative.pow(1 - alpha) + 1e-4)
    return _centred(scale, importance > 0)


def relative_size(readers: Readers) -> Tensor:
    """Mean of |w| over its group's largest, over the rows of all layers: float32 [K]."""
    parts = []
    for weight, scheme in zip(readers.weights, readers.schemes, strict=True):
        groups = row_groups(weight.abs(), scheme.block[1] or weight.shape[1])
        groups = groups / groups.amax(2, keepdim=True).clamp(min=1e-12)
        parts.append(groups.view(len(weight), -1)[:, : weight.shape[1]])
    return torch.cat(parts).mean(0)


def awq_factor(
    readers: Readers, progress: Progress | None = None, *, duo: bool = False, steps: int = len(ALPHAS)
) -> tuple[Diagonal, Objective]:
    """Search the channels' scale for layers that read the same inputs: of twenty α the one with the smallest
    error of all their outputs, and the mean squared error at each α. ``duo``: see ``awq``."""
    importance = readers.activations.abs().mean(0)
    if duo:
        relative = relative_size(readers)
        scales = (duo_scale(importance, relative, alpha) for alpha in ALPHAS)
    else:
        scales = (channel_scale(importance, alpha) for alpha in ALPHAS)
    return least_error(readers, scales, progress, steps)


def awq(
    weight: Tensor,
    scheme: Scheme,
    activations: Tensor,
    progress: Progress | None = None,
    *,
    duo: bool = False,
    clip: bool = False,
) -> QuantizedLayer:
    """Quantize ``weight`` [N, K] for the inputs ``activations`` [tokens, K].

    ``objective`` is the mean squared error of the output at each α. With ``duo`` scales also depend on the
    relative size of the weights; ``clip`` then searches each block's range (``clip_search``). ``ValueError``
    for shapes that do not match, and for ``clip`` under schemes with blocks that span rows.
    """
    check_layer(weight, activations)
    w, x = weight.float(), activations.float()
    readers = Readers((w,), (scheme,), x)
    chosen, objective = awq_factor(readers, progress, duo=duo, steps=len(ALPHAS) + clip)
    finish = clipped if clip else rtn
    layer = finish(chosen.weight(w), scheme, chosen.inputs(x))
    return dataclasses.replace(layer, transforms=(chosen,), objective=objective)


def clipped(
    weight: Tensor, scheme: Scheme, activations: Tensor, progress: Progress | None = None
) -> QuantizedLayer:
    """Round ``weight`` [N, K] to nearest within the ranges of ``clip_search`` for ``activations`` [tokens,
    K]."""
    check_layer(weight, activations)
    weight = weight.float()
    if scheme.scale is not None and scheme.scale.is_searched:  # ranges would replace llama.cpp's search
        return rtn(weight, scheme, activations)
    ranges = clip_search(weight, scheme, activations.float())
    return QuantizedLayer(
        quantize_with_scales(weight, scheme, scale_for(ranges, scheme, weight.abs().amax()))
    )


def clip_search(weight: Tensor, scheme: Scheme, activations: Tensor) -> Range:
    """Search the range of each block with the smallest error of its part of the output, of ten from 100 %
    down to 55 %; a tensor scale stays that of the whole ``weight``.

    ``weight`` [N, K], ``activations`` [tokens, K]. ``ValueError`` unless blocks are rows or groups along
    them.
    """
    if scheme.scale is None or scheme.block[0] != 1:
        raise ValueError(
            f"ranges are searched for rows, or groups along them; {scheme.label} is something else"
        )
    width = scheme.block[1] or weight.shape[1]
    full, x = find_ranges(weight, scheme), row_groups(activations[:CLIP_TOKENS], width)
    largest = weight.abs().amax()
    gram = torch.einsum("tgi,tgj->gij", x, x) / len(x)
    least, factor = torch.full_like(full.high, float("inf")), torch.ones_like(full.high)
    for shrink in SHRINKS:
        checkpoint()
        clipped = full.scaled(shrink, shrink)
        rounded = quantize_with_scales(weight, scheme, scale_for(clipped, scheme, largest)).dequantize()
        error = row_groups(weight - rounded, width)
        cost = (torch.einsum("ngi,gij->ngj", error, gram) * error).sum(2)
        factor = torch.where(cost < least, shrink, factor)
        least = torch.minimum(cost, least)
    return full.scaled(factor, factor)


def _centred(s: Tensor, seen: Tensor) -> Tensor:
    """Divide ``s`` by √(largest · smallest) of the channels that are ``seen``; 1 for the others: under a
    scale near 0 their weights would be lost."""
    live = s.clamp(min=1e-4)[seen]
    middle = (live.max() * live.min()).sqrt() if len(live) else s.new_ones(())
    return Diagonal.rounded(torch.where(seen, s.clamp(min=1e-4) / middle, 1.0)).scale
