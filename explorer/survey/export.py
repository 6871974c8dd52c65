"""Turn a recipe into a checkpoint: compute everything that it needs, and write the request."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from torch import Tensor

from explorer.checkpoints.folder import check_writable
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Plan
from explorer.checkpoints.targets import export_of
from explorer.checkpoints.tiny import check_reader
from explorer.checkpoints.write import Request, Written, check_schemes, check_shards, check_verifiable
from explorer.checkpoints.write import export as write
from explorer.core.backend import work_device
from explorer.models.capture import Model, load_model
from explorer.models.files import check_weights, folder_of
from explorer.models.texts import AnyTexts
from explorer.progress import Progress
from explorer.survey.apply import (
    LayerCodes,
    against_cache,
    beside,
    cache_scales_of,
    card_of,
    check_target_inputs,
    codes_of,
    input_scales_of,
)
from explorer.survey.check import other_texts
from explorer.survey.importances import of_folder
from explorer.survey.recipe import ModelRecipe

LEAST_TOKENS = 128
"""Number of tokens below which a method's layer is named in a warning."""
Phases = Callable[[str], Progress | None]
"""Name of the next phase, such as "tensors" -> the function that reports its progress."""


@dataclass(frozen=True)
class Wanted:
    """Checkpoint that a recipe is to become.

    place        the model's folder, if it is not where the recipe found it
    load         returns the model; None: it is loaded from ``place``
    texts        for methods and fixed scales, built-in ones if empty
    importances  [K] of columns, by layer, or an importance file; they weigh the rounding
    measured_on  texts to measure the written checkpoint on, built-in ones if empty; None: it is not measured
    required     True: a model that cannot be measured is an error; False: its card gives the reason
    card         Markdown that follows the card's description of the recipe
    shard_bytes, verified  as in ``Plan`` and ``Request``
    """

    recipe: ModelRecipe
    target: str
    out: Path
    place: str = ""
    load: Callable[[], Model] | None = None
    texts: AnyTexts = ()
    importances: Path | Mapping[str, Tensor] = field(default_factory=dict)
    measured_on: AnyTexts | None = None
    required: bool = False
    verified: bool | None = False
    card: str = ""
    shard_bytes: float | None = None


def export(wanted: Wanted, phases: Phases = lambda what: None) -> Written:
    """Write the checkpoint; every path from a recipe to files leads through here. ``phases`` is called with
    the name of each phase.

    Errors are those of ``checkpoints.export``, and ``ValueError`` for weights that the recipe was not made
    for, for a target that does not carry such layers or inputs, and if a method does not support a layer.
    """
    return write(request_of(wanted, phases), phases("tensors"))


def request_of(wanted: Wanted, phases: Phases = lambda what: None) -> Request:
    """Compute the parts of the request: fixed scales from texts, and codes by methods."""
    recipe, row = wanted.recipe, export_of(wanted.target)
    place = wanted.place or recipe.model
    folder = folder_of(place, recipe.revision)
    check_weights(recipe, place)
    check_target_inputs(recipe, wanted.target)
    check_shards(row, wanted.shard_bytes)
    plan = Plan(ModelFolder(folder), dict(recipe.layers))
    check_schemes(row, plan)
    check_verifiable(row, plan, wanted.verified)
    check_writable(wanted.out)
    if any(one.method for one in recipe.layers.values()):  # before the long work
        check_reader(wanted.target, ModelFolder(folder))
    load = cache(wanted.load or (lambda: load_model(place, recipe.revision, work_device(), head=True)))
    unsaid = against_cache(recipe, wanted.target, folder)
    scales = input_scales_of(recipe, load, wanted.texts, phases("texts for scales of inputs"))
    cached = None if unsaid else recipe.cache
    cache_scales = cache_scales_of(recipe, load, wanted.texts) if cached else {}
    file = wanted.importances if isinstance(wanted.importances, Path) else None
    weights = of_folder(file, recipe.layers, folder) if file else wanted.importances
    assert isinstance(weights, Mapping)
    codes = codes_of(recipe, load, wanted.texts, phases("layers by methods"), folder, row.joined, weights)
    unlike = other_texts(recipe, wanted.texts, load().causal) if codes.tokens or scales else ""
    notes = tuple(filter(None, (unlike, *_few(codes))))
    load.cache_clear()  # writing needs one tensor at a time
    measure = None
    if wanted.measured_on is not None:
        from explorer.survey.measured import measuring

        on, told = wanted.measured_on, phases("texts")
        measure = measuring(recipe, load, on, wanted.texts, told, wanted.required, wanted.target, weights)
    card = card_of(recipe, measure is not None or bool(wanted.card), file.name if file else "", unsaid)
    said = "\n".join(filter(None, (card, wanted.card)))
    inputs, model = recipe.input_schemes, ModelFolder(folder, codes.changed)
    plan = Plan(model, dict(recipe.layers), inputs, scales, wanted.shard_bytes, cached, cache_scales)
    more = (wanted.verified, beside(recipe), measure, notes)
    return Request(wanted.target, plan, wanted.out, codes, said, *more)


def _few(codes: LayerCodes) -> Iterator[str]:
    """Name the layers whose methods saw few tokens."""
    few = {name: count for name, count in codes.tokens.items() if count < LEAST_TOKENS}
    if few:
        named = ", ".join(f"{name} by {count or 'none'}" for name, count in sorted(few.items())[:4])
        more = f" and {len(few) - 4} more" if len(few) > 4 else ""
        yield f"Codes of few tokens, fewer than {LEAST_TOKENS}: {named}{more}; more texts help"
