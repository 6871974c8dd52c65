"""The kernels that compute a product, as ``Variant``s: their preparation, launch and builds.

``prepare`` does once what an engine does when a model is loaded (layouts of W, vectors of the epilogue), and
gives a call without arguments, which is what is timed. What belongs to every call (widening weights,
quantizing X) is in the call."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from dataclasses import dataclass

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
    only_major         the one major version it has code for (0: any from ``capability`` on)
    rounding           relative error of operands rounded to bfloat16 on the way
    folds              the bytes that W's group scales are folded into: its values are then
                       ``layouts.folded_weights``
    fp8_accumulate_k   elements of K accumulated at the tensor core's FP8 precision (13 mantissa bits) before
                       promotion to float32; 0 where sums never have so few bits
    tested             whether it ran where it was tested; others are compiled only, and labelled so
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
        """The chips it has code for, as nvcc names them: "sm_90a", "from sm_80"."""
        if self.only_major:
            return f"sm_{self.only_major}0a"
        return f"from sm_{self.capability[0]}{self.capability[1]}"

    def run(self, operands: Operands) -> Tensor:
        """[M, N] in the product's dtype: prepared and launched once."""
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


def _simt32_builds(op: kernel.WordOp) -> Builds:
    return lambda _x, _w, out: (kernel.simt32_build(op, out),)


def _add_subtract_builds(_x: Scheme, _w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
    return (kernel.addsub_build(out),)


def _dp4a(ops: Operands) -> Call:
    x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.scaled(ops)
    return lambda: kernel.gemm_simt32(x, w, kernel.WordOp.DP4A, epilogue)


def _popc(ops: Operands) -> Call:
    x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.bits_xor(ops)
    return lambda: kernel.gemm_simt32(x, w, kernel.WordOp.POPC, epilogue)


def _add_subtract(ops: Operands) -> Call:
    w, epilogue = layouts.weight_rows(ops.w.q), epilogues.scaled(ops)
    x = layouts.activation_rows(ops.x.q, w.shape[1] * 4).view(torch.uint8)
    return lambda: kernel.gemm_addsub(x, w, epilogue)


DP4A = Variant("dp4a", "gemm_simt32.cu", _dp4a, _simt32_builds(kernel.WordOp.DP4A))
POPC = Variant("popc", "gemm_simt32.cu", _popc, _simt32_builds(kernel.WordOp.POPC))
ADD_SUBTRACT = Variant("add/subtract", "gemm_addsub.cu", _add_subtract, _add_subtract_builds)


# --- tensor cores on operands as they are ------------------------------------------------------------


def _mma_builds(kind: str) -> Builds:
    return lambda _x, _w, out: (kernel.mma_build(kind, out),)


def _wgmma_builds(kind: str, scale_k: kernel.ScaleK = kernel.ScaleK.NONE) -> Builds:
    return lambda _x, _w, out: tuple(
        kernel.wgmma_build(kind, out, tile) for tile in kernel.wgmma_tiles(scale_k)
    )


def mma(kind: str) -> Variant:
    """mma.sync on operands of one type: from Ampere on, FP8 from Ada on."""

    def prepare(ops: Operands) -> Call:
        x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.scaled(ops)
        return lambda: kernel.gemm_mma(x, w, kind, epilogue)

    capability = (8, 9) if kind in FP8_KINDS else (8, 0)
    return Variant("mma.sync", "gemm_mma.cu", prepare, _mma_builds(kind), capability)


def wgmma(kind: str) -> Variant:
    """Hopper's asynchronous tensor cores on operands of one type."""

    def prepare(ops: Operands) -> Call:
        x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.scaled(ops)
        return lambda: kernel.gemm_wgmma(x, w, kind, epilogue)

    accumulated = ALL_OF_K if kind in FP8_KINDS else 0
    return Variant(
        "wgmma",
        "gemm_wgmma.cu",
        prepare,
        _wgmma_builds(kind),
        only_major=HOPPER,
        fp8_accumulate_k=accumulated,
    )


def _wgmma_blockwise(ops: Operands) -> Call:
    x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.unscaled(ops)
    x_scales, w_scales = layouts.x_block_scales(ops.x.q), layouts.w_block_scales(ops.w.q)
    return lambda: kernel.gemm_wgmma(x, w, "e4m3", epilogue, kernel.ScaleK.BLOCK, x_scales, w_scales)


WGMMA_BLOCKWISE = Variant(
    "wgmma",
    "gemm_wgmma.cu",
    _wgmma_blockwise,
    _wgmma_builds("e4m3", scale_k=kernel.ScaleK.BLOCK),
    only_major=HOPPER,
    fp8_accumulate_k=128,
)
"""FP8 with scales of 1×128 and 128×128, applied to the sums of every 128 of K."""


def _binary_mma(ops: Operands) -> Call:
    x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.bits_and(ops)
    return lambda: kernel.gemm_mma(x, w, "b1", epilogue)


def _binary_wgmma(ops: Operands) -> Call:
    x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.bits_and(ops)
    return lambda: kernel.gemm_wgmma(x, w, "b1", epilogue)


BINARY_MMA = Variant("mma.sync", "gemm_mma.cu", _binary_mma, _mma_builds("b1"), (8, 0))
BINARY_WGMMA = Variant("wgmma", "gemm_wgmma.cu", _binary_wgmma, _wgmma_builds("b1"), only_major=HOPPER)


def block_scaled(element: str) -> Variant:
    """The block-scaled instruction of sm_120a: "nvfp4", "mxfp4" or "mxfp8" on both sides."""

    def prepare(ops: Operands) -> Call:
        x, w, epilogue = ops.x.q.packed, ops.w.q.packed, epilogues.tensor_scales(ops)
        x_scales, w_scales = layouts.scale_bytes(ops.x.q), layouts.scale_bytes(ops.w.q)
        return lambda: kernel.gemm_block_scaled(x, w, x_scales, w_scales, element, epilogue)

    return Variant(
        "block-scaled mma",
        "gemm_block_scaled.cu",
        prepare,
        lambda _x, _w, out: (kernel.block_scaled_build(element, out),),
        (12, 0),
        BLACKWELL_RTX,
        tested=False,
    )


# --- operands that are converted in the call ---------------------------------------------------------


def dynamic(kind: str, inner: str) -> Variant:
    """X is quantized in the call, then multiplied by "mma.sync", "swap A/B" or "wgmma"."""
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


def _in_registers_builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
    return tuple(weight_of(w).builds(_x_type(x), out))


def _x_type(x: Scheme) -> kernel.OperandType:
    """Operand type of X for kernels that decode W in registers."""
    if x.format.bits == 16:
        return kernel.OperandType.BF16
    return kernel.OperandType.S8 if isinstance(x.format, IntegerFormat) else kernel.OperandType.E4M3


def in_registers(rounding: float = 0.0) -> Variant:
    """W is decoded in registers on its way to mma.sync: for few tokens."""
    return Variant(
        "registers",
        "gemm_dequant_in_registers.cu",
        _in_registers,
        _in_registers_builds,
        (8, 0),
        rounding=rounding,
    )


def _swapped(
    x: Tensor,
    w: Tensor,
    n: int,
    tiles: kernel.Tiles,
    epilogue: kernel.Epilogue,
    x_scale: Tensor | None = None,
    w_scale: Tensor | None = None,
) -> Call:
    """Products that are launched early: layouts of W are in memory before the first launch."""
    torch.cuda.current_stream(w.device).synchronize()
    return lambda: kernel.gemm_swap_ab(x, w, n, tiles, epilogue, x_scale, w_scale, early=True)


def swap_ab(rounding: float = 0.0, fp8_accumulate_k: int = 0, on_weights: bool = False) -> Variant:
    """Codes of W are decoded in registers, as the 64-row side of wgmma: for few tokens. ``on_weights``:
    scales, and weights times scales, are rounded to bfloat16, as most engines do; else the sums of groups are
    scaled."""

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


def swap_ab_dense(kind: str) -> Variant:
    """Both sides as they are, rows of W as the 64-row side of wgmma: for few tokens."""
    tiles = kernel.Tiles(kernel.OperandType(kind))

    def prepare(ops: Operands) -> Call:
        x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.scaled(ops)
        return _swapped(x, w, ops.shape[1], tiles, epilogue)

    return Variant(
        "swap A/B",
        "gemm_swap_ab.cu",
        prepare,
        lambda _x, _w, out: tuple(kernel.swap_ab_builds(tiles, out)),
        only_major=HOPPER,
        fp8_accumulate_k=ALL_OF_K if kind in FP8_KINDS else 0,
    )


BLOCKWISE_TILES = kernel.Tiles(kernel.OperandType.E4M3, scales=kernel.ScalePlace.BLOCK)


def _swap_ab_blockwise(ops: Operands) -> Call:
    x, w, epilogue = layouts.byte_rows(ops.x.q), layouts.byte_rows(ops.w.q), epilogues.unscaled(ops)
    x_scales, w_scales = layouts.x_block_scales(ops.x.q), layouts.w_block_scales(ops.w.q)
    return _swapped(x, w, ops.shape[1], BLOCKWISE_TILES, epilogue, x_scales, w_scales)


SWAP_AB_BLOCKWISE = Variant(
    "swap A/B",
    "gemm_swap_ab.cu",
    _swap_ab_blockwise,
    lambda _x, _w, out: tuple(kernel.swap_ab_builds(BLOCKWISE_TILES, out)),
    only_major=HOPPER,
    fp8_accumulate_k=128,
)


def dequantize_then_wgmma(both: bool, rounding: float) -> Variant:
    """W, or both sides, are dequantized to bfloat16 in memory and multiplied so."""

    def prepare(ops: Operands) -> Call:
        one = torch.ones(1, device=ops.x.q.packed.device)
        plain_x, epilogue = None if both else layouts.byte_rows(ops.x.q), epilogues.tensor_scales(ops)

        def call() -> Tensor:
            x = layouts.dequantized_rows(ops.x.q, one) if plain_x is None else plain_x
            return kernel.gemm_wgmma(x, layouts.dequantized_rows(ops.w.q, one), "bf16", epilogue)

        return call

    def builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        restored = (x, w) if both else (w,)
        return (*layouts.builds_of_dequantizing(*restored), *_wgmma_builds("bf16")(x, w, out))

    return Variant(
        "dequantize + wgmma",
        "gemm_wgmma.cu",
        prepare,
        builds,
        only_major=HOPPER,
        rounding=rounding,
    )


def widen_scaled_then_wgmma(kind: str) -> Variant:
    """4-bit W times its group scales is rounded to int8 or E4M3 in memory, with one scale a row: the product
    then has the tensor cores' whole speed, and another error (``layouts.folded_weights``)."""
    byte = kernel.OperandType(kind)

    def prepare(ops: Operands) -> Call:
        how, packed = weight_of(ops.w.scheme), layouts.weight_rows(ops.w.q)
        x = layouts.activation_rows(ops.x.q, packed.shape[1] * 8 // how.bits).view(torch.uint8)
        ratios, of_row = layouts.folded_groups(ops.w.q, byte)
        group = ops.w.scheme.block[1] or 1 << (packed.shape[1] * 8 // how.bits).bit_length()
        epilogue = dataclasses.replace(
            epilogues.unscaled(ops), row_scale=epilogues.scale_vector(ops.x.q), col_scale=of_row
        )

        def call() -> Tensor:
            rows = kernel.widen(packed, how.codec, how.bits, how.two_bit, kind == "e4m3", ratios, group)
            return kernel.gemm_wgmma(x, rows, kind, epilogue)

        return call

    def builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        how = weight_of(w)
        widening = kernel.widen_build(how.codec, how.bits, how.two_bit, kind == "e4m3", True)
        return (widening, *_wgmma_builds(kind)(x, w, out))

    return Variant(
        "widen, scaled weights + wgmma",
        "gemm_wgmma.cu",
        prepare,
        builds,
        only_major=HOPPER,
        folds=byte,
        fp8_accumulate_k=ALL_OF_K if kind == "e4m3" else 0,
    )


def widen_then_wgmma(kind: str, grouped: bool) -> Variant:
    """4- or 2-bit W is widened to int8 or E4M3 in memory; ``grouped``: its scales are applied every 128 of
    K."""

    def prepare(ops: Operands) -> Call:
        how, packed = weight_of(ops.w.scheme), layouts.weight_rows(ops.w.q)
        elements = packed.shape[1] * 8 // how.bits
        x = layouts.activation_rows(ops.x.q, elements).view(torch.uint8)
        scales = layouts.w_group_scales(ops.w.q, -(-x.shape[1] // 128)) if grouped else None
        by_row = dataclasses.replace(epilogues.unscaled(ops), row_scale=epilogues.scale_vector(ops.x.q))
        epilogue = by_row if grouped else epilogues.scaled(ops)

        def call() -> Tensor:
            rows = kernel.widen(packed, how.codec, how.bits, how.two_bit, kind == "e4m3")
            if scales is None:
                return kernel.gemm_wgmma(x, rows, kind, epilogue)
            return kernel.gemm_wgmma(x, rows, kind, epilogue, kernel.ScaleK.COLUMN, None, scales)

        return call

    def builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
        how = weight_of(w)
        widening = kernel.widen_build(how.codec, how.bits, how.two_bit, kind == "e4m3")
        return (
            widening,
            *_wgmma_builds(kind, kernel.ScaleK.COLUMN if grouped else kernel.ScaleK.NONE)(x, w, out),
        )

    return Variant(
        "widen + wgmma",
        "gemm_wgmma.cu",
        prepare,
        builds,
        only_major=HOPPER,
        fp8_accumulate_k=128 if kind == "e4m3" else 0,
    )


def _fake_quantized(ops: Operands) -> Call:
    epilogue = epilogues.unscaled(ops)
    return lambda: kernel.gemm_wgmma(
        layouts.fake_quantized_rows(ops.x), layouts.fake_quantized_rows(ops.w), "bf16", epilogue
    )


def _fake_quantized_builds(x: Scheme, w: Scheme, out: torch.dtype) -> tuple[Build, ...]:
    return (*layouts.builds_of_fake_quantizing(x, w), *_wgmma_builds("bf16")(x, w, out))


FAKE_QUANTIZE = Variant(
    "fake-quantize + wgmma",
    "fake_quantize.cu",
    _fake_quantized,
    _fake_quantized_builds,
    only_major=HOPPER,
    rounding=2 * BF16_HALF_ULP,
)
