"""The figures that docs/ quotes in sentences, each computed from a recording (or by arithmetic that is
stated)."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache

import torch

from explorer.analysis.calibration import StaticVsDynamic, static_and_dynamic
from explorer.analysis.memory import MODELS
from explorer.cpu.sentences import BITNET
from explorer.methods import label_of
from explorer.models.evaluate import EmbeddingDrift, sentences
from explorer.products.advice import at_shape, fastest
from explorer.products.shapes import DECODE, LARGE, SQUARE
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.schemes import SCHEMES
from explorer.schemes.scheme import label_of_text
from explorer.training.digits import FLOAT, LONGER, Underflow
from lab.embeddings import METHODS_COMPARED, EmbeddingRun
from lab.intervals import interval
from lab.tables import by_embedding_run, drifts_of, mean_accuracy
from lab.training import TrainingResult

EIGHT_BIT_WEIGHTS = ("w8a16", "int8")
FOUR_BIT_WEIGHTS = ("w4a16_group128", "w_nvfp4", "w_mxfp4", "w4a8_int")
EIGHT_BIT_PRODUCTS = ("fp8_e4m3_tensor", "fp8_e4m3_row", "int8")
WIDENED = ("w_mxfp4", "w_nvfp4", "mxfp4", "nvfp4", "mxfp6", "mxfp8", "fp6_e2m3", "fp6_e3m2")
"""Products of formats without native tensor cores on Hopper."""
FOLDED = ("w4a8_int", "w4a8_fp8")
"""Products with 4-bit weights whose group scales can be folded into bytes."""


@dataclass(frozen=True)
class Range:
    """The least and the most of some numbers."""

    low: float
    high: float

    @classmethod
    def of(cls, values: Sequence[float]) -> Range | None:
        """None for no values."""
        return cls(min(values), max(values)) if values else None


def sentence_count() -> int:
    """Sentences whose embeddings are compared."""
    return len(sentences())


def pair_count() -> int:
    """Similarities between two of the sentences."""
    return sentence_count() * (sentence_count() - 1) // 2


def gigabytes(model: str, scheme: str) -> float:
    """10⁹ bytes of a model's weights if all are stored by a scheme, scales included."""
    bits = SCHEMES[scheme].bits_per_element((4096, 4096)).total
    return MODELS[model].parameters * bits / 8e9


def decode_time_ratio(timings: Sequence[GemmTiming], gemms: Sequence[str]) -> Range | None:
    """Time for one token at 8192 × 8192 relative to torch's BF16, quantizing X included."""
    return _ratio_to_bf16(timings, gemms, DECODE)


def prefill_speedup(timings: Sequence[GemmTiming], gemms: Sequence[str]) -> Range | None:
    """Speed for 4096 tokens at 4096 × 4096 relative to torch's BF16, with X quantized beforehand."""
    ratio = _ratio_to_bf16(timings, gemms, SQUARE, with_quantizing=False)
    return None if ratio is None else Range(1 / ratio.high, 1 / ratio.low)


def _ratio_to_bf16(
    timings: Sequence[GemmTiming], gemms: Sequence[str], shape: Shape, with_quantizing: bool = True
) -> Range | None:
    here = {t.gemm: t for t in fastest(at_shape(timings, shape))}
    base = here["bf16"].baseline_graph if "bf16" in here else None
    if base is None:
        return None
    chosen = [here[name] for name in gemms if name in here]
    seconds = [t.total_seconds if with_quantizing else t.seconds for t in chosen]
    return Range.of([s / base.median_s for s in seconds])


BITNET_TIMES = f"{BITNET[0]} to {BITNET[1]} times"
"""bitnet.cpp's claim, not a measurement of ours."""


def times_in_words(factor: float | None) -> str:
    """ "4.5 times", or that it was not recorded."""
    return NOT_RECORDED if factor is None else f"{factor:.1f} times"


def torch_bf16_at_decode(timings: Sequence[GemmTiming]) -> tuple[float, float] | None:
    """Seconds of torch's BF16 for one token at 8192 × 8192, by graph and flushed, beside our fastest."""
    ours = [t for t in at_shape(timings, DECODE) if t.gemm == "bf16"]
    fastest = min(ours, key=lambda t: t.seconds, default=None)
    if fastest and fastest.baseline_graph and fastest.baseline_flush:
        return fastest.baseline_graph.median_s, fastest.baseline_flush.median_s
    return None


def best_methods(drifts: Sequence[EmbeddingDrift], scheme: str) -> list[str]:
    """The labels of the methods compared, the highest cosine first: the mean over samples of calibration
    texts."""
    by_run = by_embedding_run(drifts)
    cosines = {
        method: [drift.cosine for drift in drifts_of(by_run, scheme, method)] for method in METHODS_COMPARED
    }
    recorded = {method: sum(of) / len(of) for method, of in cosines.items() if of}
    return [label_of(method) for method in sorted(recorded, key=lambda method: -recorded[method])]


def best_in_words(drifts: Sequence[EmbeddingDrift], scheme: str) -> str:
    """Name the methods with the highest mean cosine under ``scheme``, and say whether the first two tie: the
    paired difference of their cosines with its 95 % interval over the samples. "" for fewer than three
    methods."""
    by_run = by_embedding_run(drifts)
    cosines = {label_of(m): [d.cosine for d in drifts_of(by_run, scheme, m)] for m in METHODS_COMPARED}
    best = best_methods(drifts, scheme)[:3]
    if len(best) < 3:
        return ""
    first, second, third = (cosines[label] for label in best)
    label, shown = label_of_text(scheme), [f"{sum(of) / len(of):.3f}" for of in (first, second)]
    if len(first) != len(second) or len(first) < 2:
        return f"With {label}, {best[0]} has the highest cosine, then {best[1]} and {best[2]}."
    mean, half = interval([a - b for a, b in zip(first, second, strict=True)])
    apart = f"the difference is {mean:.4f} ± {half:.4f}"
    if mean <= half or shown[0] == shown[1]:
        tie = "are not told apart" if mean <= half else "tie to three digits"
        return (
            f"With {label}, {best[0]} and {best[1]} have the highest cosine and {tie} ({shown[0]} and "
            f"{shown[1]}; {apart}); then comes {best[2]} ({sum(third) / len(third):.3f})."
        )
    return (
        f"With {label}, {best[0]} has the highest cosine ({shown[0]}), then {best[1]} ({shown[1]}; {apart}) "
        f"and {best[2]} ({sum(third) / len(third):.3f})."
    )


def cosine(drifts: Sequence[EmbeddingDrift], scheme: str, method: str = "rtn", activations: str = "") -> str:
    """A run's mean cosine to four digits, or a dash."""
    drift = by_embedding_run(drifts).get(EmbeddingRun(scheme, method, activations))
    return "–" if drift is None else f"{drift.cosine:.4f}"


@cache
def static_and_dynamic_of_normal() -> StaticVsDynamic:
    """INT4 on 512 rows of 256 seeded numbers from N(0, 1), half of them held out: by arithmetic."""
    x = torch.randn(512, 256, generator=torch.Generator().manual_seed(0))
    return static_and_dynamic(x, SCHEMES["int4_row"])


def float_accuracies(results: Sequence[TrainingResult]) -> tuple[float, float] | None:
    """Mean accuracy in float32, and trained on for as many epochs as training through the rounding takes."""
    first, longer = (mean_accuracy(results, "32", stage) for stage in (FLOAT, LONGER))
    return None if first is None or longer is None else (first, longer)


def seed_count(results: Sequence[TrainingResult]) -> int:
    """Networks of each kind."""
    return len({r.seed for r in results})


@dataclass(frozen=True)
class GradientFacts:
    """Share of nonzero gradients that float16 flushes to zero without a loss scale; the exponent of the least
    scale that flushes least without overflow; that of the first scale with overflow (None: none was seen);
    what bfloat16 flushes."""

    lost: float
    best_exponent: int
    best_lost: float
    overflow_exponent: int | None
    lost_bf16: float


def gradient_facts(rows: Sequence[Underflow]) -> GradientFacts | None:
    """None where nothing was recorded."""
    safe = [r for r in rows if r.overflowed == 0]
    if not rows or not safe:
        return None
    best = min(safe, key=lambda r: (r.lost, r.loss_scale))
    over = next((r for r in rows if r.overflowed > 0), None)
    return GradientFacts(
        rows[0].lost, _exponent(best), best.lost, None if over is None else _exponent(over), rows[0].lost_bf16
    )


def _exponent(row: Underflow) -> int:
    return round(math.log2(row.loss_scale))


def folding_in_words(timings: Sequence[GemmTiming]) -> str:
    """State the cost of folding group scales into bytes in SQNR and its gain in speed at 8192³: a sentence
    for each product; "" if it was not timed."""
    said = []
    for name in FOLDED:
        by_kernel = {t.variant: t for t in at_shape(timings, LARGE) if t.gemm == name}
        plain, folded = (by_kernel.get(f"widen{how} + wgmma") for how in ("", ", scaled weights"))
        if plain and folded and folded.baseline_graph:
            ratio, before = (
                t.baseline_graph.median_s / t.seconds for t in (folded, plain) if t.baseline_graph
            )
            said.append(
                f"{folded.label} at 8192³: {ratio:.2f} times the speed of {folded.baseline} ({before:.2f} "
                f"with a scale to each group's sum), {folded.sqnr_db:.2f} dB ({plain.sqnr_db:.2f})."
            )
    return " ".join(said)
