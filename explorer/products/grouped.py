"""Grouped products for a mixture of experts: each row of X is multiplied by the W of its group.

``GROUPED`` has a row for each format and layout of X. Its kernels range from one launch per group to one
launch for all groups. The product of one group is the plain one of ``GEMMS``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.cached import cached_property
from explorer.gpu import gemm as kernel
from explorer.gpu.runtime import Build
from explorer.products import baselines, layouts
from explorer.products.gemms import GEMMS, Gemm
from explorer.products.operands import Operands
from explorer.products.variants import HOPPER
from explorer.recordings.grouped import GroupedTiming

Call = Callable[[], object]
"""Call that returns the product of all groups, or the products of each."""
CONTIGUOUS, MASKED = "contiguous", "masked"
LAYOUTS = {
    CONTIGUOUS: "the groups' rows one after another, as in prefill and training",
    MASKED: "so many rows reserved for every group, some of them used, as in decoding by CUDA graph",
}
BLOCK_ROWS = 128
"""Rows of a scale block of W: smaller groups would share scale blocks."""


@dataclass(frozen=True)
class Case:
    """Shape of a grouped product: rows of each group, N and K."""

    name: str
    counts: tuple[int, ...]
    n: int = 4096
    k: int = 4096

    @property
    def short(self) -> str:
        """Number of groups × number of rows: "8 × 1,024", or "8 × 0 … 1,024"."""
        least, most = min(self.counts), max(self.counts)
        rows = f"{most:,}" if least == most else f"{least:,} … {most:,}"
        return f"{len(self.counts)} × {rows}"

    @property
    def rows(self) -> int:
        """Total number of rows of all groups."""
        return sum(self.counts)

    @property
    def operations(self) -> int:
        """Number of multiplications and additions."""
        return 2 * self.rows * self.n * self.k


CASES = {
    case.name: case
    for case in (
        Case("8 experts, 1,024 tokens each", (1024,) * 8),
        Case("8 experts, 0 to 1,024 tokens", (300, 0, 17, 1024, 5, 129, 256, 777)),
        Case("16 experts, 128 tokens each", (128,) * 16),
        Case("32 experts, 64 tokens each", (64,) * 32),
        Case("64 experts, 4 tokens each", (4,) * 64),
    )
}
"""Recorded cases."""


@dataclass(frozen=True, eq=False)
class GroupedOperands:
    """Operands of a plain product for each group. ``ends`` int32 [groups] and ``capacity`` are those of
    ``gemm_grouped``; ``rows`` int64: places of the groups' rows in the output."""

    case: Case
    groups: tuple[Operands, ...]
    capacity: int

    @classmethod
    def draw(
        cls, gemm: Gemm, case: Case, layout: str, device: torch.device, seed: int = 0
    ) -> GroupedOperands:
        """Draw random normal data, W divided by √K; ``ValueError`` unless N is a whole number of blocks."""
        if gemm.w.block[0] not in (None, 1) and case.n % BLOCK_ROWS:
            raise ValueError(f"N must be a multiple of {BLOCK_ROWS} for {gemm.label}, got {case.n}")
        generator = torch.Generator(device=device).manual_seed(seed)

        def normal(rows: int) -> Tensor:
            return torch.randn(rows, case.k, generator=generator, device=device)

        # A group without rows has one here that nothing reads, as a product has at least one.
        groups = tuple(
            gemm.operands(normal(max(count, 1)), normal(case.n) / math.sqrt(case.k)).as_served()
            for count in case.counts
        )
        return cls(case, groups, max(case.counts) if layout == MASKED else 0)

    @property
    def device(self) -> torch.device:
        return self.groups[0].x.values.device

    @property
    def counted(self) -> list[tuple[Operands, int]]:
        """Each group's operands with its number of rows; the operands of an empty group have one row."""
        return [*zip(self.groups, self.case.counts, strict=True)]

    @property
    def used(self) -> list[Operands]:
        """Operands of the groups that have rows."""
        return [ops for ops, count in self.counted if count]

    @cached_property
    def ends(self) -> Tensor:
        counts = torch.tensor(self.case.counts, device=self.device)
        return (counts if self.capacity else counts.cumsum(0)).to(torch.int32)

    @cached_property
    def rows(self) -> Tensor:
        if not self.capacity:
            return torch.arange(self.case.rows, device=self.device)
        first = [torch.arange(count) + g * self.capacity for g, count in enumerate(self.case.counts)]
        return torch.cat(first).to(self.device)

    def of_x(self, part: Callable[[Operands], Tensor]) -> Tensor:
        """Join a part of every group's X along rows, in the layout's places, with zeros between them."""
        parts = [part(ops)[:count] for ops, count in self.counted]
        if not self.capacity:
            return torch.cat(parts)
        shape = (len(parts) * self.capacity, *parts[0].shape[1:])
        spread = torch.zeros(shape, dtype=parts[0].dtype, device=self.device)
        spread[self.rows] = torch.cat(parts)
        return spread

    def exact(self) -> tuple[Tensor, Tensor]:
        """Compute in float64 the products of the dequantized operands, [rows of groups, N], and Σ|x·w|."""
        pairs = [tuple(part[:count] for part in ops.exact()) for ops, count in self.counted]
        return torch.cat([p for p, _ in pairs]), torch.cat([size for _, size in pairs])

    def unquantized_product(self) -> Tensor:
        """Compute the product before quantization to less than BF16: float64 [rows of groups, N]."""
        return torch.cat([ops.unquantized_product()[:count] for ops, count in self.counted])

    @property
    def bytes_moved(self) -> int:
        """Minimum memory traffic: X, the W of every group that has rows, and Y."""
        first = self.groups[0]
        per_row = first.x.q.nbytes // first.x.rows + self.case.n * first.out.itemsize
        return sum(ops.w.q.nbytes for ops in self.used) + self.case.rows * per_row


@dataclass(frozen=True)
class GroupedVariant:
    """Kernel of a grouped product. ``prepare`` returns a call whose output has the layout's rows; ``tile``
    None: one launch per group."""

    name: str
    tile: kernel.WgmmaTile | None

    def prepare(self, gemm: Gemm, ops: GroupedOperands) -> Call:
        """Make the layouts of X and W once, as an engine does, and return the call."""
        return _grouped(gemm, ops, self.tile) if self.tile else _one_by_one(gemm, ops)


def _kind(gemm: Gemm) -> tuple[str, kernel.ScaleK]:
    blocks = gemm.x.scale is not None
    return gemm.core, kernel.ScaleK.BLOCK if blocks else kernel.ScaleK.NONE


def _grouped(gemm: Gemm, ops: GroupedOperands, tile: kernel.WgmmaTile) -> Call:
    kind, scale_k = _kind(gemm)
    x = ops.of_x(lambda o: layouts.byte_rows(o.x.q))
    w = torch.stack([layouts.byte_rows(o.w.q) for o in ops.groups])
    x_scales = w_scales = None
    if scale_k is kernel.ScaleK.BLOCK:
        x_scales = ops.of_x(lambda o: layouts.x_block_scales(o.x.q).t()).t().contiguous()
        w_scales = torch.stack([layouts.w_block_scales(o.w.q) for o in ops.groups])
    epilogue, ends = kernel.Epilogue(gemm.out), ops.ends
    return lambda: kernel.gemm_grouped(
        x, w, ends, kind, epilogue, ops.capacity, x_scales, w_scales, tile=tile
    )


def _one_by_one(gemm: Gemm, ops: GroupedOperands) -> Call:
    """Launch a plain product's kernel once per group: the host has to know each group's number of rows."""
    variant = gemm.variant("wgmma")
    calls = [variant.prepare(one) for one in ops.used]
    return lambda: torch.cat([call() for call in calls])


@dataclass(frozen=True)
class Grouped:
    """A product of ``GEMMS`` with groups: its kernels from the simplest to the fastest, and the usual library
    call."""

    name: str
    label: str
    gemm: Gemm
    layout: str
    baseline: str
    prepare_baseline: Callable[[GroupedOperands], Call]

    @property
    def variants(self) -> tuple[GroupedVariant, ...]:
        tiles = kernel.grouped_tiles(_kind(self.gemm)[1])
        return (
            GroupedVariant("a launch a group", None),
            *(GroupedVariant(f"one launch, tiles of {tile.rows} rows", tile) for tile in tiles),
        )

    def chosen(self, case: Case) -> GroupedVariant:
        """The kernel that ``gemm_grouped`` chooses for an average number of rows per group."""
        tile = kernel.grouped_tile(case.rows / len(case.counts), _kind(self.gemm)[1])
        return next(v for v in self.variants if v.tile == tile)

    def builds(self) -> tuple[Build, ...]:
        """Every compilation that its kernels can need."""
        kind, _ = _kind(self.gemm)
        tiles = [v.tile for v in self.variants if v.tile]
        single = self.gemm.variant("wgmma").builds(self.gemm.x, self.gemm.w, self.gemm.out)
        return (*(kernel.wgmma_build(kind, self.gemm.out, tile) for tile in tiles), *single)


def _torch_grouped(ops: GroupedOperands) -> Call:
    x = ops.of_x(lambda o: o.x.values.to(torch.bfloat16))
    w = torch.stack([o.w.values.to(torch.bfloat16) for o in ops.groups]).transpose(1, 2)
    return lambda: torch._grouped_mm(x, w, offs=ops.ends)


def _torch_bmm(ops: GroupedOperands) -> Call:
    """Multiply every reserved row, used or not: torch has no masked product."""
    x = ops.of_x(lambda o: o.x.values.to(torch.bfloat16)).view(len(ops.groups), ops.capacity, -1)
    w = torch.stack([o.w.values.to(torch.bfloat16) for o in ops.groups]).transpose(1, 2)
    return lambda: torch.bmm(x, w)


def _torch_blocks(ops: GroupedOperands) -> Call:
    """Multiply group by group: torch's grouped FP8 product takes one scale per row; for scales of blocks
    torch has only single products."""
    calls = [baselines.SCALED_BLOCKS.prepare(one) for one in ops.used]
    return lambda: [call() for call in calls]


BASELINES: dict[tuple[str, str], tuple[str, Callable[[GroupedOperands], Call]]] = {
    ("bf16", CONTIGUOUS): ("torch._grouped_mm", _torch_grouped),
    ("bf16", MASKED): ("torch.bmm", _torch_bmm),
    ("fp8_blockwise", CONTIGUOUS): ("torch scaled_mm, block-wise, a call a group", _torch_blocks),
    ("fp8_blockwise", MASKED): ("torch scaled_mm, block-wise, a call a group", _torch_blocks),
}
"""Baselines by product and layout of X."""
LABELS = {"bf16": "BF16", "fp8_blockwise": "FP8 in blocks"}
GROUPED: dict[str, Grouped] = {
    f"{name}_{layout}": Grouped(
        f"{name}_{layout}", f"{LABELS[name]}, {layout}", GEMMS[name], layout, *baseline
    )
    for (name, layout), baseline in BASELINES.items()
}
"""Every grouped product by name."""


def is_chosen(product: str, case: str, variant: str) -> bool:
    """True if ``gemm_grouped`` chooses this kernel; product, kernel and case are given by name. False for an
    unknown case."""
    row, known = GROUPED.get(product), CASES.get(case)
    return row is not None and known is not None and row.chosen(known).name == variant


def all_builds(capability: tuple[int, int]) -> list[Build]:
    """Builds of the grouped products for a chip; only Hopper has kernels for them."""
    if capability[0] != HOPPER:
        return []
    return list(dict.fromkeys(build for row in GROUPED.values() for build in row.builds()))


GROUPED_HEADERS = [
    "experts × tokens", "product", "kernel", "µs (graph / flushed)", "TFLOP/s", "× one dense product",
    "of the limit", "× baseline (graph / flushed)", "baseline", "SQNR of the output",
]  # fmt: skip


def grouped_rows(timings: Sequence[GroupedTiming]) -> list[list[str]]:
    """List the kernel that each grouped product takes at each case, in the order of ``GROUPED_HEADERS``."""
    return [
        [
            CASES[t.case].short,
            t.label,
            t.variant,
            f"{1e6 * t.seconds:.1f} / {1e6 * t.flush.median_s:.1f}" if t.flush else f"{1e6 * t.seconds:.1f}",
            f"{t.tflops:.0f}",
            times(t.dense_s / t.seconds),
            f"{100 * t.share:.0f} %" if t.share else "–",
            f"{times(t.speedup)} / {times(t.flushed_speedup)}",
            _baseline_words(t),
            f"{t.sqnr_db:.1f} dB",
        ]
        for t in timings
        if is_chosen(t.product, t.case, t.variant)
    ]


def _baseline_words(t: GroupedTiming) -> str:
    """Name the baseline, with the beginning of its message if it refused."""
    return t.baseline if t.baseline_graph else f"{t.baseline}: {t.baseline_note.split(' when ')[0]}"


def times(value: float | None) -> str:
    return "–" if value is None else f"{value:.2f}"
