"""The table of docs/models.md: what formats of keys and of values cost a causal model.

Texts are joined and cut into sequences of ``LENGTH`` tokens, so that most tokens are old: the first ``PIECE``
of a text are read exactly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from explorer.analysis.cache import KEYS, VALUES, CachePlan
from explorer.core.backend import work_device
from explorer.models.capture import Model
from explorer.models.evaluate import held_out_texts
from explorer.models.texts import Texts, texts_of
from explorer.recordings.files import NOT_RECORDED, Recording, record_each, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import Scheme
from explorer.schemes.scheme import label_of_text
from explorer.survey.cache import CacheSurvey
from explorer.words import number
from lab.intervals import paired
from lab.tables import markdown

NAME = "cache"
PACKAGES = ("transformers",)
LENGTH, SAMPLES = 192, 4
CHANNEL, TOKEN = "32x1", "1x64"
BITS = ("int8", "int4", "int2")


def integer(bits: str, block: str) -> str:
    """The name of asymmetric integers, "int4", in blocks of ``CHANNEL`` or ``TOKEN``."""
    return str(Scheme.parse(f"{bits}~{block}~asymmetric~float16~minmax"))


INTEGERS = {
    integer(bits, block): f"{bits.upper()}, {of}"
    for bits in BITS
    for block, of in ((CHANNEL, "32 tokens of a channel"), (TOKEN, "64 channels of a token"))
}
PLAIN = ("fp8_e4m3_cast", "nvfp4", "mxfp4", *INTEGERS)
RECENT = (0, 64)
KIVI = {KEYS: (CHANNEL, TOKEN), VALUES: (TOKEN, CHANNEL)}
"""The blocks that KIVI takes, and the others."""
WORDS = {CHANNEL: "by channel", TOKEN: "by token"}


@dataclass(frozen=True)
class CacheCost:
    """One cache on texts. ``keys`` and ``values``: schemes, "" for what stays exact; ``kl`` in nats a token
    with its 95 % interval over texts; ``same_top``: tokens whose most probable successor is the same;
    ``bits`` of a number of the parts that are stored; ``losses``: the KL of each text."""

    model: str
    keys: str
    values: str
    recent: int
    kl: float
    low: float
    high: float
    same_top: float
    bits: float
    texts: int
    tokens: int
    losses: tuple[float, ...]
    rotated: bool = False


def plans() -> list[CachePlan]:
    """Keys alone and values alone by each scheme; and pairs, with and without last tokens kept."""
    schemes = [Scheme.parse(name) for name in PLAIN]
    every = [plan for one in schemes for plan in (CachePlan(keys=one), CachePlan(values=one))]
    for bits in BITS[1:]:
        channel, token = (Scheme.parse(integer(bits, block)) for block in (CHANNEL, TOKEN))
        every += [CachePlan(channel, token, recent) for recent in RECENT]
        every.append(CachePlan(token, channel))
    return every


def texts() -> Texts:
    """The built-in held-out texts, as this table runs them."""
    return replace(texts_of(held_out_texts(True)), sequence_length=LENGTH, samples=SAMPLES)


def run_cache(model: Model) -> Iterator[CacheCost]:
    """Measure the cost of each of ``plans`` for ``model``."""
    survey = CacheSurvey(model, texts())
    for plan in plans():
        loss = survey.loss(plan)
        row = survey.row(plan, loss)
        low, high = (row.kl if end is None else end for end in (row.low, row.high))
        keys, values = ("" if scheme is None else str(scheme) for _, scheme in plan.parts)
        yield CacheCost(
            model=model.name,
            keys=keys,
            values=values,
            recent=plan.recent,
            kl=row.kl,
            low=low,
            high=high,
            same_top=row.same_top,
            bits=row.bits,
            texts=loss.texts,
            tokens=loss.tokens,
            losses=loss.each,
        )


def record_cache(model: Model) -> Path:
    """Write ``assets/measurements/cache.json``, after each row."""
    return record_each(NAME, this_machine(work_device(), PACKAGES), run_cache(model))


def recorded_cache() -> Recording[CacheCost]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, CacheCost)


def alone(rows: Sequence[CacheCost], part: str, scheme: str) -> CacheCost | None:
    """The row with "keys" or "values" alone stored by ``scheme``; None where it was not recorded."""
    keys, values = (scheme, "") if part == KEYS else ("", scheme)
    wanted = (keys, values, False)
    return next((row for row in rows if (row.keys, row.values, row.rotated) == wanted), None)


def alone_table(rows: Sequence[CacheCost]) -> str:
    """By scheme the KL with keys alone, and with values alone, stored so."""
    lines = []
    for name in PLAIN:
        found = [alone(rows, part, name) for part in (KEYS, VALUES)]
        if stored := [row for row in found if row is not None]:
            lines.append([_label(name), number(stored[0].bits), *map(_cell, found)])
    titles = ["bits", "keys", "values"]
    return markdown(["scheme", *titles], lines or [[NOT_RECORDED, *[""] * len(titles)]])


def pairs_table(rows: Sequence[CacheCost]) -> str:
    """Keys and values stored at once: KL, and tokens whose most probable successor is the same."""
    lines = [
        [
            _label(row.keys),
            _label(row.values),
            str(row.recent) if row.recent else "none",
            number(row.bits),
            _cell(row),
            f"{100 * row.same_top:.1f} %",
        ]
        for row in rows
        if row.keys and row.values
    ]
    titles = ["values", "last tokens exact", "bits", "KL, nats a token", "equal first choices"]
    return markdown(["keys", *titles], lines or [[NOT_RECORDED, *[""] * len(titles)]])


def _label(scheme: str) -> str:
    """The label of a scheme; of integers of this table, with what a scale is of."""
    return INTEGERS.get(scheme) or label_of_text(scheme)


def _cell(row: CacheCost | None) -> str:
    """ "0.0161 (0.0106 to 0.0216)", or a dash."""
    return "–" if row is None else f"{number(row.kl)} ({number(row.low)} to {number(row.high)})"


def _against_kivi(rows: Sequence[CacheCost], part: str) -> Iterator[tuple[str, float, float, float]]:
    """By number of bits how much more is lost with the blocks that KIVI does not take for ``part`` than with
    those that it takes, text by text, half of the interval of that, and the loss with the former."""
    better, worse = KIVI[part]
    for bits in BITS:
        good, bad = (alone(rows, part, integer(bits, block)) for block in (better, worse))
        if good is not None and bad is not None:
            yield bits.upper(), *paired(good.losses, bad.losses), bad.kl


def kivi(rows: Sequence[CacheCost]) -> str:
    """Sentences on what KIVI found: how much more the other blocks lose."""
    said = []
    for part, blocks in KIVI.items():
        better, worse = (WORDS[block] for block in blocks)
        found = [
            f"{number(more)} ± {number(half)} of {number(bad)} at {bits}"
            for bits, more, half, bad in _against_kivi(rows, part)
        ]
        if found:
            said.append(f"{part.capitalize()} {worse} lose more than {better}: {', '.join(found)}.")
    return " ".join(said) or f"({NOT_RECORDED})"


def supported(rows: Sequence[CacheCost], part: str) -> str:
    """ "at INT8, INT4 and INT2": where the blocks that KIVI takes for ``part`` lose less than the others, by
    more than the interval of the difference; "nowhere"."""
    found = [bits for bits, more, half, _ in _against_kivi(rows, part) if more > half]
    *first, last = found or ["nowhere"]
    return f"at {', '.join(first)} and {last}" if first else f"at {last}" if found else last


def wider(rows: Sequence[CacheCost]) -> str:
    """Bits a number by which scales by channel take more than those by token, "0.31"."""
    found = set()
    for bits in BITS:
        channel, token = (alone(rows, KEYS, integer(bits, block)) for block in KIVI[KEYS])
        if channel is not None and token is not None:
            found.add(f"{channel.bits - token.bits:.2f}")
    return " to ".join(sorted(found)) or f"({NOT_RECORDED})"


def measured_on(rows: Sequence[CacheCost]) -> str:
    """ "4 texts of 192 tokens", or that nothing was recorded."""
    return f"{rows[0].texts} texts of {rows[0].tokens // rows[0].texts} tokens" if rows else NOT_RECORDED
