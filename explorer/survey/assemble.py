"""Carry out a recipe: a copy of the network with quantized linear layers and embeddings, and their codes."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from torch import Tensor, nn

from explorer.methods import BIAS_CORRECTION, corrects_bias, label_of, rounding_in
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.models.capture import Captured, Model, capture
from explorer.models.evaluate import needs_inputs
from explorer.models.inputs import QuantizedInputs, find_input_scales, quantize_inputs
from explorer.models.quantize import MethodLinear, quantize_by_method, rounding
from explorer.models.skeleton import HeldWeight
from explorer.models.texts import AnyTexts
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme
from explorer.survey.evidence import weights_of
from explorer.survey.folding import Folding, fold_factors
from explorer.survey.methods import FEW_TOKENS, tokens_for, widths_of


@dataclass(frozen=True, eq=False)
class Assembled:
    """A network that a recipe makes.

    network  the quantized copy
    layers   layer -> result of its method
    bits     mean bits per weight of all layers of the recipe
    changed  name -> other parameters that hold factors of methods (``Folding``), and corrected biases
    tokens   layer -> number of tokens that its method saw
    """

    network: nn.Module
    bits: float
    layers: Mapping[str, QuantizedLayer] = field(default_factory=dict)
    changed: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)


def assemble(
    model: Model,
    recipes: Mapping[str, Recipe],
    texts: AnyTexts,
    tokens: int | None = None,
    progress: Progress | None = None,
    fused: bool = False,
    inputs: Mapping[str, QuantizedInputs] | None = None,
    of_inputs: Mapping[str, Scheme] | None = None,
    folded: bool = False,
    importances: Mapping[str, Tensor] | None = None,
    in_place: bool = False,
) -> Assembled:
    """Quantize the layers of ``recipes`` in a copy of the model's network; ``in_place``, where no method asks
    for the original, in the network itself.

    With ``fused``, layers that engines multiply as one matrix share a scale of the whole tensor. With
    ``folded``, earlier layers take in the factors by which methods scale input channels, as in files.

    Layers by methods come after those rounded to nearest, in the order that the network runs them. Their
    inputs are the original model's for ``texts``; sequential methods see the inputs in the network quantized
    so far. ``inputs``: layer -> quantization of its inputs, for layers of codes. Methods that search account
    for ``of_inputs`` (``inputs`` if None), which also names layers without codes. ``importances`` [K] of
    columns, by layer, weigh the rounding (``quantize``).

    ``ValueError`` for layers that the network lacks; if a method does not support its scheme, its layer or
    fixed scales of inputs; with ``folded`` also for a factor that cannot be folded, and a corrected bias that
    the layer lacks.
    """
    of_inputs = {name: one.scheme for name, one in inputs.items()} if inputs else of_inputs or {}
    asks = folded or any(one.method and needs_inputs(one.method) for one in recipes.values())
    network = model.network if in_place and not asks else copy.deepcopy(model.network)
    held = _held(model, recipes)
    _check_stacked(held, recipes, of_inputs)
    modules = {name: one.module for name, one in held.items()}
    by_method = {modules[n]: (n, r) for n, r in recipes.items() if r.method and needs_inputs(r.method)}
    by_module = {modules[name]: recipe for name, recipe in recipes.items() if modules[name]}
    tokens = tokens or tokens_for(widths_of(network, [module for module in by_method if module]))
    if folded:
        _check_biases(network, by_module)
    by_input = {modules[name]: scheme for name, scheme in of_inputs.items() if modules.get(name)}
    folding = fold_factors(model, network, by_module, texts, tokens, by_input) if folded else Folding()
    stored, weights, done = 0.0, 0, 0
    rounded = rounding(recipes, fused, lambda name: _view(network, held[name]).float(), importances)
    for name in recipes:
        if modules[name] in by_method:
            continue
        checkpoint()
        weight, q = _view(network, held[name]), rounded(name)
        weight.copy_(q.dequantize())
        stored += q.bits_per_element.total * weight.numel()
        weights, done = weights + weight.numel(), done + 1
        if progress is not None:
            progress(done, len(recipes))
    layers, corrected, seen_of = {}, dict[str, Tensor](), dict[str, int]()
    now = replace(model, network=network)
    for captured in capture(model, texts, list(by_method), tokens) if by_method else ():
        checkpoint()
        name, recipe = by_method[captured.name]
        if folded:
            captured = _folded(captured, network, folding)
        seen, seen_of[name] = of_inputs.get(name), len(captured.activations)
        layers[name] = layer = _by_method(now, captured, recipe, texts, tokens, seen, folded)
        if corrects_bias(recipe.method):
            corrected |= _corrected_bias(now, captured.name, folded)
        stored += layer.bits_per_weight * captured.weight.numel()
        weights, done = weights + captured.weight.numel(), done + 1
        if progress is not None:
            progress(done, len(recipes))
    if inputs is not None:
        quantize_inputs(network, {name: modules[name] for name in _coded(recipes) if modules[name]}, inputs)
    return Assembled(network, stored / weights, layers, {**folding.changed, **corrected}, seen_of)


def _check_biases(network: nn.Module, recipes: Mapping[str, Recipe]) -> None:
    """``ValueError`` for a layer without a bias if its method corrects one: files have no place for it."""
    for name, recipe in recipes.items():
        if corrects_bias(recipe.method) and getattr(network.get_submodule(name), "bias", None) is None:
            raise ValueError(
                f"{name} has no bias, and a file has no place for the correction of one. Take the method "
                f"without {BIAS_CORRECTION.label} for this layer, or keep the layer as it is"
            )


def _corrected_bias(now: Model, module: str, folded: bool) -> dict[str, Tensor]:
    """Return the bias that a method corrected, by its name; empty if the layer has none. With ``folded`` it
    is rounded to the dtype of the model's files, in the network too."""
    linear = now.network.get_submodule(module)
    assert isinstance(linear, MethodLinear)
    if linear.bias is None:
        return {}
    if folded:
        linear.bias = linear.bias.to(now.dtype).to(linear.bias.dtype)
    return {f"{module}.bias": linear.bias.cpu()}


def _check_stacked(
    held: Mapping[str, HeldWeight], recipes: Mapping[str, Recipe], of_inputs: Mapping[str, Scheme]
) -> None:
    """``ValueError`` for experts that transformers stacks, if they have a method or quantized inputs: their
    inputs are not seen. Also for a table of embeddings by a method."""
    for name in (name for name, one in held.items() if not one.module):
        method, table = recipes[name].method, held[name].table
        if method and needs_inputs(method):
            why = "its rows are looked up: round it" if table else "experts are stacked: round them"
            raise ValueError(f"{name}: {label_of(method)} needs its inputs, and {why} to nearest")
        if table:
            continue
        if name in of_inputs and recipes[name].scheme.plain_dtype is None:
            raise ValueError(
                f"{name}: inputs of stacked experts are not quantized by transformers, so that the loss "
                "would be of another model: keep them (--keep experts), or leave inputs as they are"
            )


def _folded(captured: Captured, network: nn.Module, folding: Folding) -> Captured:
    """Return the layer with its weight and inputs after factors are folded."""
    inputs = captured.activations
    if captured.name in folding.divisors:
        inputs = inputs / folding.divisors[captured.name]
    return replace(captured, weight=_weight(network, captured.name).detach().cpu(), activations=inputs)


def input_scales(
    model: Model,
    recipes: Mapping[str, Recipe],
    schemes: Mapping[str, Scheme],
    texts: AnyTexts,
    progress: Progress | None = None,
) -> dict[str, float]:
    """Find the fixed scales of layers' inputs in the original model (``find_input_scales``), for the layers
    of codes that ``schemes`` names."""
    held = _held(model, [name for name in _coded(recipes) if name in schemes])
    _check_stacked(held, recipes, schemes)
    modules = {name: one.module for name, one in held.items() if one.module}
    return find_input_scales(model, modules, schemes, texts, progress)


def _coded(recipes: Mapping[str, Recipe]) -> list[str]:
    """Select the layers that hold codes, whose inputs may be quantized: all but casts."""
    return [name for name, recipe in recipes.items() if recipe.scheme.plain_dtype is None]


def _weight(network: nn.Module, module: str) -> Tensor:
    linear = network.get_submodule(module)
    assert isinstance(linear, nn.Linear)
    return linear.weight.float()


def _by_method(
    now: Model,
    captured: Captured,
    recipe: Recipe,
    texts: AnyTexts,
    tokens: int,
    of_inputs: Scheme | None,
    folded: bool,
) -> QuantizedLayer:
    """Quantize a layer by its method, and put it into the network of ``now``."""
    if rounding_in(recipe.method).sequential:  # the model runs once for each layer
        tokens = min(tokens, FEW_TOKENS)
        captured = replace(captured, activations=captured.activations[:tokens])

    def inputs_now(name: str) -> Tensor:
        return capture(now, texts, [name], tokens)[0].activations

    quantize_by_method(
        now.network,
        [captured],
        recipe.method,
        recipe.scheme,
        of_inputs,
        inputs_now=inputs_now,
        folded=folded,
    )
    replaced = now.network.get_submodule(captured.name)
    assert isinstance(replaced, MethodLinear)
    replaced.activations = None  # until all layers are in place: methods see inputs as they are
    return replaced.layer


def shapes_of(model: Model, layers: Iterable[str]) -> dict[str, tuple[int, int]]:
    """Return [N, K] of each layer; ``ValueError`` for a layer that the network lacks."""
    views = {name: _view(model.network, one) for name, one in _held(model, layers).items()}
    return {name: (view.shape[0], view.shape[1]) for name, view in views.items()}


def _held(model: Model, layers: Iterable[str]) -> dict[str, HeldWeight]:
    found = weights_of(model.network, dict.fromkeys(layers))
    for name in layers:
        if name not in found:
            raise ValueError(f"{model.name} has no linear layer {name!r}, which the recipe names")
    return found


def _view(network: nn.Module, held: HeldWeight) -> Tensor:
    """The weight [N, K] of a layer, a view of the network's parameter."""
    return held.of(network.get_parameter(held.parameter).data)
