"""The table of docs/models.md: what formats of keys and of values cost a causal model.

Texts are joined and cut into sequences of ``LENGTH`` tokens, so that most tokens are old: the first ``PIECE``
of a text are read exactly.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from explorer.analysis.cache import CachePlan
from explorer.core.backend import work_device
from explorer.models.capture import Model
from explorer.models.texts import Texts, texts_of
from explorer.recordings.files import Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import Scheme
from explorer.survey.cache import CacheSurvey, each_alone
from explorer.survey.run import held_out_texts

NAME = "cache"
PACKAGES = ("transformers",)
LENGTH, SAMPLES = 192, 4
CHANNEL, TOKEN = "32x1", "1x64"
INTEGER = "{}~{}~asymmetric~float16~minmax"
BITS = ("int8", "int4", "int2")
PLAIN = (
    "fp8_e4m3_cast",
    "nvfp4",
    "mxfp4",
    *(INTEGER.format(b, block) for b in BITS for block in (CHANNEL, TOKEN)),
)
ROTATED = tuple(name for name in PLAIN if not name.startswith(("fp8", "int8")))
RECENT = (0, 64)


@dataclass(frozen=True)
class CacheCost:
    """One cache on texts. ``keys`` and ``values``: schemes, "" for what stays exact; ``kl`` in nats a token
    with its 95 % interval over texts; ``same_top``: tokens whose most probable successor is the same;
    ``bits`` of a number of the parts that are stored; ``losses``: the KL of each text."""

    model: str
    keys: str
    values: str
    recent: int
    rotated: bool
    kl: float
    low: float
    high: float
    same_top: float
    bits: float
    texts: int
    tokens: int
    losses: tuple[float, ...]


def plans() -> list[CachePlan]:
    """Keys alone and values alone by each scheme; pairs, with and without last tokens kept; and rotated."""
    every = each_alone([Scheme.parse(name) for name in PLAIN])
    for bits in BITS[1:]:
        channel, token = (Scheme.parse(INTEGER.format(bits, block)) for block in (CHANNEL, TOKEN))
        every += [CachePlan(channel, token, recent) for recent in RECENT]
        every.append(CachePlan(token, channel))
    return every + each_alone([Scheme.parse(name) for name in ROTATED], rotated=(True,))


def texts() -> Texts:
    """The built-in held-out texts, as this table runs them."""
    return replace(texts_of(held_out_texts(True)), sequence_length=LENGTH, samples=SAMPLES)


def run_cache(model: Model) -> Iterator[CacheCost]:
    """What each of ``plans`` costs ``model``."""
    survey = CacheSurvey(model, texts())
    for plan in plans():
        loss = survey.loss(plan)
        row = survey.row(plan, loss)
        low, high = (row.kl if end is None else end for end in (row.low, row.high))
        names = ("" if scheme is None else str(scheme) for _, scheme in plan.parts)
        rest = (row.kl, low, high, row.same_top, row.bits, loss.texts, loss.tokens, loss.each)
        yield CacheCost(model.name, *names, plan.recent, plan.rotated, *rest)


def record_cache(model: Model) -> Path:
    """Write ``assets/measurements/cache.json`` after each row, so that a run that is stopped keeps what it
    has measured."""
    machine, rows = this_machine(work_device(), PACKAGES), list[CacheCost]()
    for row in run_cache(model):
        rows.append(row)
        path = record(NAME, Recording(machine, tuple(rows)))
    return path


def recorded_cache() -> Recording[CacheCost]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, CacheCost)
