"""Rebuild a report from its metadata, by kind."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from explorer.methods.recipe import Recipe
from explorer.progress import Progress
from explorer.reports.content import SPEED, SURVEY, TENSOR, TRAINING, Content
from explorer.reports.speed import speed_report, timings_in
from explorer.reports.survey import USUAL_BITS, Asked, bought, find_survey, survey_report
from explorer.reports.tensor import Methods, More, tensor_report
from explorer.reports.training import Settings, trained, training_report
from explorer.schemes import Scheme
from explorer.sources import load_matrix
from explorer.survey.apply import check_weights
from explorer.survey.check import check_recipe
from explorer.survey.times import seconds_of


@dataclass(frozen=True)
class Where:
    """Local paths for a report made elsewhere: the tensor or survey, a layer's inputs, a model; None: the
    path in the report."""

    file: str | None = None
    inputs: str | None = None
    model: str | None = None


def again(recipe: Mapping[str, Any], where: Where | None = None, progress: Progress | None = None) -> Content:
    """The report that ``recipe`` describes, computed now. ``ValueError`` for an invalid recipe, or if the
    subject of the report is missing."""
    kind = recipe.get("kind", TENSOR)
    if kind not in KINDS:
        raise ValueError(f"a report of an unknown kind, {str(kind)[:40]!r}; there are {', '.join(KINDS)}")
    try:
        return KINDS[kind](recipe, where or Where(), progress)
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError(f"the report does not say how it was made: {error}") from error


def _tensor(recipe: Mapping[str, Any], where: Where, progress: Progress | None) -> Content:
    file = where.file or recipe["file"]
    inputs = where.inputs or recipe.get("inputs")
    if where.file and not where.inputs and inputs == recipe["file"]:
        inputs = where.file  # weight and inputs in one file
    matrix = load_matrix(file, recipe.get("tensor"), recipe.get("revision"))
    x = load_matrix(inputs, recipe.get("inputs_tensor")).values if inputs else None
    row, column = recipe["element"]
    methods = None
    if recipe.get("methods"):
        names, schemes = tuple(recipe["methods"]), tuple(recipe["method_schemes"])
        methods = Methods(names, schemes, recipe.get("activations") or "")
    more = More(
        element=(int(row), int(column)),
        own=recipe.get("own"),
        inputs=x,
        methods=methods,
        timings=timings_in(recipe["measured"]) if recipe.get("measured") else None,
    )
    source = {key: recipe.get(key) for key in ("file", "tensor", "revision", "inputs", "inputs_tensor")}
    return tensor_report(matrix, [Recipe.parse(text) for text in recipe["schemes"]], source, more, progress)


def _survey(recipe: Mapping[str, Any], where: Where, progress: Progress | None) -> Content:
    from explorer.models.capture import load_model

    asked = Asked(
        USUAL_BITS if recipe.get("bits") is None else float(recipe["bits"]),
        recipe["signal"],
        recipe.get("for") or "",
        tuple(recipe.get("keep") or ()),
        bool(recipe.get("fuse")),
        recipe.get("inputs") or "",
        seconds_of(recipe["time"]) if recipe.get("time") else None,
        (recipe.get("batch") or 1) if recipe.get("time") else None,
    )
    place = str(recipe["file"])
    one = bought(find_survey(where.file or place), asked)
    if not recipe.get("check_model"):
        return survey_report(place, one)
    own = where.model or recipe.get("model")
    model = own or one.recipe.model
    check_weights(one.recipe, model)
    loaded = load_model(model, one.recipe.revision, head=True)
    check = check_recipe(one.recipe, loaded, survey=one.survey, progress=progress)
    return survey_report(place, one, check, recipe.get("model"))


def _speed(recipe: Mapping[str, Any], where: Where, progress: Progress | None) -> Content:
    measured = recipe.get("measured")
    recipes = [Recipe.parse(text) for text in recipe.get("schemes") or ()]
    shape = recipe.get("shape")
    return speed_report(timings_in(measured) if measured else None, shape, recipes)


def _training(recipe: Mapping[str, Any], where: Where, progress: Progress | None) -> Content:
    settings = Settings(
        tuple(recipe["widths"]),
        int(recipe["seeds"]),
        int(recipe["epochs"]),
        int(recipe["again"]),
        recipe.get("activations") or "",
    )
    if settings.activations:
        Scheme.parse(settings.activations)
    return training_report(settings, trained(settings, progress))


KINDS = {TENSOR: _tensor, SURVEY: _survey, SPEED: _speed, TRAINING: _training}
"""Builder of each kind of report from a recipe."""
