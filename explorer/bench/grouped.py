"""Timing of grouped products, compared with one launch per group, a dense product and torch."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

import torch
from torch import Tensor

from explorer.analysis.report import sqnr_of
from explorer.bench.chip_limits import device_state
from explorer.bench.gemm import baseline_calls, time_both
from explorer.bench.timing import buffer_sets, graph_of, time_replay
from explorer.core.backend import require_gpu
from explorer.products.gemms import Gemm
from explorer.products.grouped import Case, Grouped, GroupedOperands
from explorer.products.variants import HOPPER
from explorer.recordings.grouped import GroupedTiming
from explorer.recordings.machine import MachineLimits


def time_grouped(
    row: Grouped, case: Case, device: torch.device, limits: MachineLimits, repeats: int = 10
) -> Iterator[GroupedTiming]:
    """Every kernel of a grouped product on random data; a generator, to be stopped. ``ValueError`` without a
    Hopper GPU."""
    require_gpu()
    if torch.cuda.get_device_capability(device)[0] != HOPPER:
        raise ValueError("grouped products have kernels for sm_90a alone")
    with torch.cuda.device(device):
        per_set = len(case.counts) * case.n * case.k * row.gemm.w.format.bits // 8
        count = min(buffer_sets(per_set, device), 4)
        sets = [GroupedOperands.draw(row.gemm, case, row.layout, device, seed) for seed in range(count)]
        truth = sets[0].unquantized_product()
        baseline, note = baseline_calls(row.prepare_baseline, sets)
        dense = _dense_seconds(row.gemm, case, device, repeats)
        floor = limits.least_seconds(row.gemm.core, sets[0].bytes_moved, case.operations)
        for variant in row.variants:
            calls = [variant.prepare(row.gemm, ops) for ops in sets]
            times = time_both(calls, baseline, True, repeats, True)
            output = calls[0]()
            assert isinstance(output, Tensor)
            of_groups = output if variant.tile is None else output[sets[0].rows]
            yield GroupedTiming(
                product=row.name,
                label=row.label,
                variant=variant.name,
                case=case.name,
                groups=len(case.counts),
                rows=case.rows,
                n=case.n,
                k=case.k,
                graph=times.graph,
                flush=times.flush,
                baseline=row.baseline,
                baseline_graph=times.baseline_graph,
                baseline_flush=times.baseline_flush,
                baseline_note=note,
                dense_s=dense,
                floor_s=floor,
                bytes_moved=sets[0].bytes_moved,
                sqnr_db=sqnr_of(truth, of_groups.double()),
                state=device_state(device),
            )


def _dense_seconds(gemm: Gemm, case: Case, device: torch.device, repeats: int) -> float:
    generator = torch.Generator(device=device).manual_seed(0)
    x = torch.randn(case.rows, case.k, generator=generator, device=device)
    w = torch.randn(case.n, case.k, generator=generator, device=device) / math.sqrt(case.k)
    sets = [gemm.operands(x, w).as_served() for _ in range(buffer_sets(2 * w.numel(), device))]
    calls = [gemm.variant("wgmma").prepare(ops) for ops in sets]
    return time_replay(graph_of(calls, False), repeats, 2).median_s


def run_cases(
    rows: Sequence[Grouped], cases: Sequence[Case], device: torch.device, limits: MachineLimits
) -> Iterator[GroupedTiming]:
    """Every product at every case."""
    for case in cases:
        for row in rows:
            yield from time_grouped(row, case, device, limits)
            torch.cuda.empty_cache()
