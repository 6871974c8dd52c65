"""GGUF files as models: their metadata, and their tensors by the names of transformers."""

from __future__ import annotations

import re
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.cached import cached_property
from explorer.checkpoints.target import needed
from explorer.progress import checkpoint
from explorer.sources.base import SourceError, TensorInfo
from explorer.sources.gguf_file import GgufFile
from explorer.sources.source_limits import LOCAL

WEIGHT = ".weight"
_PAIRS = 24
"""The offset of the metadata, after the magic, the version and two counts."""
ALIGNMENT = 32
"""Default alignment of tensor data."""
UINT32, _STRING, _ARRAY = 4, 8, 9
_WHOLE = (0, 2, 4, 10)
"""Types of unsigned integers."""
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type: integers, floats, a boolean."""
_EXPERT = re.compile(r"\.experts\.\d+\.")


@dataclass(frozen=True)
class GgufModel:
    """Opened GGUF file. ``records``: key -> its bytes with type and value, in the file's order."""

    source: GgufFile
    records: Mapping[str, bytes]
    architecture: str
    blocks: int
    pooled: bool
    alignment: int

    @cached_property
    def tensors(self) -> dict[str, TensorInfo]:
        """Header entries in the file's order, by name."""
        return {info.name: info for info in self.source.infos}

    @cached_property
    def names(self) -> Any:
        """``tensor_names`` of the architecture."""
        return tensor_names(self.architecture, self.blocks)

    def setting(self, key: str, default: int) -> int:
        """The whole number under "<architecture>.<key>" of the metadata."""
        return number(self.records, f"{self.architecture}.{key}", default)

    def name_of(self, tensor: str) -> str:
        """The name in the file of a transformers tensor ending in ".weight" or ".bias"; empty if the package
        gguf knows none."""
        return name_in(self.names, tensor)


def tensor_names(architecture: str, blocks: int) -> Any:
    """Return the package gguf's map from transformers' names of tensors to those of llama.cpp's
    ``architecture``; None for an unknown one."""
    gguf = needed("gguf", "gguf")
    arch = next((arch for arch, name in gguf.MODEL_ARCH_NAMES.items() if name == architecture), None)
    return None if arch is None else gguf.get_tensor_name_map(arch, blocks)


def name_in(names: Any, tensor: str) -> str:
    """Look up a transformers tensor in ``names`` (``tensor_names``); empty if it is absent."""
    # The converter takes the language part of a model with vision by itself, and stacks experts.
    for spelled in (tensor, tensor.replace("language_model.", "")):
        spelled = _EXPERT.sub(".experts.", spelled)
        if names and (found := names.get_name(spelled, try_suffixes=(WEIGHT, ".bias"))):
            return str(found)
    return ""


def open_gguf(path: Path) -> GgufModel:
    """Open a GGUF file; ``SourceError`` unless it is a whole model in little-endian order."""
    if not path.is_file():
        raise SourceError(f"no file {path} here; a base is a .gguf file")
    source = GgufFile(path, LOCAL)
    if source.broken:
        raise SourceError(source.broken[0])
    if source.order != "<":
        raise SourceError(f"{source.origin} is in big-endian order; a base is in little-endian order")
    with path.open("rb") as file:
        records = walk(memoryview(file.read(LOCAL.header_bytes)))
    architecture = scalar(records, "general.architecture")
    if not isinstance(architecture, str):
        raise SourceError(f"{source.origin} names no architecture in its metadata: it is no model")
    parts = number(records, "split.count", 1)
    if parts > 1:
        raise SourceError(
            f"{source.origin} is one of {parts} files of a model; merge them first: llama-gguf-split --merge"
        )
    blocks, pooled = number(records, f"{architecture}.block_count", 0), f"{architecture}.pooling_type"
    if blocks > len(source.infos):
        raise SourceError(f"{source.origin} claims {blocks:,} blocks and holds {len(source.infos):,} tensors")
    alignment = number(records, "general.alignment", ALIGNMENT)
    return GgufModel(source, records, architecture, blocks, pooled in records, alignment)


def walk(raw: memoryview) -> dict[str, bytes]:
    """Read the metadata: key -> its bytes with type and value. ``raw``: the first bytes of a file with a
    checked header.

    The package gguf makes an object of every word: 18 s and 1.4 GB for 262,144 words with merges.
    """
    (count,), at = struct.unpack_from("<Q", raw, _PAIRS - 8), _PAIRS
    records = {}
    for _ in range(count):
        checkpoint()
        value = _after(raw, at, _STRING)
        (kind,) = struct.unpack_from("<I", raw, value)
        stop = _after(raw, value + 4, kind)
        records[bytes(raw[at + 8 : value]).decode(errors="surrogateescape")] = bytes(raw[at:stop])
        at = stop
    return records


def _after(raw: memoryview, at: int, kind: int) -> int:
    """Find the end of a value of type ``kind`` that begins at ``at``."""
    if kind == _STRING:
        return at + 8 + int.from_bytes(raw[at : at + 8], "little")
    if kind != _ARRAY:
        return at + _SIZES[kind]
    item, count = struct.unpack_from("<IQ", raw, at)
    at += 12
    if item in _SIZES:
        return at + int(count) * _SIZES[item]
    for _ in range(count):
        at = _after(raw, at, item)
    return at


def scalar(records: Mapping[str, bytes], key: str) -> str | int | None:
    """Read a text or whole number of the metadata; None if it is missing or of another type."""
    raw = records.get(key, b"")
    at = 8 + len(key.encode())
    kind, value = int.from_bytes(raw[at : at + 4], "little"), raw[at + 4 :]
    if kind == _STRING:
        return value[8:].decode(errors="replace")
    return int.from_bytes(value, "little") if raw and kind in _WHOLE else None


def texts(records: Mapping[str, bytes], key: str) -> tuple[str, ...]:
    """Read a list of texts of the metadata; empty if it is missing or of another type."""
    raw = records.get(key, b"")
    at = 8 + len(key.encode())
    if len(raw) < at + 16 or struct.unpack_from("<II", raw, at) != (_ARRAY, _STRING):
        return ()
    (count,), at, found = struct.unpack_from("<Q", raw, at + 8), at + 16, []
    for _ in range(count):
        stop = _after(memoryview(raw), at, _STRING)
        found.append(raw[at + 8 : stop].decode(errors="replace"))
        at = stop
    return tuple(found)


def number(records: Mapping[str, bytes], key: str, default: int) -> int:
    found = scalar(records, key)
    return found if isinstance(found, int) else default


def place_of(base: GgufModel, layer: str) -> TensorInfo:
    """Find a layer's tensor in the base; ``ValueError`` if there is none."""
    place = base.name_of(f"{layer}{WEIGHT}")
    for name in (f"{layer}{WEIGHT}", place):
        if name in base.tensors:
            return base.tensors[name]
    why = f"has no {place}" if place else "has no tensor for it"
    if base.names is None:
        why += f"; the package gguf does not know {base.architecture}, so layers go by the file's own names"
    raise ValueError(f"{layer}: {base.source.origin} {why}")
