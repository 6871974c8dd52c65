"""By ``decompress`` of compressed-tensors, whose layout it is."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from explorer import Scheme
from explorer.checkpoints.to_vllm import loaded_layout
from tests.checkpoints.readers.compressed_tensors import dtype, read_by

__all__ = ["dtype", "read"]


def read(path: Path, scheme: Scheme) -> Tensor:
    """The weight [N, K] of a file of one tensor."""
    return read_by(path, loaded_layout(scheme) or loaded_layout(scheme, inputs=True))
