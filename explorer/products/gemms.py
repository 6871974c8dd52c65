"""Definition and kernels of each product: ``GEMMS``.

A row defines X and W, where scales apply, the accumulator type, the kernels from the simplest to the
fastest, the baseline, and the chips with native support. A new product is a row; the page and the docs
show "not recorded yet" until it is recorded."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.formats import FORMATS
from explorer.gpu import native_formats
from explorer.gpu.compile import Build
from explorer.gpu.gemm import BlockScaledFormat, OperandType
from explorer.products import baselines
from explorer.products.baselines import Baseline
from explorer.products.layouts import has_byte_scales, tiles_of
from explorer.products.operands import Operands
from explorer.products.variants import (
    ADD_SUBTRACT,
    BF16_HALF_ULP,
    DP4A,
    FAKE_QUANTIZE,
    NAIVE,
    POPC,
    SWAP_AB_BLOCKWISE,
    TILED,
    WGMMA_BLOCKWISE,
    Variant,
    block_scaled,
    dequantize_then_wgmma,
    dynamic,
    in_registers,
    mma,
    swap_ab,
    swap_ab_dense,
    wgmma,
    widen_scaled_then_wgmma,
    widen_then_wgmma,
)
from explorer.schemes import SCHEMES, Scheme


@dataclass(frozen=True)
class Product:
    """Product of X and W, computed by a GPU's kernels (``Gemm``) or a CPU's (``explorer.cpu``).

    x, w          schemes of X [M, K] and W [N, K]
    scales        place where scales are applied, in words
    accumulator   type of the sums, in words
    """

    name: str
    label: str
    x: Scheme
    w: Scheme
    scales: str
    accumulator: str


@dataclass(frozen=True)
class Gemm(Product):
    """Product on a GPU.

    variants      kernels, the simplest first
    core          the tensor-core type that bounds it ("": none)
    native        the formats of X and W in ``gpu.native_formats``, if chips can take them as they are
                  ("": every chip does; None: none does)
    dynamic       True if X is quantized within the call
    """

    variants: tuple[Variant, ...]
    baseline: Baseline
    core: str
    native: str | None
    out: torch.dtype = torch.bfloat16
    dynamic: bool = False

    def operands(
        self, x: Tensor, w: Tensor, bias: Tensor | None = None, activation: str = "none"
    ) -> Operands:
        """Quantize X [M, K] and W [N, K] for this product."""
        return Operands.of(x, w, (self.x, self.w), self.out, bias, activation)

    def variants_on(self, capability: tuple[int, int]) -> tuple[Variant, ...]:
        """The kernels that the chip can run, the simplest first."""
        return tuple(v for v in self.variants if v.runs_on(capability))

    def variant(self, name: str) -> Variant:
        """Return the kernel called ``name``; ``ValueError`` lists the names."""
        for variant in self.variants:
            if variant.name == name:
                return variant
        raise ValueError(
            f"{self.name} has no kernel {name!r}; it has {', '.join(v.name for v in self.variants)}"
        )

    def is_native(self, capability: tuple[int, int]) -> bool:
        """True if the chip multiplies both operands natively."""
        return self.native == "" or self.native in native_formats(capability)

    def builds(self, capability: tuple[int, int]) -> tuple[Build, ...]:
        """Every compilation that the product's kernels can need on a chip."""
        every = (b for v in self.variants_on(capability) for b in v.builds(self.x, self.w, self.out))
        return tuple(dict.fromkeys(every))


# --- what several rows share -------------------------------------------------------------------------

NONE, EPILOGUE, PER_BLOCK = "none", "in the epilogue", "per 128 of K, in float32"
ON_WEIGHTS = "on the weights, or on each group's sum"
BEFORE, ZERO_TERMS = "on the operands, before the product", "in the epilogue, with zero-point terms"
F32, F16 = torch.float32, torch.float16
S = SCHEMES
INT8 = (NAIVE, TILED, DP4A, mma("s8"), swap_ab_dense("s8"), wgmma("s8"))
INT8_SYMMETRIC = (NAIVE, TILED, DP4A, in_registers(), mma("s8"), swap_ab_dense("s8"), wgmma("s8"))
INT8_DYNAMIC = (dynamic("s8", "mma.sync"), dynamic("s8", "swap A/B"), dynamic("s8", "wgmma"))


def _dense(kind: str) -> tuple[Variant, ...]:
    return (NAIVE, TILED, mma(kind), wgmma(kind))


def _narrow(*last: Variant, fp8_accumulate_k: int = 0) -> tuple[Variant, ...]:
    """Make a product of 4- or 2-bit weights with 8-bit inputs."""
    return (NAIVE, TILED, in_registers(), swap_ab(fp8_accumulate_k=fp8_accumulate_k), *last)


def _fp6(name: str) -> Scheme:
    return Scheme(f"{name}_channel", f"{FORMATS[name].label} per channel", FORMATS[name], (1, None))


def _fp8(kind: str, unit: str, title: str) -> Gemm:
    """Make a product with FP8 on both sides: one scale per tensor, or one per token and channel."""
    scheme = S[f"fp8_{kind}_{'tensor' if unit == 'tensor' else 'row'}"]
    few = (in_registers(),) if kind == "e4m3" else ()
    variants = (NAIVE, TILED, *few, mma(kind), swap_ab_dense(kind), wgmma(kind))
    baseline = baselines.SCALED_MM if kind == "e4m3" else baselines.BF16
    name, label = f"fp8_{kind}_{unit}", f"FP8 {kind.upper()} {title}"
    return Gemm(name, label, scheme, scheme, EPILOGUE, "tensor core's", variants, baseline, kind, "FP8")


def _weight_only(
    name: str, label: str, w: Scheme, baseline: Baseline = baselines.BF16, exact: bool = True
) -> Gemm:
    """Make a product of W in codes and X in bfloat16.

    Dequantizing rounds W to bfloat16 unless its scales are powers of two or E4M3. ``exact`` False: decoding
    in registers rounds W too.
    """
    tiles_of(w, OperandType.BF16)  # raises here for a format that no kernel decodes
    scaled_sums = not has_byte_scales(w) and (w.block[1] is not None or w.asymmetric)
    variants = (
        NAIVE,
        TILED,
        in_registers(0.0 if exact else BF16_HALF_ULP),
        swap_ab(0.0 if exact else BF16_HALF_ULP),
        # The scale and the product are rounded, and where codes are no numbers of bfloat16 they too.
        *([swap_ab((2 if exact else 3) * BF16_HALF_ULP, on_weights=True)] if scaled_sums else []),
        dequantize_then_wgmma(False, 0.0 if has_byte_scales(w) else BF16_HALF_ULP),
    )
    return Gemm(name, label, S["bf16"], w, ON_WEIGHTS, "float32", variants, baseline, "bf16", None)


def _w4a16(size: str) -> list[Gemm]:
    baseline = baselines.TINYGEMM if size == "group128" else baselines.BF16
    return [
        _weight_only(f"w4a16_{size}", f"W4A16 {size}", Scheme.parse(f"int4_{size}"), baseline),
        _weight_only(
            f"w4a16_{size}_asym", f"W4A16 {size}, asymmetric", Scheme.parse(f"int4_{size}_asym"), baseline
        ),
    ]


def _both(name: str, label: str, scheme: Scheme, exact: bool, native: str) -> Gemm:
    """Make a product with a narrow floating-point scheme on both sides; ``exact``: bfloat16 holds the
    dequantized values."""
    own = (block_scaled(name),) if name in list(BlockScaledFormat) else ()
    variants = (NAIVE, TILED, dequantize_then_wgmma(True, 0.0 if exact else 2 * BF16_HALF_ULP), *own)
    return Gemm(name, label, scheme, scheme, BEFORE, "float32", variants, baselines.BF16, "bf16", native)


# --- the table ---------------------------------------------------------------------------------------

ROWS = [
    Gemm("fp32", "FP32", S["fp32"], S["fp32"], NONE, "float32", (NAIVE, TILED), baselines.FP32, "", "", F32),
    Gemm("tf32", "TF32", S["tf32"], S["tf32"], NONE, "float32",
         _dense("tf32"), baselines.TF32, "tf32", "TF32", F32),
    Gemm("fp16", "FP16", S["fp16"], S["fp16"], NONE, "float32",
         _dense("f16"), baselines.FP16, "f16", "FP16", F16),
    Gemm("bf16", "BF16", S["bf16"], S["bf16"], NONE, "float32",
         (NAIVE, TILED, in_registers(), mma("bf16"), swap_ab_dense("bf16"), wgmma("bf16")), baselines.BF16,
         "bf16", "BF16"),
    _fp8("e4m3", "tensor", "per tensor"),
    _fp8("e4m3", "row", "per token × per channel"),
    _fp8("e5m2", "tensor", "per tensor"),
    _fp8("e5m2", "row", "per token × per channel"),
    Gemm("fp8_blockwise", "FP8 1×128 by 128×128", S["fp8_e4m3_1x128"], S["fp8_e4m3_128x128"], PER_BLOCK,
         "float32 every 128 of K", (NAIVE, TILED, SWAP_AB_BLOCKWISE, WGMMA_BLOCKWISE),
         baselines.SCALED_BLOCKS, "e4m3", "FP8"),
    Gemm("int8", "INT8 W8A8", S["int8_row"], S["int8_row"], EPILOGUE, "int32",
         INT8_SYMMETRIC, baselines.INT_MM, "s8", "INT8"),
    Gemm("int8_asym", "INT8 W8A8, asymmetric", S["int8_row_asym"], S["int8_row_asym"], ZERO_TERMS,
         "int32", INT8, baselines.INT_MM, "s8", "INT8"),
    Gemm("int8_dynamic", "INT8 W8A8, X quantized in the call", S["int8_row"], S["int8_row"], EPILOGUE,
         "int32", INT8_DYNAMIC, baselines.QUANTIZE_INT_MM, "s8", "INT8", dynamic=True),
    _weight_only("w8a16", "W8A16", S["int8_row"]),
    *_w4a16("group128"),
    *_w4a16("group64"),
    *_w4a16("group32"),
    *_w4a16("channel"),
    _weight_only("nf4", "NF4 block 64", S["nf4_block64"], exact=False),
    _weight_only("w3a16", "W3A16 group 128", S["int3_group128"]),
    _weight_only("w2a16", "W2A16 group 128", S["int2_group128"]),
    _weight_only("w1.58a16", "Ternary × BF16", S["ternary_absmean"]),
    _weight_only("w_fp6_e2m3", "FP6 E2M3 weights", _fp6("float6_e2m3fn")),
    _weight_only("w_fp6_e3m2", "FP6 E3M2 weights", _fp6("float6_e3m2fn")),
    _weight_only("w_fp8", "FP8 E4M3 weights", S["fp8_e4m3_row"]),
    _weight_only("w_mxfp8", "MXFP8 weights", S["mxfp8_e4m3"]),
    _weight_only("w_mxfp6", "MXFP6 weights", S["mxfp6_e2m3"]),
    _weight_only("w_mxfp4", "MXFP4 weights", S["mxfp4"]),
    _weight_only("w_nvfp4", "NVFP4 weights", S["nvfp4"]),
    _both("fp6_e2m3", "FP6 E2M3 both sides", _fp6("float6_e2m3fn"), False, "FP6"),
    _both("fp6_e3m2", "FP6 E3M2 both sides", _fp6("float6_e3m2fn"), False, "FP6"),
    _both("mxfp8", "MXFP8 both sides", S["mxfp8_e4m3"], True, "MX"),
    _both("mxfp6", "MXFP6 both sides", S["mxfp6_e2m3"], True, "MX"),
    _both("mxfp4", "MXFP4 both sides", S["mxfp4"], True, "MX"),
    _both("nvfp4", "NVFP4 both sides", S["nvfp4"], True, "NVFP4"),
    Gemm("w4a8_int", "W4A8 INT4 group 128 × INT8", S["int8_row"], S["int4_group128"], PER_BLOCK,
         "int32 in a group", _narrow(widen_then_wgmma("s8", True), widen_scaled_then_wgmma("s8")),
         baselines.SCALED_MM, "s8", None),
    Gemm("w4a8_int_channel", "W4A8 INT4 per channel × INT8", S["int8_row"], S["int4_row"], EPILOGUE,
         "int32", _narrow(widen_then_wgmma("s8", False)), baselines.SCALED_MM, "s8", None),
    Gemm("w4a8_fp8", "W4A8 INT4 group 128 × FP8", S["fp8_e4m3_row"], S["int4_group128"], PER_BLOCK,
         "float32", _narrow(widen_then_wgmma("e4m3", True), widen_scaled_then_wgmma("e4m3"),
                            fp8_accumulate_k=128), baselines.SCALED_MM, "e4m3", None),
    Gemm("ternary", "Ternary × INT8", S["int8_row"], S["ternary_absmean"], EPILOGUE, "int32",
         (NAIVE, ADD_SUBTRACT, in_registers(), swap_ab(), widen_then_wgmma("s8", False)), baselines.INT_MM,
         "s8", None),
    Gemm("binary", "Binary × binary", S["binary_row"], S["binary_row"], EPILOGUE, "int32",
         (NAIVE, POPC, mma("b1"), wgmma("b1")), baselines.INT_MM, "b1", "binary"),
    Gemm("fake_int8", "Fake-quantized forward (QAT), INT8", S["int8_row"], S["int8_row"], BEFORE,
         "float32", (TILED, FAKE_QUANTIZE), baselines.FAKE, "bf16", None, dynamic=True),
]  # fmt: skip
GEMMS: dict[str, Gemm] = {row.name: row for row in ROWS}
"""Every product by name."""


def find(name: str) -> Gemm:
    """Return the row called ``name``; ``ValueError`` lists the names."""
    if name not in GEMMS:
        raise ValueError(f"no product {name!r}; there are {', '.join(GEMMS)}")
    return GEMMS[name]


def all_builds(capability: tuple[int, int]) -> list[Build]:
    """Every compilation that the table can need on a chip."""
    every = (build for gemm in GEMMS.values() for build in gemm.builds(capability))
    return list(dict.fromkeys(every))
