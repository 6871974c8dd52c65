"""Assessment of an error in one or two sentences: uses for which it is small enough.

The effect of an SQNR on a model was measured on one small encoder, all-MiniLM-L6-v2, with the weights of all
36 linear layers quantized: cosines of its sentence embeddings with the original's (`docs/which-format.md`),
beside the SQNR of those weights, signal and noise summed over the layers (`compare`):

    BF16                     55.6 dB  1.0000
    INT8 per row             40.1 dB  0.9996
    FP8 E4M3 per row         31.7 dB  0.9987      MXFP8 E4M3    31.5 dB  0.9985
    MXFP6 E2M3               30.9 dB  0.9979
    NF4 block 64             20.6 dB  0.974       NVFP4         20.5 dB  0.978
    INT4 group 128, asym.    19.4 dB  0.962       MXFP4         18.6 dB  0.966
    INT4 group 128           17.9 dB  0.942
    INT3 group 128, asym.    12.8 dB  0.855
    INT2 group 64, asym.      6.5 dB  0.47        binary         4.2 dB  0.27

Other models have the same order, but other cosines. An SQNR orders the schemes of one layer; it does not show
which layers of a model are sensitive. The sentences are about weights: there is no such table for
activations.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from explorer import words
from explorer.analysis.report import Report
from explorer.analysis.spread import Spread
from explorer.analysis.tensor import Analysis
from explorer.analysis.why import why
from explorer.words import percent

DB_PER_BIT = 20 * math.log10(2)
"""Gain of one more bit on a uniform grid: half the step, a quarter of the squared error."""
SAME_BITS, SAME_DB = 0.005, 0.05
"""Differences below which nothing is reported: they vanish in the displayed digits."""
MOST = 0.5
"""Share of a tensor's energy above which its tails determine the SQNR."""
MOSTLY_ZERO = 0.75
"""Share of zeros above which the largest elements alone determine the SQNR."""


@dataclass(frozen=True)
class Band:
    """Range of SQNRs from ``least`` dB on: a description of the error, and the ``cosine`` of embeddings that
    was measured with such weights (the mean of 240 sentences, `assets/measurements/embeddings.json`)."""

    least: float
    words: str
    cosine: str
    more: str = ""


BANDS = (
    Band(50.0, "an error as small as a 16-bit float's", "1.0000"),
    Band(36.0, "a typical error for INT8", "0.9996"),
    Band(28.0, "a typical error for FP8 and 6-bit floats", "0.998 to 0.999"),
    Band(
        22.5,
        "an error between those of 4-bit weights and FP8",
        "0.94 to 0.98 (4 bits) or 0.998 to 0.999 (FP8)",
    ),
    Band(20.0, "a small error for 4-bit weights", "0.97 to 0.98"),
    Band(18.25, "a typical error for 4-bit weights", "0.96 to 0.97", " (0.98 with GPTQ)"),
    Band(16.0, "a large error for 4-bit weights", "0.94"),
    Band(9.0, "a typical error for 3-bit weights", "0.86", " (0.93 with GPTQ)"),
    Band(-math.inf, "a typical error for 2 bits and fewer", "0.27 to 0.47", "; only training helps"),
)
"""From `docs/which-format.md`: the first table, and the methods of its third section under the same formats;
"only training" is its fifth section. The limits lie between the rows of the table above."""


def band_of(report: Report) -> Band:
    """Return the band of a finite SQNR."""
    return next(band for band in BANDS if report.sqnr_db >= band.least)


def measured_elsewhere(cosine: str, more: str = "") -> str:
    """State the cosine that was measured in another model at about the same SQNR."""
    return (
        "For comparison: in the sentence encoder all-MiniLM-L6-v2, with all linear layers at about this "
        f"SQNR, embeddings have a cosine similarity of {cosine} to the original's{more}."
    )


def judged(a: Analysis, b: Analysis | None = None) -> tuple[str, str]:
    """Return the ``verdict`` on a tensor's quantization by A, or by A and B, and ``why``."""
    if sum(np.count_nonzero(part.counts) for part in vars(a.before).values()) == 1:
        return _constant(a, b), ""  # the extremes of any other tensor lie in different bins
    other = None if b is None else b.report
    share, energy = _tails(a.before, a.report)
    if energy <= MOST:
        return verdict(a.report, other), why(a, b)
    if other is not None:
        plain = _difference(a.report, other) if _finite(a.report, other) else _each(a.report, other)
    else:
        plain = f"{a.report.sqnr_db:.1f} dB at {_bits(a.report)} bits."
    few = (
        f"{percent(share)} of the elements, in the tails, hold {percent(energy)} of the sum of squares: they "
        "determine the SQNR, which says little about all other elements."
    )
    return f"{plain} {few}", why(a, b)


def _tails(before: Spread, report: Report) -> tuple[float, float]:
    """Share of elements beyond the central range, and their share of the tensor's sum of squares."""
    beyond = sum(float(before.share(part).sum()) for part in (before.below, before.above))
    if not (beyond and report.relative_error and math.isfinite(report.relative_error)):
        return beyond, 0.0
    edges = before.middle.edges
    inside = float(before.share(before.middle) @ ((edges[1:] + edges[:-1]) / 2) ** 2)
    return beyond, 1 - inside * (report.relative_error / report.rmse) ** 2


def _constant(a: Analysis, b: Analysis | None) -> str:
    """Describe the dequantized value of a constant tensor: its SQNR has no meaning."""
    elements, edges = a.before.total, a.before.middle.edges
    value = "0" if edges[0] == -edges[-1] else "the same"
    start = "There is one element" if elements == 1 else f"All {words.count(elements)} elements are {value}"
    if b is None:
        return f"{start}: {_became(a.report)}."
    return f"{start}: by A {_became(a.report)}; by B {_became(b.report)}."


def _became(report: Report) -> str:
    bits = f"in {_bits(report)} bits"
    if report.max_error == 0:
        return f"restored exactly, {bits}"
    if math.isfinite(report.relative_error):
        return f"restored to within {words.number(100 * report.relative_error)} %, {bits}"
    return f"changed by {words.number(report.max_error)}, {bits}"


def verdict(a: Report, b: Report | None = None) -> str:
    """Assess the error of scheme A; with ``b``, compare it with the error of scheme B, and their sizes."""
    if b is None:
        lost = (
            f" However, {100 * a.zeroed:.3g} % of the elements became 0: the SQNR is that of the few largest."
        )
        return _alone(a) + (lost if a.zeroed >= MOSTLY_ZERO else "")
    if not _finite(a, b):
        return _each(a, b)
    first, second = band_of(a), band_of(b)
    if first is second:
        return f"{_difference(a, b)} Both have {first.words}. {measured_elsewhere(first.cosine, first.more)}"
    error, _, use = first.words.partition(" for ")
    of_a = (
        error if use and second.words.endswith(f" for {use}") else first.words
    )  # a use of both is named once
    return f"{_difference(a, b)} A has {of_a}, B {second.words}."


def _finite(a: Report, b: Report) -> bool:
    return math.isfinite(a.sqnr_db) and math.isfinite(b.sqnr_db)


def _alone(a: Report) -> str:
    if a.sqnr_db == math.inf:
        return f"Nothing is lost: every element is restored exactly, in {_bits(a)} bits."
    if math.isnan(a.sqnr_db):
        return f"Every element was 0, and the scheme changes that by up to {a.max_error:.3g}."
    band = band_of(a)
    start = f"{a.sqnr_db:.1f} dB at {_bits(a)} bits is {band.words}."
    return f"{start} {measured_elsewhere(band.cosine, band.more)}"


def _each(a: Report, b: Report) -> str:
    """Describe exact schemes, and an all-zero tensor that is changed."""
    if not a.sqnr_db == b.sqnr_db == math.inf:
        return f"A: {_alone(a)} B: {_alone(b)}"
    saved = a.bits.total - b.bits.total
    size = f"B saves {saved:.2f} bits" if saved > 0 else f"B needs {-saved:.2f} bits more"
    size = "they have the same size" if abs(saved) < SAME_BITS else size
    return f"Both restore every element exactly; {size}."


def _difference(a: Report, b: Report) -> str:
    """State the differences in SQNR and in bits per element."""
    gain, saved = b.sqnr_db - a.sqnr_db, a.bits.total - b.bits.total
    better, worse = ("B", "A") if gain > 0 else ("A", "B")
    if abs(saved) < SAME_BITS:
        if abs(gain) < SAME_DB:
            return "A and B have the same error at the same size."
        times = 10 ** (abs(gain) / 10)
        return (
            f"At the same size the SQNR of {better} is {abs(gain):.1f} dB higher: {worse}'s squared error is "
            f"{words.number(times, 3 if times < 1.1 else 2)} times as large."
        )
    if abs(gain) < SAME_DB:
        cheaper, other = ("B", "A") if saved > 0 else ("A", "B")
        return f"{cheaper} has the same error as {other} with {abs(saved):.2f} fewer bits per element."
    if (gain > 0) == (saved > 0):
        return (
            f"{better} is better than {worse} in both: {abs(gain):.1f} dB higher SQNR with {abs(saved):.2f} "
            "fewer bits per element."
        )
    worth = DB_PER_BIT * abs(saved)
    change = (
        f"B saves {saved:.2f} bits per element and loses"
        if saved > 0
        else f"B needs {-saved:.2f} more bits per element and gains"
    )
    bargain = "less" if abs(gain) < worth else "more"
    return (
        f"{change} {abs(gain):.1f} dB, {bargain} than the {worth:.1f} dB that this many bits usually make "
        "on a uniform grid."
    )


def _bits(report: Report) -> str:
    return f"{report.bits.total:.2f}"
