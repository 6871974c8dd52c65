"""Importance files of a model (``checkpoints.imatrix``): made from its inputs on texts, and read for the
layers of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints.gguf_model import name_in, tensor_names
from explorer.checkpoints.gguf_models import architecture_of
from explorer.checkpoints.imatrix import CHUNK, Imatrix, Squares, importances_of, read_imatrix
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Plan
from explorer.core.importances import takes_importance
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model
from explorer.models.inputs import squared_inputs
from explorer.models.skeleton import WEIGHT, Skeleton
from explorer.models.texts import AnyTexts
from explorer.progress import Progress
from explorer.sources import open_source
from explorer.sources.base import SourceError
from explorer.survey.evidence import weights_of

EMBEDDINGS = "token_embd.weight"
"""llama.cpp's name of the embeddings, which also stands for the head's weight if the two are tied."""


def imatrix_of(
    model: Model,
    where: str,
    texts: AnyTexts,
    dataset: str = "",
    revision: str | None = None,
    progress: Progress | None = None,
) -> tuple[Imatrix, tuple[str, ...]]:
    """Compute the importances of the linear layers of ``model``, loaded from ``where``, over all tokens of
    ``texts``, a data set called ``dataset``. Second, the layers without any: stacked experts, and those that
    no text reached.

    ``progress`` counts texts. ``SourceError`` for a model whose tensors llama.cpp has no names for.
    """
    name_of = _names(model.network.config)
    shapes = {
        info.name.removesuffix(WEIGHT): (info.shape[0], info.shape[1])
        for info in open_source(where, revision).infos
        if info.name.endswith(WEIGHT) and len(info.shape) == 2
    }
    held = weights_of(model.network, shapes)
    modules = {one.module: name_of(f"{layer}{WEIGHT}") for layer, one in held.items() if one.module}
    if (skeleton := Skeleton(model.network)).tied:
        modules[skeleton.head] = EMBEDDINGS
    modules = {module: name for module, name in modules.items() if name}
    if not modules:
        raise SourceError(f"the package gguf knows no names for the layers of {model.name}")
    found = squared_inputs(model, texts, list(modules), progress)
    squares, tokens = {}, 0
    for module, sums in found.items():
        assert sums.sums is not None
        squares[modules[module]] = Squares(sums.sums.float()[None], torch.tensor([float(sums.tokens)]))
        tokens = max(tokens, sums.tokens)
    left = (x for x, one in held.items() if not one.table and (not one.module or one.module not in found))
    return Imatrix(squares, (dataset,) if dataset else (), -(-tokens // CHUNK), CHUNK), tuple(left)


def _names(config: Any) -> Callable[[str], str]:
    """Map the tensors of a model of this configuration to llama.cpp's names."""
    if config is None:
        raise SourceError("transformers does not know this kind of model, nor llama.cpp its tensors")
    text = config.get_text_config()
    architecture = architecture_of(str(text.model_type))
    names = tensor_names(architecture, int(text.num_hidden_layers))
    if names is None:
        raise SourceError(f"the package gguf knows no names for the layers of {text.model_type} models")
    return partial(name_in, names)


def layer_importances(
    path: str | Path,
    recipes: Mapping[str, Recipe],
    shapes: Mapping[str, tuple[int, int]],
    config: Any | None = None,
    name_of: Callable[[str], str] | None = None,
) -> dict[str, Tensor]:
    """Read importances, layer -> float32 [K], from the file ``path``, for the layers of ``recipes`` whose
    rounding they change.

    llama.cpp's names of tensors follow from the model's ``config``, or from ``name_of``. ``ValueError`` for a
    file of another model, a layer whose codes a method chooses, and if no layer has a scheme that uses
    importances.
    """
    weighed = {name: one for name, one in recipes.items() if takes_importance(one.scheme)}
    if not weighed:
        schemes = ", ".join(dict.fromkeys(str(one.scheme) for one in recipes.values()))
        raise ValueError(
            f"importances decide on no codes of {schemes}: they are for q4_0 to q5_1, q2_k to "
            "q6_k, iq4_nl and iq4_xs"
        )
    for name, one in weighed.items():
        if one.method:
            raise ValueError(
                f"{name}: {label_of(one.method)} chooses codes by the layer's inputs itself; importances are "
                "for rounding to nearest"
            )
    name_of = name_of or _names(config)
    return importances_of(read_imatrix(path), name_of, {name: shapes[name] for name in weighed})


def of_folder(path: str | Path, recipes: Mapping[str, Recipe], folder: Path) -> dict[str, Tensor]:
    """``layer_importances`` for the layers of the model in ``folder``."""
    model = ModelFolder(folder)
    shapes = {name: Plan(model, recipes).shape(name) for name in recipes}
    return layer_importances(path, recipes, shapes, model.settings)
