"""By ``dequantize`` of the package gguf."""

from __future__ import annotations

from pathlib import Path

import gguf
import torch
from gguf.quants import dequantize
from torch import Tensor

from explorer import Scheme
from tests.checkpoints.reading import NAME


def read(path: Path, scheme: Scheme) -> Tensor:
    """The weight [N, K] of a file of one tensor."""
    (tensor,) = gguf.GGUFReader(path).tensors
    assert tensor.name == f"{NAME}.weight"
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))
