"""torch's products on a CPU: oneDNN and MKL, FBGEMM for INT8, and ATen's kernels for packed weights."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from functools import partial

import torch
from torch import Tensor

from explorer.checkpoints.integer_words import unsigned
from explorer.core.quantize import quantize
from explorer.cpu.kernels import BF16, F32, S8, Call, CpuKernel, Held, Library
from explorer.schemes import Scheme

TORCH = Library("torch", ("torch",), "pip install torch")
_INNER_TILES = 1
"""Argument of the packing that the CPU's layout does not use."""
_FBGEMM_TILE, _FBGEMM_MOST = (64, 512), 1 << 30
"""Rows and columns to which FBGEMM pads W, at most, and a bound on the padded size: its packing counts in 32
bits, and ends the process where 4,194,304 × 1 becomes 2^31."""
_VECTOR = 32
"""BF16 values of the widest vector of a CPU (AVX-512)."""


def plain(dtype: torch.dtype, core: str) -> CpuKernel:
    """Multiply by ``torch.nn.functional.linear`` with X and W in ``dtype``."""

    def hold(w: Tensor, _scheme: Scheme) -> Held:
        kept = w.to(dtype)

        def bind(x: Tensor, _threads: int) -> Call:
            return partial(torch.nn.functional.linear, x.to(dtype), kept)

        return Held(kept.nbytes, bind)

    return CpuKernel("torch", TORCH, hold, core)


FLOAT32 = plain(torch.float32, F32)
FLOAT16 = plain(torch.float16, F32)
BFLOAT16 = plain(torch.bfloat16, BF16)


def _dynamic(w: Tensor, scheme: Scheme) -> Held:
    """Multiply like ``torch.ao.quantization.quantize_dynamic``: a scale a row of W; X as uint8 with one
    scale, found in every call, in seven bits, so that 16-bit sums of two products cannot overflow."""
    if math.prod(-(-n // tile) * tile for n, tile in zip(w.shape, _FBGEMM_TILE, strict=True)) > _FBGEMM_MOST:
        raise ValueError(f"linear_prepack takes no W of {w.shape[0]:,} × {w.shape[1]:,}, padded to its tiles")
    q = quantize(w, scheme)
    codes, scale = q.codes.view(torch.int8), q.scales.scale.reshape(-1)
    rows = scale.numel()
    zeros = torch.zeros(rows, dtype=torch.long)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # that later versions may lack these tensors
        made = torch._make_per_channel_quantized_tensor(codes.contiguous(), scale.double(), zeros, 0)
    packed = torch.ops.quantized.linear_prepack(made, None)

    def bind(x: Tensor, _threads: int) -> Call:
        return partial(torch.ops.quantized.linear_dynamic, x, packed, True)

    return Held(codes.nbytes + scale.nbytes, bind)


def _int8_weights(w: Tensor, scheme: Scheme) -> Held:
    """Hold W as codes and a scale a row. torch reads whole vectors of a row of any length: beyond its end,
    which is another row's memory or none, where a read ends the process."""
    if w.shape[1] % _VECTOR:
        raise ValueError(
            f"_weight_int8pack_mm takes rows of a multiple of {_VECTOR} values, not {w.shape[1]}"
        )
    q = quantize(w, scheme)
    codes, scale = q.codes.view(torch.int8), q.scales.scale.reshape(-1).to(torch.bfloat16)

    def bind(x: Tensor, _threads: int) -> Call:
        return partial(torch.ops.aten._weight_int8pack_mm, x.to(torch.bfloat16), codes, scale)

    return Held(codes.nbytes + scale.nbytes, bind)


def _int4_weights(w: Tensor, scheme: Scheme) -> Held:
    """Lay W out as torch's own group-wise INT4: unsigned codes around 8, a scale and an offset a group."""
    q = quantize(w, scheme)
    packed = torch.ops.aten._convert_weight_to_int4pack_for_cpu(unsigned(q).to(torch.int32), _INNER_TILES)
    scale = q.scales.scale.to(torch.bfloat16)
    pairs = torch.stack([scale, torch.zeros_like(scale)], 2).transpose(0, 1).contiguous()
    group = scheme.block[1]

    def bind(x: Tensor, _threads: int) -> Call:
        return partial(torch.ops.aten._weight_int4pack_mm_for_cpu, x.to(torch.bfloat16), packed, group, pairs)

    return Held(packed.nbytes + pairs.nbytes, bind)


def _packed(name: str, operator: str, hold: Callable[[Tensor, Scheme], Held], core: str) -> CpuKernel:
    """Make a kernel of an operator that some versions of torch lack."""

    def checked(w: Tensor, scheme: Scheme) -> Held:
        if not hasattr(torch.ops.aten, operator):
            raise ValueError(f"torch {torch.__version__} has no {operator}")
        return hold(w, scheme)

    return CpuKernel(name, TORCH, checked, core)


DYNAMIC = CpuKernel("torch", TORCH, _dynamic, S8)
INT8_WEIGHTS = _packed("torch, X in BF16", "_weight_int8pack_mm", _int8_weights, F32)
INT4_WEIGHTS = _packed("torch, X in BF16", "_weight_int4pack_mm_for_cpu", _int4_weights, F32)
