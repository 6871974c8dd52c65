"""The models that can be written as GGUF files: their metadata, and the order of rows that llama.cpp
expects."""

from __future__ import annotations

import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

Config = dict[str, Any]


@dataclass(frozen=True)
class Architecture:
    """Architecture of llama.cpp.

    ``name``; ``settings``: the metadata below "<name>."; ``left_out``: endings of the names of tensors
    without a place in the file; ``paired``: True if rows of query and key are stored in pairs.
    """

    name: str
    settings: Callable[[Config], dict[str, Any]]
    activation: str
    paired: bool = False
    left_out: tuple[str, ...] = ("rotary_emb.inv_freq", "embeddings.position_ids")


def _sizes(config: Config) -> dict[str, Any]:
    return {
        "context_length": config["max_position_embeddings"],
        "embedding_length": config["hidden_size"],
        "block_count": config["num_hidden_layers"],
        "feed_forward_length": config["intermediate_size"],
        "attention.head_count": config["num_attention_heads"],
    }


def _decoder(config: Config) -> dict[str, Any]:
    return _sizes(config) | {
        "attention.head_count_kv": config.get("num_key_value_heads") or config["num_attention_heads"],
        "attention.layer_norm_rms_epsilon": float(config["rms_norm_eps"]),
        "rope.freq_base": float(rope_of(config).get("rope_theta", 10000.0)),
        "rope.dimension_count": head_length(config),
        "attention.key_length": head_length(config),
        "attention.value_length": head_length(config),
        "vocab_size": config["vocab_size"],
    }


def _encoder(config: Config) -> dict[str, Any]:
    return _sizes(config) | {
        "attention.layer_norm_epsilon": float(config["layer_norm_eps"]),
        "attention.causal": False,
        "vocab_size": config["vocab_size"],
    }


ARCHITECTURES = {
    "llama": Architecture("llama", _decoder, "silu", paired=True),
    "mistral": Architecture("llama", _decoder, "silu", paired=True),
    "qwen2": Architecture("qwen2", _decoder, "silu"),
    "bert": Architecture("bert", _encoder, "gelu", left_out=("embeddings.position_ids", "pooler.dense.weight",
                                                     "pooler.dense.bias")),
}  # fmt: skip
"""Architectures by ``model_type`` of config.json."""


def architecture_of(kind: str) -> str:
    """llama.cpp's name of the architecture of a ``model_type``, or a likely name."""
    return ARCHITECTURES[kind].name if kind in ARCHITECTURES else kind.removesuffix("_text")


_SCALED = ("llama3",)
_POOLING = {
    "pooling_mode_mean_tokens": 1, "pooling_mode_mean": 1, "pooling_mode_cls_token": 2, "pooling_mode_cls": 2,
    "pooling_mode_lasttoken": 3,
}  # fmt: skip
"""Name in sentence-transformers -> ``llama_pooling_type``."""


def refusal(config: Config) -> str:
    """Reason why a model of this configuration cannot be written; empty if it can."""
    kind = config.get("model_type")
    if kind not in ARCHITECTURES:
        return f"its file names the tensors of {', '.join(ARCHITECTURES)} models, not of {kind!r}"
    scaling = rope_of(config).get("rope_type", "default")
    if scaling not in ("default", *_SCALED):
        return f"positions scaled by {scaling!r} are not carried; {', '.join(_SCALED)} is"
    if config.get("hidden_act") != ARCHITECTURES[kind].activation:
        wanted = ARCHITECTURES[kind].activation
        return f"its activation is {config.get('hidden_act')!r}; readers run {kind} models with {wanted!r}"
    try:
        ARCHITECTURES[kind].settings(config)
    except KeyError as missing:
        return f"its config.json does not say {missing}"
    return ""


def pooling(folder: Path) -> int | None:
    """llama.cpp's number of the pooling type that the files of sentence-transformers specify; None if there
    are none. ``ValueError`` for types that llama.cpp does not have."""
    path = folder / "modules.json"
    if not path.is_file():
        return None
    modules = json.loads(path.read_text(encoding="utf-8"))
    places = [m.get("path", "") for m in modules if str(m.get("type", "")).endswith(".Pooling")]
    if not places:
        return None
    settings = folder / places[0] / "config.json"
    if not settings.is_file():
        raise ValueError(f"{path.name} names {places[0]}, whose config.json is not there: fetch it too")
    said = json.loads(settings.read_text(encoding="utf-8"))
    modes = [name for name, on in said.items() if name.startswith("pooling_mode_") and on is True]
    if said.get("pooling_mode"):
        modes = [f"pooling_mode_{said['pooling_mode']}"]
    if len(modes) != 1 or modes[0] not in _POOLING:
        raise ValueError(
            f"llama.cpp pools by {', '.join(n.removeprefix('pooling_mode_') for n in _POOLING)}, not by "
            f"{' and '.join(n.removeprefix('pooling_mode_') for n in modes) or 'nothing'}"
        )
    return _POOLING[modes[0]]


def rope_of(config: Config) -> dict[str, Any]:
    """Return the settings of the position encoding: one object today, two fields in older configurations."""
    old = config.get("rope_scaling") or {}
    kind = old.get("rope_type") or old.get("type") or "default"
    before = {**old, "rope_type": kind}
    if "rope_theta" in config:
        before["rope_theta"] = config["rope_theta"]
    return {**before, **(config.get("rope_parameters") or {})}


def head_length(config: Config) -> int:
    return int(config.get("head_dim") or config["hidden_size"] // config["num_attention_heads"])


def rope_factors(config: Config) -> Tensor | None:
    """Compute the factors of the wavelengths of Llama 3.1's rotations, float32 [head / 2]; None for other
    rotations."""
    rope = rope_of(config)
    if rope.get("rope_type") != "llama3":
        return None
    head = head_length(config)
    base = float(rope.get("rope_theta", 10000.0))
    lengths = [2 * math.pi * base ** (2 * i / head) for i in range(head // 2)]
    old = rope["original_max_position_embeddings"]
    low, high, factor = rope["low_freq_factor"], rope["high_freq_factor"], rope["factor"]

    def of(length: float) -> float:
        if length < old / high:
            return 1.0
        if length > old / low:
            return float(factor)
        share = (old / length - low) / (high - low)
        return float(1 / ((1 - share) / factor + share))

    return torch.tensor([of(length) for length in lengths])


def in_pairs(rows: Tensor, heads: int) -> Tensor:
    """Put rows of query or key [heads · d, …] into llama.cpp's order: row i of a head next to row i + d/2."""
    return rows.unflatten(0, (heads, 2, -1)).transpose(1, 2).flatten(0, 2)


def out_of_pairs(rows: Tensor, heads: int) -> Tensor:
    """Undo ``in_pairs``."""
    return rows.unflatten(0, (heads, -1, 2)).transpose(1, 2).flatten(0, 2)


def pairs_of(name: str, architecture: Architecture, config: Config) -> int | None:
    """The number of heads of a tensor with rows in pairs; None for other tensors."""
    parts = name.split(".")
    if not architecture.paired or len(parts) < 2 or parts[-1] not in ("weight", "bias"):
        return None
    heads = config["num_attention_heads"]
    return {"q_proj": heads, "k_proj": config.get("num_key_value_heads") or heads}.get(parts[-2])
