"""Recorded steps of models' shapes: ``assets/measurements/steps.json``."""

from __future__ import annotations

from dataclasses import dataclass

from explorer.recordings.files import Recording, recorded
from explorer.recordings.times import TimeSpread
from explorer.schemes.scheme import label_of_text

NAME = "steps"
BASELINE = "bf16"
"""Baseline that the other schemes of a step are compared with."""
TORCHAO = "torchao_int4"
"""Second baseline: torchao's INT4 in groups of 128 (tile_packed_to_4d, torch's tinygemm)."""


@dataclass(frozen=True)
class StepParts:
    """Seconds of one step by kind of kernel: products with weights, attention over the cache, other kernels,
    and gaps in which none runs.

    Measured by torch's profiler in a separate replay. If kernels overlap, each counts from the end of the one
    before.
    """

    linear_s: float
    attention_s: float
    rest_s: float
    gaps_s: float


@dataclass(frozen=True)
class StepTiming:
    """Times of a model with random weights at one batch size.

    ``scheme`` of its linear layers ("bf16": not quantized), ``inputs``: the scheme of their inputs ("": not
    quantized), ``head``: the scheme of the output head ("": bfloat16).

    ``step``: one token for each of ``batch`` texts after ``context`` tokens, by consecutive replays of a CUDA
    graph; ``parts``: its seconds by kind of kernel. ``prefill``: ``context`` tokens of each text, not
    captured. ``weight_bytes``: all parameters. ``read_bytes``: the least that a step reads of weights and
    cache; ``floor_s``: the time for it at a copy's speed. ``baseline_s`` and ``baseline_prefill_s``: the
    bfloat16 model in the same run.
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
        """Label of the linear layers' scheme and of their inputs' scheme."""
        if self.scheme == TORCHAO:
            return "torchao, INT4 group 128"
        weights = label_of_text(self.scheme)
        return f"{weights} × {label_of_text(self.inputs)}" if self.inputs else weights

    @property
    def speedup(self) -> float:
        """Time of the bfloat16 model's step over this one's."""
        return self.baseline_s / self.step.median_s

    @property
    def smaller(self) -> float:
        """Weight bytes of the bfloat16 model over this model's."""
        return self.baseline_weight_bytes / self.weight_bytes

    @property
    def tokens_per_second(self) -> float:
        """Tokens per second of all texts together."""
        return self.batch / self.step.median_s


def recorded_steps() -> Recording[StepTiming]:
    """Load the recording ``assets/measurements/steps.json``; empty if there is none."""
    return recorded(NAME, StepTiming)
