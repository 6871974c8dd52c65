"""Parts of an export that come from a recipe: codes of each layer, fixed scales, text of the model card."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from torch import Tensor

from explorer.analysis.cache import CachePlan
from explorer.checkpoints.inputs import is_fixed, label_of_inputs
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.targets import export_of
from explorer.core.quantize import QuantizedTensor, quantize_weight
from explorer.methods import has_factor, label_of, names_in
from explorer.methods.layer import QuantizedLayer
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model
from explorer.models.evaluate import built_in_texts, needs_inputs
from explorer.models.files import check_weights
from explorer.models.quantize import rounding
from explorer.models.skeleton import Skeleton
from explorer.models.texts import AnyTexts
from explorer.progress import Progress
from explorer.sources.base import SourceError
from explorer.sources.gguf_file import SUFFIX
from explorer.sources.safetensors_header import NAMES
from explorer.survey.assemble import assemble, input_scales
from explorer.survey.carried import model_folder, product_refusal, target_of
from explorer.survey.recipe import ModelRecipe
from explorer.survey.sensitivities import SENSITIVITIES
from explorer.words import code

RECIPE = "recipe.json"
"""Name of the recipe's file in a checkpoint's folder."""


@dataclass(frozen=True, eq=False)
class LayerCodes:
    """Codes of a recipe's layers. A call takes a layer's name, weight [N, K] and recipe, and returns its
    codes.

    chosen       layer -> codes that its method chose
    rounded      rounds any other layer, given by name, to nearest; None: each layer by itself
    changed      tensors of the files, by name, that hold factors of methods or corrected biases
    importances  layer -> [K] of its columns; for layers rounded by themselves
    tokens       layer -> number of tokens that its method saw
    """

    chosen: Mapping[str, QuantizedTensor] = field(default_factory=dict)
    rounded: Callable[[str], QuantizedTensor] | None = None
    changed: Mapping[str, Tensor] = field(default_factory=dict)
    importances: Mapping[str, Tensor] = field(default_factory=dict)
    tokens: Mapping[str, int] = field(default_factory=dict)

    def __call__(self, name: str, weight: Tensor, recipe: Recipe) -> QuantizedTensor:
        if name in self.chosen:
            return self.chosen[name]
        if self.rounded:
            return self.rounded(name)
        return quantize_weight(weight.float(), recipe.scheme, self.importances.get(name))


def check_target_inputs(recipe: ModelRecipe, target: str) -> None:
    """``ValueError`` if the recipe quantizes inputs and ``target`` cannot; it names the targets that can."""
    for inputs in dict.fromkeys(recipe.input_schemes.values()):
        product_refusal(target_of(target), inputs)


def surveyed_shapes(recipe: ModelRecipe, base: str) -> dict[str, tuple[int, ...]]:
    """Return the shapes of a recipe's layers in the surveyed model, to compare the GGUF file ``base`` with;
    empty if the model is not on this machine. ``ValueError`` if another .gguf file was surveyed."""
    if Path(recipe.model).suffix.lower() == SUFFIX:
        check_weights(recipe, base)
    folder = model_folder(recipe.model, recipe.revision)
    with suppress(ValueError, SourceError):
        return {} if folder is None else {x: folder.info(f"{x}.weight").shape for x in recipe.layers}
    return {}


def codes_of(
    recipe: ModelRecipe,
    load: Callable[[], Model],
    texts: AnyTexts = (),
    progress: Progress | None = None,
    folder: Path | None = None,
    fused: bool = False,
    importances: Mapping[str, Tensor] | None = None,
) -> LayerCodes:
    """Compute each layer's codes: by its method from the inputs that ``texts`` give (built-in ones if empty),
    or by rounding to nearest. The model is loaded only for methods.

    In a ``fused`` recipe, or for an engine that fuses layers, layers that are multiplied as one matrix share
    a scale of the whole tensor; members without a recipe are read from the model's ``folder``.
    ``importances`` [K] of columns, by layer, weigh the rounding.

    Factors of methods are folded into earlier layers, and corrected biases replace the model's
    (``LayerCodes.changed``). ``ValueError`` if a method does not support a layer, if its factor cannot be
    folded, if it corrects a bias that the layer lacks, and if it stores more than codes, which no checkpoint
    carries.
    """
    by_method = any(needs_inputs(one.method) for one in recipe.layers.values() if one.method)
    for name, one in recipe.layers.items():
        if one.method and (basis := _unfolded(one.method)):
            raise ValueError(
                f"{name}: {label_of(one.method)} stores more than codes: {basis} changes the basis of the "
                "layer's inputs, and is not merged into the layers before. One that scales channels, such as "
                f"{label_of('awq')}, can be written"
            )
    layers: Mapping[str, QuantizedLayer] = {}
    changed: dict[str, Tensor] = {}
    tokens: Mapping[str, int] = {}
    if by_method:
        loaded = load()
        texts = texts or built_in_texts(loaded.causal)
        assembled = assemble(
            loaded,
            recipe.layers,
            texts,
            progress=progress,
            fused=fused or recipe.fused,
            of_inputs=recipe.input_schemes,
            folded=True,
            importances=importances,
        )
        layers, tokens = assembled.layers, assembled.tokens
        changed = _in_files(assembled.changed, loaded, recipe, folder)
    for name, layer in layers.items():
        if not layer.plain:
            raise ValueError(
                f"{name}: {label_of(recipe.layers[name].method)} stores more than codes, which no checkpoint "
                f"here carries; one that chooses codes alone, such as {label_of('gptq')}, can be written"
            )
    rounded = None
    if folder and (fused or recipe.fused):
        model = ModelFolder(folder, changed)
        rounded = rounding(
            recipe.layers, True, lambda name: model.read(f"{name}.weight").float(), importances
        )
    chosen = {name: layer.q for name, layer in layers.items()}
    return LayerCodes(chosen, rounded, changed, importances or {}, tokens)


def _unfolded(method: str) -> str:
    """Name the part of a method that changes a layer's inputs and cannot be folded into an earlier layer;
    empty if none does."""
    return next((row.label for row in names_in(method) if row.transform and not row.factor), "")


def _in_files(
    parameters: Mapping[str, Tensor], model: Model, recipe: ModelRecipe, folder: Path | None
) -> dict[str, Tensor]:
    """Return ``parameters`` of the network by the names of their tensors in ``folder``, in the files' dtype
    unless the recipe rounds them. ``ValueError`` for one that transformers merges from several tensors."""
    if not parameters:
        return {}
    if folder is None:
        raise ValueError("methods change tensors of the model's folder beside the codes: name it")
    skeleton, dtypes = Skeleton(model.network), {name: dtype for dtype, name in NAMES.items()}
    found, names = {}, dict[str, str]()
    for info in ModelFolder(folder).infos:
        parameter, merged = skeleton.parameter(info.name)
        if parameter not in parameters or merged:
            continue
        names[parameter] = info.name
        kept = info.name.removesuffix(".weight") not in recipe.layers
        found[info.name] = parameters[parameter].to(dtypes[info.dtype]) if kept else parameters[parameter]
    if left := next((name for name in parameters if name not in names), None):
        raise ValueError(f"{left} is changed by a method, and the model's files hold it in another form")
    return found


def input_scales_of(
    recipe: ModelRecipe,
    load: Callable[[], Model],
    texts: AnyTexts = (),
    progress: Progress | None = None,
) -> dict[str, float]:
    """Find the fixed scales of the inputs of a recipe's layers, by running the original model on ``texts``
    (built-in ones if empty). ``progress`` counts texts.

    Without fixed scales the result is empty, and no model is loaded. ``ValueError`` for layers whose inputs a
    method's factor changes.
    """
    fixed = {name: scheme for name, scheme in recipe.input_schemes.items() if is_fixed(scheme)}
    if not fixed:
        return {}
    for name in fixed:
        one = recipe.layers[name]
        if one.method and has_factor(one.method):
            raise ValueError(
                f"{name}: fixed scales are found in the original model, and the factor of "
                f"{label_of(one.method)} changes these inputs: quantize inputs per token"
            )
    model = load()
    return input_scales(model, recipe.layers, fixed, texts or built_in_texts(model.causal), progress)


def cache_scales_of(recipe: ModelRecipe, load: Callable[[], Model], texts: AnyTexts = ()) -> dict[str, float]:
    """Find the fixed scales of a recipe's cache, by running the original model on ``texts`` (built-in ones if
    empty). Without fixed scales the result is empty, and no model is loaded. ``ValueError`` for a model
    without a cache."""
    if recipe.cache is None or not recipe.cache.is_fixed:
        return {}
    from explorer.survey.cache import fixed_scales

    return fixed_scales(load(), recipe.cache, texts)


def beside(recipe: ModelRecipe) -> dict[str, str]:
    """Return the recipe for its own checkpoint's folder. A model on this machine is named by its folder's
    name alone: paths are not published."""
    model = recipe.model
    if Path(model).exists():
        model = Path(model).resolve().name
    return {RECIPE: dataclasses.replace(recipe, model=model).to_json()}


def weights_alone(inputs: bool, cache: CachePlan | None = None) -> str:
    """Qualify a predicted loss, which leaves out quantized ``inputs`` and a quantized ``cache``; empty
    without either."""
    adding = ["quantized inputs"] * inputs + ["a quantized cache"] * (cache is not None)
    if not adding:
        return ""
    return f" (of the weights alone; {' and '.join(adding)} add to it: `explorer check`)"


def inputs_words(recipe: ModelRecipe) -> str:
    """Describe the inputs of a recipe's layers, with counts where they differ."""
    counts = Counter(recipe.input_schemes.values())
    coded = sum(one.scheme.plain_dtype is None for one in recipe.layers.values())
    if len(counts) == 1 and len(recipe.input_schemes) == coded:
        return label_of_inputs(next(iter(counts)))
    said = [f"{label_of_inputs(scheme)} for {_layers(count)}" for scheme, count in counts.most_common()]
    left = coded - len(recipe.input_schemes)
    return "; ".join([*said, *[f"as they are for {_layers(left)}"] * bool(left)])


def _layers(count: int) -> str:
    return f"{count} layer{'' if count == 1 else 's'}"


def against_cache(recipe: ModelRecipe, target: str, folder: Path | None) -> str:
    """Return the reason why files of ``target`` cannot describe the recipe's cache of keys and values; empty
    if they can, or if the cache is exact. ``folder``: the model's, None if its tensors are not known."""
    if recipe.cache is None:
        return ""
    export = export_of(target)
    return export.against_cache(None if folder is None else ModelFolder(folder), recipe.cache)


def card_of(recipe: ModelRecipe, measured: bool = False, imatrix: str = "", against_cache: str = "") -> str:
    """Describe the recipe for a model card, in Markdown. ``measured``: the true loss follows; ``imatrix``:
    name of the importance file that weighed the rounding; ``against_cache``: the reason why the files cannot
    describe the cache."""
    schemes = ", ".join(f"{count} layer{'s' * (count > 1)} {text}" for text, count in recipe.counts.items())
    lines = [f"Quantized by a recipe: {schemes}."]
    if recipe.bits is not None:
        counted = f"as {recipe.target} stores them" if recipe.target else "scales and zero points counted"
        lines.append(f"{recipe.bits:.4g} bits per weight over these layers, {counted}.")
    if recipe.signal:
        known = SENSITIVITIES.get(recipe.signal)
        lines.append(f"Chosen by {known.label if known else code(recipe.signal)}.")
    if imatrix:
        lines.append(f"Rounded under the importances of {code(imatrix)}, as llama.cpp does.")
    if recipe.input_schemes:
        lines.append(f"Inputs of these layers are quantized too: {inputs_words(recipe)}.")
    if recipe.cache is not None:
        stored = f"Keys and values are stored so: {recipe.cache.described}."
        lines.append(f"{stored} These files do not say so: {against_cache}." if against_cache else stored)
    if recipe.predicted_loss is not None:
        adding = ["inputs"] * bool(recipe.input_schemes) + ["cache"] * (recipe.cache is not None)
        of = f" of the weights, to which {' and '.join(adding)} add" if adding else ""
        more = "" if measured else "; run `explorer check` for the true one"
        lines.append(f"Predicted loss {recipe.predicted_loss:.3g}{of}{more}.")
    return "\n".join(lines)
