"""What a change of weights costs a model on texts, measured: of an encoder its embeddings, of a causal
language model its distributions of the next token, each against those of the original model.

A loss also gives ``objectives``: scalars whose squared gradients are, on average, the Fisher information that
the signals of ``sensitivities`` are made of. For embeddings e of length one the loss 1 - cos is ½‖Δe‖², and
E (∇ v·e)(∇ v·e)ᵀ over random v ~ N(0, 1) is its second derivative; for distributions the second derivative of
the KL divergence is E ∇log p(y) ∇log p(y)ᵀ over tokens y drawn from the model itself, so no labels are
needed.
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Protocol

import torch
from torch import Tensor, nn

from explorer.models.capture import LONGEST, Model
from explorer.models.evaluate import LONGEST as LONGEST_SENTENCE
from explorer.models.evaluate import embed, embed_batch, embedding_scores
from explorer.progress import Progress, checkpoint
from explorer.sources.base import SourceError

EMBEDDING, NEXT_TOKEN = "embedding", "next token"
DRAWS = {EMBEDDING: 4, NEXT_TOKEN: 1}
"""Random objectives for each text: an embedding is one vector, a text has a distribution at every token."""
MOST_LOGITS = 1 << 28
"""Elements of the original's log-probabilities that are kept: later texts are left out."""
NORMAL_95 = 1.96


@dataclass(frozen=True)
class Loss:
    """``value`` with its 95 % interval over texts (None of a single one).

    ``kind`` "embedding": the mean of 1 - cosine; ``scores`` are those of ``embedding_scores``. "next token":
    the mean KL divergence in nats a token; ``scores``: perplexity, perplexity_original, same_top (share of
    tokens whose most probable successor is the same).
    """

    kind: str
    value: float
    low: float | None
    high: float | None
    texts: int
    tokens: int
    scores: Mapping[str, float] = field(default_factory=dict)


class LossReference(Protocol):
    """The original model on some texts, and how far another network is from it."""

    kind: str
    texts: tuple[str, ...]
    tokens: int

    def measure(self, network: nn.Module, progress: Progress | None = None) -> Loss:
        """The loss of ``network``, which has the original's architecture."""
        ...

    def objectives(self, draws: Tensor, index: int) -> tuple[list[Tensor], int]:
        """Scalars of the text ``index``, a gradient each, and how many samples each one counts for."""
        ...


def reference_for(model: Model, texts: Sequence[str]) -> LossReference:
    """The original ``model`` on ``texts``; ``SourceError`` where it cannot be run on them."""
    texts = tuple(text for text in texts if text.strip())
    if not texts:
        raise SourceError("give at least one line of text")
    try:
        return _NextTokens(model, texts) if model.causal else _Embeddings(model, texts)
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as error:
        # Whatever a network of another kind (speech, images, sequence to sequence) says to text.
        raise SourceError(
            f"{model.name} cannot be run on text: {str(error).splitlines()[0][:200]}"
        ) from error


def hash_of(texts: Sequence[str]) -> str:
    """SHA-256 of texts, a line each, blank ones left out."""
    return hashlib.sha256("\n".join(text for text in texts if text.strip()).encode()).hexdigest()


class _Embeddings:
    """Embeddings of an encoder: the mean of each text's token vectors, of length one."""

    kind = EMBEDDING

    def __init__(self, model: Model, texts: tuple[str, ...]) -> None:
        self.model, self.texts = model, texts
        self.before = embed(model, texts)
        ids = model.tokenizer(list(texts), truncation=True, max_length=LONGEST_SENTENCE)["input_ids"]
        self.tokens = sum(map(len, ids))

    def measure(self, network: nn.Module, progress: Progress | None = None) -> Loss:
        after = embed(replace(self.model, network=network), self.texts, progress)
        lost = 0.5 * (after.double() - self.before.double()).square().sum(
            1
        )  # 1 - cosine, without cancellation
        scores = embedding_scores(self.before, after) if len(self.texts) > 2 else {}
        return _loss(self, lost, torch.ones(len(lost)), scores)

    def objectives(self, draws: Tensor, index: int) -> tuple[list[Tensor], int]:
        """Random projections of the embedding."""
        embedding = embed_batch(self.model, [self.texts[index]])[0]
        generator = torch.Generator().manual_seed(int(draws[index]))
        random = torch.randn(DRAWS[self.kind], len(embedding), generator=generator)
        return list((random.to(embedding) * embedding).sum(1)), 1


class _NextTokens:
    """Distributions of the next token of a causal language model."""

    kind = NEXT_TOKEN

    def __init__(self, model: Model, texts: tuple[str, ...]) -> None:
        self.model = model
        self.before: list[Tensor] = []
        self.ids: list[Tensor] = []
        elements, kept = 0, []
        for text in texts:
            checkpoint()
            ids = model.tokenizer(text, truncation=True, max_length=LONGEST, return_tensors="pt")["input_ids"]
            if ids.shape[1] < 2:
                continue
            with torch.no_grad():
                before = self._log_probabilities(model.network, ids)
            elements += before.numel()
            if self.before and elements > MOST_LOGITS:
                break
            kept.append(text)
            self.ids.append(ids)
            self.before.append(before)
        if not kept:
            raise ValueError("no text has two tokens")
        self.texts = tuple(kept)
        self.tokens = sum(ids.shape[1] for ids in self.ids)

    def _log_probabilities(self, network: nn.Module, ids: Tensor) -> Tensor:
        """float32 [tokens, vocabulary] of each token's successor."""
        return network(input_ids=ids.to(self.model.device)).logits[0].float().log_softmax(-1)

    def measure(self, network: nn.Module, progress: Progress | None = None) -> Loss:
        sums = torch.zeros(len(self.ids), 5, dtype=torch.float64)
        for index, (ids, p) in enumerate(zip(self.ids, self.before, strict=True)):
            checkpoint()
            with torch.no_grad():
                q = self._log_probabilities(network, ids)
                divergence = (p.exp() * (p - q)).sum(-1)
                following = ids[0, 1:, None].to(p.device)
                surprise = [-x[:-1].gather(1, following).sum() for x in (p, q)]
                same = (p.argmax(-1) == q.argmax(-1)).sum()
            sums[index] = torch.stack(
                [divergence.sum(), same, *surprise, divergence.new_tensor(len(p))]
            ).cpu()
            if progress is not None:
                progress(index + 1, len(self.ids))
        total, count = sums.sum(0).tolist(), self.tokens
        successors = count - len(self.ids)
        scores = {
            "perplexity": _exp(total[3] / successors),
            "perplexity_original": _exp(total[2] / successors),
            "same_top": total[1] / count,
        }
        return _loss(self, sums[:, 0], sums[:, 4], scores)

    def objectives(self, draws: Tensor, index: int) -> tuple[list[Tensor], int]:
        """Log-likelihoods of tokens drawn from the model's own distributions, one after every token."""
        ids = self.ids[index]
        found = self._log_probabilities(self.model.network, ids)
        generator = torch.Generator().manual_seed(int(draws[index]))
        shares = found.detach().exp().cpu()
        if not shares.isfinite().all():
            raise SourceError(
                f"{self.model.name} computes NaN or Inf for a text: one of its weights may hold them"
            )
        drawn = torch.multinomial(shares, DRAWS[self.kind], replacement=True, generator=generator)
        return list(found.gather(1, drawn.to(found.device)).sum(0)), ids.shape[1]


def _exp(x: float) -> float:
    return math.exp(min(x, 700.0))


def _loss(reference: LossReference, sums: Tensor, counts: Tensor, scores: Mapping[str, float]) -> Loss:
    """The mean of what ``sums`` [texts] are sums of ``counts`` of, with the interval of a ratio over
    texts."""
    sums, counts = sums.double(), counts.double()
    n, value = len(sums), max(float(sums.sum() / counts.sum()), 0.0)
    low = high = None
    if n > 1:
        residues = (sums - value * counts) / counts.mean()
        half = NORMAL_95 * float(residues.square().sum() / (n - 1) / n) ** 0.5
        low, high = max(value - half, 0.0), value + half
    return Loss(reference.kind, value, low, high, n, reference.tokens, scores)


def seeds(reference: LossReference, seed: int = 0) -> Tensor:
    """int64 [texts]: a seed for each text's ``objectives``."""
    return torch.randint(0, 1 << 62, (len(reference.texts),), generator=torch.Generator().manual_seed(seed))


def each_objective(reference: LossReference) -> Iterator[tuple[Tensor, bool, int]]:
    """Every text's scalars: (scalar, whether the same text has another one, samples that it counts for)."""
    draws = seeds(reference)
    for index in range(len(reference.texts)):
        scalars, count = reference.objectives(draws, index)
        for position, scalar in enumerate(scalars):
            checkpoint()
            yield scalar, position + 1 < len(scalars), count
