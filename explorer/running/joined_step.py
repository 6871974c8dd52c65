"""A step of one token a text as five launches a block: products of codes, to which norms, residuals and the
gate are joined, and an attention that rotates queries and keys and writes the cache (kernels/step.cuh,
attend_step.cu).

For networks of Llama's kind on Hopper whose blocks' products all decode codes. Each product loads W while the
kernel before it ends, and brings the first bytes of the next W into L2.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from explorer.gpu.attend import SIZES, StepAttention, together_of
from explorer.gpu.compile import Build
from explorer.gpu.gemm.swap_ab import SwapAB
from explorer.gpu.ready import Ready
from explorer.products.layer import QuantizedLinear
from explorer.products.weights import TilesForm, padded_to_eight
from explorer.running.fused import JoinedCodes, JoinedLayer

AHEAD = 4 << 20
"""Bytes of the next products' W that a product brings into L2 after its own: a part of an H100's 50 MB."""
STILL = ("default", "linear", "llama3", "yarn")
"""Kinds of rotation whose angle depends on the position alone."""
CHILDREN: dict[str, tuple[set[str], set[str]]] = {
    "": ({"self_attn", "mlp", "input_layernorm", "post_attention_layernorm"}, set()),
    "self_attn": ({"q_proj", "k_proj", "v_proj", "o_proj"}, {"q_norm", "k_norm", "rotary_emb"}),
    "mlp": ({"gate_proj", "up_proj", "down_proj", "act_fn"}, set()),
}
"""The modules of a block: those it has, and those it may have."""
CAPPED = ("final_logit_softcapping", "attn_logit_softcapping")
"""Settings that limit scores or logits."""


def against_joining(network: nn.Module) -> str:
    """The reason why a network's step is not of five launches a block; "" if it may be. Logits that differ
    are found by a trial (``placing``)."""
    model: Any = getattr(network, "model", None)
    parts = ("embed_tokens", "norm", "rotary_emb", "layers")
    if not all(hasattr(model, name) for name in parts) or not hasattr(network, "lm_head"):
        return "it is not built as Llama is"
    if getattr(model.rotary_emb, "rope_type", "default") not in STILL:
        return "its rotation depends on the length"
    if any(getattr(network.config, name, None) for name in CAPPED):
        return "its scores are capped"
    for block in model.layers:
        for name, (least, more) in CHILDREN.items():
            found = {child for child, _ in block.get_submodule(name).named_children()}
            if not least <= found <= least | more:
                return f"its blocks have other parts: {', '.join(sorted(found ^ least))}"
        attention, mlp = block.self_attn, block.mlp
        joined = [(attention.q_proj, attention.k_proj, attention.v_proj), (mlp.gate_proj, mlp.up_proj)]
        if not all(_is_whole(group) for group in joined) or not joined[1][0].together.alternate:
            return "layers of one input are not multiplied as one"
        coded = (*(group[0].together.linear for group in joined), attention.o_proj, mlp.down_proj)
        if not all(_decodes(layer) for layer in coded):
            return "some of its products do not decode codes"
        heads, groups, size = _heads_of(attention)
        if size not in SIZES or not together_of(heads, groups):
            return f"heads of {size} elements"
        if "silu" not in type(mlp.act_fn).__name__.lower():
            return f"its activation is {type(mlp.act_fn).__name__}"
    embedding = model.embed_tokens.weight
    if embedding.dtype != torch.bfloat16 or embedding.device.type != "cuda":
        return "it is not in bfloat16 on a GPU"
    return ""


def _is_whole(group: Sequence[Any]) -> bool:
    if not all(isinstance(layer, JoinedLayer) and layer.together is group[0].together for layer in group):
        return False
    return [layer.index for layer in group] == list(range(len(group[0].together.sizes)))


def _decodes(layer: Any) -> bool:
    form = layer.form if isinstance(layer, QuantizedLinear | JoinedCodes) else None
    return isinstance(form, TilesForm) and form.x is None and not any(size % 8 for size in form.shape)


def _heads_of(attention: Any) -> tuple[int, int, int]:
    """Heads, groups that share keys, and elements of a head."""
    size: int = attention.head_dim
    query, key, _ = attention.q_proj.together.sizes
    return query // size, key // size, size


@dataclass(frozen=True, eq=False)
class _Product:
    """A product with its place in the step. ``epsilon``: of its X's norm, None: X has none; ``after``: gains
    of the norm after its residual, None: it has no residual."""

    launch: SwapAB
    held: list[Tensor]
    bias: Tensor | None
    x: Tensor
    out: Tensor
    epsilon: float | None = None
    after: Tensor | None = None
    gate: bool = False

    @property
    def w(self) -> tuple[int, int]:
        """Address and bytes of W."""
        return self.held[0].data_ptr(), self.held[0].numel()


class JoinedStep:
    """The steps of ``batch`` texts by ``network`` and a cache [batch, groups, room, size] for each block;
    ``used``: int64 [], the tokens before a step. ``against_joining`` has no reason against it."""

    def __init__(
        self, network: Any, cache: Sequence[tuple[Tensor, Tensor]], used: Tensor, batch: int
    ) -> None:
        self._network, self._cache, self._used, self.batch = network, list(cache), used, batch
        model, self._device = network.model, used.device
        self._embedding, room = model.embed_tokens.weight, self._cache[0][0].shape[2]
        k = self._embedding.shape[1]
        places = torch.arange(room, device=self._device)[None]
        turns = model.rotary_emb(self._embedding[:1, None], places)
        self._turns = [turn[0].to(torch.bfloat16).contiguous() for turn in turns]
        self._state, self._x = self._empty(k), self._empty(k)
        self._begin = Ready(Build("begin_step.cu", ()), "begin_step", self._device, "PPPPPPi", (batch,), 256)
        self._attention: list[tuple[StepAttention, Any, Tensor, Tensor]] = []
        self._products: list[_Product] = []
        norms = [block.input_layernorm for block in model.layers] + [model.norm]
        self._first = norms[0].weight
        buffers: dict[tuple[str, int], Tensor] = {}

        def buffer(name: str, size: int) -> Tensor:
            return buffers.setdefault((name, size), self._empty(size))

        for block, before, following in zip(model.layers, norms, norms[1:], strict=False):
            attention, mlp, between = block.self_attn, block.mlp, block.post_attention_layernorm
            heads, groups, size = _heads_of(attention)
            qkv, gate = attention.q_proj.together.linear, mlp.gate_proj.together.linear
            rows, attended = buffer("qkv", (heads + 2 * groups) * size), buffer("attended", heads * size)
            inner = buffer("inner", mlp.down_proj.in_features)
            self._add(qkv, self._x, rows, epsilon=_epsilon(before))
            launch = StepAttention(batch, heads, groups, size, room, attention.scaling, self._device)
            self._attention.append((launch, attention, rows, attended))
            self._add(attention.o_proj, attended, self._x, after=between.weight)
            self._add(gate, self._x, inner, epsilon=_epsilon(between), gate=True)
            self._add(mlp.down_proj, inner, self._x, after=following.weight)
        self._has_head = _decodes(network.lm_head)
        if self._has_head:
            logits = self._empty(network.lm_head.out_features)
            self._add(network.lm_head, self._x, logits, epsilon=_epsilon(model.norm))
        slots = max(1, *(one.launch.slots for one in self._products))
        self._squares = torch.empty(batch * slots, device=self._device)

    def _empty(self, size: int) -> Tensor:
        return torch.empty((self.batch, size), dtype=torch.bfloat16, device=self._device)

    def _add(self, layer: Any, x: Tensor, out: Tensor, **how: Any) -> None:
        n, k = layer.form.shape
        launch = SwapAB(
            self.batch, n, 2 * k, layer.form.tiles, torch.bfloat16, self._device, early=True, step=True
        )
        bias = None if layer.bias is None else padded_to_eight(layer.bias.detach().float())
        self._products.append(_Product(launch, layer.held, bias, x, out, **how))

    def __call__(self, ids: Tensor) -> Tensor:
        """Append ``ids`` int64 [batch, 1] to the texts; logits [batch, vocabulary], which the next step
        overwrites. ``used`` is left as it is."""
        embedded = (ids.contiguous(), self._embedding, self._first, self._state, self._x, self._squares)
        self._begin.start((*_addresses(embedded), self._x.shape[1]))
        slots, attention = 1, iter(zip(self._attention, self._cache, strict=True))
        for index, product in enumerate(self._products):
            if index % 4 == 1:
                self._attend(*next(attention))
            self._multiply(product, slots, self._products[index + 1 : index + 3])
            slots = product.launch.slots if product.after is not None else slots
        if self._has_head:
            return self._products[-1].out
        logits: Tensor = self._network.lm_head(self._network.model.norm(self._state))
        return logits

    def _multiply(self, product: _Product, slots: int, following: Sequence[_Product]) -> None:
        column = product.held[1] if len(product.held) > 1 else None
        vectors = (product.out, None, column, product.bias, None, None, None, None)
        strides = (0, 0 if column is None or column.numel() == 1 else 1)
        epilogue = (*_addresses(vectors), *strides, 1, 0, self.batch, product.launch.n)
        residual = product.after is not None
        ahead = list(itertools.islice(_ahead(following), 2))
        (at, size), (later, later_size) = (*ahead, (0, 0), (0, 0))[:2]
        step = (
            *_addresses((self._squares, self._state if residual else None, product.after, self._squares)),
            *(at, later),
            slots if product.epsilon is not None else 0,
            1 / product.x.shape[1],
            product.epsilon or 0.0,
            *(int(product.gate), size, later_size),
        )
        product.launch.start(product.x.data_ptr(), product.held[0].data_ptr(), epilogue, step=step)

    def _attend(self, how: tuple[StepAttention, Any, Tensor, Tensor], cache: tuple[Tensor, Tensor]) -> None:
        launch, attention, rows, attended = how
        norms = [getattr(attention, name, None) for name in ("q_norm", "k_norm")]
        weights = [None if norm is None else norm.weight for norm in norms]
        every = (rows, *self._turns, *weights, *cache, self._used, attended)
        launch.start(_addresses(every), 0.0 if norms[0] is None else _epsilon(norms[0]))


def _addresses(tensors: Sequence[Tensor | None]) -> list[int]:
    return [0 if one is None else one.data_ptr() for one in tensors]


def _epsilon(norm: Any) -> float:
    return float(getattr(norm, "variance_epsilon", 0.0) or norm.eps)


def _ahead(following: Sequence[_Product]) -> Iterator[tuple[int, int]]:
    """Addresses and bytes of the next W, ``AHEAD`` bytes in all."""
    left = AHEAD
    for product in following:
        at, size = product.w
        size = min(size, left) // 16 * 16
        left -= size
        yield at, size
