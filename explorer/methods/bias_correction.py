"""Bias correction: subtract the mean error of each output channel in the bias.

M. Nagel et al., "Data-Free Quantization Through Weight Equalization and Bias Correction", arXiv 1906.04721,
section 4.2. If the inputs have a mean, the error of the weights shifts all outputs of a channel alike:

    E[Ŵ x] - E[W x] = (Ŵ - W) E[x]          one number an output channel
    Y = Ŵ X + b + c,    c = (W - Ŵ) E[x]

The paper takes E[x] from batch norms; here it is the mean of the calibration inputs, on which the corrected
mean error is 0. ``into_bias`` adds c to the bias of a layer, and nothing more is stored. Without a bias, c is
stored in float32: 32/K bits per weight. The error of quantized inputs is not corrected.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from explorer.methods.layer import QuantizedLayer, Residue, check_layer


@dataclass(frozen=True, eq=False)
class BiasCorrection(Residue):
    """Correction ``values`` float32 [N] that is added to the outputs. ``bits`` count if the layer has no
    bias."""

    values: Tensor
    names: ClassVar[tuple[str, ...]] = ("bias_correction",)

    def product(self, x: Tensor, remaining: Tensor) -> Tensor:
        return self.values.to(remaining).expand(len(remaining), -1)


def mean_error(restored: Tensor, weight: Tensor, mean: Tensor) -> Tensor:
    """float64 [N]: the mean error (Ŵ - W) E[x] of each output, for Ŵ = ``restored`` [N, K], W = ``weight``
    [N, K] and E[x] = ``mean`` [K], all in one basis."""
    return (restored.double() - weight.double()) @ mean.double()


def bias_correction(layer: QuantizedLayer, weight: Tensor, activations: Tensor) -> BiasCorrection:
    """Correct the error of ``layer`` against ``weight`` [N, K] for its inputs ``activations`` [tokens, K],
    both in the basis before the layer's transforms.

    ``ValueError`` for shapes that do not match, for NaN and Inf, and for a mean error beyond float32.
    """
    check_layer(weight, activations)
    mean = layer.transform_inputs(activations.float()).double().mean(0)
    error = mean_error(layer.transformed_weight(), layer.transform_weight(weight.float()), mean)
    values = (-error).float()
    if not bool(torch.isfinite(values).all()):
        raise ValueError("the mean error is beyond float32: scale the weight or the inputs down")
    return BiasCorrection(values)


def into_bias(layer: QuantizedLayer, bias: Tensor | None) -> tuple[QuantizedLayer, Tensor | None]:
    """Move a layer's bias corrections into ``bias`` [N], in its dtype; nothing changes if there are none, or
    if the layer has no bias."""
    corrections = [residue for residue in layer.residues if isinstance(residue, BiasCorrection)]
    if bias is None or not corrections:
        return layer, bias
    others = tuple(residue for residue in layer.residues if not isinstance(residue, BiasCorrection))
    corrected = bias.detach().double()
    for correction in corrections:
        corrected = corrected + correction.values.to(corrected)
    return dataclasses.replace(layer, residues=others), corrected.to(bias.dtype)
