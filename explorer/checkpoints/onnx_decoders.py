"""The graph of a decoder: Llama and the kinds of models that differ from it in norms, rotations and masks.

Arithmetic is in float32, as transformers computes with float32 weights. Settings are those that transformers
reads of config.json, so that defaults and older spellings are its own. Heads that share keys and values stand
below them: [batch, heads of keys, sharing, tokens, d].
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

import numpy as np
import torch

from explorer.checkpoints.onnx_graph import Graph

Config = Any
"""A ``PreTrainedConfig`` of transformers."""
MASKED = float(np.finfo(np.float32).min)
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotations whose frequencies do not depend on the length of the text."""
FULL, SLIDING = "full_attention", "sliding_attention"


class Weights(Protocol):
    """Source of a graph's tensors."""

    def has(self, name: str) -> bool:
        """True if the model has a tensor of that name."""
        ...

    def tensor(self, name: str) -> str:
        """float32: a tensor of the model as it is."""
        ...

    def linear(self, layer: str, x: str) -> str:
        """The product of ``x`` [..., K] by a layer's weight, with its bias if it has one."""
        ...


@dataclass(frozen=True)
class DecoderKind:
    """How a kind of decoder differs from the others.

    before, after  names of the norms of what attention and MLP are given, and of what they give; "" for none
    offset         added to the weights of all norms
    heads          the axes that norms of queries and keys run over: "" (there are none), "head" or "all"
    fused          whether query, key and value are one layer, and gate and up another
    scaled         whether embeddings are multiplied by the root of their width
    activation     the setting that names it, and the only name that graphs are built with
    unset          settings that change the function and are not carried: they must be off
    """

    before: tuple[str, str] = ("input_layernorm", "post_attention_layernorm")
    after: tuple[str, str] = ("", "")
    offset: float = 0.0
    heads: str = ""
    fused: bool = False
    scaled: bool = False
    activation: tuple[str, str] = ("hidden_act", "silu")
    unset: tuple[str, ...] = ()

    def refusal(self, config: Config) -> str:
        """Reason why no graph is built of a model with these settings; empty if one is."""
        for rope in ropes(config).values():
            if rope["rope_type"] not in ROPES:
                return f"positions scaled by {rope['rope_type']!r} are not carried; {', '.join(ROPES)} are"
        if on := [name for name in self.unset if getattr(config, name, None)]:
            return f"its configuration sets {on[0]}, which graphs do not have"
        return other_activation(config, *self.activation)


def other_activation(config: Config, setting: str, name: str) -> str:
    """Reason why a graph built with the activation ``name`` is not the model; empty if it is."""
    found = getattr(config, setting)
    return "" if found == name else f"its activation is {found!r}; graphs are built with {name!r}"


def ropes(config: Config) -> Mapping[str, Mapping[str, Any]]:
    """The settings of positions: by kind of attention where they differ, else one, called ""."""
    rope = config.rope_parameters
    return {name: rope[name] for name in set(config.layer_types)} if FULL in rope else {"": rope}


def attention_kinds(config: Config) -> tuple[str, ...]:
    """By layer: "full_attention" or "sliding_attention"."""
    named = getattr(config, "layer_types", None)
    every = SLIDING if getattr(config, "sliding_window", None) else FULL
    return tuple(named) if named else (every,) * config.num_hidden_layers


def constant(graph: Graph, value: float) -> str:
    """float32: one number."""
    return graph.constant(value, np.float32)


def decoder(kind: DecoderKind) -> Callable[[Graph, Weights, Config], str]:
    """What builds the graph of a ``kind`` of decoder: the name of its logits."""
    return lambda graph, weights, config: _Decoder(graph, weights, config, kind).logits()


@dataclass(frozen=True)
class _Decoder:
    """One graph while it is built; rotations and masks are made once for each kind of attention."""

    graph: Graph
    weights: Weights
    config: Config
    kind: DecoderKind
    rotations: dict[str, tuple[str, str]] = field(default_factory=dict)
    masks: dict[str, str] = field(default_factory=dict)

    def logits(self) -> str:
        """[batch, tokens, vocabulary]."""
        graph, config = self.graph, self.config
        embeddings = self.weights.tensor("model.embed_tokens.weight")
        x = graph.node("Gather", embeddings, "input_ids")
        if self.kind.scaled:
            x = graph.node("Mul", x, constant(graph, config.hidden_size**0.5))
        for number, attention in enumerate(attention_kinds(config)):
            at = f"model.layers.{number}."
            mixed = self._attention(
                f"{at}self_attn.", self._norm(at, self.kind.before[0], x), number, attention
            )
            x = graph.node("Add", x, self._norm(at, self.kind.after[0], mixed))
            hidden = self._mlp(f"{at}mlp.", self._norm(at, self.kind.before[1], x))
            x = graph.node("Add", x, self._norm(at, self.kind.after[1], hidden))
        x = self._norm("model.", "norm", x)
        if self.weights.has("lm_head.weight") and not config.tie_word_embeddings:
            return self.weights.linear("lm_head", x)
        return str(graph.node("MatMul", x, graph.node("Transpose", embeddings, perm=[1, 0])))

    def _norm(self, at: str, name: str, x: str) -> str:
        """The root-mean-square norm ``name`` over the last axis; ``x`` itself where there is none."""
        if not name:
            return x
        graph, weight = self.graph, self.weights.tensor(f"{at}{name}.weight")
        mean = graph.node("ReduceMean", graph.node("Mul", x, x), graph.constant([-1]), keepdims=1)
        root = graph.node("Sqrt", graph.node("Add", mean, constant(graph, self.config.rms_norm_eps)))
        if self.kind.offset:
            weight = graph.node("Add", weight, constant(graph, self.kind.offset))
        return str(graph.node("Mul", graph.node("Div", x, root), weight))

    def _mlp(self, at: str, x: str) -> str:
        graph = self.graph
        if self.kind.fused:
            both = self.weights.linear(f"{at}gate_up_proj", x)
            gate, up = graph.node("Split", both, outputs=2, axis=-1, num_outputs=2)
        else:
            gate, up = (self.weights.linear(f"{at}{part}_proj", x) for part in ("gate", "up"))
        gated = graph.node("Mul", self._activated(gate), up)
        return self.weights.linear(f"{at}down_proj", gated)

    def _activated(self, x: str) -> str:
        graph = self.graph
        if self.kind.activation[1] == "silu":
            return str(graph.node("Mul", x, graph.node("Sigmoid", x)))
        return str(graph.node("Gelu", x, approximate="tanh"))

    def _attention(self, at: str, x: str, number: int, attention: str) -> str:
        graph, config = self.graph, self.config
        heads, d, kv = self._heads
        shapes = {"q": [0, 0, kv, heads // kv, d], "k": [0, 0, kv, 1, d], "v": [0, 0, kv, 1, d]}
        parts = self._parts(at, x)
        query, key, value = (self._split(at, name, parts[name], shapes[name]) for name in "qkv")
        if _is_rotated(config, number):
            rotation = self._rotation(attention)
            query, key = (self._rotated(part, rotation) for part in (query, key))
        key = graph.node("Transpose", key, perm=[0, 1, 2, 4, 3])
        scale = float(getattr(config, "query_pre_attn_scalar", d)) ** -0.5
        mixed = attended(graph, query, key, value, self._mask(attention), scale)
        joined = graph.node("Transpose", mixed, perm=[0, 3, 1, 2, 4])
        return self.weights.linear(
            f"{at}o_proj", graph.node("Reshape", joined, graph.constant([0, 0, heads * d]))
        )

    @property
    def _heads(self) -> tuple[int, int, int]:
        """Heads of queries, channels of each, heads of keys and values."""
        config = self.config
        heads = config.num_attention_heads
        d = getattr(config, "head_dim", None) or config.hidden_size // heads
        return heads, d, config.num_key_value_heads or heads

    def _parts(self, at: str, x: str) -> dict[str, str]:
        """Query, key and value, each [batch, tokens, heads · d]."""
        if not self.kind.fused:
            return {part: self.weights.linear(f"{at}{part}_proj", x) for part in "qkv"}
        heads, d, kv = self._heads
        sides = self.graph.constant([heads * d, kv * d, kv * d])
        together = self.weights.linear(f"{at}qkv_proj", x)
        return dict(zip("qkv", self.graph.node("Split", together, sides, outputs=3, axis=-1), strict=True))

    def _split(self, at: str, name: str, x: str, shape: list[int]) -> str:
        """[batch, heads of keys, sharing, tokens, d], by the norm of queries or keys if there is one."""
        graph, normed = self.graph, f"{name}_norm" if name in "qk" else ""
        if self.kind.heads == "all":
            x = self._norm(at, normed, x)
        x = graph.node("Reshape", x, graph.constant(shape))
        if self.kind.heads == "head":
            x = self._norm(at, normed, x)
        return str(graph.node("Transpose", x, perm=[0, 2, 3, 1, 4]))

    def _rotation(self, attention: str) -> tuple[str, str]:
        """Cosines and sines [batch, 1, 1, tokens, d], by the position among tokens that are not masked."""
        named = attention if attention in ropes(self.config) else ""
        if named not in self.rotations:
            graph, (frequencies, scale) = self.graph, _frequencies(self.config, named)
            seen = graph.node("CumSum", graph.cast("attention_mask"), graph.constant(1))
            positions = graph.node("Max", graph.node("Sub", seen, constant(graph, 1)), constant(graph, 0))
            column = graph.node("Unsqueeze", positions, graph.constant([1, 2, 4]))
            angles = graph.node("Mul", column, graph.constant(frequencies.tolist(), np.float32))
            both = graph.node("Concat", angles, angles, axis=-1)
            cos, sin = graph.node("Cos", both), graph.node("Sin", both)
            if scale != 1:
                cos, sin = (graph.node("Mul", part, constant(graph, scale)) for part in (cos, sin))
            self.rotations[named] = cos, sin
        return self.rotations[named]

    def _rotated(self, x: str, rotation: tuple[str, str]) -> str:
        """``x`` with its first channels turned, as many as have frequencies."""
        graph, d = self.graph, self._heads[1]
        turned = 2 * len(_frequencies(self.config, next(iter(ropes(self.config))))[0])
        if turned == d:
            return _turned(graph, x, rotation)
        sides = graph.constant([turned, d - turned])
        front, rest = graph.node("Split", x, sides, outputs=2, axis=-1)
        return str(graph.node("Concat", _turned(graph, front, rotation), rest, axis=-1))

    def _mask(self, attention: str) -> str:
        """float32 [batch, 1, 1, tokens, tokens]: 0 where a token (rows) sees another, else the least."""
        if attention not in self.masks:
            window = getattr(self.config, "sliding_window", None) if attention == SLIDING else None
            self.masks[attention] = _causal_mask(self.graph, window)
        return self.masks[attention]


def _is_rotated(config: Config, layer: int) -> bool:
    """SmolLM3 leaves positions out of some layers."""
    return bool(getattr(config, "no_rope_layers", None) is None or config.no_rope_layers[layer])


def _frequencies(config: Config, attention: str) -> tuple[torch.Tensor, float]:
    """float32 [turned / 2], and what cosines and sines are multiplied by: as transformers has them."""
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    rope = ropes(config)[attention]
    if rope["rope_type"] != "default":
        found, scale = ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", layer_type=attention or None)
        return found, float(scale)
    d = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    turned = int(d * rope.get("partial_rotary_factor", 1.0))
    steps = torch.arange(0, turned, 2, dtype=torch.int64).float() / turned
    return 1.0 / (rope["rope_theta"] ** steps), 1.0


def _turned(graph: Graph, x: str, rotation: tuple[str, str]) -> str:
    first, second = graph.node("Split", x, outputs=2, axis=-1, num_outputs=2)
    turned = graph.node("Concat", graph.node("Neg", second), first, axis=-1)
    cos, sin = rotation
    return str(graph.node("Add", graph.node("Mul", x, cos), graph.node("Mul", turned, sin)))


def _causal_mask(graph: Graph, window: int | None) -> str:
    zero, one = graph.constant(0), graph.constant(1)
    count = graph.node("Gather", graph.node("Shape", "input_ids"), one)
    places = graph.node("Range", zero, count, one)
    rows, columns = (graph.node("Unsqueeze", places, graph.constant([axis])) for axis in (1, 0))
    seen = graph.node("GreaterOrEqual", rows, columns)
    if window:
        near = graph.node("Less", graph.node("Sub", rows, columns), graph.constant(int(window)))
        seen = graph.node("And", seen, near)
    return as_mask(graph, graph.node("And", seen, not_padding(graph, [1, 2, 3])))


def not_padding(graph: Graph, axes: list[int]) -> str:
    """bool: the mask of the input with ``axes`` of length 1 put in."""
    there = graph.node("Cast", "attention_mask", to=9)  # BOOL
    return str(graph.node("Unsqueeze", there, graph.constant(axes)))


def as_mask(graph: Graph, seen: str) -> str:
    """float32: 0 where ``seen``, else the least number."""
    return str(graph.node("Where", seen, constant(graph, 0), constant(graph, MASKED)))


def attended(graph: Graph, query: str, key: str, value: str, mask: str, scale: float) -> str:
    """Softmax of scaled products, and the mean of values by it; ``key`` is [..., d, tokens]."""
    scores = graph.node("Mul", graph.node("MatMul", query, key), constant(graph, scale))
    shares = graph.node("Softmax", graph.node("Add", scores, mask), axis=-1)
    return str(graph.node("MatMul", shares, value))
