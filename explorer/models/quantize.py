"""Every linear layer of a model quantized: rounded to nearest, or by a method, each by the inputs that it had
in the original model, or one after another by those that the layers quantized before give."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from torch import Tensor, nn

from explorer.core.quantize import QuantizedTensor, quantize_as_one, quantize_weight
from explorer.methods import apply, label_of, rounding_in
from explorer.methods.bias_correction import into_bias
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.models.capture import Captured
from explorer.models.kinds import sharing
from explorer.progress import Progress
from explorer.schemes import Scheme


class MethodLinear(nn.Module):
    """``nn.Linear`` as a method left it, in float32: it transforms its inputs, quantizes them if
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
"""The inputs [tokens, K] that the layer of a name gets in the network as it is now, for the tokens that its
``Captured.activations`` are of."""


def quantize_model(
    network: nn.Module,
    layers: Sequence[Captured],
    method: str,
    scheme: Scheme,
    activations: Scheme | None = None,
    progress: Progress | None = None,
    inputs_now: InputsNow | None = None,
    folded: bool = False,
) -> float:
    """Replace the linear layers that ``layers`` were captured from in place; the bits of each of their
    weights.

    A sequential method asks ``inputs_now`` for each layer's inputs when those before it are replaced;
    ``layers`` have to be in the order that the network runs them. With ``folded`` the layers before
    have taken in the method's factors, and ``layers`` are captured behind those. A bias takes in the
    correction of itself; where a layer has none, that is counted in its bits. ``ValueError`` where the
    method cannot serve the scheme or a layer, and for a sequential method without ``inputs_now``.
    """
    sequential = rounding_in(method).sequential
    if sequential and inputs_now is None:
        raise ValueError(f"{label_of(method)} needs the inputs that the layers quantized before give")
    bits, weights = 0.0, 0
    for index, captured in enumerate(layers):
        linear = network.get_submodule(captured.name)
        assert isinstance(linear, nn.Linear)
        weight = captured.weight.to(linear.weight.device)
        inputs = captured.activations.to(weight.device)
        if sequential and inputs_now is not None:
            now = inputs_now(captured.name).to(weight.device)
            layer = apply(method, weight, scheme, now, of_inputs=activations, original=inputs, folded=folded)
        else:
            layer = apply(method, weight, scheme, inputs, of_inputs=activations, folded=folded)
        layer, bias = into_bias(layer, linear.bias)
        bits += layer.bits_per_weight * captured.weight.numel()
        weights += captured.weight.numel()
        parent, _, last = captured.name.rpartition(".")
        setattr(network.get_submodule(parent), last, MethodLinear(layer, bias, activations))
        if progress is not None:
            progress(index + 1, len(layers))
    return bits / max(weights, 1)


def rounding(
    recipes: Mapping[str, Recipe],
    fused: bool,
    read: Callable[[str], Tensor],
    importances: Mapping[str, Tensor] | None = None,
) -> Callable[[str], QuantizedTensor]:
    """What rounds a layer to nearest by its recipe: ``read`` gives its weight [N, K], float32. With ``fused``
    a group of layers that shares a scale of the whole tensor is rounded when its first is asked for, each of
    them once. ``importances`` [K] of columns, by layer (``quantize_weight``)."""
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
