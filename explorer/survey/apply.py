"""What an export asks of a recipe: the model's folder, the codes of each layer, and what the card says."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.write import export_of
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.methods import label_of
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model
from explorer.models.evaluate import needs_inputs
from explorer.progress import Progress
from explorer.schemes import Scheme
from explorer.sources import open_source
from explorer.sources.base import SourceError
from explorer.survey.assemble import assemble, rounding
from explorer.survey.budget import Constraints
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import Survey
from explorer.survey.run import built_in_texts, weights_sha256
from explorer.survey.sensitivities import SENSITIVITIES
from explorer.words import code

Codes = Callable[[str, Tensor, Recipe], QuantizedTensor]
"""(name of the layer, its weight [N, K], its recipe) -> codes."""


def folder_of(model: str, revision: str | None = None) -> Path:
    """The folder on this machine that a model's files are in; ``ValueError`` for one that is only on the
    Hub."""
    paths = open_source(model, revision).paths
    if not paths:
        raise ValueError(f"{model} is not on this machine: fetch it first (`hf download {model}`)")
    return paths[0].parent


def constraints_of(target: str = "", **more: Any) -> Constraints:
    """``Constraints`` to the schemes that the checkpoint format ``target`` carries together; to none of a
    format if empty. ``ValueError`` with the names there are."""
    if not target:
        return Constraints(**more)
    export = export_of(target)
    return Constraints(
        refusal=export.refusal,
        expert_refusal=export.expert_refusal,
        family=export.family,
        target=target,
        **more,
    )


def unplaced(target: str, survey: Survey) -> dict[str, str]:
    """The surveyed layers whose codes the reader of ``target`` could not use, each with the reason; none
    where the model's files are not on this machine."""
    export, model = export_of(target), survey.head.model
    try:
        folder = ModelFolder(folder_of(model, survey.head.revision))
    except (ValueError, SourceError):
        return {}
    schemes = [Scheme.parse(text) for text in survey.head.schemes]
    found = {}
    for layer in survey.linear:
        if not folder.coded(layer.name).refusal:
            continue
        carried = (one for one in schemes if not export.refusal(one, layer.shape))
        reasons = (export.place(folder, layer.name, scheme).refusal for scheme in carried)
        if why := next(filter(None, reasons), ""):
            found[layer.name] = why
    return found


def check_weights(recipe: ModelRecipe, place: str) -> None:
    """``ValueError`` if the weights at ``place`` are not those that the recipe was made for, as far as both
    are known."""
    sha256 = weights_sha256(open_source(place, recipe.revision))
    if sha256 and recipe.weights_sha256 and sha256 != recipe.weights_sha256:
        raise ValueError(f"the weights of {place} are not those that the recipe was made for")


def codes_of(
    recipe: ModelRecipe,
    load: Callable[[], Model],
    texts: Sequence[str] = (),
    progress: Progress | None = None,
    folder: Path | None = None,
) -> Codes:
    """Each layer's codes: chosen by its method, whose inputs are those of ``texts`` (built-in ones if empty),
    or rounded to nearest. The model is loaded only for methods. In a fused recipe, layers that engines
    multiply as one matrix share its scale of the whole tensor: the others are read from the model's
    ``folder``.

    ``ValueError`` where a method cannot serve a layer, and where it stores more than codes, which no
    checkpoint carries.
    """
    by_method = any(needs_inputs(one.method) for one in recipe.layers.values() if one.method)
    layers: Mapping[str, QuantizedLayer] = {}
    if by_method:
        layers = assemble(load(), recipe.layers, texts or built_in_texts(), progress=progress).layers
    for name, layer in layers.items():
        if not layer.plain:
            raise ValueError(
                f"{name}: {label_of(recipe.layers[name].method)} stores more than codes, which no checkpoint "
                f"here carries; one that chooses codes alone, such as {label_of('gptq')}, can be written"
            )

    model = ModelFolder(folder) if folder and recipe.fused else None
    rounded = (
        rounding(recipe.layers, True, lambda name: model.read(f"{name}.weight").float()) if model else None
    )

    def codes(name: str, weight: Tensor, one: Recipe) -> QuantizedTensor:
        if name in layers:
            return layers[name].q
        return rounded(name) if rounded else quantize(weight.float(), one.scheme)

    return codes


def card_of(recipe: ModelRecipe) -> str:
    """What a model card says of the recipe, in Markdown."""
    schemes = ", ".join(f"{count} layers {text}" for text, count in recipe.counts.items())
    lines = [f"Quantized by a recipe: {schemes}."]
    if recipe.bits is not None:
        lines.append(f"{recipe.bits:.4g} bits a weight over these layers, scales and zero points counted.")
    if recipe.signal:
        known = SENSITIVITIES.get(recipe.signal)
        lines.append(f"Chosen by {known.label if known else code(recipe.signal)}.")
    if recipe.predicted_loss is not None:
        lines.append(f"Predicted loss {recipe.predicted_loss:.3g}; run `explorer check` for the true one.")
    return "\n".join(lines)
