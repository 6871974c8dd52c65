"""Benchmarks of the command line: validated input, the expected number of rows, and a table's lines.

Every function validates its input and returns a ``Benchmark``; its rows come one by one, so that a caller can
show progress and stop.
"""

from __future__ import annotations

import dataclasses
import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, Generic, TypeVar, cast

import torch

from explorer.bench.cpu import CpuTiming, time_schemes
from explorer.bench.cpu_gemm import (
    DECODE_ON_CPU,
    PREFILL_ON_CPU,
    RECORDED_TOKENS,
    CpuJob,
    NotTimed,
    conditions,
    measure_cpu_limits,
    not_installed,
    plan_on_cpu,
    time_on_cpu,
)
from explorer.bench.gemm import run_cases
from explorer.bench.plan import plan, plan_of_layers, plan_of_records, run_jobs
from explorer.bench.quantize import DTYPES, builds_of, time_quantize
from explorer.bench.runs import SCHEMES as RUN_SCHEMES
from explorer.bench.runs import time_runs
from explorer.bench.steps import BATCHES, SHAPES, schemes_here, time_steps
from explorer.bench.timing import measure_limits
from explorer.core.backend import gpu_device, gpu_status, kernel_capability, require_gpu, work_device
from explorer.core.lowering import has_kernels, with_kernels
from explorer.cpu.kernels import usable_threads
from explorer.cpu.products import CPU_PRODUCTS
from explorer.cpu.products import find as find_on_cpu
from explorer.cpu.sentences import sentences
from explorer.gpu import runtime
from explorer.gpu.compile import compile_all
from explorer.methods.recipe import Recipe
from explorer.paths import checkout
from explorer.products.auto import tuned_elsewhere
from explorer.products.gemms import GEMMS
from explorer.products.gemms import find as find_gemm
from explorer.products.grouped import CASES, GROUPED, is_chosen
from explorer.products.shapes import SQUARE
from explorer.progress import checkpoint
from explorer.recordings.files import Recording, as_json, machine_name, record, record_to, recorded
from explorer.recordings.gemm import LATER_NAME, LAYERS_NAME, GemmTiming, covers, recorded_gemms
from explorer.recordings.gemm import NAME as GEMM
from explorer.recordings.grouped import NAME as GROUPED_PRODUCTS
from explorer.recordings.grouped import GroupedTiming
from explorer.recordings.machine import Machine, MachineLimits, this_machine
from explorer.recordings.quantize import NAME as QUANTIZE
from explorer.recordings.quantize import QuantizeTiming
from explorer.recordings.runs import NAME as RUNS
from explorer.recordings.runs import RunTiming
from explorer.recordings.steps import BASELINE, TORCHAO, StepTiming
from explorer.recordings.steps import NAME as STEPS
from explorer.running import ENGINES
from explorer.schemes import SCHEMES, Scheme

Row = TypeVar("Row")
Line = dict[str, Any]
"""One line of a printed table: column -> text, number or None."""
Shapes = Sequence[tuple[int, ...]]
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Benchmark(Generic[Row]):
    """Benchmark that is running. ``rows`` come as they are measured, about ``total`` of them; ``line`` makes
    a table's line of a row; ``name``: its recording, of GPUs alone if ``of_gpu``."""

    name: str
    machine: Machine
    rows: Iterator[Row]
    total: int
    line: Callable[[Row], Line]
    of_gpu: bool = True
    notes: list[str] = field(default_factory=list)
    """Sentences after the rows: kernels that could not be timed, and conclusions."""

    def check_recordable(self) -> None:
        """``ValueError`` outside of a checkout, and without a GPU for a benchmark of GPUs."""
        checkout()
        if self.of_gpu and not self.machine.gpu:
            raise ValueError(f"only measurements of a GPU are recorded: {gpu_status().reason}")

    def record(self, rows: Iterable[Row], to: Path | None = None) -> Path:
        """Write the rows to ``assets/measurements/`` (``ValueError`` as in ``check_recordable``), or to the
        file ``to``, from any machine."""
        recording = Recording(self.machine, tuple(rows))
        if to is not None:
            return record_to(to, recording)
        self.check_recordable()
        name = place_of(self.name, self.machine)
        if name == GEMM:
            timings = cast(tuple[GemmTiming, ...], recording.rows)
            if not covers(timings, recorded(GEMM, GemmTiming).rows):
                name = LATER_NAME  # a run that was cut short takes nothing away
        return record(name, recording)


def place_of(name: str, machine: Machine) -> str:
    """Name under which the recording ``name`` of ``machine`` is written. Products and quantizers of another
    GPU than that of ``gemm.json``, on which budgets of time are based, belong to the recordings by machine.
    """
    gpu = recorded_gemms().machine.gpu
    if name in (GEMM, QUANTIZE) and machine.gpu and gpu not in ("", machine.gpu):
        return machine_name(name, machine)
    return name


def bench_cpu(
    schemes: Sequence[Scheme] | None, shapes: Shapes | None = None, repeats: int = 3
) -> Benchmark[CpuTiming]:
    """Benchmark the CPU reference: quantize, dequantize, report."""
    every, sizes = list(schemes or SCHEMES.values()), matrices(shapes or [(4096, 4096)])
    rows = chain.from_iterable(time_schemes(every, shape, repeats) for shape in sizes)
    return Benchmark("cpu", this_machine(CPU), rows, len(every) * len(sizes), as_json)


def bench_model(
    model: str,
    schemes: Sequence[str] | None = None,
    tokens: int = 64,
    repeats: int = 3,
    prompt: str | None = None,
) -> Benchmark[RunTiming]:
    """Benchmark a model that writes, as it is and by each scheme, in each engine that can run it."""
    chosen = tuple(schemes or RUN_SCHEMES)
    for text in chosen:
        Recipe.parse(text)
    device = work_device()
    rows = time_runs(model, chosen, device, repeats, tokens, prompt)
    machine = this_machine(device, ("transformers", "xllamacpp"))
    return Benchmark(RUNS, machine, rows, len(ENGINES) * (1 + len(chosen)), run_line, of_gpu=False)


def bench_quantize(
    schemes: Sequence[Scheme] | None,
    shapes: Shapes | None = None,
    dtypes: Sequence[str] = ("float32", "bfloat16"),
    baselines: bool = True,
) -> Benchmark[QuantizeTiming]:
    """Benchmark the quantize and dequantize kernels; ``ValueError`` without a GPU. torch.compile and calls
    from Python are timed at the first shape."""
    if unknown := [d for d in dtypes if d not in DTYPES]:
        raise ValueError(f"no input type {unknown[0]!r}; there are {', '.join(DTYPES)}")
    require_gpu()
    every, sizes = list(schemes or with_kernels()), matrices(shapes or [(16384, 16384), (4096, 4096)])
    if without := [str(scheme) for scheme in every if not has_kernels(scheme)]:
        raise ValueError(f"no kernels quantize by {', '.join(without)}: torch operations do on every device")

    def rows() -> Iterator[QuantizeTiming]:
        for _ in compile_all(builds_of(every, sizes, dtypes), [runtime.arch_of(work_device())]):
            checkpoint()
        for size in sizes:
            yield from time_quantize(every, size, dtypes, work_device(), baselines, first=size == sizes[0])

    total = 2 * len(every) * len(sizes) * len(dtypes)
    return Benchmark(QUANTIZE, this_machine(work_device()), rows(), total, quantize_line)


def bench_gemm(
    names: Sequence[str] | None,
    shapes: Shapes | None = None,
    variants: str = "auto",
    sweep_m: bool = False,
    everything_recorded: bool = False,
    seconds: float | None = None,
    layers: bool = False,
) -> Benchmark[GemmTiming]:
    """Benchmark products on the GPU, or without one on the CPU (``bench_cpu_gemm``). ``everything_recorded``:
    the products and shapes of ``assets/measurements/gemm.json``; ``layers``: those of ``gemm-layers.json``.
    """
    if gpu_device() is None:
        if layers:
            raise ValueError("layers of models are timed on a GPU: leave --layers out, or name a --shape")
        tokens = RECORDED_TOKENS if sweep_m or everything_recorded else None
        return bench_cpu_gemm(names, shapes, variants, tokens, seconds)
    triples = [_triple(shape) for shape in shapes or [SQUARE]]
    chosen = [find_gemm(name).name for name in names] if names else None
    known = dict.fromkeys(v.name for name in chosen or GEMMS for v in GEMMS[name].variants)
    if variants not in ("all", "auto", "fastest", *known):
        raise ValueError(f"no kernel variant {variants!r}; there are auto, all, fastest, {', '.join(known)}")
    if layers:
        jobs = plan_of_layers(chosen)
    elif everything_recorded:
        jobs = plan_of_records(chosen)
    else:
        jobs = plan(chosen, triples, variants, sweep_m)
    limits = measure_limits(work_device())
    machine = this_machine(work_device(), limits=limits)
    total = sum(len(job.variants) for job in jobs)
    rows = run_jobs(jobs, work_device(), limits, seconds)
    every = "--variants all" if not (layers or everything_recorded) else "--variants all with a --shape"
    capability = kernel_capability(work_device())
    chosen_for = capability if variants in ("auto", "fastest") else None
    hint = tuned_elsewhere(machine.gpu, chosen_for, every) if chosen_for else ""
    name = LAYERS_NAME if layers else GEMM
    return Benchmark(name, machine, rows, total, gemm_line, notes=[hint] if hint else [])


def bench_cpu_gemm(
    names: Sequence[str] | None = None,
    shapes: Shapes | None = None,
    variants: str = "auto",
    tokens: Sequence[int] | None = None,
    seconds: float | None = None,
) -> Benchmark[GemmTiming]:
    """Benchmark products on this CPU, by every installed library, or by the kernels whose names begin with
    ``variants``. The default ``shapes`` are those of decoding and prefill; ``tokens``: numbers of tokens for
    each N and K."""
    every = [_triple(shape) for shape in shapes or (DECODE_ON_CPU, PREFILL_ON_CPU)]
    every = list(dict.fromkeys((m, n, k) for first, n, k in every for m in tokens or (first,)))
    if min(map(min, every)) < 1:
        raise ValueError("M, N and K are whole numbers of at least 1")
    chosen = list(dict.fromkeys(find_on_cpu(name).name for name in names)) if names else None
    begins = "" if variants in ("auto", "fastest", "all") else variants
    jobs = plan_on_cpu(chosen, every, begins)
    missing = not_installed(chosen)
    if not jobs and not missing:
        known = dict.fromkeys(kernel.name for row in CPU_PRODUCTS.values() for kernel in row.kernels)
        raise ValueError(f"no kernel on a CPU is called {variants!r}; there are {', '.join(known)}")
    notes = list(dict.fromkeys(f"not timed: {row.reason}" for row in missing))
    limits = measure_cpu_limits() if jobs else None
    machine = this_machine(CPU, ("onnxruntime", "xllamacpp"), limits)
    machine = dataclasses.replace(machine, threads=usable_threads(), conditions=conditions())
    total = sum(len(job.kernels) * len(job.shapes) for job in jobs)
    rows = _timed_on_cpu(jobs, limits, notes, seconds)
    return Benchmark(machine_name(GEMM, machine), machine, rows, total, cpu_gemm_line, False, notes)


def _timed_on_cpu(
    jobs: Sequence[CpuJob], limits: MachineLimits | None, notes: list[str], seconds: float | None
) -> Iterator[GemmTiming]:
    """Yield every timing, and stop after ``seconds``. Appends to ``notes``: kernels that were not timed, and
    the gain of low bits here."""
    end, rows = time.monotonic() + seconds if seconds else math.inf, []
    for row in time_on_cpu(jobs, limits):
        if isinstance(row, NotTimed):
            notes.append(f"not timed: {row.label} by {row.kernel}: {row.reason}")
        else:
            rows.append(row)
            yield row
        if time.monotonic() > end:
            break
    for sides in dict.fromkeys(row.shape[1:] for row in rows):
        notes += sentences([row for row in rows if row.shape[1:] == sides])


def bench_grouped(
    names: Sequence[str] | None = None, cases: Sequence[str] | None = None
) -> Benchmark[GroupedTiming]:
    """Benchmark grouped products (mixture of experts); ``ValueError`` without a GPU, and for unknown
    names."""
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
    return Benchmark(GROUPED_PRODUCTS, machine, timings, total, grouped_line)


def bench_steps(
    shapes: Sequence[str] | None = None,
    schemes: Sequence[str] | None = None,
    batches: Sequence[int] | None = None,
    head: Scheme | None = None,
) -> Benchmark[StepTiming]:
    """Benchmark steps of models' shapes with random weights; ``ValueError`` without a GPU, and for unknown
    names."""
    require_gpu()
    if unknown := [name for name in shapes or () if name not in SHAPES]:
        raise ValueError(f"no shape {unknown[0]!r}; there are {', '.join(SHAPES)}")
    for text in schemes or ():
        for part in text.split("+") if text != TORCHAO else ():
            Scheme.parse(part)
    if any(batch < 1 for batch in batches or ()):
        raise ValueError("a batch has at least one text")
    names, chosen, sizes = list(shapes or SHAPES), list(schemes or schemes_here()), list(batches or BATCHES)
    rows = chain.from_iterable(time_steps(name, chosen, sizes, head) for name in names)
    total = len(names) * (1 + len(chosen)) * len(sizes)
    machine = this_machine(work_device(), ("transformers", "torchao"))
    return Benchmark(STEPS, machine, rows, total, step_line)


def matrices(shapes: Shapes) -> list[tuple[int, int]]:
    """Read ``shapes`` as rows and columns; ``ValueError`` for any other number of axes."""
    for shape in shapes:
        if len(shape) != 2:
            raise ValueError(f"expected a shape of rows x columns, got {'x'.join(map(str, shape))}")
    return [(rows, columns) for rows, columns in shapes]


def _triple(shape: tuple[int, ...]) -> tuple[int, int, int]:
    if len(shape) != 3:
        raise ValueError(f"expected a shape of M x N x K, got {'x'.join(map(str, shape))}")
    return shape[0], shape[1], shape[2]


# --- lines of tables ---------------------------------------------------------------------------------


def run_line(timing: RunTiming) -> Line:
    """Make the line of one model in one engine."""
    return {
        "scheme": timing.scheme or "original",
        "engine": timing.engine,
        "prompt tokens/s": timing.prompt_per_second,
        "tokens/s": timing.tokens_per_second,
        "its own clock": timing.told_tokens_per_second,
        "MB in files": timing.stored_bytes / 1e6,
        "MB in memory": timing.held_bytes / 1e6,
        "KL, nats": timing.kl,
    }


def gemm_line(timing: GemmTiming) -> Line:
    """Make the line of one kernel of one product."""
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


def cpu_gemm_line(timing: GemmTiming) -> Line:
    """Make the line of one kernel of one product on a CPU."""
    spread = timing.graph
    return {
        "product": timing.gemm,
        "kernel": timing.variant,
        "shape": "x".join(map(str, timing.shape)),
        "threads": timing.threads,
        "µs": timing.seconds * 1e6,
        "10 to 90 %": f"{spread.low_s * 1e6:.0f} to {spread.high_s * 1e6:.0f}",
        "× float32": timing.speedup,
        "of the limit": timing.share,
        "SQNR dB": timing.sqnr_db,
        "W MB": timing.weight_bytes / 1e6,
    }


def grouped_line(timing: GroupedTiming) -> Line:
    """Make the line of one kernel of one grouped product."""
    return {
        "product": timing.product,
        "case": timing.case,
        "kernel": timing.variant,
        "chosen": "yes" if is_chosen(timing.product, timing.case, timing.variant) else "",
        "µs": timing.seconds * 1e6,
        "flushed µs": timing.flush.median_s * 1e6 if timing.flush else None,
        "TFLOP/s": timing.tflops,
        "of the limit": timing.share,
        "× dense": timing.dense_s / timing.seconds,
        "× baseline": timing.speedup,
        "SQNR dB": timing.sqnr_db,
        "baseline": timing.baseline if timing.baseline_graph else timing.baseline_note[:40],
    }


def step_line(timing: StepTiming) -> Line:
    """Make the line of one model at one batch size."""
    parts = timing.parts
    inputs = f" × {timing.inputs}" if timing.inputs else ""
    return {
        "shape": timing.shape,
        "scheme": f"{timing.scheme}{inputs}",
        "head": timing.head or BASELINE,
        "batch": timing.batch,
        "step ms": timing.step.median_s * 1e3,
        "× BF16": timing.speedup,
        "tokens/s": timing.tokens_per_second,
        "linear": parts.linear_s * 1e3 if parts else None,
        "attention": parts.attention_s * 1e3 if parts else None,
        "rest": parts.rest_s * 1e3 if parts else None,
        "gaps": parts.gaps_s * 1e3 if parts else None,
        "at the copy's speed": timing.floor_s * 1e3,
        "prefill ms": timing.prefill.median_s * 1e3 if timing.prefill else None,
        "GB": timing.weight_bytes / 1e9,
        "× smaller": timing.smaller,
    }


def quantize_line(timing: QuantizeTiming) -> Line:
    """Make the line of one quantize or dequantize kernel, and of the call from Python."""
    call, small = timing.call, timing.small_call
    return {
        "scheme": timing.scheme,
        "operation": timing.operation,
        "dtype": timing.dtype,
        "rows": timing.shape[0],
        "µs": timing.time.median_s * 1e6,
        "GB/s": timing.gigabytes_per_s,
        "of the copy": timing.share,
        "× baseline": timing.speedup,
        "call µs": call.checked.median_s * 1e6 if call else None,
        "call of the copy": timing.call_share,
        "unchecked µs": call.unchecked.median_s * 1e6 if call else None,
        "256² call µs": small.checked.median_s * 1e6 if small else None,
        "256² unchecked µs": small.unchecked.median_s * 1e6 if small else None,
    }
