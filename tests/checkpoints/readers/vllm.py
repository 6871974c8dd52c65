"""By ``decompress`` of compressed-tensors, whose layout it is."""

from __future__ import annotations

from pathlib import Path

from torch import Tensor

from explorer import Scheme
from explorer.checkpoints.to_vllm import layout_of
from tests.checkpoints.readers.compressed_tensors import dtype, read_by

__all__ = ["dtype", "read"]


def read(path: Path, scheme: Scheme) -> Tensor:
    """The weight [N, K] of a file of one tensor."""
    return read_by(path, layout_of(scheme) or layout_of(scheme, inputs=True))
