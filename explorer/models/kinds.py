"""Kind and depth of a layer by its name, and groups of layers that serving engines multiply as one. The
layers of a group need one scheme, and one scale of the whole tensor.

Names are those of transformers' checkpoints and of GGUF files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

from explorer.methods.recipe import Recipe
from explorer.models.skeleton import is_expert
from explorer.schemes import Scheme

_KINDS: dict[str, tuple[str, ...]] = {
    "query": ("q_proj", "query", "q_lin", "attn_q", "q"),
    "key": ("k_proj", "key", "k_lin", "attn_k", "k"),
    "value": ("v_proj", "value", "v_lin", "attn_v", "v"),
    "query, key, value": ("qkv_proj", "query_key_value", "Wqkv", "attn_qkv", "in_proj", "c_attn"),
    "attention output": ("o_proj", "attention.output.dense", "out_lin", "attn_output", "out_proj", "o"),
    "gate": ("gate_proj", "w1", "ffn_gate", "wi_0"),
    "up": ("up_proj", "w3", "intermediate.dense", "ffn_up", "fc1", "lin1", "wi", "wi_1", "c_fc"),
    "gate, up": ("gate_up_proj",),
    "down": ("down_proj", "w2", "output.dense", "ffn_down", "fc2", "lin2", "wo", "c_proj"),
    "embeddings": ("embed_tokens", "word_embeddings", "wte", "token_embd", "tok_embeddings"),
    "head": ("lm_head", "embed_out"),
}
"""Endings of the names of each kind of layer; the longest that matches counts."""
FUSED = (("query", "key", "value"), ("gate", "up"))
"""Kinds that serving engines multiply as one matrix."""
KINDS = (*_KINDS, "other")
_ENDINGS = sorted(
    ((ending, kind) for kind, endings in _KINDS.items() for ending in endings), key=lambda e: -len(e[0])
)


def kind_of(layer: str) -> str:
    """The kind of a layer ("query", "up", ...); "other" for unknown names."""
    for ending, kind in _ENDINGS:
        if layer == ending or layer.endswith(f".{ending}"):
            return kind
    return "other"


def depth_of(layer: str) -> int | None:
    """The index from 0 of the layer's block in the model; None outside of blocks."""
    number = re.search(r"\.(\d+)\.", f".{layer}.")
    return int(number[1]) if number else None


def fused_groups(layers: Iterable[str]) -> list[tuple[str, ...]]:
    """Group ``layers`` that serving engines fuse; every other layer is a group of its own. The order is
    kept."""
    groups: dict[object, list[str]] = {}
    for layer in layers:
        fused = next((kinds for kinds in FUSED if kind_of(layer) in kinds), None)
        groups.setdefault((layer.rpartition(".")[0], fused) if fused else layer, []).append(layer)
    return [tuple(group) for group in groups.values()]


def scheme_groups(layers: Iterable[str], fuse: bool = True) -> list[tuple[str, ...]]:
    """Group ``layers`` that must have one scheme: the ``fused_groups`` if ``fuse``, and all experts of a
    model, which engines and transformers read by one scheme. Groups are in the order of their first layers.
    """
    groups: dict[object, list[str]] = {}
    for group in fused_groups(layers) if fuse else ((layer,) for layer in layers):
        model = group[0].partition(".layers.")[0]
        groups.setdefault(model if is_expert(group[0]) else group, []).extend(group)
    return [tuple(group) for group in groups.values()]


def has_one_scale(scheme: Scheme) -> bool:
    """True for a scheme with a scale of the whole tensor: alone, or above block scales as in NVFP4."""
    rule = scheme.scale
    return rule is not None and (rule.per_tensor or scheme.block == (None, None))


def sharing(recipes: Mapping[str, Recipe]) -> list[tuple[str, ...]]:
    """Find the groups of fused layers whose schemes have a scale of the whole tensor: a group must share it.
    Layers by methods are left out."""
    shared = []
    for group in fused_groups(recipes):
        one, *others = (recipes[name] for name in group)
        alike = others and all(str(other) == str(one) for other in others)
        if alike and not one.method and has_one_scale(one.scheme):
            shared.append(group)
    return shared
