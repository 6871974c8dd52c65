"""Timing matrix products on this machine, for the Speed section."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch

from app import limits
from app.parts import html
from app.parts.views import Shown, StatusView, shows
from app.state.gpu_lock import gpu_lock, locked_steps
from explorer import words
from explorer.bench.cpu_gemm import (
    DECODE_ON_CPU,
    PREFILL_ON_CPU,
    NotTimed,
    conditions,
    measure_cpu_limits,
    not_installed,
    plan_on_cpu,
    time_on_cpu,
)
from explorer.bench.gemm import time_gemm
from explorer.bench.timing import measure_limits
from explorer.core.backend import gpu_device, kernel_capability, work_device
from explorer.cpu.kernels import usable_threads
from explorer.cpu.products import CPU_PRODUCTS, FORMER
from explorer.cpu.products import find as find_on_cpu
from explorer.cpu.sentences import sentences
from explorer.products.auto import tuned_elsewhere, variants_for
from explorer.products.gemms import GEMMS
from explorer.recordings.files import Recording
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.machine import Machine, MachineLimits, this_machine

Own = Recording[GemmTiming]
"""Timings that a visitor measured on this machine."""


@dataclass(frozen=True)
class RunView(StatusView):
    """The visitor's own run: status and timings."""

    own: Shown


def checked_shape(m: float, n: float, k: float) -> Shape:
    """M, N, K as whole numbers; ``ValueError`` beyond what a visitor may ask for."""
    shape = (int(m or 0), int(n or 0), int(k or 0))
    if min(shape) < 1:
        raise ValueError("M, N and K are whole numbers of at least 1")
    most = limits.current().product_elements
    for what, size in (("X", shape[0] * shape[2]), ("W", shape[1] * shape[2]), ("Y", shape[0] * shape[1])):
        if size > most:
            raise ValueError(
                f"{what} would have {size:,} elements; here a matrix of a timed product may have {most:,}"
            )
    return shape


@shows(RunView)
def run(m: float, n: float, k: float, names: list[str], every_kernel: bool) -> Iterator[RunView]:
    """Time products at M, N, K on this machine, yielding (status, results) after each; stopping keeps what is
    there.

    ``names`` are rows of GEMMS, without a GPU of CPU_PRODUCTS; ``every_kernel`` times each of their kernels
    instead of the fastest, which a CPU always does.
    """
    try:
        shape, wanted = checked_shape(m, n, k), _wanted(names or [])
        if gpu_device() is None:
            yield from _on_cpu(wanted, [shape])
        else:
            yield from _timings(shape, wanted, every_kernel)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


@shows(RunView)
def run_on_cpu() -> Iterator[RunView]:
    """Time every product that a library here computes on this CPU, decoding and prefill, beside a GPU or
    without; the sentence about them comes with the first timing, and stopping keeps what is there."""
    yield from _on_cpu(None, [DECODE_ON_CPU, PREFILL_ON_CPU])


def _on_cpu(names: Sequence[str] | None, shapes: Sequence[Shape]) -> Iterator[RunView]:
    end, seconds = time.monotonic() + limits.current().run_seconds, limits.current().run_seconds
    jobs, missing = plan_on_cpu(names, shapes), not_installed(names)
    if not jobs:
        raise ValueError(f"nothing computes these products here: {missing[0].reason}")
    yield RunView.unchanged(status=html.status("Measuring what this CPU copies and multiplies …"))
    chip = measure_cpu_limits()
    machine = this_machine(torch.device("cpu"), ("onnxruntime", "xllamacpp"), chip)
    machine = dataclasses.replace(machine, threads=usable_threads(), conditions=conditions())
    total, done = sum(len(job.kernels) * len(job.shapes) for job in jobs), 0
    timings: list[GemmTiming] = []
    refused = list(dict.fromkeys(row.reason for row in missing))
    for item in time_on_cpu(jobs, chip):
        done += 1
        if isinstance(item, NotTimed):
            refused.append(f"{item.label} by {item.kernel}: {item.reason}")
            continue
        timings.append(item)
        said = " ".join((f"{done} of {total} · {item.label}, {item.variant}.", *sentences(timings)))
        yield RunView(status=html.status(said), own=Own(machine, tuple(timings)))
        if time.monotonic() > end and done < total:
            refused.insert(0, f"stopped after {seconds:.0f} s, the time limit of a run here")
            break
    at = ", ".join("×".join(map(str, shape)) for shape in shapes)
    rest = f"Not timed: {'; '.join(refused)}." if refused else ""
    said = " ".join(filter(None, (f"{done} of {total} timings at {at}.", *sentences(timings), rest)))
    yield RunView(status=html.status(said), own=Own(machine, tuple(timings)))


def _wanted(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that can be timed here; ``ValueError`` if there are none."""
    if not names:
        raise ValueError("choose at least one product")
    if gpu_device() is None:
        known = [name for name in names if FORMER.get(name, name) in CPU_PRODUCTS]
        return [find_on_cpu(name).name for name in known or names]
    wanted = [name for name in names if name in GEMMS]
    if not wanted:
        raise ValueError("choose at least one product")
    return wanted


def _timings(shape: Shape, names: Sequence[str], every_kernel: bool) -> Iterator[RunView]:
    end = time.monotonic() + limits.current().run_seconds
    yield RunView.unchanged(status=html.status("Measuring the chip's limits …"))
    machine, timings = _machine(), []
    for index, name in enumerate(names):
        done = f"{index} of {len(names)} products"
        yield RunView.unchanged(status=html.status(f"{done} · now {GEMMS[name].label}"))
        for timing in locked_steps(_one(name, shape, every_kernel, machine.limits)):
            timings.append(timing)
            status = html.status(f"{done} · {timing.label}, {words.kernel_name(timing.variant)}")
            yield RunView(status=status, own=Own(machine, tuple(timings)))
        if time.monotonic() > end:
            seconds = limits.current().run_seconds
            stopped = f"Stopped after {seconds:.0f} s, the time limit of a run here."
            yield RunView.unchanged(status=html.status(stopped))
            return
    at = "×".join(map(str, shape))
    told = [f"{len(names)} of {len(names)} products at {at}"]
    capability = None if every_kernel else kernel_capability(work_device())
    if capability and (hint := tuned_elsewhere(machine.gpu, capability, "tick every kernel")):
        told.append(f"{hint[0].upper()}{hint[1:]}.")
    status = html.status(". ".join(told))
    yield RunView(status=status, own=Own(machine, tuple(timings)))


def _machine() -> Machine:
    device = work_device()
    with gpu_lock():
        return this_machine(device, limits=_chip_limits(device))


def _one(name: str, shape: Shape, every_kernel: bool, chip: MachineLimits | None) -> Iterator[GemmTiming]:
    gemm = GEMMS[name]
    device = work_device()
    capability = torch.cuda.get_device_capability(device)
    variants = variants_for(gemm, shape, capability, "all" if every_kernel else "auto")
    yield from time_gemm(gemm, variants, shape, device, chip)


@functools.cache
def _chip_limits(device: torch.device) -> MachineLimits:
    """Measured once a process."""
    return measure_limits(device)
