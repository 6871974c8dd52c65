"""Steps of one token by a network of transformers on a GPU, compiled and captured in a CUDA graph.

The cache of keys and values has a fixed room (transformers' ``StaticCache``), so that a step reads and writes
the same memory each time. Blocks of one kind share one compilation: each is called with its own part of the
cache. A prompt runs uncompiled, a step by replaying the graph.
"""

from __future__ import annotations

import copy
import inspect
import math
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn

from explorer.core.backend import CPU, synchronize
from explorer.gpu.gemm.swap_ab import MOST_OF_STEP
from explorer.gpu.runtime import on_device_of
from explorer.gpu.zero_words import reserve
from explorer.running.attention import COUNTER
from explorer.running.joined_step import JoinedStep, against_joining

LEAST_ROOM = 256
"""Smallest room of a cache, in tokens; others are this times a power of two. Blocks are compiled for each
room."""
KINDS = 512
"""Largest number of compilations of blocks in one process; torch's own limit is 8 for all networks of a
class."""
LIMITS: dict[str, Any] = {
    "recompile_limit": KINDS,
    "accumulated_recompile_limit": 4 * KINDS,
    "allow_unspec_int_on_nn_module": True,  # a block's number is not compiled in
}
EARLY = "triton.enable_pdl"
"""Setting of torch that launches a kernel before the previous one has ended (programmatic dependent launch),
as this project's kernels do. By itself torch does so only on Hopper and later GPUs."""
WINDOWS = ("window_size", "attention_window", "attention_chunk_size")
"""Settings for windows of attention, which a cache of fixed room does not support."""
CAPTURE = threading.Lock()
WARM_UP = 3
"""Number of steps before the capture, in which kernels are compiled and libraries choose theirs."""


class OwnPart:
    """One block's part of a cache, with the interface of a whole cache.

    All parts share the counter ``used``, int64 []: the number of tokens before a call.
    """

    is_compileable = True

    def __init__(self, layer: Any, used: Tensor) -> None:
        self.layer, self.used = layer, used

    def update(self, keys: Tensor, values: Tensor, *_: Any, **__: Any) -> tuple[Tensor, Tensor]:
        """Write the keys and values of this call; return all, [batch, heads, room, size]."""
        if not self.layer.is_initialized:
            self.layer.lazy_initialization(keys, values)
            self.layer.cumulative_length = self.used
            for tensor in (self.layer.keys, self.layer.values):
                # Marks of fixed addresses would compile each block for itself.
                tensor.__dict__.pop("_dynamo_static_input_type", None)
        at = torch.arange(keys.shape[2], device=keys.device) + self.used
        self.layer.keys.index_copy_(2, at, keys)
        self.layer.values.index_copy_(2, at, values)
        return self.layer.keys, self.layer.values


class _Forward:
    """Compiled forward of one block. A copy of the block gets its class's forward, as this one would run the
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
    """Compile a network's blocks in place for steps of one token, until ``remove``.

    Calls outside ``using``, and with other caches, run as before. ``compiler``: options of torch.compile.
    Each kind of block (by scheme) is compiled when it is first called; ``KINDS`` bounds their number.
    """

    def __init__(self, network: nn.Module, **compiler: Any) -> None:
        """``ValueError`` for a network with other kinds of blocks or cache, one that is compiled already, and
        one on several devices."""
        self.lock = threading.RLock()
        self._now = threading.local()
        self._numbered = [m for m in network.modules() if hasattr(m, "layer_idx")]
        self._blocks = blocks_of(network)
        _check_cache(network)
        if len({part.device for part in (*network.parameters(), *network.buffers())} - {CPU}) > 1:
            raise ValueError("it lies on several devices")
        import torch._inductor.config as settings

        early = hasattr(settings.triton, EARLY.partition(".")[2])
        compiler = compiler or ({"options": {EARLY: True}} if early else {})
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
        """Let blocks that this thread calls with ``cache`` read and write its ``parts``; other threads
        wait."""
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
        """Undo the compilation."""
        for block in self._blocks:
            block.__dict__.pop("forward", None)


def _replaced(block: nn.Module) -> bool:
    """True if a block's forward is not its class's. Copies count as unchanged: theirs is bound to the
    copy."""
    own = block.__dict__.get("forward")
    return own is not None and own != MethodType(type(block).forward, block)


def blocks_of(network: nn.Module) -> list[nn.Module]:
    """The network's blocks: its list of as many modules as the configuration has layers. ``ValueError`` if it
    has no such list."""
    count = getattr(getattr(network, "config", None), "num_hidden_layers", None)
    for module in network.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return list(module)
    raise ValueError(f"{type(network).__name__} has no list of its blocks")


def _check_cache(network: Any) -> None:
    """``ValueError`` unless each block attends to all earlier tokens, by its own keys and values."""
    from transformers import StaticCache
    from transformers.cache_utils import StaticLayer

    for name in WINDOWS:
        if getattr(network.config, name, None):
            raise ValueError(f"its blocks attend to a window ({name})")
    layers = StaticCache(config=network.config, max_cache_len=1).layers
    if other := [type(layer).__name__ for layer in layers if type(layer) is not StaticLayer]:
        raise ValueError(f"its cache has other parts than keys and values of all tokens: {other[0]}")


class GraphedNetwork:
    """Network that runs ``batch`` texts of equal length side by side; ``room``: tokens of each with its
    prompt.

    ``prefill`` begins new texts, ``step`` continues them. It may be used by one thread at a time. ``joined``:
    a step is a ``JoinedStep`` where there is no reason against it.
    """

    def __init__(
        self,
        network: nn.Module,
        room: int,
        batch: int = 1,
        compiled: CompiledBlocks | None = None,
        joined: bool = True,
    ) -> None:
        from transformers import StaticCache

        self._network, self.room, self.batch, self.used = network, room, batch, 0
        self.device = next(network.parameters()).device
        self._cache: Any = StaticCache(config=network.config, max_cache_len=room)
        self._used = torch.zeros((), dtype=torch.long, device=self.device)
        self._parts = [OwnPart(layer, self._used) for layer in self._cache.layers]
        self._compiled = compiled or CompiledBlocks(network)
        self._last = last_logits(network)
        self._ids = torch.zeros((batch, 1), dtype=torch.long, device=self.device)
        self._logits: Tensor | None = None
        self._graph: torch.cuda.CUDAGraph | None = None
        self.joined = joined and batch <= MOST_OF_STEP and not against_joining(network)
        self._joined_step: JoinedStep | None = None

    def prefill(self, ids: Tensor) -> Tensor:
        """Begin new texts with ``ids`` [batch, tokens]; logits [batch, vocabulary] of the next token.
        ``ValueError`` for more tokens than there is room for."""
        if ids.shape[1] > self.room:
            raise ValueError(f"the cache has room for {self.room} tokens, and the prompt has {ids.shape[1]}")
        self.back_to(0)
        for layer in self._cache.layers:
            if layer.is_initialized:  # attention gives what lies behind a weight of zero, and 0 · NaN is NaN
                layer.keys.zero_()
                layer.values.zero_()
        logits = self.run(ids)
        if not all(layer.is_initialized for layer in self._cache.layers):
            raise ValueError("its blocks do not write the cache that they are given")
        return logits

    def step(self, ids: Tensor) -> Tensor:
        """Append ``ids`` [batch, 1]; logits [batch, vocabulary] of the next token, which the next step
        overwrites. ``ValueError`` if the cache has no room left."""
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
        """Compile and capture now, so that no token waits for it. A prompt of two tokens makes the cache: a
        step without one would be compiled separately."""
        ids = torch.zeros((self.batch, 2), dtype=torch.long, device=self.device)
        self.prefill(ids)
        self.step(ids[:, :1])

    @on_device_of("ids")
    def run(self, ids: Tensor) -> Tensor:
        """Append ``ids`` [batch, tokens] without a graph; logits [batch, vocabulary] of the next token."""
        if self.joined and ids.shape[1] == 1 and self._cache.layers[0].is_initialized:
            if self._joined_step is None:
                cache = [(layer.keys, layer.values) for layer in self._cache.layers]
                self._joined_step = JoinedStep(self._network, cache, self._used, self.batch)
            joined = self._joined_step(ids)
            self._used.add_(1)
            self.used += 1
            return joined
        with torch.no_grad(), self._compiled.using(self._cache, self._parts):
            output = self._network(input_ids=ids, past_key_values=self._cache, use_cache=True, **self._last)
            self._used.add_(ids.shape[1])
        self.used += ids.shape[1]
        logits: Tensor = output.logits[:, -1]
        return logits

    def replay(self) -> None:
        """Repeat the last step and discard its logits, for benchmarks."""
        assert self._graph is not None
        self._graph.replay()

    def _capture(self) -> None:
        """Capture a step after warm-up steps, then forget the tokens of both.

        Captures run one at a time; other threads' work on the GPU is not captured.
        """
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
    """Graphed networks of one network. Each text has one to itself while it is written; later texts reuse
    it."""

    def __init__(self, network: nn.Module, joined: bool = True, **compiler: Any) -> None:
        """``joined`` as in ``GraphedNetwork``; ``compiler``: options of torch.compile."""
        self.compiled, self._joined = CompiledBlocks(network, **compiler), joined
        self._free: list[GraphedNetwork] = []
        self._lock = threading.Lock()

    def decoder(self, network: nn.Module, room: int) -> GraphDecoder:
        """Return a decoder for one text of at most ``room`` tokens, with everything compiled."""
        with self._lock:
            fit = [one for one in self._free if one.room >= room]
            held = min(fit, key=lambda one: one.room, default=None)
            if held is not None:
                self._free.remove(held)
            else:
                self._free.clear()  # the larger one takes the place of smaller ones
        if held is None:
            doublings = max(math.ceil(math.log2(room / LEAST_ROOM)), 0)
            held = GraphedNetwork(network, LEAST_ROOM << doublings, 1, self.compiled, self._joined)
            held.warm()
        decoder = GraphDecoder(held)
        weakref.finalize(decoder, self._free.append, held)
        return decoder


def last_logits(network: nn.Module) -> dict[str, int]:
    """Argument that makes a network compute only the last token's logits; empty if it has none."""
    takes = inspect.signature(network.forward).parameters
    return {"logits_to_keep": 1} if "logits_to_keep" in takes else {}


class GraphDecoder:
    """Decoder of one text by a ``GraphedNetwork``; see ``placing.Decoder``. With ``traced`` steps are not
    captured, so that they run on any device."""

    def __init__(self, graphed: GraphedNetwork, traced: bool = False) -> None:
        self._graphed, self._traced, self._begun = graphed, traced, False

    def __call__(self, ids: Sequence[int]) -> Tensor:
        if not ids:
            raise ValueError("there is no token to run")
        given = torch.tensor([list(ids)], device=self._graphed.device)
        if not self._begun:
            self._begun = True
            return self._graphed.prefill(given)[0].float()
        if self._traced:
            return self._graphed.run(given)[0].float()
        for token in given.split(1, dim=1):
            logits = self._graphed.step(token)
        return logits[0].float()
