"""The table of docs/running.md: steps of models' shapes on a GPU."""

from __future__ import annotations

from collections.abc import Sequence

from explorer.bench.steps import BASELINE, TORCHAO
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.steps import StepTiming
from explorer.schemes.scheme import label_of_text
from explorer.words import bytes_, number
from lab.tables import markdown

TITLES = [
    "shape", "linear layers", "texts", "step, ms", "× BF16", "tokens/s", "products", "attention", "rest",
    "gaps", "read at the copy's speed", "prefill, ms", "weights",
]  # fmt: skip
LABELS = {BASELINE: "BF16", TORCHAO: "torchao, INT4 group 128"}


def steps_table(steps: Sequence[StepTiming]) -> str:
    """A step's milliseconds, their parts, and the bytes of all weights."""
    rows = [
        [
            step.shape,
            LABELS.get(step.scheme) or label_of_text(step.scheme),
            str(step.batch),
            f"{step.step.median_s * 1e3:.2f}",
            f"{step.speedup:.2f}",
            number(step.tokens_per_second),
            *_parts(step),
            f"{step.floor_s * 1e3:.2f}",
            f"{step.prefill.median_s * 1e3:.0f}" if step.prefill else "–",
            bytes_(step.weight_bytes),
        ]
        for step in steps
    ]
    return markdown(TITLES, rows) if rows else f"({NOT_RECORDED})"


def _parts(step: StepTiming) -> list[str]:
    parts = step.parts
    if parts is None:
        return ["–"] * 4
    seconds = (parts.linear_s, parts.attention_s, parts.rest_s, parts.gaps_s)
    return [f"{part * 1e3:.2f}" for part in seconds]
