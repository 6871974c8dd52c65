"""GGUF, the format of llama.cpp and programs built on it. Each tensor has its own type of ggml, which holds a
scheme bit for bit (``export.ggml``), so that recipes may be mixed. Vectors are stored in float32, other
matrices in their own dtype."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from torch import Tensor

from explorer.checkpoints import gguf_models
from explorer.checkpoints.gguf_model import ALIGNMENT, tensor_names
from explorer.checkpoints.gguf_models import ARCHITECTURES, Architecture
from explorer.checkpoints.gguf_vocabulary import vocabulary
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Export, ExportJob, Plan, Shape, needed
from explorer.core.quantize import QuantizedTensor
from explorer.export.ggml import ggml_type, row_bytes, row_multiple
from explorer.models.skeleton import LayerPlace
from explorer.schemes import MappingType, Scheme

NAME = "gguf"
_INPUTS = "its reader decides how inputs are quantized"
FILE = "model.gguf"
_DTYPES = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}
GUESSED = 1024
"""llama.cpp's file type for a file whose tensors have several types."""


def refuses(scheme: Scheme, shape: Shape) -> str:
    """Reason why no type of ggml holds a layer [N, K] by ``scheme``, or an empty text."""
    if ggml_type(scheme) is None:
        integers = scheme.mapping is MappingType.ASYMMETRIC and scheme.block == (1, 32)
        hint = "; q4_1 and q5_1 have a minimum in place of a zero point" if integers else ""
        return f"no type of ggml holds {scheme.label} as it is{hint}"
    multiple = row_multiple(scheme)
    if shape[1] % multiple:
        kind = "super-blocks" if scheme.scale and scheme.scale.super_bits is not None else "blocks"
        return f"a row of {shape[1]} values is no whole number of {kind} of {multiple}"
    return ""


def together(plan: Plan) -> str:
    """Reason why the file cannot hold this model, its tokenizer or one of its tensors, or an empty text."""
    config = plan.model.config
    if plan.input_schemes:
        return _INPUTS
    if why := gguf_models.refusal(config):
        return why
    try:
        vocabulary(plan.model.folder, config["vocab_size"])
        gguf_models.pooling(plan.model.folder)
        placed = _places(plan)
    except ValueError as error:
        return str(error)
    left = [name for name in plan.coded if f"{name}.weight" not in placed]
    return f"the file has no place for {left[0]}" if left else ""


def _places(plan: Plan) -> dict[str, str]:
    """Tensor of the model -> name in the file. ``ValueError`` for a tensor that is needed and has none."""
    architecture = ARCHITECTURES[plan.model.type]
    names = tensor_names(architecture.name, plan.model.config["num_hidden_layers"])
    found: dict[str, str] = {}
    for info in plan.model.infos:
        if plan.model.tied and info.name == "lm_head.weight":
            continue  # the embeddings are the head
        place = names.get_name(info.name, try_suffixes=(".weight", ".bias"))
        if place is not None:
            found[info.name] = place
        elif not info.name.endswith(architecture.left_out):
            raise ValueError(f"the file has no place for {info.name}")
    return found


def place(model: ModelFolder, layer: str, scheme: Scheme) -> LayerPlace:
    """See ``Export.place``. The table of token embeddings can hold codes, too."""
    if model.skeleton is not None and model.is_table(layer):
        return LayerPlace(model.skeleton.table)
    return model.place(layer)


def write(job: ExportJob) -> None:
    """Write all of the model into one file."""
    plan = job.plan
    places, factors = _places(plan), gguf_models.rope_factors(plan.model.config)
    writer = _begun(plan, places, factors, job.folder / FILE)
    for info in plan.model.infos:
        if info.name in places:
            data = _data(job, info.name, ARCHITECTURES[plan.model.type])
            writer.write_tensor_data(data.numpy())
        job.step()
    if factors is not None:
        writer.write_tensor_data(factors.numpy())
    writer.close()


def around(plan: Plan) -> int:
    """See ``Export.around``: the header with metadata and vocabulary, all other tensors in their types, and
    the padding after each tensor (after layers, the most that it can be)."""
    places, factors = _places(plan), gguf_models.rope_factors(plan.model.config)
    with TemporaryDirectory() as folder:
        path = Path(folder) / FILE
        _begun(plan, places, factors, path).close()
        size = _padded(path.stat().st_size)
    for name in places:
        if plan.layer_of(name):
            size += ALIGNMENT - 1
        else:
            size += _padded(plan.model.info(name).elements * _DTYPES[_type_of(plan, name)].itemsize)
    return size + (0 if factors is None else _padded(factors.nbytes))


def _padded(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def _begun(plan: Plan, places: Mapping[str, str], factors: Tensor | None, path: Path) -> Any:
    """Return a writer whose file has everything before the tensors' data."""
    gguf = needed("gguf", NAME)
    config, architecture = plan.model.config, ARCHITECTURES[plan.model.type]
    writer = gguf.GGUFWriter(path, architecture.name)
    writer.add_name(plan.model.folder.name)
    writer.add_file_type(GUESSED)
    for key, value in architecture.settings(config).items():
        _add(writer, f"{architecture.name}.{key}", value)
    if (pooling := gguf_models.pooling(plan.model.folder)) is not None:
        _add(writer, f"{architecture.name}.pooling_type", pooling)
    _add_vocabulary(writer, plan)
    for name, place in places.items():
        announce(writer, place, plan.model.info(name).shape, _type_of(plan, name))
    if factors is not None:
        announce(writer, "rope_freqs.weight", tuple(factors.shape), "F32")
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    return writer


def _add(writer: Any, key: str, value: Any) -> None:
    if isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_uint32(key, value)


def _add_vocabulary(writer: Any, plan: Plan) -> None:
    gguf = needed("gguf", NAME)
    tokens = vocabulary(plan.model.folder, plan.model.config["vocab_size"])
    writer.add_tokenizer_model(tokens["model"])
    writer.add_tokenizer_pre(tokens["pre"])
    writer.add_token_list(tokens["tokens"])
    writer.add_token_types(tokens["token_type"])
    if "scores" in tokens:
        writer.add_token_scores(tokens["scores"])
    if "space_prefix" in tokens:
        writer.add_add_space_prefix(tokens["space_prefix"])
    if "merges" in tokens:
        writer.add_token_merges(tokens["merges"])
    if "type_vocab_size" in plan.model.config:
        writer.add_token_type_count(plan.model.config["type_vocab_size"])
    special = gguf.SpecialVocab(plan.model.folder, n_vocab=len(tokens["tokens"]))
    if tokens["model"] != "bert":  # otherwise llama.cpp begins texts of some kinds with it
        special.add_special_token.setdefault("bos", False)
    special.add_to_gguf(writer, quiet=True)


def _type_of(plan: Plan, tensor: str) -> str:
    """ggml's type of a tensor of the model."""
    if layer := plan.layer_of(tensor):
        return str(ggml_type(plan.layers[layer].scheme))
    info = plan.model.info(tensor)
    return {"F16": "F16", "BF16": "BF16"}.get(info.dtype, "F32") if len(info.shape) > 1 else "F32"


def announce(writer: Any, name: str, shape: tuple[int, ...], kind: str) -> None:
    """Enter a tensor of ``shape`` (in torch's order) and ggml's type ``kind`` in the header."""
    gguf = needed("gguf", NAME)
    qtype = gguf.GGMLQuantizationType[kind]
    stored = gguf.quant_shape_to_byte_shape(shape, qtype)
    writer.add_tensor_info(name, stored, np.dtype(np.uint8), math.prod(stored), qtype)


def _data(job: ExportJob, tensor: str, architecture: Architecture) -> Tensor:
    """Encode one tensor: uint8 [rows, bytes of a row]."""
    plan = job.plan
    if layer := plan.layer_of(tensor):
        raw = row_bytes(job.layer(layer))
    else:
        values = plan.model.read(tensor).to(_DTYPES[_type_of(plan, tensor)]).contiguous()
        raw = values.view(len(values), -1).view(torch.uint8)
    heads = gguf_models.pairs_of(tensor, architecture, plan.model.config)
    return (raw if heads is None else gguf_models.in_pairs(raw, heads)).contiguous()


def one(q: QuantizedTensor, name: str, path: Path) -> None:
    """Write a file with one tensor and no model."""
    gguf = needed("gguf", NAME)
    kind = gguf.GGMLQuantizationType[ggml_type(q.scheme)]
    writer = gguf.GGUFWriter(path, "none")
    raw = row_bytes(q).contiguous().numpy()
    writer.add_tensor(f"{name}.weight", raw, raw_shape=raw.shape, raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


def load(plan: Plan) -> str:
    """Return the code that opens the file."""
    if plan.model.type == "bert":  # transformers does not open it from GGUF
        return f"# llama.cpp: llama-embedding -m {FILE}"
    return (
        f"# llama.cpp: llama-cli -m {FILE}\n"
        f"from transformers import {plan.model.auto_class}  # pip install gguf accelerate\n\n"
        f'model = {plan.model.auto_class}.from_pretrained("this folder", gguf_file="{FILE}")'
    )


EXPORT = Export(
    NAME,
    "GGUF",
    "what llama.cpp, Ollama and LM Studio load",
    "gguf 0.19.0, transformers and llama.cpp (xllamacpp)",
    "equal; llama.cpp also rounds the inputs of its products to 8 bits",
    refuses,
    together,
    write,
    one,
    load,
    ".gguf",
    usual=("q4_k", "q4_0", "q6_k", "q5_0", "q8_0"),
    multiplies=lambda inputs, scheme: _INPUTS,
    around=around,
    place=place,
    tables=True,
)
