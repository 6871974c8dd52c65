"""The dtype that a model's files are in."""

from __future__ import annotations

from collections.abc import Iterable

import torch

from explorer.sources.base import TensorInfo

_SHORT = {"F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16}


def stored_dtype(named: object, infos: Iterable[TensorInfo]) -> torch.dtype:
    """The dtype that a configuration names ("bfloat16", "torch.bfloat16"), else that of the first
    floating-point tensor; float32 where there is none."""
    dtype = getattr(torch, str(named or "").removeprefix("torch."), None)
    if isinstance(dtype, torch.dtype) and dtype.is_floating_point:
        return dtype
    return next((_SHORT[info.dtype] for info in infos if info.dtype in _SHORT), torch.float32)
