"""Common interface of all tensor sources: names, shapes, and reading one tensor on demand."""

from __future__ import annotations

import dataclasses
import math
import struct
import zipfile
import zlib
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tokenize import TokenError
from typing import Any

from torch import Tensor

from explorer.progress import Progress, checkpoint
from explorer.sources.matrix import Matrix, as_matrix, matrix_shape, to_float32
from explorer.sources.source_limits import SourceLimits
from explorer.words import plain

Pieces = Callable[[Sequence[int], int], Tensor]
"""Function ``(starts, length)`` -> float32 [starts, length]: runs of a tensor's elements in row-major
order."""
LONGEST_NAME = 1000
"""Largest accepted number of characters of a tensor's name."""
MOST_AXES = 64
_LONGEST_MESSAGE = 600
_MOST_ELEMENTS = 1 << 62
_UNREADABLE = (ArithmeticError, AssertionError, AttributeError, EOFError, LookupError, MemoryError, OSError,
               RuntimeError, SyntaxError, TokenError, TypeError, ValueError, struct.error, zipfile.BadZipFile,
               zlib.error)  # fmt: skip
"""Exceptions that NumPy, torch, zipfile and Python's parser raise for malformed data."""


class SourceError(ValueError):
    """A file, model or tensor that cannot be read. The text is one line of bounded length, whatever names and
    numbers an untrusted file contains."""

    def __init__(self, text: str) -> None:
        super().__init__(plain(text, _LONGEST_MESSAGE))


class UnreachableError(SourceError):
    """Another machine does not answer now; later it may."""


@dataclass(frozen=True)
class TensorInfo:
    """Header entry of one tensor. ``dtype`` is the file's own name for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        return matrix_shape(self.shape)

    def within(self, max_elements: int) -> TensorInfo:
        """The entry of the first rows that have at most ``max_elements`` together, of none if one has more;
        itself if all have."""
        if self.elements <= max_elements:
            return self
        rows = max_elements // (self.elements // self.shape[0])
        return dataclasses.replace(self, shape=(rows, *self.shape[1:]))


class TensorSource(ABC):
    """Named tensors that can be read one at a time.

    ``origin`` is the source's name in messages, ``infos`` are the header entries. ``broken`` has the reason
    for each unreadable file that was left out. ``paths`` are the local files that are read. ``restored``
    names the weights that are stored as codes and scales, and read as float32 values (coded.py);
    ``problems`` has the reason for each weight of codes that cannot be restored.
    """

    origin: str
    infos: tuple[TensorInfo, ...] = ()
    broken: tuple[str, ...] = ()
    paths: tuple[Path, ...] = ()
    restored: frozenset[str] = frozenset()
    problems: tuple[str, ...] = ()
    _by_name: tuple[tuple[TensorInfo, ...], Mapping[str, TensorInfo]] = ((), {})

    @property
    def kept_bytes(self) -> int:
        """Approximate memory of the open source, for caches that are bounded by bytes."""
        return sum(500 + len(info.name) for info in self.infos)

    @abstractmethod
    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        """Read the tensor's first ``rows`` entries along its first axis (all if None), in the file's
        dtype."""

    def pieces(self, name: str | None = None) -> Pieces | None:
        """Return a function that reads runs of one tensor without the rest of it.

        None if that takes as long as reading all: for archives, tables, pictures, tensors in column-major
        order, and models.
        """
        return None

    def parts_of(self, name: str) -> tuple[TensorInfo, ...]:
        """Name the stored tensors of a restored weight, its codes and its scales; empty for any other
        tensor."""
        return ()

    def config(self) -> dict[str, Any]:
        """Content of config.json; empty if there is none."""
        return {}

    def info(self, name: str | None = None) -> TensorInfo:
        """Return the entry called ``name``, or without a name the only tensor. ``SourceError`` if there is
        none."""
        if name is None:
            if len(self.infos) == 1:
                return self.infos[0]
            if not self.infos:
                raise SourceError(f"{self.origin} holds no tensors")
            raise SourceError(
                f"{self.origin} holds {len(self.infos)} tensors; choose one: {_some_names(self.infos)}"
            )
        if self._by_name[0] is not self.infos:
            self._by_name = self.infos, {info.name: info for info in reversed(self.infos)}
        if (found := self._by_name[1].get(name)) is not None:
            return found
        holds = "; left out: ".join([_some_names(self.infos), *self.broken[:1]])
        raise SourceError(f"no tensor '{plain(name, 80)}' in {self.origin}; it holds {holds}")

    def read(
        self, name: str | None = None, max_elements: int | None = None, progress: Progress | None = None
    ) -> Tensor:
        """Read one tensor in its own dtype; of more than ``max_elements`` only the first rows that fit.

        ``SourceError`` if a single row has more elements than that.
        """
        info = self.info(name)
        rows = None
        if max_elements is not None and info.elements > max_elements:
            rows = info.within(max_elements).shape[0]
            if rows == 0:
                raise SourceError(
                    f"{plain(info.name, 80)}: one row of {shape_words(info.shape)} has more than "
                    f"{max_elements:,} elements, the limit here"
                )
        watched = Watched(progress)
        with refused(f"{self.origin}: {info.name} cannot be read", watched):
            return self.read_rows(info, rows, None if progress is None else watched)

    def matrix(
        self, name: str | None = None, max_elements: int | None = None, progress: Progress | None = None
    ) -> Matrix:
        """Read one tensor as float32 [rows, cols] (see ``MATRIX_RULE``), cut to rows as ``read`` does."""
        info = self.info(name)
        if info.elements == 0:
            raise SourceError(
                f"{plain(info.name, 80)} is empty (shape {shape_words(info.shape)}); nothing can be quantized"
            )
        tensor = self.read(info.name, max_elements, progress)
        if tensor.is_complex():
            raise SourceError(
                f"{info.name} is complex; accepted are real floating-point numbers, integers and booleans"
            )
        with refused(f"{self.origin}: {info.name} cannot be quantized"):
            values = as_matrix(to_float32(tensor))
        return Matrix(
            values, info.name, self.origin, info.shape, info.dtype, cut=values.numel() < info.elements
        )


class InMemory(TensorSource):
    """One tensor that is in memory already."""

    def __init__(self, origin: str, name: str, tensor: Tensor) -> None:
        self.origin, self._tensor = origin, tensor
        self.infos = (TensorInfo(name, tuple(tensor.shape), str(tensor.dtype).removeprefix("torch.")),)

    @property
    def kept_bytes(self) -> int:
        return super().kept_bytes + self._tensor.nbytes

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        return self._tensor[:rows].clone()


class Watched:
    """A progress callback that remembers the exception with which it stopped the reading."""

    def __init__(self, progress: Progress | None) -> None:
        self._progress = progress
        self.stop: BaseException | None = None

    def __call__(self, done: int, total: int) -> None:
        try:
            if self._progress is not None:
                self._progress(done, total)
        except BaseException as error:
            self.stop = error
            raise


@contextmanager
def refused(what: str, watched: Watched | None = None) -> Iterator[None]:
    """Turn exceptions of libraries for malformed data into ``SourceError``: ``what``, and the reason.

    An exception by which ``watched`` stopped the work stays what it is.
    """
    try:
        yield
    except SourceError:
        raise
    except _UNREADABLE as error:
        if watched is not None and error is watched.stop:
            raise
        why = first_line(error)
        if isinstance(error, MemoryError):
            why = "there is not enough memory"
        elif isinstance(error, OSError):  # its text ends in a path of this machine
            why = error.strerror or type(error).__name__
        raise SourceError(f"{what}: {why}") from error


def check_claims(infos: Sequence[TensorInfo], origin: str, limits: SourceLimits) -> None:
    """``SourceError`` for names and shapes in an untrusted header that are too many, too long or invalid."""
    if len(infos) > limits.tensors:
        raise SourceError(f"{origin} lists {len(infos):,} tensors; accepted are up to {limits.tensors:,}")
    for info in infos:
        checkpoint()
        if len(info.name) > LONGEST_NAME or not info.name.isprintable():
            raise SourceError(
                f"{origin} holds a tensor called {info.name[:40]!a}; accepted are printable names of "
                f"up to {LONGEST_NAME} characters"
            )
        whole = all(type(n) is int and n >= 0 for n in info.shape)
        # Libraries multiply the other axes of an empty tensor all the same.
        if not whole or len(info.shape) > MOST_AXES or math.prod(n or 1 for n in info.shape) > _MOST_ELEMENTS:
            raise SourceError(
                f"{origin}: {plain(info.name, 80)} claims the shape {shape_words(info.shape)}; accepted are "
                f"up to {MOST_AXES} axes of whole numbers from 0"
            )


def shape_words(shape: Sequence[object]) -> str:
    """Write a shape for a message, shortened: in an untrusted file it may have many axes of many digits."""
    return plain(ascii(list(shape[:8])), 80)


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for use in a message: at most 200 characters."""
    lines = str(error).strip().splitlines()
    return plain(lines[0], 200) if lines else type(error).__name__


def _some_names(infos: Iterable[TensorInfo], count: int = 5) -> str:
    names = [plain(info.name, 80) for info in infos]
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
