"""Recorded steps of models' shapes: ``assets/measurements/steps.json``."""

from __future__ import annotations

from dataclasses import dataclass

from explorer.recordings.files import Recording, recorded
from explorer.recordings.times import TimeSpread
from explorer.schemes.scheme import label_of_text

NAME = "steps"
BASELINE = "bf16"
"""What the other schemes of a step are compared with."""
TORCHAO = "torchao_int4"
"""torchao's INT4 in groups of 128 (tile_packed_to_4d, torch's tinygemm), the second thing to compare with."""


@dataclass(frozen=True)
class StepParts:
    """Seconds of one step by what its kernels do: products with weights, attention over the cache, the rest,
    and gaps in which no kernel runs. By torch's profiler, in a replay of its own; of kernels that overlap,
    each counts from the end of the one before."""

    linear_s: float
    attention_s: float
    rest_s: float
    gaps_s: float


@dataclass(frozen=True)
class StepTiming:
    """A model of random weights at one batch size. ``scheme`` of its linear layers ("bf16": none), ``inputs``
    of theirs ("": not quantized), ``head`` of the output head ("": bfloat16).

    ``step``: one token for each of ``batch`` texts after ``context`` tokens, by replays of a CUDA graph in a
    row; ``parts`` of it. ``prefill``: a text of ``context`` tokens for each, not captured. ``weight_bytes``:
    all parameters; ``read_bytes``: what a step reads of weights and cache at least, ``floor_s`` at the speed
    of a copy's bytes. ``baseline_s``: the step of the bfloat16 model in the same run;
    ``baseline_prefill_s`` likewise.
    """

    shape: str
    scheme: str
    inputs: str
    head: str
    batch: int
    context: int
    room: int
    step: TimeSpread
    parts: StepParts | None
    prefill: TimeSpread | None
    weight_bytes: int
    read_bytes: int
    floor_s: float
    baseline_s: float
    baseline_prefill_s: float | None
    baseline_weight_bytes: int

    @property
    def label(self) -> str:
        """Of the linear layers' scheme, and of their inputs'."""
        if self.scheme == TORCHAO:
            return "torchao, INT4 group 128"
        weights = label_of_text(self.scheme)
        return f"{weights} × {label_of_text(self.inputs)}" if self.inputs else weights

    @property
    def speedup(self) -> float:
        """Times as fast as bfloat16."""
        return self.baseline_s / self.step.median_s

    @property
    def smaller(self) -> float:
        """Times fewer bytes of weights than bfloat16."""
        return self.baseline_weight_bytes / self.weight_bytes

    @property
    def tokens_per_second(self) -> float:
        """Of all texts together."""
        return self.batch / self.step.median_s


def recorded_steps() -> Recording[StepTiming]:
    """The recording in ``assets/measurements/steps.json``; empty if it was never recorded."""
    return recorded(NAME, StepTiming)
