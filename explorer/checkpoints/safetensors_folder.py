"""Targets that are a folder of safetensors: the model's own tensors, and those that a layer becomes."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints.folder import Shards, room_of
from explorer.checkpoints.model import CONFIG
from explorer.checkpoints.target import ExportJob, Plan
from explorer.core.quantize import QuantizedTensor
from explorer.export.files import write_tensors
from explorer.formats import E4M3
from explorer.schemes import SCHEMES, Scheme, tensor_scale_for
from explorer.sources.base import TensorInfo
from explorer.sources.safetensors_header import NAMES

Layer = Callable[[QuantizedTensor, torch.dtype], dict[str, Tensor]]
"""(codes, the model's dtype) -> tensors by suffix of the layer's name: ".weight_packed"."""
Settings = Callable[[Plan], dict[str, Any]]
"""Entries added to config.json: ``quantization_config``, and settings that have to change with it."""
_SIZES = {name: dtype.itemsize for dtype, name in NAMES.items()}
_HEADER_ENTRY, _PARTS = 130, 8
"""Upper bounds: bytes of one tensor's header entry without its layer's name, and tensors per layer."""


def write_model(
    job: ExportJob,
    layer: Layer,
    settings: Settings,
    more: Mapping[str, Tensor] | None = None,
    own: Callable[[str], Layer] | None = None,
    apart: bool = False,
) -> None:
    """Write all tensors of the model, ``more`` of other names, and its changed configuration into the job's
    folder. ``own``: what writes a layer by its name, in place of ``layer``. ``apart``: experts of a
    class that the reader replaces are written one by one (``ModelFolder.taken_apart``)."""
    model = job.plan.model
    shards = Shards(job.folder, job.plan.file_bytes, _header_bytes(job.plan))
    for info in model.infos:
        writer = own(info.name.removesuffix(".weight")) if own else layer
        taken = model.taken_apart(info.name) if apart else {}
        whole = model.read(info.name) if taken else None
        for name, of in taken.items():
            assert whole is not None
            shards.add(name, of(whole))
        for name, tensor in () if taken else _tensors_of(info.name, job, writer).items():
            shards.add(name, tensor)
        job.step()
    for name, tensor in (more or {}).items():
        shards.add(name, tensor)
    shards.close()
    config = model.config | settings(job.plan)
    (job.folder / CONFIG).write_text(json.dumps(config, indent=2), encoding="utf-8")


def _header_bytes(plan: Plan) -> int:
    """Room for the header of each file."""
    coded = {f"{name}.weight" for name in plan.layers}
    entries = [
        (_PARTS if info.name in coded else len(plan.model.taken_apart(info.name)) or 1)
        * (len(info.name) + _HEADER_ENTRY)
        for info in plan.model.infos
    ]
    return sum(entries)


def around(plan: Plan) -> int:
    """See ``Export.around``; of layers of at most 16 bits a weight, which decide on the number of files."""
    coded = {f"{name}.weight" for name in plan.layers}
    kept = sum(bytes_of(info) for info in plan.model.infos if info.name not in coded)
    most = kept + sum(2 * info.elements for info in plan.model.infos if info.name in coded)
    files = 1 + int(2 * most / plan.file_bytes)  # two that follow each other are longer than one may be
    return kept + files * room_of(_header_bytes(plan))


def bytes_of(info: TensorInfo) -> int:
    """Bytes of a tensor in the dtype that its header entry names."""
    return info.elements * _SIZES[info.dtype]


def _tensors_of(tensor: str, job: ExportJob, layer: Layer) -> dict[str, Tensor]:
    plan, name = job.plan, tensor.removesuffix(".weight")
    if not tensor.endswith(".weight") or name not in plan.layers:
        return {tensor: plan.model.read(tensor)}
    q = job.layer(name)
    dtype = q.scheme.plain_dtype
    if dtype is not None:
        return {tensor: q.dequantize(dtype)}
    parts = {name + suffix: part for suffix, part in layer(q, job.dtype).items()}
    if name in plan.input_scales:
        parts |= _input_scale(name, plan.input_schemes[name], plan.input_scales[name])
    return parts


def _input_scale(name: str, inputs: Scheme, scale: float) -> dict[str, Tensor]:
    """The fixed scale of a layer's inputs as compressed-tensors names it; that of block scales divides, and
    is rounded as its library does in models of 16 bits."""
    if inputs.block == (None, None):
        return {f"{name}.input_scale": torch.tensor([scale])}
    largest = torch.tensor(scale * inputs.format.max * E4M3.max)
    return {f"{name}.input_global_scale": tensor_scale_for(largest, SCHEMES["nvfp4_vllm"]).reshape(1)}


def one(layer: Layer) -> Callable[[QuantizedTensor, str, Path], None]:
    """The writer of one tensor in the layout of ``layer``, for a model in float32."""

    def write(q: QuantizedTensor, name: str, path: Path) -> None:
        dtype = q.scheme.plain_dtype
        parts = {".weight": q.dequantize(dtype)} if dtype is not None else layer(q, torch.float32)
        write_tensors({name + suffix: part.contiguous() for suffix, part in parts.items()}, path, {})

    return write


def quantization_config(**settings: Any) -> dict[str, Any]:
    """The entry of config.json that transformers and serving engines look for."""
    return {"quantization_config": settings}


def opened(plan: Plan, packages: str, dtype: str) -> str:
    """Return the code that opens the folder with transformers, and the packages that it needs."""
    auto = plan.model.auto_class
    return (
        f"from transformers import {auto}  # pip install {packages}\n\n"
        f'model = {auto}.from_pretrained("this folder", dtype="{dtype}")'
    )
