"""Timing of the analysis in the Tensor place: quantize, dequantize, error sums, histograms, map,
code usage."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import partial

import torch

from explorer.analysis.tensor import analyse
from explorer.bench.timing import wall_seconds
from explorer.recordings.files import Recording, recorded
from explorer.schemes import Scheme

NAME = "analysis"


@dataclass(frozen=True)
class AnalysisTiming:
    """Seconds on the clock, from the call until the answer is on the host: median and extremes of the
    repeats."""

    scheme: str
    shape: tuple[int, int]
    median_s: float
    low_s: float
    high_s: float


def recorded_analyses() -> Recording[AnalysisTiming]:
    """The recording in ``assets/measurements/analysis.json``; empty if it was never recorded."""
    return recorded(NAME, AnalysisTiming)


def time_analyses(
    schemes: Iterable[Scheme], shape: tuple[int, int], device: torch.device, repeats: int = 5
) -> Iterator[AnalysisTiming]:
    """Analyse the same float32 N(0, 1) matrix of ``shape`` under each scheme, after one run to warm up."""
    x = torch.randn(shape, generator=torch.Generator(device).manual_seed(0), device=device)
    for scheme in schemes:
        seconds = wall_seconds(partial(analyse, x, scheme), device, repeats)
        yield AnalysisTiming(scheme.name, shape, seconds.median_s, seconds.low_s, seconds.high_s)
