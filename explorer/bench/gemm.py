"""Timing of each product on a GPU, compared with the usual library call (baseline) and the chip's limits; of
grouped products also with a dense product and with one launch per group.

Kernel and baseline get the same random data and are interleaved, replay by replay. Two timings: *graph*,
CUDA-graph replay over buffers that together exceed twice the L2 cache, back to back on a warm chip; *flush*,
one launch at a time with the L2 cache overwritten before it (it includes a few µs of launch). This project's
own kernels measure the limits in the same run.
"""

from __future__ import annotations

import gc
import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import TypeVar

import torch
from torch import Tensor

from explorer.analysis.report import sqnr_of
from explorer.bench.timing import (
    WORD_KINDS,
    Call,
    Replay,
    buffer_sets,
    device_state,
    event_seconds,
    graph_of,
    loop_of,
    spread,
    time_replay,
)
from explorer.core.backend import require_gpu
from explorer.core.lowering import config_of, has_kernels, layout_of
from explorer.gpu.compile import Build
from explorer.gpu.quantize import builds as quantize_builds
from explorer.gpu.quantize import quantize as quantize_kernel
from explorer.products.gemms import Gemm
from explorer.products.grouped import Case, Grouped, GroupedOperands
from explorer.products.operands import Operands
from explorer.products.variants import HOPPER, Variant
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.grouped import GroupedTiming
from explorer.recordings.machine import MachineLimits
from explorer.recordings.times import DeviceState, TimeSpread

SLOW_S = 0.02
"""Seconds of a call beyond which it is timed only twice, by itself, whether or not its inputs are in the L2
cache."""
IDLE_CYCLES = 1_000_000
MOST_SETS = 48
TOKENS = "TOKENS"
"""The macro of builds for a number of tokens."""
WARM_UP = 2


@dataclass(frozen=True, eq=False)
class _Bench:
    """One product at one shape: operands as layers receive them (one per buffer set), the unquantized
    product, the baseline."""

    gemm: Gemm
    sets: list[Operands]
    truth: Tensor
    native: bool
    baseline: list[Call] | None
    note: str
    activation_s: float | None
    limits: MachineLimits | None


@dataclass(frozen=True)
class Times:
    """Times of a kernel and its baseline, by graph and flushed."""

    graph: TimeSpread
    flush: TimeSpread | None = None
    baseline_graph: TimeSpread | None = None
    baseline_flush: TimeSpread | None = None


def time_gemm(
    gemm: Gemm,
    variants: Sequence[Variant],
    shape: Shape,
    device: torch.device,
    limits: MachineLimits | None,
    flush: bool = True,
    inputs: tuple[Tensor, Tensor] | None = None,
    repeats: int = 10,
) -> Iterator[GemmTiming]:
    """Time some kernels of a product at one shape, on random data or on given X [M, K] and W [N, K]; a
    generator, so that it can be stopped.

    ``ValueError`` without a GPU; ``explorer.bench.cpu_gemm`` times a CPU.
    """
    require_gpu()
    with torch.cuda.device(device):
        bench = _prepare(gemm, shape, device, inputs, limits, repeats)
        for variant in variants:
            ours = [variant.prepare(ops) for ops in bench.sets]
            times = time_both(ours, bench.baseline, gemm.baseline.captured, repeats, flush)
            yield _timing(bench, variant, times, ours[0](), device_state(device))
            del ours
        del bench
        gc.collect()


def builds_at(gemm: Gemm, variants: Sequence[Variant], shape: Shape) -> list[Build]:
    """List the compilations of ``time_gemm``: of kernels for numbers of tokens those for M, none of steps."""
    m, n, k = shape
    sides = [(scheme, layout_of(side, scheme)) for scheme, side in ((gemm.x, (m, k)), (gemm.w, (n, k)))]
    quantizers = (
        quantize_builds(config_of(s), layout, dtype)
        for s, layout in sides
        for dtype in (torch.float32, torch.bfloat16)  # as it is quantized first, and as X is when served
        if has_kernels(s)
    )
    found = dict.fromkeys(build for builds in quantizers for build in builds)
    for variant in variants:
        every = [(b, dict(b.macros)) for b in variant.builds(gemm.x, gemm.w, gemm.out)]
        tokens = {b: int(of.get(TOKENS, 0)) for b, of in every if of.get("STEP") != "1"}
        fitting = min((t for t in tokens.values() if t >= m), default=max(tokens.values()))
        found |= dict.fromkeys(b for b, t in tokens.items() if t in (0, fitting))
    return list(found)


def _prepare(
    gemm: Gemm,
    shape: Shape,
    device: torch.device,
    inputs: tuple[Tensor, Tensor] | None,
    limits: MachineLimits | None,
    repeats: int,
) -> _Bench:
    sets = _operand_sets(gemm, shape, device, inputs)
    truth = sets[0].unquantized_product()
    sets = [ops.as_served() for ops in sets]
    baseline, note = baseline_calls(gemm.baseline.prepare, sets)
    if baseline and not gemm.baseline.captured:
        note = "launched one by one: it waits for the host"
    activation = None
    if gemm.x.scale is not None and not gemm.dynamic:
        quantizing = graph_of([_quantize_x(o) for o in sets], False)
        activation = time_replay(quantizing, repeats, WARM_UP).median_s
    native = gemm.is_native(torch.cuda.get_device_capability(device))
    return _Bench(gemm, sets, truth, native, baseline, note, activation, limits)


def _operand_sets(
    gemm: Gemm,
    shape: Shape,
    device: torch.device,
    inputs: tuple[Tensor, Tensor] | None,
    count: int | None = None,
) -> list[Operands]:
    m, n, k = shape
    bytes_each = (m * gemm.x.format.bits + n * gemm.w.format.bits) * k // 8 + m * n * gemm.out.itemsize
    count = min(buffer_sets(bytes_each, device), MOST_SETS) if count is None else count
    generator = torch.Generator(device=device).manual_seed(0)

    def one() -> Operands:
        if inputs is not None:
            return gemm.operands(inputs[0].to(device, torch.float32), inputs[1].to(device, torch.float32))
        x = torch.randn(m, k, generator=generator, device=device)
        w = torch.randn(n, k, generator=generator, device=device) / math.sqrt(k)
        return gemm.operands(x, w)

    return [one() for _ in range(count)]


def _quantize_x(operands: Operands) -> Call:
    """Return the kernels that quantize X alone."""
    q = operands.x.q
    return partial(quantize_kernel, operands.x.values, config_of(q.scheme), layout_of(q.shape, q.scheme))


Subject = TypeVar("Subject")


def baseline_calls(
    prepare: Callable[[Subject], Call], sets: Sequence[Subject]
) -> tuple[list[Call] | None, str]:
    """Prepare the baseline on each set; if the operator fails, None and its own error message."""
    try:
        calls: list[Call] = [prepare(ops) for ops in sets]
        calls[0]()
        torch.cuda.synchronize()
    except (RuntimeError, ValueError, AttributeError, ImportError) as error:
        # An operator refuses a shape or a chip with the first two, and is missing from some versions of torch
        # (the others). The message is shown where the baseline would stand: our kernel's time is worth having
        # without it.
        return None, str(error).splitlines()[0][:200] if str(error) else type(error).__name__
    return calls, ""


def time_both(
    ours: Sequence[Call], baseline: Sequence[Call] | None, captured: bool, repeats: int, flush: bool
) -> Times:
    """Time kernel and baseline, interleaved. A baseline that cannot be ``captured`` is launched one call
    after another."""
    replay = (graph_of(baseline, False) if captured else loop_of(baseline)) if baseline else None
    if _seconds_when_warm(ours[0]) > SLOW_S:
        twice = spread([event_seconds(ours[0]) for _ in range(2)])
        return Times(twice, None, time_replay(replay, 3) if replay else None)
    graphs = _interleaved([graph_of(ours, False), replay], repeats)
    cold = _flushed([ours, baseline], repeats) if flush else [None, None]
    assert graphs[0] is not None
    return Times(graphs[0], cold[0], graphs[1], cold[1])


def _seconds_when_warm(call: Call) -> float:
    call()
    torch.cuda.synchronize()
    return event_seconds(call)


def _interleaved(replays: Sequence[Replay | None], repeats: int) -> list[TimeSpread | None]:
    """Time several replays, one after the other in every round, so that drifting clocks affect all alike."""
    times: list[list[float]] = [[] for _ in replays]
    for _ in range(repeats + WARM_UP):
        for replay, seconds in zip(replays, times, strict=True):
            if replay is not None:
                seconds.append(replay.seconds())
    return [spread(seconds[WARM_UP:]) if seconds else None for seconds in times]


def _flushed(contestants: Sequence[Sequence[Call] | None], repeats: int) -> list[TimeSpread | None]:
    """Time single launches, each after the L2 cache was overwritten."""
    device = require_gpu()
    cache = torch.cuda.get_device_properties(device).L2_cache_size
    junk = torch.empty(2 * cache // 4, device=device)
    times: list[list[float]] = [[] for _ in contestants]
    for index in range(repeats):
        for calls, seconds in zip(contestants, times, strict=True):
            if calls:
                junk.fill_(float(index))
                # While the chip idles here the host issues the whole call, however slow its side of the
                # launch is.
                torch.cuda._sleep(IDLE_CYCLES)
                seconds.append(event_seconds(calls[index % len(calls)]))
    return [spread(seconds) if seconds else None for seconds in times]


def _timing(
    bench: _Bench, variant: Variant, times: Times, output: Tensor, state: DeviceState | None
) -> GemmTiming:
    gemm, operands = bench.gemm, bench.sets[0]
    m, n, k = operands.shape
    seconds, operations = times.graph.median_s, 2 * m * n * k
    core = variant.name if variant.name in WORD_KINDS else gemm.core
    limits, moved = bench.limits, operands.bytes_moved
    floor = limits.least_seconds(core, moved, operations) if limits else None
    return GemmTiming(
        gemm=gemm.name,
        label=gemm.label,
        variant=variant.name,
        file=variant.file,
        shape=(m, n, k),
        native=bench.native,
        dynamic=gemm.dynamic,
        graph=times.graph,
        flush=times.flush,
        activation_s=bench.activation_s,
        baseline=gemm.baseline.label,
        baseline_graph=times.baseline_graph,
        baseline_flush=times.baseline_flush,
        baseline_note=bench.note,
        operations=operations,
        bytes_moved=moved,
        weight_bytes=operands.w.q.nbytes,
        tflops=operations / seconds / 1e12,
        floor_s=floor,
        share=floor / seconds if floor else None,
        sqnr_db=sqnr_of(bench.truth, output.double()),
        state=state,
    )


# --- grouped products ----------------------------------------------------------------------------------


def time_grouped(
    row: Grouped, case: Case, device: torch.device, limits: MachineLimits, repeats: int = 10
) -> Iterator[GroupedTiming]:
    """Time every kernel of a grouped product on random data; a generator, so that it can be stopped.
    ``ValueError`` without a Hopper GPU."""
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
    return time_replay(graph_of(calls, False), repeats, WARM_UP).median_s


def run_cases(
    rows: Sequence[Grouped], cases: Sequence[Case], device: torch.device, limits: MachineLimits
) -> Iterator[GroupedTiming]:
    """Time every product at every case."""
    for case in cases:
        for row in rows:
            yield from time_grouped(row, case, device, limits)
            torch.cuda.empty_cache()
