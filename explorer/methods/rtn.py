"""Round to nearest: every weight by itself. The baseline for all other methods."""

from __future__ import annotations

from torch import Tensor

from explorer.core.quantize import quantize
from explorer.methods.layer import QuantizedLayer, check_layer
from explorer.progress import Progress
from explorer.schemes import Scheme


def rtn(
    weight: Tensor, scheme: Scheme, activations: Tensor, progress: Progress | None = None
) -> QuantizedLayer:
    """Quantize ``weight`` [N, K] by ``quantize``; the activations [tokens, K] are checked, but not used."""
    check_layer(weight, activations)
    return QuantizedLayer(quantize(weight.float(), scheme))
