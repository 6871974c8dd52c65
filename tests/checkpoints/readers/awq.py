"""By the arithmetic of gptqmodel's ``dequantize_gemm``, written out (see ``gptq``)."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from explorer import Scheme
from tests.checkpoints.reading import parts_of


def read(path: Path, scheme: Scheme) -> Tensor:
    """The weight float16 [N, K] of a file of one tensor."""
    return awq_weight(parts_of(path))


def dtype(scheme: Scheme) -> torch.dtype:
    """Scales are float16, and so are weights."""
    return torch.float16


def awq_weight(parts: dict[str, Tensor]) -> Tensor:
    """float16 [N, K]: eight outputs a word, taken out in the order 0 4 1 5 2 6 3 7."""
    shifts = 4 * torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    codes, zeros = (((parts[key][:, :, None] >> shifts) & 15).flatten(1) for key in ("qweight", "qzeros"))
    group = len(codes) // len(zeros)
    points, scales = (x.repeat_interleave(group, 0) for x in (zeros, parts["scales"]))
    return ((codes - points).half() * scales).t()
