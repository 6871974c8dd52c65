"""Measure the loss of changed weights on texts, against the original model: of an encoder by its embeddings,
of a causal language model by its distributions of the next token.

A loss also gives ``objectives``: scalars whose squared gradients are, on average, the Fisher information that
the signals of ``sensitivities`` are made of. For embeddings e of length one the loss 1 - cos is ½‖Δe‖², and E
(∇ v·e)(∇ v·e)ᵀ over random v ~ N(0, 1) is its second derivative; for distributions the second derivative of
the KL divergence is E ∇log p(y) ∇log p(y)ᵀ over tokens y drawn from the model itself, so no labels are
needed.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint as computed_again

from explorer.models.capture import LONGEST, Model
from explorer.models.evaluate import LONGEST as LONGEST_SENTENCE
from explorer.models.evaluate import embed_batch, embed_sequences, embedding_scores
from explorer.models.texts import AnyTexts, Texts, TokenSequence, texts_of, token_sequences
from explorer.progress import Progress, checkpoint
from explorer.sources.base import SourceError
from explorer.survey.interval import standard_errors

EMBEDDING, NEXT_TOKEN = "embedding", "next token"
DRAWS = {EMBEDDING: 4, NEXT_TOKEN: 1}
"""Number of random objectives for each text, by kind of loss: an embedding is one vector, a text has a
distribution at every token."""
MOST_LOGITS = 1 << 28
"""Largest number of the original's log-probabilities that are kept; on later texts the original is run
again."""
PIECE = 1 << 24
"""Number of logits whose softmax is taken at a time: each temporary takes 64 MB."""


@dataclass(frozen=True)
class Loss:
    """Measured loss: ``value`` with its 95 % interval over texts (None for a single text).

    ``kind`` "embedding": the mean of 1 - cosine; ``scores`` are those of ``embedding_scores``. "next token":
    the mean KL divergence in nats a token; ``scores``: perplexity, perplexity_original, same_top (share of
    tokens whose most probable successor is the same), kl_p99 (99th percentile of the KL divergence over
    tokens). ``kinds``: the same for each kind of text, if there are several. ``texts``: number of texts used;
    ``left_out``: texts of fewer than two tokens. ``each``: the mean of each used text, in their order: the
    losses of two models on the same texts are paired.
    """

    kind: str
    value: float
    low: float | None
    high: float | None
    texts: int
    tokens: int
    scores: Mapping[str, float] = field(default_factory=dict)
    left_out: int = 0
    kinds: Mapping[str, Loss] = field(default_factory=dict)
    each: tuple[float, ...] = field(default=(), repr=False)


class LossReference(Protocol):
    """Original model on some texts, to measure the loss of another network against.

    ``sequences`` are run; ``left_out`` is the number of texts that could not be.
    """

    kind: str
    texts: Texts
    sequences: Sequence[TokenSequence]
    left_out: int
    tokens: int

    def measure(self, network: nn.Module, progress: Progress | None = None) -> Loss:
        """Measure the loss of ``network``, which has the original's architecture."""
        ...

    def objectives(self, draws: Tensor, index: int) -> tuple[list[Tensor], int]:
        """Return scalars of the sequence ``index``, each for one gradient; and the number of samples that
        each counts as."""
        ...


def reference_for(model: Model, texts: AnyTexts) -> LossReference:
    """Make the reference of the original ``model`` on ``texts``; ``SourceError`` if it cannot be run on
    them."""
    texts = texts_of(texts)
    if not texts:
        raise SourceError("give at least one line of text")
    try:
        return _NextTokens(model, texts) if model.causal else _Embeddings(model, texts)
    except SourceError:
        raise
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # Whatever a network of another kind (speech, images, sequence to sequence) says to text.
        raise SourceError(
            f"{model.name} cannot be run on text: {str(error).splitlines()[0][:200]}"
        ) from error


def hash_of(texts: AnyTexts) -> str:
    """SHA-256 of texts without blank ones; plain texts are hashed as lines."""
    return texts_of(texts).sha256


class _Embeddings:
    """Embeddings of an encoder: the mean of each text's token vectors, of length one."""

    kind, left_out = EMBEDDING, 0

    def __init__(self, model: Model, texts: Texts) -> None:
        self.model, self.texts = model, texts
        self.sequences: Sequence[TokenSequence] = token_sequences(model, texts, LONGEST_SENTENCE)
        self.before = embed_sequences(model, self.sequences)
        self.tokens = sum(len(one.ids) for one in self.sequences)

    def measure(self, network: nn.Module, progress: Progress | None = None) -> Loss:
        after = embed_sequences(replace(self.model, network=network), self.sequences, progress)
        lost = 0.5 * (after.double() - self.before.double()).square().sum(
            1
        )  # 1 - cosine, without cancellation
        scores = embedding_scores(self.before, after) if len(self.sequences) > 2 else {}
        value, low, high = _mean(lost, torch.ones(len(lost)))
        each = tuple(lost.tolist())
        return Loss(self.kind, value, low, high, len(lost), self.tokens, scores, each=each)

    def objectives(self, draws: Tensor, index: int) -> tuple[list[Tensor], int]:
        """Project the embedding on random vectors."""
        embedding = embed_batch(self.model, [self.sequences[index]])[0]
        generator = torch.Generator().manual_seed(int(draws[index]))
        random = torch.randn(DRAWS[self.kind], len(embedding), generator=generator)
        return list((random.to(embedding) * embedding).sum(1)), 1


@dataclass(frozen=True, eq=False)
class _Compared:
    """Two networks compared on one text of n tokens.

    ``divergence`` float32 [n], on the CPU, in nats; ``same``: number of tokens with the same most probable
    successor; negative log-likelihoods of the text, in nats.
    """

    kind: str
    divergence: Tensor
    same: int
    surprise_original: float
    surprise: float


class _NextTokens:
    """Reference of a causal language model: its distributions of the next token.

    ``before``: the original's log-probabilities by text, None for texts beyond ``MOST_LOGITS``.
    """

    kind = NEXT_TOKEN

    def __init__(self, model: Model, texts: Texts) -> None:
        self.model, self.texts = model, texts
        found = token_sequences(model, texts, LONGEST)
        self.sequences: Sequence[TokenSequence] = [one for one in found if len(one.ids) > 1]
        self.left_out = len(found) - len(self.sequences)
        if not self.sequences:
            raise ValueError("no text has two tokens")
        self.tokens = sum(len(one.ids) for one in self.sequences)
        self.before: list[Tensor | None] = []
        room = MOST_LOGITS
        for index in range(len(self.sequences)):
            checkpoint()
            before = self._log_probabilities(index) if room > 0 else None
            room -= 0 if before is None else before.numel()
            self.before.append(before if room >= 0 else None)

    def _logits(self, network: nn.Module, index: int) -> Tensor:
        """Logits of each token's successor: float32 [tokens, vocabulary]."""
        ids = torch.tensor([self.sequences[index].ids], device=self.model.device)
        logits: Tensor = network(input_ids=ids).logits[0].float()
        return logits

    def _log_probabilities(self, index: int) -> Tensor:
        """Log-probabilities of the original, float32 [tokens, vocabulary], in the memory of its logits."""
        with torch.no_grad():
            logits = self._logits(self.model.network, index)
            for rows in _in_pieces(logits):
                rows.copy_(rows.log_softmax(-1))
        return logits

    def measure(self, network: nn.Module, progress: Progress | None = None) -> Loss:
        found = []
        for index in range(len(self.sequences)):
            checkpoint()
            found.append(self._compare(network, index))
            if progress is not None:
                progress(index + 1, len(self.sequences))
        kinds = dict.fromkeys(one.kind for one in found)
        by_kind = {kind: _next_token_loss([one for one in found if one.kind == kind]) for kind in kinds}
        whole = _next_token_loss(found)
        return replace(whole, left_out=self.left_out, kinds=by_kind if len(by_kind) > 1 else {})

    def _compare(self, network: nn.Module, index: int) -> _Compared:
        sequence, before = self.sequences[index], self.before[index]
        with torch.no_grad():
            p_rows = self._log_probabilities(index) if before is None else before
            q_rows = self._logits(network, index)
            following = torch.tensor([*sequence.ids[1:], 0], device=q_rows.device)[:, None]
            divergence, surprises, same = [], [], 0
            step = _rows_of_a_piece(q_rows)
            for p, logits, ids in zip(*(x.split(step) for x in (p_rows, q_rows, following)), strict=True):
                q = logits.log_softmax(-1)
                divergence.append((p.exp() * (p - q)).sum(-1))
                surprises.append(torch.cat([x.gather(1, ids) for x in (p, q)], 1))
                same += int((p.argmax(-1) == q.argmax(-1)).sum())
            of_text = -torch.cat(surprises)[:-1].sum(0)  # of the last token there is no successor
        return _Compared(sequence.kind, torch.cat(divergence).cpu(), same, *of_text.tolist())

    def objectives(self, draws: Tensor, index: int) -> tuple[list[Tensor], int]:
        """Log-likelihoods of tokens drawn from the model's own distributions, one after every token. The
        softmax of each piece is computed again in the backward pass rather than kept."""
        logits = self._logits(self.model.network, index)
        generator = torch.Generator().manual_seed(int(draws[index]))
        found: list[Tensor] = []
        for rows in _in_pieces(logits):
            drawn = self._drawn(rows.detach(), generator).to(rows.device)
            found.append(
                computed_again(_log_likelihoods, rows, drawn, use_reentrant=False, preserve_rng_state=False)
            )
        return list(torch.cat(found).sum(0)), len(logits)

    def _drawn(self, logits: Tensor, generator: torch.Generator) -> Tensor:
        """Draw successors of each token: int64 [tokens, draws], on the CPU."""
        shares = logits.log_softmax(-1).exp().cpu()
        if not shares.isfinite().all():
            raise SourceError(
                f"{self.model.name} computes NaN or Inf for a text: one of its weights may hold them"
            )
        return torch.multinomial(shares, DRAWS[self.kind], replacement=True, generator=generator)


def _log_likelihoods(logits: Tensor, drawn: Tensor) -> Tensor:
    """Log-likelihoods [tokens, draws] of the tokens ``drawn``."""
    return logits.log_softmax(-1).gather(1, drawn)


def _rows_of_a_piece(logits: Tensor) -> int:
    return max(1, PIECE // logits.shape[-1])


def _in_pieces(logits: Tensor) -> tuple[Tensor, ...]:
    """Split into groups of rows of at most ``PIECE`` elements."""
    return logits.split(_rows_of_a_piece(logits))


def _next_token_loss(found: Sequence[_Compared]) -> Loss:
    """Combine the results of all texts."""
    sums = torch.stack([one.divergence.sum() for one in found])
    counts = torch.tensor([len(one.divergence) for one in found])
    tokens, successors = int(counts.sum()), int(counts.sum()) - len(found)
    divergence = torch.cat([one.divergence for one in found]).numpy()
    value, low, high = _mean(sums, counts)
    scores = {
        "perplexity": _exp(sum(one.surprise for one in found) / successors),
        "perplexity_original": _exp(sum(one.surprise_original for one in found) / successors),
        "same_top": sum(one.same for one in found) / tokens,
        "kl_p99": max(float(np.percentile(divergence, 99)), 0.0),
    }
    each = tuple(float(one.divergence.mean()) for one in found)
    return Loss(NEXT_TOKEN, value, low, high, len(found), tokens, scores, each=each)


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))


def _mean(sums: Tensor, counts: Tensor) -> tuple[float, float | None, float | None]:
    """Mean Σ ``sums`` / Σ ``counts``, both [texts], with the 95 % interval of a ratio over texts by Student's
    t."""
    sums, counts = sums.double(), counts.double()
    n, value = len(sums), max(float(sums.sum() / counts.sum()), 0.0)
    if n < 2:
        return value, None, None
    residues = (sums - value * counts) / counts.mean()
    half = standard_errors(n) * float(residues.square().sum() / (n - 1) / n) ** 0.5
    return value, max(value - half, 0.0), value + half


def seeds(reference: LossReference, seed: int = 0) -> Tensor:
    """Draw a seed for the ``objectives`` of each sequence: int64 [sequences]."""
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(0, 1 << 62, (len(reference.sequences),), generator=generator)


@dataclass(frozen=True, eq=False)
class Objective:
    """A ``scalar`` of the sequence ``index``, which counts as ``samples``. ``again``: more scalars of the
    sequence follow."""

    scalar: Tensor
    index: int
    samples: int
    again: bool


def each_objective(reference: LossReference) -> Iterator[Objective]:
    """Yield the scalars of all sequences."""
    draws = seeds(reference)
    for index in range(len(reference.sequences)):
        scalars, count = reference.objectives(draws, index)
        for position, scalar in enumerate(scalars):
            checkpoint()
            yield Objective(scalar, index, count, position + 1 < len(scalars))
