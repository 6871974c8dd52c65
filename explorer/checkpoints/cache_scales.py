"""The quantization of keys and values in compressed-tensors: ``kv_cache_scheme``, and two scales for each
layer.

The entry of config.json describes FP8 with a fixed scale for the keys of a layer and one for its values. They
are ``k_scale`` and ``v_scale`` F32 [1] beside the layer's projections, as llm-compressor writes them
(compressed-tensors 0.20, ``quantization/lifecycle/initialize.py``). A cast without a scale has 1.
"""

from __future__ import annotations

import re
from typing import Any

import torch
from torch import Tensor

from explorer.analysis.cache import KEYS, VALUES, CachePlan, as_they_come
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Plan

FORMAT = "float8_e4m3fn"
_NAMES = {KEYS: "k_scale", VALUES: "v_scale"}
_PROJECTION = re.compile(r"((?:.*\.)?layers\.(\d+)\..*)\.(?:k_proj|qkv_proj|query_key_value)\.weight")


def refusal(model: ModelFolder | None, cache: CachePlan) -> str:
    """Reason why a checkpoint cannot state how keys and values are stored; empty if it can."""
    saying = "kv_cache_scheme says FP8 E4M3 by one fixed scale a layer, of keys and values (fp8_e4m3_tensor)"
    for _, scheme in cache.parts:
        if scheme is None or not as_they_come(scheme) or scheme.format.name != FORMAT:
            return saying
    if cache.recent or cache.rotated:
        what = "a Hadamard matrix" if cache.rotated else "tokens that stay exact"
        return f"{saying}, and not {what}"
    if model is not None and not _attention(model):
        return "its attention layers are not found by the names of their projections"
    return ""


def settings(plan: Plan) -> dict[str, Any] | None:
    """The entry of config.json; None if keys and values are not quantized."""
    if plan.cache is None:
        return None
    return {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}


def tensors(plan: Plan) -> dict[str, Tensor]:
    """Name of a tensor -> scale; empty if keys and values are not quantized. ``ValueError`` for a layer
    without a scale."""
    found = {}
    for part, scheme in plan.cache.parts if plan.cache else ():
        for layer, attention in _attention(plan.model).items():
            scale = plan.cache_scales.get(f"layers.{layer}.{part}")
            if scale is None and scheme is not None and scheme.scale is not None:
                raise ValueError(f"{attention}: the fixed scale of its {part} is not known")
            found[f"{attention}.{_NAMES[part]}"] = torch.tensor([1.0 if scale is None else scale])
    return found


def _attention(model: ModelFolder) -> dict[int, str]:
    """Number of a layer -> its attention; empty if two have the same number, as in models with a vision
    part."""
    found: dict[int, str] = {}
    for info in model.infos:
        if (match := _PROJECTION.fullmatch(info.name)) is None:
            continue
        if int(match[2]) in found:
            return {}
        found[int(match[2])] = match[1]
    return found
