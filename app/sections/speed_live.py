"""Timing A, B and BF16, or other products, on this machine, for the place Speed."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from app import limits
from app.parts import html
from app.parts.controls import Select, Switch
from app.parts.section import Shown
from app.sections.speed_machines import Timings, schemes_of, shape_of, text_of
from app.serving.work import own_time
from app.state.gpu_lock import gpu_lock, locked_steps, one_at_a_time, room
from app.state.query import Query
from app.state.visits import visit
from explorer import words
from explorer.bench.cpu_gemm import (
    COPY_BYTES,
    NotTimed,
    conditions,
    measure_cpu_limits,
    not_installed,
    plan_on_cpu,
    time_on_cpu,
)
from explorer.bench.gemm import builds_at, time_gemm
from explorer.bench.timing import limit_builds, measure_limits
from explorer.core.backend import kernel_capability, work_device
from explorer.cpu.kernels import usable_threads
from explorer.cpu.products import CPU_PRODUCTS, FIRST, in_order, products_for
from explorer.cpu.sentences import sentences
from explorer.gpu.compile import compile_all
from explorer.gpu.runtime import arch_of
from explorer.products.auto import tuned_elsewhere, variants_for
from explorer.products.gemms import GEMMS
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.machine import MachineLimits, this_machine

CHOSEN, USUAL, EVERY = "chosen", "usual", "all"
USUAL_ON_GPU = ("bf16", "fp8_e4m3_row", "fp8_blockwise", "int8", "w8a16", "w4a16_group128", "w_nvfp4",
                "w4a8_int", "binary")  # fmt: skip
USUAL_TOKENS = {True: (1, 16, 64, 256), False: (1, 4, 16, 64, 256, 1024, 4096)}
"""Numbers of tokens from decode to prefill on a CPU (True) and on a GPU."""
TIMED = Select(
    key="timed",
    label="What is timed",
    usual=CHOSEN,
    options={CHOSEN: "A, B and BF16", USUAL: "one product of each kind", EVERY: "every product that is here"},
    linked=False,
)
KERNELS = Switch(key="kernels", label="every kernel of a GPU's product, not only the fastest", linked=False)
LIBRARIES = dict.fromkeys(kernel.library.label for row in CPU_PRODUCTS.values() for kernel in row.kernels)
_OF_AN_ELEMENT = 40
"""Bytes for each element of X, W and Y while a product is timed on the CPU, with what ONNX Runtime and
llama.cpp keep: 5 to 45 were measured."""
Step = tuple[str, Timings | None]
"""How far a run is, in words, and what it has timed so far."""


def measure(query: Query, tokens: Sequence[int], on_cpu: bool, draw: Callable[[], Shown]) -> Iterator[Shown]:
    """Time products on this machine with the shape's number of tokens, or with each of ``tokens``, and yield
    how far it is and what ``draw`` shows of it. What is finished is kept for the visitor.

    ``ValueError`` at once where no library multiplies the weights of A or of B.
    """
    (m, n, k), _ = shape_of(query)
    shapes = [checked_shape((count, n, k), on_cpu) for count in tokens or (m,)]
    names = _names(query, on_cpu)
    steps = _on_cpu(names, shapes) if on_cpu else _on_gpu(names, shapes, KERNELS.of(query))
    try:
        for said, timed in steps:
            if timed:
                _keep(timed)
            yield {"status": html.status(said), **(draw() if timed else {})}
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def checked_shape(shape: Shape, on_cpu: bool) -> Shape:
    """``shape`` where its matrices, and on a CPU its work, are no larger than a visitor may ask for; else
    ``ValueError``."""
    most, (m, n, k) = limits.current().product_elements, shape
    for what, size in (("X", m * k), ("W", n * k), ("Y", m * n)):
        if size > most:
            raise ValueError(
                f"{what} would have {size:,} elements; here a matrix of a timed product may have {most:,}"
            )
    longest = limits.current().side
    if on_cpu and max(shape) > longest:
        raise ValueError(
            f"{text_of(shape)} has a side of {max(shape):,}; timed on the CPU are up to {longest:,}"
        )
    if on_cpu and m * n * k > limits.current().product_terms:
        raise ValueError(
            f"{text_of(shape)} is {m * n * k:,} multiplications; here a product that is timed on the CPU may "
            f"have {limits.current().product_terms:,}"
        )
    return shape


def timed_here(query: Query, on_cpu: bool) -> tuple[list[str], str]:
    """Products of A and of B that can be timed here; and in words by which library each can, or why not."""
    found, said = list[str](), list[str]()
    for side, scheme in schemes_of(query).items():
        names, label = products_for(scheme, on_cpu), f"{side}, {html.short_name(scheme.label)},"
        if not on_cpu:
            capability = torch.cuda.get_device_capability(work_device())
            here = [name for name in names if GEMMS[name].variants_on(capability)]
            said.append(f"{label} {'can be timed' if here else 'has no kernel for this GPU'}.")
        else:
            libraries = {name: [kernel.library for kernel in CPU_PRODUCTS[name].kernels] for name in names}
            here = [name for name in names if not all(one.missing for one in libraries[name])]
            every = {one.label: one.missing for name in here or names for one in libraries[name]}
            if here:
                by = " and ".join(label for label, missing in every.items() if not missing)
                said.append(f"{label} can be timed by {by}.")
            elif every:
                said.append(f"{label} needs {' or '.join(every)}: {next(iter(every.values()))}.")
            else:
                said.append(f"{label} has no product here for CPUs ({', '.join(LIBRARIES)}).")
        found += here
    return list(dict.fromkeys(found)), " ".join(said)


def _names(query: Query, on_cpu: bool) -> list[str]:
    """The products to time."""
    which = TIMED.of(query)
    if which == EVERY:
        return list(CPU_PRODUCTS if on_cpu else GEMMS)
    if which == USUAL:
        return list(FIRST if on_cpu else USUAL_ON_GPU)
    chosen, _ = timed_here(query, on_cpu)
    if not chosen:
        raise ValueError("Nothing was timed: no product here has A or B; time one product of each kind")
    return list(dict.fromkeys([*chosen, *(("fp32", "bf16") if on_cpu else ("bf16",))]))


def _keep(timed: Timings) -> None:
    """Add what was timed to what the visitor has of the same machine; a newer time replaces an older one."""
    mine, before = visit(), visit().gemm_timings
    same = before is not None and before.machine.chip == timed.machine.chip
    every = (*(before.rows if before and same else ()), *timed.rows)
    rows = {(row.gemm, row.variant, row.shape): row for row in every}
    mine.gemm_timings = Timings(timed.machine, tuple(rows.values()))


def _on_cpu(names: Sequence[str], shapes: Sequence[Shape]) -> Iterator[Step]:
    seconds = limits.current().run_seconds
    end, jobs = own_time() + seconds, plan_on_cpu(in_order(names), shapes)
    refused = list(dict.fromkeys(row.reason for row in not_installed(names)))
    total, done = sum(len(job.kernels) * len(job.shapes) for job in jobs), 0
    yield "Measuring what this CPU copies and multiplies …", None
    with _alone(2 * COPY_BYTES):
        chip = _cpu_limits()
    machine = this_machine(torch.device("cpu"), ("onnxruntime", "xllamacpp"), chip)
    machine = dataclasses.replace(machine, threads=usable_threads(), conditions=conditions())
    timings: list[GemmTiming] = []
    largest = _OF_AN_ELEMENT * max(m * k + n * k + m * n for m, n, k in shapes)
    for item in locked_steps(time_on_cpu(jobs, chip), functools.partial(_alone, largest)):
        done += 1
        if isinstance(item, NotTimed):
            refused.append(f"{item.label} by {item.kernel}: {item.reason}")
            continue
        timings.append(item)
        yield f"{done} of {total} · {item.label}, {item.variant}", Timings(machine, tuple(timings))
        if own_time() > end and done < total:
            refused.insert(0, f"stopped after {seconds:.0f} s, the time limit of a run here")
            break
    rest = f"Not timed: {'; '.join(refused)}." if refused else ""
    at = f"{done} of {total} timings at {', '.join(map(text_of, shapes))}."
    yield " ".join(filter(None, (at, *sentences(timings), rest))), Timings(machine, tuple(timings))


@contextmanager
def _alone(size: int) -> Iterator[None]:
    """Hold so many bytes, and the CPU: each step anew, as nobody says when a run that was left is closed."""
    with room(size), one_at_a_time():
        yield


def _on_gpu(names: Sequence[str], shapes: Sequence[Shape], every_kernel: bool) -> Iterator[Step]:
    end, device = own_time() + limits.current().run_seconds, work_device()
    capability = torch.cuda.get_device_capability(device)
    jobs = [
        (gemm, variants_for(gemm, shape, capability, "all" if every_kernel else "auto"), shape)
        for shape in shapes
        for gemm in map(GEMMS.__getitem__, names)
    ]
    # All at once: one after another they would take nvcc half a minute at the first time.
    builds = dict.fromkeys([*limit_builds(device), *(build for job in jobs for build in builds_at(*job))])
    for count, _ in enumerate(compile_all([*builds], [arch_of(device)]), 1):
        yield f"{count} of {len(builds)} kernels compiled", None
    yield "Measuring the chip's limits …", None
    with gpu_lock():
        machine = this_machine(device, limits=_chip_limits(device))
    timings: list[GemmTiming] = []
    for index, (gemm, variants, shape) in enumerate(jobs):
        done = f"{index} of {len(jobs)} products"
        yield f"{done} · now {gemm.label} at {text_of(shape)}", None
        for timing in locked_steps(time_gemm(gemm, variants, shape, device, machine.limits)):
            timings.append(timing)
            said = f"{done} · {timing.label}, {words.kernel_name(timing.variant)}"
            yield said, Timings(machine, tuple(timings))
        if own_time() > end:
            yield f"Stopped after {limits.current().run_seconds:.0f} s, the time limit of a run here.", None
            return
    told = [f"{len(jobs)} of {len(jobs)} products timed."]
    capable = None if every_kernel else kernel_capability(device)
    if capable and (hint := tuned_elsewhere(machine.gpu, capable, "tick every kernel")):
        told.append(f"{hint[0].upper()}{hint[1:]}.")
    yield " ".join(told), Timings(machine, tuple(timings))


@functools.cache
def _chip_limits(device: torch.device) -> MachineLimits:
    """Measured once a process."""
    return measure_limits(device)


@functools.cache
def _cpu_limits() -> MachineLimits:
    """Measured once a process."""
    return measure_cpu_limits()
