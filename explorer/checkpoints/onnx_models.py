"""The kinds of models that graphs are built of: decoders (``onnx_decoders``) and BERT.

A decoder gets ``input_ids`` and ``attention_mask`` [batch, tokens] and gives ``logits`` [batch, tokens,
vocabulary]; it keeps no cache of keys and values. BERT also gets ``token_type_ids`` and gives
``last_hidden_state`` [batch, tokens, width].
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from explorer.checkpoints.onnx_decoders import (
    Config,
    DecoderKind,
    Weights,
    as_mask,
    attended,
    constant,
    decoder,
    not_padding,
    other_activation,
)
from explorer.checkpoints.onnx_graph import Graph


@dataclass(frozen=True)
class Whole:
    """A kind of model: what builds its graph, its inputs, and the name and last side of its output."""

    build: Callable[[Graph, Weights, Config], str]
    inputs: tuple[str, ...]
    output: str
    width: str
    refusal: Callable[[Config], str]


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
    mask = as_mask(graph, not_padding(graph, [1, 2]))
    for number in range(config.num_hidden_layers):
        at = f"{prefix}encoder.layer.{number}."
        mixed = _self_attention(graph, weights, f"{at}attention.self.", x, mask, config)
        out = weights.linear(f"{at}attention.output.dense", mixed)
        x = _layer_norm(graph, weights, f"{at}attention.output.LayerNorm", graph.node("Add", out, x), config)
        hidden = _gelu(graph, weights.linear(f"{at}intermediate.dense", x))
        out = weights.linear(f"{at}output.dense", hidden)
        x = _layer_norm(graph, weights, f"{at}output.LayerNorm", graph.node("Add", out, x), config)
    return x


def _self_attention(graph: Graph, weights: Weights, at: str, x: str, mask: str, config: Config) -> str:
    heads = config.num_attention_heads
    d = config.hidden_size // heads

    def split(part: str, perm: list[int]) -> str:
        flat = weights.linear(f"{at}{part}", x)
        return str(
            graph.node("Transpose", graph.node("Reshape", flat, graph.constant([0, 0, heads, d])), perm=perm)
        )

    query, value = (split(part, [0, 2, 1, 3]) for part in ("query", "value"))
    mixed = attended(graph, query, split("key", [0, 2, 3, 1]), value, mask, d**-0.5)
    joined = graph.node("Transpose", mixed, perm=[0, 2, 1, 3])
    return str(graph.node("Reshape", joined, graph.constant([0, 0, heads * d])))


def _layer_norm(graph: Graph, weights: Weights, name: str, x: str, config: Config) -> str:
    scale, bias = (weights.tensor(f"{name}.{part}") for part in ("weight", "bias"))
    return str(graph.node("LayerNormalization", x, scale, bias, axis=-1, epsilon=config.layer_norm_eps))


def _gelu(graph: Graph, x: str) -> str:
    bell = graph.node("Erf", graph.node("Mul", x, constant(graph, 0.5**0.5)))
    return str(
        graph.node(
            "Mul", graph.node("Mul", x, constant(graph, 0.5)), graph.node("Add", bell, constant(graph, 1))
        )
    )


def _decoder(kind: DecoderKind) -> Whole:
    return Whole(decoder(kind), ("input_ids", "attention_mask"), "logits", "vocab_size", kind.refusal)


_AFTER = ("post_attention_layernorm", "post_feedforward_layernorm")
MODELS = {
    "llama": _decoder(DecoderKind()),
    "mistral": _decoder(DecoderKind()),
    "qwen2": _decoder(DecoderKind()),
    "qwen3": _decoder(DecoderKind(heads="head")),
    "gemma3_text": _decoder(DecoderKind(
        before=("input_layernorm", "pre_feedforward_layernorm"), after=_AFTER, offset=1.0, heads="head",
        scaled=True, activation=("hidden_activation", "gelu_pytorch_tanh"),
        unset=("use_bidirectional_attention", "attn_logit_softcapping", "final_logit_softcapping"),
    )),
    "phi3": _decoder(DecoderKind(fused=True)),
    "olmo2": _decoder(DecoderKind(before=("", ""), after=_AFTER, heads="all")),
    "olmo3": _decoder(DecoderKind(before=("", ""), after=_AFTER, heads="all")),
    "smollm3": _decoder(DecoderKind()),
    "bert": Whole(
        encoder, ("input_ids", "attention_mask", "token_type_ids"), "last_hidden_state", "hidden_size",
        lambda config: other_activation(config, "hidden_act", "gelu"),
    ),
}  # fmt: skip
"""By ``model_type`` of config.json."""
