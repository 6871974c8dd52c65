"""LLM.int8(): multiply the few input columns with outliers in float16, and all others in int8.

T. Dettmers et al., "LLM.int8(): 8-bit Matrix Multiplication for Transformers at Scale", arXiv 2208.07339,
section 3.2: a column of the inputs is an outlier if any of its values reaches 6.0. In int8, such a column
would set the scale of every token.

The paper finds the columns in each input at run time, and so does ``llm_int8_dynamic``. The weights of these
columns are dequantized, as bitsandbytes does at inference, and only codes are stored (the paper multiplies by
the float16 weights, all of which would have to be kept). ``llm_int8`` fixes the columns by calibration inputs
and keeps their weights in float16; an outlier that calibration did not see stays in int8.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor, quantize
from explorer.methods.layer import QuantizedLayer, Residue, as_float16, check_layer
from explorer.progress import Progress
from explorer.schemes import Scheme

THRESHOLD = 6.0
KEPT = "weights that are multiplied in float16"


@dataclass(frozen=True, eq=False)
class OutlierColumns(Residue):
    """Input columns that are multiplied in float16 instead of by the codes: ``columns`` int64 [outliers],
    ``weight`` float16 [N, outliers]. The columns' indices are not counted in ``bits``."""

    columns: Tensor
    weight: Tensor
    names: ClassVar[tuple[str, ...]] = ("kept.columns", "kept.weight")

    @property
    def bits(self) -> int:
        return 16 * self.weight.numel()

    def remaining(self, x: Tensor) -> Tensor:
        return x.index_fill(1, self.columns, 0)

    def product(self, x: Tensor, remaining: Tensor) -> Tensor:
        return x[:, self.columns].half().to(remaining.dtype) @ self.weight.to(remaining.dtype).t()

    def merged(self, values: Tensor) -> Tensor:
        return values.index_copy(1, self.columns, self.weight.to(values.dtype))


@dataclass(frozen=True, eq=False)
class RuntimeOutliers(Residue):
    """The columns of each input with a magnitude of at least ``threshold`` (float32 []) are multiplied in
    float16, by the dequantized weights."""

    threshold: Tensor
    q: QuantizedTensor
    names: ClassVar[tuple[str, ...]] = ("kept.threshold",)

    def remaining(self, x: Tensor) -> Tensor:
        return x.masked_fill(self._is_outlier(x), 0)

    def product(self, x: Tensor, remaining: Tensor) -> Tensor:
        columns = self._is_outlier(x)
        weight = self.q.dequantize()[:, columns].half().to(remaining.dtype)
        return x[:, columns].half().to(remaining.dtype) @ weight.t()

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], q: QuantizedTensor) -> RuntimeOutliers:
        return cls(tensors["kept.threshold"], q)

    def _is_outlier(self, x: Tensor) -> Tensor:
        """bool [K]."""
        return x.abs().amax(0) >= self.threshold.to(x.device)


def outlier_columns(activations: Tensor, threshold: float = THRESHOLD) -> Tensor:
    """int64 [outliers]: the columns of activations [tokens, K] where any magnitude reaches ``threshold``."""
    return (activations.abs().amax(0) >= threshold).nonzero().reshape(-1)


def llm_int8(
    weight: Tensor,
    scheme: Scheme,
    activations: Tensor,
    progress: Progress | None = None,
    *,
    threshold: float = THRESHOLD,
) -> QuantizedLayer:
    """Quantize all of ``weight`` [N, K]; the outlier columns of ``activations`` [tokens, K] are also kept in
    float16, for all later inputs. ``ValueError`` for weights of these columns beyond float16."""
    check_layer(weight, activations)
    columns = outlier_columns(activations, threshold)
    residues = (OutlierColumns(columns, as_float16(weight[:, columns], KEPT)),) if len(columns) else ()
    return QuantizedLayer(quantize(weight.float(), scheme), residues=residues)


def llm_int8_dynamic(
    weight: Tensor, scheme: Scheme, activations: Tensor, progress: Progress | None = None
) -> QuantizedLayer:
    """Quantize all of ``weight`` [N, K]; the columns that are outliers in an input are multiplied in float16.

    ``activations`` [tokens, K] are checked, but not used. ``ValueError`` for weights beyond float16: any
    column may be an outlier."""
    check_layer(weight, activations)
    q = quantize(weight.float(), scheme)
    as_float16(q.dequantize(), KEPT)
    threshold = weight.new_tensor(THRESHOLD, dtype=torch.float32)
    return QuantizedLayer(q, residues=(RuntimeOutliers(threshold, q),))
