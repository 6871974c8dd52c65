"""Transformers models that visitors run on text, loaded once."""

from __future__ import annotations

import torch

from app import limits
from app.state.choices import bytes_of, check_cost
from app.state.gpu_lock import room
from app.state.memo import Memo
from app.state.selection import model_source
from explorer import SourceError
from explorer.core.backend import work_device
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, check_runs, load_model
from explorer.models.files import linear_names
from explorer.sources.models import folder_stamp
from explorer.survey.recipe import ModelRecipe

_MODELS = Memo[Model](1 << 30)


def runnable_model(where: str, head: bool = False, revision: str = "") -> Model:
    """The model in a folder or under a Hub id, with ``head`` a causal one with its head. ``SourceError`` for
    one larger than may be run here, before it is loaded, and for a folder where folders may not be named."""
    check_runs(where.strip(), revision, limits.current().sources)
    size = 4 * check_runnable(where, revision)
    bounds, device = limits.current().sources, work_device().type
    key = (where.strip(), revision, folder_stamp(where, bounds), device, bounds, head)

    def load() -> Model:
        with room(size):
            return load_model(where, revision or None, device, bounds, head=head)

    return _MODELS.get(key, load, _bytes_of)


def check_runnable(where: str, revision: str = "") -> int:
    """How many weights a model has. ``SourceError`` for one that is larger than may be run here, and for one
    that may not be opened."""
    source = model_source(where, revision)
    weights, most = sum(info.elements for info in source.infos), limits.current().model_weights
    if weights > most:
        raise SourceError(f"{where} has {weights:,} weights; here a model of up to {most:,} can be run")
    return weights


COPIES = 3
"""Copies of a model in float32 at once, at most: the original, one that a method changes, and what methods or
gradients add. Measured on the CPU with 254 million weights."""


def bytes_of_work(where: str, revision: str, recipe: ModelRecipe | Recipe | None) -> int:
    """Memory that it takes to load a model and to run it beside what ``recipe`` makes of it. ``SourceError``
    as ``check_runnable``; ``ValueError`` for a method of the recipe on a layer that is too large for it
    here."""
    weights, source, most = check_runnable(where, revision), model_source(where, revision), 0
    if isinstance(recipe, Recipe):
        layers = dict.fromkeys(linear_names(source), recipe) if recipe.method else {}
    else:
        layers = {name: one for name, one in recipe.layers.items() if one.method} if recipe else {}
    shapes = {info.name.removesuffix(".weight"): info.matrix_shape for info in source.infos}
    for name, one in layers.items():
        if name in shapes:  # a recipe of another model is refused where it is carried out
            layer = torch.empty(shapes[name], device="meta")
            check_cost([one.method], layer)
            most = max(most, bytes_of(layer, methods=[one.method]))
    return 4 * weights * (COPIES if layers else 2) + most


def _bytes_of(model: Model) -> int:
    return sum(p.nbytes for p in model.network.parameters())
