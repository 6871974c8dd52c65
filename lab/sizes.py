"""Time and memory for each element of small and large tensors, on the CPU.

CPU time of one thread, so that it does not depend on what else the machine does, and the largest resident
memory, as Linux counts it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch

from explorer.analysis.report import compare
from explorer.bench.commands import Line
from explorer.core.quantize import quantize
from explorer.recordings.files import Recording, recorded
from explorer.schemes import Scheme

NAME = "sizes"
COLUMNS = 4096
SIZES = tuple((elements // COLUMNS, COLUMNS) for elements in (1 << 20, 1 << 24, 1 << 28, 1 << 30))
SCHEMES_MEASURED = (
    "int8_row",
    "int8_column",
    "int4_group128_asym",
    "nvfp4",
    "q4_0",
    "ternary_twn",
    "int4~tensor~symmetric~float32~percentile",
)
"""One of each kind of block, scale and range that is not searched for."""


@dataclass(frozen=True)
class SizeTiming:
    """One scheme on a float32 matrix of ``shape``: CPU nanoseconds an element of quantizing, restoring and
    reporting the error; ``beside_bytes``: the most memory that quantizing and reporting took beside the
    matrix, the codes and the scales."""

    scheme: str
    shape: tuple[int, int]
    quantize_ns: float
    dequantize_ns: float
    compare_ns: float
    beside_bytes: int


def recorded_sizes() -> Recording[SizeTiming]:
    """The recording in ``assets/measurements/sizes.json``; empty if it was never recorded."""
    return recorded(NAME, SizeTiming)


def time_sizes(schemes: Sequence[Scheme], shapes: Sequence[tuple[int, int]]) -> Iterator[SizeTiming]:
    """Every scheme on a random matrix of each shape, by one thread, after a small matrix to warm up."""
    _reset_peak()
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        for shape in shapes:
            x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
            for scheme in schemes:
                small = x[:256]
                compare(small, quantize(small, scheme))
                yield _timing(x, scheme)
    finally:
        torch.set_num_threads(threads)


def _timing(x: torch.Tensor, scheme: Scheme) -> SizeTiming:
    before, started = _reset_peak(), time.process_time()
    q = quantize(x, scheme)
    quantized = (time.process_time() - started) / x.numel()
    grids = (q.scales.stored, q.scales.zero_points, q.scales.offsets)
    results = q.packed.nbytes + sum(grid.nbytes for grid in grids if grid is not None)
    beside = _peak() - before - results
    kept = _reset_peak()
    compared = _seconds(lambda: compare(x, q)) / x.numel()
    beside = max(beside, _peak() - kept, 0)
    restored = _seconds(q.dequantize) / x.numel()
    return SizeTiming(
        str(scheme), (x.shape[0], x.shape[1]), 1e9 * quantized, 1e9 * restored, 1e9 * compared, beside
    )


def _seconds(work: Callable[[], object]) -> float:
    """CPU seconds of this process."""
    started = time.process_time()
    work()
    return time.process_time() - started


def _reset_peak() -> int:
    """Count the largest resident size anew; return the present one. ``ValueError`` without Linux."""
    reset = Path("/proc/self/clear_refs")
    if not reset.exists():
        raise ValueError("the memory of one call is counted on Linux alone")
    reset.write_text("5", encoding="ascii")
    return _peak()


def _peak() -> int:
    """Bytes of the largest resident size since ``_reset_peak``."""
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    return next(1024 * int(line.split()[1]) for line in status.splitlines() if line.startswith("VmHWM"))


def size_line(timing: SizeTiming) -> Line:
    """One scheme at one size."""
    return {
        "scheme": timing.scheme,
        "elements": timing.shape[0] * timing.shape[1],
        "quantize ns": round(timing.quantize_ns, 1),
        "dequantize ns": round(timing.dequantize_ns, 1),
        "compare ns": round(timing.compare_ns, 1),
        "beside MB": round(timing.beside_bytes / 1e6),
    }
