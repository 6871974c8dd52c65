"""On a GPU: sums, histograms, counts and maps equal the CPU's; fake quantization and learned steps too.

If these fail, the error that a visitor with a GPU reads, or the gradient that a model trains with, is wrong.
"""

from __future__ import annotations

import dataclasses

import pytest
import torch
from torch import Tensor

from explorer import FORMATS, SCHEMES, MappingType, Scheme, quantize
from explorer.analysis.sliced import analyse_in_slices, rows_that_fit
from explorer.analysis.tensor import Analysis, analyse
from explorer.core.ops import learned_quantize
from explorer.gpu import statistics
from explorer.gpu.config import Layout, multiprocessors
from tests.gpu.sanitizer import assert_clean

pytestmark = pytest.mark.gpu
SHAPES = [(1, 1), (3, 16), (129, 257), (300, 4096), (2, 40000)]


def draw(rows: int, columns: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(rows, columns, generator=generator) * torch.exp2(
        torch.randint(-3, 4, (rows, 1), generator=generator)
    )
    x[torch.rand(rows, columns, generator=generator) < 0.05] = 0.0
    return x


def assert_same(got: Analysis, want: Analysis, what: str) -> None:
    """Counts and maxima exactly; sums to 1e-12 (float64 in another order)."""
    for field in dataclasses.fields(want.report):
        a, b = getattr(got.report, field.name), getattr(want.report, field.name)
        same = a == pytest.approx(b, rel=1e-12, nan_ok=True) if isinstance(b, float) else a == b
        assert same, f"{what}: {field.name} is {a!r}, on the CPU {b!r}"
    assert (got.measured.before.counts == want.measured.before.counts).all(), f"{what}: histogram before"
    assert (got.measured.after.counts == want.measured.after.counts).all(), f"{what}: histogram after"
    assert (got.errors.middle.counts == want.errors.middle.counts).all(), f"{what}: histogram of errors"
    assert torch.equal(got.error_map, want.error_map), f"{what}: error map"
    assert torch.equal(got.largest_at, want.largest_at), f"{what}: where a cell's error is largest"
    for a, b in ((got.before, want.before), (got.after, want.after), (got.errors, want.errors)):
        assert all((getattr(a, part).counts == getattr(b, part).counts).all() for part in vars(a)), what
    if want.measured.code_counts is not None:
        assert torch.equal(got.measured.code_counts, want.measured.code_counts), f"{what}: code counts"


@pytest.mark.parametrize("name", SCHEMES)
def test_statistics_match_the_cpu(name: str) -> None:
    for index, (rows, columns) in enumerate(SHAPES):
        x = draw(rows, columns, index)
        assert_same(analyse(x.cuda(), SCHEMES[name]), analyse(x, SCHEMES[name]), f"{name} {rows}x{columns}")


@pytest.mark.parametrize(
    "name",
    ["int8_row", "fp8_e4m3_128x128", "nvfp4", "int4_group128_asym", "int8_column", "bf16", "binary_row"],
)
def test_slices_match_the_whole(name: str) -> None:
    x, scheme = draw(700, 1000), SCHEMES[name]
    rows = rows_that_fit((700, 1000), scheme, 300 * 1000 * 14)
    assert_same(analyse_in_slices(x, scheme, torch.device("cuda"), rows), analyse(x, scheme), name)


def test_statistics_write_every_output() -> None:
    """Whatever memory held before, the answer is the same: outputs are allocated where poison was."""
    x = torch.randn(256, 512, device="cuda")
    y, limit = x + 0.125, torch.full((1, 1), 1e9, device="cuda")
    blocks = multiprocessors(x.device) * 8
    layout, want = Layout(256, 512, 256, 512, 512), None
    for poison in (0.0, float("nan"), 1e30):
        junk = [
            torch.full((n,), poison, dtype=torch.float64, device="cuda")
            for n in (blocks * 8, blocks, 512, 256)
        ]
        del junk
        sums = statistics.error_sums(x, y, -limit, limit, layout)
        want = want or sums
        assert sums == want and sums.clipped == 0 and sums.largest == pytest.approx(0.125, abs=1e-6)


@pytest.mark.parametrize("name", [n for n, s in SCHEMES.items() if not s.least_squares_scale])
def test_fake_quantize_matches_the_cpu(name: str) -> None:
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for rows, columns in ((5, 33), (129, 256), (64, 4096)):
            x = draw(rows, columns).to(dtype)
            got, inside = torch.ops.explorer.fake_quantize(x.cuda(), name)
            want, mask = torch.ops.explorer.fake_quantize(x, name)
            assert torch.equal(got.cpu().view(torch.uint8), want.view(torch.uint8)), (
                f"{name} {dtype} {rows}x{columns}: values"
            )
            wrong = int((inside.cpu() != mask).sum())
            assert wrong == 0, f"{name} {dtype} {rows}x{columns}: {wrong} masks"
            assert torch.equal(got.float(), quantize(x.cuda(), SCHEMES[name]).dequantize(dtype).float())


@pytest.mark.parametrize("block", [(None, None), (1, None), (None, 1), (1, 32), (1, 30)])
@pytest.mark.parametrize("bits", ["int8", "int4", "int2"])
def test_learned_steps_match_the_cpu(block: tuple[int | None, int | None], bits: str) -> None:
    scheme = Scheme(f"lsq_gpu_{bits}_{block}", "t", FORMATS[bits], block, mapping=MappingType.FULL)
    for dtype in (torch.float32, torch.bfloat16):
        x = torch.randn(130, 300, generator=torch.Generator().manual_seed(1)).to(dtype)
        step = torch.rand(scheme.grid((130, 300)), generator=torch.Generator().manual_seed(2)) * 0.3 + 0.05
        upstream = torch.randn(130, 300, generator=torch.Generator().manual_seed(3)).to(dtype)
        answers = []
        for where in ("cpu", "cuda"):
            a, s = x.to(where).detach().clone().requires_grad_(), step.to(where).clone().requires_grad_()
            out = learned_quantize(a, s, scheme)
            out.backward(upstream.to(where))
            assert a.grad is not None and s.grad is not None
            answers.append((out.detach().cpu(), a.grad.cpu(), s.grad.cpu()))
        (out, dx, ds), (got, got_dx, got_ds) = answers
        assert torch.equal(got, out) and torch.equal(got_dx, dx)
        assert torch.allclose(got_ds, ds, rtol=1e-6, atol=1e-7), float((got_ds - ds).abs().max())


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool: str) -> None:
    """A whole analysis and fused fake quantization, forward and backward, at odd shapes."""
    program = (
        "import torch; from explorer import SCHEMES; from explorer.analysis.tensor import analyse\n"
        "from explorer.core.ops import fake_quantize\n"
        "names = 'int4_group128 int8_row_asym nvfp4 ternary_absmean fp8_e4m3_128x128 int8_tensor'\n"
        "for name in names.split():\n"
        "  for shape in ((40, 256), (9, 77)):\n"
        "    x = torch.randn(shape, device='cuda', requires_grad=True)\n"
        "    analyse(x.detach(), SCHEMES[name]); fake_quantize(x, SCHEMES[name]).sum().backward()\n"
        "    torch.cuda.synchronize()\n"
    )
    assert_clean(tool, program)
