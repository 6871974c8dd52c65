"""Assessment of an error in one or two sentences: the uses for which it is small enough.

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

Other models have the same order, not the same amounts. An SQNR orders the schemes of one layer; it does not
say which layer of a model matters. For activations there is no such table: the sentences speak of weights.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np

from explorer import words
from explorer.analysis.report import Report
from explorer.analysis.spread import Spread
from explorer.analysis.tensor import Analysis
from explorer.analysis.why import percent, why

DB_PER_BIT = 20 * math.log10(2)
"""Gain of one more bit on a uniform grid: half the step, a quarter of the squared error."""
SAME_BITS, SAME_DB = 0.005, 0.05
"""Differences that are not reported: they vanish in the displayed digits."""


@dataclass(frozen=True)
class Band:
    """SQNRs from ``least`` dB on: their description, and the ``cosine`` of embeddings that was measured
    with such weights (the mean of 240 sentences, `assets/measurements/embeddings.json`)."""

    least: float
    words: str
    cosine: str
    more: str = ""

    @property
    def meaning(self) -> str:
        return (
            "Elsewhere: in the sentence encoder all-MiniLM-L6-v2, with all linear layers at about as many "
            f"decibels, embeddings keep a cosine similarity of {self.cosine} to the original's{self.more}."
        )


BANDS = (
    Band(50.0, "the error of a 16-bit float", "1.0000"),
    Band(36.0, "usual for INT8", "0.9996"),
    Band(28.0, "usual for FP8 and 6-bit floats", "0.998 to 0.999"),
    Band(22.5, "between 4-bit weights and FP8", "0.94 to 0.98 (4 bits) or 0.998 to 0.999 (FP8)"),
    Band(20.0, "good for 4-bit weights", "0.97 to 0.98"),
    Band(18.25, "usual for 4-bit weights", "0.96 to 0.97", " (0.98 with GPTQ)"),
    Band(16.0, "low for 4-bit weights", "0.94"),
    Band(9.0, "usual for 3-bit weights", "0.86", " (0.93 with GPTQ)"),
    Band(-math.inf, "what 2 bits and fewer leave", "0.27 to 0.47", "; only training helps"),
)
"""From `docs/which-format.md`: the first table, and the methods of its third section under the same formats;
"only training" is its fifth section. The limits lie between the rows of the table above."""


MOST = 0.5
"""If the tails hold more than this share of a tensor's energy, they determine its SQNR."""


def judged(a: Analysis, b: Analysis | None = None) -> tuple[str, str]:
    """The ``verdict`` on a tensor's quantization by A, or by A and B, and ``why``."""
    if _of_one_value(a.before):
        return _each_alike(a, b), ""
    other = None if b is None else b.report
    share, energy = _tails(a)
    if energy <= MOST:
        return verdict(a.report, other), why(a, b)
    few = (
        f"The {percent(share)} of the elements in the tails hold {percent(energy)} of the "
        "squares: the decibels are theirs, and say little of the others."
    )
    return f"{_plainly(a.report, other)} {few}", why(a, b)


def _tails(a: Analysis) -> tuple[float, float]:
    """The share of elements beyond the central range, and their share of the tensor's sum of squares."""
    before, report = a.before, a.report
    beyond = sum(float(before.share(part).sum()) for part in (before.below, before.above))
    if not (beyond and report.relative_error and math.isfinite(report.relative_error)):
        return beyond, 0.0
    edges = before.middle.edges
    inside = float(before.share(before.middle) @ ((edges[1:] + edges[:-1]) / 2) ** 2)
    return beyond, 1 - inside * (report.relative_error / report.rmse) ** 2


def _plainly(a: Report, b: Report | None) -> str:
    """Decibels and bits, without typical uses."""
    if b is not None and math.isfinite(a.sqnr_db) and math.isfinite(b.sqnr_db):
        return _difference(a, b)
    if b is not None:
        return _unusual(a, b)
    return f"{a.sqnr_db:.1f} dB at {_bits(a)} bits."


def _of_one_value(before: Spread) -> bool:
    """True if all elements are equal: the extremes of any other tensor lie in different bins."""
    return sum(np.count_nonzero(part.counts) for part in vars(before).values()) == 1


def _each_alike(a: Analysis, b: Analysis | None) -> str:
    """Describe the dequantized value of a constant tensor, whose SQNR is not meaningful."""
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
    """Assess the error of scheme A; with ``b``, also the error of B, and what B saves or costs against A."""
    if b is None:
        return _alone(a) + _lost(a)
    if not (math.isfinite(a.sqnr_db) and math.isfinite(b.sqnr_db)):
        return _unusual(a, b)
    bands = band_of(a), band_of(b)
    if bands[0] is bands[1]:
        return f"{_difference(a, b)} Both are {bands[0].words}. {bands[0].meaning}"
    return f"{_difference(a, b)} {_both_bands(*bands)}"


def _both_bands(a: Band, b: Band) -> str:
    """What the errors of A and of B are usual for; what is the same for both is said once."""
    (first, _, of), (second, _, other) = (band.words.partition(" for ") for band in (a, b))
    if of and of == other:
        return f"A is {first}, B {second} for {of}."
    return f"A is {a.words}, B {b.words}."


MOSTLY_ZERO = 0.75
"""Above this share of zeros the largest elements alone decide the SQNR."""


def _lost(report: Report) -> str:
    """A warning where few large elements hide what became of the others; empty elsewhere."""
    if report.zeroed < MOSTLY_ZERO:
        return ""
    return (
        f" But {100 * report.zeroed:.3g} % of the elements became 0: the decibels are those of the few "
        "largest ones."
    )


def band_of(report: Report) -> Band:
    """The band of a finite SQNR."""
    return next(band for band in BANDS if report.sqnr_db >= band.least)


def _alone(a: Report) -> str:
    if a.sqnr_db == math.inf:
        return f"Nothing is lost: every element is restored exactly, in {_bits(a)} bits."
    if math.isnan(a.sqnr_db):
        return f"Every element was 0, and the scheme changes that by up to {a.max_error:.3g}."
    band = band_of(a)
    return f"{a.sqnr_db:.1f} dB at {_bits(a)} bits is {band.words}. {band.meaning}"


def _unusual(a: Report, b: Report) -> str:
    """Sentence for exact schemes, and for an all-zero tensor that is changed."""
    if a.sqnr_db == b.sqnr_db == math.inf:
        return f"Both restore every element exactly; {_size(a, b)}."
    return " ".join(f"{letter}: {_alone(report)}" for letter, report in (("A", a), ("B", b)))


def _difference(a: Report, b: Report) -> str:
    """A sentence on decibels and bits; B's side of it."""
    gain, saved = b.sqnr_db - a.sqnr_db, a.bits.total - b.bits.total
    if abs(saved) < SAME_BITS:
        if abs(gain) < SAME_DB:
            return "A and B have the same error at the same size."
        better, worse = ("B", "A") if gain > 0 else ("A", "B")
        times = 10 ** (abs(gain) / 10)
        return (
            f"At the same size {better} has {abs(gain):.1f} dB more: {worse}'s squared error is "
            f"{words.number(times, 3 if times < 1.1 else 2)} times as large."
        )
    if abs(gain) < SAME_DB:
        cheaper, other = ("B", "A") if saved > 0 else ("A", "B")
        return f"{cheaper} has the same error as {other} with {abs(saved):.2f} bits less."
    if (gain > 0) == (saved > 0):
        better, other = ("B", "A") if gain > 0 else ("A", "B")
        return f"{better} beats {other} in both: {abs(gain):.1f} dB more with {abs(saved):.2f} bits less."
    worth = DB_PER_BIT * abs(saved)
    if saved > 0:
        bargain = "less" if -gain < worth else "more"
        return (
            f"B saves {saved:.2f} bits and loses {-gain:.1f} dB, {bargain} than the {worth:.1f} dB that "
            "so many bits are usually worth."
        )
    bargain = "more" if gain > worth else "less"
    return (
        f"B needs {-saved:.2f} bits more and gains {gain:.1f} dB, {bargain} than the {worth:.1f} dB that so "
        "many bits are usually worth."
    )


def _size(a: Report, b: Report) -> str:
    saved = a.bits.total - b.bits.total
    if abs(saved) < SAME_BITS:
        return "they have the same size"
    return f"B saves {saved:.2f} bits" if saved > 0 else f"B needs {-saved:.2f} bits more"


def _bits(report: Report) -> str:
    return f"{report.bits.total:.2f}"
