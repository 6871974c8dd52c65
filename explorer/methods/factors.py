"""One factor for the input channels of several layers that read the same inputs.

The operation before the layers absorbs the inverse factor, and their weights are multiplied by it, so that
files hold plain codes. Methods that scale channels (AWQ, SmoothQuant) search the factor of a group; one layer
alone is a group of one.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Self

import torch
from torch import Tensor

from explorer.core.quantize import quantize
from explorer.methods.layer import Diagonal, Objective, same_gram
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme


@dataclass(frozen=True, eq=False)
class Readers:
    """Layers that read the same ``activations`` float32 [tokens, K].

    weights    float32 [N, K] of each
    schemes    of each
    of_inputs  how the inputs are quantized at run time; None if they are not
    rows       int64 [K]: channels with the same number share one factor, because the operation before makes
               them from one of its own; None if each channel has its own
    """

    weights: tuple[Tensor, ...]
    schemes: tuple[Scheme, ...]
    activations: Tensor
    of_inputs: Scheme | None = None
    rows: Tensor | None = None

    def tied(self, scale: Tensor) -> Diagonal:
        """Transform by ``scale`` [K], with the geometric mean of channels that share a factor."""
        return Diagonal.rounded(scale if self.rows is None else tied(scale, self.rows))

    def scaled(self, transform: Diagonal) -> Self:
        """Return the layers with their inputs in the basis of ``transform``."""
        weights = tuple(transform.weight(weight) for weight in self.weights)
        return replace(self, weights=weights, activations=transform.inputs(self.activations))


FindFactor = Callable[[Readers], tuple[Diagonal, Objective]]
"""Function that finds the transform of a group, and its objective, empty if nothing was searched."""


def tied(scale: Tensor, rows: Tensor) -> Tensor:
    """Average ``scale`` [K] geometrically over the channels with the same number in ``rows`` [K]: float32
    [K]."""
    logs = scale.float().log()
    sums = torch.zeros(int(rows.max()) + 1, device=logs.device).index_add_(0, rows, logs)
    counts = torch.bincount(rows).clamp_min(1)
    return (sums / counts)[rows].exp()


def least_error(
    readers: Readers, candidates: Iterable[Tensor], progress: Progress | None = None, steps: int = 0
) -> tuple[Diagonal, Objective]:
    """Choose the scale of ``candidates`` [K] with the smallest error of all outputs of the group, rounded to
    nearest; also return the mean squared error at each. ``progress`` counts ``steps``."""
    x, tokens = readers.activations, len(readers.activations)
    if readers.of_inputs is None:  # K rows then give every weight error the same norm as all tokens
        readers = replace(readers, activations=same_gram(x))
    share = len(readers.activations) / tokens
    targets = [readers.activations @ w.t() for w in readers.weights]
    objective, least = [], float("inf")
    chosen = Diagonal(torch.ones(x.shape[1], device=x.device))
    for index, candidate in enumerate(candidates):
        checkpoint()
        transform = readers.tied(candidate)
        objective.append(share * _error(readers, transform, targets))
        if objective[-1] < least:
            least, chosen = objective[-1], transform
        if progress is not None:
            progress(index + 1, steps)
    return chosen, tuple(objective)


def _error(readers: Readers, transform: Diagonal, targets: list[Tensor]) -> float:
    """The mean squared error of the outputs of all layers of the group."""
    x, sums, outputs = readers.activations, 0.0, 0
    if readers.of_inputs is not None:
        x = quantize(transform.inputs(x), readers.of_inputs).dequantize()
    for weight, scheme, target in zip(readers.weights, readers.schemes, targets, strict=True):
        rounded = quantize(transform.weight(weight), scheme).dequantize()
        if readers.of_inputs is None:
            rounded = transform.undo(rounded)
        mean = float((x @ rounded.t() - target).square().mean(dtype=torch.float64))
        sums, outputs = sums + mean * len(weight), outputs + len(weight)
    return sums / outputs
