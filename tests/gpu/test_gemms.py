"""On a GPU: every kernel of every product against the float64 product of its dequantized operands.

If these fail, the Speed section times a kernel that computes something else.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor

from explorer import FORMATS, SCHEMES, Scheme
from explorer.gpu import driver, runtime
from explorer.gpu import gemm as gemm_kernels
from explorer.gpu.gemm import swap_ab
from explorer.products import epilogues, layouts
from explorer.products.gemms import GEMMS, Gemm
from explorer.products.operands import Operands
from explorer.products.variants import Variant
from tests.gpu.sanitizer import assert_clean

pytestmark = pytest.mark.gpu
SHAPES = [
    (1, 1, 1), (1, 8, 16), (3, 5, 7), (1, 300, 1000), (17, 33, 129), (64, 128, 256), (130, 257, 384),
    (300, 520, 1100),
]  # fmt: skip
OUTPUT_HALF_ULP = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}


def variants() -> list[tuple[str, str]]:
    """Every row and kernel that this chip can run."""
    if not torch.cuda.is_available():
        return [(row.name, v.name) for row in GEMMS.values() for v in row.variants]
    chip = torch.cuda.get_device_capability()
    return [(row.name, v.name) for row in GEMMS.values() for v in row.variants_on(chip)]


def draw(m: int, n: int, k: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    x = torch.randn(m, k, generator=generator, device="cuda")
    return x, torch.randn(n, k, generator=generator, device="cuda") * 0.05


def bound(ops: Operands, variant: Variant, product: Tensor, size: Tensor) -> Tensor:
    """How far a kernel may be from the float64 product.

    K · 2^-23 · Σ|x·w| for float32 sums in any order on tensor cores, which may truncate; the kernel's own
    rounding of operands to bfloat16, relative to Σ|x·w|; where Hopper's FP8 sums keep 13 bits of mantissa,
    2^-13 · Σ|x·w| for each 32 of K summed so; scales, bias and GELU are a few float32 operations (2^-21 of
    the result); then half an ulp of the output.
    """
    k = ops.shape[2]
    inside = k * 2.0**-23 * size + variant.rounding * (1 + variant.rounding) * size + 2.0**-21 * product.abs()
    if variant.fp8_accumulate_k:
        inside = inside + 2.0**-13 * size * max(1, min(k, variant.fp8_accumulate_k) / 32)
    # GELU's slope is at most 1.13.
    return 1.13 * inside + OUTPUT_HALF_ULP[ops.out] * (product.abs() + inside) * 1.01 + 1e-30


def check(row: Gemm, variant: Variant, ops: Operands, what: str) -> None:
    product, size = ops.exact(layouts.folded_weights(ops.w.q, variant.folds) if variant.folds else None)
    poison = torch.full((ops.shape[0], ops.shape[1]), float("nan"), device="cuda", dtype=ops.out)
    del poison  # what the output is likely to be allocated on
    got = variant.run(ops).double()
    want = ops.finished(product)
    allowed = bound(ops, variant, want, size)
    wrong = ~((got - want).abs() <= allowed)
    if bool(wrong.any()):
        at = tuple(int(i) for i in wrong.nonzero()[0])
        pytest.fail(
            f"{row.name} {variant.name} {what}: {int(wrong.sum())} of {wrong.numel()} beyond the bound, "
            f"first at {at}: got {float(got[at])!r}, want {float(want[at])!r} ± {float(allowed[at]):.3g}"
        )


@pytest.mark.parametrize(("name", "variant"), variants())
def test_every_kernel_is_within_the_bound(name: str, variant: str) -> None:
    row = GEMMS[name]
    for index, (m, n, k) in enumerate(SHAPES):
        x, w = draw(m, n, k, index)
        check(row, row.variant(variant), row.operands(x, w), f"{m}x{n}x{k}")


FUSED = [
    "bf16", "fp8_e4m3_row", "fp8_blockwise", "int8_asym", "w4a16_group128", "w_nvfp4", "w4a8_int",
    "ternary", "binary",
]  # fmt: skip


@pytest.mark.parametrize("name", FUSED)
@pytest.mark.parametrize("activation", ["gelu", "gelu_tanh"])
def test_bias_and_gelu_are_fused(name: str, activation: str) -> None:
    row = GEMMS[name]
    x, w = draw(70, 130, 256)
    bias = torch.randn(130, device="cuda")
    for variant in row.variants_on(torch.cuda.get_device_capability()):
        check(row, variant, row.operands(x, w, bias, activation), activation)


def integer_sums(operands: Operands, by: str) -> Tensor:
    """int32 [M, N]: the raw sums of an integer product by one kernel ("naive", "dp4a", "mma.sync",
    "swap A/B", "wgmma")."""
    x, w = operands.x, operands.w
    plain = gemm_kernels.Epilogue(torch.int32)
    if by == "naive":
        codes = layouts.codes_on_grid(x.q), layouts.codes_on_grid(w.q)
        return gemm_kernels.gemm_reference(*codes, operands.shape[2], plain, False)
    epilogue, rows = (
        epilogues.with_zero_terms(operands, plain),
        (layouts.byte_rows(x.q), layouts.byte_rows(w.q)),
    )
    if by == "dp4a":
        return gemm_kernels.gemm_simt32(*rows, gemm_kernels.WordOp.DP4A, epilogue)
    if by == "swap A/B":
        tiles = gemm_kernels.Tiles(gemm_kernels.OperandType.S8)
        return gemm_kernels.gemm_swap_ab(*rows, operands.shape[1], tiles, epilogue)
    return (gemm_kernels.gemm_mma if by == "mma.sync" else gemm_kernels.gemm_wgmma)(*rows, "s8", epilogue)


@pytest.mark.parametrize("name", GEMMS)
def test_what_is_launched_was_named_for_compiling(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, `explorer compile` leaves a kernel out, and the first product waits for nvcc."""
    row, launched = GEMMS[name], set[driver.Kernel]()
    launch = driver.Kernel.launch

    def noted(kernel: driver.Kernel, *rest: Any) -> None:
        launched.add(kernel)
        launch(kernel, *rest)

    ops = row.operands(
        torch.randn(64, 4096, device="cuda"), torch.randn(256, 4096, device="cuda")
    ).as_served()
    for variant in row.variants_on(torch.cuda.get_device_capability()):
        call = variant.prepare(ops)
        with monkeypatch.context() as patch:
            patch.setattr(driver.Kernel, "launch", noted)
            launched.clear()
            call()
        built = {key[1] for key, kernel in runtime._KERNELS.items() if kernel in launched}
        missing = built - set(variant.builds(row.x, row.w, row.out))
        assert built and not missing, f"{variant.name}: {missing}"


@pytest.mark.parametrize("name", ["int8", "int8_asym"])
def test_integer_sums_are_exact(name: str) -> None:
    """int32 accumulators equal int64 sums, zero points and ragged K included."""
    row = GEMMS[name]
    for m, n, k in ((1, 1, 1), (3, 5, 7), (33, 65, 127), (130, 257, 1000), (64, 64, 8192)):
        x, w = draw(m, n, k)
        ops = row.operands(x + 0.5, w)
        codes = []
        for q in (ops.x.q, ops.w.q):
            zero = 0 if q.scales.zero_points is None else q.scales.zero_points.cpu().long()
            codes.append(q.packed.view(torch.int8).cpu().long() - zero)
        want = codes[0] @ codes[1].t()
        for how in ("naive", "dp4a", "mma.sync", "swap A/B", "wgmma"):
            got = integer_sums(ops, how).cpu().long()
            wrong = int((got != want).sum())
            assert wrong == 0, f"{name} {how} {m}x{n}x{k}: {wrong} sums differ"


@pytest.mark.parametrize("k", [1, 31, 32, 33, 64, 100, 300])
def test_binary_products_of_any_k(k: int) -> None:
    """K - 2 · popc(a ^ b) with K the true length: padding adds nothing."""
    row = GEMMS["binary"]
    x, w = draw(9, 17, k)
    ops = row.operands(x, w)
    signs = [torch.where(q.codes.cpu().float() > 0, 1.0, -1.0).double() for q in (ops.x.q, ops.w.q)]
    want = (
        signs[0]
        @ signs[1].t()
        * ops.x.q.scales.scale.cpu().double()
        * ops.w.q.scales.scale.cpu().double().t()
    )
    for variant in row.variants_on(torch.cuda.get_device_capability()):
        assert torch.allclose(variant.run(ops).cpu().double(), want, rtol=2.0**-8, atol=1e-30), variant.name


def test_scales_along_k_are_applied_block_by_block() -> None:
    """A row of 128 ones and 128 hundreds times ones is 12 928; a raw sum times either block's scales is
    not."""
    row = GEMMS["fp8_blockwise"]
    x = torch.cat([torch.ones(1, 128), torch.full((1, 128), 100.0)], 1).cuda()
    for variant in row.variants_on(torch.cuda.get_device_capability()):
        y = variant.run(row.operands(x, torch.ones(8, 256, device="cuda")))
        assert y.float().tolist() == [[12928.0] * 8], variant.name


@pytest.mark.parametrize("name", ["fp32", "tf32", "fp16", "bf16", "fp8_e4m3_tensor", "int8"])
def test_ones_are_counted_beyond_2048(name: str) -> None:
    """A float16 sum of ones stops at 2048, a bfloat16 one at 256; these are held in 32 bits. Hopper's own FP8
    sums are not: with 448 standing for one they come to 7136 of 8192, within their stated bound, which is why
    scales along K are promoted."""
    row = GEMMS[name]
    ops = row.operands(torch.ones(2, 8192, device="cuda"), torch.ones(8, 8192, device="cuda"))
    for variant in row.variants_on(torch.cuda.get_device_capability()):
        y = variant.run(ops).float()
        allowed = 0.15 if variant.fp8_accumulate_k else 2.0**-8
        assert torch.all((y - 8192).abs() <= 8192 * allowed), f"{variant.name}: {float(y[0, 0])}"


@settings(max_examples=25, deadline=None)
@given(
    st.sampled_from(
        [
            "bf16",
            "int8_asym",
            "fp8_blockwise",
            "w4a16_group128_asym",
            "w3a16",
            "w_mxfp6",
            "w4a8_fp8",
            "nvfp4",
            "ternary",
        ]
    ),
    st.integers(1, 200),
    st.integers(1, 300),
    st.integers(1, 700),
    st.integers(0, 2**31),
)
def test_random_shapes(name: str, m: int, n: int, k: int, seed: int) -> None:
    row = GEMMS[name]
    x, w = draw(m, n, k, seed)
    ops = row.operands(x, w)
    for variant in row.variants_on(torch.cuda.get_device_capability()):
        check(row, variant, ops, f"{m}x{n}x{k}")


def test_groups_of_every_size_in_registers() -> None:
    for size in (32, 64, 128, 256):
        scheme = Scheme(f"g{size}", "t", FORMATS["int4"], (1, size))
        row = GEMMS["w4a16_group128"]
        x, w = draw(5, 40, 2 * size + 16)
        for name in ("registers", "swap A/B", "swap A/B, scaled weights"):
            operands = Operands.of(x, w, (SCHEMES["bf16"], scheme))
            check(row, row.variant(name), operands, f"group {size}")


@pytest.mark.parametrize("name", ["bf16", "w4a16_group128_asym", "w_nvfp4", "w4a8_int", "fp8_blockwise"])
def test_every_division_of_few_tokens(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Blocks of rows, parts of K within a CTA and over a cluster: the product is within the bound, and has
    the same bits when it is run again."""
    row = GEMMS[name]
    x, w = draw(21, 333, 1500)
    ops, variant = row.operands(x, w), row.variant("swap A/B")
    several = name != "fp8_blockwise"
    for tokens in (8, 32, 64) if row.w.format.bits == 4 else (8, 64, 256 if name == "bf16" else 128):
        for blocks, ways, ranks in ((1, 1, 1), (2, 1, 2), (1, 2, 2), (1, 1, 8)) if several else ((2, 1, 2),):
            division = gemm_kernels.Division(tokens, blocks, ways, 1, ranks)
            monkeypatch.setattr(swap_ab, "division_of", lambda *_, division=division: division)
            check(row, variant, ops, str(division))
            assert torch.equal(variant.run(ops), variant.run(ops)), division


@pytest.mark.parametrize(
    "name",
    ["bf16", "w8a16", "w4a16_group128_asym", "w_nvfp4", "nf4", "w3a16", "w4a8_int", "fp8_blockwise", "int8"],
)
def test_every_division_into_a_stream_of_tiles(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tiles one after another, whole or with K of all in equal parts: within the bound, the same bits again,
    and flags down for the next launch. Three multiprocessors have many tiles, a hundred have parts of one."""
    row = GEMMS[name]
    variant = row.variant("swap A/B")
    ops = row.operands(*draw(300, 460, 1500))
    for tokens in swap_ab.TOKENS:
        for other, split, multiprocessors in itertools.product((False, True), (False, True), (3, 100)):

            def streamed(*sizes: Any, most: int = tokens, other: bool, split: bool) -> gemm_kernels.Division:
                forms = swap_ab._forms(min(most, swap_ab.tokens_for(sizes[3])[-1]), sizes[3])
                return dataclasses.replace(forms[-1 if other else 0], streamed=True, split=split)

            what = f"{tokens} tokens, other form: {other}, split: {split}, {multiprocessors}"
            how = functools.partial(streamed, other=other, split=split)
            monkeypatch.setattr(swap_ab, "division_of", how)
            monkeypatch.setattr(swap_ab, "multiprocessors", lambda _, count=multiprocessors: count)
            check(row, variant, ops, what)
            assert torch.equal(variant.run(ops), variant.run(ops)), what
    assert all(not flags.any() for _, flags in swap_ab._PARTIAL_SUMS.values())


@pytest.mark.parametrize("name", ["bf16", "w4a16_group128", "w_nvfp4"])
def test_products_that_launch_early_wait_for_their_input(name: str) -> None:
    """Sixty products, each of the last one's output: the same bits as launched one after another, by itself
    and from a graph. If this fails, a product reads X before it is written, or writes over what is read."""
    row, size = GEMMS[name], 2048
    x, w = draw(4, size, size)
    ops = row.operands(x, w)
    tiles = layouts.tiles_of(row.w, gemm_kernels.OperandType.BF16) if name != "bf16" else None
    tiles = tiles or gemm_kernels.Tiles(gemm_kernels.OperandType.BF16)
    of_w = layouts.tiled_weights(ops.w.q, tiles) if tiles.bits else layouts.byte_rows(ops.w.q)
    epilogue = epilogues.tiled(ops, tiles)
    torch.cuda.synchronize()

    first = layouts.activation_rows(ops.x.q).view(torch.uint8)
    held = first.clone(), first.clone()

    def chain(early: bool, division: gemm_kernels.Division) -> Tensor:
        held[0].copy_(first)
        for i in range(60):  # from one to the other and back
            source, out = held[i % 2], held[1 - i % 2].view(torch.bfloat16)
            gemm_kernels.gemm_swap_ab(
                source, of_w, size, tiles, epilogue, division=division, early=early, out=out
            )
        return held[0].view(torch.bfloat16)

    hows: list[dict[str, Any]] = [{"ranks": 2}, {"streamed": True}, {"streamed": True, "split": True}]
    for how in hows:
        division = dataclasses.replace(swap_ab._forms(8, tiles)[0], **how)
        want = chain(False, division).clone()
        assert want.isfinite().all() and want.any()
        for _ in range(5):
            assert torch.equal(chain(True, division), want), division
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            chain(True, division)
        for _ in range(5):
            held[0].zero_(), held[1].zero_()
            graph.replay()
            assert torch.equal(held[0].view(torch.bfloat16), want), division


RAGGED = (1, 63, 65, 127, 129, 193, 255, 257, 300, 385)
"""Rows of X that end inside a tile of 64, 128 or 256, on both sides of its ends."""
KINDS = {"bf16": torch.bfloat16, "e4m3": torch.float8_e4m3fn}


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("scale_k", list(gemm_kernels.ScaleK))
def test_every_tile_of_ragged_products_after_nans(kind: str, scale_k: gemm_kernels.ScaleK) -> None:
    """A product of NaNs leaves them in shared memory and registers; then every tile multiplies whole numbers,
    whose sums are exact. If this fails, rows or columns outside the output reach it, or a tile that *auto*
    takes for few tokens is wrong."""
    if scale_k is not gemm_kernels.ScaleK.NONE and kind != "e4m3":
        pytest.skip("scales along K are those of FP8")
    if torch.cuda.get_device_capability() != (9, 0):
        pytest.skip("wgmma is Hopper's")
    k, k_tiles = 1040 // KINDS[kind].itemsize, -(-1040 // 128)  # the last k-tile is not full
    of_blocks, of_columns = scale_k is gemm_kernels.ScaleK.BLOCK, scale_k is gemm_kernels.ScaleK.COLUMN
    generator = torch.Generator(device="cuda").manual_seed(0)

    def whole(low: int, high: int, *shape: int) -> Tensor:
        return torch.randint(low, high + 1, shape, generator=generator, device="cuda").float()

    def multiply(x: Tensor, w: Tensor, tile: gemm_kernels.WgmmaTile) -> tuple[Tensor, Tensor]:
        """The kernel's product and the exact one, with scales that are powers of two."""
        x_scale = 2.0 ** whole(-2, 2, k_tiles, len(x)) if of_blocks else None
        w_shape = (-(-len(w) // 128), k_tiles) if of_blocks else (k_tiles, len(w))
        w_scale = 2.0 ** whole(-2, 2, *w_shape) if of_blocks or of_columns else None
        rows_x, rows_w = (v.to(KINDS[kind]).view(torch.uint8) for v in (x, w))
        epilogue = gemm_kernels.Epilogue(dtype=torch.float32)
        got = gemm_kernels.gemm_wgmma(rows_x, rows_w, kind, epilogue, scale_k, x_scale, w_scale, tile)
        left, right = x.double(), w.double()
        if x_scale is not None:
            left = left * x_scale.repeat_interleave(128, 0)[:k].t()
        if w_scale is not None:
            by_column = w_scale.t().repeat_interleave(128, 1) if of_blocks else w_scale
            right = right * by_column.repeat_interleave(128, 0)[:k, : len(w)].t()
        return got.double(), left @ right.t()

    nans = torch.full((2048, k), float("nan"), device="cuda")
    for tile in gemm_kernels.wgmma_tiles(scale_k):
        for m, n in itertools.product(RAGGED, (8, 136, 264)):
            multiply(nans, nans, tile)
            got, exact = multiply(whole(-2, 2, m, k), whole(-2, 2, n, k), tile)
            assert torch.equal(got, exact), f"{tile}: {m} x {n} x {k}"


def test_tiles_of_another_shape_are_refused() -> None:
    """A kernel that reads beyond W's tiles would multiply whatever lies there."""
    row = GEMMS["w4a16_group128"]
    ops = row.operands(*draw(4, 128, 256))
    tiles = layouts.tiles_of(row.w, gemm_kernels.OperandType.BF16)
    w, x = layouts.tiled_weights(ops.w.q, tiles), layouts.activation_rows(ops.x.q).view(torch.uint8)
    for n, columns in ((192, x.shape[1]), (128, x.shape[1] // 2)):
        with pytest.raises(ValueError, match="tiles"):
            gemm_kernels.gemm_swap_ab(x[:, :columns], w, n, tiles, gemm_kernels.Epilogue())


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool: str) -> None:
    """Every kernel of every product once at an odd shape under the sanitizer."""
    program = (
        "import torch; from explorer.products.gemms import GEMMS\n"
        "chip = torch.cuda.get_device_capability()\n"
        "for row in GEMMS.values():\n"
        "  ops = row.operands(torch.randn(33, 200, device='cuda'), torch.randn(70, 200, device='cuda'))\n"
        "  for variant in row.variants_on(chip): variant.run(ops); torch.cuda.synchronize()\n"
    )
    assert_clean(tool, program)
