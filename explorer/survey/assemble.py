"""A recipe carried out: a copy of the network whose linear layers are quantized as it says, and their
codes."""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from explorer.core.quantize import QuantizedTensor, quantize, quantize_as_one
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.models.capture import Captured, Model, capture
from explorer.models.evaluate import needs_inputs
from explorer.models.quantize import MethodLinear, quantize_model
from explorer.progress import Progress, checkpoint
from explorer.survey.evidence import modules_of
from explorer.survey.kinds import sharing

TOKENS = 512
"""Rows of each layer's inputs that methods see."""


@dataclass(frozen=True, eq=False)
class Assembled:
    """``network``: the quantized copy; ``layers``: of those by methods what the method left, by layer;
    ``bits``: mean bits a weight of all layers of the recipe."""

    network: nn.Module
    bits: float
    layers: Mapping[str, QuantizedLayer] = field(default_factory=dict)


def assemble(
    model: Model,
    recipes: Mapping[str, Recipe],
    texts: Sequence[str],
    tokens: int = TOKENS,
    progress: Progress | None = None,
    fused: bool = False,
) -> Assembled:
    """Quantize the layers of ``recipes`` in a copy of the model's network; with ``fused`` layers that engines
    multiply as one matrix share its scale of the whole tensor.

    Layers by methods come after those rounded to nearest, in the order that the network runs them; their
    inputs are those of the original model for ``texts``, except by sequential methods, which see what the
    layers quantized before give. ``ValueError`` for layers that the network has not, and where a method
    cannot serve its scheme or layer.
    """
    network = copy.deepcopy(model.network)
    modules = _modules(model, recipes)
    by_method = {modules[n]: (n, r) for n, r in recipes.items() if r.method and needs_inputs(r.method)}
    stored, weights, done = 0.0, 0, 0
    rounded = rounding(recipes, fused, lambda name: _weight(network, modules[name]))
    for name in recipes:
        if modules[name] in by_method:
            continue
        checkpoint()
        linear = network.get_submodule(modules[name])
        assert isinstance(linear, nn.Linear)
        with torch.no_grad():
            q = rounded(name)
            linear.weight.copy_(q.dequantize())
        stored += q.bits_per_element.total * linear.weight.numel()
        weights, done = weights + linear.weight.numel(), done + 1
        if progress is not None:
            progress(done, len(recipes))
    layers = {}
    now = replace(model, network=network)
    for captured in capture(model, texts, list(by_method), tokens) if by_method else ():
        checkpoint()
        name, recipe = by_method[captured.name]
        layers[name] = layer = _by_method(now, captured, recipe, texts, tokens)
        stored += layer.bits_per_weight * captured.weight.numel()
        weights, done = weights + captured.weight.numel(), done + 1
        if progress is not None:
            progress(done, len(recipes))
    return Assembled(network, stored / weights, layers)


def rounding(
    recipes: Mapping[str, Recipe], fused: bool, read: Callable[[str], Tensor]
) -> Callable[[str], QuantizedTensor]:
    """What rounds a layer to nearest by its recipe: ``read`` gives its weight [N, K], float32. With ``fused``
    a group of layers that shares a scale of the whole tensor is rounded when its first is asked for, each of
    them once."""
    shared = {name: group for group in (sharing(recipes) if fused else ()) for name in group}
    ready: dict[str, QuantizedTensor] = {}

    def rounded(name: str) -> QuantizedTensor:
        if name not in shared:
            return quantize(read(name), recipes[name].scheme)
        if name not in ready:
            parts = [read(other) for other in shared[name]]
            ready.update(zip(shared[name], quantize_as_one(parts, recipes[name].scheme), strict=True))
        return ready.pop(name)

    return rounded


def _weight(network: nn.Module, module: str) -> Tensor:
    linear = network.get_submodule(module)
    assert isinstance(linear, nn.Linear)
    return linear.weight.float()


def _by_method(
    now: Model, captured: Captured, recipe: Recipe, texts: Sequence[str], tokens: int
) -> QuantizedLayer:
    """The layer by its method, put into the network of ``now``."""

    def inputs_now(name: str) -> Tensor:
        return capture(now, texts, [name], tokens)[0].activations

    quantize_model(now.network, [captured], recipe.method, recipe.scheme, inputs_now=inputs_now)
    replaced = now.network.get_submodule(captured.name)
    assert isinstance(replaced, MethodLinear)
    return replaced.layer


def shapes_of(model: Model, layers: Iterable[str]) -> dict[str, tuple[int, int]]:
    """[N, K] of each layer; ``ValueError`` if the network has none for one."""
    modules = _modules(model, layers)
    linear = {name: model.network.get_submodule(module) for name, module in modules.items()}
    return {n: (m.out_features, m.in_features) for n, m in linear.items() if isinstance(m, nn.Linear)}


def _modules(model: Model, layers: Iterable[str]) -> dict[str, str]:
    found = modules_of(model.network, dict.fromkeys(layers))
    for name in layers:
        if name not in found:
            raise ValueError(f"{model.name} has no linear layer {name!r}, which the recipe names")
    return found
