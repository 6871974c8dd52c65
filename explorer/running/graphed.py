"""A network of transformers on a GPU whose step of one token is compiled and captured in a CUDA graph.

The cache of keys and values has a fixed room (transformers' ``StaticCache``), so that a step reads and writes
the same memory each time. Blocks of one kind share one compilation: each is called with its own part of the
cache. A prompt runs as it is, a step by replaying the graph.
"""

from __future__ import annotations

import copy
import inspect
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from explorer.core.backend import CPU, synchronize
from explorer.gpu.runtime import on_device_of
from explorer.gpu.zero_words import reserve
from explorer.running.attention import COUNTER

LEAST_ROOM = 256
"""Rooms of caches are this times a power of two: blocks are compiled for each room."""
KINDS = 512
"""Compilations of blocks that one process may make: torch's own limit is 8 for all networks of a class."""
LIMITS: dict[str, Any] = {
    "recompile_limit": KINDS,
    "accumulated_recompile_limit": 4 * KINDS,
    "allow_unspec_int_on_nn_module": True,  # a block's number is not compiled in
}
EARLY = "triton.enable_pdl"
"""The setting by which torch's kernels are launched while the one before them ends (programmatic dependent
launch), as ours are. torch itself uses it on Hopper and later GPUs alone."""
WINDOWS = ("window_size", "attention_window", "attention_chunk_size")
"""Settings of networks whose masks a cache of fixed room does not know."""
CAPTURE = threading.Lock()
WARM_UP = 3
"""Steps before the capture: kernels are compiled, and libraries choose theirs."""


class OwnPart:
    """The part of a cache that belongs to one block, as that block sees a whole cache. All parts count the
    tokens before a call by one tensor, ``used`` int64 []."""

    is_compileable = True

    def __init__(self, layer: Any, used: Tensor) -> None:
        self.layer, self.used = layer, used

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """All keys and values [batch, heads, room, size], with those of this call written."""
        if not self.layer.is_initialized:
            self.layer.lazy_initialization(keys, values)
            _share_counter(self.layer, self.used)
        at = torch.arange(keys.shape[2], device=keys.device) + self.used
        self.layer.keys.index_copy_(2, at, keys)
        self.layer.values.index_copy_(2, at, values)
        return self.layer.keys, self.layer.values


def _share_counter(layer: Any, used: Tensor) -> None:
    """The counter, and no marks of fixed addresses, which would compile each block for itself."""
    layer.cumulative_length = used
    for tensor in (layer.keys, layer.values):
        if hasattr(tensor, "_dynamo_static_input_type"):
            del tensor._dynamo_static_input_type


class _Forward:
    """A block's forward while it is compiled. A copy of the block has its class's own: this one would run the
    original's weights."""

    def __init__(self, called: Callable[..., Any], block: nn.Module) -> None:
        self._called, self._block = called, block

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        return self._called(*args, **kwargs)

    def __deepcopy__(self, memo: dict[int, Any]) -> Any:
        return MethodType(type(self._block).forward, copy.deepcopy(self._block, memo))

    def __reduce__(self) -> tuple[Callable[..., Any], tuple[nn.Module, str]]:
        return getattr, (self._block, "forward")  # when it is read, the block has its class's own


class CompiledBlocks:
    """A network whose blocks are compiled for steps of one token, in place, until ``remove``. A call with a
    cache that ``using`` was not entered with runs as before. ``compiler``: what torch.compile gets beside the
    blocks' forward.

    Kinds of blocks (by scheme) are compiled one after another, as often as there are: ``KINDS`` bounds them.
    """

    def __init__(self, network: nn.Module, **compiler: Any) -> None:
        """``ValueError`` for a network whose blocks or cache are of another kind, compiled already, or
        on several devices."""
        self.lock = threading.RLock()
        self._now = threading.local()
        self._numbered = [m for m in network.modules() if hasattr(m, "layer_idx")]
        self._blocks = blocks_of(network)
        _check_cache(network)
        if len({part.device for part in (*network.parameters(), *network.buffers())} - {CPU}) > 1:
            raise ValueError("it lies on several devices")
        compiler = compiler or _launched_early()
        if any(_replaced(block) for block in self._blocks):
            raise ValueError("its blocks' forward was replaced before")
        for index, block in enumerate(self._blocks):
            compiled = torch.compile(type(block).forward, fullgraph=True, dynamic=False, **compiler)
            block.__dict__["forward"] = _Forward(self._called(index, block.forward, compiled, block), block)

    def _called(
        self, index: int, plain: Callable[..., Any], compiled: Callable[..., Any], block: nn.Module
    ) -> Callable[..., Any]:
        signature = inspect.signature(plain)
        limits = {name: value for name, value in LIMITS.items() if hasattr(torch._dynamo.config, name)}

        def forward(*args: Any, **kwargs: Any) -> Any:
            cache = getattr(self._now, "cache", None)
            if cache is None:
                return plain(*args, **kwargs)
            given = signature.bind(*args, **kwargs)
            names = [name for name, value in given.arguments.items() if value is cache]
            if not names and not any(value is cache for value in kwargs.values()):
                return plain(*args, **kwargs)
            part = self._now.parts[index]
            for name in names:
                given.arguments[name] = part
            others = {k: part if v is cache else v for k, v in given.kwargs.items()}
            if given.args[0].shape[1] > 1:
                return plain(*given.args, **others)
            with torch._dynamo.config.patch(limits):
                return compiled(block, *given.args, **others)

        return forward

    @contextmanager
    def using(self, cache: Any, parts: list[OwnPart]) -> Iterator[None]:
        """Blocks that are given ``cache`` in this thread read and write its ``parts``; other threads wait."""
        with self.lock:
            self._now.cache, self._now.parts = cache, parts
            for module in self._numbered:
                module.__dict__[COUNTER] = parts[0].used
            try:
                yield
            finally:
                self._now.cache = None
                for module in self._numbered:
                    module.__dict__.pop(COUNTER, None)

    def remove(self) -> None:
        """The blocks run as before."""
        for block in self._blocks:
            block.__dict__.pop("forward", None)


def _replaced(block: nn.Module) -> bool:
    """Whether a block's forward is not its class's: that of a copy is, bound to the copy."""
    own = block.__dict__.get("forward")
    return own is not None and own != MethodType(type(block).forward, block)


def _launched_early() -> dict[str, Any]:
    """What torch.compile gets so that kernels are launched early, if this torch knows of it."""
    import torch._inductor.config as settings

    return {"options": {EARLY: True}} if hasattr(settings.triton, EARLY.partition(".")[2]) else {}


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The network's blocks: the list of as many modules as its configuration says. ``ValueError`` without."""
    count = getattr(getattr(network, "config", None), "num_hidden_layers", None)
    for module in network.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise ValueError(f"{type(network).__name__} has no list of its blocks")


def _check_cache(network: Any) -> None:
    """``ValueError`` unless each block attends to all tokens before, by keys and values of its own."""
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer

    for name in WINDOWS:
        if getattr(network.config, name, None):
            raise ValueError(f"its blocks attend to a window ({name})")
    layers = StaticCache(config=network.config, max_cache_len=1).layers
    if other := [type(layer).__name__ for layer in layers if type(layer) is not StaticLayer]:
        raise ValueError(f"its cache has other parts than keys and values of all tokens: {other[0]}")


class GraphedNetwork:
    """``batch`` texts of one length, run side by side. ``room``: tokens of each, prompt included.

    ``prefill`` begins them anew, ``step`` continues them. One thread at a time.
    """

    def __init__(
        self, network: nn.Module, room: int, batch: int = 1, compiled: CompiledBlocks | None = None
    ) -> None:
        from transformers import StaticCache

        self._network, self.room, self.batch, self.used = network, room, batch, 0
        self.device = next(network.parameters()).device
        self._cache: Any = StaticCache(config=network.config, max_cache_len=room)
        self._used = torch.zeros((), dtype=torch.long, device=self.device)
        self._parts = [OwnPart(layer, self._used) for layer in self._cache.layers]
        self._compiled = compiled or CompiledBlocks(network)
        takes = inspect.signature(network.forward).parameters
        self._last = {"logits_to_keep": 1} if "logits_to_keep" in takes else {}
        self._ids = torch.zeros((batch, 1), dtype=torch.long, device=self.device)
        self._logits: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None

    def prefill(self, ids: Tensor) -> Tensor:
        """Logits [batch, vocabulary] of the token after ``ids`` [batch, tokens]. ``ValueError`` for more than
        there is room for."""
        if ids.shape[1] > self.room:
            raise ValueError(f"the cache has room for {self.room} tokens, and the prompt has {ids.shape[1]}")
        self.back_to(0)
        for layer in self._cache.layers:
            if layer.is_initialized:  # attention weighs what lies behind by zero, and 0 · NaN is NaN
                layer.keys.zero_()
                layer.values.zero_()
        logits = self.run(ids)
        if not all(layer.is_initialized for layer in self._cache.layers):
            raise ValueError("its blocks do not write the cache that they are given")
        return logits

    def step(self, ids: Tensor) -> Tensor:
        """Logits [batch, vocabulary] of the token after ``ids`` [batch, 1]; the next step overwrites them.
        ``ValueError`` where the cache has no room left."""
        if self.used + 1 > self.room:
            raise ValueError(f"the cache has room for {self.room} tokens")
        self._ids.copy_(ids)
        if self.device.type != "cuda":
            return self.run(self._ids)
        with torch.cuda.device(self.device):
            if self._graph is None:
                self._capture()
            assert self._graph is not None and self._logits is not None
            self._graph.replay()
        self.used += 1
        return self._logits

    def warm(self) -> None:
        """Compile and capture now, so that no token has to wait for it. A prompt of two tokens makes the
        cache: a step that finds none would be compiled for that alone."""
        ids = torch.zeros((self.batch, 2), dtype=torch.long, device=self.device)
        self.prefill(ids)
        self.step(ids[:, :1])

    @on_device_of("ids")
    def run(self, ids: Tensor) -> Tensor:
        """Logits [batch, vocabulary] after ``ids`` [batch, tokens], which follow those before, uncaptured."""
        with torch.no_grad(), self._compiled.using(self._cache, self._parts):
            output = self._network(input_ids=ids, past_key_values=self._cache, use_cache=True, **self._last)
            self._used.add_(ids.shape[1])
        self.used += ids.shape[1]
        logits: Tensor = output.logits[:, -1]
        return logits

    def replay(self) -> None:
        """One step more of whatever token came last, without its results: what a benchmark times."""
        assert self._graph is not None
        self._graph.replay()

    def _capture(self) -> None:
        """The steps that warm up write the place of the next token and are taken back. One capture at a time:
        what another thread asks of the GPU meanwhile is not part of it."""
        with CAPTURE, self._compiled.lock:
            used, stream = self.used, torch.cuda.Stream()
            stream.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(stream):
                for _ in range(WARM_UP):
                    self.run(self._ids)
                    self.back_to(used)
            torch.cuda.current_stream().wait_stream(stream)
            synchronize(self.device)
            reserve(self.device)
            graph = torch.cuda.CUDAGraph()
            # A stream of this device: torch's own for captures lies on that of the first capture.
            with torch.cuda.graph(graph, stream=stream, capture_error_mode="thread_local"):
                self._logits = self.run(self._ids)
            self._graph = graph
            self.back_to(used)

    def back_to(self, used: int) -> None:
        """Forget all tokens after the first ``used``."""
        self.used = used
        self._used.fill_(used)


class GraphedPool:
    """The graphed networks of one network: each text has one to itself while it is written."""

    def __init__(self, network: nn.Module, **compiler: Any) -> None:
        self.compiled = CompiledBlocks(network, **compiler)
        self._free: list[GraphedNetwork] = []
        self._lock = threading.Lock()

    def decoder(self, network: nn.Module, room: int) -> GraphDecoder:
        """A decoder for one text of at most ``room`` tokens; its first call has nothing left to compile."""
        with self._lock:
            fit = [one for one in self._free if one.room >= room]
            held = min(fit, key=lambda one: one.room, default=None)
            if held is not None:
                self._free.remove(held)
            else:
                self._free.clear()  # of smaller ones the larger one takes the place
        if held is None:
            held = GraphedNetwork(network, room_for(room), 1, self.compiled)
            held.warm()
        decoder = GraphDecoder(held)
        weakref.finalize(decoder, self._free.append, held)
        return decoder


def room_for(tokens: int) -> int:
    """The least room for so many tokens."""
    room = LEAST_ROOM
    while room < tokens:
        room *= 2
    return room


class GraphDecoder:
    """One text by a ``GraphedNetwork``; see ``placing.Decoder``."""

    def __init__(self, graphed: GraphedNetwork) -> None:
        self._graphed, self._begun = graphed, False

    def __call__(self, ids: Sequence[int]) -> Tensor:
        given = torch.tensor([list(ids)], device=self._graphed.device)
        if not len(ids):
            raise ValueError("there is no token to run")
        if not self._begun:
            self._begun = True
            return self._graphed.prefill(given)[0].float()
        for index in range(len(ids)):
            logits = self._graphed.step(given[:, index : index + 1])
        return logits[0].float()


class TracedDecoder(GraphDecoder):
    """The same without a CUDA graph, on any device: blocks are traced, and run as they are called."""

    def __call__(self, ids: Sequence[int]) -> Tensor:
        given = torch.tensor([list(ids)], device=self._graphed.device)
        if self._begun:
            return self._graphed.run(given)[0].float()
        self._begun = True
        return self._graphed.prefill(given)[0].float()
