"""Safetensors files: the header is read when one is opened, and a tensor's bytes when it is asked for."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from explorer.progress import Progress
from explorer.sources.base import Pieces, SourceError, TensorInfo
from explorer.sources.coded import CONFIG, CodedSource
from explorer.sources.index import local_weight_map
from explorer.sources.matrix import to_float32
from explorer.sources.safetensors_header import PREFIX, decode, entries, header_length, parse_json
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile


class SafetensorsFile(CodedSource):
    """One .safetensors file; a configuration beside it tells how its weights of codes are read."""

    def __init__(self, path: Path, origin: str, limits: SourceLimits) -> None:
        self.origin = origin
        self._file = StampedFile(path, origin)
        length = header_length(self._file.read(0, min(PREFIX, self._file.size)), origin, limits)
        data_bytes = self._file.size - PREFIX - length
        if data_bytes < 0:
            raise SourceError(f"{origin} is cut short: its header of {length:,} bytes is not all there")
        listed = entries(self._file.read(PREFIX, length), data_bytes, origin, limits)
        if not listed:
            raise SourceError(f"{origin} holds no tensors")
        self._entries = {entry.info.name: entry for entry in listed}
        self.stored = tuple(entry.info for entry in listed)
        self._beside = path.parent / CONFIG if limits.folders else None
        self._limits, self._header = limits, length

    def metadata(self) -> dict[str, str]:
        """The texts under "__metadata__" in the header, read anew; empty if there are none."""
        header = parse_json(self._file.read(PREFIX, self._header), self.origin, "header", self._limits)
        found = header.get("__metadata__")
        return {k: v for k, v in found.items() if isinstance(v, str)} if isinstance(found, dict) else {}

    def config(self) -> dict[str, Any]:
        return config_in(self._beside, self.origin, self._limits) if self._beside else {}

    def promised(self) -> Iterable[str]:
        return local_weight_map(self._beside.parent, self.origin, self._limits) if self._beside else ()

    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        entry = self._entries[info.name]
        size, shape = entry.first(rows)
        return decode(info, shape, self._file.read(entry.start, size), self.origin)

    def stored_pieces(self, info: TensorInfo) -> Pieces | None:
        entry = self._entries[info.name]
        count = entry.info.elements
        size = (entry.stop - entry.start) // max(count, 1)
        if size * count != entry.stop - entry.start or entry.info.dtype in ("C64", "F4"):
            return None

        def read(starts: Sequence[int], length: int) -> Tensor:
            data = self._file.read_pieces([entry.start + start * size for start in starts], length * size)
            return to_float32(decode(entry.info, (len(starts), length), data, self.origin))

        return read


def config_in(path: Path, origin: str, limits: SourceLimits) -> dict[str, Any]:
    """Read a model's configuration, empty if there is none; ``SourceError`` for invalid JSON."""
    if not path.is_file():
        return {}
    raw = StampedFile(path, f"{origin}: {CONFIG}").all(limits.header_bytes)
    config = parse_json(raw, origin, CONFIG, limits)
    return config if isinstance(config, dict) else {}
