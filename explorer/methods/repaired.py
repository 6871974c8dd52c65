"""Analysis of a layer after a method, as of any quantized tensor: in whole, and element by element.

The original weight is compared with the matrix that the layer multiplies its original inputs with. For GPTQ
that is the dequantized codes. If a method changes the basis of the inputs (SmoothQuant, AWQ, a rotation),
they are transformed back to the original coordinates; terms that a method adds to the product (LQER, HQQ,
LLM.int8()) are included. A bias correction is not part of a weight.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass

import numpy as np
from torch import Tensor

from explorer.analysis.element import Inspection, inspect_element
from explorer.analysis.report import Measured, compare, measure
from explorer.analysis.tensor import Analysis, block_levels, differences, small
from explorer.formats.code import short
from explorer.methods import label_of
from explorer.methods.bias_correction import BiasCorrection
from explorer.methods.layer import QuantizedLayer


@dataclass(frozen=True, eq=False)
class RepairedAnalysis(Analysis):
    """An ``Analysis`` of the weight that ``layer`` multiplies its original inputs with.

    ``q`` are its codes, in the basis after its transforms; ``method`` is a name that
    ``explorer.methods.apply`` takes.
    """

    layer: QuantizedLayer
    method: str

    @property
    def in_own_basis(self) -> bool:
        return self.layer.plain

    def restored(self) -> Tensor:
        """The weight that the layer multiplies its original inputs with."""
        return self.layer.weight() if self.kept is None else self.kept


def analyse_layer(w: Tensor, layer: QuantizedLayer, method: str) -> RepairedAnalysis:
    """Analyse the error of ``layer`` against the original float32 weight ``w`` [N, K] under ``method``.

    ``ValueError`` if the shapes differ.
    """
    restored = layer.weight()
    found = differences(w, restored, _measured(w, layer, restored))
    return RepairedAnalysis(layer.q, *found, layer, method, kept=small(restored))


def _measured(w: Tensor, layer: QuantizedLayer, restored: Tensor) -> Measured:
    """Measure the whole layer at its whole size. Clipping is counted in the basis of the codes."""
    measured = measure(w, layer.q, restored)
    clipped = measured.report.clipped
    if layer.transforms:
        clipped = compare(layer.transform_weight(w), layer.q, layer.transformed_weight()).clipped
    nbytes = math.ceil(layer.bits_per_weight * w.numel() / 8 - 1e-6)
    report = dataclasses.replace(measured.report, clipped=clipped, bits=layer.bits, nbytes=nbytes)
    return dataclasses.replace(measured, report=report)


def inspect(w: Tensor, analysis: Analysis, row: int, column: int) -> Inspection:
    """Follow w[row, column] through a tensor's quantization, or through a repaired layer: its code as the
    method chose it, then its value in the layer's weight. ``ValueError`` with the accepted range if it lies
    outside."""
    if not isinstance(analysis, RepairedAnalysis):
        return inspect_element(w, analysis.q, row, column)
    layer, by = analysis.layer, label_of(analysis.method)
    w = w.float().to(layer.q.packed.device)
    one = inspect_element(layer.transform_weight(w), layer.q, row, column)
    arithmetic = [
        (name, f"by {by} → {text.rpartition(' → ')[2]}" if name == "rounded" else text)
        for name, text in one.arithmetic
    ]
    value, restored = float(w[row, column]), one.restored
    if not layer.plain:
        restored = float(layer.weight()[row, column])
        arithmetic[-1:] = _in_the_layer(layer, value, restored)  # the error is the weight's, not the code's
        if layer.transforms:
            arithmetic.insert(0, ("in the codes' basis", f"{short(value)} became {short(one.value)}"))
    return dataclasses.replace(
        one, value=value, restored=restored, error=restored - value, arithmetic=tuple(arithmetic)
    )


def _in_the_layer(layer: QuantizedLayer, value: float, restored: float) -> list[tuple[str, str]]:
    """The steps from a code's value to the layer's weight, and the error."""
    added = any(not isinstance(residue, BiasCorrection) for residue in layer.residues)
    steps = ["back in the original basis"] if layer.transforms else []
    steps += ["with what the method adds"] if added else []
    how = " and ".join(steps) or "the same, since its method changes the bias alone"
    return [
        ("in the layer", f"{how}: {short(restored)}"),
        ("error", f"{short(restored)} − {short(value)} = {short(restored - value)}"),
    ]


def levels_of(analysis: Analysis, row: int, column: int) -> np.ndarray:
    """float64 [levels]: ``block_levels`` of element (row, column); empty if the codes alone do not determine
    the weight."""
    if isinstance(analysis, RepairedAnalysis) and not analysis.layer.plain:
        return np.empty(0)
    return block_levels(analysis.q, row, column)
