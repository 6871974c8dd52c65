"""Targets that are a folder of safetensors files: layers of codes in the target's tensors, all others as they
are."""

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
from explorer.sources.coded import SETTINGS
from explorer.sources.safetensors_header import bytes_of

Layer = Callable[[QuantizedTensor, torch.dtype], dict[str, Tensor]]
"""(codes, the model's dtype) -> tensors by suffix of the layer's name: ".weight_packed"."""
Settings = Callable[[Plan], dict[str, Any]]
"""``quantization_config`` of config.json, which transformers and serving engines look for."""
_HEADER_ENTRY, _PARTS = 130, 8
"""Upper bounds: the bytes of a tensor's header entry without its layer's name, and the tensors of a layer."""


def write_model(
    job: ExportJob,
    layer: Layer,
    settings: Settings,
    more: Mapping[str, Tensor] | None = None,
    own: Callable[[str], Layer] | None = None,
    apart: bool = False,
    config: Mapping[str, Any] | None = None,
) -> None:
    """Write the model into the job's folder: its tensors, ``more`` tensors, and its changed configuration.

    ``own``: layer -> its writer, in place of ``layer``. ``config``: further entries of config.json.
    ``apart``: experts of a class that the reader replaces are written one by one
    (``ModelFolder.taken_apart``).
    """
    model = job.plan.model
    shards = Shards(job.folder, job.plan.file_bytes, _header_bytes(job.plan))
    for info in model.infos:
        if apart and (parts := model.taken_apart(info.name)):
            whole = model.read(info.name)
            for name, of in parts.items():
                shards.add(name, of(whole))
        else:
            writer = own(info.name.removesuffix(".weight")) if own else layer
            for name, tensor in _tensors_of(info.name, job, writer).items():
                shards.add(name, tensor)
        job.step()
    for name, tensor in (more or {}).items():
        shards.add(name, tensor)
    shards.close()
    entries = model.config | {SETTINGS: settings(job.plan)} | dict(config or {})
    (job.folder / CONFIG).write_text(json.dumps(entries, indent=2), encoding="utf-8")


def _header_bytes(plan: Plan) -> int:
    """Room for the header of each file."""
    total = 0
    for info in plan.model.infos:
        parts = _PARTS if plan.layer_of(info.name) else len(plan.model.taken_apart(info.name)) or 1
        total += parts * (len(info.name) + _HEADER_ENTRY)
    return total


def around(plan: Plan) -> int:
    """See ``Export.around``. The number of files is estimated for layers of 16 bits per weight."""
    kept = sum(bytes_of(info) for info in plan.model.infos if not plan.layer_of(info.name))
    most = kept + sum(2 * info.elements for info in plan.model.infos if plan.layer_of(info.name))
    files = 1 + int(2 * most / plan.file_bytes)  # two that follow each other are longer than one may be
    return kept + files * room_of(_header_bytes(plan))


def _tensors_of(tensor: str, job: ExportJob, layer: Layer) -> dict[str, Tensor]:
    plan = job.plan
    if not (name := plan.layer_of(tensor)):
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
    """The fixed scale of a layer's inputs in compressed-tensors' form. A scale over block scales is stored as
    a divisor, rounded as the library rounds it in models of 16 bits."""
    if inputs.block == (None, None):
        return {f"{name}.input_scale": torch.tensor([scale])}
    largest = torch.tensor(scale * inputs.format.max * E4M3.max)
    return {f"{name}.input_global_scale": tensor_scale_for(largest, SCHEMES["nvfp4_vllm"]).reshape(1)}


def one(layer: Layer) -> Callable[[QuantizedTensor, str, Path], None]:
    """Return a writer of one tensor in the layout of ``layer``, for a model in float32."""

    def write(q: QuantizedTensor, name: str, path: Path) -> None:
        dtype = q.scheme.plain_dtype
        parts = {".weight": q.dequantize(dtype)} if dtype is not None else layer(q, torch.float32)
        write_tensors({name + suffix: part.contiguous() for suffix, part in parts.items()}, path, {})

    return write


def kept(plan: Plan) -> list[str]:
    """Name the layers without codes, as in the files."""
    return [name for name in plan.model.matrices if name not in plan.coded]


def not_coded(plan: Plan) -> list[str]:
    """Name the layers without codes, as in the files and in the reader's network."""
    coded = {plan.model.place(name).module for name in plan.coded}
    linear = plan.model.skeleton.linear if plan.model.skeleton else ("lm_head",)
    return list(dict.fromkeys([*kept(plan), *(path for path in linear if path not in coded)]))


def opened(plan: Plan, packages: str, dtype: str) -> str:
    """Return the code that opens the folder with transformers, and the packages that it needs."""
    auto = plan.model.auto_class
    return (
        f"from transformers import {auto}  # pip install {packages}\n\n"
        f'model = {auto}.from_pretrained("this folder", dtype="{dtype}")'
    )
