"""The tables of docs/running.md: steps of models' shapes on a GPU, and the products of their layers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from explorer.bench.plan import MODEL_TOKENS
from explorer.bench.steps import SHAPES, products_of
from explorer.products.gemms import GEMMS
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.steps import BASELINE, StepTiming
from explorer.schemes.scheme import label_of_text
from explorer.words import bytes_, number
from lab.tables import markdown

TITLES = [
    "shape", "linear layers", "texts", "step, ms", "× BF16", "tokens/s", "products", "attention", "rest",
    "gaps", "read at the copy's speed", "prefill, ms", "weights",
]  # fmt: skip
COMPARED = ("w4a16_group128", "w_nvfp4", "w8a16")
"""Products whose times are held against torch's in bfloat16."""
EXPECTED = ("int4_group128", "int8_row")
"""Schemes that stand for 4 and 8 bits in the docs' expectation of other models."""


def head_of(steps: Sequence[StepTiming]) -> str:
    """The storage of the head in the quantized models."""
    heads = dict.fromkeys(step.head for step in steps if step.scheme != BASELINE)
    return " or ".join(label_of_text(head) if head else "bfloat16" for head in heads) or f"({NOT_RECORDED})"


def steps_command(steps: Sequence[StepTiming]) -> str:
    """The command that times these rows; where shapes have other schemes or batches than the first, run with
    those of each."""
    first = [step for step in steps if step.shape == steps[0].shape]
    words = ["explorer bench steps"]
    for option, values in (
        ("--shapes", [step.shape for step in steps]),
        ("--schemes", [f"{s.scheme}+{s.inputs}" if s.inputs else s.scheme for s in first]),
        ("--batches", [str(step.batch) for step in first]),
        ("--head", [step.head for step in first if step.head]),
    ):
        known = [value for value in dict.fromkeys(values) if value != BASELINE]
        words += [option, ",".join(known)] if known else []
    return " ".join([*words, "--record"])


def head_costs(steps: Sequence[StepTiming]) -> str:
    """The cost of a head in bfloat16 for models with a head of a byte a weight, modelled from its bytes."""
    costs = []
    for shape in dict.fromkeys(step.shape for step in steps):
        of_shape = [step for step in steps if step.shape == shape and step.head]
        if not of_shape:
            continue
        sizes, first = SHAPES[shape], of_shape[0]
        weights = sizes["vocab_size"] * sizes["hidden_size"]
        stored = -weights if sizes.get("tie_word_embeddings") else weights
        seconds = weights * first.floor_s / first.read_bytes
        more = "more" if stored > 0 else "less, as it is the embedding"
        costs.append(f"for {shape} {bytes_(abs(stored))} {more}, and {seconds * 1e3:.2f} ms more a step")
    return f"That is {'; '.join(costs)} (modelled, at the copy's speed)." if costs else f"({NOT_RECORDED})"


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
    """By shape, of BF16 and two schemes with one token: the step in units of what its bytes take at the
    copy's speed, how many times as fast as BF16 it is, and how many times smaller the weights."""
    rows = []
    for step in steps:
        if step.batch == 1 and step.scheme in (BASELINE, *EXPECTED) and not step.inputs:
            numbers = (step.step.median_s / step.floor_s, step.speedup, step.smaller)
            rows.append([step.shape, step.label, *(f"{value:.2f}" for value in numbers)])
    titles = ["shape", "linear layers", "step, × its bytes at the copy's speed", "× BF16", "× smaller"]
    return markdown(titles, rows) if rows else f"({NOT_RECORDED})"


def _parts(step: StepTiming) -> list[str]:
    parts = step.parts
    if parts is None:
        return ["–"] * 4
    seconds = (parts.linear_s, parts.attention_s, parts.rest_s, parts.gaps_s)
    return [f"{part * 1e3:.2f}" for part in seconds]


def products_table(timings: Sequence[GemmTiming]) -> str:
    """Speed relative to torch's bfloat16 products at the shapes of models' layers, by tokens."""
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
