"""GGUF files, by the package ``gguf``: names, shapes and types from the header, tensors restored to float32.

The package maps the file and trusts its header more than the other readers do, so that only files of this
machine are opened (``SourceLimits.folders``).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from explorer.progress import Progress
from explorer.sources.base import SourceError, TensorInfo, TensorSource, check_claims
from explorer.sources.limits import SourceLimits

SUFFIX = ".gguf"
CODED = ("Q", "IQ", "TQ", "MXFP", "NVFP")
"""What the names of types begin with that are codes and scales; no dtype of other files does."""


class GgufFile(TensorSource):
    """One .gguf file. A tensor of codes is read as the float32 values that they stand for; ``dtype`` says
    which type it has. Shapes are those of torch: a weight is [output channels, input channels]."""

    def __init__(self, path: Path, limits: SourceLimits) -> None:
        self.origin, self.paths = path.name, (path,)
        try:
            from gguf import GGUFReader
        except ImportError as error:
            raise SourceError(
                f"{path.name}: GGUF files are read by the package gguf: pip install gguf"
            ) from error
        try:
            self._tensors = {tensor.name: tensor for tensor in GGUFReader(path).tensors}
        except Exception as error:  # whatever a header that is none makes the package raise
            raise SourceError(f"{path.name} is not a readable GGUF file: {type(error).__name__}") from error
        self._infos = tuple(
            TensorInfo(name, tuple(int(n) for n in reversed(t.shape)), t.tensor_type.name)
            for name, t in self._tensors.items()
        )
        check_claims(self._infos, self.origin, limits)

    @property
    def infos(self) -> tuple[TensorInfo, ...]:
        return self._infos

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        from gguf.quants import dequantize

        tensor = self._tensors[info.name]
        values = dequantize(tensor.data[:rows], tensor.tensor_type)
        shape = info.shape if rows is None else (rows, *info.shape[1:])
        return torch.from_numpy(np.array(values)).reshape(shape)
