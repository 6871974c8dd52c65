"""The graphs of the models that are written whole: decoders of the Llama family, and BERT.

Arithmetic is in float32. A decoder gets ``input_ids`` and ``attention_mask`` [batch, tokens] and gives
``logits`` [batch, tokens, vocabulary]; it keeps no cache of keys and values. BERT also gets
``token_type_ids`` and gives ``last_hidden_state`` [batch, tokens, width].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch

from explorer.checkpoints.gguf_models import head_length, rope_factors, rope_of
from explorer.checkpoints.onnx_graph import Graph

Config = dict[str, Any]
MASKED = float(np.finfo(np.float32).min)


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
class Whole:
    """A kind of model: what builds its graph, its inputs, and the name and last side of its output."""

    build: Callable[[Graph, Weights, Config], str]
    inputs: tuple[str, ...]
    output: str
    width: str
    refusal: Callable[[Config], str]


def _float(graph: Graph, value: float) -> str:
    return graph.constant(value, np.float32)


def decoder(graph: Graph, weights: Weights, config: Config) -> str:
    """The logits of a Llama, Mistral or Qwen2."""
    embeddings = weights.tensor("model.embed_tokens.weight")
    x = graph.node("Gather", embeddings, "input_ids")
    rotation = _rotation(graph, config)
    mask = _causal_mask(graph, config)
    for number in range(config["num_hidden_layers"]):
        at = f"model.layers.{number}."
        normed = _rms_norm(graph, x, weights.tensor(f"{at}input_layernorm.weight"), config)
        x = graph.node(
            "Add", x, _attention(graph, weights, f"{at}self_attn.", normed, rotation, mask, config)
        )
        normed = _rms_norm(graph, x, weights.tensor(f"{at}post_attention_layernorm.weight"), config)
        gate, up = (weights.linear(f"{at}mlp.{part}_proj", normed) for part in ("gate", "up"))
        gated = graph.node("Mul", graph.node("Mul", gate, graph.node("Sigmoid", gate)), up)
        x = graph.node("Add", x, weights.linear(f"{at}mlp.down_proj", gated))
    x = _rms_norm(graph, x, weights.tensor("model.norm.weight"), config)
    if weights.has("lm_head.weight"):
        return weights.linear("lm_head", x)
    return str(graph.node("MatMul", x, graph.node("Transpose", embeddings, perm=[1, 0])))


def _rms_norm(graph: Graph, x: str, weight: str, config: Config) -> str:
    mean = graph.node("ReduceMean", graph.node("Mul", x, x), graph.constant([-1]), keepdims=1)
    root = graph.node("Sqrt", graph.node("Add", mean, _float(graph, config["rms_norm_eps"])))
    return str(graph.node("Mul", graph.node("Div", x, root), weight))


def _rotation(graph: Graph, config: Config) -> tuple[str, str]:
    """Cosines and sines [batch, 1, 1, tokens, d], by the position among the tokens that are not masked."""
    d = head_length(config)
    base = float(rope_of(config).get("rope_theta", 10000.0))
    frequencies = 1 / base ** (torch.arange(0, d, 2, dtype=torch.int64).float() / d)
    factors = rope_factors(config)
    frequencies = frequencies if factors is None else frequencies / factors
    seen = graph.node("CumSum", graph.cast("attention_mask"), graph.constant(1))
    positions = graph.node("Max", graph.node("Sub", seen, _float(graph, 1)), _float(graph, 0))
    column = graph.node("Unsqueeze", positions, graph.constant([1, 2, 4]))
    angles = graph.node("Mul", column, graph.constant(frequencies.tolist(), np.float32))
    both = graph.node("Concat", angles, angles, axis=-1)
    return graph.node("Cos", both), graph.node("Sin", both)


def _rotated(graph: Graph, x: str, rotation: tuple[str, str]) -> str:
    first, second = graph.node("Split", x, outputs=2, axis=-1, num_outputs=2)
    turned = graph.node("Concat", graph.node("Neg", second), first, axis=-1)
    cos, sin = rotation
    return str(graph.node("Add", graph.node("Mul", x, cos), graph.node("Mul", turned, sin)))


def _causal_mask(graph: Graph, config: Config) -> str:
    """float32 [batch, 1, 1, tokens, tokens]: 0 where a token (rows) sees another, else the least number."""
    zero, one = graph.constant(0), graph.constant(1)
    count = graph.node("Gather", graph.node("Shape", "input_ids"), one)
    places = graph.node("Range", zero, count, one)
    rows, columns = (graph.node("Unsqueeze", places, graph.constant([axis])) for axis in (1, 0))
    seen = graph.node("GreaterOrEqual", rows, columns)
    window = _window(config)
    if window is not None:
        near = graph.node("Less", graph.node("Sub", rows, columns), graph.constant(window))
        seen = graph.node("And", seen, near)
    return _masked(graph, graph.node("And", seen, _not_padding(graph, [1, 2, 3])))


def _window(config: Config) -> int | None:
    """Size of the attention window in tokens; None for all. For Qwen2 it is the same in every layer
    (``_windows``)."""
    window = config.get("sliding_window")
    return int(window) if window and _windows(config)[0] else None


def _windows(config: Config) -> tuple[bool, ...]:
    """By layer: whether it has the window. Qwen2 has none unless it is switched on, and then from the layer
    ``max_window_layers`` (28 where it is not said) on, as transformers has it."""
    layers = config["num_hidden_layers"]
    if "layer_types" in config:
        return tuple(kind == "sliding_attention" for kind in config["layer_types"])
    if config.get("model_type") != "qwen2":
        return (True,) * layers
    first = config.get("max_window_layers", 28) if config.get("use_sliding_window", False) else layers
    return tuple(layer >= first for layer in range(layers))


def _not_padding(graph: Graph, axes: list[int]) -> str:
    there = graph.node("Cast", "attention_mask", to=9)  # BOOL
    return str(graph.node("Unsqueeze", there, graph.constant(axes)))


def _masked(graph: Graph, seen: str) -> str:
    return str(graph.node("Where", seen, _float(graph, 0), _float(graph, MASKED)))


def _attention(
    graph: Graph, weights: Weights, at: str, x: str, rotation: tuple[str, str], mask: str, config: Config
) -> str:
    """Heads that share keys and values stand below them: [batch, keys' heads, sharing, tokens, d]."""
    heads, d = config["num_attention_heads"], head_length(config)
    kv = config.get("num_key_value_heads") or heads
    shape = {"q": [0, 0, kv, heads // kv, d], "k": [0, 0, kv, 1, d], "v": [0, 0, kv, 1, d]}

    def split(part: str) -> str:
        flat = weights.linear(f"{at}{part}_proj", x)
        apart = graph.node("Reshape", flat, graph.constant(shape[part]))
        return str(graph.node("Transpose", apart, perm=[0, 2, 3, 1, 4]))

    query, key = (_rotated(graph, split(part), rotation) for part in ("q", "k"))
    value = split("v")
    key = graph.node("Transpose", key, perm=[0, 1, 2, 4, 3])
    mixed = _mixed(graph, query, key, value, mask, d)
    joined = graph.node("Transpose", mixed, perm=[0, 3, 1, 2, 4])
    flat = graph.node("Reshape", joined, graph.constant([0, 0, heads * d]))
    return weights.linear(f"{at}o_proj", flat)


def _mixed(graph: Graph, query: str, key: str, value: str, mask: str, d: int) -> str:
    scores = graph.node("Mul", graph.node("MatMul", query, key), _float(graph, d**-0.5))
    shares = graph.node("Softmax", graph.node("Add", scores, mask), axis=-1)
    return str(graph.node("MatMul", shares, value))


def encoder(graph: Graph, weights: Weights, config: Config) -> str:
    """The last hidden state of a BERT."""
    prefix = "" if weights.has("embeddings.word_embeddings.weight") else "bert."
    at = f"{prefix}embeddings."
    count = graph.node("Gather", graph.node("Shape", "input_ids"), graph.constant(1))
    places = graph.node("Range", graph.constant(0), count, graph.constant(1))
    parts = (("word", "input_ids"), ("position", places), ("token_type", "token_type_ids"))
    word, position, kind = (
        graph.node("Gather", weights.tensor(f"{at}{name}_embeddings.weight"), index) for name, index in parts
    )
    x = graph.node("Add", graph.node("Add", word, kind), position)
    x = _layer_norm(graph, weights, f"{at}LayerNorm", x, config)
    mask = _masked(graph, _not_padding(graph, [1, 2]))
    for number in range(config["num_hidden_layers"]):
        at = f"{prefix}encoder.layer.{number}."
        mixed = _self_attention(graph, weights, f"{at}attention.self.", x, mask, config)
        out = weights.linear(f"{at}attention.output.dense", mixed)
        x = _layer_norm(graph, weights, f"{at}attention.output.LayerNorm", graph.node("Add", out, x), config)
        hidden = _gelu(graph, weights.linear(f"{at}intermediate.dense", x))
        out = weights.linear(f"{at}output.dense", hidden)
        x = _layer_norm(graph, weights, f"{at}output.LayerNorm", graph.node("Add", out, x), config)
    return x


def _self_attention(graph: Graph, weights: Weights, at: str, x: str, mask: str, config: Config) -> str:
    heads = config["num_attention_heads"]
    d = config["hidden_size"] // heads

    def split(part: str, perm: list[int]) -> str:
        flat = weights.linear(f"{at}{part}", x)
        return str(
            graph.node("Transpose", graph.node("Reshape", flat, graph.constant([0, 0, heads, d])), perm=perm)
        )

    query, value = (split(part, [0, 2, 1, 3]) for part in ("query", "value"))
    mixed = _mixed(graph, query, split("key", [0, 2, 3, 1]), value, mask, d)
    joined = graph.node("Transpose", mixed, perm=[0, 2, 1, 3])
    return str(graph.node("Reshape", joined, graph.constant([0, 0, heads * d])))


def _layer_norm(graph: Graph, weights: Weights, name: str, x: str, config: Config) -> str:
    scale, bias = (weights.tensor(f"{name}.{part}") for part in ("weight", "bias"))
    return str(graph.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=config["layer_norm_eps"]))


def _gelu(graph: Graph, x: str) -> str:
    bell = graph.node("Erf", graph.node("Mul", x, _float(graph, 0.5**0.5)))
    return str(
        graph.node("Mul", graph.node("Mul", x, _float(graph, 0.5)), graph.node("Add", bell, _float(graph, 1)))
    )


def _activation(config: Config, name: str) -> str:
    found = config.get("hidden_act")
    return "" if found == name else f"its activation is {found!r}; graphs are built with {name!r}"


def _decoder_refusal(config: Config) -> str:
    kind = rope_of(config).get("rope_type", "default")
    if kind not in ("default", "llama3"):
        return f"positions scaled by {kind!r} are not carried"
    if config.get("sliding_window") and len(set(_windows(config))) > 1:
        return "some of its layers see a window of tokens and others see all; graphs have one mask"
    return _activation(config, "silu")


_DECODER = Whole(decoder, ("input_ids", "attention_mask"), "logits", "vocab_size", _decoder_refusal)
MODELS = {
    "llama": _DECODER,
    "mistral": _DECODER,
    "qwen2": _DECODER,
    "bert": Whole(
        encoder, ("input_ids", "attention_mask", "token_type_ids"), "last_hidden_state", "hidden_size",
        lambda config: _activation(config, "gelu"),
    ),
}  # fmt: skip
"""By ``model_type`` of config.json."""
