"""NumPy files: of an .npy file the rows that are asked for, of an .npz archive one member, inflated as far
as it has to be.

A header's claimed length and shape are compared with the bytes that are there before anything of that size
is allocated, and arrays of Python objects, which NumPy would unpickle, are refused.
"""

from __future__ import annotations

import io
import math
import struct
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from explorer.progress import Progress
from explorer.sources.base import (
    Pieces,
    SourceError,
    TensorInfo,
    TensorSource,
    check_claims,
    refused,
    shape_words,
)
from explorer.sources.matrix import to_float32
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

_LONGEST_HEADER = 10_000
"""Bytes: what NumPy itself takes from files that are not trusted."""
_PIECE = 4 << 20
_VERSIONS = ((1, 0), (2, 0), (3, 0))
"""Supported versions of the .npy format."""
_ACCEPTED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MEMBER_BYTES = 46
"""Size of the shortest entry in an archive's list of members."""


@dataclass(frozen=True)
class _Header:
    """Content of an .npy header. ``fortran`` is column-major order."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class NpyFile(TensorSource):
    """One array, called by the file's name."""

    def __init__(self, path: Path, origin: str, limits: SourceLimits) -> None:
        self.origin, self._file = origin, StampedFile(path, origin)
        with self._file.open() as file:
            self._header = _read_header(file, origin)
            _check_size(origin, self._header, self._file.size - file.tell())
        self._info = TensorInfo(plain(path.stem), self._header.shape, self._header.dtype.name)
        check_claims([self._info], origin, limits)

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return (self._info,)

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        with self._file.open() as file:
            _read_header(file, self.origin)
            return _from_numpy(_first_rows(file, self._header, rows, progress))

    def pieces(self, name: str | None = None) -> Pieces | None:
        header = self._header
        if header.fortran:
            return None
        with self._file.open() as file:
            _read_header(file, self.origin)
            first = file.tell()

        def read(starts: Sequence[int], length: int) -> Tensor:
            size = header.dtype.itemsize
            data = self._file.read_pieces([first + start * size for start in starts], length * size)
            return to_float32(_from_numpy(np.frombuffer(data, header.dtype).reshape(len(starts), length)))

        return read


class NpzFile(TensorSource):
    """A zip archive of .npy members; other members are ignored."""

    def __init__(self, path: Path, origin: str, limits: SourceLimits) -> None:
        self.origin, self._file, self._limits = origin, StampedFile(path, origin), limits
        self._headers: dict[str, _Header] = {}
        with self._archive() as archive:
            entries = [e for e in archive.infolist() if e.filename.endswith(".npy")]
            if len(entries) > limits.tensors:
                raise SourceError(f"{origin} has {len(entries):,} members, more than {limits.tensors:,}")
            for entry in entries:
                name = entry.filename.removesuffix(".npy")
                if name in self._headers:
                    raise SourceError(f"{origin} holds {plain(name, 80)} twice")
                self._headers[name] = _member_header(archive, entry, origin)
        if not self._headers:
            raise SourceError(f"{origin} holds no arrays")
        check_claims(self.infos, origin, limits)

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(TensorInfo(name, h.shape, h.dtype.name) for name, h in self._headers.items())

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        header = self._headers[info.name]
        if header.fortran and rows is not None and header.bytes > self._limits.inflated_bytes:
            raise SourceError(
                f"{info.name} is stored by columns: its first rows are in all of its {header.bytes:,} bytes, "
                f"of which up to {self._limits.inflated_bytes:,} are inflated here"
            )
        with self._archive() as archive, archive.open(f"{info.name}.npy") as file:
            _read_header(file, info.name)
            return _from_numpy(_first_rows(file, header, rows, progress))

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        with self._file.open() as file, zipfile.ZipFile(_Bounded(file, self._limits)) as archive:
            yield archive


class _Bounded:
    """A file for ``zipfile``, which would read a list of members of any claimed length at once."""

    def __init__(self, file: IO[bytes], limits: SourceLimits) -> None:
        self._file, self._most = file, min(limits.header_bytes, 4 * _MEMBER_BYTES * limits.tensors)
        self.seek, self.tell, self.close = file.seek, file.tell, lambda: None

    def seekable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        if size > max(self._most, _PIECE):
            raise SourceError(f"the archive claims a list of members of {size:,} bytes")
        return self._file.read(size)


def _member_header(archive: zipfile.ZipFile, entry: zipfile.ZipInfo, origin: str) -> _Header:
    where = f"{origin}: {plain(entry.filename, 80)}"
    if entry.compress_type not in _ACCEPTED_METHODS or entry.flag_bits & 1:
        raise SourceError(f"{where} is encrypted or packed otherwise than NumPy does (stored, or deflate)")
    with archive.open(entry) as file:
        header = _read_header(file, where)
        _check_size(where, header, entry.file_size - file.tell())
    return header


def _read_header(file: IO[bytes], origin: str) -> _Header:
    """The header of an .npy stream, which is left at the data."""
    with refused(f"{origin} has no valid .npy header"):
        try:
            version = np.lib.format.read_magic(file)
        except ValueError as error:
            raise SourceError(f"{origin} has no valid .npy header: it does not begin as one") from error
        if version not in _VERSIONS:
            accepted = ", ".join(f"{major}.{minor}" for major, minor in _VERSIONS)
            raise SourceError(
                f"{origin} is an .npy file of version {version[0]}.{version[1]}; accepted are {accepted}"
            )
        width = "<H" if version == (1, 0) else "<I"
        claimed = file.read(struct.calcsize(width))
        (length,) = struct.unpack(width, claimed)
        if length > _LONGEST_HEADER:
            raise SourceError(
                f"{origin} claims a header of {length:,} bytes; accepted are up to {_LONGEST_HEADER:,}"
            )
        header = _parsed(io.BytesIO(claimed + file.read(length)), version, origin)
    if not all(type(n) is int and n >= 0 for n in header.shape):
        raise SourceError(
            f"{origin} claims the shape {shape_words(header.shape)}; axes are whole numbers from 0"
        )
    if header.dtype.hasobject:
        raise SourceError(
            f"{origin} holds Python objects, which would have to be unpickled; save plain numbers"
        )
    if header.dtype.kind == "V" and header.dtype.names is None:
        raise SourceError(
            f"{origin} holds {header.dtype}: numpy writes bfloat16 as |V2 and float8 as |V1, without their "
            "names. Save x.astype(np.float32), or the array as .safetensors"
        )
    if header.dtype.kind not in "fiub":
        raise SourceError(
            f"{origin} holds {header.dtype}; accepted are floating-point numbers, integers and booleans"
        )
    return header


def _parsed(text: io.BytesIO, version: tuple[int, int], origin: str) -> _Header:
    try:
        if version == (1, 0):
            return _Header(*np.lib.format.read_array_header_1_0(text))
        return _Header(*np.lib.format.read_array_header_2_0(text))
    except (MemoryError, RecursionError):  # what Python's parser raises for brackets within brackets
        raise SourceError(f"{origin} has no valid .npy header: it is nested too deeply") from None
    except ValueError as error:
        if "<ast." not in str(error):
            raise
        # Python's words name an object by its address in memory.
        raise SourceError(
            f"{origin} has no valid .npy header: it is an expression, not plain values"
        ) from None


def _check_size(origin: str, header: _Header, available: int) -> None:
    if header.bytes > available:
        claimed = f"{header.bytes:,}" if header.bytes < 1 << 63 else "more than 2^63"
        raise SourceError(
            f"{origin} claims the shape {shape_words(header.shape)}, {claimed} bytes, but only {available:,} "
            "are there"
        )


def _first_rows(file: IO[bytes], header: _Header, rows: int | None, progress: Progress | None) -> np.ndarray:
    """The first ``rows`` entries along the first axis, all if None, of the array that ``file`` stands at."""
    shape = header.shape if rows is None else (rows, *header.shape[1:])
    if not header.fortran:
        data = _take(file, math.prod(shape) * header.dtype.itemsize, progress)
        return np.frombuffer(data, header.dtype).reshape(shape)
    if rows is None or rows == header.shape[0]:
        data = _take(file, header.bytes, progress)
        return np.frombuffer(data, header.dtype).reshape(shape, order="F")
    return _first_of_columns(file, header, rows, progress).reshape(shape, order="F")


def _first_of_columns(file: IO[bytes], header: _Header, rows: int, progress: Progress | None) -> np.ndarray:
    """[columns * rows] in column-major order: the head of each column of a column-major array."""
    column, columns = header.shape[0] * header.dtype.itemsize, math.prod(header.shape[1:])
    head, together = rows * header.dtype.itemsize, max(1, _PIECE // column)
    kept = bytearray()
    for first in range(0, columns, together):
        count = min(together, columns - first)
        if column <= _PIECE:
            piece = np.frombuffer(_take(file, count * column, None), np.uint8).reshape(count, column)
            kept += piece[:, :head].tobytes()
        else:
            kept += _take(file, head, None)
            _skip(file, column - head)
        if progress is not None:
            progress(first + count, columns)
    return np.frombuffer(kept, header.dtype)


def _take(file: IO[bytes], size: int, progress: Progress | None) -> bytearray:
    """The next ``size`` bytes."""
    data = bytearray()
    while len(data) < size:
        piece = file.read(min(_PIECE, size - len(data)))
        if not piece:
            raise SourceError(f"cut short: {len(data):,} of {size:,} bytes")
        data += piece
        if progress is not None:
            progress(len(data), size)
    return data


def _skip(file: IO[bytes], size: int) -> None:
    while size > 0 and (piece := file.read(min(_PIECE, size))):
        size -= len(piece)


def _from_numpy(array: np.ndarray) -> Tensor:
    """A copy in native byte order; long doubles become float64."""
    native = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.dtype(np.float64)
    if array.dtype.kind == "b":
        array = array.view(np.uint8) != 0
    return torch.from_numpy(np.array(array, dtype=native, order="C"))
