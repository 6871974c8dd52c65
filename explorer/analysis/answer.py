"""The answer in one line: which of A and B is better and what that costs, or the rank of A."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from explorer import words
from explorer.analysis.estimate import Estimate
from explorer.analysis.goals import Goal
from explorer.analysis.intervals import CONFIDENCE
from explorer.analysis.report import Report
from explorer.analysis.schemes import ComparisonRow
from explorer.analysis.shortlist import Candidate, Race
from explorer.analysis.verdict import MOSTLY_ZERO, SAME_BITS, SAME_DB, band_of, measured_elsewhere
from explorer.words import percent

OPENS = {
    "compressed-tensors (vLLM)": "opens in vLLM",
    "compressed-tensors": "opens in transformers",
    "GPTQ": "opens as a GPTQ file",
    "AWQ": "opens as an AWQ file",
    "GGUF": "opens in llama.cpp",
    "bitsandbytes": "opens in bitsandbytes",
    "ONNX": "opens in ONNX Runtime",
}
"""By the short name of a checkpoint format (``explorer.checkpoints.targets.held_by``)."""


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
    a: Candidate,
    b: Candidate | None = None,
    rows: Sequence[ComparisonRow] = (),
    goal: Goal | None = None,
    race: Race | None = None,
    outputs: Sequence[float] = (),
) -> Answer:
    """Decide between A and B: decibels, what they cost in bytes, where the better one opens, and the times of
    both beside BF16's. Without B, rank A among the ``rows`` that fit the ``goal``.

    race     times of A's and B's products; said if they are of about this layer's shape
    outputs  SQNR of the layer's output under A, and B, where a method works for that
    """
    rows = [row for row in rows if goal is None or goal.takes(row.scheme)]
    first = Phrase(short(a.label), "a")
    if b is None or b.text == a.text:
        rank = "" if outputs else _rank(a, rows, goal)
        rest = Phrase(f": {_level(a, *outputs[:1])}{rank}; {_opens(a)}.{_speed(a, race)}")
        return Answer((first, rest), footnote(a.report))
    second = Phrase(short(b.label), "b")
    levels = (outputs[0], outputs[1]) if outputs else (a.report.sqnr_db, b.report.sqnr_db)
    if not all(map(math.isfinite, levels)):
        return Answer((first, Phrase(f": {_level(a)}; "), second, Phrase(f": {_level(b)}.")))
    top, other, better, worse = b, a, second, first
    gain, more = levels[1] - levels[0], b.report.bits.total - a.report.bits.total
    if more > 0 if abs(gain) < SAME_DB else gain < 0:
        top, other, better, worse = a, b, first, second
    about = "≈ " if min(a.share, b.share) < 1 else ""
    in_output = " in the layer’s output, on held-out inputs," if outputs else ""
    said = f": the same dB{in_output}" if abs(gain) < SAME_DB else f": {about}+{abs(gain):.1f} dB{in_output}"
    parts = [better, Phrase(f"{said} {_bytes(top, other)} "), worse, Phrase(f"; {_opens(top)}")]
    if not top.held and other.held:
        parts += [Phrase(", "), worse, Phrase(f" {_opens(other)}")]
    parts += [Phrase("."), *_race(a, b, race)]
    best = "" if outputs else _better_than_both(a, b, rows)
    return Answer(tuple(parts), footnote(a.report, b.report), best)


def _bytes(top: Candidate, other: Candidate) -> str:
    """Compare bytes: "for 8.3 % more bytes than"."""
    bits, others = top.report.bits.total, other.report.bits.total
    if abs(bits - others) < SAME_BITS:
        return "in as many bytes as"
    if bits >= 2 * others:
        return f"for {bits / others:.2g} times the bytes of"
    share = f"{words.number(100 * abs(bits / others - 1), 2)} %"
    return f"for {share} more bytes than" if bits > others else f"in {share} fewer bytes than"


def _opens(one: Candidate) -> str:
    """Say where a checkpoint of this scheme opens, or why nowhere."""
    if one.held:
        return OPENS[one.held[0]]
    return f"no engine loads it ({one.unheld})" if one.unheld else "no engine loads it"


def _race(a: Candidate, b: Candidate, race: Race | None) -> list[Phrase]:
    """Say which of A and B is faster at one token, and from what number of tokens on neither is faster than
    BF16; empty without times of about this layer's shape."""
    if race is None or not race.near:
        return []
    of_a, of_b = race.times.get(a.text, ()), race.times.get(b.text, ())
    timed = [(x, y, z) for x, y, z in zip(of_a, of_b, race.bf16, strict=False) if x.seconds and y.seconds]
    if not timed:
        return [Phrase(speed) for one in (a, b) if (speed := _speed(one, race, named=True))]
    x, y, _ = timed[0]
    stems = [re.split(r" group | block | per |,", short(one.label))[0] for one in (a, b)]
    names = stems if len(set(stems)) > 1 else [short(a.label), short(b.label)]
    first, second, at = Phrase(names[0], "a"), Phrase(names[1], "b"), _tokens(x.tokens)
    said: list[Phrase] = [Phrase(f" At {at} they are about as fast")]
    for fast, slow, name in ((x, y, first), (y, x, second)):
        if ratio := fast.faster_than(slow):
            said = [Phrase(f" At {at} "), name, Phrase(f" is {ratio:.2g} times as fast")]
    ahead = [(x.tokens, max(x.faster_than(z) or 1, y.faster_than(z) or 1)) for x, y, z in timed]
    said.append(Phrase(f"; {_against_bf16(ahead, 'neither beats BF16', 'the faster one')}{_where(race)}."))
    return said


def _speed(one: Candidate, race: Race | None, named: bool = False) -> str:
    """Compare a scheme's times with BF16's; empty without times of about this layer's shape."""
    if race is None or not race.near:
        return ""
    pairs = zip(race.times.get(one.text, ()), race.bf16, strict=False)
    ahead = [(x.tokens, x.faster_than(z) or 1) for x, z in pairs if x.seconds and z.seconds]
    if not ahead:
        return ""
    name = short(one.label) if named else "it"
    start = f" At {_tokens(ahead[0][0])} {name} is {ahead[0][1]:.2g} times as fast as BF16"
    if ahead[0][1] == 1:
        return f" {name[0].upper()}{name[1:]} is nowhere faster than BF16{_where(race)}."
    return f"{start}; {_against_bf16(ahead, 'it is no faster', 'it')}{_where(race)}."


def _against_bf16(ahead: Sequence[tuple[int, float]], none: str, who: str) -> str:
    """Say from what number of tokens on nothing is ``ahead`` of BF16, by (tokens, ratio of times)."""
    last = max((at for at, (_, ratio) in enumerate(ahead) if ratio > 1), default=-1)
    if last == len(ahead) - 1:
        tokens, ratio = ahead[-1]
        return f"at {_tokens(tokens)} {who} is {ratio:.2g} times as fast as BF16"
    return f"from {_tokens(ahead[last + 1][0])} on {none}"


def _tokens(count: int) -> str:
    return "one token" if count == 1 else f"{count:,} tokens"


def _where(race: Race) -> str:
    """Name the shape of times of another weight."""
    own = any(time.how == "measured" for time in race.bf16)
    return "" if own else f" (times of {race.at[0]:,}\N{NO-BREAK SPACE}×\N{NO-BREAK SPACE}{race.at[1]:,})"


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
    """Return a label of a scheme or a recipe without the part in brackets."""
    return re.sub(r" \([^)]*\)", "", label)


def _level(one: Candidate, output: float | None = None) -> str:
    """Describe the error of one scheme, or that of the layer's ``output``, and its bits; "≈" marks a
    sample."""
    report, about = one.report, "≈ " if one.share < 1 else ""
    bits = f"{report.bits.total:.2f} bits"
    if output is not None:
        return f"{output:.1f} dB in the layer’s output, on held-out inputs, at {bits}"
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
