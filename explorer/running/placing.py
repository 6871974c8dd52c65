"""Placement of a recipe's layers in a network, and the steps that then run it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass, field, replace
from functools import partial
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
from explorer.running.graphed import LEAST_ROOM, GraphDecoder, GraphedNetwork, GraphedPool, last_logits
from explorer.running.joined_step import against_joining
from explorer.survey.check import assemble_recipe, inputs_of
from explorer.survey.recipe import ModelRecipe

PLAIN = "torch's float32 products"
RESTORED = (
    f"{PLAIN} of the weights as their codes restore them; they take the time and memory of the original's"
)
BF16 = "torch's bfloat16 products"
SAME_LOGITS = 0.05
"""Accepted distance between bfloat16 logits of two sets of kernels, relative to their norm. With 32 blocks of
random weights, either set is up to 0.024 from the float32 logits."""
TRIED: tuple[list[int], ...] = ([1, 2, 3], [4], [5])
"""Prompt, and the tokens after it, with which steps are compared."""


class Decoder(Protocol):
    """Run a network along one text; keys and values of earlier tokens are kept."""

    def __call__(self, ids: Sequence[int]) -> Tensor:
        """Append ``ids``; float32 [vocabulary], the logits of the next token."""
        ...


@dataclass(frozen=True, eq=False)
class Placed:
    """Network that is ready to run.

    ``kernels`` of its products, in words. ``decoder`` makes a decoder from the network and the greatest
    number of tokens of its text. ``lock`` is held when the network runs without a decoder.
    """

    network: nn.Module
    kernels: str
    decoder: Callable[[nn.Module, int], Decoder]
    lock: AbstractContextManager[Any] = field(default_factory=nullcontext)


class CachedDecoder:
    """Decoder of a transformers network by its own cache of keys and values; without a cache every step runs
    all tokens."""

    def __init__(self, network: nn.Module, _room: int = 0) -> None:
        self._network, self._ids = network, list[int]()
        self._cache: Any = None
        self._device = next(network.parameters()).device
        self._last = last_logits(network)

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
    """True if ``kernels``, in words, are the original's kernels, with or without restored weights."""
    return kernels.startswith(PLAIN)


def place_linears(
    model: Model,
    recipe: ModelRecipe | None,
    device: torch.device,
    calibration: AnyTexts = (),
    progress: Progress | None = None,
    room: int | None = None,
) -> Placed:
    """Put the layers of ``recipe`` into ``model``, which lies on ``device``; without a recipe the model stays
    as it is.

    Layers hold the weights that their codes restore (fake quantization): the network that `explorer check`
    measures, made by the same function. ``calibration``: texts for methods, built-in ones if empty;
    ``progress`` counts layers. ``room``: number of tokens that a GPU's steps are compiled for at first, None
    for the least. ``ValueError`` for layers that the network does not have, and if a method or scheme does
    not support a layer.
    """
    if device.type == "cuda":
        return _placed_on_gpu(model, recipe, calibration, progress, room or LEAST_ROOM)
    if recipe is None:
        return Placed(model.network, PLAIN, CachedDecoder)
    inputs = inputs_of(recipe, model, calibration)
    assembled = assemble_recipe(recipe, model, calibration, recipe.layers, inputs, progress, in_place=True)
    return Placed(assembled.network.to(device), RESTORED, CachedDecoder)


def _placed_on_gpu(
    model: Model, recipe: ModelRecipe | None, calibration: AnyTexts, progress: Progress | None, room: int
) -> Placed:
    """Place the network in bfloat16, with steps captured in a CUDA graph.

    Layers rounded to nearest multiply by their codes (``QuantizedLinear``). A recipe's other layers, and
    layers with fixed scales of inputs, hold the weights that their codes restore.
    """
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
            network = assemble_recipe(
                recipe, model, calibration, others, inputs, progress, in_place=True
            ).network
        if coded:
            quantize_model(network, replace(recipe, layers=coded), progress=progress)
        kernels = Counter(m.kernel for m in network.modules() if isinstance(m, QuantizedLinear))
        words = [f"{count} layers by {kernel}" for kernel, count in kernels.items()]
        words += [f"{len(others)} layers restored"] if others else []
    return serve_compiled(network.to(torch.bfloat16), "; ".join(words), room)


def serve_compiled(network: nn.Module, products: str, room: int, **compiler: Any) -> Placed:
    """Join layers of ``network`` and compile its steps for texts of ``room`` tokens, if that gives the
    network's own logits.

    If it does not, or raises, steps run one by one, and the reason is appended to ``products``, the kernels
    in words. ``compiler``: options of torch.compile.
    """
    why = against_graphs(network)
    if not why:
        want = _tried(CachedDecoder(network))
        fuse(network)
        choose_attention(network)
        most = positions(network)
        room = room if most is None else min(room, most)
        for joined in (True, False) if not against_joining(network) else (False,):
            pool = GraphedPool(network, joined, **compiler)
            why = _against(partial(pool.decoder, network, room), want)
            if not why:
                how = "five launches a block" if joined else "compiled"
                words = f"{products}; steps {how}, in a CUDA graph"
                return Placed(network, words, pool.decoder, pool.compiled.lock)
            pool.compiled.remove()
        choose_back(network)
    return Placed(network, f"{products}; steps launched one by one ({why})", CachedDecoder)


def against_graphs(network: nn.Module) -> str:
    """The reason not to compile a network's steps: an error, or logits that differ from the network's own; ""
    if there is none.

    Steps are traced, not compiled, to find out; the network is unchanged.
    """
    pools: list[GraphedPool] = []

    def traced() -> Decoder:
        pools.append(GraphedPool(network, backend="eager"))
        return GraphDecoder(GraphedNetwork(network, LEAST_ROOM, 1, pools[0].compiled), traced=True)

    try:
        return _against(traced, _tried(CachedDecoder(network)))
    finally:
        for pool in pools:
            pool.compiled.remove()


def _tried(decoder: Decoder) -> list[Tensor]:
    return [decoder(ids).clone() for ids in TRIED]


def _against(make: Callable[[], Decoder], want: Sequence[Tensor]) -> str:
    """Try a new decoder: its error, or the distance of its logits from ``want``; "" if they are the same."""
    try:
        got = _tried(make())
    except Exception as error:  # of transformers', torch's, a compiler's or this project's: it is shown
        inner = getattr(error, "inner_exception", error)
        said = str(inner).strip().splitlines()
        return f"{type(inner).__name__}: {said[0][:120]}" if said else type(inner).__name__
    parts = [(a - b).norm() / b.norm() for a, b in zip(got, want, strict=True)]
    apart = float(torch.stack(parts).max())  # NaN if one is
    return "" if apart < SAME_LOGITS else f"they gave logits {apart:.2g} of their norm apart"
