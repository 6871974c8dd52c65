"""By ``decompress`` of the format's own compressor."""

from __future__ import annotations

from pathlib import Path

import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from torch import Tensor

from explorer import Scheme
from explorer.checkpoints.to_compressed_tensors import CompressedLayout, compressed_layout
from tests.checkpoints.reading import parts_of


def read(path: Path, scheme: Scheme) -> Tensor:
    """The weight [N, K] of a file of one tensor."""
    return read_by(path, compressed_layout(scheme))


def read_by(path: Path, layout: CompressedLayout | None) -> Tensor:
    """The weight of a file of one tensor in ``layout``."""
    assert layout is not None
    weights = QuantizationArgs(**layout.weights)
    said = QuantizationScheme(targets=["Linear"], weights=weights, format=layout.format)
    reader = BaseCompressor.get_value_from_registry(layout.format)
    return reader.decompress(parts_of(path), said)["weight"]


def dtype(scheme: Scheme) -> torch.dtype:
    """MX and NVFP4 are restored to bfloat16."""
    layout = compressed_layout(scheme)
    return torch.bfloat16 if layout is not None and layout.bfloat16 else torch.float32
