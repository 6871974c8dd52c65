"""Timing of the CPU reference: quantize, dequantize and report, for each scheme."""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch

from explorer.analysis.report import compare
from explorer.core.quantize import quantize
from explorer.recordings.machine import peak_bytes
from explorer.schemes import Scheme


@dataclass(frozen=True)
class CpuTiming:
    """Median seconds of the repeats, measured on this machine. ``peak_ratio``: the process's peak memory
    above its start, in multiples of the float32 tensor (None if the system does not report it)."""

    scheme: str
    shape: tuple[int, int]
    quantize_s: float
    dequantize_s: float
    report_s: float
    total_s: float
    threads: int
    peak_ratio: float | None


def time_schemes(schemes: Iterable[Scheme], shape: tuple[int, int], repeats: int = 3) -> Iterator[CpuTiming]:
    """Time each scheme on the same N(0, 1) float32 matrix of ``shape``."""
    x = torch.randn(shape, generator=torch.Generator().manual_seed(0))
    baseline = peak_bytes()
    for scheme in schemes:
        runs = [_run(x, scheme) for _ in range(repeats)]
        peak = peak_bytes()
        quantized, dequantized, reported, total = (
            statistics.median(column) for column in zip(*runs, strict=True)
        )
        ratio = None if peak is None or baseline is None else (peak - baseline) / (x.numel() * 4)
        yield CpuTiming(
            scheme.name, shape, quantized, dequantized, reported, total, torch.get_num_threads(), ratio
        )


def _run(x: torch.Tensor, scheme: Scheme) -> tuple[float, float, float, float]:
    start = time.perf_counter()
    q = quantize(x, scheme)
    quantized = time.perf_counter()
    restored = q.dequantize()
    dequantized = time.perf_counter()
    compare(x, q, restored)
    end = time.perf_counter()
    return quantized - start, dequantized - quantized, end - dequantized, end - start
