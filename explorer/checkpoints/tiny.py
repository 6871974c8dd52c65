"""Try a target's reader on a tiny copy of a model, before the model is surveyed."""

from __future__ import annotations

import copy
import hashlib
import json
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import redirect_stderr, suppress
from importlib import metadata
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from typing import Any

import torch

from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import SAFETENSORS, Export, Plan
from explorer.checkpoints.targets import export_of
from explorer.checkpoints.verify import PACKAGES, obstacle
from explorer.checkpoints.write import Request, checked, export
from explorer.gpu.compile import cache_folder
from explorer.methods.recipe import Recipe
from explorer.models.skeleton import class_of
from explorer.schemes import SCHEMES
from explorer.sources import open_source
from explorer.sources.base import SourceError, first_line
from explorer.sources.coded import SETTINGS
from explorer.version import __version__

USUAL = "compressed-tensors"
"""The target that is tried before a survey."""
_SMALL: Mapping[str, int] = {
    name: most
    for most, names in {
        256: "vocab_size max_position_embeddings intermediate_size intermediate_size_mlp ffn_dim d_ff "
        "n_inner ffn_hidden_size",
        128: "hidden_size d_model n_embd dim lru_width word_embed_proj_dim moe_intermediate_size "
        "shared_expert_intermediate_size expert_ffn_hidden_size",
        64: "q_lora_rank kv_lora_rank o_lora_rank",
        32: "head_dim qk_nope_head_dim qk_rope_head_dim v_head_dim d_kv linear_key_head_dim "
        "linear_value_head_dim index_head_dim",
        4: "num_attention_heads num_heads n_head linear_num_value_heads n_routed_experts num_experts "
        "num_local_experts moe_num_experts",
        2: "num_experts_per_tok moe_topk moe_k topk_group n_group linear_num_key_heads num_key_value_heads "
        "index_n_heads",
    }.items()
    for name in names.split()
}
"""Setting of a configuration -> its largest value in a copy. Other settings stay."""
_LAYERS = ("num_hidden_layers", "num_layers", "n_layer", "n_layers")
_MOST_LAYERS = 12


def reader_refusal(target: str, model: ModelFolder) -> str:
    """Reason why the reader of ``target`` cannot open or run such a model with codes, in the reader's words.

    Empty if it can, or if that is unknown: no reader is installed, or no small copy can be made. Results are
    kept by configuration in the user's cache folder.
    """
    if model.settings is None or export_of(target).name not in PACKAGES:
        return ""
    packages = ("transformers", "torch", *PACKAGES)
    versions = [metadata.version(one) for one in packages if find_spec(one.replace("-", "_"))]
    told = json.dumps([target, __version__, versions, model.settings.to_dict()], sort_keys=True, default=str)
    kept = cache_folder().with_name("readers") / f"{hashlib.sha256(told.encode()).hexdigest()}.txt"
    with suppress(OSError):  # not tried yet
        return kept.read_text(encoding="utf-8")
    found = tried(target, model)
    with suppress(OSError):  # a folder that cannot be written: it is tried again
        kept.parent.mkdir(parents=True, exist_ok=True)
        kept.write_text(found, encoding="utf-8")
    return found


def check_reader(target: str, model: ModelFolder) -> None:
    """``ValueError`` for a kind of model that the target's reader cannot open or run."""
    if why := reader_refusal(target, model):
        raise ValueError(f"{export_of(target).label} cannot carry this model: {why}")


def note_of(place: str, revision: str | None = None) -> Iterator[str]:
    """Warn, before a survey, that the usual target cannot hold the model at ``place``; empty if it can."""
    paths = open_source(place, revision).paths
    with suppress(SourceError, IndexError):  # what cannot be opened, the survey refuses itself
        if paths[0].suffix == SAFETENSORS and (why := reader_refusal(USUAL, ModelFolder(paths[0].parent))):
            yield f"{USUAL} cannot carry this model, so that no recipe --for it is made: {why}"


def tried(target: str, model: ModelFolder) -> str:
    """Find ``reader_refusal`` by making, writing, opening and running a copy now, which takes seconds."""
    row = export_of(target)
    with tempfile.TemporaryDirectory() as room, redirect_stderr(StringIO()):  # of a copy, not of the model
        try:
            with torch.random.fork_rng(devices=[]):
                torch.manual_seed(0)
                copied = tiny_copy(model, Path(room) / "tiny")
        except Exception:  # transformers raises whatever a configuration makes it raise
            return ""
        plan = _plan(row, ModelFolder(copied))
        if plan is None or obstacle(row, plan):
            return ""
        try:
            export(Request(target, plan, Path(room) / "out", verified=True))
        except OSError:  # no room on the disk
            return ""
        except ValueError as error:
            return f"of a tiny copy of this configuration, {first_line(error)}"
    return ""


def tiny_copy(model: ModelFolder, out: Path) -> Path:
    """Write a model of the same kind with few and small layers of random weights into ``out``, and run it
    once. Errors are those of transformers."""
    config = shrunk(model.settings)
    network: Any = class_of(config, model.auto_class)(config).to(model.dtype).eval()
    ids = torch.arange(100, 108)[None]
    asked = {"decoder_input_ids": ids} if getattr(config, "is_encoder_decoder", False) else {}
    with torch.no_grad():
        network(input_ids=ids, **asked)
    network.save_pretrained(out)
    return out


def shrunk(config: Any) -> Any:
    """The configuration with small settings, in its parts too. All kinds of layers remain."""
    made = copy.deepcopy(config)
    if hasattr(made, SETTINGS):
        del made.quantization_config
    for part in (made, *(getattr(made, name) for name in made.sub_configs or {} if hasattr(made, name))):
        _shrink(part)
    return made


def _shrink(part: Any) -> None:
    """Make the settings of one part small, in place."""
    heads, groups = getattr(part, "num_attention_heads", 0), getattr(part, "num_key_value_heads", None)
    for key, most in _SMALL.items():
        value = getattr(part, key, None)
        if isinstance(value, int) and not isinstance(value, bool):
            with suppress(AttributeError):  # a property of some configurations
                setattr(part, key, min(value, most))
    if groups == heads:
        part.num_key_value_heads = part.num_attention_heads
    if isinstance(getattr(part, "qk_head_dim", None), int):
        part.qk_head_dim = part.qk_nope_head_dim + part.qk_rope_head_dim
    for key, value in list(part.to_dict().items()):
        if key.endswith("token_id") and isinstance(value, int) and value >= _SMALL["vocab_size"]:
            setattr(part, key, 0)
    name = next((name for name in _LAYERS if isinstance(getattr(part, name, None), int)), "")
    if not name:
        return
    whole = getattr(part, name)
    kinds = [value for key, value in vars(part).items() if isinstance(value, list) and len(value) == whole]
    count = min(whole, 4)
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
    """All layers that can hold codes, by the first of the target's usual schemes that fits all; None without
    one."""
    for scheme in (*row.usual, "nf4_block64", "q4_0"):
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
