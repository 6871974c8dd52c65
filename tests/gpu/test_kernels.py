"""On a GPU: codes, scales and restored values equal to the CPU reference bit for bit (``make test-gpu``).

If these fail, what a visitor with a GPU sees differs from what everyone else sees.
"""

from __future__ import annotations

import dataclasses
import subprocess
import threading
from pathlib import Path

import pytest
import torch
from torch import Tensor

from explorer import FORMATS, SCHEMES, MappingType, Scheme, fake_quantize, quantize
from explorer.core.backend import REFERENCE
from explorer.core.cuda import quantize_on_device
from explorer.core.lowering import lowered
from explorer.gpu import runtime
from tests.core.test_scale_formats import SCALE_FORMATS, scheme_with
from tests.gpu.sanitizer import assert_clean
from tests.kernels.generated import CODECS, write_formats

pytestmark = pytest.mark.gpu
DTYPES = [torch.float32, torch.bfloat16, torch.float16]
SHAPES = [
    (1, 1), (1, 7), (3, 16), (5, 33), (64, 128), (129, 257), (130, 384), (256, 1024), (7, 5000),
    (300, 4096), (2, 40000), (9, 648), (33, 660), (17, 1283), (0, 8),
]  # fmt: skip

KERNEL_SCHEMES = [name for name, scheme in SCHEMES.items() if lowered(scheme) is not None]
"""The named schemes whose scales and codes kernels find."""


def draw(rows: int, columns: int, dtype: torch.dtype, seed: int = 0) -> Tensor:
    """Values over many binades, zeros and negative zeros among them, one row all zero, one tiny."""
    generator = torch.Generator().manual_seed(seed)
    exponents = torch.randint(-6, 7, (rows, columns), generator=generator).double()
    x = (torch.randn(rows, columns, generator=generator).double() * 2.0**exponents).float()
    x[torch.rand(rows, columns, generator=generator) < 0.05] = 0.0
    x[torch.rand(rows, columns, generator=generator) < 0.05] = -0.0
    if rows > 2:
        x[1] = 0.0
        x[2] *= 2.0**-20
    return x.to(dtype)


def assert_bitwise_equal(got: Tensor, want: Tensor, x: Tensor, what: str) -> None:
    """Equal bits, or: how many differ, the first coordinate, both codes and the input."""
    got = got.cpu()
    assert got.shape == want.shape, f"{what}: {tuple(got.shape)} is not {tuple(want.shape)}"

    def bits(t: Tensor) -> Tensor:
        # Flat: an axis of one element may have any stride, which a view of bytes refuses.
        return t.contiguous().flatten().view(torch.uint8)

    differ = bits(got) != bits(want) if got.numel() else None
    if differ is not None and bool(differ.any()):
        bad = got != want if got.dtype != torch.float32 else got.view(torch.int32) != want.view(torch.int32)
        place = tuple(int(i) for i in bad.nonzero()[0])
        value = float(x[place]) if tuple(x.shape) == tuple(got.shape) else None
        pytest.fail(
            f"{what}: {int(bad.sum())} of {bad.numel()} differ, first at {place}: "
            f"got {got[place]}, want {want[place]}, x={value!r}"
        )


def check(x: Tensor, scheme: Scheme) -> None:
    want = quantize(x.float(), scheme)
    got = quantize(x.cuda(), scheme)
    assert got.packed.is_cuda
    assert_bitwise_equal(got.scales.stored, want.scales.stored, x, f"{scheme.name} scales")
    if want.scales.zero_points is not None:
        assert got.scales.zero_points is not None
        assert_bitwise_equal(got.scales.zero_points, want.scales.zero_points, x, f"{scheme.name} zero points")
    if want.scales.tensor_scale is not None:
        assert float(got.scales.tensor_scale) == float(want.scales.tensor_scale)
    assert_bitwise_equal(got.codes, want.codes, x.float(), f"{scheme.name} codes")
    assert_bitwise_equal(got.packed, want.packed, x, f"{scheme.name} bytes")
    for dtype in DTYPES:
        assert_bitwise_equal(
            got.dequantize(dtype).float(),
            want.dequantize(dtype).float(),
            x.float(),
            f"{scheme.name} restored to {dtype}",
        )


@pytest.mark.parametrize("name", SCHEMES)
def test_every_scheme_matches_the_cpu(name: str) -> None:
    """Every scheme x input type x hard shape."""
    for dtype in DTYPES:
        for index, (rows, columns) in enumerate(SHAPES):
            check(draw(rows, columns, dtype, index), SCHEMES[name])


@pytest.mark.parametrize(
    "name",
    [
        "int4_group128_asym",
        "fp8_e4m3_row",
        "nvfp4",
        "int8_tensor",
        "nf4_block64",
        "bf16",
        "ternary_absmean",
    ],
)
def test_stochastic_rounding_matches(name: str) -> None:
    scheme = dataclasses.replace(SCHEMES[name], seed=7)
    for rows, columns in ((5, 33), (64, 256), (300, 4096)):
        check(draw(rows, columns, torch.float32), scheme)


@pytest.mark.parametrize("block", [(1, 48), (3, 5), (2, 64), (None, 7), (128, 128), (64, None), (1, 4096)])
def test_odd_blocks_match(block: tuple[int | None, int | None]) -> None:
    for fmt in ("int4", "float4_e2m1fn"):
        check(draw(130, 4096, torch.bfloat16), Scheme("t", "t", FORMATS[fmt], block))
        check(draw(33, 100, torch.float32), Scheme("t", "t", FORMATS[fmt], block))


@pytest.mark.parametrize("name", SCALE_FORMATS)
def test_every_scale_format_matches(name: str) -> None:
    """Scales of every format, stored and restored, by each way to quantize: groups, tiles, ranges first."""
    scheme = scheme_with(name)
    for block, shape in (
        ((1, 32), (64, 256)),
        ((1, None), (7, 5000)),
        ((3, 5), (33, 100)),
        ((None, None), (40, 64)),
    ):
        check(draw(*shape, torch.float32), dataclasses.replace(scheme, block=block))
        check(draw(*shape, torch.bfloat16), dataclasses.replace(scheme, block=block, format=FORMATS["int4"]))


def test_means_under_a_tensor_scale_match() -> None:
    """The tensor scale is that of the largest mean: kernels would take the largest value's."""
    check(draw(64, 256, torch.float32), Scheme.parse("float4_e2m1fn~1x16~symmetric~nvfp4~absmean"))


def test_misaligned_and_non_contiguous_inputs() -> None:
    base = draw(64, 520, torch.bfloat16)
    for view in (base[:, 1:513], base[:, :512].t(), base[1:, 4:516]):
        for name in ("int8_row", "int4_group128", "fp8_e4m3_128x128"):
            want, got = quantize(view.float(), SCHEMES[name]), quantize(view.cuda(), SCHEMES[name])
            assert torch.equal(got.packed.cpu(), want.packed)
    flat = torch.empty(64 * 512 + 1, dtype=torch.bfloat16, device="cuda")
    flat[1:] = base[:, :512].reshape(-1).cuda()
    shifted = flat[1:].view(64, 512)
    assert torch.equal(
        quantize(shifted, SCHEMES["nvfp4"]).packed.cpu(),
        quantize(base[:, :512].float(), SCHEMES["nvfp4"]).packed,
    )


def test_extreme_scales_divide_exactly() -> None:
    """Steps far outside 2^±60 take the division itself; near the limits both ways agree with the CPU."""
    for exponent in (-120, -80, -62, -61, -60, -59, 59, 60, 61, 80, 110):
        x = (
            torch.randn(16, 512, generator=torch.Generator().manual_seed(exponent)).double() * 2.0**exponent
        ).float()
        for name in (
            "int8_row",
            "int8_column_asym",
            "fp8_e4m3_1x128",
            "fp8_e5m2fnuz_row",
            "mxfp4",
            "nf4_block64",
            "ternary_absmean_ls",
            "binary_row",
        ):
            check(x, SCHEMES[name])


@pytest.mark.parametrize("name", ["int8_row", "int8_column", "fp8_e4m3_tensor", "nvfp4", "mxfp4"])
def test_quotients_beyond_float32_are_clamped(name: str) -> None:
    """Given scales may be far too small for the values: codes are the outermost, of the right sign."""
    small, scheme = draw(16, 512, torch.float32) * 2.0**-40, SCHEMES[name]
    x = torch.where(torch.arange(512) % 2 == 0, 2.0**100, -(2.0**100)).expand(16, 512).contiguous()
    want = REFERENCE.encode(x, quantize(small, scheme).scales, scheme)[0]
    got = quantize_on_device(x.cuda(), scheme, quantize(small.cuda(), scheme).scales)[0]
    assert_bitwise_equal(got, want, x, name)


@pytest.mark.parametrize(
    "name", [n for n, f in FORMATS.items() if f.bits <= 8 and f.has_codec and not f.scale_only]
)
def test_random_bit_patterns_match(name: str) -> None:
    """Sixteen million random float32 under one scale: every rounding decision of the fast division."""
    bits = torch.randint(-(2**31), 2**31 - 1, (4096, 4096), generator=torch.Generator().manual_seed(1)).to(
        torch.int32
    )
    x = bits.view(torch.float32)
    x = torch.where(x.abs() < 2.0**100, x, torch.zeros(())).nan_to_num(0)
    x = torch.where(x.abs() < 2.0**-100, torch.randn(4096, 4096), x)
    check(x, Scheme("t", "t", FORMATS[name], (1, 128)))


@pytest.mark.parametrize(
    "name", ["fp8_e4m3fnuz_row", "fp8_e5m2fnuz_row", "ternary_absmean", "binary_row", "nvfp4"]
)
@pytest.mark.parametrize("step", [1.0, 0.37, 3.0**-5])
def test_ties_and_tiny_values_match(name: str, step: float) -> None:
    """Multiples of a quarter of a step, and values down to the smallest float32 beside large ones."""
    generator = torch.Generator().manual_seed(0)
    x = torch.randint(-40, 41, (24, 2560), generator=generator) * (0.25 * step)
    x[:, ::16] = 10 * step
    x[8:, 1::16] *= 2.0**-22
    x[16:, 2::16] *= 2.0**-130
    for dtype in DTYPES:
        check(x.to(dtype), SCHEMES[name])


@pytest.mark.parametrize(
    "name", ["int4", "int3", "int2", "int8", "float6_e3m2fn", "float8_e5m2fnuz", "nf4", "binary"]
)
@pytest.mark.parametrize("width", [1, 3, 8])
def test_columns_of_every_width_match(name: str, width: int) -> None:
    """Steps of single columns and of a few: by runs of one access, by whole packing units, by elements."""
    mappings = [MappingType.SYMMETRIC] + [MappingType.ASYMMETRIC] * name.startswith("int")
    for mapping in mappings:
        scheme = Scheme("t", "t", FORMATS[name], (None, width), mapping=mapping)
        for rows, columns in ((5, 33), (70, 1024), (700, 48)):
            for dtype in DTYPES:
                check(draw(rows, columns, dtype), scheme)


@pytest.mark.parametrize(
    "name",
    ["int8_tensor", "int8_tensor_asym", "nvfp4", "ternary_twn", "ternary_absmean_ls", "int8_column_asym"],
)
@pytest.mark.parametrize("shape", [(1, 1), (1, 16), (16, 1), (3, 48), (1031, 4096), (6144, 6400)], ids=str)
def test_two_passes_match_on_tensors_of_any_size(name: str, shape: tuple[int, int]) -> None:
    """Tiny, of rows that are no whole number of warps, larger than the L2 cache; the second pass runs
    backwards. The memory that ranges are gathered in is zero again: a call after a larger one is right."""
    large = shape[0] > 4096
    for dtype in [torch.bfloat16] if large else DTYPES:
        x = draw(*shape, dtype)
        if not large:
            check(x * 2, SCHEMES[name])
        check(x, SCHEMES[name])


@pytest.mark.parametrize("name", ["af4", "nf4"])
@pytest.mark.parametrize("offset", [-2, -1, 0, 1, 2])
def test_levels_match_round_every_threshold(name: str, offset: int) -> None:
    """Numbers a few units in the last place round the midpoints of levels, in blocks whose scale is 1 and
    others; the last warp has half of its blocks."""
    levels = FORMATS[name].values.sort().values
    middle = (levels[1:] + levels[:-1]) / 2
    near = (middle.view(torch.int32) + offset).view(torch.float32)
    block = torch.cat([near, levels, torch.ones(64 - len(near) - len(levels))])
    x = torch.stack([block, -block, block * 0.37, block * 3.0, block * 2.0**-70]).repeat(1, 3)
    check(x, Scheme("t", "t", FORMATS[name], (1, 64)))


def test_base_three_rows_of_any_length_and_alignment() -> None:
    """Packed rows of ternary codes begin at any address; inputs may not be aligned either."""
    base = draw(23, 2000, torch.bfloat16)
    for columns in (1, 4, 5, 19, 20, 21, 639, 640, 641, 643, 1283, 1999):
        for offset in (0, 1):
            view = base[:, offset : offset + columns]
            for dtype in DTYPES:
                for name in ("ternary_absmean", "ternary_twn"):
                    check(view.to(dtype), SCHEMES[name])
    for block in ((1, 64), (2, 7), (None, 1)):
        scheme = dataclasses.replace(SCHEMES["ternary_absmean"], block=block)
        check(base[:, :1283], scheme)
    flat = torch.empty(23 * 640 + 1, dtype=torch.bfloat16, device="cuda")
    flat[1:] = base[:, :640].reshape(-1).cuda()
    want = quantize(base[:, :640].float(), SCHEMES["ternary_absmean"])
    assert torch.equal(quantize(flat[1:].view(23, 640), SCHEMES["ternary_absmean"]).packed.cpu(), want.packed)


def test_non_finite_is_refused() -> None:
    for place in ((0, 0), (63, 511)):
        x = torch.randn(64, 512, device="cuda")
        x[place] = float("nan") if place[0] else float("inf")
        for name in (
            "int8_tensor",
            "int4_group128",
            "fp8_e4m3_128x128",
            "int8_row",
            "int8_column",
            "nvfp4",
            "ternary_twn",
            "bf16",
            "fp8_e4m3_cast",
        ):
            with pytest.raises(
                ValueError, match=f"1 of 32768 values are NaN or Inf, the first at row {place[0]}"
            ):
                quantize(x, SCHEMES[name])


@pytest.mark.parametrize("name", KERNEL_SCHEMES)
def test_one_value_that_is_not_finite_is_refused_wherever_it_lies(name: str) -> None:
    """By every kernel that a scheme takes, the last value of ragged rows too; the call after it is right."""
    for rows, columns in ((5, 33), (64, 512), (130, 384), (3, 5000)):
        for dtype in DTYPES:
            x = draw(rows, columns, dtype).cuda()
            good = x.clone()
            x[-1, -1] = float("nan")
            with pytest.raises(ValueError, match=f"the first at row {rows - 1}, column {columns - 1}:"):
                quantize(x, SCHEMES[name])
            late = quantize(x, SCHEMES[name], check=False)
            with pytest.raises(ValueError, match="NaN or Inf, or too large to be scaled"):
                late.check()
            quantize(good, SCHEMES[name], check=False).check()
            assert torch.equal(quantize(good, SCHEMES[name]).packed, quantize(good, SCHEMES[name]).packed)
    large = torch.full((4, 128), 1e300, dtype=torch.float64, device="cuda")
    with pytest.raises(ValueError, match="beyond float32"):
        quantize(large, SCHEMES[name])


def test_many_threads_at_once() -> None:
    """64 threads hammering the same kernels give the right answers, and none leaves a context behind."""
    x = draw(256, 1024, torch.float32)
    names = ["int8_row", "nvfp4", "int4_group128_asym", "mxfp4"]
    want = {n: quantize(x, SCHEMES[n]).packed for n in names}
    wrong: list[str] = []

    def work(index: int) -> None:
        name = names[index % len(names)]
        for _ in range(3):
            if not torch.equal(quantize(x.cuda(), SCHEMES[name]).packed.cpu(), want[name]):
                wrong.append(name)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_threads_do_not_see_each_others_nan() -> None:
    """Half of 32 threads quantize NaN: they are told, and the others are not."""
    good = draw(64, 1024, torch.bfloat16).cuda()
    bad = good.clone()
    bad[5, 7] = float("inf")
    scheme, wrong = SCHEMES["int4_group128"], list[int]()

    def work(index: int) -> None:
        for _ in range(20):
            refused = False
            try:
                quantize(bad if index % 2 else good, scheme)
            except ValueError:
                refused = True
            if refused != bool(index % 2):
                wrong.append(index)

    threads = [threading.Thread(target=work, args=(i,)) for i in range(32)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_nan_from_a_slow_producer_is_noticed() -> None:
    """Written on a side stream long after the call: the host has to wait for it, and for nothing less."""
    with torch.cuda.stream(torch.cuda.Stream()):
        late = torch.zeros(128, 1024, device="cuda")
        torch.cuda._sleep(10_000_000)
        late[7, 9] = float("nan")
        with pytest.raises(ValueError, match="row 7, column 9"):
            quantize(late, SCHEMES["int8_row"])


@pytest.mark.parametrize("name", KERNEL_SCHEMES)
def test_the_call_is_captured_and_replayed(name: str) -> None:
    """``quantize`` as anyone calls it, in a graph, on five inputs: the bits of a call outside, larger and
    smaller values after each other. NaN in a replay is said by ``check``."""
    scheme = SCHEMES[name]
    for rows, columns in ((64, 512), (5, 33), (130, 384)):
        inputs = [
            draw(rows, columns, torch.bfloat16, seed) * times
            for seed, times in enumerate((1.0, 8.0, 0.25, 2.0**-9, 3.0))
        ]
        static = inputs[0].cuda()
        quantize(static, scheme)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            q = quantize(static, scheme)
        for x in inputs:
            static.copy_(x)
            graph.replay()
            want = quantize(x.cuda(), scheme)
            q.check()
            assert torch.equal(q.packed, want.packed)
            for part in ("stored", "zero_points", "tensor_scale"):
                ours, theirs = getattr(q.scales, part), getattr(want.scales, part)
                assert (ours is None) == (theirs is None) and (ours is None or torch.equal(ours, theirs)), (
                    part
                )
            assert torch.equal(q.dequantize(), want.dequantize())
        static[rows - 1, columns - 1] = float("nan")
        graph.replay()
        with pytest.raises(ValueError, match="NaN or Inf"):
            q.check()
        assert q.unchecked is not None
        q.unchecked.zero_()
        static.copy_(inputs[1])
        graph.replay()
        q.check()
        assert torch.equal(q.packed, quantize(inputs[1].cuda(), scheme).packed)


def test_operators_are_captured() -> None:
    """Fake quantization and the operators, as a training step in a graph calls them."""
    x, scheme = draw(64, 512, torch.bfloat16), SCHEMES["int4_group128"]
    static = torch.zeros(64, 512, dtype=torch.bfloat16, device="cuda")
    fake_quantize(static, scheme), torch.ops.explorer.quantize(static, scheme.name)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        restored = fake_quantize(static, scheme)
        packed = torch.ops.explorer.quantize(static, scheme.name)[0]
    static.copy_(x)
    graph.replay()
    assert torch.equal(restored, fake_quantize(x.cuda(), scheme))
    assert torch.equal(packed, quantize(x.cuda(), scheme).packed)


def test_what_has_no_kernels_is_refused_in_a_graph() -> None:
    """In words; the capture ends in order, and the scheme works outside."""
    x = torch.randn(8, 256, device="cuda")
    with (
        pytest.raises(ValueError, match="a CUDA graph cannot capture it"),
        torch.cuda.graph(torch.cuda.CUDAGraph()),
    ):
        quantize(x + 1, SCHEMES["q4_k"])  # so that the graph is not empty
    assert quantize(x, SCHEMES["q4_k"]).packed.is_cuda


def test_cuda_graph_and_side_streams() -> None:
    """Captured once, replayed on new input; launched on torch's side streams in order."""
    x = draw(128, 1024, torch.float32)
    static = torch.zeros(128, 1024, device="cuda")
    scheme = SCHEMES["int4_group128"]
    quantize_on_device(static, scheme)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packed, _, _ = quantize_on_device(static, scheme)
    static.copy_(x)
    graph.replay()
    assert torch.equal(packed.cpu(), quantize(x, scheme).packed)
    side = torch.cuda.Stream()
    with torch.cuda.stream(side):
        late = torch.zeros(128, 1024, device="cuda")
        torch.cuda._sleep(10_000_000)
        late.copy_(x)
        answer = quantize(late, scheme).packed.cpu()
    assert torch.equal(answer, quantize(x, scheme).packed)


@pytest.mark.parametrize("name", ["int8_tensor", "ternary_absmean", "nvfp4", "int8_column"])
def test_a_graph_finds_the_range_of_each_input(name: str) -> None:
    """Replayed on smaller values after larger ones. If this fails, a range is what an earlier replay left."""
    x, static = draw(128, 1024, torch.float32), torch.zeros(128, 1024, device="cuda")
    quantize_on_device(static, SCHEMES[name])
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        packed, _, _ = quantize_on_device(static, SCHEMES[name])
    for times in (1.0, 0.37, 2.0**-9):
        static.copy_(x * times)
        graph.replay()
        assert torch.equal(packed.cpu(), quantize(x * times, SCHEMES[name]).packed), times


def test_all_two_to_the_32_inputs_are_nvidias(tmp_path: Path) -> None:
    """Every float32 in every format: NVIDIA's codes where it has them, by hardware and by generic path."""
    arch = runtime.arch_of(torch.device("cuda", 0)).removeprefix("sm_")
    target = f"-gencode=arch=compute_{arch},code=sm_{arch}"
    nvcc = ["nvcc", "-O3", "-std=c++17", "--fmad=false", target, write_formats(tmp_path)]
    subprocess.run(
        [*nvcc, "-o", tmp_path / "exhaustive", Path(__file__).with_name("exhaustive.cu")], check=True
    )
    run = subprocess.run([tmp_path / "exhaustive"], capture_output=True, text=True)
    names = [line.split()[0] for line in run.stdout.splitlines()]
    assert run.returncode == 0, run.stdout
    assert [name for name in names if not name.endswith("-generic")] == list(CODECS)
    assert len(names) == len(CODECS) + 5, "each of NVIDIA's float conversions is met twice"


@pytest.mark.parametrize("tool", ["memcheck", "racecheck", "initcheck"])
def test_compute_sanitizer_finds_nothing(tool: str, tmp_path: Path) -> None:
    """Every scheme once on an odd shape under the sanitizer's three tools."""
    program = (
        "import torch, sys; from explorer import SCHEMES, quantize\n"
        "for s in SCHEMES.values():\n"
        "  for shape in ((40, 256), (9, 77)):\n"
        "    q = quantize(torch.randn(shape).cuda(), s)\n"
        "    q.dequantize(torch.bfloat16); torch.cuda.synchronize()\n"
    )
    assert_clean(tool, program)


def test_more_than_two_to_the_31_elements() -> None:
    """Indices do not wrap: the last rows of a 2^31+ element tensor equal the same rows alone."""
    rows, columns = 2**18 + 64, 8192
    x = torch.empty(rows, columns, dtype=torch.bfloat16, device="cuda").normal_(
        generator=torch.Generator("cuda").manual_seed(0)
    )
    for name in ("int4_group128", "int8_row", "fp8_e4m3_128x128"):
        packed, scales, _ = quantize_on_device(x, SCHEMES[name])
        tail = quantize(x[-128:].float().cpu(), SCHEMES[name])
        step = 128 if name == "fp8_e4m3_128x128" else 1
        if rows % step == 0 or step == 1:
            assert torch.equal(packed[-128:].cpu(), tail.packed)
        restored = quantize(x, SCHEMES[name]).dequantize(torch.bfloat16)
        assert torch.equal(
            restored[:64].cpu(),
            quantize(x[: 128 if step > 1 else 64].float().cpu(), SCHEMES[name]).dequantize(torch.bfloat16)[
                :64
            ],
        )
        del packed, scales, restored
