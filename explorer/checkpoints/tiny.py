"""What a reader makes of a tiny copy of a model, which is known before the model is surveyed.

configuration -> the same kind of network, a few layers of a few channels, random weights
              -> written for a target with all its layers in codes, opened and run (``verify``)
"""

from __future__ import annotations

import copy
import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.table import export_of
from explorer.checkpoints.target import Export, Plan
from explorer.checkpoints.verify import obstacle
from explorer.checkpoints.write import Request, checked, export
from explorer.methods.recipe import Recipe
from explorer.models.skeleton import class_of
from explorer.schemes import SCHEMES
from explorer.sources.base import SourceError, first_line
from explorer.sources.coded import SETTINGS

_SMALL: Mapping[str, int] = {
    **dict.fromkeys(("hidden_size", "d_model", "n_embd", "dim", "lru_width", "word_embed_proj_dim"), 128),
    **dict.fromkeys(("intermediate_size", "ffn_dim", "d_ff", "n_inner", "ffn_hidden_size"), 256),
    **dict.fromkeys(
        ("moe_intermediate_size", "shared_expert_intermediate_size", "expert_ffn_hidden_size"), 128
    ),
    **dict.fromkeys(("num_attention_heads", "num_heads", "n_head", "linear_num_value_heads"), 4),
    **dict.fromkeys(("head_dim", "qk_nope_head_dim", "qk_rope_head_dim", "v_head_dim", "d_kv"), 32),
    **dict.fromkeys(("linear_key_head_dim", "linear_value_head_dim", "index_head_dim"), 32),
    **dict.fromkeys(("q_lora_rank", "kv_lora_rank", "o_lora_rank"), 64),
    **dict.fromkeys(("n_routed_experts", "num_experts", "num_local_experts", "moe_num_experts"), 4),
    **dict.fromkeys(("num_experts_per_tok", "moe_topk", "moe_k", "topk_group", "n_group"), 2),
    **dict.fromkeys(("linear_num_key_heads", "num_key_value_heads", "index_n_heads"), 2),
    "vocab_size": 256,
    "max_position_embeddings": 256,
}
"""Settings of configurations, and the largest number that a copy has there. Others stay."""
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_MOST_LAYERS = 12


def reader_refusal(target: str, model: ModelFolder) -> str:
    """Why the reader of ``target`` cannot open or run such a model with codes, in the reader's words; empty if
    it can, and where that is not known: no reader here, or a configuration that no small copy is made of."""
    row = export_of(target)
    with tempfile.TemporaryDirectory() as room:
        try:
            copied = tiny_copy(model, Path(room) / "tiny")
        except Exception:  # transformers raises whatever a configuration makes it raise
            return ""
        plan = _plan(row, ModelFolder(copied))
        if plan is None or obstacle(row, plan):
            return ""
        try:
            export(Request(target, plan, Path(room) / "out", verified=True))
        except (ValueError, SourceError) as error:
            return f"of a tiny copy of this configuration, {first_line(error)}"
    return ""


def tiny_copy(model: ModelFolder, out: Path) -> Path:
    """Write a model of the same kind with few and small layers of random weights into ``out``, and run it
    once. Raises what transformers does where that fails."""
    config = shrunk(model.settings)
    torch.manual_seed(0)
    network = class_of(config, model.auto_class)(config).to(model.dtype).eval()
    ids = torch.arange(100, 108)[None]
    asked = {"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {}
    with torch.no_grad():
        network(input_ids=ids, **asked)
    network.save_pretrained(out)
    return out


def shrunk(config: Any) -> Any:
    """The configuration with small settings, in its parts too. Kinds of layers that take turns all stay."""
    made = copy.deepcopy(config)
    if hasattr(made, SETTINGS):
        del made.quantization_config
    for part in (made, *(getattr(made, name) for name in made.sub_configs or {} if hasattr(made, name))):
        _shrink(part)
    return made


def _shrink(part: Any) -> None:
    """Make the settings of one part small, in place."""
    for key, most in _SMALL.items():
        value = getattr(part, key, None)
        if isinstance(value, int) and not isinstance(value, bool):
            setattr(part, key, min(value, most))
    for key, value in list(part.to_dict().items()):
        if key.endswith("token_id") and isinstance(value, int) and value >= _SMALL["vocab_size"]:
            setattr(part, key, 0)
    name = next((name for name in _LAYERS if isinstance(getattr(part, name, None), int)), "")
    if not name:
        return
    whole = getattr(part, name)
    kinds = [value for key, value in vars(part).items() if isinstance(value, list) and len(value) == whole]
    count = min(whole, 2)
    while count < min(whole, _MOST_LAYERS) and any(
        set(map(str, k[:count])) < set(map(str, k)) for k in kinds
    ):
        count += 1
    for key, value in list(vars(part).items()):
        if isinstance(value, list) and len(value) == whole:
            setattr(part, key, value[:count])
    if isinstance(getattr(part, "first_k_dense_replace", None), int):
        part.first_k_dense_replace = min(part.first_k_dense_replace, 1)
    setattr(part, name, count)


def _plan(row: Export, model: ModelFolder) -> Plan | None:
    """All layers that the target can hold codes of, by the first of its schemes that serves all; None if there
    is none."""
    for scheme in (*row.usual, "int4_group32", "nf4_block64", "q4_0", *SCHEMES):
        recipe = Recipe(SCHEMES[scheme])
        names = [
            name
            for name in model.matrices
            if not (model.is_head(name) or model.is_table(name))
            and not row.place(model, name, recipe.scheme).refusal
        ]
        plan = Plan(model, dict.fromkeys(names, recipe))
        try:
            checked(row.name, plan)
        except ValueError:
            continue
        return plan
    return None
