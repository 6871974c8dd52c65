"""GGUF files: the header is read when one is opened, and a tensor's bytes when it is asked for.

Plain types are read as they are. The package ``gguf`` restores codes to float32; it gets the bytes of one
tensor and nothing else.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from explorer.progress import Progress, checkpoint
from explorer.sources.base import SourceError, TensorInfo, TensorSource
from explorer.sources.gguf_header import GgufEntry, GgufHeader, Kind
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

SUFFIX = ".gguf"
CODED = ("Q", "IQ", "TQ", "MXFP", "NVFP")
"""Prefixes of the names of quantized types; no dtype of other files has them."""
_PLAIN = {
    "F64": torch.float64,
    "F32": torch.float32,
    "F16": torch.float16,
    "BF16": torch.bfloat16,
    "I64": torch.int64,
    "I32": torch.int32,
    "I16": torch.int16,
    "I8": torch.int8,
}
"""Types that torch holds as they are."""
_AT_ONCE = 1 << 20
"""Number of elements restored between two checks for a request to stop."""


class GgufFile(TensorSource):
    """One .gguf file. ``order`` is the byte order of its numbers, "<" or ">".

    A quantized tensor is read as dequantized float32 values; ``dtype`` names its type. Shapes are torch's: a
    weight is [output channels, input channels].
    """

    def __init__(self, path: Path, limits: SourceLimits) -> None:
        self.origin, self.paths = plain(path.name, 200), (path,)
        kinds = _kinds(self.origin)
        self._file = StampedFile(path, self.origin)
        with self._file.open() as file:
            header = GgufHeader(file, self._file.size, self.origin, limits, kinds)
        if not header.entries:
            raise SourceError(f"{self.origin} holds no tensors")
        self.order, self._entries = header.order, header.entries
        self.infos = tuple(entry.info for entry in self._entries.values())

    def stored(self, name: str) -> bytearray:
        """Read a tensor's bytes; ``SourceError`` for an unknown name, and if the file has changed."""
        entry = self._entries[self.info(name).name]
        return self._file.read(entry.start, entry.stop - entry.start)

    def stored_bytes(self, name: str) -> int:
        """Bytes of a tensor in the file."""
        entry = self._entries[self.info(name).name]
        return entry.stop - entry.start

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        entry = self._entries[info.name]
        size, shape = entry.first(rows)
        dtype = _PLAIN.get(entry.kind.name)
        if dtype is None and self.order == ">":
            raise SourceError(
                f"{self.origin}: {info.name} is {entry.kind.name} in big-endian order; of such files plain "
                f"types are read: {', '.join(_PLAIN)}"
            )
        if size == 0:
            return torch.empty(shape, dtype=dtype or torch.float32)
        data = np.frombuffer(self._file.read(entry.start, size), np.uint8)
        if dtype is None:
            return torch.from_numpy(_restored(data, entry, progress)).reshape(shape)
        if self.order == ">":
            data = np.ascontiguousarray(data.reshape(-1, dtype.itemsize)[:, ::-1]).reshape(-1)
        return torch.from_numpy(data).view(dtype).reshape(shape)


def _restored(data: np.ndarray, entry: GgufEntry, progress: Progress | None) -> np.ndarray:
    """Dequantize the blocks in ``data``, a part at a time: float32 [elements]."""
    from gguf import GGMLQuantizationType
    from gguf.quants import dequantize

    kind = entry.kind
    blocks = data.reshape(-1, kind.size)
    values = np.empty(len(blocks) * kind.block, np.float32)
    together = max(_AT_ONCE // kind.block, 1)
    for first in range(0, len(blocks), together):
        checkpoint()
        part = blocks[first : first + together]
        # One long row: the package is slow on many rows, which it takes sixteen at a time.
        restored = dequantize(part.reshape(1, -1), GGMLQuantizationType[kind.name])
        values[first * kind.block : (first + len(part)) * kind.block] = restored[0]
        if progress is not None:
            progress(min(first + together, len(blocks)) * kind.block, len(values))
    return values


def block_sizes(origin: str) -> dict[str, tuple[int, int]]:
    """Return elements and bytes of a block by the name of its type. ``SourceError`` names ``origin`` if the
    package gguf is missing."""
    return {kind.name: (kind.block, kind.size) for kind in _kinds(origin).values()}


def _kinds(origin: str) -> dict[int, Kind]:
    """The types of tensors that the package knows, by their number in a file."""
    try:
        from gguf import GGML_QUANT_SIZES
    except ImportError as error:
        raise SourceError(f"{origin}: GGUF files are read by the package gguf: pip install gguf") from error
    return {int(kind): Kind(kind.name, *sizes) for kind, sizes in GGML_QUANT_SIZES.items()}
