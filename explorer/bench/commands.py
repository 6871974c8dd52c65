"""The benchmarks as the command line offers them: what to time, how many rows will come, and a table's line
for each.

Every function checks its input and gives a ``Benchmark``; its rows come one by one, so that a caller can show
progress and stop."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar

import torch

from explorer import words
from explorer.bench import analysis, methods, page, quantize
from explorer.bench.analysis import AnalysisTiming, time_analyses
from explorer.bench.cpu import CpuTiming, time_schemes
from explorer.bench.gemm import grouped
from explorer.bench.gemm import timing as gemm_timing
from explorer.bench.gemm.grouped import CASES, GROUPED, GroupedTiming, run_cases
from explorer.bench.gemm.limits import measure_limits
from explorer.bench.gemm.plan import SQUARE, plan, plan_of_records, run_jobs
from explorer.bench.gemm.table import GEMMS
from explorer.bench.gemm.table import find as find_gemm
from explorer.bench.gemm.timing import CPU_ROWS, GemmTiming, time_on_cpu
from explorer.bench.machine import Machine, this_machine
from explorer.bench.methods import MethodTiming, time_methods
from explorer.bench.page import PageTiming, time_page
from explorer.bench.quantize import DTYPES, QuantizeTiming, time_quantize
from explorer.bench.recordings import Recording, as_json, record
from explorer.core.backend import gpu_device, gpu_status, require_gpu, work_device
from explorer.core.lowering import has_kernels, with_kernels
from explorer.methods import METHODS
from explorer.paths import checkout
from explorer.schemes import SCHEMES, Scheme

Row = TypeVar("Row")
Line = dict[str, Any]
"""One line of a printed table: column -> text, number or None."""
Shapes = Sequence[tuple[int, ...]]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Benchmark(Generic[Row]):
    """``rows`` come as they are measured, about ``total`` of them; ``line`` says a row for a table; ``name``
    is the recording that they would be, on a GPU alone where it is ``of_gpu``."""

    name: str
    machine: Machine
    rows: Iterator[Row]
    total: int
    line: Callable[[Row], Line]
    of_gpu: bool = True

    def check_recordable(self) -> None:
        """``ValueError`` unless this is a checkout, and what is measured, a GPU where it has to be."""
        checkout()
        if self.of_gpu and not self.machine.gpu:
            raise ValueError(f"only measurements of a GPU are recorded: {gpu_status().reason}")

    def record(self, rows: Iterable[Row]) -> Path:
        """Write the rows to ``assets/measurements/``; ``ValueError`` where ``check_recordable`` raises it."""
        self.check_recordable()
        return record(self.name, Recording(self.machine, tuple(rows)))


def bench_cpu(
    schemes: Sequence[Scheme] | None, shapes: Shapes | None = None, repeats: int = 3
) -> Benchmark[CpuTiming]:
    """The CPU reference: quantize, dequantize, report."""
    every, matrices = list(schemes or SCHEMES.values()), _matrices(shapes or [(4096, 4096)])
    rows = chain.from_iterable(time_schemes(every, shape, repeats) for shape in matrices)
    return Benchmark("cpu", this_machine(CPU), rows, len(every) * len(matrices), as_json)


def bench_quantize(
    schemes: Sequence[Scheme] | None,
    shapes: Shapes | None = None,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    baselines: bool = True,
) -> Benchmark[QuantizeTiming]:
    """The quantize and dequantize kernels; ``ValueError`` without a GPU."""
    if unknown := [d for d in dtypes if d not in DTYPES]:
        raise ValueError(f"no input type {unknown[0]!r}; there are {', '.join(DTYPES)}")
    require_gpu()
    every, matrices = list(schemes or with_kernels()), _matrices(shapes or [(16384, 16384), (4096, 4096)])
    if without := [str(scheme) for scheme in every if not has_kernels(scheme)]:
        raise ValueError(f"no kernels quantize by {', '.join(without)}: torch operations do on every device")
    rows = chain.from_iterable(time_quantize(every, s, dtypes, work_device(), baselines) for s in matrices)
    total = 2 * len(every) * len(matrices) * len(dtypes)
    return Benchmark(quantize.NAME, this_machine(work_device()), rows, total, quantize_line)


def bench_gemm(
    names: Sequence[str] | None,
    shapes: Shapes | None = None,
    variants: str = "auto",
    sweep_m: bool = False,
    everything_recorded: bool = False,
    seconds: float | None = None,
) -> Benchmark[GemmTiming]:
    """Products on the GPU; without one, those that torch has a CPU kernel for. ``everything_recorded``: what
    ships as ``assets/measurements/gemm.json``."""
    triples = [_triple(shape) for shape in shapes or [SQUARE]]
    chosen = [find_gemm(name).name for name in names] if names else None
    known = dict.fromkeys(v.name for name in chosen or GEMMS for v in GEMMS[name].variants)
    if variants not in ("all", "auto", "fastest", *known):
        raise ValueError(f"no kernel variant {variants!r}; there are auto, all, fastest, {', '.join(known)}")
    if gpu_device() is None:
        on_cpu = (time_on_cpu(GEMMS[name], shape) for shape in triples for name in chosen or CPU_ROWS)
        total = len(triples) * len(chosen or CPU_ROWS)
        return Benchmark(gemm_timing.NAME, this_machine(CPU), on_cpu, total, gemm_line)
    jobs = plan_of_records(chosen) if everything_recorded else plan(chosen, triples, variants, sweep_m)
    limits = measure_limits(work_device())
    machine = this_machine(work_device(), limits=limits)
    total = sum(len(job.variants) for job in jobs)
    rows = run_jobs(jobs, work_device(), limits, seconds)
    return Benchmark(gemm_timing.NAME, machine, rows, total, gemm_line)


def bench_grouped(
    names: Sequence[str] | None = None, cases: Sequence[str] | None = None
) -> Benchmark[GroupedTiming]:
    """Grouped products (mixture of experts); ``ValueError`` without a GPU, or for names there are not."""
    for what, asked, known in (("grouped product", names, GROUPED), ("case", cases, CASES)):
        if unknown := [name for name in asked or () if name not in known]:
            raise ValueError(f"no {what} {unknown[0]!r}; there are {', '.join(known)}")
    require_gpu()
    rows = [GROUPED[name] for name in names or GROUPED]
    chosen = [CASES[name] for name in cases or CASES]
    limits = measure_limits(work_device())
    machine = this_machine(work_device(), limits=limits)
    total = sum(len(row.variants) for row in rows) * len(chosen)
    timings = run_cases(rows, chosen, work_device(), limits)
    return Benchmark(grouped.NAME, machine, timings, total, grouped_line)


def bench_methods(
    schemes: Sequence[Scheme] | None, shapes: Shapes | None = None, repeats: int = 3
) -> Benchmark[MethodTiming]:
    """Every method on a random layer, on the GPU if there is one."""
    every, matrices = list(schemes or [SCHEMES["int4_group128_asym"]]), _matrices(shapes or [(4096, 4096)])
    rows = chain.from_iterable(time_methods(every, shape, work_device(), repeats) for shape in matrices)
    total = len(every) * len(matrices) * len(METHODS)
    return Benchmark(methods.NAME, this_machine(work_device()), rows, total, as_json)


def bench_analysis(
    schemes: Sequence[Scheme] | None, shapes: Shapes | None = None, repeats: int = 3
) -> Benchmark[AnalysisTiming]:
    """The analysis of a random tensor that the Tensor place shows, on the GPU if there is one."""
    every, matrices = list(schemes or SCHEMES.values()), _matrices(shapes or [(4096, 4096)])
    rows = chain.from_iterable(time_analyses(every, shape, work_device(), repeats) for shape in matrices)
    total = len(every) * len(matrices)
    return Benchmark(analysis.NAME, this_machine(work_device()), rows, total, as_json)


def bench_page(
    tensors: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
    repeats: int = 5,
    updates: int = 200,
    url: str | None = None,
) -> Benchmark[PageTiming]:
    """The page in a headless Chromium: this checkout's, started for it, or the one that runs at ``url``."""
    names, acts = list(tensors or page.TENSORS), list(actions or page.ACTIONS)
    page.check(names, acts, repeats, updates)
    if url is None:
        checkout()
    machine = dataclasses.replace(this_machine(CPU, ("gradio", "plotly")), threads=os.cpu_count())
    machine.packages["Chromium"] = page.chromium_version()
    rows = time_page(url, names, acts, repeats, updates)
    total = len(names) * (1 + len(acts)) + bool(updates)
    return Benchmark(page.NAME, machine, rows, total, page_line, of_gpu=False)


def _matrices(shapes: Shapes) -> list[tuple[int, int]]:
    for shape in shapes:
        if len(shape) != 2:
            raise ValueError(f"expected a shape of rows x columns, got {'x'.join(map(str, shape))}")
    return [(rows, columns) for rows, columns in shapes]


def _triple(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"expected a shape of M x N x K, got {'x'.join(map(str, shape))}")
    return shape[0], shape[1], shape[2]


# --- lines of tables ---------------------------------------------------------------------------------


def gemm_line(timing: GemmTiming) -> Line:
    """One kernel of one product."""
    return {
        "product": timing.gemm,
        "kernel": timing.variant,
        "shape": "x".join(map(str, timing.shape)),
        "µs": timing.seconds * 1e6,
        "flushed µs": timing.flush.median_s * 1e6 if timing.flush else None,
        "TFLOP/s": timing.tflops,
        "of the limit": timing.share,
        "× baseline": timing.speedup,
        "SQNR dB": timing.sqnr_db,
        "baseline": timing.baseline if timing.baseline_graph else timing.baseline_note[:40],
    }


def grouped_line(timing: GroupedTiming) -> Line:
    """One kernel of one grouped product."""
    return {
        "product": timing.product,
        "case": timing.case,
        "kernel": timing.variant,
        "chosen": "yes" if timing.chosen else "",
        "µs": timing.seconds * 1e6,
        "flushed µs": timing.flush.median_s * 1e6 if timing.flush else None,
        "TFLOP/s": timing.tflops,
        "of the limit": timing.share,
        "× dense": timing.dense_s / timing.seconds,
        "× baseline": timing.speedup,
        "SQNR dB": timing.sqnr_db,
        "baseline": timing.baseline if timing.baseline_graph else timing.baseline_note[:40],
    }


def quantize_line(timing: QuantizeTiming) -> Line:
    """One quantize or dequantize kernel."""
    return {
        "scheme": timing.scheme,
        "operation": timing.operation,
        "dtype": timing.dtype,
        "rows": timing.shape[0],
        "µs": timing.time.median_s * 1e6,
        "GB/s": timing.gigabytes_per_s,
        "of the copy": timing.share,
        "× baseline": timing.speedup,
    }


def page_line(timing: PageTiming) -> Line:
    """One action on the page."""
    return {
        "action": timing.action,
        "tensor": timing.tensor,
        "repeats": timing.repeats,
        "painted": words.duration(timing.median_s),
        "first change": words.duration(timing.first_s),
        "longest": words.duration(timing.high_s),
        "received": words.bytes_(timing.received_bytes),
        "layout shift": round(timing.layout_shift, 4),
        "longest task": words.duration(timing.longest_task_s),
        "heap": None if timing.heap_growth is None else words.times(timing.heap_growth),
    }
