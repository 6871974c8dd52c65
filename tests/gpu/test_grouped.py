"""On a GPU: grouped products against the float64 product of every group's dequantized operands."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from explorer.gpu import gemm as kernels
from explorer.products.grouped import CONTIGUOUS, GROUPED, Case, Grouped, GroupedOperands, GroupedVariant
from explorer.products.variants import HOPPER
from tests.gpu.sanitizer import assert_clean
from tests.gpu.test_gemms import bound

pytestmark = pytest.mark.gpu
CASES = [
    Case("one row", (1,), 128, 128),
    Case("none at first, between and at the end", (0, 3, 0, 0, 130, 0), 256, 384),
    Case("not whole tiles", (65, 1, 200, 129, 64), 384, 512),
    Case("K that is not whole k-tiles", (5, 70), 128, 200),
    Case("more groups than a warp counts at once", tuple(g % 4 for g in range(100)), 128, 256),
    Case("many rows", (700, 300), 640, 256),
]
NAMES = [(name, variant.name) for name, row in GROUPED.items() for variant in row.variants]


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if torch.cuda.get_device_capability()[0] != HOPPER:
        pytest.skip("grouped products are for sm_90a")


def check(row: Grouped, variant: GroupedVariant, ops: GroupedOperands, got: torch.Tensor) -> None:
    """``got``: the groups' rows alone."""
    product, size = ops.exact()
    allowed = bound(ops.groups[0], row.gemm.variant("wgmma"), product, size)
    wrong = ~((got.double() - product).abs() <= allowed)
    assert not bool(wrong.any()), (
        f"{row.name}, {variant.name}, {ops.case.name}: {int(wrong.sum())} of {wrong.numel()} beyond the bound"
    )


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
@pytest.mark.parametrize(("name", "variant"), NAMES)
def test_every_kernel_is_within_the_bound(name: str, variant: str, case: Case) -> None:
    """If this fails, rows are multiplied by another expert's weights or scales, or are left out."""
    row = GROUPED[name]
    chosen = next(v for v in row.variants if v.name == variant)
    ops = GroupedOperands.draw(row.gemm, case, row.layout, torch.device("cuda"))
    output = chosen.prepare(row.gemm, ops)()
    assert isinstance(output, torch.Tensor)
    check(row, chosen, ops, output if chosen.tile is None else output[ops.rows])


@pytest.mark.parametrize("name", GROUPED)
def test_rows_of_no_group_are_not_written(name: str) -> None:
    """If this fails, a masked product destroys what lies beside it, or reads counts that are too large."""
    row = GROUPED[name]
    case = Case("some", (3, 0, 70), 128, 256)
    ops = GroupedOperands.draw(row.gemm, case, row.layout, torch.device("cuda"))
    shorter = dataclasses.replace(case, counts=(2, 0, 60))
    counts = torch.tensor(shorter.counts, device="cuda")
    if row.layout == CONTIGUOUS:
        counts = counts.cumsum(0)
    full = row.variants[1].prepare(row.gemm, ops)
    before = full()
    assert isinstance(before, torch.Tensor)
    ops.ends.copy_(counts)
    # The allocator gives the poisoned memory to the output.
    poison = torch.full_like(before, float("nan"))
    place = poison.data_ptr()
    del poison
    after = full()
    assert isinstance(after, torch.Tensor)
    if after.data_ptr() != place:
        pytest.skip("the allocator gave other memory")
    used = torch.zeros(after.shape[0], dtype=torch.bool, device="cuda")
    for g, count in enumerate(shorter.counts):
        first = g * ops.capacity if ops.capacity else sum(shorter.counts[:g])
        used[first : first + count] = True
    assert bool(after[used].isfinite().all()) and bool(after[~used].isnan().all())


@pytest.mark.parametrize("name", GROUPED)
def test_a_captured_product_follows_its_counts(name: str) -> None:
    """If this fails, a CUDA graph of a decoding step repeats the first step's counts."""
    row = GROUPED[name]
    case = Case("graph", (40, 8, 100), 256, 256)
    ops = GroupedOperands.draw(row.gemm, case, row.layout, torch.device("cuda"))
    call = row.chosen(case).prepare(row.gemm, ops)
    call()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        output = call()
    wanted = ops.ends.clone()
    ops.ends.zero_()
    graph.replay()
    ops.ends.copy_(wanted)
    graph.replay()
    torch.cuda.synchronize()
    assert isinstance(output, torch.Tensor)
    check(row, row.chosen(case), ops, output[ops.rows])


def test_what_does_not_fit_is_refused() -> None:
    """If this fails, a kernel reads beyond its operands."""
    x, w = (torch.zeros(*shape, dtype=torch.uint8, device="cuda") for shape in ((8, 32), (2, 128, 32)))
    ends = torch.tensor([4, 8], dtype=torch.int32, device="cuda")
    plain = kernels.Epilogue()
    wrong = [
        (x, w[0], ends, plain, 0, "groups, N, bytes"),
        (x, w, ends.long(), plain, 0, "int32"),
        (x, w, ends[:1], plain, 0, r"int32 \[2\]"),
        (x, w, ends.cpu(), plain, 0, "on cpu"),
        (x, w, ends, plain, 5, "rows of X"),
        (x[:, :16], w, ends, plain, 0, "share K"),
        (x, w, ends, kernels.Epilogue(bias=torch.zeros(128, device="cuda")), 0, "no vectors"),
        (x, w.expand(2, 128, 32).repeat(200, 1, 1), ends, plain, 0, "256 groups"),
    ]
    for one, other, counts, epilogue, capacity, words in wrong:
        with pytest.raises(ValueError, match=words):
            kernels.gemm_grouped(one, other, counts, "bf16", epilogue, capacity)


@pytest.mark.parametrize("tool", ["memcheck", "racecheck"])
def test_compute_sanitizer_finds_nothing(tool: str) -> None:
    """Counts beyond the rows of X included: they are cut to what there is."""
    assert_clean(
        tool,
        "import torch\n"
        "from explorer.products.grouped import GROUPED, Case, GroupedOperands\n"
        "case = Case('odd', (33, 0, 70), 128, 200)\n"
        "for row in GROUPED.values():\n"
        "  ops = GroupedOperands.draw(row.gemm, case, row.layout, torch.device('cuda'))\n"
        "  for variant in row.variants:\n"
        "    variant.prepare(row.gemm, ops)(); torch.cuda.synchronize()\n"
        "  ops.ends.add_(1000)\n"
        "  for variant in row.variants[1:]:\n"
        "    variant.prepare(row.gemm, ops)(); torch.cuda.synchronize()\n",
    )
