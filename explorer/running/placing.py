"""Where a recipe's layers are put into a network, and what then computes a step: the one place that a
device's own products plug into."""

from __future__ import annotations

import inspect
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

import torch
from torch import Tensor, nn

from explorer.checkpoints.inputs import is_fixed
from explorer.models.capture import Model
from explorer.models.serve import quantize_model
from explorer.models.texts import AnyTexts, positions
from explorer.products.layer import QuantizedLinear
from explorer.progress import Progress
from explorer.running.attention import choose as choose_attention
from explorer.running.attention import choose_back
from explorer.running.fused import fuse
from explorer.running.graphed import LEAST_ROOM, GraphedNetwork, GraphedPool, TracedDecoder
from explorer.survey.check import assemble_recipe, inputs_of
from explorer.survey.recipe import ModelRecipe

PLAIN = "torch's float32 products"
RESTORED = (
    f"{PLAIN} of the weights as their codes restore them; they take the time and memory of the original's"
)
BF16 = "torch's bfloat16 products"
SAME_LOGITS = 0.05
"""How far logits in bfloat16 may be apart, of their norm, that are computed by other kernels. 32 blocks of
random weights give, each by its own kernels, logits that are up to 0.024 from those in float32."""
TRIED: tuple[list[int], ...] = ([1, 2, 3], [4], [5])
"""The prompt and the tokens after it by which steps are compared."""


class Decoder(Protocol):
    """Runs a network along one text. Of each text its own: it holds what the tokens before left."""

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """float32 [vocabulary]: the logits of the token after ``ids``, which follow those given before."""
        ...


@dataclass(frozen=True, eq=False)
class Placed:
    """A network that is ready to run. ``kernels``: what multiplies, in words; ``decoder`` makes a decoder of
    the network for one text of so many tokens at most; ``lock`` is held while it runs without one."""

    network: nn.Module
    kernels: str
    decoder: Callable[[nn.Module, int], Decoder]
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)


class CachedDecoder:
    """A network of transformers, with its own cache of keys and values; of a network without one, all tokens
    are run at each step."""

    def __init__(self, network: nn.Module, _room: int = 0) -> None:
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


def same_products(kernels: str) -> bool:
    """Whether ``kernels``, what multiplies in words, are those of the original, of whatever weights a scheme
    restores."""
    return kernels.startswith(PLAIN)


def place_linears(
    model: Model,
    recipe: ModelRecipe | None,
    device: torch.device,
    calibration: AnyTexts = (),
    progress: Progress | None = None,
    room: int | None = None,
) -> Placed:
    """``model``, which lies on ``device``, with the layers of ``recipe`` in place; as it is without one.

    Layers hold the weights that their codes restore (fake quantization): the network that `explorer check`
    measures, made by the same function. ``calibration``: what methods see, built-in texts if empty;
    ``progress`` counts layers. ``room``: tokens of a text that a GPU's steps are compiled for at once, None
    for the least. ``ValueError`` for layers that the network has not, and where a method or
    scheme cannot serve one.
    """
    if device.type == "cuda":
        return _placed_on_gpu(model, recipe, calibration, progress, room or LEAST_ROOM)
    if recipe is None:
        return Placed(model.network, PLAIN, CachedDecoder)
    inputs = inputs_of(recipe, model, calibration)
    assembled = assemble_recipe(recipe, model, calibration, recipe.layers, inputs, progress)
    return Placed(assembled.network.to(device), RESTORED, CachedDecoder)


def _placed_on_gpu(
    model: Model, recipe: ModelRecipe | None, calibration: AnyTexts, progress: Progress | None, room: int
) -> Placed:
    """In bfloat16, steps captured in a CUDA graph. Layers that are rounded to nearest multiply by their codes
    (``QuantizedLinear``); what else a recipe names, and layers where it fixes the scales of inputs, hold
    the weights that their codes restore."""
    network, words = model.network, [BF16]
    if recipe is not None:
        modules = dict(network.named_modules())
        fixed = {name for name, scheme in recipe.input_schemes.items() if is_fixed(scheme)}
        coded = {
            name: one
            for name, one in recipe.layers.items()
            if not one.method and isinstance(modules.get(name), nn.Linear) and name not in fixed
        }
        others = {name: one for name, one in recipe.layers.items() if name not in coded}
        if others:
            inputs = inputs_of(recipe, model, calibration)
            network = assemble_recipe(recipe, model, calibration, others, inputs, progress).network
        if coded:
            quantize_model(network, replace(recipe, layers=coded), progress=progress)
        words = [*_kernels_of(network), *([f"{len(others)} layers restored"] if others else [])]
    return serve_compiled(network.to(torch.bfloat16), "; ".join(words), room)


def serve_compiled(network: nn.Module, products: str, room: int, **compiler: Any) -> Placed:
    """``network`` with its layers joined and its steps compiled for texts of ``room`` tokens, if what then
    runs gives its own logits. Where it does not or raises, steps run one by one, and the reason stands
    behind ``products``, the words for what multiplies. ``compiler``: what torch.compile gets."""
    why = against_graphs(network)
    if not why:
        want = _tried(CachedDecoder(network))
        fuse(network)
        choose_attention(network)
        pool = GraphedPool(network, **compiler)
        most = positions(network)
        why = _against(lambda: pool.decoder(network, room if most is None else min(room, most)), want)
        if not why:
            words = f"{products}; steps compiled, in a CUDA graph"
            return Placed(network, words, pool.decoder, pool.compiled.lock)
        pool.compiled.remove()
        choose_back(network)
    return Placed(network, f"{products}; steps launched one by one ({why})", CachedDecoder)


def against_graphs(network: nn.Module) -> str:
    """Why a network's steps are not compiled: what was raised when they were tried, or that they gave other
    logits than the network as it is; "" if they can be. Nothing is compiled for it but traced, and the
    network is as before."""
    pools: list[GraphedPool] = []

    def traced() -> Decoder:
        pools.append(GraphedPool(network, backend="eager"))
        return TracedDecoder(GraphedNetwork(network, LEAST_ROOM, 1, pools[0].compiled))

    try:
        return _against(traced, _tried(CachedDecoder(network)))
    finally:
        for pool in pools:
            pool.compiled.remove()


def _tried(decoder: Decoder) -> list[Tensor]:
    return [decoder(ids).clone() for ids in TRIED]


def _against(make: Callable[[], Decoder], want: Sequence[Tensor]) -> str:
    """What is raised when a decoder is made and tried, or how far its logits are from ``want``; "" if they
    are the same."""
    try:
        got = _tried(make())
    except Exception as error:  # of transformers', torch's, a compiler's or this project's: it is shown
        return _reason(getattr(error, "inner_exception", error))
    parts = [(a - b).norm() / b.norm() for a, b in zip(got, want, strict=True)]
    apart = float(torch.stack(parts).max())  # NaN if one is
    return "" if apart < SAME_LOGITS else f"they gave logits {apart:.2g} of their norm apart"


def _reason(error: BaseException) -> str:
    """The kind of an error and the first line of its text."""
    said = str(error).strip().splitlines()
    return f"{type(error).__name__}: {said[0][:120]}" if said else type(error).__name__


def _kernels_of(network: nn.Module) -> list[str]:
    """What multiplies by codes, with the number of layers."""
    counts = Counter(m.kernel for m in network.modules() if isinstance(m, QuantizedLinear))
    return [f"{count} layers by {kernel}" for kernel, count in counts.items()]
