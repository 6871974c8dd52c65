"""Baselines of the products: torch's own operators, with the same operands.

``prepare`` does the work of a framework that loads weights (layout, scales) once, and returns a call that
is timed like our kernels. If an operator does not support a shape or a chip, its error message is kept as
the reason."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.products.operands import Operands

Call = Callable[[], Tensor]
Prepare = Callable[[Operands], Call]
E4M3_MAX, INT8_MAX = 448.0, 127


@dataclass(frozen=True)
class Baseline:
    """Operator of torch, by the name that users know. ``captured`` False: it synchronizes with the host
    within the call, so that no CUDA graph can hold it, and is launched one call after another."""

    label: str
    prepare: Prepare
    captured: bool = True


@contextmanager
def tf32_allowed(allowed: bool) -> Iterator[None]:
    """Allow or forbid TF32 inputs of float32 products inside this context; the global flag is restored
    afterwards."""
    before = torch.backends.cuda.matmul.allow_tf32
    torch.backends.cuda.matmul.allow_tf32 = allowed
    try:
        yield
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def _matmul(dtype: torch.dtype, tf32: bool = False) -> Prepare:
    def prepare(ops: Operands) -> Call:
        x, w = ops.x.values.to(dtype), ops.w.values.to(dtype)

        def call() -> Tensor:
            with tf32_allowed(tf32):
                return x @ w.t()

        return call

    return prepare


def _scaled_mm(ops: Operands) -> Call:
    """Multiply both sides as E4M3, with one scale each or one per token and channel, and with fast
    accumulation as in this project's kernels."""
    e4m3, per_row = torch.float8_e4m3fn, ops.x.scheme.block[0] == 1

    def scale(v: Tensor) -> Tensor:
        largest = v.abs().amax(1, keepdim=True) if per_row else v.abs().amax().reshape(())
        return largest / E4M3_MAX

    x, w = ops.x.values.float(), ops.w.values.float()
    scale_x, scale_w = scale(x), scale(w)
    x8, w8 = (x / scale_x).to(e4m3), (w / scale_w).to(e4m3).t()
    scale_w = scale_w.t().contiguous() if per_row else scale_w
    return lambda: torch._scaled_mm(x8, w8, scale_x, scale_w, out_dtype=torch.bfloat16, use_fast_accum=True)


def _scaled_blocks(ops: Operands) -> Call:
    from torch.nn.functional import ScalingType, scaled_mm

    e4m3 = torch.float8_e4m3fn
    x8, w8 = ops.x.q.packed.view(e4m3), ops.w.q.packed.view(e4m3)
    # Both scales need a first axis of stride 1, even where that axis has one row.
    tokens, blocks = ops.x.q.scales.scale.shape
    scale_x = ops.x.q.scales.scale.t().contiguous().as_strided((tokens, blocks), (1, tokens))
    scale_w = ops.w.q.scales.scale.contiguous().t()
    one, block = ScalingType.BlockWise1x128, ScalingType.BlockWise128x128
    return lambda: scaled_mm(x8, w8.t(), scale_x, one, scale_w, block, output_dtype=torch.bfloat16)


def _int8_sides(ops: Operands) -> tuple[Tensor, Tensor]:
    """Return X and W as int8 of the same shape; narrower codes are replaced by random ones, as time depends
    on the shape alone."""
    x, w = ops.x.q.packed, ops.w.q.packed
    if x.shape == ops.x.values.shape and w.shape == ops.w.values.shape:
        return x.view(torch.int8), w.view(torch.int8)
    device = ops.x.values.device
    generator = torch.Generator(device=device).manual_seed(0)

    def random(like: Tensor) -> Tensor:
        size = (-INT8_MAX, INT8_MAX + 1, like.shape)
        return torch.randint(*size, generator=generator, device=device, dtype=torch.int8)

    return random(ops.x.values), random(ops.w.values)


def _int_mm(ops: Operands) -> Call:
    x, w = _int8_sides(ops)
    return lambda: torch._int_mm(x, w.t())


def _quantize_int_mm(ops: Operands) -> Call:
    w, scale_w = ops.w.q.packed.view(torch.int8), ops.w.q.scales.scale.reshape(1, -1)
    x = ops.x.values

    def call() -> Tensor:
        scale = x.abs().amax(1, keepdim=True).float() / INT8_MAX
        codes = (x / scale).round().clamp(-INT8_MAX, INT8_MAX).to(torch.int8)
        return (torch._int_mm(codes, w.t()) * scale * scale_w).to(torch.bfloat16)

    return call


def _tinygemm(ops: Operands) -> Call:
    """Multiply by torch's int4 weight-only product, group 128: unsigned codes with a scale and a zero per
    group, in its own layout."""
    group = ops.w.scheme.block[1]
    codes = ops.w.q.codes.to(torch.int32)
    signed = torch.where(codes > 7, codes - 16, codes)
    unsigned = (signed + 8).to(torch.uint8)
    packed = torch.ops.aten._convert_weight_to_int4pack(unsigned[:, 0::2] << 4 | unsigned[:, 1::2], 8)
    scale = ops.w.q.scales.stored.to(torch.bfloat16)
    scale_and_zero = torch.stack([scale, torch.zeros_like(scale)], 2).transpose(0, 1).contiguous()
    x = ops.x.values.to(torch.bfloat16)
    return lambda: torch.ops.aten._weight_int4pack_mm(x, packed, group, scale_and_zero)


def _fake_quantized(ops: Operands) -> Call:
    x, w = ops.x.values.to(torch.bfloat16), ops.w.values.to(torch.bfloat16)

    def fake_quantize(v: Tensor) -> Tensor:
        scale = v.abs().amax(1).float() / INT8_MAX
        zero = torch.zeros(v.shape[0], dtype=torch.int32, device=v.device)
        restored = torch.fake_quantize_per_channel_affine(v.float(), scale, zero, 0, -INT8_MAX, INT8_MAX)
        return restored.to(torch.bfloat16)

    return lambda: fake_quantize(x) @ fake_quantize(w).t()


FP32 = Baseline("torch.matmul FP32", _matmul(torch.float32))
TF32 = Baseline("torch.matmul TF32", _matmul(torch.float32, True))
FP16 = Baseline("torch.matmul FP16", _matmul(torch.float16))
BF16 = Baseline("torch.matmul BF16", _matmul(torch.bfloat16))
SCALED_MM = Baseline("torch._scaled_mm", _scaled_mm)
SCALED_BLOCKS = Baseline("torch scaled_mm, block-wise", _scaled_blocks)
INT_MM = Baseline("torch._int_mm", _int_mm)
QUANTIZE_INT_MM = Baseline("torch quantize + _int_mm", _quantize_int_mm)
TINYGEMM = Baseline("torch tinygemm int4", _tinygemm)
FAKE = Baseline("torch fake-quantize + matmul", _fake_quantized, captured=False)
