"""Explanations of the times of matrix products, for a GPU or for a CPU."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from explorer.recordings.gemm import GemmTiming


@dataclass(frozen=True)
class MachineWords:
    """Texts that differ by machine.

    quantizing  the time at which X is quantized
    overtakes   meaning of × on the curves over M
    bounds      bounds of a product
    times       timing of kernels and baselines
    limits      computation of a product's limit, and the meaning of native and emulated
    """

    quantizing: str
    overtakes: str
    bounds: str
    times: str
    limits: str


ON_GPU = MachineWords(
    quantizing="X is quantized beforehand",
    overtakes="× marks where torch's BF16 becomes faster",
    bounds="memory (the slope) or the tensor cores (the ceilings)",
    times="Kernel and baseline get the same random data and are interleaved. µs: CUDA-graph replay over "
    "buffers that together exceed twice the L2 cache, median; flushed: one launch at a time, L2 overwritten "
    "before. Quantizing X is timed apart, and added where an error stands beside a time.",
    limits="A product's limit is computed, not measured: the bytes that it moves over the measured "
    "speed of a copy, or its operations over the measured rate of the tensor cores, whichever takes longer. "
    "Native: the tensor cores take both operands as they are; emulated: they are widened first.",
)
ON_CPU = MachineWords(
    quantizing="X, where it is quantized, is so in the call",
    overtakes="× marks where torch's float32 becomes faster",
    bounds="memory (the slope) or arithmetic (the ceilings)",
    times="The kernels are those of other packages. Kernel and torch's float32 get the same random data, in "
    "turns: single calls, each after a copy that overwrites the caches, with the number of threads that was "
    "the fastest of those tried; µs: the median. X is quantized in the call: its columns are empty.",
    limits="A product's limit is computed, not measured: the bytes that it moves over the measured "
    "speed of a copy, or its operations over the measured rate of torch's own products in float32, "
    "bfloat16 or INT8, whichever takes longer. Native: W is multiplied as it is held; "
    "emulated: its codes are widened first.",
)


def machine_words(timings: Iterable[GemmTiming]) -> MachineWords:
    """Return the texts for ``timings``; a GPU's if there are none."""
    return ON_CPU if any(timing.on_cpu for timing in timings) else ON_GPU
