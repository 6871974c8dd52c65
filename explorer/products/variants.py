"""Kernels that compute a product, as ``Variant``s: their preparation, launch and builds.

``prepare`` does the work that an engine does once, when a model is loaded (layouts of W, vectors of the
epilogue), and returns a call without arguments, which is timed. Work of every call (widening weights,
quantizing X) is part of it.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.formats import IntegerFormat
from explorer.gpu import gemm as kernel
from explorer.gpu.runtime import Build
from explorer.products import epilogues, layouts
from explorer.products.layouts import per_byte_of, weight_of
from explorer.products.operands import Operands
from explorer.schemes import Scheme

Call = Callable[[], Tensor]
Prepare = Callable[[Operands], Call]
Builds = Callable[[Scheme, Scheme, torch.dtype], tuple[Build, ...]]
"""Schemes of X and W and the output's dtype -> every compilation that the variant can need."""
BF16_HALF_ULP = 2.0**-8
"""Relative error of rounding to bfloat16, which has eight bits of precision."""
ALL_OF_K, HOPPER, BLACKWELL_RTX = 1 << 30, 9, 12
FP8_KINDS = ("e4m3", "e5m2")


@dataclass(frozen=True)
class Variant:
    """One kernel for a product.

    capability         the least compute capability it runs on
    only_major         the only major version that it has code for (0: any from ``capability`` on)
    rounding           relative error of operands rounded to bfloat16 on the way
    folds              8-bit format that W's group scales are folded into: its values are then
                       ``layouts.folded_weights``
    fp8_accumulate_k   elements of K accumulated at the tensor core's FP8 precision (13 mantissa bits) before
                       promotion to float32; 0 if sums never have so few bits
    tested             True if it was run in tests; others are compiled only, and labelled so
    """

    name: str
    file: str
    prepare: Prepare
    builds: Builds
    capability: tuple[int, int] = (7, 5)
    only_major: int = 0
    rounding: float = 0.0
    folds: kernel.OperandType | None = None
    fp8_accumulate_k: int = 0
    tested: bool = True

    def runs_on(self, capability: tuple[int, int]) -> bool:
        """True if this kernel supports the chip."""
        return capability[0] == self.only_major if self.only_major else capability >= self.capability

    @property
    def chips(self) -> str:
        """Chips that it has code for, in nvcc's names: "sm_90a", "from sm_80"."""
        if self.only_major:
            return f"sm_{self.only_major}0a"
        return f"from sm_{self.capability[0]}{self.capability[1]}"

    def run(self, operands: Operands) -> Tensor:
        """Prepare and launch once: [M, N] in the product's dtype."""
        return self.prepare(operands)()


# --- CUDA cores ------------------------------------------------------------------------------------


def _decoding(name: str, tiled: bool) -> Variant:
    def prepare(ops: Operands) -> Call:
        x, w = layouts.codes_on_grid(ops.x.q), layouts.codes_on_grid(ops.w.q)
        epilogue, k = epilogues.unscaled(ops), ops.shape[2]
        return lambda: kernel.gemm_reference(x, w, k, epilogue, tiled)

    def builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        codecs = x.format.cuda_codec, w.format.cuda_codec
        return (kernel.reference_build(*codecs, per_byte_of(x.format), per_byte_of(w.format), out, tiled),)

    return Variant(name, f"gemm_{name}.cu", prepare, builds)


NAIVE = _decoding("naive", False)
TILED = _decoding("tiled", True)


def _on_rows(
    name: str,
    file: str,
    launch: Callable[..., Tensor],
    builds: Callable[[torch.dtype], tuple[Build, ...]],
    epilogue: Callable[[Operands], kernel.Epilogue] = epilogues.scaled,
    scales: Callable[[Operands], tuple[Tensor, ...]] = lambda _: (),
    **facts: Any,
) -> Variant:
    """Make a kernel that takes the bytes of both sides as they are stored, ``launch(x, w, epilogue,
    *scales)``; ``facts`` are further fields of the variant."""

    def prepare(ops: Operands) -> Call:
        operands = *_rows(ops), epilogue(ops), *scales(ops)
        return lambda: launch(*operands)

    return Variant(name, file, prepare, lambda _x, _w, out: builds(out), **facts)


def _rows(ops: Operands) -> tuple[Tensor, Tensor]:
    return layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q)


def _block_scales(ops: Operands) -> tuple[Tensor, Tensor]:
    return layouts.x_block_scales(ops.x.q), layouts.w_block_scales(ops.w.q)


def _words(op: kernel.WordOp, epilogue: Callable[[Operands], kernel.Epilogue]) -> Variant:
    """Multiply 32-bit words of both sides, by one instruction of the CUDA cores."""
    return _on_rows(
        op.value,
        "gemm_simt32.cu",
        lambda x, w, last: kernel.gemm_simt32(x, w, op, last),
        lambda out: (kernel.simt32_build(op, out),),
        epilogue,
    )


def _add_subtract(ops: Operands) -> Call:
    w, epilogue = layouts.weight_rows(ops.w.q), epilogues.scaled(ops)
    x = layouts.activation_rows(ops.x.q, w.shape[1] * 4).view(torch.uint8)
    return lambda: kernel.gemm_addsub(x, w, epilogue)


DP4A = _words(kernel.WordOp.DP4A, epilogues.scaled)
POPC = _words(kernel.WordOp.POPC, epilogues.bits_xor)
ADD_SUBTRACT = Variant(
    "add/subtract", "gemm_addsub.cu", _add_subtract, lambda _x, _w, out: (kernel.addsub_build(out),)
)


# --- tensor cores on operands as they are ------------------------------------------------------------


def _wgmma_builds(
    kind: str, out: torch.dtype, scale_k: kernel.ScaleK = kernel.ScaleK.NONE
) -> tuple[Build, ...]:
    return tuple(kernel.wgmma_build(kind, out, tile) for tile in kernel.wgmma_tiles(scale_k))


def mma(kind: str) -> Variant:
    """Multiply operands of one type by mma.sync: from Ampere on, FP8 from Ada on."""
    return _on_rows(
        "mma.sync",
        "gemm_mma.cu",
        lambda x, w, last: kernel.gemm_mma(x, w, kind, last),
        lambda out: (kernel.mma_build(kind, out),),
        epilogues.bits_and if kind == "b1" else epilogues.scaled,
        capability=(8, 9) if kind in FP8_KINDS else (8, 0),
    )


def wgmma(kind: str) -> Variant:
    """Multiply operands of one type by Hopper's asynchronous tensor cores."""
    return _on_rows(
        "wgmma",
        "gemm_wgmma.cu",
        lambda x, w, last: kernel.gemm_wgmma(x, w, kind, last),
        lambda out: _wgmma_builds(kind, out),
        epilogues.bits_and if kind == "b1" else epilogues.scaled,
        only_major=HOPPER,
        fp8_accumulate_k=ALL_OF_K if kind in FP8_KINDS else 0,
    )


WGMMA_BLOCKWISE = _on_rows(
    "wgmma",
    "gemm_wgmma.cu",
    lambda x, w, last, *scales: kernel.gemm_wgmma(x, w, "e4m3", last, kernel.ScaleK.BLOCK, *scales),
    lambda out: _wgmma_builds("e4m3", out, kernel.ScaleK.BLOCK),
    epilogues.unscaled,
    _block_scales,
    only_major=HOPPER,
    fp8_accumulate_k=128,
)
"""FP8 with scales of 1×128 and 128×128, applied to the sums of every 128 of K."""


def block_scaled(element: str) -> Variant:
    """Multiply by the block-scaled instruction of sm_120a: "nvfp4", "mxfp4" or "mxfp8" on both sides."""

    def prepare(ops: Operands) -> Call:
        x, w, epilogue = ops.x.q.packed, ops.w.q.packed, epilogues.tensor_scales(ops)
        x_scales, w_scales = layouts.scale_bytes(ops.x.q), layouts.scale_bytes(ops.w.q)
        return lambda: kernel.gemm_block_scaled(x, w, x_scales, w_scales, element, epilogue)

    def builds(_x: Scheme, _w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        return (kernel.block_scaled_build(element, out),)

    file = "gemm_block_scaled.cu"
    return Variant("block-scaled mma", file, prepare, builds, (12, 0), BLACKWELL_RTX, tested=False)


# --- operands that are converted in the call ---------------------------------------------------------


def dynamic(kind: str, inner: str) -> Variant:
    """Quantize X in the call, then multiply by "mma.sync", "swap A/B" or "wgmma"."""
    variant = {"mma.sync": mma, "swap A/B": swap_ab_dense, "wgmma": wgmma}[inner](kind)

    def prepare(ops: Operands) -> Call:
        w = layouts.byte_rows(ops.w.q)
        tiles = kernel.Tiles(kernel.OperandType(kind))
        torch.cuda.current_stream(w.device).synchronize()  # W lies there before it is launched early
        launch = kernel.gemm_mma if inner == "mma.sync" else kernel.gemm_wgmma

        def call() -> Tensor:
            fresh = dataclasses.replace(ops, x=ops.x.requantized())
            x, epilogue = layouts.byte_rows(fresh.x.q), epilogues.scaled(fresh)
            if inner == "swap A/B":
                return kernel.gemm_swap_ab(x, w, ops.shape[1], tiles, epilogue, early=True)
            return launch(x, w, kind, epilogue)

        return call

    def builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        return (*layouts.builds_of_quantizing(x), *variant.builds(x, w, out))

    return dataclasses.replace(variant, name=f"quantize + {inner}", prepare=prepare, builds=builds)


def _in_registers(ops: Operands) -> Call:
    how, group = weight_of(ops.w.scheme), ops.w.scheme.block[1] or ops.shape[2]
    x, rows = layouts.activation_rows(ops.x.q), layouts.weight_rows(ops.w.q)
    scales, zeros = layouts.weight_scales(ops.w.q), layouts.weight_zeros(ops.w.q)
    epilogue = epilogues.weight_only(ops)
    return lambda: kernel.gemm_dequant_in_registers(x, rows, scales, zeros, how, group, epilogue)


def _x_type(x: Scheme) -> kernel.OperandType:
    """Operand type of X for kernels that decode W in registers."""
    if x.format.bits == 16:
        return kernel.OperandType.BF16
    return kernel.OperandType.S8 if isinstance(x.format, IntegerFormat) else kernel.OperandType.E4M3


def in_registers(rounding: float = 0.0) -> Variant:
    """Decode W in registers on its way to mma.sync: for few tokens."""

    def builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        return tuple(weight_of(w).builds(_x_type(x), out))

    file = "gemm_dequant_in_registers.cu"
    return Variant("registers", file, _in_registers, builds, (8, 0), rounding=rounding)


def _swapped(
    x: Tensor,
    w: Tensor,
    n: int,
    tiles: kernel.Tiles,
    epilogue: kernel.Epilogue,
    x_scale: Tensor | None = None,
    w_scale: Tensor | None = None,
) -> Call:
    """Prepare products that are launched early: layouts of W are in memory before the first launch."""
    torch.cuda.current_stream(w.device).synchronize()
    return lambda: kernel.gemm_swap_ab(x, w, n, tiles, epilogue, x_scale, w_scale, early=True)


def swap_ab(rounding: float = 0.0, fp8_accumulate_k: int = 0, on_weights: bool = False) -> Variant:
    """Decode codes of W in registers, as the 64-row side of wgmma: for few tokens.

    ``on_weights``: scales, and weights times scales, are rounded to bfloat16, as in most engines; otherwise
    the sums of groups are scaled.
    """

    def tiles_for(x: Scheme, w: Scheme) -> kernel.Tiles:
        return layouts.tiles_of(w, _x_type(x), on_weights)

    def prepare(ops: Operands) -> Call:
        tiles = tiles_for(ops.x.scheme, ops.w.scheme)
        x, w = layouts.activation_rows(ops.x.q).view(torch.uint8), layouts.tiled_weights(ops.w.q, tiles)
        return _swapped(x, w, ops.shape[1], tiles, epilogues.tiled(ops, tiles))

    return Variant(
        "swap A/B, scaled weights" if on_weights else "swap A/B",
        "gemm_swap_ab.cu",
        prepare,
        lambda x, w, out: tuple(kernel.swap_ab_builds(tiles_for(x, w), out)),
        only_major=HOPPER,
        rounding=rounding,
        fp8_accumulate_k=fp8_accumulate_k,
    )


def _swap_ab_rows(
    tiles: kernel.Tiles,
    epilogue: Callable[[Operands], kernel.Epilogue],
    scales: Callable[[Operands], tuple[Tensor, ...]],
    fp8_accumulate_k: int,
) -> Variant:
    """Multiply both sides as they are, rows of W as the 64-row side of wgmma: for few tokens."""

    def prepare(ops: Operands) -> Call:
        return _swapped(*_rows(ops), ops.shape[1], tiles, epilogue(ops), *scales(ops))

    return Variant(
        "swap A/B",
        "gemm_swap_ab.cu",
        prepare,
        lambda _x, _w, out: tuple(kernel.swap_ab_builds(tiles, out)),
        only_major=HOPPER,
        fp8_accumulate_k=fp8_accumulate_k,
    )


def swap_ab_dense(kind: str) -> Variant:
    """``_swap_ab_rows`` for operands of one type, with scales that are constant along K."""
    accumulated = ALL_OF_K if kind in FP8_KINDS else 0
    tiles = kernel.Tiles(kernel.OperandType(kind))
    return _swap_ab_rows(tiles, epilogues.scaled, lambda _: (), accumulated)


SWAP_AB_BLOCKWISE = _swap_ab_rows(
    kernel.Tiles(kernel.OperandType.E4M3, scales=kernel.ScalePlace.BLOCK),
    epilogues.unscaled,
    _block_scales,
    128,
)


def dequantize_then_wgmma(both: bool, rounding: float) -> Variant:
    """Dequantize W, or both sides, to bfloat16 in memory, then multiply."""

    def prepare(ops: Operands) -> Call:
        one = torch.ones(1, device=ops.x.q.packed.device)
        plain_x, epilogue = None if both else layouts.byte_rows(ops.x.q), epilogues.tensor_scales(ops)

        def call() -> Tensor:
            x = layouts.dequantized_rows(ops.x.q, one) if plain_x is None else plain_x
            return kernel.gemm_wgmma(x, layouts.dequantized_rows(ops.w.q, one), "bf16", epilogue)

        return call

    def builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        restored = (x, w) if both else (w,)
        return (*layouts.builds_of_dequantizing(*restored), *_wgmma_builds("bf16", out))

    return Variant(
        "dequantize + wgmma",
        "gemm_wgmma.cu",
        prepare,
        builds,
        only_major=HOPPER,
        rounding=rounding,
    )


def widen_scaled_then_wgmma(kind: str) -> Variant:
    """Round 4-bit W times its group scales to int8 or E4M3 in memory, with one scale a row, then multiply.

    The product has the tensor cores' full speed, and another error (``layouts.folded_weights``).
    """
    byte = kernel.OperandType(kind)

    def prepare(ops: Operands) -> Call:
        x, widen, columns = _widening(ops, kind)
        ratios, of_row = layouts.folded_groups(ops.w.q, byte)
        group = ops.w.scheme.block[1] or 1 << columns.bit_length()
        epilogue = dataclasses.replace(_by_row(ops), col_scale=of_row)
        return lambda: kernel.gemm_wgmma(x, widen(ratios, group), kind, epilogue)

    name, accumulated = "widen, scaled weights + wgmma", ALL_OF_K if kind == "e4m3" else 0
    return _widened(name, kind, prepare, kernel.ScaleK.NONE, byte, accumulated)


def widen_then_wgmma(kind: str, grouped: bool) -> Variant:
    """Widen 4- or 2-bit W to int8 or E4M3 in memory, then multiply; ``grouped``: scales are applied every 128
    of K."""

    def prepare(ops: Operands) -> Call:
        x, widen, _ = _widening(ops, kind)
        if not grouped:
            scaled = epilogues.scaled(ops)
            return lambda: kernel.gemm_wgmma(x, widen(), kind, scaled)
        scales, epilogue = layouts.w_group_scales(ops.w.q, -(-x.shape[1] // 128)), _by_row(ops)
        return lambda: kernel.gemm_wgmma(x, widen(), kind, epilogue, kernel.ScaleK.COLUMN, None, scales)

    scale_k = kernel.ScaleK.COLUMN if grouped else kernel.ScaleK.NONE
    return _widened("widen + wgmma", kind, prepare, scale_k, None, 128 if kind == "e4m3" else 0)


def _widening(ops: Operands, kind: str) -> tuple[Tensor, Callable[..., Tensor], int]:
    """Return X in rows as wide as W's, the function that widens W (arguments: ratios of groups and their
    width), and the columns of both."""
    how, packed = weight_of(ops.w.scheme), layouts.weight_rows(ops.w.q)
    columns = packed.shape[1] * 8 // how.bits
    x = layouts.activation_rows(ops.x.q, columns).view(torch.uint8)
    return x, partial(kernel.widen, packed, how.codec, how.bits, how.two_bit, kind == "e4m3"), columns


def _by_row(ops: Operands) -> kernel.Epilogue:
    return dataclasses.replace(epilogues.unscaled(ops), row_scale=epilogues.scale_vector(ops.x.q))


def _widened(
    name: str,
    kind: str,
    prepare: Prepare,
    scale_k: kernel.ScaleK,
    folds: kernel.OperandType | None,
    fp8_accumulate_k: int,
) -> Variant:
    def builds(_x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        how, scaled = weight_of(w), folds is not None
        widening = kernel.widen_build(how.codec, how.bits, how.two_bit, kind == "e4m3", scaled)
        return (widening, *_wgmma_builds(kind, out, scale_k))

    return Variant(
        name,
        "gemm_wgmma.cu",
        prepare,
        builds,
        only_major=HOPPER,
        folds=folds,
        fp8_accumulate_k=fp8_accumulate_k,
    )


def _fake_quantized(ops: Operands) -> Call:
    epilogue = epilogues.unscaled(ops)
    return lambda: kernel.gemm_wgmma(
        layouts.fake_quantized_rows(ops.x), layouts.fake_quantized_rows(ops.w), "bf16", epilogue
    )


def _fake_quantized_builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
    return (*layouts.builds_of_fake_quantizing(x, w), *_wgmma_builds("bf16", out))


FAKE_QUANTIZE = Variant(
    "fake-quantize + wgmma",
    "fake_quantize.cu",
    _fake_quantized,
    _fake_quantized_builds,
    only_major=HOPPER,
    rounding=2 * BF16_HALF_ULP,
)
