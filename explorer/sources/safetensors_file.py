"""Safetensors files: of each, the header is read, then of a tensor, or its first rows, those bytes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from torch import Tensor

from explorer.progress import Progress
from explorer.sources.base import Pieces, SourceError, TensorInfo, TensorSource
from explorer.sources.matrix import to_float32
from explorer.sources.safetensors_header import PREFIX, decode, entries, header_length
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile


class SafetensorsFile(TensorSource):
    """One .safetensors file."""

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

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(entry.info for entry in self._entries.values())

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        entry = self._entries[info.name]
        size, shape = entry.first(rows)
        return decode(info, shape, self._file.read(entry.start, size), self.origin)

    def pieces(self, name: str | None = None) -> Pieces | None:
        entry = self._entries[self.info(name).name]
        count = entry.info.elements
        size = (entry.stop - entry.start) // max(count, 1)
        if size * count != entry.stop - entry.start or entry.info.dtype in ("C64", "F4"):
            return None

        def read(starts: Sequence[int], length: int) -> Tensor:
            data = self._file.read_pieces([entry.start + start * size for start in starts], length * size)
            return to_float32(decode(entry.info, (len(starts), length), data, self.origin))

        return read
