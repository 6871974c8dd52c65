"""Modules whose scales stay in float32 when a model changes its dtype."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

from torch import Tensor, nn


class Float32State(nn.Module):
    """A module of which ``.to(dtype)``, ``.half()``, ``.bfloat16()`` leave some float32 tensors as they are.

    ``in_float32`` names those parameters and buffers: scales, step sizes, ranges. They still change their
    device. A scale rounded to bfloat16 moves all values of its block by up to 0.2 %.
    """

    in_float32: ClassVar[tuple[str, ...]] = ()

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Any:
        kept = [getattr(self, name) for name in self.in_float32]
        kept += [tensor.grad for tensor in kept if isinstance(tensor, nn.Parameter)]
        # The tensors themselves are compared, by identity: fn may be called on equal ones of other modules.
        kept_ids = {id(tensor) for tensor in kept if tensor is not None}

        def moved(tensor: Tensor) -> Tensor:
            out = fn(tensor)
            if id(tensor) in kept_ids and out.dtype != tensor.dtype:
                return tensor.to(out.device)
            return out

        return super()._apply(moved, recurse)
