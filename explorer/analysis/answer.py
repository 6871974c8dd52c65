"""The answer in one sentence: what B keeps and costs against A, or where A stands among the others."""

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
from explorer.analysis.verdict import band_of
from explorer.analysis.why import percent

SAME_DB, SAME_BITS = 0.05, 0.005
"""Differences below these vanish in the digits that are shown."""
SAME_TIME = 1.03
"""A ratio of times below this is none."""


@dataclass(frozen=True)
class Phrase:
    """A piece of the sentence; ``side`` is "a" or "b" where it names a scheme."""

    text: str
    side: Literal["", "a", "b"] = ""


@dataclass(frozen=True)
class Answer:
    """The sentence in pieces, a ``footnote`` on what was measured elsewhere, and in ``better`` a scheme that
    beats A and B; empty if there is none."""

    parts: tuple[Phrase, ...]
    footnote: str = ""
    better: str = ""

    def __str__(self) -> str:
        return "".join(part.text for part in self.parts)


def answer(
    a: Candidate, b: Candidate | None = None, rows: Sequence[ComparisonRow] = (), goal: Goal | None = None
) -> Answer:
    """The sentence on A and B, or on A alone among ``rows``, of which the ``goal`` takes a part."""
    if b is None or b.text == a.text:
        return Answer((*_alone(a, rows, goal), Phrase(".")), footnote(a.report))
    first, second = Phrase(short(a.label), "a"), Phrase(short(b.label), "b")
    if not (math.isfinite(a.report.sqnr_db) and math.isfinite(b.report.sqnr_db)):
        said = f": {_level(a)}; "
        return Answer((first, Phrase(said), second, Phrase(f": {_level(b)}.")))
    gain, more = b.report.sqnr_db - a.report.sqnr_db, b.report.bits.total - a.report.bits.total
    about = "≈ " if min(a.share, b.share) < 1 and abs(gain) >= SAME_DB else ""
    middle = f" {_gain(gain, about)} {_cost(gain, more)} against "
    parts = (second, Phrase(middle), first, Phrase(f"{_faster(a, b)}."))
    return Answer(parts, footnote(a.report, b.report), _better_than_both(a, b, rows))


def sample_words(sides: Sequence[Estimate | None]) -> str:
    """What the numbers of A and B are of, while those of the whole tensor are computed: the part, and how far
    they may be off; None for one whose whole is known."""
    found = {letter: one for letter, one in zip("AB", sides, strict=False) if one is not None}
    shares = " and ".join(dict.fromkeys(percent(one.share) for one in found.values()))
    named = {letter: f"{letter} " if len(sides) > 1 else "" for letter in found}
    off = [f"{named[letter]}± {one.half_db:.2g}" for letter, one in found.items() if one.half_db is not None]
    own = [f"{named[letter]}by the sample’s own range" for letter, one in found.items() if one.own_range]
    own += [f"{named[letter]}most of it in few rows" for letter, one in found.items() if one.uneven]
    sure = f"{', '.join(off)} dB ({100 * CONFIDENCE:.0f} %)" if off else ""
    return f"≈ {shares} of the tensor{''.join(f', {one}' for one in (sure, *own) if one)}"


def footnote(a: Report, b: Report | None = None) -> str:
    """What such decibels left of another model, which is named; empty for what has none."""
    reports = {side: r for side, r in (("A", a), ("B", b)) if r is not None and math.isfinite(r.sqnr_db)}
    told = {side: band_of(report).cosine for side, report in reports.items()}
    if not told or any(report.zeroed > 0.75 for report in reports.values()):
        return ""
    several = len(set(told.values())) > 1
    kept = " and ".join(
        [f"{cosine} ({side})" for side, cosine in told.items()] if several else [*told.values()][:1]
    )
    return (
        "Elsewhere: in the sentence encoder all-MiniLM-L6-v2, with all linear layers at about this SQNR, "
        f"embeddings keep a cosine similarity of {kept} to the original's. Other models and layers differ."
    )


def signed(value: float, digits: int) -> str:
    """ "+1.0", "−0.34": with its sign, as plus or minus says what it means."""
    return f"{value:+.{digits}f}".replace("-", "−")


def short(label: str) -> str:
    """A scheme's label without what stands in brackets."""
    return label.partition(" (")[0]


def level(report: Report) -> str:
    """The error of one scheme, and its bits."""
    bits = f"{report.bits.total:.2f} bits"
    if report.sqnr_db == math.inf:
        return f"exact, at {bits}"
    if math.isnan(report.sqnr_db):
        return f"changes zeros by up to {words.number(report.max_error)}, at {bits}"
    return f"{report.sqnr_db:.1f} dB at {bits}"


def _level(one: Candidate) -> str:
    """``level``, as of a part of the tensor where the candidate's report is of one."""
    return f"{'≈ ' if one.share < 1 else ''}{level(one.report)}"


def _gain(gain: float, about: str) -> str:
    if abs(gain) < SAME_DB:
        return "has the same error"
    return f"{'gains' if gain > 0 else 'has'} {about}{signed(gain, 1)} dB"


def _better_than_both(a: Candidate, b: Candidate, rows: Sequence[ComparisonRow]) -> str:
    """A sentence on the scheme with the most decibels among ``rows`` that has more than A and B in no more
    bits than either; empty if there is none."""
    most = max(a.report.sqnr_db, b.report.sqnr_db)
    bits = min(a.report.bits.total, b.report.bits.total)
    over = [r for r in rows if r.report.bits.total < bits + SAME_BITS and r.report.sqnr_db > most + SAME_DB]
    best = max((r for r in over if r.report.sqnr_db < math.inf), key=lambda r: r.report.sqnr_db, default=None)
    if best is None:
        return ""
    more = signed(best.report.sqnr_db - most, 1)
    return f"Better than both in no more bits: {short(best.label)}, {more} dB."


def _cost(gain: float, more: float) -> str:
    if abs(more) < SAME_BITS:
        return "at the same size"
    return f"{'for' if gain < SAME_DB or more > 0 else 'with'} {signed(more, 2)} bits"


def _faster(a: Candidate, b: Candidate) -> str:
    """How B's times compare, where both have them; the first and the last number of tokens."""
    pairs = [(n, a.time_at(n), b.time_at(n)) for n in (TOKENS[0], TOKENS[-1])]
    both = [(n, one, other) for n, one, other in pairs if one and other and one.seconds and other.seconds]
    if not both:
        return ""
    said = [f"{_ratio(o, p)} at {words.count(n)} token{'s' if n > 1 else ''}" for n, o, p in both]
    return f"; {', '.join(said)}"


def _ratio(one: RowTime, other: RowTime) -> str:
    times = (one.seconds or 0.0) / (other.seconds or 1.0)
    if 1 / SAME_TIME < times < SAME_TIME:
        return "as fast"
    return f"{max(times, 1 / times):.2g}× {'faster' if times > 1 else 'slower'}"


def _alone(a: Candidate, rows: Sequence[ComparisonRow], goal: Goal | None) -> list[Phrase]:
    name = Phrase(short(a.label), "a")
    mine, bits = a.report.sqnr_db, a.report.bits.total
    start = [name, Phrase(f": {_level(a)}")]
    if not math.isfinite(mine):
        return start
    limit = goal.most_bits if goal is not None and goal.most_bits is not None else bits
    fit = [r for r in rows if r.report.bits.total <= limit + SAME_BITS and r.report.sqnr_db < math.inf]
    best = max(fit, key=lambda r: (r.report.sqnr_db, -r.report.bits.total), default=None)
    if best is None:
        return start
    gain = best.report.sqnr_db - mine
    if str(best.scheme) == a.text or gain < SAME_DB:
        return [*start, Phrase(f", the best at ≤ {limit:.2f} bits")]
    named = f"; the best at ≤ {limit:.2f} bits is {short(best.scheme.label)}, {signed(gain, 1)} dB"
    return [*start, Phrase(named)]
