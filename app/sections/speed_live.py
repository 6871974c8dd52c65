"""Timing matrix products on this machine, for the Speed section."""

from __future__ import annotations

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
from explorer.bench.chip_limits import measure_limits
from explorer.bench.gemm import CPU_ROWS, time_gemm, time_on_cpu
from explorer.core.backend import gpu_device, work_device
from explorer.products.auto import variants_for
from explorer.products.table import GEMMS
from explorer.recordings.files import Recording
from explorer.recordings.gemm import GemmTiming, Shape, canonical_name
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

    ``names`` are rows of GEMMS; ``every_kernel`` times each of their kernels instead of the fastest.
    """
    try:
        yield from _timings(checked_shape(m, n, k), _wanted(names or []), every_kernel)
    except RuntimeError as error:
        raise ValueError(str(error)) from error


def _wanted(names: Sequence[str]) -> list[str]:
    """Those of ``names`` that can be timed here; ``ValueError`` if there are none."""
    on_gpu = gpu_device() is not None
    canonical = [canonical_name(name) for name in names]
    wanted = [name for name in canonical if name in GEMMS and (on_gpu or name in CPU_ROWS)]
    if wanted:
        return wanted
    if on_gpu:
        raise ValueError("choose at least one product")
    raise ValueError(f"without a GPU torch has kernels for {', '.join(CPU_ROWS)}; choose one of them")


def _timings(shape: Shape, names: Sequence[str], every_kernel: bool) -> Iterator[RunView]:
    end = time.monotonic() + limits.current().run_seconds
    if gpu_device() is not None:
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
    status = html.status(f"{len(names)} of {len(names)} products at {at}")
    yield RunView(status=status, own=Own(machine, tuple(timings)))


def _machine() -> Machine:
    device = work_device()
    if device.type == "cpu":
        return this_machine(device)
    with gpu_lock():
        return this_machine(device, limits=_chip_limits(device))


def _one(name: str, shape: Shape, every_kernel: bool, chip: MachineLimits | None) -> Iterator[GemmTiming]:
    gemm = GEMMS[name]
    if gpu_device() is None:
        yield time_on_cpu(gemm, shape)
        return
    device = work_device()
    capability = torch.cuda.get_device_capability(device)
    variants = variants_for(gemm, shape, capability, "all" if every_kernel else "auto")
    yield from time_gemm(gemm, variants, shape, device, chip)


@functools.cache
def _chip_limits(device: torch.device) -> MachineLimits:
    """Measured once a process."""
    return measure_limits(device)
