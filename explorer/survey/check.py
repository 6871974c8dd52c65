"""A recipe held against the truth: the assembled model is run on texts that it was not chosen by.

Its loss stands beside the prediction, beside single schemes of the same size for all layers, and beside
recipes of the same budget by other signals.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from explorer.checkpoints.write import export_of
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model
from explorer.models.evaluate import sentences
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme
from explorer.survey.apply import constraints_of
from explorer.survey.assemble import assemble, shapes_of
from explorer.survey.budget import frontier
from explorer.survey.loss import Loss, hash_of, reference_for
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import Layer, Survey
from explorer.survey.run import SCHEMES, built_in_texts
from explorer.survey.sensitivities import SENSITIVITIES

UNIFORM = 2
"""Single schemes that a recipe stands beside."""
SAME_SIZE = 0.02
"""Bits a weight that a single scheme may be larger and still be of the same size."""
RECIPE, BY_SIGNAL, ONE_SCHEME = "recipe", "same budget by another signal", "one scheme for all layers"


@dataclass(frozen=True)
class Checked:
    """One model that was run. ``what``: "recipe", "same budget by another signal" or "one scheme for all
    layers"; ``name``: the signal or scheme; ``predicted`` is None where nothing predicts its loss."""

    what: str
    name: str
    bits: float
    predicted: float | None
    loss: Loss


@dataclass(frozen=True)
class Check:
    """What ``check_recipe`` measured; the recipe is the first of ``rows``. ``better``: the share of the loss
    of the best single scheme that the recipe saves, negative where it is worse; None without one.
    ``uniform``: the recipe is one scheme for all layers itself."""

    rows: tuple[Checked, ...]
    texts_sha256: str
    built_in_texts: bool
    uniform: bool = False

    @property
    def single(self) -> Checked | None:
        """The best single scheme of about the recipe's size, or smaller; None if none was run."""
        single = [row for row in self.rows if row.what == ONE_SCHEME]
        return min(single, key=lambda row: row.loss.value, default=None)

    @property
    def better(self) -> float | None:
        best = self.single
        return 1 - self.rows[0].loss.value / best.loss.value if best and best.loss.value > 0 else None


def check_recipe(
    recipe: ModelRecipe,
    model: Model,
    texts: Sequence[str] = (),
    survey: Survey | None = None,
    calibration: Sequence[str] = (),
    progress: Progress | None = None,
) -> Check:
    """Run the recipe and what it stands beside on ``texts`` (held-out built-in sentences if empty).

    With the ``survey`` that it is from, predictions stand beside single schemes too, and the recipe that
    another signal gives for its layers. What it stands beside is made of the schemes that the recipe was
    chosen from, under its constraints. ``calibration``: what methods see. ``model`` has its head
    (``load_model(..., head=True)``). ``ValueError`` if the survey is of other weights, or
    predicts another loss than this network has.
    """
    if survey is not None and survey.head.weights_sha256 != recipe.weights_sha256:
        raise ValueError(f"the survey is of other weights than the recipe for {recipe.model}")
    reference = reference_for(model, texts or sentences())
    if survey is not None and survey.head.loss not in ("", reference.kind):
        raise ValueError(f"the survey predicts a loss of {survey.head.loss}, the model has {reference.kind}")
    todo = [(RECIPE, recipe.signal or "one scheme", recipe.layers, recipe.predicted_loss)]
    todo += _by_other_signals(recipe, survey)
    todo += _single_schemes(recipe, model, survey)
    rows = []
    for index, (what, name, layers, predicted) in enumerate(todo):
        checkpoint()
        assembled = assemble(model, layers, calibration or built_in_texts(), fused=recipe.fused)
        loss = reference.measure(assembled.network)
        rows.append(Checked(what, name, assembled.bits, predicted, loss))
        if progress is not None:
            progress(index + 1, len(todo))
    uniform = len({str(one) for one in recipe.layers.values()}) == 1
    return Check(tuple(rows), hash_of(reference.texts), not texts, uniform)


_Todo = tuple[str, str, Mapping[str, Recipe], float | None]


def _by_other_signals(recipe: ModelRecipe, survey: Survey | None) -> Iterator[_Todo]:
    """The usual signal's choice for the same layers and bits, and the survey's default where it is
    another."""
    if survey is None or recipe.bits is None:
        return
    constraints = constraints_of(
        recipe.target, only=tuple(recipe.layers), schemes=_chosen_from(recipe, survey), fuse=recipe.fused
    )
    for signal in dict.fromkeys(("weight", survey.head.default)):
        if signal != recipe.signal and signal in survey.head.signals:
            choice = frontier(survey, signal, constraints).at(recipe.bits)
            layers = {n: Recipe(Scheme.parse(s), recipe.layers[n].method) for n, s in choice.schemes.items()}
            yield BY_SIGNAL, signal, layers, choice.loss if SENSITIVITIES[signal].is_loss else None


def _single_schemes(recipe: ModelRecipe, model: Model, survey: Survey | None) -> Iterator[_Todo]:
    """The schemes of at most the recipe's size, of which the least loss is predicted, or the largest."""
    shapes = shapes_of(model, recipe.layers)
    weights = sum(map(math.prod, shapes.values()))
    layers = [survey.layer(name) for name in recipe.layers] if survey else []
    found = []
    carries = export_of(recipe.target).refusal if recipe.target else None
    for text in _chosen_from(recipe, survey):
        scheme = Scheme.parse(text)
        if carries and any(carries(scheme, shape) for shape in shapes.values()):
            continue
        bits = sum(scheme.bits_per_element(s).total * math.prod(s) for s in shapes.values()) / weights
        if bits <= (recipe.bits or math.inf) + SAME_SIZE:
            predicted = _predicted(layers, survey, text)
            found.append((-bits if predicted is None else predicted, text, scheme, predicted))
    for _, text, scheme, predicted in sorted(found, key=lambda row: row[:2])[:UNIFORM]:
        own = {name: Recipe(scheme, one.method) for name, one in recipe.layers.items()}
        if own != recipe.layers:
            yield ONE_SCHEME, text, own, predicted


def _chosen_from(recipe: ModelRecipe, survey: Survey | None) -> tuple[str, ...]:
    """The schemes of the survey, or the usual ones, that the recipe could have had."""
    there = survey.head.schemes if survey else SCHEMES
    return tuple(name for name in there if not recipe.schemes or name in recipe.schemes)


def _predicted(layers: Sequence[Layer], survey: Survey | None, scheme: str) -> float | None:
    """The survey's prediction of one scheme for all layers, if its default signal predicts a loss."""
    if survey is None or not SENSITIVITIES[survey.head.default].is_loss:
        return None
    return sum(layer.costs[survey.head.default][scheme] for layer in layers if layer.reached)
