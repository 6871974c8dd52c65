"""What a tensor of a model is for, told by its name: role, kind and depth, and which layers are fused.

Names are those of transformers' checkpoints and of GGUF files.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from enum import StrEnum

from explorer.methods.recipe import Recipe
from explorer.models.skeleton import WEIGHT as SUFFIX
from explorer.models.skeleton import Skeleton, is_expert
from explorer.sources import coded, gguf_file
from explorer.sources.base import TensorInfo

FLOATS = {"F64", "F32", "F16", "BF16", "float64", "float32", "float16", "bfloat16"}
"""The file's names of dtypes that hold a weight as it was trained; codes of 8 bits have their scales
elsewhere."""


def itemsize(dtype: str) -> float:
    """Bytes of an element of a file's ``dtype``, by the bits in its name ("BF16", "int64"); 1 where it names
    none. Of weights in codes with scales the bytes of both; 2 for the coded tensors of GGUF files, which are
    restored to 16 bits."""
    if (stored := coded.stored_bits(dtype)) is not None:
        return stored / 8
    bits = re.search(r"\d+", dtype)
    return 2 if dtype.startswith(gguf_file.CODED) else max(int(bits[0]) // 8, 1) if bits else 1


class Role(StrEnum):
    """Linear layers are quantized; the head and embeddings are listed and stay as they are unless asked
    for. Experts that are one tensor of three axes are listed and stay as they are: no target carries them."""

    LINEAR = "linear"
    HEAD = "head"
    EMBEDDING = "embedding"
    EXPERTS = "experts"


_EMBEDDINGS = re.compile(r"embed|_embd\b|\bwte\b|\bwpe\b|relative_attention_bias|rotary")
_HEADS = re.compile(r"(^|\.)(lm_head|embed_out|score|classifier)$|^output$")
_NOT_LINEAR = re.compile(r"norm|\bln_|conv", re.IGNORECASE)
_STACKED = re.compile(r"\.experts\.[^.]+$|_exps(\.weight)?$")
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
}
"""Of each kind of layer the last parts of its names; the longest that matches counts."""
FUSED = (("query", "key", "value"), ("gate", "up"))
"""Kinds that serving engines multiply as one matrix: parts of one must share a scheme."""
_ENDINGS = sorted(
    ((ending, kind) for kind, endings in _KINDS.items() for ending in endings), key=lambda e: -len(e[0])
)


def role_of(info: TensorInfo, network: Skeleton | None = None) -> Role | None:
    """The role of the tensor ``info`` in a survey; None for norms, biases, convolutions, and codes.

    ``network`` decides which matrices are linear layers, and leaves out those beside its language part;
    without one their names do.
    """
    name = info.name.removesuffix(SUFFIX)
    holds_weights = info.dtype in FLOATS or info.dtype.startswith((*gguf_file.CODED, *coded.CODED))
    if not holds_weights or min(info.shape, default=0) < 2:
        return None
    if len(info.shape) == 3:
        used = network is None or network.holds(network.parameter(info.name)[0])
        return Role.EXPERTS if used and _STACKED.search(info.name) else None
    if name == info.name or len(info.shape) != 2:
        return None
    if network is not None:
        return _role_in(network, name, info.shape)
    if _HEADS.search(name):
        return Role.HEAD
    if _EMBEDDINGS.search(name):
        return Role.EMBEDDING
    return None if _NOT_LINEAR.search(name) else Role.LINEAR


def _role_in(network: Skeleton, name: str, shape: tuple[int, ...]) -> Role | None:
    place = network.place(name, shape)
    if place.experts:
        return Role.LINEAR
    if not place.module:
        return Role.EMBEDDING if network.is_embedding(name) else None
    if _HEADS.search(name):
        return Role.HEAD
    return Role.LINEAR if place.module.startswith(network.language) else None


def kind_of(layer: str) -> str:
    """The kind of a layer ("query", "up", ...), "other" where its name says none."""
    for ending, kind in _ENDINGS:
        if layer == ending or layer.endswith(f".{ending}"):
            return kind
    return "other"


def depth_of(layer: str) -> int | None:
    """Which of the model's blocks the layer is in, from 0; None outside of them."""
    number = re.search(r"\.(\d+)\.", f".{layer}.")
    return int(number[1]) if number else None


def sharing(recipes: Mapping[str, Recipe]) -> list[tuple[str, ...]]:
    """Of the groups of fused layers those with a scale of the whole tensor, which has to be the same for all
    of a group: two levels, as NVFP4, or one scale a tensor. Layers by methods are left out."""
    shared = []
    for group in fused_groups(recipes):
        same = {str(recipes[name]) for name in group}
        one = recipes[group[0]]
        rule, whole = one.scheme.scale, one.scheme.block == (None, None)
        if len(group) > 1 and len(same) == 1 and not one.method and rule and (rule.per_tensor or whole):
            shared.append(group)
    return shared


def fused_groups(layers: Iterable[str]) -> list[tuple[str, ...]]:
    """``layers`` in groups that serving engines fuse, each other one by itself; the order is kept."""
    groups: dict[tuple[str, Sequence[str]], list[str]] = {}
    for layer in layers:
        kind = kind_of(layer)
        fused = next((kinds for kinds in FUSED if kind in kinds), None)
        key = (layer.rpartition(".")[0], fused) if fused else (layer, ())
        groups.setdefault(key, []).append(layer)
    return [tuple(group) for group in groups.values()]


def scheme_groups(layers: Iterable[str], fuse: bool = True) -> list[tuple[str, ...]]:
    """``layers`` in groups that must have one scheme: those of ``fused_groups`` if ``fuse``, and all experts
    of a model, which engines and transformers read by one scheme; the order of the first of each is kept."""
    groups: dict[object, list[str]] = {}
    for group in fused_groups(layers) if fuse else ((layer,) for layer in layers):
        model = group[0].partition(".layers.")[0]
        groups.setdefault(model if is_expert(group[0]) else group, []).extend(group)
    return [tuple(group) for group in groups.values()]
