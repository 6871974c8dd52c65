"""What a method gives back: the quantized weight, and what has to be folded elsewhere."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from explorer.numerics.quantize import QuantizedTensor


@dataclass(frozen=True, eq=False)
class Repaired:
    """``q`` stands for W · diag(scale); the layer's input has to be divided by ``scale`` [K] (None: as it was), which is folded
    into what comes before it. ``film`` is the method's own objective as it went: GPTQ's loss a block of columns, AWQ's over α."""

    q: QuantizedTensor
    scale: Tensor | None = None
    film: tuple[float, ...] = ()

    def weight(self) -> Tensor:
        """float32 [N, K]: the matrix that the layer multiplies its original input with."""
        restored = self.q.dequantize()
        return restored if self.scale is None else restored / self.scale


def check_layer(weight: Tensor, activations: Tensor) -> None:
    """``ValueError`` unless the weight is [N, K] and the activations [tokens, K] with at least one token."""
    fits = weight.dim() == 2 and activations.dim() == 2 and weight.shape[1] == activations.shape[1] and len(activations) > 0
    if not fits:
        raise ValueError(
            f"expected a weight [N, K] and activations [tokens, K] with at least one token, got {list(weight.shape)} and "
            f"{list(activations.shape)}"
        )
