"""On a GPU: products in CUDA graphs, whose memory is allocated as torch does it.

If these fail, a model whose step is in a graph multiplies activations of an earlier layer, or answers the
same question differently from time to time.
"""

from __future__ import annotations

import dataclasses
import functools
import math
from typing import Any

import pytest
import torch
from torch import Tensor

from explorer.core.cuda import quantize_on_device
from explorer.core.quantize import QuantizedTensor
from explorer.gpu import gemm as gemm_kernels
from explorer.gpu.gemm import swap_ab
from explorer.gpu.gemm.rows import padded_columns
from explorer.paths import KERNELS
from explorer.products import layouts
from explorer.products.gemms import GEMMS, Gemm
from explorer.products.grouped import GROUPED, Case, GroupedOperands
from explorer.products.operands import Operand, Operands
from explorer.products.variants import HOPPER, Variant
from tests.gpu.test_gemms import check

pytestmark = pytest.mark.gpu
TOKENS = (1, 16, 64, 128, 4096)
SIZE, PRODUCTS, REPLAYS, INPUTS = 2048, 4, 50, 5
"""N = K, so that Y is the next X; products one after another; inputs that replays take in turn."""
TMA = {path.name for path in KERNELS.glob("*.cu") if "load_box(" in path.read_text(encoding="utf-8")}
SWAP_AB = "gemm_swap_ab.cu"


@pytest.fixture(autouse=True)
def _hopper() -> None:
    if torch.cuda.get_device_capability()[0] != HOPPER:
        pytest.skip("kernels with TMA are for sm_90a")


def by_tma(*files: str) -> list[tuple[str, str]]:
    """Every product and kernel that is compiled from one of the files."""
    return [
        (row.name, variant.name)
        for row in GEMMS.values()
        for variant in row.variants
        if {build.file for build in variant.builds(row.x, row.w, row.out)} & set(files)
    ]


def normal(rows: int, columns: int, seed: int) -> Tensor:
    generator = torch.Generator(device="cuda").manual_seed(seed)
    return torch.randn(rows, columns, generator=generator, device="cuda")


@functools.cache
def products_of(name: str) -> tuple[Operands, ...]:
    """Four products whose outputs are about as large as their inputs; X is of one token."""
    row = GEMMS[name]
    weights = (normal(SIZE, SIZE, seed) / math.sqrt(SIZE) for seed in range(PRODUCTS))
    return tuple(row.operands(normal(1, SIZE, PRODUCTS), w) for w in weights)


def inputs_of(row: Gemm, m: int, count: int = INPUTS) -> list[Tensor]:
    return [normal(m, SIZE, 100 + seed).to(row.out) for seed in range(count)]


def with_x(row: Gemm, ops: Operands, x: Tensor) -> Operands:
    """The product with another X; nothing waits for the host."""
    shape = (x.shape[0], x.shape[1])
    if row.x.scale is None and row.x.format.bits == 16:  # codes are the values
        q = QuantizedTensor(x.view(torch.uint8), ops.x.q.scales, row.x, shape)
    else:
        packed, scales, _ = quantize_on_device(x, row.x)
        q = QuantizedTensor(packed, scales, row.x, shape)
    return dataclasses.replace(ops, x=Operand(x, q))


def chain(row: Gemm, variant: Variant, products: tuple[Operands, ...], x: Tensor) -> Tensor:
    """Each Y is the next product's X, and freed when that has been launched."""
    for ops in products:
        x = variant.prepare(with_x(row, ops, x))()
    return x


def as_when_loaded(
    monkeypatch: pytest.MonkeyPatch, kind: Variant, products: tuple[Operands, ...], early: bool
) -> None:
    """Layouts of W are made, in memory, and kept: products can then be prepared within a graph. ``early``:
    how products are launched that may be launched early."""
    for name in ("tiled_weights", "weight_rows", "w_group_scales", "w_block_scales"):
        monkeypatch.setattr(layouts, name, functools.cache(getattr(layouts, name)))
    for ops in products:
        kind.prepare(ops)
    torch.cuda.synchronize()
    monkeypatch.setattr(torch.cuda.Stream, "synchronize", lambda stream: None)  # nothing is left to wait for
    launch = gemm_kernels.gemm_swap_ab

    def launched(*arguments: Any, **named: Any) -> Tensor:
        return launch(*arguments, **(named | {"early": early}))

    monkeypatch.setattr(gemm_kernels, "gemm_swap_ab", launched)


class Captured:
    """A call in a CUDA graph, and how many of its replays gave other bits than they should."""

    def __init__(self, call: Any, x: Tensor) -> None:
        """``call`` takes ``x``, which replays read where it lies; it has run before."""
        torch.cuda.synchronize()
        self.x, self.graph = x.clone(), torch.cuda.CUDAGraph()
        with torch.cuda.graph(self.graph):
            self.output = call(self.x)
        self.wrong, self.largest = torch.zeros((2,), device="cuda")

    def replay(self, x: Tensor, want: Tensor) -> None:
        """On other values; compared where they are."""
        self.x.copy_(x)
        self.graph.replay()
        self.wrong += different(self.output, want)
        error = (self.output.double() - want.double()).norm() / want.double().norm()
        self.largest = torch.maximum(self.largest, error.float().nan_to_num(math.inf))

    def assert_right(self, replays: int) -> None:
        assert not int(self.wrong), (
            f"{int(self.wrong)} of {replays} replays are not what was multiplied before; the largest error "
            f"is {float(self.largest):.2g} of Y"
        )


def different(a: Tensor, b: Tensor) -> Tensor:
    """1 if any bit differs, else 0, on the GPU."""
    return (a.contiguous().view(torch.uint8) != b.contiguous().view(torch.uint8)).any().long()


CHAINS = [
    (name, variant, early, m)
    for name, variant in by_tma(*TMA)
    for early in ((False, True) if (name, variant) in by_tma(SWAP_AB) else (False,))
    for m in TOKENS
]


def chain_id(value: Any) -> str:
    return ("early" if value else "in order") if isinstance(value, bool) else str(value)


@pytest.mark.parametrize(("name", "variant", "early", "m"), CHAINS, ids=chain_id)
def test_a_chain_in_a_graph_is_right(
    name: str, variant: str, early: bool, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Four products one after another, replayed on other inputs: the bits of the same products launched one
    by one, whose last is within its bound of the float64 product. If this fails, TMA copies from where an
    earlier X lay, or a product reads its X before it is written."""
    row, products = GEMMS[name], products_of(name)
    kind = row.variant(variant)
    as_when_loaded(monkeypatch, kind, products, early)
    inputs = inputs_of(row, m)
    wants = [chain(row, kind, products, x) for x in inputs]
    assert all(bool(want.isfinite().all()) and bool(want.any()) for want in wants)
    last = with_x(row, products[-1], chain(row, kind, products[:-1], inputs[0]))
    check(row, kind, last, f"the last of {PRODUCTS}, {m} tokens")
    captured = Captured(lambda x: chain(row, kind, products, x), inputs[0])
    for turn in range(1, REPLAYS + 1):
        captured.replay(inputs[turn % INPUTS], wants[turn % INPUTS])
    captured.assert_right(REPLAYS)


GROUPED_CHAINS = [
    (name, variant.name) for name, row in GROUPED.items() for variant in row.variants if variant.tile
]


@pytest.mark.parametrize(("name", "variant"), GROUPED_CHAINS)
def test_a_chain_of_grouped_products_in_a_graph_is_right(name: str, variant: str) -> None:
    """As the chain of plain products, with experts."""
    row, case = GROUPED[name], Case("chain", (5, 0, 70, 130), 1024, 1024)
    tile = next(v.tile for v in row.variants if v.name == variant)
    drawn = [
        GroupedOperands.draw(row.gemm, case, row.layout, torch.device("cuda"), s) for s in range(PRODUCTS)
    ]
    weights = [torch.stack([layouts.byte_rows(one.w.q) for one in ops.groups]) for ops in drawn]
    blocks = row.gemm.x.scale is not None
    w_scales = [torch.stack([layouts.w_block_scales(one.w.q) for one in ops.groups]) for ops in drawn]
    ends, capacity, epilogue = drawn[0].ends, drawn[0].capacity, gemm_kernels.Epilogue(row.gemm.out)

    def multiplied(x: Tensor) -> Tensor:
        for w, w_scale in zip(weights, w_scales, strict=True):
            packed, scales = x.view(torch.uint8), None
            if blocks:
                packed, of_x, _ = quantize_on_device(x, row.gemm.x)
                scales = padded_columns(of_x.scale.t(), 4)
            x = gemm_kernels.gemm_grouped(
                packed,
                w,
                ends,
                row.gemm.core,
                epilogue,
                capacity,
                scales,
                w_scale if blocks else None,
                tile=tile,
            )
        return x

    used, rows = drawn[0].rows, max(len(case.counts) * capacity, case.rows)
    inputs = [normal(rows, case.k, seed).to(row.gemm.out) for seed in range(INPUTS)]
    wants = [multiplied(x)[used] for x in inputs]
    assert all(bool(want.isfinite().all()) and bool(want.any()) for want in wants)
    captured = Captured(lambda x: multiplied(x)[used], inputs[0])
    for turn in range(1, REPLAYS + 1):
        captured.replay(inputs[turn % INPUTS], wants[turn % INPUTS])
    captured.assert_right(REPLAYS)


@pytest.mark.parametrize(("name", "variant"), by_tma(*TMA))
def test_two_graphs_keep_their_own_operands(name: str, variant: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two graphs of two products each, with weights and inputs of their own, in turn. If this fails, the
    graph that was captured last decides what the other multiplies."""
    row, products = GEMMS[name], products_of(name)
    kind, inputs = row.variant(variant), inputs_of(row, 16, 4)
    as_when_loaded(monkeypatch, kind, products, early=True)
    halves = products[:2], products[2:]
    wants = [[chain(row, kind, half, x) for x in inputs] for half in halves]
    calls = [functools.partial(chain, row, kind, half) for half in halves]
    graphs = [Captured(call, x) for call, x in zip(calls, inputs, strict=False)]
    for turn in range(20):
        for which, graph in enumerate(graphs):
            graph.replay(inputs[(turn + which) % 4], wants[which][(turn + which) % 4])
    for graph in graphs:
        graph.assert_right(20)


SPLITS = {"a cluster shares K": {"ranks": 2}, "equal parts of all K": {"streamed": True, "split": True}}
"""How several thread blocks add up one output."""


@pytest.mark.parametrize("m", TOKENS)
@pytest.mark.parametrize(("name", "variant"), by_tma(SWAP_AB))
def test_the_same_inputs_give_the_same_bits(
    name: str, variant: str, m: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sums of parts of K are added in one order, launched one by one and from a graph. If this fails, a model
    answers the same question in two ways."""
    row, products = GEMMS[name], products_of(name)
    kind, [x] = row.variant(variant), inputs_of(row, m, 1)
    as_when_loaded(monkeypatch, kind, products, early=True)
    call = functools.partial(chain, row, kind, products[:1])
    chosen = swap_ab.division_of
    for what, how in SPLITS.items():

        def division(m: int, n: int, k_tiles: int, tiles: Any, device: Any, how: Any = how) -> Any:
            tokens = next((t for t in swap_ab.tokens_for(tiles) if m <= t), swap_ab.tokens_for(tiles)[-1])
            form = swap_ab._forms(tokens, tiles)[0]
            if "ranks" in how and not swap_ab._shares_k(form, tiles):
                return chosen(m, n, k_tiles, tiles, device)
            return dataclasses.replace(form, **how)

        monkeypatch.setattr(swap_ab, "division_of", division)
        want = call(x)
        assert bool(want.isfinite().all()) and bool(want.any())
        wrong = sum((different(call(x), want) for _ in range(30)), torch.zeros((), device="cuda"))
        assert not int(wrong), f"{what}: {int(wrong)} of 30 launches differ from the first"
        captured = Captured(call, x)
        for _ in range(30):
            captured.replay(x, want)
        captured.assert_right(30)
