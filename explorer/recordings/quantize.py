"""Recorded quantize and dequantize kernels: ``assets/measurements/quantize.json``."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from functools import cache

import torch

from explorer.paths import KERNELS
from explorer.recordings.files import Recording, recorded, recorded_by_machine
from explorer.recordings.times import TimeSpread
from explorer.schemes import Scheme

NAME = "quantize"
SMALL = (256, 256)
"""Shape of a matrix so small that a call takes only the host's time."""
TWO_READS = ("tensor_range", "column_range", "block_range")
"""Beginnings of the names of kernels that read the whole matrix before the kernel that quantizes it."""
_DEFINITION = re.compile(r"__global__ void (?:__launch_bounds__\([^)]*\)\s+)?(\w+)\(")


@cache
def kernel_file(kernel: str) -> str:
    """Return the file of ``kernels/`` that defines a kernel; ``ValueError`` if none does."""
    for path in sorted(KERNELS.glob("*.cu")):
        if kernel in _DEFINITION.findall(path.read_text(encoding="utf-8")):
            return path.name
    raise ValueError(f"no file of kernels/ defines {kernel!r}")


@dataclass(frozen=True)
class CallTimes:
    """Times of repeated calls of ``explorer.quantize`` from a program, with allocations and the host's work.

    ``checked`` calls wait for the GPU; ``unchecked`` ones (``check=False``) do not.
    """

    checked: TimeSpread
    unchecked: TimeSpread


@dataclass(frozen=True)
class QuantizeTiming:
    """One kernel run on one GPU.

    ``operation``: "quantize" or "dequantize". ``registers`` and ``occupancy`` describe the last of
    ``kernels``. ``share``: bytes per second over a copy's. Seconds of torch's cast and of torch.compile are
    medians of the same run, None if the scheme has no such baseline. ``call`` and ``small_call`` time calls
    from Python for this shape and for ``SMALL``; None in older recordings.
    """

    scheme: str
    operation: str
    dtype: str
    shape: tuple[int, int]
    kernels: tuple[str, ...]
    registers: int
    occupancy: float
    time: TimeSpread
    bytes_moved: int
    gigabytes_per_s: float
    copy_gigabytes_per_s: float
    share: float
    torch_cast_s: float | None
    torch_compile_s: float | None
    call: CallTimes | None = None
    small_call: CallTimes | None = None

    @property
    def reads_twice(self) -> bool:
        """True if ``bytes_moved`` counts the matrix twice: its range is found before its codes are made."""
        return any(kernel.startswith(TWO_READS) for kernel in self.kernels)

    @property
    def least_share(self) -> float:
        """``share`` computed from the least bytes: a second read of the matrix is not counted."""
        second = math.prod(self.shape) * getattr(torch, self.dtype).itemsize if self.reads_twice else 0
        return self.share * (self.bytes_moved - second) / self.bytes_moved

    @property
    def speedup(self) -> float | None:
        """The baseline's time over the kernel's; None without a baseline."""
        baseline = self.torch_cast_s or self.torch_compile_s
        return baseline / self.time.median_s if baseline else None

    @property
    def call_share(self) -> float | None:
        """Bytes per second of the whole call over a copy's (``share``: of the kernels alone); None if no call
        was timed."""
        return None if self.call is None else self.share * self.time.median_s / self.call.checked.median_s


def recorded_quantize() -> Recording[QuantizeTiming]:
    """Load the recording ``assets/measurements/quantize.json``; empty if there is none."""
    return recorded(NAME, QuantizeTiming)


def quantize_recordings() -> list[Recording[QuantizeTiming]]:
    """Load the recordings of all machines, the newest first."""
    every = [recorded_quantize(), *recorded_by_machine(NAME, QuantizeTiming).values()]
    return sorted(filter(None, every), key=lambda one: one.machine.date, reverse=True)


def recorded_kernel(scheme: str) -> tuple[QuantizeTiming | None, str]:
    """Find the timing of a scheme's quantization of a float32 matrix in the newest recording; None if it has
    none. The recording's source comes second."""
    recording = next(iter(quantize_recordings()), recorded_quantize())
    text = Scheme.parse(scheme).text
    kernels = (t for t in recording.rows if (t.operation, t.dtype) == ("quantize", "float32"))
    timing = next((t for t in kernels if Scheme.parse(t.scheme).text == text), None)
    return timing, recording.source
