"""The tables of docs/running.md: steps of models' shapes on a GPU, and the products of their layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explorer.bench.plan import MODEL_TOKENS
from explorer.bench.steps import SHAPES, products_of
from explorer.products.table import GEMMS
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.steps import BASELINE, StepTiming
from explorer.words import bytes_, number
from lab.tables import markdown

TITLES = [
    "shape", "linear layers", "texts", "step, ms", "× BF16", "tokens/s", "products", "attention", "rest",
    "gaps", "read at the copy's speed", "prefill, ms", "weights",
]  # fmt: skip
COMPARED = ("w4a16_group128", "w_nvfp4", "w8a16")
"""Products whose times are held against torch's in bfloat16."""
WIDTHS = {"int4_group128": 4, "int8_row": 8}
"""Schemes that stand for a width in the docs' expectation of other models."""


def steps_table(steps: Sequence[StepTiming]) -> str:
    """A step's milliseconds, their parts, and the bytes of all weights."""
    rows = [
        [
            step.shape,
            step.label,
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


def expectation(steps: Sequence[StepTiming]) -> str:
    """How a step with one token compares with its bytes at the copy's speed, and how much smaller weights
    are: a line for each shape."""
    lines = []
    for shape in SHAPES:
        one = [step for step in steps if step.shape == shape and step.batch == 1 and step.scheme in WIDTHS]
        if not one:
            continue
        every = "; ".join(
            f"weights of {WIDTHS[step.scheme]} bits {step.step.median_s / step.floor_s:.1f}, "
            f"{step.smaller:.1f} times smaller"
            for step in one
        )
        lines.append(f"* {shape}: {every}")
    return "\n".join(lines) or f"({NOT_RECORDED})"


def _parts(step: StepTiming) -> list[str]:
    parts = step.parts
    if parts is None:
        return ["–"] * 4
    seconds = (parts.linear_s, parts.attention_s, parts.rest_s, parts.gaps_s)
    return [f"{part * 1e3:.2f}" for part in seconds]


def products_table(timings: Sequence[GemmTiming]) -> str:
    """How many times as fast as torch's bfloat16 products are at the shapes of models' layers, by tokens."""
    ours: dict[tuple[str, Shape], float] = {}
    plain: dict[Shape, float] = {}
    for timing in timings:
        key = (timing.gemm, timing.shape)
        ours[key] = min(timing.seconds, ours.get(key, timing.seconds))
        if timing.gemm == BASELINE and timing.baseline_graph:
            plain[timing.shape] = timing.baseline_graph.median_s
    rows = []
    for model in SHAPES:
        for what, (n, k) in products_of(model).items():
            shapes = [(m, n, k) for m in MODEL_TOKENS]
            if not all(shape in plain for shape in shapes):
                continue
            first = f"{plain[shapes[0]] * 1e6:.1f}"
            ratios = (_ratios([ours.get((name, s), 0.0) for s in shapes], shapes, plain) for name in COMPARED)
            rows.append([model, what, f"{n:,} × {k:,}", first, *ratios])
    titles = ["shape", "product", "N × K", "BF16, µs at 1"]
    return (
        markdown([*titles, *(GEMMS[name].label for name in COMPARED)], rows) if rows else f"({NOT_RECORDED})"
    )


def _ratios(seconds: Sequence[float], shapes: Sequence[Shape], plain: Mapping[Shape, float]) -> str:
    return " / ".join(
        f"{plain[shape] / its:.2f}" if its else "–" for its, shape in zip(seconds, shapes, strict=True)
    )
