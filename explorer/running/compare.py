"""A text beside the original's: where the two part, and how far the distributions are from each other along
the original's text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.models.texts import AnyTexts
from explorer.progress import checkpoint
from explorer.running.engine import Token, TokenCandidate, Writing
from explorer.running.torch_engine import TorchEngine, top_of


@dataclass(frozen=True)
class Parting:
    """The first token in which two texts differ: its ``index``, and both tokens, None where a text has ended
    before. Up to it the texts are the same, so both have seen the same."""

    index: int
    original: Token | None
    changed: Token | None


@dataclass(frozen=True)
class ComparedToken:
    """One token of the original's text: its ``kl``, KL(original | changed) in nats, of the distributions that
    it is of, and their most probable tokens."""

    id: int
    text: str
    kl: float
    original: tuple[TokenCandidate, ...]
    changed: tuple[TokenCandidate, ...]


@dataclass(frozen=True)
class Comparison:
    """``parting``: None where the texts are the same; ``steps`` along the original's text."""

    parting: Parting | None
    steps: tuple[ComparedToken, ...]

    @property
    def mean_kl(self) -> float | None:
        """Nats a token; None of no token."""
        return math.fsum(step.kl for step in self.steps) / len(self.steps) if self.steps else None


def parting_of(original: Sequence[Token], changed: Sequence[Token]) -> Parting | None:
    """Where two texts from the same prompt part. Tokens that an engine gives no id for are compared by their
    text."""
    for index, (one, other) in enumerate(zip(original, changed, strict=False)):
        known = one.id is not None and other.id is not None
        if one.id != other.id if known else one.text != other.text:
            return Parting(index, one, other)
    if len(original) == len(changed):
        return None
    index = min(len(original), len(changed))
    rest = [tokens[index] if index < len(tokens) else None for tokens in (original, changed)]
    return Parting(index, *rest)


def parting_so_far(original: Writing, changed: Writing) -> Parting | None:
    """Where ``changed``, which may still be written, parts from ``original``: None while all its tokens are
    the original's."""
    shorter = min(len(original.tokens), len(changed.tokens))
    return parting_of(original.tokens[:shorter], changed.tokens[:shorter])


def steps_along(
    original: TorchEngine, changed: TorchEngine, prompt: str, written: Sequence[Token]
) -> tuple[ComparedToken, ...]:
    """The original's text ``written`` run by both networks, up to the first token that has no id.
    ``ValueError`` for networks of different vocabularies."""
    ids: list[int] = []
    for token in written:
        if token.id is None:
            break
        ids.append(token.id)
    if not ids:
        return ()
    given = [*original.encode(prompt), *ids][:-1]
    before, after = original.logits(given, len(ids)), changed.logits(given, len(ids))
    if before.shape != after.shape:
        raise ValueError(
            f"{changed.model.name} has {after.shape[1]:,} tokens in its vocabulary and {original.model.name} "
            f"{before.shape[1]:,}: it was not made of that model"
        )
    decode = original.model.tokenizer.decode
    steps = []
    for index, known in enumerate(ids):
        checkpoint()
        p, q = (rows[index].double().log_softmax(-1) for rows in (before, after))
        tops = (top_of(one, lambda one: str(decode([one]))) for one in (p, q))
        steps.append(ComparedToken(known, written[index].text, divergence(p, q), *tops))
    return tuple(steps)


def divergence(p: Tensor, q: Tensor) -> float:
    """KL(p | q) in nats of two log-probabilities [vocabulary]."""
    known = p.exp() > 0  # 0 · log 0 is 0
    p, q = p[known], q[known]
    return max(float((p.exp() * (p - q)).sum()), 0.0)


def compare(
    original: Writing, changed: Writing, device: torch.device, calibration: AnyTexts = ()
) -> Comparison:
    """Two texts from the same prompt held against each other. Distributions are torch's, whichever engines
    wrote: another's model is loaded once more for them. ``ValueError`` for texts of two prompts."""
    if original.prompt != changed.prompt:
        raise ValueError("texts are compared that continue the same prompt")
    first, second = (_on_torch(one, device, calibration) for one in (original, changed))
    steps = steps_along(first, second, original.prompt, original.tokens)
    return Comparison(parting_of(original.tokens, changed.tokens), steps)


def _on_torch(writing: Writing, device: torch.device, calibration: AnyTexts) -> TorchEngine:
    engine = writing.engine
    if isinstance(engine, TorchEngine):
        return engine
    return TorchEngine.load(engine.subject, device, calibration)
