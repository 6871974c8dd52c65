"""By the arithmetic of gptqmodel's ``TorchLinear``, written out: the package asks for another torch and
compiles an extension when it first loads."""

from __future__ import annotations

from pathlib import Path

import torch
from torch import Tensor

from explorer import Scheme
from tests.checkpoints.reading import parts_of


def read(path: Path, scheme: Scheme) -> Tensor:
    """The weight float16 [N, K] of a file of one tensor."""
    return gptq_weight(parts_of(path), scheme.format.bits, 2 if scheme.asymmetric else 1)


def dtype(scheme: Scheme) -> torch.dtype:
    """Scales are float16, and so are weights."""
    return torch.float16


def gptq_weight(parts: dict[str, Tensor], bits: int, version: int) -> Tensor:
    """float16 [N, K], bit by bit: code k of column n is at bit k · b of the column's words."""
    codes = _stream(parts["qweight"].t(), bits)  # [N, K]
    points = _stream(parts["qzeros"], bits) + (1 if version == 1 else 0)  # [groups, N]
    group = parts["g_idx"].long()
    return (parts["scales"][group] * (codes.t() - points[group]).half()).t()


def _stream(words: Tensor, bits: int) -> Tensor:
    """int64 [rows, codes] of int32 [rows, words]."""
    each = ((words.long() & 0xFFFFFFFF)[:, :, None] >> torch.arange(32)) & 1
    return (each.flatten(1).unflatten(1, (-1, bits)) << torch.arange(bits)).sum(2)
