"""A text compared with the original's: the first difference, and the KL divergence along the original's
text."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile, zip_longest

import torch
from torch import Tensor

from explorer.models.texts import AnyTexts
from explorer.progress import checkpoint
from explorer.running.engine import Token, TokenCandidate, Writing
from explorer.running.torch_engine import TorchEngine, top_of


@dataclass(frozen=True)
class Parting:
    """First difference of two texts: the ``index`` of the token, and both tokens; None for a text that has
    ended."""

    index: int
    original: Token | None
    changed: Token | None


@dataclass(frozen=True)
class ComparedToken:
    """One token of the original's text, with both networks' predictions for its place.

    ``kl``: KL(original | changed) of the two distributions, in nats. ``original``, ``changed``: the most
    probable tokens of each.
    """

    id: int
    text: str
    kl: float
    original: tuple[TokenCandidate, ...]
    changed: tuple[TokenCandidate, ...]


@dataclass(frozen=True)
class Comparison:
    """Comparison of a text with the original's: ``parting``, None if they are the same, and ``steps`` along
    the original's text."""

    parting: Parting | None
    steps: tuple[ComparedToken, ...]

    @property
    def mean_kl(self) -> float | None:
        """Mean KL divergence in nats a token; None without tokens."""
        return math.fsum(step.kl for step in self.steps) / len(self.steps) if self.steps else None


def parting_of(original: Sequence[Token], changed: Sequence[Token]) -> Parting | None:
    """Find the first difference of two texts from the same prompt; None if they are the same. Tokens without
    an id are compared by their text."""
    for index, (one, other) in enumerate(zip_longest(original, changed)):
        if one is None or other is None:
            return Parting(index, one, other)
        known = one.id is not None and other.id is not None
        if one.id != other.id if known else one.text != other.text:
            return Parting(index, one, other)
    return None


def parting_so_far(original: Writing, changed: Writing) -> Parting | None:
    """Find the first difference in the tokens that two texts have so far; either may still be written. None
    if there is none yet."""
    shorter = min(len(original.tokens), len(changed.tokens))
    return parting_of(original.tokens[:shorter], changed.tokens[:shorter])


def steps_along(
    original: TorchEngine, changed: TorchEngine, prompt: str, written: Sequence[Token]
) -> tuple[ComparedToken, ...]:
    """Compare the predictions of two networks along the original's text ``written``, up to the first token
    without an id. ``ValueError`` for networks of different vocabularies."""
    every = (token.id for token in written)
    ids = [one for one in takewhile(lambda one: one is not None, every) if one is not None]
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
    """Compare two texts from the same prompt, by torch's distributions: a model that wrote in another engine
    is loaded once more in torch. ``ValueError`` for texts of two prompts."""
    if original.prompt != changed.prompt:
        raise ValueError("texts are compared that continue the same prompt")
    engines = (original.engine, changed.engine)
    first, second = (
        one if isinstance(one, TorchEngine) else TorchEngine.load(one.subject, device, calibration)
        for one in engines
    )
    steps = steps_along(first, second, original.prompt, original.tokens)
    return Comparison(parting_of(original.tokens, changed.tokens), steps)
