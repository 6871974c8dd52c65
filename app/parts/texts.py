"""Texts of one prompt next to each other: what was written, where it parts from the original's, KL along
that, and what was measured."""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise

from app.parts import html
from explorer import words
from explorer.running.compare import ComparedToken, Comparison, Parting
from explorer.running.engine import Token, TokenCandidate
from explorer.running.transcript import Transcript

END, PART = "[end]", "[part]"
"""Signs of a token that ends a text, and of one of several that make a character."""
KL_EDGES = (0.001, 0.01, 0.1, 1.0)
"""Nats: ends of the steps of colour."""
ORIGINAL = "original"


@dataclass
class TextColumn:
    """One model's column while it is filled.

    name: "original", "a", "b" or another. label: what its layers are quantized by. mark: what its parting is
    called in the original's text. state: what it does, in words, "" once it is done. error: why there is no
    text.
    """

    name: str
    label: str
    mark: str = ""
    state: str = ""
    error: str = ""
    transcript: Transcript | None = None

    @property
    def after(self) -> str:
        """What it did, in words, once a run has ended before it."""
        return "stopped" if self.transcript else "not run"


@dataclass(frozen=True)
class TextPiece:
    """Part of a text. ``marks``: who parts in this token; empty for all other pieces."""

    text: str
    marks: tuple[str, ...] = ()


@dataclass(frozen=True)
class KlStep:
    """A token of the original's text: how far the distributions are from each other there. ``level``: its
    step of colour, from 0. ``first``, ``second``: both models' most probable tokens, in words."""

    place: int
    text: str
    kl: str
    level: int
    first: str
    second: str


@dataclass(frozen=True)
class CandidateRow:
    """The n-th most probable token of the original and of the other model, each with its share in %."""

    first: str
    first_share: str
    second: str
    second_share: str


@dataclass(frozen=True)
class Fact:
    """A line of what was measured. ``more``: what is folded. ``plain``: a number that is not compared."""

    name: str
    number: str
    remark: str = ""
    more: str = ""
    plain: bool = False


@dataclass(frozen=True)
class ShownColumn:
    """A column as its template takes it. ``speed``: what its speed can be compared with."""

    column: TextColumn
    prompt: str
    pieces: list[TextPiece]
    facts: list[Fact]
    speed: str = ""
    parting: str = ""
    rows: list[CandidateRow] = field(default_factory=list)
    kl: str = ""
    steps: list[KlStep] = field(default_factory=list)


def texts(prompt: str, columns: Sequence[TextColumn]) -> str:
    """The columns side by side, "" for none."""
    if not columns:
        return ""
    found = {c.name: c.transcript.comparison for c in columns if c.transcript and c.transcript.comparison}
    in_original: dict[int, list[str]] = {}
    for column in columns:
        if (compared := found.get(column.name)) and compared.parting:
            in_original.setdefault(compared.parting.index, []).append(column.mark)
    speed = _speed_words([column.transcript for column in columns if column.transcript])
    shown = [_shown(prompt, column, found.get(column.name), in_original, speed) for column in columns]
    return html.render("texts", columns=shown, legend=_legend() if found else [])


def _speed_words(written: Sequence[Transcript]) -> str:
    """Why the speeds of these texts are not to be compared; empty where they are."""
    if len({one.engine for one in written}) > 1:
        return "Speeds of different engines are not comparable."
    if len(written) > 1 and all(one.same_products for one in written):
        return "The speed does not depend on the scheme: torch computes the same products in every column."
    return ""


def _shown(
    prompt: str,
    column: TextColumn,
    compared: Comparison | None,
    in_original: dict[int, list[str]],
    speed: str,
) -> ShownColumn:
    written = column.transcript
    if written is None:
        return ShownColumn(column, prompt, [], [])
    if compared is None:
        marks = {at: tuple(names) for at, names in in_original.items()} if column.name == ORIGINAL else {}
        return ShownColumn(column, prompt, _pieces(written.tokens, marks), _facts(written, speed), speed)
    parting = compared.parting
    return ShownColumn(
        column,
        prompt,
        _pieces(written.tokens, {parting.index: (column.mark,)} if parting else {}),
        _facts(written, speed),
        speed,
        parting=_parting_words(parting, len(written.tokens), " so far" if column.state else ""),
        rows=_candidates(parting, compared),
        kl=_kl_words(compared),
        steps=[_step(place, len(compared.steps), step) for place, step in enumerate(compared.steps, 1)],
    )


def _pieces(tokens: Sequence[Token], marks: dict[int, tuple[str, ...]]) -> list[TextPiece]:
    """The text, cut where it is marked."""
    pieces, plain = list[TextPiece](), ""
    for index in range(max(len(tokens), *(at + 1 for at in marks), 0)):
        text = tokens[index].text if index < len(tokens) else ""
        if index not in marks:
            plain += text
            continue
        ends = index >= len(tokens) or tokens[index].ends
        pieces += [TextPiece(plain), TextPiece(_visible(text, ends), marks[index])]
        plain = ""
    return [piece for piece in (*pieces, TextPiece(plain)) if piece.text]


def _visible(text: str, ends: bool) -> str:
    """A marked token's text; signs for one that would not be seen."""
    if text.strip():
        return text
    return text.replace("\n", "⏎").replace(" ", "␣") or (END if ends else PART)


def _facts(written: Transcript, speed: str) -> list[Fact]:
    """What was measured."""
    figures = written.figures
    told = figures.told
    own = f"{_rate(told.tokens_per_second)} by its own clock" if told and told.tokens_per_second else ""
    by, plain = f"by {written.engine}", bool(speed)
    prompt, text = _counted(figures.prompt_tokens), _counted(figures.tokens)
    return [
        Fact("Prompt", _rate(figures.prompt_per_second), _listed(by, prompt), plain=plain),
        Fact("Text", _rate(figures.tokens_per_second), _listed(by, text, own), plain=plain),
        Fact(
            "Weights",
            f"{words.bytes_(written.held_bytes)} in memory",
            f"{words.bytes_(written.stored_bytes)} in files",
        ),
        Fact("Engine", written.engine, more=f"Why: {written.why}. What multiplies: {written.products}."),
    ]


def _listed(*parts: str) -> str:
    return ", ".join(part for part in parts if part)


def _rate(value: float | None) -> str:
    """Of one run, whose speed is not known to a third digit."""
    return "–" if value is None else f"{words.number(value, 2)}\u00a0tokens/s"


def _counted(tokens: int | None) -> str:
    return "" if tokens is None else f"{tokens:,} token{'' if tokens == 1 else 's'}"


def _parting_words(parting: Parting | None, tokens: int, so_far: str = "") -> str:
    if parting is None:
        return f"The text is the original's{so_far}, token for token ({tokens:,})."
    pair = (parting.original, parting.changed)
    texts = [token.text for token in pair if token]
    one, other = (_token_words(token, texts[0] == texts[-1] and len(texts) == 2) for token in pair)
    return f"Parts at token {parting.index + 1:,}: {other}, where the original {one}."


def _token_words(token: Token | None, alike: bool) -> str:
    """What a text has where it parts; with its number if it looks as the other's."""
    if token is None:
        return "has ended"
    if token.ends and not token.text:
        return "ends"
    number = f" (token {token.id})" if token.id is not None and alike else ""
    return f"has {_quoted(token.text) if token.text else 'part of a character'}{number}"


def _candidates(parting: Parting | None, compared: Comparison) -> list[CandidateRow]:
    """Both models' most probable tokens where the texts part: those of the engines that wrote, else those of
    the comparison, which torch computed."""
    if parting is None:
        return []
    tops = [token.top if token else () for token in (parting.original, parting.changed)]
    if not all(tops) and parting.index < len(compared.steps):
        step = compared.steps[parting.index]
        tops = [step.original, step.changed]
    return [
        CandidateRow(*_cell(tops[0], rank), *_cell(tops[1], rank))
        for rank in range(max(map(len, tops), default=0))
    ]


def _cell(top: Sequence[TokenCandidate], rank: int) -> tuple[str, str]:
    if rank >= len(top):
        return "", ""
    return _quoted(top[rank].text), f"{100 * top[rank].probability:.1f}"


def _kl_words(compared: Comparison) -> str:
    if not compared.steps:
        return ""
    steps = compared.steps
    worst = max(range(len(steps)), key=lambda index: steps[index].kl)
    step = steps[worst]
    return (
        f"{words.number(compared.mean_kl or 0.0)} nats a token on average, at most {words.number(step.kl)}, "
        f"at token {worst + 1:,}, {_quoted(step.text) if step.text else _visible('', step is steps[-1])}"
    )


def _step(place: int, count: int, step: ComparedToken) -> KlStep:
    first, second = (
        ", ".join(f"{_quoted(one.text)}\u00a0{100 * one.probability:.1f}\u00a0%" for one in top)
        for top in (step.original, step.changed)
    )
    level = bisect_right(KL_EDGES, step.kl)
    return KlStep(place, _visible(step.text, place == count), words.number(step.kl), level, first, second)


def _legend() -> list[str]:
    """What each step of colour stands for, in nats."""
    edges = [f"{edge:g}" for edge in KL_EDGES]
    between = [f"{low} to {high}" for low, high in pairwise(edges)]
    return [f"below {edges[0]}", *between, f"{edges[-1]} and more"]


def _quoted(text: str) -> str:
    """A token's text with its blanks, at none of which a line breaks."""
    return json.dumps(text, ensure_ascii=False).replace(" ", "\u00a0") if text else END
