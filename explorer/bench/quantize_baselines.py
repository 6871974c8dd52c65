"""Baselines of quantization: torch's own cast, and ``torch.compile`` of the same computation with packed
codes."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from explorer.schemes import SCHEMES, Scheme

Function = Callable[[Tensor], object]
INT8_MAX, INT4_MAX, E4M3_MAX, E2M1_MAX = 127, 7, 448, 6.0
CASTS = {
    SCHEMES["fp8_e4m3_cast"].name: torch.float8_e4m3fn,
    SCHEMES["fp8_e5m2_cast"].name: torch.float8_e5m2,
}


def torch_cast(scheme: Scheme) -> Function | None:
    """torch's own cast, for FP8 without a scale; None for other schemes."""
    dtype = CASTS.get(scheme.name)
    return None if dtype is None else lambda x: x.to(dtype)


def torch_compiled(scheme: Scheme) -> Function | None:
    """The scheme's mathematics through torch.compile, for the schemes in ``MATHEMATICS``; None for others."""
    function = MATHEMATICS.get(scheme.name)
    return None if function is None else torch.compile(function, dynamic=False)


def _int8_channel(x: Tensor) -> tuple[Tensor, Tensor]:
    scale = x.float().abs().amax(1, keepdim=True) / INT8_MAX
    return (x.float() / scale).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8), scale


def _fp8_1x128(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = x.float().unflatten(1, (-1, 128))
    scale = blocks.abs().amax(2, keepdim=True) / E4M3_MAX
    return (blocks / scale).clamp(-E4M3_MAX, E4M3_MAX).to(torch.float8_e4m3fn), scale


def _int4_group128(x: Tensor) -> tuple[Tensor, Tensor]:
    blocks = x.float().unflatten(1, (-1, 128))
    scale = (blocks.abs().amax(2, keepdim=True) / INT4_MAX).to(torch.float16)
    codes = (blocks / scale.float()).round().clamp(-INT4_MAX, INT4_MAX).to(torch.int8).to(torch.uint8) & 15
    return _nibbles(codes), scale


def _mxfp4(x: Tensor) -> tuple[Tensor, Tensor]:
    """Scales by the OCP rule from the exponent's bits; codes by adding and taking off a power of two that
    leaves one mantissa bit, rounded to nearest even by the addition itself."""
    blocks = x.float().unflatten(1, (-1, 32))
    largest_exponent = blocks.abs().amax(2, keepdim=True).view(torch.int32) >> 23
    exponent = (largest_exponent - 2).clamp(0, 254)
    scaled = (blocks * ((254 - exponent) << 23).view(torch.float32)).abs().clamp(max=E2M1_MAX)
    magic = ((scaled.view(torch.int32) & 0x7F800000).clamp(min=127 << 23) + (22 << 23)).view(torch.float32)
    codes = ((((scaled + magic) - magic) * 2.0**-126).view(torch.int32) >> 22).to(torch.uint8)
    signs = ((blocks.view(torch.int32) >> 28) & 8).to(torch.uint8)
    return _nibbles(codes | signs), exponent.to(torch.uint8)


def _nibbles(codes: Tensor) -> Tensor:
    """Two codes a byte, the first in the low bits."""
    return codes[..., 0::2] | (codes[..., 1::2] << 4)


MATHEMATICS: dict[str, Callable[[Tensor], tuple[Tensor, Tensor]]] = {
    SCHEMES["int8_row"].name: _int8_channel,
    SCHEMES["fp8_e4m3_1x128"].name: _fp8_1x128,
    SCHEMES["int4_group128"].name: _int4_group128,
    SCHEMES["mxfp4"].name: _mxfp4,
}
"""Schemes that are also timed as torch.compile makes them."""
