"""Read checkpoints, plain or quantized, from a folder, a file or the Hub, one weight at a time.

open_checkpoint("folder")   .weights: name -> StoredWeight, from the headers alone
    .restore("x.weight")    its values in float32, the form that they are stored in, and their scales
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints.gguf_model import GgufModel, open_gguf
from explorer.checkpoints.gguf_models import out_of_pairs
from explorer.core.file import whole_of
from explorer.core.file_about import KEY, read_about
from explorer.export.ggml import block_scales
from explorer.schemes import Scheme
from explorer.sources import open_source
from explorer.sources.base import SourceError, TensorInfo, TensorSource, refused
from explorer.sources.coded import CodedSource, shape_in_network, weights_of
from explorer.sources.gguf_file import CODED as GGUF_CODED
from explorer.sources.gguf_file import SUFFIX as GGUF
from explorer.sources.gguf_file import block_sizes
from explorer.sources.matrix import to_float32
from explorer.sources.models import local_folder
from explorer.sources.quantized_forms import Restored
from explorer.sources.safetensors_file import SafetensorsFile
from explorer.sources.safetensors_header import bytes_of
from explorer.sources.source_limits import LOCAL, SourceLimits, within
from explorer.words import plain

SAFETENSORS = ".safetensors"
_GGUF_SCHEMES = {
    **{kind: kind.lower() for kind in ("Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1")},
    **{f"Q{bits}_K": f"q{bits}_k" for bits in (2, 3, 4, 5, 6)},
    "MXFP4": "mxfp4",
}
"""Type of ggml -> the scheme with the same values."""
ROTATED = ("attn_q.weight", "attn_k.weight", "attn_q.bias", "attn_k.bias")
"""Ends of the names of tensors with rows that llama.cpp may store in pairs."""


@dataclass(frozen=True)
class StoredWeight:
    """Weight as the headers describe it: ``name`` and ``shape`` in the network, ``bytes`` of its tensors, and
    ``coded``, True for codes."""

    name: str
    bytes: int
    coded: bool
    shape: tuple[int, ...]


class Checkpoint(ABC):
    """Weights of a checkpoint. ``origin``: its name in messages; ``config``: config.json; ``broken``: a
    reason for each unreadable file, which is left out."""

    origin: str
    config: Mapping[str, Any]
    weights: Mapping[str, StoredWeight]
    broken: tuple[str, ...] = ()

    @abstractmethod
    def restore(self, name: str) -> Restored:
        """Restore one weight; ``SourceError`` if it cannot be read."""

    def elements(self, name: str) -> int:
        """The largest number of values that ``restore`` returns, by the headers; ``SourceError`` if they
        contradict each other."""
        return math.prod(self.weights[name].shape)

    def __contains__(self, name: str) -> bool:
        return name in self.weights


def open_checkpoint(where: str, revision: str | None = None, limits: SourceLimits = LOCAL) -> Checkpoint:
    """Open a folder, a file (.safetensors, .gguf) or a Hub id; ``SourceError`` says what is accepted."""
    limits = within(limits)
    gguf = gguf_of(where, limits)
    if gguf is not None:
        return GgufCheckpoint(open_gguf(gguf))
    source = open_source(where, revision, limits)
    single = limits.folders and where.strip().lower().endswith(SAFETENSORS)
    own = list(_own_files((Path(where.strip()),) if single else source.paths))
    return OwnFiles(source.origin, own) if own else Safetensors(source)


def gguf_of(where: str, limits: SourceLimits) -> Path | None:
    """The GGUF file that ``where`` names, or the only one of a folder without safetensors files."""
    if not within(limits).folders:
        return None
    if where.strip().lower().endswith(GGUF):
        return Path(where.strip()).expanduser()
    folder = local_folder(where, limits)
    if folder is None or any(folder.glob(f"*{SAFETENSORS}")):
        return None
    files = sorted(folder.glob(f"*{GGUF}"))
    if len(files) > 1:
        raise SourceError(f"{folder.name} holds {len(files)} GGUF files: name one, such as {files[0]}")
    return files[0] if files else None


def _own_files(paths: tuple[Path, ...]) -> Iterator[SafetensorsFile]:
    """The files among ``paths`` that ``core.file`` wrote."""
    for path in paths:
        with suppress(SourceError, OSError):
            file = SafetensorsFile(path, path.name, LOCAL)
            if KEY in file.metadata():
                yield file


class Safetensors(Checkpoint):
    """Checkpoint of plain weights, or of codes that their source restores: a folder, a file or a Hub id."""

    def __init__(self, source: TensorSource) -> None:
        self.origin, self._source, self.broken = source.origin, source, source.broken
        self.config = source.config()
        self.weights = {
            info.name: StoredWeight(
                info.name,
                sum(map(bytes_of, source.parts_of(info.name) or (info,))),
                info.name in source.restored,
                shape_in_network(source, info),
            )
            for info in weights_of(source)
        }

    def elements(self, name: str) -> int:
        if isinstance(self._source, CodedSource) and (weight := self._source.coded(name)) and weight.problem:
            raise SourceError(weight.problem)
        return super().elements(name)

    def restore(self, name: str) -> Restored:
        with refused(f"{self.origin}: {name} cannot be restored"):
            if name not in self._source.restored:
                tensor = self._source.read(name)
                floats = to_float32(tensor) if tensor.is_floating_point() else tensor.float()
                return Restored(floats, self._source.info(name).dtype)
            assert isinstance(self._source, CodedSource)
            found = self._source.restore(name)
            if found.values.dim() == 3:  # transformers has experts as [E, inputs, outputs]
                turned = (
                    t.transpose(1, 2).contiguous() for t in (found.values, found.steps) if t is not None
                )
                found = Restored(next(turned), found.kind, found.scheme, next(turned, None))
            return replace(found, scheme=_named(found.scheme))


def _named(text: str) -> str:
    """The name of the scheme that a text describes; empty if its parts contradict each other."""
    try:
        return str(Scheme.parse(text)) if text else ""
    except ValueError:
        return ""


class OwnFiles(Checkpoint):
    """Files of ``explorer quantize --out`` and ``explorer methods --out``, with one layer each."""

    def __init__(self, origin: str, files: list[SafetensorsFile]) -> None:
        self.origin, self.config = origin, {}
        self._files: dict[str, SafetensorsFile] = {}
        weights: dict[str, StoredWeight] = {}
        for file in files:
            try:
                about = read_about(file.metadata())
            except ValueError as error:
                self.broken += (f"{file.origin}: {plain(str(error), 200)}",)
                continue
            name = about.name
            if name in weights:
                self.broken += (f"{file.origin}: an earlier file holds {plain(name, 80)} too",)
                continue
            self._files[name] = file
            weights[name] = StoredWeight(name, sum(map(bytes_of, file.stored)), True, about.shape)
        self.weights = weights

    def restore(self, name: str) -> Restored:
        with refused(f"{self.origin}: {name} cannot be restored"):
            q, extra = whole_of(self._files[name])
        added = sorted(extra)
        more = f", with {', '.join(added)} of a method" if added else ""
        steps = None
        if q.scheme.scale is not None and not q.scheme.flat:
            steps = q.scales.scale
            for axis, (side, length) in enumerate(zip(q.scheme.block, q.shape, strict=True)):
                steps = steps.index_select(axis, torch.arange(length) // (side or length))
        return Restored(q.dequantize(), f"{q.scheme.label}{more}", str(q.scheme), steps)


class GgufCheckpoint(Checkpoint):
    """GGUF file, with its own names; rows of query and key are in the order of the file."""

    def __init__(self, model: GgufModel) -> None:
        self.model, self.origin, self.config = model, model.source.origin, {}
        self.weights = {
            info.name: StoredWeight(
                info.name,
                model.source.stored_bytes(info.name),
                info.dtype.startswith(GGUF_CODED),
                info.shape,
            )
            for info in model.source.infos
        }

    def restore(self, name: str) -> Restored:
        info = self.model.tensors[name]
        values = to_float32(self.model.source.read(name))
        if not self.weights[name].coded:
            return Restored(values, info.dtype)
        return Restored(values, info.dtype, _GGUF_SCHEMES.get(info.dtype, ""), self._steps(info))

    def _steps(self, info: TensorInfo) -> Tensor | None:
        """The scale of each element, float32 of the tensor's shape; None for types whose scales are not
        read."""
        elements, size = block_sizes(self.origin)[info.dtype]
        raw = torch.frombuffer(self.model.source.stored(info.name), dtype=torch.uint8)
        scales = block_scales(info.dtype, raw.reshape(-1, size))
        if scales is None:
            return None
        return scales.repeat_interleave(elements // scales.shape[1], 1).reshape(info.shape)

    def heads_of(self, name: str) -> int:
        """The number of heads of query or key, whose rows llama.cpp may have reordered; 0 for other tensors,
        and if the file does not state it."""
        if not name.endswith(ROTATED):
            return 0
        heads = self.model.setting("attention.head_count", 0)
        return heads if "attn_q" in name else self.model.setting("attention.head_count_kv", heads)


def in_old_order(values: Tensor, heads: int) -> Tensor:
    """Put rows of query or key from a GGUF file into the order of transformers; unchanged if they are not
    whole heads."""
    return out_of_pairs(values, heads) if heads and len(values) % (2 * heads) == 0 else values
