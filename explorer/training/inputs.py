"""Quantizers of a layer's inputs: with scales of each batch, or under one range observed beforehand."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from explorer.core.ops import fake_quantize, static_quantize, straight_through
from explorer.formats import IntegerFormat
from explorer.schemes import Scheme
from explorer.schemes.calibrators import Range
from explorer.schemes.observer import OBSERVED, Observer

ONE_SCALE = "static inputs have one range: give activations a scheme with one scale for the whole tensor"


class Float32State(nn.Module):
    """Module that keeps some float32 tensors under ``.to(dtype)``, ``.half()`` and ``.bfloat16()``.

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


class DynamicInputs(nn.Module):
    """Quantizer of inputs of any leading shape by ``scheme``: scales per block of each batch.

    The gradient is zero for clipped values if ``masked``, otherwise passed on unchanged.
    """

    def __init__(self, scheme: Scheme, masked: bool = True) -> None:
        super().__init__()
        self.scheme, self.masked = scheme, masked

    def forward(self, x: Tensor) -> Tensor:
        return (fake_quantize if self.masked else straight_through)(x, self.scheme)

    def extra_repr(self) -> str:
        return self.scheme.name


class StaticInputs(Float32State):
    """Quantizer of inputs of any leading shape by ``scheme`` under one range, ``low`` ... ``high``, for all
    batches.

    While ``observing``, batches pass unchanged, and an ``Observer`` finds their range by the scheme's
    calibrator. The gradient is zero for clipped values. ``ValueError`` for a scheme of more than one scale,
    or with a calibrator that no observer has; and in the forward pass while no range is known.
    """

    low: Tensor
    high: Tensor
    in_float32: ClassVar[tuple[str, ...]] = ("low", "high")

    def __init__(self, scheme: Scheme, device: torch.device | None = None) -> None:
        super().__init__()
        _check_static(scheme)
        self.scheme, self.observer = scheme, Observer()
        self.observing, self._known = False, False
        self.register_buffer("low", torch.zeros(1, 1, device=device))
        self.register_buffer("high", torch.zeros(1, 1, device=device))

    def forward(self, x: Tensor) -> Tensor:
        if self.observing:
            self.observer.add(x)
            found = self.observer.clip_range(self.scheme.calibrator.name, 1 << (self.scheme.format.bits - 1))
            self.low.copy_(found.low)
            self.high.copy_(found.high)
            self._known = self.observer.amax > 0
            return x
        if not self._known:
            self.check_range()
        return static_quantize(x, Range(self.low, self.high), self.scheme)

    def check_range(self) -> None:
        """``ValueError`` while no range is known. Once it is, the forward pass does not check again: that
        would wait for the GPU, and break the compiled graph."""
        self._known = bool(self.high > self.low)
        if not self._known:
            raise ValueError(
                "calibrate first: no range of inputs is known yet; "
                "run some batches between observe(model, True) and observe(model, False)"
            )

    def _load_from_state_dict(self, *arguments: Any) -> None:
        super()._load_from_state_dict(*arguments)
        self._known = bool(self.high > self.low)

    def extra_repr(self) -> str:
        return self.scheme.name


def _check_static(scheme: Scheme) -> None:
    if scheme.block != (None, None) or scheme.scale is None:
        raise ValueError(ONE_SCALE)
    name = scheme.calibrator.name
    if name not in OBSERVED:
        raise ValueError(f"the range of static inputs is found by {', '.join(OBSERVED)}, not by {name}")
    if name == "mse" and scheme.asymmetric:
        raise ValueError(
            "least squared error over batches is searched in a histogram of |x|, which does not tell the two "
            "ends of an asymmetric range apart: take minmax or percentile, or a symmetric scheme"
        )
    if name == "mse" and not isinstance(scheme.format, IntegerFormat):
        raise ValueError("static inputs are calibrated by mse for integers, whose codes are evenly spaced")
