"""A recipe carried out: a copy of the network whose linear layers and embeddings are quantized as it says,
and their codes."""

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
    """``network``: the quantized copy; ``layers``: of those by methods what the method left, by layer;
    ``bits``: mean bits per weight of all layers of the recipe; ``changed``: other parameters that took in
    factors of methods (``Folding``), and biases that a method corrected, by name; ``tokens`` that a method
    saw of each layer."""

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
) -> Assembled:
    """Quantize the layers of ``recipes`` in a copy of the model's network; with ``fused`` layers that engines
    multiply as one matrix share its scale of the whole tensor, and with ``folded`` the layers before take in
    the factors of methods that scale input channels, as in files.

    Layers by methods come after those rounded to nearest, in the order that the network runs them; their
    inputs are those of the original model for ``texts``, except by sequential methods, which see what the
    layers quantized before give. With ``inputs`` the layers of codes that it names see quantized inputs;
    methods that search take those by ``of_inputs`` (those of ``inputs`` if None) into account, which also
    names layers. ``importances`` [K] of
    columns, by layer, weigh the rounding of those that have any (``quantize``). ``ValueError`` for layers
    that the network has not, where a method cannot serve its scheme, its layer or fixed scales of inputs, and
    with ``folded`` where a factor cannot be folded, or a bias is corrected that the layer has not.
    """
    of_inputs = {name: one.scheme for name, one in inputs.items()} if inputs else of_inputs or {}
    network = copy.deepcopy(model.network)
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
    """``ValueError`` for a layer without a bias whose method corrects one: files have no place for it."""
    for name, recipe in recipes.items():
        if corrects_bias(recipe.method) and getattr(network.get_submodule(name), "bias", None) is None:
            raise ValueError(
                f"{name} has no bias, and a file has no place for the correction of one. Take the method "
                f"without {BIAS_CORRECTION.label} for this layer, or keep the layer as it is"
            )


def _corrected_bias(now: Model, module: str, folded: bool) -> dict[str, Tensor]:
    """The bias of a layer whose method corrected it, by its name; none where the layer has none. With
    ``folded`` it is rounded to the dtype of the model's files, in the network too."""
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
    """``ValueError`` for experts that transformers stacks by a method, or with quantized inputs: their inputs
    are not seen; and for a table of embeddings by a method."""
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
    """The layer with weight and inputs as they are once factors are folded."""
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
    """The fixed scales of the inputs of those layers of codes that ``schemes`` names, in the original model
    (``find_input_scales``)."""
    held = _held(model, [name for name in _coded(recipes) if name in schemes])
    _check_stacked(held, recipes, schemes)
    modules = {name: one.module for name, one in held.items() if one.module}
    return find_input_scales(model, modules, schemes, texts, progress)


def _coded(recipes: Mapping[str, Recipe]) -> list[str]:
    """The layers that hold codes, whose inputs may be quantized: all but casts."""
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
    """The layer by its method, put into the network of ``now``."""
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
    """[N, K] of each layer; ``ValueError`` if the network has none for one."""
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
