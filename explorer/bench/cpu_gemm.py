"""Timing of matrix products on this CPU, by the kernels of ``explorer.cpu``.

Every kernel is timed in turns with torch's float32 product, call by call, so that other work of the machine
affects both. Before each call a copy of many megabytes replaces W in the caches, as the layers of a model do.
For each kernel and shape, the fastest number of threads is found by trial. The limits, a copy and products in
float32, bfloat16 and INT8, are measured in the same run.
"""

from __future__ import annotations

import math
import os
import statistics
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from explorer.analysis.report import sqnr_of
from explorer.bench.timing import spread
from explorer.cpu import torch_kernels
from explorer.cpu.kernels import (
    BASELINE,
    BF16,
    F32,
    S8,
    Call,
    CpuKernel,
    CpuProduct,
    Held,
    thread_counts,
    torch_threads,
    usable_threads,
)
from explorer.cpu.products import CPU_PRODUCTS, in_order
from explorer.progress import checkpoint
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.machine import MachineLimits

DECODE_ON_CPU: Shape = (1, 4096, 4096)
PREFILL_ON_CPU: Shape = (256, 4096, 4096)
RECORDED_TOKENS = (1, 16, 64, 256)
"""Values of M in a CPU's shipped recording, at N = K = 4096."""
REPEATS, FEWEST, MOST = 9, 3, 5
"""Number of calls of each kernel; the fewest, if calls are long; and the largest multiple of the number that
is made if other work takes a CPU from them."""
LONG_S = 1.2
"""Seconds after which only the fewest calls are made; after three times as many, none."""
FLUSH_BYTES, COPY_BYTES = 64 << 20, 256 << 20
"""Bytes copied before each call, and bytes of the copy that is timed."""
RATE_SIDES, LIMIT_CALLS = (192, 384, 768, 1536), 10
"""Sides of the products that measure the CPU's rates, and the number of calls of which the best counts."""
ENOUGH_S = 0.05
"""Least seconds of a product that measures a rate: a CPU without instructions for bfloat16 takes 8 s for
sides of 1,536."""
EXACT_TERMS = 1 << 31
"""M·N·K of a part of the float64 product: about a quarter of a second on two cores."""
_PROBES, SHORT_S = (7, 3), 0.02
"""Number of calls that choose the number of threads, of short and of longer calls; and the longest short
call."""
FAR, NEAR = 2.0, 1.5
"""Times the best time beyond which fewer threads are not tried, and up to which a number is tried again."""
_REFUSED = (RuntimeError, ValueError, AttributeError, ImportError, OSError)
"""Errors by which libraries refuse a shape, a CPU or a version; the message replaces the time."""
_LAST_CACHE = Path("/sys/devices/system/cpu/cpu0/cache/index3/size")


@dataclass(frozen=True)
class NotTimed:
    """Kernel without a time, and the reason: the missing package, or the library's own words."""

    product: str
    label: str
    kernel: str
    reason: str


@dataclass(frozen=True)
class CpuJob:
    """One product with the kernels to time, at some shapes with the same N and K."""

    product: CpuProduct
    kernels: tuple[CpuKernel, ...]
    shapes: tuple[Shape, ...]


def plan_on_cpu(
    names: Sequence[str] | None, shapes: Sequence[Shape], kernel: str = "", known: bool = True
) -> list[CpuJob]:
    """Plan every kernel of the products, or those whose names begin with ``kernel``, product by product in
    the order of ``in_order``; ``known``: only kernels whose library is installed."""
    jobs = []
    by_sides = groupby(sorted(shapes, key=lambda s: s[1:]), key=lambda s: s[1:])
    for _, group in by_sides:
        here = tuple(dict.fromkeys(group))
        for name in in_order(names or CPU_PRODUCTS):
            product = CPU_PRODUCTS[name]
            kernels = tuple(
                k for k in product.kernels if k.name.startswith(kernel) and not (known and k.library.missing)
            )
            if kernels:
                jobs.append(CpuJob(product, kernels, here))
    return jobs


def not_installed(names: Iterable[str] | None = None) -> list[NotTimed]:
    """List the kernels whose libraries are not installed here, with the way to install them."""
    return [
        NotTimed(row.name, row.label, kernel.name, kernel.library.missing)
        for row in map(CPU_PRODUCTS.__getitem__, names or CPU_PRODUCTS)
        for kernel in row.kernels
        if kernel.library.missing
    ]


def time_on_cpu(
    jobs: Sequence[CpuJob], limits: MachineLimits | None = None, repeats: int = REPEATS
) -> Iterator[GemmTiming | NotTimed]:
    """Time each kernel of the plan on random data; a refusal by a library is reported, and the others go on.
    A generator, so that it can be stopped between two calls."""
    benches: dict[tuple[int, int], _Bench] = {}
    for job in jobs:
        sides = job.shapes[0][1:]
        if sides not in benches:
            benches.clear()
            benches[sides] = _Bench.of(sides)
        for kernel in job.kernels:
            yield from _time_kernel(benches[sides], job.product, kernel, job.shapes, limits, repeats)


@dataclass(frozen=True, eq=False)
class _Contestant:
    """Call to time, and the number of torch's threads for it."""

    call: Call
    threads: int

    def seconds(self) -> float:
        return self.timed()[0]

    def timed(self) -> tuple[float, bool]:
        """Time a call; second, True if the system took a CPU away from it meanwhile."""
        with torch_threads(self.threads):
            before, start = preemptions(), time.perf_counter()
            self.call()
            seconds = time.perf_counter() - start
            return seconds, preemptions() > before


class _Bench:
    """Data of one N and K: W; for each M the X, the exact product and the baseline with its threads; and a
    buffer that flushes caches."""

    def __init__(self, w: Tensor, baseline: Held, flush: tuple[np.ndarray, np.ndarray]) -> None:
        self.w, self._held, self._flush = w, baseline, flush
        self._at: dict[int, tuple[Tensor, Tensor, _Contestant]] = {}

    @classmethod
    def of(cls, sides: tuple[int, int]) -> _Bench:
        n, k = sides
        w = torch.randn(n, k, generator=torch.Generator().manual_seed(0)) / math.sqrt(k)
        count = min(FLUSH_BYTES, max(1 << 20, 16 * w.nbytes)) // 4
        flush = np.ones(count, np.float32), np.zeros(count, np.float32)
        return cls(w, torch_kernels.FLOAT32.hold(w, CPU_PRODUCTS["fp32"].w), flush)

    def flush(self) -> None:
        """Fill the caches with other data, by this thread alone: no library's threads are left spinning."""
        np.copyto(self._flush[1], self._flush[0])

    def at(self, m: int) -> tuple[Tensor, Tensor, _Contestant]:
        """Return X [M, K], the float64 product, and the baseline."""
        if m not in self._at:
            x = torch.randn(m, self.w.shape[1], generator=torch.Generator().manual_seed(1))
            exact, w = torch.empty(m, len(self.w), dtype=torch.float64), self.w.double().t()
            rows = max(1, EXACT_TERMS // w.numel())
            for part, out in zip(x.split(rows), exact.split(rows), strict=True):
                checkpoint()
                torch.mm(part.double(), w, out=out)
            self._at[m] = x, exact, fastest_threads(partial(self._held.bind, x), self.flush)
        return self._at[m]


def fastest_threads(bind: Callable[[int], Call], flush: Callable[[], None]) -> _Contestant:
    """Find the number of threads with the least median time of a product.

    Each number is tried a few times, in turns and with a copy between, so that a short burst of other work
    does not hit one number alone. Calls longer than ``SHORT_S`` are tried from the most threads down to a
    number that takes twice the best time, and again by the numbers near it; those longer than ``LONG_S``
    once.
    """
    first: dict[_Contestant, float] = {}
    for threads in reversed(thread_counts()):
        checkpoint()
        contestant = _Contestant(bind(threads), threads)
        first[contestant] = contestant.seconds()
        if not first.keys() - {contestant} and first[contestant] <= LONG_S:
            first[contestant] = contestant.seconds()  # without what a library prepares at its first call
        if first[contestant] > max(SHORT_S, FAR * min(first.values())):
            break
    best = min(first.values())
    contestants = [c for c, seconds in first.items() if seconds <= max(SHORT_S, NEAR * best)]
    if best > LONG_S or len(contestants) == 1:
        return min(contestants, key=first.__getitem__)
    rounds = _PROBES[max(map(first.__getitem__, contestants)) > SHORT_S]
    times: dict[_Contestant, list[float]] = {contestant: [] for contestant in contestants}
    for _ in range(rounds):
        for contestant in contestants:
            checkpoint()
            flush()
            times[contestant].append(contestant.seconds())
    return min(contestants, key=lambda contestant: statistics.median(times[contestant]))


def _time_kernel(
    bench: _Bench,
    product: CpuProduct,
    kernel: CpuKernel,
    shapes: Sequence[Shape],
    limits: MachineLimits | None,
    repeats: int,
) -> Iterator[GemmTiming | NotTimed]:
    def refused(error: Exception) -> NotTimed:
        reason = str(error).splitlines()[0][:200] if str(error) else type(error).__name__
        return NotTimed(product.name, product.label, kernel.name, reason)

    if kernel.library.missing:
        yield NotTimed(product.name, product.label, kernel.name, kernel.library.missing)
        return
    try:
        held = kernel.hold(bench.w, product.w)
    except _REFUSED as error:
        yield refused(error)
        return
    for shape in shapes:
        try:
            yield _timing(bench, product, kernel, held, shape, limits, repeats)
        except _REFUSED as error:
            yield refused(error)


def _timing(
    bench: _Bench,
    product: CpuProduct,
    kernel: CpuKernel,
    held: Held,
    shape: Shape,
    limits: MachineLimits | None,
    repeats: int,
) -> GemmTiming:
    m, n, k = shape
    x, exact, baseline = bench.at(m)
    ours = fastest_threads(partial(held.bind, x), bench.flush)
    with torch_threads(ours.threads):
        output = ours.call().double()
    float32_s, ours_s = _in_turns(bench, baseline, ours, repeats)
    median = spread(ours_s)
    operations, moved = 2 * m * n * k, x.nbytes + held.nbytes + 4 * m * n
    floor = limits.least_seconds(kernel.core, moved, operations) if limits else None
    return GemmTiming(
        gemm=product.name,
        label=product.label,
        variant=kernel.name,
        file=", ".join(filter(None, (kernel.library.version, held.layout))),
        shape=shape,
        native=product.native,
        dynamic=product.dynamic,
        graph=median,
        flush=None,
        activation_s=None,
        baseline=BASELINE,
        baseline_graph=spread(float32_s),
        baseline_flush=None,
        baseline_note="",
        operations=operations,
        bytes_moved=moved,
        weight_bytes=held.nbytes,
        tflops=operations / median.median_s / 1e12,
        floor_s=floor,
        share=floor / median.median_s if floor else None,
        sqnr_db=sqnr_of(exact, output),
        state=None,
        threads=ours.threads,
    )


def _in_turns(
    bench: _Bench, baseline: _Contestant, ours: _Contestant, repeats: int
) -> tuple[list[float], list[float]]:
    """Time calls of two contestants in turns: ``repeats`` of each, fewer if they take long. Calls from which
    the system took a CPU are left out, if at least ``FEWEST`` others of each were made."""
    every: tuple[list[float], list[float]] = ([], [])
    alone: tuple[list[float], list[float]] = ([], [])
    start = time.perf_counter()
    for done in range(1, MOST * repeats + 1):
        for contestant, all_s, alone_s in zip((baseline, ours), every, alone, strict=True):
            checkpoint()
            bench.flush()
            seconds, disturbed = contestant.timed()
            all_s.append(seconds)
            if not disturbed:
                alone_s.append(seconds)
        spent = time.perf_counter() - start
        if (spent > LONG_S and done >= FEWEST) or spent > 3 * LONG_S or min(map(len, alone)) >= repeats:
            break
    return alone if min(map(len, alone)) >= FEWEST else every


def preemptions() -> int:
    """Number of times that the system took a CPU from this process so far; 0 if it does not report it."""
    try:
        import resource
    except ImportError:  # Windows has no resource module
        return 0
    return resource.getrusage(resource.RUSAGE_SELF).ru_nivcsw


def measure_cpu_limits(copied: int = COPY_BYTES, sides: Sequence[int] = RATE_SIDES) -> MachineLimits:
    """Measure the speed of a copy of ``copied`` bytes (read and written), and torch's operations a second in
    square products of float32, bfloat16 and INT8.

    The best of a few runs with the fastest number of threads counts, at the first of ``sides`` that takes
    ``ENOUGH_S``, else at the last.
    """
    source, target = torch.ones(copied // 4), torch.empty(copied // 4)
    copy = 2 * source.nbytes / _best(lambda _: partial(target.copy_, source))

    def of(make: Callable[[Tensor], Tensor], multiply: Callable[[Tensor, Tensor], Tensor]) -> float:
        def product(side: int) -> Call:
            values = make(torch.randn(side, side, generator=torch.Generator().manual_seed(0)))
            return partial(multiply, values, values)

        return rate(product, sides)

    rates = {
        F32: of(lambda values: values, torch.matmul),
        BF16: of(lambda values: values.to(torch.bfloat16), torch.matmul),
        S8: of(lambda values: (values * 16).to(torch.int8), torch._int_mm),
    }
    return MachineLimits(copy, rates)


def rate(product: Callable[[int], Call], sides: Sequence[int]) -> float:
    """Measure operations a second of square products, at the side that ``measure_cpu_limits`` describes;
    ``product(side)`` returns a call."""
    for side in sides:
        call = product(side)
        call()  # what a library prepares at its first call
        start = time.perf_counter()
        call()
        if time.perf_counter() - start >= ENOUGH_S:
            break
    return 2 * side**3 / _best(lambda _: call)


def _best(bind: Callable[[int], Call]) -> float:
    """Seconds of the fastest of a few calls."""
    contestant, start = fastest_threads(bind, lambda: None), time.perf_counter()
    best = contestant.seconds()
    for _ in range(LIMIT_CALLS - 1):
        if time.perf_counter() - start > LONG_S:
            break
        best = min(best, contestant.seconds())
    return best


def conditions() -> dict[str, str]:
    """Describe conditions that affect times on this CPU: usable CPUs, size of the last cache, and load (mean
    number of running or waiting processes over a minute)."""
    cache = _LAST_CACHE.read_text(encoding="utf-8").strip() if _LAST_CACHE.exists() else ""
    load = f"{os.getloadavg()[0]:.1f}" if hasattr(os, "getloadavg") else ""
    known = {"CPUs": str(usable_threads()), "last cache": cache, "load": load}
    return {name: text for name, text in known.items() if text}
