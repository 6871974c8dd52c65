"""Quantization of a model's linear layers: by a method from captured inputs, or by rounding to nearest."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from explorer.core.quantize import QuantizedTensor, quantize_as_one, quantize_weight
from explorer.core.replace import replace_layers
from explorer.methods import apply, label_of, rounding_in
from explorer.methods.bias_correction import into_bias
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.models.capture import Captured
from explorer.models.kinds import sharing
from explorer.progress import Progress
from explorer.schemes import Scheme


class MethodLinear(nn.Module):
    """Linear layer quantized by a method, in float32: it transforms its inputs, quantizes them if
    ``activations`` is set, multiplies by the dequantized weight, and adds the residues' terms."""

    dequantized: Tensor
    bias: Tensor | None

    def __init__(self, layer: QuantizedLayer, bias: Tensor | None, activations: Scheme | None) -> None:
        super().__init__()
        self.layer, self.activations = layer, activations
        self.register_buffer("dequantized", layer.q.dequantize())
        self.register_buffer("bias", None if bias is None else bias.detach())

    def forward(self, x: Tensor) -> Tensor:
        out = self.layer.multiply(x.reshape(-1, x.shape[-1]), self.dequantized, self.activations)
        out = out if self.bias is None else out + self.bias
        return out.to(x.dtype).reshape(*x.shape[:-1], -1)


InputsNow = Callable[[str], Tensor]
"""Name of a layer -> its inputs [tokens, K] in the network as it is now, for the tokens of its
``Captured.activations``."""


def quantize_by_method(
    network: nn.Module,
    layers: Sequence[Captured],
    method: str,
    scheme: Scheme,
    activations: Scheme | None = None,
    progress: Progress | None = None,
    inputs_now: InputsNow | None = None,
    folded: bool = False,
) -> float:
    """Quantize the captured ``layers`` of ``network`` by ``method``, in place; returns the mean bits of their
    weights.

    A sequential method asks ``inputs_now`` for each layer's inputs once the layers before it are replaced;
    ``layers`` have to be in the order in which the network runs them. ``folded``: earlier layers already hold
    the method's factors, and ``layers`` were captured after that. A correction of the bias becomes part of
    the bias; in a layer without one, it counts as bits of the layer. ``ValueError`` if the method does not
    support the scheme or a layer, and for a sequential method without ``inputs_now``.
    """
    sequential = rounding_in(method).sequential
    if sequential and inputs_now is None:
        raise ValueError(f"{label_of(method)} needs the inputs that the layers quantized before give")
    by_name, bits, weights = {captured.name: captured for captured in layers}, 0.0, 0

    def made(name: str, linear: nn.Linear) -> MethodLinear:
        nonlocal bits, weights
        device, captured = linear.weight.device, by_name[name]
        inputs, original = captured.activations.to(device), None
        if sequential and inputs_now is not None:
            inputs, original = inputs_now(name).to(device), inputs
        layer = apply(
            method,
            captured.weight.to(device),
            scheme,
            inputs,
            of_inputs=activations,
            original=original,
            folded=folded,
        )
        layer, bias = into_bias(layer, linear.bias)
        bits += layer.bits_per_weight * captured.weight.numel()
        weights += captured.weight.numel()
        return MethodLinear(layer, bias, activations)

    replace_layers(network, by_name, made, progress)
    return bits / max(weights, 1)


def rounding(
    recipes: Mapping[str, Recipe],
    fused: bool,
    read: Callable[[str], Tensor],
    importances: Mapping[str, Tensor] | None = None,
) -> Callable[[str], QuantizedTensor]:
    """Return a function that rounds a layer, given by name, to nearest by its recipe.

    ``read`` gives weights [N, K] in float32. If ``fused``, all layers of a group that shares a scale of the
    whole tensor are rounded at the first call for one of them; each result is given once. ``importances`` [K]
    of columns, by layer (``quantize_weight``).
    """
    weighed = importances or {}
    shared = {name: group for group in (sharing(recipes) if fused else ()) for name in group}
    ready: dict[str, QuantizedTensor] = {}

    def rounded(name: str) -> QuantizedTensor:
        if name not in shared:
            return quantize_weight(read(name), recipes[name].scheme, weighed.get(name))
        if name not in ready:
            parts = [read(other) for other in shared[name]]
            ready.update(zip(shared[name], quantize_as_one(parts, recipes[name].scheme), strict=True))
        return ready.pop(name)

    return rounded
