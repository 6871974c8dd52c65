"""Files of torch.save: a separate process reads the pickle, this one reads the bytes of a tensor."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explorer.progress import Progress
from explorer.sources.base import SourceError, TensorInfo, check_claims, refused
from explorer.sources.coded import CodedSource
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile

_READER = Path(__file__).with_name("pickle_reader.py")
_ONLY_TENSORS = "Only tensors and dicts or lists of them are read; pickled objects are refused"
_START_SECONDS = 30
"""Time allowed for starting the reader on a busy machine, in addition to its processor time."""


@dataclass(frozen=True)
class _Strided:
    """Tensor with its first element at byte ``start`` of the file; ``stride`` counts elements."""

    info: TensorInfo
    dtype: torch.dtype
    start: int
    stride: tuple[int, ...]

    def span(self, shape: Sequence[int]) -> int:
        """Number of bytes from the first to the last element of a tensor of ``shape``."""
        steps = ((n - 1) * step for n, step in zip(shape, self.stride, strict=True))
        return 0 if 0 in shape else (sum(steps) + 1) * self.dtype.itemsize


class TorchFile(CodedSource):
    """Dense tensors of a .pt file, by their dotted names in its dicts and lists."""

    def __init__(self, path: Path, origin: str, limits: SourceLimits) -> None:
        self.origin, self._file = origin, StampedFile(path, origin)
        what = f"{origin} could not be loaded as plain tensors"
        answer = _answer_of_reader(self._file, what, limits)
        self._tensors: dict[str, _Strided] = {}
        with refused(what):
            listed = [self._checked(entry, limits) for entry in answer]
        if not listed:
            raise SourceError(f"{origin} holds no tensors")
        for tensor in listed:
            if self._tensors.setdefault(tensor.info.name, tensor) is not tensor:
                self.broken += (f"{origin}: a second tensor called {tensor.info.name}",)
        self.stored = tuple(tensor.info for tensor in self._tensors.values())

    def _checked(self, entry: dict[str, Any], limits: SourceLimits) -> _Strided:
        """Validate one line of the reader's answer, which is trusted no more than the file."""
        info, start = TensorInfo(entry["name"], tuple(entry["shape"]), entry["dtype"]), entry["start"]
        check_claims((info,), self.origin, limits)
        dtype = getattr(torch, info.dtype, None)
        if not isinstance(dtype, torch.dtype):
            raise SourceError(
                f"{self.origin}: {info.name} is {info.dtype}, no dtype of torch {torch.__version__}"
            )
        tensor = _Strided(info, dtype, start, tuple(entry["stride"]))
        if start + tensor.span(info.shape) > min(entry["stop"], self._file.size) or start < 0:
            raise SourceError(f"{self.origin}: {info.name} is cut short or larger than its storage")
        if math.prod(info.shape) * dtype.itemsize > self._file.size:
            raise SourceError(f"{self.origin}: {info.name} repeats its elements beyond the size of the file")
        return tensor

    def read_stored(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        tensor = self._tensors[info.name]
        shape = info.shape if rows is None else (rows, *info.shape[1:])
        if (size := tensor.span(shape)) == 0:
            return torch.empty(shape, dtype=tensor.dtype)
        codes = torch.frombuffer(self._file.read(tensor.start, size), dtype=torch.uint8)
        flat = codes != 0 if tensor.dtype is torch.bool else codes.view(tensor.dtype)
        return flat.as_strided(shape, tensor.stride).contiguous()


def _answer_of_reader(file: StampedFile, what: str, limits: SourceLimits) -> list[dict[str, Any]]:
    """Run pickle_reader.py on ``file`` within the time and memory of ``limits``; the tensors that it
    finds."""
    bounds = (limits.pickle_seconds, limits.pickle_bytes, limits.tensors, limits.header_bytes)
    command = [sys.executable, "-I", "-S", str(_READER), *map(str, bounds)]
    with (
        file.open() as stream,
        subprocess.Popen(
            command, stdin=stream, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, env={}, cwd="/"
        ) as reader,
    ):
        watch = threading.Timer(limits.pickle_seconds + _START_SECONDS, reader.kill)
        watch.start()
        try:
            assert reader.stdout is not None
            printed = reader.stdout.read(limits.header_bytes + 1)
        finally:
            watch.cancel()
            reader.kill()
    if len(printed) > limits.header_bytes:
        raise SourceError(f"{what}: its names and shapes take more than {limits.header_bytes:,} bytes")
    try:
        answer = json.loads(printed)
    except ValueError as error:
        raise SourceError(
            f"{what}: reading it took more than {limits.pickle_seconds} s or {limits.pickle_bytes:,} bytes. "
            f"{_ONLY_TENSORS}"
        ) from error
    if "refused" in answer:
        raise SourceError(f"{what}: {answer['refused']}. {_ONLY_TENSORS}")
    tensors: list[dict[str, Any]] = answer["tensors"]
    return tensors
