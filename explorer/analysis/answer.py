"""The answer in one sentence: the differences between B and A, or the rank of A among other schemes."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from explorer import words
from explorer.analysis.estimate import CONFIDENCE, Estimate
from explorer.analysis.goals import Goal
from explorer.analysis.report import Report
from explorer.analysis.schemes import ComparisonRow
from explorer.analysis.shortlist import TOKENS, Candidate, RowTime
from explorer.analysis.verdict import MOSTLY_ZERO, SAME_BITS, SAME_DB, band_of, measured_elsewhere
from explorer.analysis.why import percent

SAME_TIME = 1.03
"""Ratio of times below which no difference is reported."""


@dataclass(frozen=True)
class Phrase:
    """A piece of the sentence; ``side`` is "a" or "b" if it names a scheme."""

    text: str
    side: Literal["", "a", "b"] = ""


@dataclass(frozen=True)
class Answer:
    """The sentence in pieces, with two additions: ``footnote`` on measurements of another model, and
    ``better`` on a scheme that is better than A and B. Both may be empty."""

    parts: tuple[Phrase, ...]
    footnote: str = ""
    better: str = ""

    def __str__(self) -> str:
        return "".join(part.text for part in self.parts)


def answer(
    a: Candidate, b: Candidate | None = None, rows: Sequence[ComparisonRow] = (), goal: Goal | None = None
) -> Answer:
    """Compare B with A; without B, rank A among the ``rows`` that fit the ``goal``."""
    first = Phrase(short(a.label), "a")
    if b is None or b.text == a.text:
        return Answer((first, Phrase(f": {_level(a)}{_rank(a, rows, goal)}.")), footnote(a.report))
    second = Phrase(short(b.label), "b")
    if not (math.isfinite(a.report.sqnr_db) and math.isfinite(b.report.sqnr_db)):
        return Answer((first, Phrase(f": {_level(a)}; "), second, Phrase(f": {_level(b)}.")))
    gain, more = b.report.sqnr_db - a.report.sqnr_db, b.report.bits.total - a.report.bits.total
    sqnr, size = differences(gain, more, about=min(a.share, b.share) < 1)
    parts = (second, Phrase(f" has {sqnr} "), first, Phrase(f", {size}{_faster(a, b)}."))
    return Answer(parts, footnote(a.report, b.report), _better_than_both(a, b, rows))


def differences(gain: float, more: float, of: str = "SQNR", about: bool = False) -> tuple[str, str]:
    """Phrases for ``gain`` dB and ``more`` bits: "an SQNR 1.0 dB higher than", "with 0.34 more bits per
    element"."""
    higher = f"an {of} {'≈ ' if about else ''}{abs(gain):.1f} dB {'higher' if gain > 0 else 'lower'} than"
    sqnr = f"the same {of} as" if abs(gain) < SAME_DB else higher
    bits = f"with {abs(more):.2f} {'more' if more > 0 else 'fewer'} bits per element"
    return sqnr, "at the same size" if abs(more) < SAME_BITS else bits


def sample_words(sides: Sequence[Estimate | None]) -> str:
    """Describe the sample behind A's and B's numbers, and its accuracy, while the numbers of the whole tensor
    are computed; None for a side that is known."""
    found = {letter: one for letter, one in zip("AB", sides, strict=False) if one is not None}
    shares = " and ".join(dict.fromkeys(percent(one.share) for one in found.values()))
    named = {letter: f"{letter} " if len(sides) > 1 else "" for letter in found}
    off = [f"{named[letter]}± {one.half_db:.2g}" for letter, one in found.items() if one.half_db is not None]
    sure = [f"{', '.join(off)} dB ({100 * CONFIDENCE:.0f} %)"] if off else []
    own = [f"{named[letter]}with the sample’s own range" for letter, one in found.items() if one.own_range]
    own += [f"{named[letter]}most of the error in few rows" for letter, one in found.items() if one.uneven]
    return f"Estimated (≈) from {', '.join([f'{shares} of the tensor', *sure, *own])}"


def footnote(a: Report, b: Report | None = None) -> str:
    """Name the cosines that such SQNRs gave in another model, and the model; empty if there are none."""
    reports = {side: r for side, r in (("A", a), ("B", b)) if r is not None and math.isfinite(r.sqnr_db)}
    told = {side: band_of(report).cosine for side, report in reports.items()}
    if not told or any(report.zeroed > MOSTLY_ZERO for report in reports.values()):
        return ""
    cosines = [f"{cosine} ({side})" for side, cosine in told.items()]
    kept = cosines if len(set(told.values())) > 1 else [*told.values()][:1]
    return f"{measured_elsewhere(' and '.join(kept))} Other models and layers differ."


def short(label: str) -> str:
    """Return a scheme's label without the part in brackets."""
    return label.partition(" (")[0]


def _level(one: Candidate) -> str:
    """Describe the error of one scheme and its bits; "≈" marks a sample."""
    report, about = one.report, "≈ " if one.share < 1 else ""
    bits = f"{report.bits.total:.2f} bits"
    if report.sqnr_db == math.inf:
        return f"{about}exact, at {bits}"
    if math.isnan(report.sqnr_db):
        return f"{about}changes zeros by up to {words.number(report.max_error)}, at {bits}"
    return f"{about}{report.sqnr_db:.1f} dB at {bits}"


def _better_than_both(a: Candidate, b: Candidate, rows: Sequence[ComparisonRow]) -> str:
    """Name the scheme of ``rows`` with the highest SQNR, above those of A and B, in no more bits than either;
    empty if there is none."""
    most = max(a.report.sqnr_db, b.report.sqnr_db)
    bits = min(a.report.bits.total, b.report.bits.total)
    over = [r for r in rows if r.report.bits.total < bits + SAME_BITS and r.report.sqnr_db > most + SAME_DB]
    best = max((r for r in over if r.report.sqnr_db < math.inf), key=lambda r: r.report.sqnr_db, default=None)
    if best is None:
        return ""
    more = best.report.sqnr_db - most
    return f"{short(best.label)} is better than both: {more:.1f} dB higher SQNR in no more bits."


def _faster(a: Candidate, b: Candidate) -> str:
    """Compare B's times, if both have them, at the first and the last number of tokens."""
    pairs = [(n, a.time_at(n), b.time_at(n)) for n in (TOKENS[0], TOKENS[-1])]
    both = [(n, one, other) for n, one, other in pairs if one and other and one.seconds and other.seconds]
    said = [f"{_ratio(o, p)} at {words.count(n)} token{'s' if n > 1 else ''}" for n, o, p in both]
    return f"; {', '.join(said)}" if said else ""


def _ratio(one: RowTime, other: RowTime) -> str:
    times = (one.seconds or 0.0) / (other.seconds or 1.0)
    if 1 / SAME_TIME < times < SAME_TIME:
        return "as fast"
    return f"{max(times, 1 / times):.2g}× {'faster' if times > 1 else 'slower'}"


def _rank(a: Candidate, rows: Sequence[ComparisonRow], goal: Goal | None) -> str:
    """Name the best scheme of A's size, or of the goal's; empty if there are no rows."""
    limit = goal.most_bits if goal is not None and goal.most_bits is not None else a.report.bits.total
    fit = [r for r in rows if r.report.bits.total <= limit + SAME_BITS and r.report.sqnr_db < math.inf]
    best = max(fit, key=lambda r: (r.report.sqnr_db, -r.report.bits.total), default=None)
    if best is None or not math.isfinite(a.report.sqnr_db):
        return ""
    gain, limited = best.report.sqnr_db - a.report.sqnr_db, f"of schemes with at most {limit:.2f} bits"
    if str(best.scheme) == a.text or gain < SAME_DB:
        return f", the highest SQNR {limited}"
    return f"; the best {limited} is {short(best.scheme.label)}, {gain:.1f} dB higher"
