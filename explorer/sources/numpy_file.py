"""NumPy files: the requested rows of an .npy file, one member of an .npz archive.

A header's claimed length and shape are compared with the file's size before anything of that size is
allocated, and arrays of Python objects, which NumPy would unpickle, are refused. NumPy parses the header. It
does not read the data: ``np.load`` maps files (a file cut short would end the process, see ``stamped``), and
of an archive it inflates whole members.
"""

from __future__ import annotations

import io
import math
import threading
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
import torch
from torch import Tensor

from explorer.progress import Progress, checkpoint
from explorer.sources.base import (
    MOST_AXES,
    Pieces,
    SourceError,
    TensorInfo,
    TensorSource,
    check_claims,
    refused,
    shape_words,
)
from explorer.sources.coded import CodedSource
from explorer.sources.matrix import to_float32
from explorer.sources.pickle_reader import Bounded
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

_PREFIX = 12
"""Largest number of bytes of a file's magic, version and header length."""
_LONGEST_HEADER = 2048
"""Largest accepted header in bytes: one of ``MOST_AXES`` axes of 20 digits has fewer. Python's parser takes
about 1 µs a byte, and an archive has a header for each member."""
_PARSING = threading.Lock()
"""NumPy parses by Python's ``ast``, whose depth all threads share in 3.11: two at once fail now and then with
"AST constructor recursion depth mismatch" (python/cpython issue 106905)."""
_PIECE = 4 << 20
_VERSIONS = ((1, 0), (2, 0), (3, 0))
_ACCEPTED_METHODS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
_MEMBER_BYTES = 46
"""Size of the shortest entry in an archive's list of members."""


@dataclass(frozen=True)
class _Header:
    """Content of an .npy header. ``fortran`` is column-major order; the data begins at byte ``start``."""

    shape: tuple[int, ...]
    fortran: bool
    dtype: np.dtype[Any]
    start: int

    @property
    def bytes(self) -> int:
        return math.prod(self.shape) * self.dtype.itemsize


class NpyFile(TensorSource):
    """One array, called by the file's name."""

    def __init__(self, path: Path, origin: str, limits: SourceLimits) -> None:
        self.origin, self._file = origin, StampedFile(path, origin)
        with self._file.open() as file:
            self._header = _read_header(file, origin, self._file.size)
        self.infos = (TensorInfo(plain(path.stem), self._header.shape, self._header.dtype.name),)
        check_claims(self.infos, origin, limits)

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        with self._file.open() as file:
            return _read_rows(file, self._header, rows, progress)

    def pieces(self, name: str | None = None) -> Pieces | None:
        header, size = self._header, self._header.dtype.itemsize

        def read(starts: Sequence[int], length: int) -> Tensor:
            data = self._file.read_pieces([header.start + start * size for start in starts], length * size)
            return to_float32(_from_numpy(np.frombuffer(data, header.dtype).reshape(len(starts), length)))

        return None if header.fortran else read


class NpzFile(CodedSource):
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
                where = f"{origin}: {plain(entry.filename, 80)}"
                if name in self._headers:
                    raise SourceError(f"{origin} holds {plain(name, 80)} twice")
                if entry.compress_type not in _ACCEPTED_METHODS or entry.flag_bits & 1:
                    raise SourceError(
                        f"{where} is encrypted, or compressed in another way than NumPy's; accepted are "
                        "stored and deflated members"
                    )
                with archive.open(entry) as file:
                    self._headers[name] = _read_header(file, where, entry.file_size)
        if not self._headers:
            raise SourceError(f"{origin} holds no arrays")
        self.stored = tuple(TensorInfo(name, h.shape, h.dtype.name) for name, h in self._headers.items())
        check_claims(self.stored, origin, limits)

    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        header = self._headers[info.name]
        if header.fortran and rows is not None and header.bytes > self._limits.inflated_bytes:
            raise SourceError(
                f"{info.name} is stored by columns: reading its first rows inflates all of its "
                f"{header.bytes:,} bytes; the limit here is {self._limits.inflated_bytes:,}"
            )
        with self._archive() as archive, archive.open(f"{info.name}.npy") as file:
            return _read_rows(file, header, rows, progress)

    @contextmanager
    def _archive(self) -> Iterator[zipfile.ZipFile]:
        most = max(min(self._limits.header_bytes, 4 * _MEMBER_BYTES * self._limits.tensors), _PIECE)
        with self._file.open() as file, zipfile.ZipFile(Bounded(file, most)) as archive:
            yield archive


def _read_header(file: IO[bytes], origin: str, size: int) -> _Header:
    """Read the header of an .npy stream of ``size`` bytes."""
    # NumPy reads a header of any claimed length before it checks the length.
    checkpoint()
    start = io.BytesIO(raw := file.read(_PREFIX + _LONGEST_HEADER))
    with refused(f"{origin} has no valid .npy header"):
        version = np.lib.format.read_magic(start)
        if version not in _VERSIONS:
            accepted = ", ".join(f"{major}.{minor}" for major, minor in _VERSIONS)
            raise SourceError(
                f"{origin} is an .npy file of version {version[0]}.{version[1]}; accepted are {accepted}"
            )
        longest = start.tell() + (2 if version == (1, 0) else 4)
        length = int.from_bytes(raw[start.tell() : longest], "little")
        if length > _LONGEST_HEADER:
            raise SourceError(
                f"{origin} has a header of {length:,} bytes; accepted are up to {_LONGEST_HEADER:,}"
            )
        if raw.count(b",", 0, longest + length) > MOST_AXES + 3:
            raise SourceError(f"{origin} has a header of more than {MOST_AXES} axes or fields")
        parse = (
            np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
        )
        try:
            with _PARSING:
                header = _Header(*parse(start, max_header_size=_LONGEST_HEADER), start.tell())
        except (MemoryError, RecursionError):  # what Python's parser raises for brackets within brackets
            raise SourceError(f"{origin} has no valid .npy header: it is nested too deeply") from None
        except ValueError as error:
            if "<ast." in str(error):  # Python's words name an object by its address in memory
                raise ValueError("it is an expression, not plain values") from None
            raise
    if not all(type(n) is int and n >= 0 for n in header.shape):
        raise SourceError(
            f"{origin} claims the shape {shape_words(header.shape)}; axes are whole numbers from 0"
        )
    dtype = header.dtype
    if dtype.hasobject:
        raise SourceError(
            f"{origin} holds Python objects, which would have to be unpickled; save plain numbers"
        )
    if dtype.kind == "V" and dtype.names is None:
        raise SourceError(
            f"{origin} holds {dtype}: numpy writes bfloat16 as |V2 and float8 as |V1, without their names. "
            "Save x.astype(np.float32), or the array as .safetensors"
        )
    if dtype.kind not in "fiub":
        raise SourceError(
            f"{origin} holds {dtype}; accepted are floating-point numbers, integers and booleans"
        )
    if header.bytes > size - header.start:
        claimed = f"{header.bytes:,}" if header.bytes < 1 << 63 else "more than 2^63"
        raise SourceError(
            f"{origin} claims the shape {shape_words(header.shape)}, {claimed} bytes, but only "
            f"{size - header.start:,} are there"
        )
    return header


def _read_rows(file: IO[bytes], header: _Header, rows: int | None, progress: Progress | None) -> Tensor:
    """Read the first ``rows`` entries along the first axis, all if None, of the array in ``file``."""
    file.seek(header.start)
    shape = header.shape if rows is None else (rows, *header.shape[1:])
    if header.fortran and shape != header.shape:
        data = _first_of_columns(file, header, shape[0], progress)
    else:
        data = _take(file, math.prod(shape) * header.dtype.itemsize, progress)
    array = np.frombuffer(data, header.dtype).reshape(shape, order="F" if header.fortran else "C")
    return _from_numpy(array)


def _first_of_columns(file: IO[bytes], header: _Header, rows: int, progress: Progress | None) -> bytearray:
    """Read the first ``rows`` elements of each column of a column-major array, several columns at a time."""
    column, columns = header.shape[0] * header.dtype.itemsize, math.prod(header.shape[1:])
    head, together = rows * header.dtype.itemsize, max(1, _PIECE // column)
    kept = bytearray()
    for first in range(0, columns, together):
        count = min(together, columns - first)
        piece = _take(file, (count - 1) * column + head, None)
        for place in range(0, column - head, _PIECE):  # a compressed member is inflated
            checkpoint()
            file.seek(min(_PIECE, column - head - place), io.SEEK_CUR)
        kept += np.ndarray((count, head), np.uint8, piece, strides=(column, 1)).tobytes()
        if progress is not None:
            progress(first + count, columns)
    return kept


def _take(file: IO[bytes], size: int, progress: Progress | None) -> bytearray:
    """Read the next ``size`` bytes."""
    data = bytearray()
    while len(data) < size:
        piece = file.read(min(_PIECE, size - len(data)))
        if not piece:
            raise SourceError(f"cut short: {len(data):,} of {size:,} bytes")
        data += piece
        checkpoint()
        if progress is not None:
            progress(len(data), size)
    return data


def _from_numpy(array: np.ndarray) -> Tensor:
    """Copy in native byte order; long doubles become float64."""
    native = array.dtype.newbyteorder("=") if array.dtype.itemsize <= 8 else np.dtype(np.float64)
    if array.dtype.kind == "b":
        array = array.view(np.uint8) != 0
    return torch.from_numpy(np.array(array, dtype=native, order="C"))
