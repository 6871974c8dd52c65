"""What every place that tensors come from has in common: names, shapes, and one tensor read on demand."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from torch import Tensor

from explorer.progress import Progress
from explorer.sources.matrix import Matrix, as_matrix, matrix_shape, to_float32


class SourceError(ValueError):
    """A file, model or tensor that cannot be read, in words for the user."""


@dataclass(frozen=True)
class TensorInfo:
    """What a header says of one tensor. ``dtype`` is the file's own name for it."""

    name: str
    shape: tuple[int, ...]
    dtype: str

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def matrix_shape(self) -> tuple[int, int]:
        return matrix_shape(self.shape)


class TensorSource(ABC):
    """Named tensors that can be read one at a time.

    ``origin`` is what messages call the source, ``broken`` says of each file left out why it cannot be read.
    """

    origin: str
    broken: tuple[str, ...] = ()

    @property
    @abstractmethod
    def infos(self) -> tuple[TensorInfo, ...]:
        """What the headers say; no tensor has been read."""

    @abstractmethod
    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        """The tensor's first ``rows`` entries along its first axis (all if None), in the file's dtype."""

    def info(self, name: str | None = None) -> TensorInfo:
        """The entry called ``name``; without one, the only tensor there is. Raises ``SourceError``."""
        if name is None:
            if len(self.infos) == 1:
                return self.infos[0]
            raise SourceError(
                f"{self.origin} holds {len(self.infos)} tensors; choose one: {_some_names(self.infos)}"
            )
        for info in self.infos:
            if info.name == name:
                return info
        holds = "; left out: ".join([_some_names(self.infos), *self.broken[:1]])
        raise SourceError(f"no tensor {name!r} in {self.origin}; it holds {holds}")

    def read(
        self, name: str | None = None, max_elements: int | None = None, progress: Progress | None = None
    ) -> Tensor:
        """One tensor in its own dtype; of more than ``max_elements`` only the first rows that fit.

        Raises ``SourceError`` if a single row has more elements than that.
        """
        info = self.info(name)
        rows = None
        if max_elements is not None and info.elements > max_elements:
            rows = max_elements // (info.elements // info.shape[0])
            if rows == 0:
                raise SourceError(
                    f"{info.name}: one row of {info.shape} has more than {max_elements:,} elements, "
                    "the limit here"
                )
        return self.read_rows(info, rows, progress)

    def matrix(
        self, name: str | None = None, max_elements: int | None = None, progress: Progress | None = None
    ) -> Matrix:
        """One tensor as float32 [rows, cols] (see ``MATRIX_RULE``), cut to rows as ``read`` does."""
        info = self.info(name)
        if info.elements == 0:
            raise SourceError(f"{info.name} is empty (shape {info.shape}); nothing can be quantized")
        tensor = self.read(info.name, max_elements, progress)
        if tensor.is_complex():
            raise SourceError(
                f"{info.name} is complex; accepted are real floating-point numbers, integers and booleans"
            )
        values = as_matrix(to_float32(tensor))
        return Matrix(
            values, info.name, self.origin, info.shape, info.dtype, cut=values.numel() < info.elements
        )


class InMemory(TensorSource):
    """Tensors that are loaded (or mapped) already, by name."""

    def __init__(self, origin: str, tensors: Mapping[str, Tensor]) -> None:
        if not tensors:
            raise SourceError(f"{origin} holds no tensors")
        self.origin, self._tensors = origin, dict(tensors)

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return tuple(
            TensorInfo(n, tuple(t.shape), str(t.dtype).split(".")[-1]) for n, t in self._tensors.items()
        )

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        tensor = self._tensors[info.name]
        return (tensor if rows is None else tensor[:rows]).clone()


def first_line(error: BaseException) -> str:
    """The first line of an error's text, for a message of our own: at most 200 characters."""
    lines = str(error).strip().splitlines()
    return lines[0][:200] if lines else type(error).__name__


def _some_names(infos: Iterable[TensorInfo], count: int = 5) -> str:
    names = [info.name for info in infos]
    more = f" and {len(names) - count} more" if len(names) > count else ""
    return ", ".join(names[:count]) + more
