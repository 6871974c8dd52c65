"""Where a recipe's layers are put into a network, and what then computes a step: the one place that a
device's own products plug into."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from explorer.models.capture import Model
from explorer.models.texts import AnyTexts
from explorer.progress import Progress
from explorer.survey.check import assemble_recipe, inputs_of
from explorer.survey.recipe import ModelRecipe

RESTORED = (
    "torch's float32 products of the weights as their codes restore them; they take the time and memory of "
    "the original's"
)
PLAIN = "torch's float32 products"


class Decoder(Protocol):
    """Runs a network along one text. Of each text its own: it holds what the tokens before left."""

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """float32 [vocabulary]: the logits of the token after ``ids``, which follow those given before."""
        ...


@dataclass(frozen=True, eq=False)
class Placed:
    """A network that is ready to run. ``kernels``: what multiplies, in words; ``decoder`` makes a decoder of
    the network for one text."""

    network: nn.Module
    kernels: str
    decoder: Callable[[nn.Module], Decoder]


class CachedDecoder:
    """A network of transformers, with its own cache of keys and values; of a network without one, all tokens
    are run at each step."""

    def __init__(self, network: nn.Module) -> None:
        self._network, self._ids = network, list[int]()
        self._cache: Any = None
        self._device = next(network.parameters()).device
        takes = inspect.signature(network.forward).parameters
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}

    def __call__(self, ids: Sequence[int]) -> Tensor:
        self._ids.extend(ids)
        given = list(ids) if self._cache is not None else self._ids
        with torch.no_grad():
            output = self._network(
                input_ids=torch.tensor([given], device=self._device),
                past_key_values=self._cache,
                use_cache=True,
                **self._last,
            )
        self._cache = getattr(output, "past_key_values", None)
        logits: Tensor = output.logits[0, -1].float()
        return logits


def place_linears(
    model: Model,
    recipe: ModelRecipe | None,
    device: torch.device,
    calibration: AnyTexts = (),
    progress: Progress | None = None,
) -> Placed:
    """``model``, which lies on ``device``, with the layers of ``recipe`` in place; as it is without one.

    Layers hold the weights that their codes restore (fake quantization): the network that `explorer check`
    measures, made by the same function. ``calibration``: what methods see, built-in texts if empty;
    ``progress`` counts layers. ``ValueError`` for layers that the network has not, and where a method or
    scheme cannot serve one.
    """
    if recipe is None:
        return Placed(model.network, PLAIN, CachedDecoder)
    inputs = inputs_of(recipe, model, calibration)
    assembled = assemble_recipe(recipe, model, calibration, recipe.layers, inputs, progress)
    return Placed(assembled.network.to(device), RESTORED, CachedDecoder)
