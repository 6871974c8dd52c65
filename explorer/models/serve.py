"""Models with linear layers that hold codes and multiply by them."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Protocol

from torch import Tensor, nn

from explorer.core.replace import replace_layers
from explorer.methods.recipe import Recipe
from explorer.models.quantize import rounding
from explorer.products.layer import QuantizedLinear
from explorer.progress import Progress
from explorer.schemes import Scheme


class RecipeOfLayers(Protocol):
    """Fields of ``explorer.survey.recipe.ModelRecipe`` that quantize a model."""

    @property
    def layers(self) -> Mapping[str, Recipe]: ...

    @property
    def input_schemes(self) -> Mapping[str, Scheme]: ...

    @property
    def fused(self) -> bool: ...


def quantize_model(
    model: nn.Module,
    recipe: RecipeOfLayers | Mapping[str, Scheme | Recipe | str] | Scheme | str,
    x_scheme: Scheme | None = None,
    kernels: bool = True,
    progress: Progress | None = None,
) -> nn.Module:
    """Replace linear layers of ``model`` in place by ``QuantizedLinear``, rounded to nearest; returns
    ``model``.

    ``recipe``: a recipe file read by ``explorer.survey.ModelRecipe.load``; a scheme (or its text) for each
    layer by its name (without ".weight"); or one scheme (or its text) for every ``nn.Linear`` but the output
    head. In the last case a warning reports other weights that stay, such as stacked experts. ``x_scheme``
    quantizes inputs; without it, the recipe's own schemes do. In a ``fused`` recipe, layers that engines
    multiply as one share a scale of the whole tensor. Layers not named stay as they are.

    ``ValueError``, before anything is changed, for a name that is no linear layer of the model or is done
    already, and for a layer with codes that a method chooses (``explorer apply`` writes those); for NaN or
    Inf in a weight, after the layers before it were replaced.
    """
    chosen, inputs, fused = _chosen(model, recipe)
    _check(model, chosen)
    if isinstance(recipe, str | Scheme):
        _warn_of_others(model, chosen)

    def weight(name: str) -> Tensor:
        weight = model.get_submodule(name).weight  # of a pruned or normalized layer no parameter
        assert isinstance(weight, Tensor)
        return weight.detach()

    rounded = rounding(chosen, fused, weight)

    def coded(name: str, linear: nn.Linear) -> QuantizedLinear:
        try:
            q = rounded(name)
        except ValueError as error:
            raise ValueError(f"{name}: {error}; the layers before it are quantized") from error
        layer = QuantizedLinear(q, linear.bias, x_scheme or inputs.get(name), kernels)
        layer.dtype = linear.weight.dtype
        return layer

    replace_layers(model, chosen, coded, progress)
    return model


def _chosen(
    model: nn.Module, recipe: RecipeOfLayers | Mapping[str, Scheme | Recipe | str] | Scheme | str
) -> tuple[dict[str, Recipe], Mapping[str, Scheme], bool]:
    if isinstance(recipe, Path) or (isinstance(recipe, str) and recipe.endswith(".json")):
        raise ValueError(f"read the recipe first: explorer.survey.ModelRecipe.load({str(recipe)!r})")
    if isinstance(recipe, str):
        recipe = Scheme.parse(recipe)
    if isinstance(recipe, Scheme):
        return {name: Recipe(recipe) for name in linear_but_head(model)}, {}, False
    if isinstance(recipe, Mapping):
        return {name: _recipe(one) for name, one in recipe.items()}, {}, False
    return dict(recipe.layers), recipe.input_schemes, recipe.fused


def _recipe(one: Scheme | Recipe | str) -> Recipe:
    if isinstance(one, str):
        return Recipe.parse(one)
    return one if isinstance(one, Recipe) else Recipe(one)


def linear_but_head(model: nn.Module) -> list[str]:
    """Name a model's ``nn.Linear`` modules except its output head."""
    head = _embeddings(model, "output")
    return [n for n, m in model.named_modules() if type(m) is nn.Linear and m is not head]


def _embeddings(model: nn.Module, side: str) -> nn.Module | None:
    """transformers' "input" or "output" embeddings of a model; None without."""
    find = getattr(model, f"get_{side}_embeddings", None)
    found: nn.Module | None = None if find is None else find()
    return found


def _warn_of_others(model: nn.Module, chosen: Iterable[str]) -> None:
    """Warn of weights that stay as they are (other than ``chosen`` layers, embeddings, the head and vectors)
    if they are more than a hundredth of all."""
    modules = [model.get_submodule(name) for name in chosen]
    modules += [m for m in model.modules() if isinstance(m, nn.Embedding)]
    ends = [_embeddings(model, side) for side in ("input", "output")]
    accounted = {id(getattr(m, "weight", None)) for m in (*modules, *ends)}
    sizes = {
        name: parameter.numel()
        for name, parameter in model.named_parameters()
        if parameter.dim() > 1 and id(parameter) not in accounted
    }
    total = sum(parameter.numel() for parameter in model.parameters())
    if sum(sizes.values()) > total / 100:
        warnings.warn(
            f"{sum(sizes.values()):,} of {total:,} weights are in no torch.nn.Linear and stay as they are, "
            f"such as {max(sizes, key=lambda name: sizes[name])}",
            stacklevel=3,
        )


def _check(model: nn.Module, chosen: Mapping[str, Recipe]) -> None:
    modules = dict(model.named_modules(remove_duplicate=False))
    done = {name: module for name, module in modules.items() if isinstance(module, QuantizedLinear)}
    again = [name for name in chosen if name in done] or ([] if chosen else list(done))
    if again:
        raise ValueError(f"{again[0]} is quantized already ({done[again[0]].scheme}): load the model anew")
    if not chosen:
        raise ValueError(
            "there is no linear layer to quantize: those are torch.nn.Linear, not Conv1D as in GPT-2"
        )
    known = {name: module for name, module in modules.items() if isinstance(module, nn.Linear)}
    if missing := [name for name in chosen if name not in known]:
        raise ValueError(
            f"{missing[0]!r} is no linear layer of this model; it has {len(known)}, such as "
            f"{', '.join(list(known)[:3])}"
        )
    first = dict[nn.Module, str]()
    for name, one in chosen.items():
        other = first.setdefault(known[name], name)
        if chosen[other] != one:
            raise ValueError(f"{other} and {name} are one layer, which cannot have {chosen[other]} and {one}")
        if one.method:
            raise ValueError(
                f"{name} is to be rounded by {one.label}, which needs the layer's inputs: `explorer apply` "
                "writes such a model"
            )
