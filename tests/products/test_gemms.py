"""The table of products on any machine: rows that make sense, operands that mean what they say, kernels that
compile.

If these fail, the Speed section compares unlike things, or a kernel cannot be built for a chip that it is
offered on.
"""

from __future__ import annotations

import itertools
import re
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace

import pytest
import torch

from explorer import SCHEMES, ScaleRule, Scheme, quantize
from explorer.bench.gemm import builds_at
from explorer.formats import float_format
from explorer.gpu import runtime
from explorer.gpu.compile import included_files
from explorer.gpu.config import MACROS
from explorer.gpu.gemm import EPILOGUE_TYPES, Epilogue, OperandType, Tiles, row_bits, swap_ab, two_bit_rows
from explorer.paths import KERNELS
from explorer.products import baselines, epilogues, layouts
from explorer.products.advice import of_kernel, output_errors, points
from explorer.products.gemms import GEMMS, ON_WEIGHTS, Gemm, all_builds, find
from explorer.products.layouts import weight_of
from explorer.products.operands import Operands, reference
from explorer.products.variants import NAIVE, TILED, in_registers
from explorer.recordings.gemm import newest_gemms, recorded_gemms
from explorer.schemes import SCALE_RULES
from tests.covering import Trait, covering, sampled
from tests.new_rows import E2M2, ROWS

HOPPER = "sm_90a"
CHIPS = {"sm_80": (8, 0), HOPPER: (9, 0), "sm_100a": (10, 0), "sm_120a": (12, 0)}


@pytest.mark.parametrize("name", GEMMS)
def test_the_reference_is_the_product_of_the_dequantized(name: str) -> None:
    row, generator = GEMMS[name], torch.Generator().manual_seed(0)
    for m, n, k in ((1, 1, 1), (3, 5, 7), (17, 24, 300)):
        x, w = torch.randn(m, k, generator=generator), torch.randn(n, k, generator=generator)
        bias = torch.randn(n, generator=generator)
        ops = row.operands(x, w, bias, "gelu")
        product, size = ops.exact()
        got, want = reference(ops).double(), ops.finished(product)
        unit = torch.finfo(row.out).eps
        assert bool(((got - want).abs() <= unit * want.abs() + k * 2.0**-22 * size + 1e-6).all())


# Scales of super-blocks are products of two numbers, and no row of the table has them.
def test_weight_scales_are_exact() -> None:
    """If this fails, a product computes with other scales than those that were stored. (Scales of
    super-blocks are products of two numbers, and no row of the table has them.)"""
    for rule in (r for r in SCALE_RULES.values() if r and not r.is_searched and not r.super_bits):
        scheme = Scheme.parse(f"int4~1x128~symmetric~{rule.word}~minmax")
        q = quantize(torch.randn(4, 256) * 2.0**-18, scheme)
        scales = layouts.weight_scales(q)
        assert torch.equal(scales.float(), q.scales.stored), rule
        assert scheme.scale and scheme.scale.format.bits in (8, 8 * scales.itemsize), rule


def test_a_scale_that_lies_within_another_tensor_is_read_as_kernels_can() -> None:
    """The quantizing kernels leave the scale of a tensor behind its range; the products' epilogues load from
    multiples of 16 bytes."""
    q = quantize(torch.randn(4, 64), SCHEMES["nvfp4"])
    within = torch.tensor([1.0, 2.0, 3.0])[2]
    assert within.data_ptr() % 16
    scale = layouts.tensor_scale(replace(q, scales=replace(q.scales, tensor_scale=within)))
    assert scale is not None and scale.data_ptr() % 16 == 0 and scale.tolist() == [3.0]


def test_zero_points_are_an_integer_identity() -> None:
    """Σ(a - za)(b - zb) = Σab - za·(Σb - K·zb) - zb·Σa, with the true K."""
    x, w = torch.randn(5, 37) + 0.3, torch.randn(9, 37) - 0.2
    ops = GEMMS["int8_asym"].operands(x, w)
    terms = epilogues.with_zero_terms(ops, Epilogue())
    assert all(v is not None for v in (terms.row_a, terms.col_a, terms.row_b, terms.col_b))
    row_a, col_a, row_b, col_b = (v.long() for v in (terms.row_a, terms.col_a, terms.row_b, terms.col_b))
    a, b = ops.x.q.packed.view(torch.int8).long(), ops.w.q.packed.view(torch.int8).long()
    za, zb = row_a, col_b
    assert int(za.abs().max()) > 0 and int(zb.abs().max()) > 0
    want = (a - za[:, None]) @ (b - zb[:, None]).t()
    got = a @ b.t() - za[:, None] * col_a - row_b[:, None] * zb
    assert torch.equal(got, want)


def test_binary_products_from_bits() -> None:
    """Both ways of counting, from the epilogue's own terms: K - 2·popc(a ^ b) = K - 2·popc(a) - 2·popc(b) +
    4·popc(a & b)."""
    for k in (32, 33, 64, 100):
        x, w = torch.randn(4, k), torch.randn(6, k)
        ops = GEMMS["binary"].operands(x, w)
        signs = [torch.where(q.codes > 0, 1, -1).long() for q in (ops.x.q, ops.w.q)]
        want = signs[0] @ signs[1].t()
        a, b = ops.x.q.packed[:, None, :], ops.w.q.packed[None, :, :]
        for sums, e in ((a ^ b, epilogues.bits_xor(ops)), (a & b, epilogues.bits_and(ops))):
            counted = row_bits(sums.reshape(-1, sums.shape[2])).view(4, 6).long()
            got = e.multiply * counted
            got = got - (e.row_a.long()[:, None] if e.row_a is not None else 0)
            assert e.col_b is not None and e.col_a is None and e.row_b is None
            assert torch.equal(got - e.col_b.long(), want), k


def test_two_bit_fields_are_lowest_first() -> None:
    """Codes 0 1 2 2 are the byte 10 10 01 00."""
    assert two_bit_rows(torch.tensor([[0, 1, 2, 2]], dtype=torch.uint8))[0, 0] == 0b10100100
    assert two_bit_rows(torch.zeros(3, 70, dtype=torch.uint8)).shape == (3, 32)


def test_rows_say_what_they_are() -> None:
    for row in GEMMS.values():
        assert row.variants and len({v.name for v in row.variants}) == len(row.variants)
        assert row.label and row.scales and row.accumulator
        for variant in row.variants:
            assert (KERNELS / variant.file).exists(), variant.file
    native = {chip: {n for n, row in GEMMS.items() if row.is_native(chip)} for chip in CHIPS.values()}
    assert "binary" in native[9, 0] - native[10, 0] and "nvfp4" in native[10, 0] - native[9, 0]
    assert "fp8_blockwise" in native[9, 0] - native[8, 0] and "fp32" in native[8, 0]
    assert "w4a16_group128" not in native[12, 0] and find("bf16") is GEMMS["bf16"]
    with pytest.raises(ValueError, match=r"nope.*fp32, tf32"):
        find("nope")
    with pytest.raises(ValueError, match=r"bf16.*naive, tiled"):
        GEMMS["bf16"].variant("x")


def test_wrong_operands_are_refused() -> None:
    """Vectors of another length or type, or not at a multiple of 16 bytes, would be read past their end or
    fault on the chip."""
    row = GEMMS["bf16"]
    for x, w, bias, words in (
        (torch.randn(2, 3), torch.randn(2, 4), None, r"\[N, K\]"),
        (torch.randn(0, 3), torch.randn(2, 3), None, "≥ 1"),
        (torch.randn(1, 3), torch.randn(2, 3), torch.randn(3), "2 values"),
    ):
        with pytest.raises(ValueError, match=words):
            row.operands(x, w, bias)
    with pytest.raises(ValueError, match="registers"):
        weight_of(GEMMS["fp8_blockwise"].w)
    assert isinstance(row.operands(torch.randn(1, 3), torch.randn(2, 3)), Operands)
    out, whole = torch.empty(3, 8, dtype=torch.bfloat16), torch.ones(12)
    assert len(Epilogue(col_scale=whole[:8]).arguments(out)) == len(EPILOGUE_TYPES)
    for bad, words in (
        (whole[1:9], "16 bytes"), (whole, "8 values"), (whole[:8].double(), "torch.float32")
    ):  # fmt: skip
        with pytest.raises(ValueError, match=words):
            Epilogue(col_scale=bad).arguments(out)


def of_each_file(build: runtime.Build) -> set[Trait]:
    return {build.file}


@pytest.mark.parametrize("arch", sampled(CHIPS, (HOPPER,)))
def test_each_gemm_kernel_compiles_without_spilling(arch: str, nvcc: str) -> None:
    """Every file, for the chip that the kernels are timed on, and for each."""
    compile_and_check(covering(product_builds(CHIPS[arch]), of_each_file), arch)


@pytest.mark.thorough
@pytest.mark.parametrize("arch", CHIPS)
def test_every_gemm_kernel_compiles_without_spilling(arch: str, nvcc: str) -> None:
    """Each way of decoding with every other value of its file's macros, for each chip."""
    compile_and_check(covering(product_builds(CHIPS[arch]), of_each_pair), arch)


FP8, FP8_SPILL = ("E4M3", "E5M2"), {"sm_90a": 20, "sm_100a": 48}
"""Bytes that mma.sync of FP8 spills on chips where it converts to FP16 in registers first; those multiply FP8
by wgmma and tcgen05."""


STEP_SPILL = {None: 0, "0": 0, "1": 4}
"""A register that a step's product keeps beside its loop over tiles, by the macro STEP."""


def compile_and_check(builds: list[runtime.Build], arch: str) -> None:
    """Each has registers, no spill, and its wgmma in flight together; from the user's cache where nothing has
    changed."""
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(lambda b: runtime.compile_cubin(b, arch), builds))
    for build in builds:
        used = runtime.resources(build, arch)
        assert used, f"{build} reports no kernel"
        of = dict(build.macros)
        of_fp8 = build.file == "gemm_mma.cu" and of["TYPE"] in FP8
        allowed = FP8_SPILL.get(arch, 0) if of_fp8 else STEP_SPILL[of.get("STEP")]
        spilled = {name: r.spill_bytes for name, r in used.items() if r.spill_bytes > allowed}
        assert not spilled, f"{build} on {arch} spills {spilled}"
        assert not any(r.serialized for r in used.values()), f"{build} on {arch} waits for every wgmma"


def product_builds(chip: tuple[int, int]) -> list[runtime.Build]:
    """What the table compiles, but for what quantizes and dequantizes: tests/kernels compiles that."""
    return [build for build in all_builds(chip) if build.file not in MACROS]


BY_CODEC = ("gemm_naive.cu", "gemm_tiled.cu")
"""They call a codec's decode, which tests/kernels compiles for every format: one codec of a kind will do."""
DECODING = ("X_TYPE", "WBITS", "SCALES", "ZEROS", "TWO_BIT", "GROUPED")


def of_each_decoding(build: runtime.Build) -> set[Trait]:
    """Every file, with every value of each of its macros."""
    kinds = build.file in BY_CODEC
    values = ((name, value.partition("<")[0] if kinds else value) for name, value in build.macros)
    return {(build.file,), *((build.file, *value) for value in values)}


def of_each_pair(build: runtime.Build) -> set[Trait]:
    """The same with every way of decoding beside each value."""
    decoding = [value for name, value in build.macros if name in DECODING]
    return {(*trait, *decoding) for trait in of_each_decoding(build)}


def test_a_new_row_is_compiled() -> None:
    """One without a list to stand in: FP5 weights are among the builds that tests compile."""
    scheme = Scheme("fp5_group32", "FP5 group 32", E2M2, (1, 32), ScaleRule(float_format("float16")))
    variants, x = (NAIVE, TILED, in_registers()), SCHEMES["bf16"]
    row = Gemm("w5a16", "W5A16", x, scheme, ON_WEIGHTS, "float32", variants, baselines.BF16, "bf16", None)
    builds = covering([*product_builds(CHIPS[HOPPER]), *row.builds(CHIPS[HOPPER])], of_each_pair)
    assert any(dict(build.macros).get("CODEC") == E2M2.cuda_codec for build in builds)


def test_formats_that_fragments_decode() -> None:
    """Beside which types of X, by their kind and bits: one that fragments.cuh has no order for would be
    decoded as another."""
    beside_bf16 = ("int3", "nf4", "af4", "float8_e4m3fn", "float8_e5m2", "float8_e3m4", "float6_e2m3fn",
                   "float6_e3m2fn", "float4_e2m1fn")  # fmt: skip
    decoded = {
        "int8": "bf16", "int4": "bf16 s8 e4m3", "int2": "bf16 s8", "ternary": "bf16 s8",
        **dict.fromkeys(beside_bf16, "bf16"),
        **dict.fromkeys(("int5", "int6", "float16", "binary", "ocp_int8", "float5_e2m2fn"), ""),
    }  # fmt: skip
    for name, x_types in decoded.items():
        scheme = Scheme("t", "t", ROWS[name], (1, None)) if ROWS[name].bits <= 8 else SCHEMES["fp16"]
        for x_type in OperandType:
            if x_type in x_types.split():
                assert layouts.tiles_of(scheme, x_type).bits == ROWS[name].bits
            else:
                with pytest.raises(ValueError, match="registers"):
                    layouts.tiles_of(scheme, x_type)


def test_the_table_is_compiled_ahead_of_time() -> None:
    """Every kernel that a step names is among the builds, for chips that cannot be reached here too."""
    for chip in CHIPS.values():
        files = {b.file for b in all_builds(chip)}
        assert {"gemm_naive.cu", "gemm_tiled.cu", "gemm_simt32.cu", "gemm_addsub.cu"} <= files
        assert {"gemm_mma.cu", "gemm_dequant_in_registers.cu"} <= files
        assert ("gemm_wgmma.cu" in files) == (chip == (9, 0))
        assert ("gemm_block_scaled.cu" in files) == (chip == (12, 0))


def test_what_a_timing_compiles_is_what_it_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of the kernel for few tokens the build for so many; if one is missing, a visitor waits twice."""
    monkeypatch.setattr(swap_ab, "multiprocessors", lambda device: 132)
    gemm, device = GEMMS["w4a16_group128"], torch.device("cuda", 0)
    [variant] = [v for v in gemm.variants if v.name == "swap A/B"]
    tiles = layouts.tiles_of(gemm.w, OperandType.BF16)
    for m, n in itertools.product((1, 16, 33, 64, 300, 4096), (1024, 8192)):
        builds = builds_at(gemm, [variant], (m, n, 4096))
        assert tiles.build(swap_ab.division_of(m, n, 32, tiles, device), gemm.out) in builds
        assert {"repack.cu", "quantize_groups.cu"} < {build.file for build in builds} and len(builds) < 12


def test_what_never_ran_says_so() -> None:
    """Kernels for chips that were not at hand are marked; of every product that was recorded all others were
    timed on the H200 that the recording names. If this fails, the page calls a kernel tested that never
    ran."""
    timed = {(t.gemm, t.variant) for t in newest_gemms().rows}
    for gemm in GEMMS.values():
        if any(name == gemm.name for name, _ in timed):
            for variant in gemm.variants:
                assert variant.tested == ((gemm.name, variant.name) in timed), f"{gemm.name} {variant.name}"


def test_every_recorded_product_is_in_the_table() -> None:
    """If this fails, a row was renamed, and its recording is lost to the page."""
    assert {t.gemm for t in recorded_gemms().rows} <= set(GEMMS)


def test_baselines_leave_torch_as_it_was() -> None:
    """If this fails, timing a baseline changes how every later product of the process is computed."""
    before = torch.backends.cuda.matmul.allow_tf32
    ops = GEMMS["fp32"].operands(torch.randn(2, 8), torch.randn(3, 8))
    try:
        for allowed in (False, True):
            torch.backends.cuda.matmul.allow_tf32 = allowed
            for baseline in (baselines.FP32, baselines.TF32):
                baseline.prepare(ops)()
                assert torch.backends.cuda.matmul.allow_tf32 == allowed, baseline.label
            with pytest.raises(RuntimeError), baselines.tf32_allowed(not allowed):
                raise RuntimeError
            assert torch.backends.cuda.matmul.allow_tf32 == allowed
    finally:
        torch.backends.cuda.matmul.allow_tf32 = before


def test_operands_are_not_changed_by_preparing() -> None:
    """Served operands have the same codes beside bfloat16 values, and the first ones keep their own. If this
    fails, the error is computed against rounded inputs."""
    x, w = torch.randn(3, 16), torch.randn(5, 16)
    ops = GEMMS["int8"].operands(x, w)
    served = ops.as_served()
    assert served.x.values.dtype == torch.bfloat16 and served.x.q is ops.x.q and served.w.q is ops.w.q
    assert ops.x.values is x and torch.equal(ops.unquantized_product(), x.double() @ w.double().t())
    assert GEMMS["fp16"].operands(x, w).as_served().x.values is x
    with pytest.raises(AttributeError):
        ops.x = served.x  # type: ignore[misc]


def test_names_of_macros_are_those_of_the_files() -> None:
    """A misspelt -D would silently leave a kernel with a default."""
    for file, macro in {(build.file, macro) for build in all_builds((9, 0)) for macro, _ in build.macros}:
        text = "".join((KERNELS / name).read_text() for name in included_files(file))
        assert re.search(rf"\b{macro}\b", text), f"{file} does not use {macro}"


def test_products_are_divided_as_was_fastest(monkeypatch: pytest.MonkeyPatch) -> None:
    """On an H200's 132 multiprocessors, as a script timed them. If this fails, a product takes up to a third
    longer: at 4,096 tokens split tiles do, at 64 tokens and N = 10240 whole ones."""
    monkeypatch.setattr(swap_ab, "multiprocessors", lambda _: 132)
    for name, (m, n, k), expected in (
        ("w4a16_group128", (1, 8192, 8192), "64 rows, whole"),
        ("w4a16_group128", (1, 10240, 8192), "64 rows, split"),
        ("w4a16_group128", (1, 12288, 4096), "64 rows, whole"),
        ("w4a16_group128", (1, 4096, 4096), "64 rows, shared"),
        ("w4a16_group128", (64, 8192, 8192), "64 rows, whole"),
        ("w4a16_group128", (64, 10240, 8192), "128 rows, split"),
        ("w4a16_group128", (64, 12288, 4096), "128 rows, whole"),
        ("w_mxfp8", (256, 8192, 8192), "128 rows, shared"),
        ("w_mxfp8", (512, 8192, 8192), "128 rows, whole"),
        ("w_mxfp8", (8192, 8192, 8192), "128 rows, whole"),
        ("bf16", (1, 64, 8192), "64 rows, whole"),
        ("bf16", (1, 8192, 8192), "64 rows, whole"),
        ("bf16", (64, 4096, 4096), "64 rows, whole"),
        ("bf16", (64, 10240, 8192), "128 rows, whole"),
        ("bf16", (256, 8192, 8192), "128 rows, shared"),
    ):
        dense = name == "bf16"
        tiles = Tiles(OperandType.BF16) if dense else layouts.tiles_of(GEMMS[name].w, OperandType.BF16)
        division = swap_ab.division_of(m, n, k // (64 if dense else 128), tiles, torch.device("cuda"))
        how = "shared" if division.ranks > 1 else "split" if division.split else "whole"
        assert f"{64 * division.blocks} rows, {how}" == expected, (name, m, n, k)
        assert division.streamed == (division.ranks == 1)


def test_folded_weights_have_steps_by_their_group() -> None:
    """INT4 codes times the share of their group in its row's largest value, in steps of 1/127 of it: a group
    of the largest scale keeps seven values, one thirty times smaller has four steps in all."""
    w = torch.randn(8, 256, generator=torch.Generator().manual_seed(0))
    w[:, 128:] /= 30 * w[:, 128:].abs().amax(1, keepdim=True) / w[:, :128].abs().amax(1, keepdim=True)
    q = quantize(w, SCHEMES["int4_group128"])
    folded = layouts.folded_weights(q, OperandType.S8)
    step = q.dequantize().abs().amax(1, keepdim=True) / 127
    assert bool(((folded - q.dequantize()).abs() <= step * 0.501).all())
    assert len(folded[0, 128:].unique()) <= 9 < len(q.dequantize()[0, 128:].unique())
    in_e4m3 = layouts.folded_weights(q, OperandType.E4M3)
    assert bool(((in_e4m3 - q.dequantize()).abs() <= q.dequantize().abs() * 2**-4 * 1.001).all())


def test_a_kernel_that_rounds_weights_again_has_an_error_of_its_own() -> None:
    """A group of columns that a scaling method left thirty times larger costs INT8's folding 4 dB. If this
    fails, Speed shows the error of another kernel beside this one's time."""
    generator = torch.Generator().manual_seed(3)
    w, x = torch.randn(64, 1024, generator=generator), torch.randn(32, 1024, generator=generator)
    w[:, :128] *= 30
    x[:, :128] /= 30
    gemm, shape = GEMMS["w4a8_int"], (8192, 8192, 8192)
    errors = output_errors(x, w, [gemm])
    rows = [t for t in newest_gemms().rows if (t.gemm, t.shape) == (gemm.name, shape)]
    (point,) = points(rows, errors)
    assert point.variant == "widen, scaled weights + wgmma"
    assert point.sqnr_db == errors[of_kernel(gemm.name, point.variant)] < errors[gemm.name] - 3
