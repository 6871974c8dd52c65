"""Measure a recipe: run the model that it makes on texts that it was not chosen by.

Its loss is compared with the prediction, and with single schemes of the same size for all layers.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

import torch
from torch import Tensor, nn

from explorer.checkpoints.inputs import is_fixed
from explorer.checkpoints.target import Shape
from explorer.checkpoints.targets import export_of
from explorer.core.importances import takes_importance
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model
from explorer.models.evaluate import built_in_texts, held_out_texts, needs_inputs
from explorer.models.inputs import QuantizedInputs
from explorer.models.skeleton import is_expert
from explorer.models.texts import AnyTexts
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme
from explorer.survey.apply import input_scales_of, inputs_words
from explorer.survey.assemble import Assembled, assemble, shapes_of
from explorer.survey.budget import best_methods
from explorer.survey.carried import (
    StoredBits,
    bits_in_files,
    model_folder,
    product_refusal,
    stored_bits,
    target_of,
)
from explorer.survey.importances import layer_importances
from explorer.survey.interval import Interval, predicted_interval
from explorer.survey.loss import Loss, hash_of, reference_for
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import Survey
from explorer.survey.run import SCHEMES
from explorer.survey.sensitivities import SENSITIVITIES
from explorer.survey.times import CheckedTime

UNIFORM = 3
"""Number of single schemes that a recipe is compared with, those of the least predicted loss. The target's
usual one is run too."""
SAME_SIZE = 0.02
"""Largest excess in bits per weight of a single scheme that counts as of the same size."""
RECIPE, WEIGHTS_ALONE = "recipe", "recipe, its weights alone"
ONE_SCHEME = "one scheme for all layers"


@dataclass(frozen=True)
class Checked:
    """Measured loss of one model.

    ``what``: "recipe", "recipe, its weights alone" or "one scheme for all layers"; ``name``: the signal or
    scheme. ``predicted`` is None if nothing predicts a loss, and ``predicted_interval`` if the survey gives
    none (``survey.interval``).
    """

    what: str
    name: str
    bits: float
    predicted: float | None
    loss: Loss
    predicted_interval: Interval | None = None


@dataclass(frozen=True)
class Check:
    """Result of ``check_recipe``.

    rows        the recipe first
    uniform     True if the recipe is itself one scheme for all layers
    target      the checkpoint format that bits are counted in, "" for codes and scales alone
    part        the part of the model that texts run, "" for all
    inputs      quantization of layers' inputs in words, in all rows but that of weights alone; "" for none
    cache       storage of keys and values in those rows, in words; "" for exact
    calibrated  True if the survey, or a method, was calibrated on the same texts
    refused     single schemes that the recipe's methods do not support, with the reason
    time        predicted and measured time of a step, if the recipe predicts one (``bench.layers``)
    """

    rows: tuple[Checked, ...]
    texts_sha256: str
    built_in_texts: bool
    uniform: bool = False
    target: str = ""
    part: str = ""
    inputs: str = ""
    cache: str = ""
    calibrated: bool = False
    refused: Mapping[str, str] = field(default_factory=dict)
    time: CheckedTime | None = None

    @property
    def weights_alone(self) -> Checked | None:
        """The recipe's row without quantized inputs and cache; None if neither is quantized."""
        return next((row for row in self.rows if row.what == WEIGHTS_ALONE), None)

    @property
    def singles(self) -> tuple[Checked, ...]:
        """The single schemes that were run, of about the recipe's size or smaller."""
        most = self.rows[0].bits + SAME_SIZE
        return tuple(row for row in self.rows if row.what == ONE_SCHEME and row.bits <= most)

    @property
    def single(self) -> Checked | None:
        """The best single scheme of about the recipe's size, or smaller; None if none was run."""
        single = self.singles
        return min(single, key=lambda row: row.loss.value, default=None)

    @property
    def better(self) -> float | None:
        """Share of the best single scheme's loss that the recipe saves, negative if the recipe is worse; None
        without a single scheme."""
        best = self.single
        return 1 - self.rows[0].loss.value / best.loss.value if best and best.loss.value > 0 else None


def check_recipe(
    recipe: ModelRecipe,
    model: Model,
    texts: AnyTexts = (),
    survey: Survey | None = None,
    calibration: AnyTexts = (),
    progress: Progress | None = None,
    imatrix: str | Path | None = None,
) -> Check:
    """Run the recipe, and models to compare it with, on ``texts`` (held-out built-in ones if empty).

    Single schemes are among those that the recipe was chosen from; they have predictions if its ``survey`` is
    given. If the recipe quantizes inputs, or the cache of keys and values, they do too, and the recipe is
    also run without that. ``calibration``: texts for methods, and for fixed scales of inputs, found in the
    original model. ``imatrix``: an importance file of llama.cpp, whose importances weigh the rounding in all
    models, for schemes that use any. ``model`` has its head (``load_model(..., head=True)``).

    ``ValueError`` if the survey is of other weights, or predicts another loss than this network has, and for
    a recipe with a cache if the model has none.
    """
    if survey is not None and survey.head.weights_sha256 != recipe.weights_sha256:
        raise ValueError(f"the survey is of other weights than the recipe for {recipe.model}")
    reference = reference_for(model, texts or held_out_texts(model.causal))
    if survey is not None and survey.head.loss not in ("", reference.kind):
        raise ValueError(f"the survey predicts a loss of {survey.head.loss}, the model has {reference.kind}")
    own: _Prediction = (recipe.predicted_loss, recipe.predicted_interval)
    todo: list[_Todo] = [(RECIPE, recipe.signal or "one scheme", recipe.layers, own)]
    inputs, cached = inputs_of(recipe, model, calibration), cached_by(recipe, model, calibration)
    if inputs or recipe.cache is not None:
        todo.append((WEIGHTS_ALONE, *todo[0][1:]))
    export = target_of(recipe.target)
    folder = model_folder(recipe.model, recipe.revision) if export and survey is None else None
    stored = stored_bits(export, folder) if survey is None else bits_in_files(export, survey)
    shapes = shapes_of(model, recipe.layers)
    todo += _single_schemes(recipe, shapes, survey, stored)
    rows, refused = [], dict[str, str]()
    for index, (what, name, layers, (predicted, interval)) in enumerate(todo):
        checkpoint()
        try:
            seen = {} if what == WEIGHTS_ALONE else inputs
            weighed = _importances(imatrix, model, layers, shapes)
            assembled = assemble_recipe(recipe, model, calibration, layers, seen, importances=weighed)
        except ValueError as error:
            if what != ONE_SCHEME:
                raise
            refused[name] = str(error)
            continue
        network = assembled.network if what == WEIGHTS_ALONE else cached(assembled.network)
        loss = reference.measure(network)
        bits = _mean_bits(layers, shapes, stored) if recipe.target else assembled.bits
        rows.append(Checked(what, name, bits, predicted, loss, interval))
        del assembled, network  # before the next one is made
        if progress is not None:
            progress(index + 1, len(todo))
    uniform = len({str(one) for one in recipe.layers.values()}) == 1
    sha256, known = hash_of(reference.texts), calibrated_by(recipe, texts, calibration)
    named = inputs_words(recipe) if inputs else "", recipe.cache.described if recipe.cache else ""
    about = (sha256, not texts, uniform, recipe.target, model.part, *named, known, refused)
    return Check(tuple(rows), *about)


def cached_by(recipe: ModelRecipe, model: Model, calibration: AnyTexts) -> Callable[[nn.Module], nn.Module]:
    """Return a function that gives a network the recipe's cache; without a cache in the recipe, the network
    is returned unchanged.

    Fixed scales are found by running the original ``model`` on ``calibration`` (built-in texts if empty).
    ``ValueError`` for a model without a cache.
    """
    plan = recipe.cache
    if plan is None:
        return lambda network: network
    if not model.causal:
        raise ValueError(f"{model.name} predicts no tokens: it keeps no keys and values")
    from explorer.survey.cache import CachedNetwork, fixed_scales

    scales = fixed_scales(model, plan, calibration)
    return lambda network: CachedNetwork(network, plan, scales)


def assemble_recipe(
    recipe: ModelRecipe,
    model: Model,
    calibration: AnyTexts,
    layers: Mapping[str, Recipe],
    inputs: Mapping[str, QuantizedInputs],
    progress: Progress | None = None,
    importances: Mapping[str, Tensor] | None = None,
    in_place: bool = False,
) -> Assembled:
    """Make the recipe's model, with ``layers`` in place of its own, and ``inputs`` quantized in the layers
    that it names.

    `check_recipe` measures this model, and `explorer run` runs it. Methods see ``calibration`` (built-in
    texts if empty), ``progress`` counts layers; ``importances``, ``in_place`` and errors are those of
    ``assemble``.
    """
    return assemble(
        model,
        layers,
        calibration or built_in_texts(model.causal),
        progress=progress,
        fused=recipe.fused,
        inputs=inputs,
        of_inputs=asked_inputs(recipe),
        folded=bool(recipe.target),
        importances=importances,
        in_place=in_place,
    )


def _importances(
    path: str | Path | None, model: Model, layers: Mapping[str, Recipe], shapes: Mapping[str, Shape]
) -> dict[str, Tensor]:
    """Load the importances of the layers whose schemes use any; empty without a file."""
    if path is None or not any(takes_importance(one.scheme) for one in layers.values()):
        return {}
    return layer_importances(path, layers, shapes, model.network.config)


def calibrated_by(recipe: ModelRecipe, texts: AnyTexts, calibration: AnyTexts) -> bool:
    """True if the recipe's survey ran ``texts``, or its methods see them. Empty ``texts`` stand for the
    built-in held-out ones, which nothing is calibrated by."""
    if not texts:
        return False
    used = {recipe.texts_sha256, hash_of(calibration) if calibration else ""} - {""}
    return hash_of(texts) in used


def other_texts(recipe: ModelRecipe, calibration: AnyTexts, causal: bool) -> str:
    """Say that methods, or fixed scales, see other texts than the recipe's survey did; empty if they see the
    same, or none."""
    sees = any(one.method and needs_inputs(one.method) for one in recipe.layers.values())
    fixed = any(map(is_fixed, recipe.input_schemes.values())) or (recipe.cache and recipe.cache.is_fixed)
    known = recipe.texts_sha256
    if not (sees or fixed) or not known or known == hash_of(calibration or built_in_texts(causal)):
        return ""
    which = "those given" if calibration else "the built-in ones: --calibration names the survey's"
    return f"Methods and fixed scales see other texts than the recipe's survey did, {which}"


def inputs_of(
    recipe: ModelRecipe, model: Model, calibration: AnyTexts, target: str = ""
) -> dict[str, QuantizedInputs]:
    """Return the quantization of the inputs of the recipe's layers, with fixed scales, as the reader of
    ``target`` (the recipe's if empty) rounds them. Layers without codes are included."""
    target, scales = target or recipe.target, input_scales_of(recipe, lambda: model, calibration)
    as_read = export_of(target).as_read if target else (lambda inputs, dtype: inputs)
    asked = asked_inputs(recipe).items()
    return {name: QuantizedInputs(as_read(one, torch.float32), scales.get(name)) for name, one in asked}


def asked_inputs(recipe: ModelRecipe) -> dict[str, Scheme]:
    """Return layer -> the scheme of its inputs, also for layers without codes: single schemes that are
    compared with the recipe have the same inputs."""
    if not recipe.input_schemes:
        return {}
    found = ((name, recipe.inputs_of(name)) for name in recipe.layers)
    return {name: one for name, one in found if one is not None}


_Prediction = tuple[float | None, Interval | None]
_Methods = Mapping[str, Mapping[str, str]]
"""Layer -> scheme -> method, unless it is rounding to nearest; empty: the survey chose none."""
_Todo = tuple[str, str, Mapping[str, Recipe], _Prediction]


def _single_schemes(
    recipe: ModelRecipe, shapes: Mapping[str, Shape], survey: Survey | None, stored: StoredBits
) -> Iterator[_Todo]:
    """Choose single schemes to compare with the recipe: at most of its size, those with the least predicted
    loss, or the largest if none is predicted; and the target's usual scheme, of any size."""
    by = _methods_beside(recipe, survey) if survey else {}
    found = []
    for text in _chosen_from(recipe, survey):
        scheme = Scheme.parse(text)
        if not _carried(recipe, scheme, shapes):
            continue
        bits = _mean_bits(dict.fromkeys(shapes, Recipe(scheme)), shapes, stored)
        if bits <= (recipe.bits or math.inf) + SAME_SIZE:
            predicted = _predicted(recipe, survey, text, by)
            found.append((-bits if predicted[0] is None else predicted[0], text))
    texts = [text for _, text in sorted(found)[:UNIFORM]]
    usual = export_of(recipe.target).usual if recipe.target else ()
    texts += [text for text in usual if _carried(recipe, Scheme.parse(text), shapes)][:1]
    for text in dict.fromkeys(texts):
        known = survey is not None and text in survey.head.schemes
        own = {name: _beside(recipe, by if known else {}, name, text) for name in recipe.layers}
        if own != recipe.layers:
            yield ONE_SCHEME, text, own, _predicted(recipe, survey, text, by) if known else (None, None)


def _carried(recipe: ModelRecipe, scheme: Scheme, shapes: Mapping[str, Shape]) -> bool:
    """True if the recipe's target carries ``scheme`` in all layers, with the recipe's inputs."""
    target, asked = target_of(recipe.target), asked_inputs(recipe)
    if any(product_refusal(target, one)(scheme) for one in {asked.get(name) for name in shapes}):
        return False
    if target is None:
        return True
    refused = any(target.refusal(scheme, shape) for shape in shapes.values())
    return not refused and not (any(map(is_expert, shapes)) and target.expert_refusal(scheme))


def _mean_bits(layers: Mapping[str, Recipe], shapes: Mapping[str, Shape], stored: StoredBits) -> float:
    """Bits per weight over ``layers``."""
    bits = sum(stored(one.scheme, shapes[name]) * math.prod(shapes[name]) for name, one in layers.items())
    return bits / sum(math.prod(shapes[name]) for name in layers)


def _chosen_from(recipe: ModelRecipe, survey: Survey | None) -> tuple[str, ...]:
    """The schemes of the survey (else the usual ones) that the recipe was chosen from; all of them if that is
    unknown."""
    there = survey.head.schemes if survey else SCHEMES
    return tuple(name for name in there if not recipe.schemes or name in recipe.schemes)


def _predicted(recipe: ModelRecipe, survey: Survey | None, scheme: str, by: _Methods) -> _Prediction:
    """The survey's prediction of one scheme for all layers, by each layer's method or rounded to nearest;
    None if the default signal predicts no loss."""
    if survey is None or not SENSITIVITIES[survey.head.default].is_loss:
        return None, None
    signal, reached = survey.head.default, [x for x in map(survey.layer, recipe.layers) if x.reached]
    methods = {layer.name: by.get(layer.name, {}).get(scheme, "") for layer in reached}
    loss = sum(layer.cost(signal, scheme, methods[layer.name]) for layer in reached)
    return loss, predicted_interval(survey, signal, {x.name: scheme for x in reached}, methods)


def _surveyed_methods(recipe: ModelRecipe, survey: Survey) -> tuple[str, ...]:
    """The methods of a recipe's layers that its survey has; models compared with it choose from the same.

    None if the recipe's prediction is of rounding to nearest: then the survey chose none of its methods.
    """
    costs = [survey.layer(name).costs.get(recipe.signal, {}) for name in recipe.layers]
    pairs = zip(costs, recipe.layers.values(), strict=True)
    rounded = sum(cost.get(str(one.scheme), math.inf) for cost, one in pairs)
    if recipe.predicted_loss is None or math.isclose(recipe.predicted_loss, rounded, rel_tol=1e-9):
        return ()
    used = {one.method for one in recipe.layers.values()}
    return tuple(name for name in survey.head.methods if name in used)


def _methods_beside(recipe: ModelRecipe, survey: Survey) -> _Methods:
    """Return layer -> scheme -> the best method for models compared with the recipe, under the recipe's
    constraints."""
    layers, allowed = [survey.layer(name) for name in recipe.layers], _surveyed_methods(recipe, survey)
    return best_methods(survey, layers, survey.head.default, allowed, recipe.fused)


def _beside(recipe: ModelRecipe, by: _Methods, layer: str, scheme: str) -> Recipe:
    """Return the recipe of a layer under ``scheme`` in a model compared with the recipe: with the method in
    ``by``, or with the layer's own if the survey chose none."""
    method = by.get(layer, {}).get(scheme, "") if by else recipe.layers[layer].method
    return Recipe(Scheme.parse(scheme), method)
