"""Fold the factors of methods into earlier layers, so that the network needs codes alone.

All layers that read one norm share a factor: the methods search it for all of them together, by the sum of
the errors of those that are quantized.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from explorer.methods import factor_of, has_factor, label_of, names_in
from explorer.methods.factors import Readers
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, capture
from explorer.models.folds import Fold, Run, find_folds, run_of
from explorer.models.texts import AnyTexts, token_sequences
from explorer.progress import checkpoint
from explorer.schemes import Scheme
from explorer.sources.base import SourceError

TRIED = 16
"""Number of tokens on which folds are tried."""


@dataclass(frozen=True, eq=False)
class Folding:
    """Changes to a network by folding.

    divisors  divisor of the inputs of a linear layer, float32 [K], by module
    changed   name -> changed parameter of the network, except weights whose codes a method chooses; in the
              dtype of the model's files, or float32 if they are rounded next
    """

    divisors: Mapping[str, Tensor] = field(default_factory=dict)
    changed: Mapping[str, Tensor] = field(default_factory=dict)


def fold_factors(
    model: Model,
    network: nn.Module,
    recipes: Mapping[str, Recipe],
    texts: AnyTexts,
    tokens: int,
    of_inputs: Mapping[str, Scheme] | None = None,
) -> Folding:
    """Search the factors of the methods in ``recipes`` (by module) and fold them into ``network``, a copy of
    the model's, in place.

    ``of_inputs``: module -> quantization of its inputs when the model runs, which the search accounts for; of
    readers of the same inputs the first that has any decides. Changed parameters that no recipe rounds are
    rounded to the dtype of the model's files, as they will be stored. ``ValueError`` names a layer whose
    factor cannot be folded, and layers that share inputs but have factors of different methods.
    """
    wanted = [name for name, recipe in recipes.items() if has_factor(recipe.method or "rtn")]
    if not wanted:
        return Folding()
    folds, refused = find_folds(network, _short_run(model, texts), wanted)
    for name, why in refused.items():
        others = f" ({len(refused)} such layers)" if len(refused) > 1 else ""
        raise ValueError(
            f"{name}: a file cannot carry the factor of {label_of(recipes[name].method)}, and no layer "
            f"before takes it in: {why}{others}. Keep the layer as it is, or take a method that chooses "
            f"codes alone, such as {label_of('gptq')}"
        )
    methods = [_method(fold, recipes) for fold in folds]
    inputs = {c.name: c.activations for c in capture(model, texts, [f.readers[0] for f in folds], tokens)}
    factors = []
    for fold, method in zip(folds, methods, strict=True):
        checkpoint()
        seen = inputs[fold.readers[0]]
        factors.append(factor_of(method, _readers(model, fold, recipes, seen, of_inputs or {})))
    divisors: dict[str, Tensor] = {}
    for fold, factor in zip(folds, factors, strict=True):
        real = fold.apply(network, factor, model.dtype)
        divisors |= dict.fromkeys(fold.readers, real)
    names = dict.fromkeys(name for fold in folds for name in fold.parameters(network))
    return Folding(divisors, _stored(network, names, recipes, model.dtype))


def _short_run(model: Model, texts: AnyTexts) -> Run:
    """Run a network on the longest of the first texts, cut to a few tokens."""
    sequences = token_sequences(model, texts, TRIED)[:TRIED]
    sequences = [one for one in sequences if one.ids]
    if not sequences:
        raise SourceError("give at least one line of text: folds are tried on it")
    longest = max(sequences, key=lambda one: len(next(iter(one.inputs.values()))))
    cut = {name: torch.tensor([values[:TRIED]]) for name, values in longest.inputs.items()}
    return run_of({name: values.to(model.device) for name, values in cut.items()})


def _method(fold: Fold, recipes: Mapping[str, Recipe]) -> str:
    """Choose the method that finds the factor of ``fold``."""
    named = [(name, recipes[name].method) for name in fold.readers if name in recipes]
    found = [(name, method) for name, method in named if method and has_factor(method)]
    (first, method), *others = found
    for name, other in others:
        if _scaling(other) != _scaling(method):
            raise ValueError(
                f"{first} and {name} read the same inputs, and can have the factor of one method only: not "
                f"of {label_of(method)} and {label_of(other)}"
            )
    return method


def _scaling(method: str) -> list[str]:
    return [row.name for row in names_in(method) if row.factor is not None]


def _readers(
    model: Model, fold: Fold, recipes: Mapping[str, Recipe], inputs: Tensor, of_inputs: Mapping[str, Scheme]
) -> Readers:
    """The readers of ``fold`` that are quantized: others have no error."""
    names = [name for name in fold.readers if name in recipes]
    weights = [model.network.get_submodule(name).weight for name in names]
    tensors = tuple(weight.detach().float() for weight in weights if isinstance(weight, Tensor))
    device = tensors[0].device
    schemes = tuple(recipes[name].scheme for name in names)
    seen = next((of_inputs[name] for name in names if name in of_inputs), None)
    return Readers(tensors, schemes, inputs.to(device), seen, fold.rows.to(device))


def _stored(
    network: nn.Module, names: Mapping[str, None], recipes: Mapping[str, Recipe], dtype: torch.dtype
) -> dict[str, Tensor]:
    """Round the changed parameters that no recipe rounds to the files' dtype, in ``network`` too, and return
    all."""
    stored = {}
    for name in names:
        parameter, recipe = network.get_parameter(name), recipes.get(name.removesuffix(".weight"))
        if recipe is None:
            stored[name] = parameter.detach().to(dtype).cpu()
            with torch.no_grad():
                parameter.copy_(stored[name])
        elif not recipe.method:
            stored[name] = parameter.detach().float().cpu().clone()
    return stored
