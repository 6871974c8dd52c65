"""Effect of quantization on a whole model: sentence embeddings before and after every linear layer is
quantized.

The model is a transformers encoder whose token vectors are averaged into one vector per sentence, as
sentence-transformers does with all-MiniLM-L6-v2. The sentences of ``assets/texts/similar.txt`` come in groups
of four, two that say the same and two on the same subject, so that similarities span their range.
"""

from __future__ import annotations

import copy
import fnmatch
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cache, partial

import torch
from torch import Tensor, nn

from explorer.cached import cached_property
from explorer.methods import RTN, names_in
from explorer.models.capture import Captured, Model, capture, linear_layers
from explorer.models.quantize import quantize_by_method
from explorer.models.serve import quantize_model
from explorer.models.text_files import built_in
from explorer.models.texts import AnyTexts, TokenSequence, token_sequences
from explorer.paths import ASSETS
from explorer.products.layer import QuantizedLinear
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme

MODEL = "sentence-transformers/all-MiniLM-L6-v2"
SENTENCES = ASSETS / "texts" / "similar.txt"
SAMPLES = 3
"""Number of samples of calibration texts, to see how far a method's result depends on the sample."""
BATCH, LONGEST = 32, 128
"""Sentences in a batch, and largest number of tokens of a sentence that are run."""


@dataclass(frozen=True)
class EmbeddingDrift:
    """Change of a model's embeddings under one scheme and method.

    cosine           of each embedding with its original: the mean, and ``least_cosine``
    rank             Spearman correlation of all similarities between sentences
    neighbours       share of sentences that keep their nearest other sentence
    bits, megabytes  bits of each weight of the linear layers; size of all of them
    sample           number of the ``calibration_texts`` that the method saw
    """

    scheme: str
    method: str
    activations: str
    cosine: float
    least_cosine: float
    rank: float
    neighbours: float
    bits: float
    megabytes: float
    seconds: float
    sample: int = 0


@cache
def sentences() -> tuple[str, ...]:
    """The sentences, a line each."""
    return tuple(line.strip() for line in SENTENCES.read_text(encoding="utf-8").splitlines() if line.strip())


@cache
def calibration_texts(sample: int = 0) -> tuple[str, ...]:
    """Texts to capture layers' inputs from. No sentence is in two of the ``SAMPLES`` samples, or in
    ``sentences``."""
    first, more = (
        tuple((SENTENCES.parent / name).read_text(encoding="utf-8").splitlines())
        for name in ("sentences.txt", "calibration.txt")
    )
    return (first + more)[sample * len(first) : (sample + 1) * len(first)]


def calibration_sentences() -> tuple[str, ...]:
    """The calibration texts of all samples."""
    return tuple(text for sample in range(SAMPLES) for text in calibration_texts(sample))


def built_in_texts(causal: bool = False) -> AnyTexts:
    """Texts to calibrate by if none are given: sentences, or for causal language models prose, code and chat.
    None is among ``held_out_texts``."""
    return built_in("causal-calibration") if causal else calibration_sentences()


def held_out_texts(causal: bool = False) -> AnyTexts:
    """Texts to measure a loss on if none are given."""
    return built_in("causal-held-out") if causal else sentences()


@dataclass(frozen=True, eq=False)
class OriginalModel:
    """The model that quantized copies are compared with.

    ``keep``: names or patterns of layers that stay as they are. Computed once, when first used: its
    embeddings of ``texts`` (``sentences`` if none are given), and the first ``tokens`` inputs of its other
    layers for the calibration texts ``sample``.
    """

    model: Model
    keep: tuple[str, ...] = ()
    tokens: int = 512
    texts: tuple[str, ...] = ()
    sample: int = 0

    @cached_property
    def embeddings(self) -> Tensor:
        """float32 [sentences, width]."""
        return embed(self.model, self.texts or sentences())

    @property
    def names(self) -> list[str]:
        """The linear layers that are to be quantized."""
        names = linear_layers(self.model)
        return [n for n in names if not any(fnmatch.fnmatch(n, pattern) for pattern in self.keep)]

    @cached_property
    def layers(self) -> list[Captured]:
        """Weights and inputs of the layers ``names``, from ``calibration_texts``."""
        return capture(self.model, calibration_texts(self.sample), self.names, self.tokens)

    def inputs_in(self, model: Model, name: str) -> Tensor:
        """float32 [tokens, K]: the inputs of the layer ``name`` in another ``model``, for the same tokens."""
        return capture(model, calibration_texts(self.sample), [name], self.tokens)[0].activations


def needs_inputs(method: str) -> bool:
    """True if ``method`` needs the layers' inputs, not only their weights."""
    return names_in(method) != [RTN]


def embed(model: Model, texts: AnyTexts, progress: Progress | None = None) -> Tensor:
    """Embed sentences: float32 [sentences, width], each the mean of a sentence's token vectors, scaled to
    length one."""
    return embed_sequences(model, token_sequences(model, texts, LONGEST), progress)


def embed_sequences(
    model: Model, sequences: Sequence[TokenSequence], progress: Progress | None = None
) -> Tensor:
    """Embed token sequences as ``embed`` does: float32 [sequences, width], on the CPU."""
    embeddings = []
    for start in range(0, len(sequences), BATCH):
        checkpoint()
        batch = sequences[start : start + BATCH]
        with torch.no_grad():
            embeddings.append(embed_batch(model, batch).cpu())
        if progress is not None:
            progress(start + len(batch), len(sequences))
    return torch.cat(embeddings)


def embed_batch(model: Model, sequences: Sequence[TokenSequence]) -> Tensor:
    """Embed one batch: float32 [sequences, width] of length one, on the model's device; gradients flow
    through it."""
    from transformers import DataCollatorWithPadding

    padded = DataCollatorWithPadding(model.tokenizer)([dict(one.inputs) for one in sequences])
    tokens = {k: v.to(model.device) for k, v in padded.items()}
    hidden = model.network(**tokens).last_hidden_state.float()
    mask = tokens["attention_mask"][..., None].float()
    mean = (hidden * mask).sum(1) / mask.sum(1)
    return nn.functional.normalize(mean, dim=1)


def evaluate_embeddings(
    original: OriginalModel, scheme: Scheme, method: str = RTN.name, activations: Scheme | None = None
) -> EmbeddingDrift:
    """Quantize a copy of the model's linear layers and compare its embeddings with the original's.

    Weights by ``scheme`` and ``method`` (a combination such as "rotation+gptq" too), inputs by
    ``activations`` if given. ``ValueError`` for unknown methods, and if the method does not support the
    scheme or a layer.
    """
    before = original.embeddings
    if needs_inputs(method):
        _ = original.layers  # captured before the clock starts
    start = time.perf_counter()
    network, bits, weights = quantized_network(original, scheme, method, activations)
    model = original.model
    after = embed(replace(model, network=network), original.texts or sentences())
    scores = embedding_scores(before, after)
    return EmbeddingDrift(
        scheme=scheme.name,
        method=method,
        activations=activations.name if activations else "",
        **scores,
        bits=bits,
        megabytes=bits * weights / 8e6,
        seconds=time.perf_counter() - start,
        sample=original.sample,
    )


def quantized_network(
    original: OriginalModel, scheme: Scheme, method: str = RTN.name, activations: Scheme | None = None
) -> tuple[nn.Module, float, int]:
    """Quantize the linear layers of a copy of the network. Returns the copy, the mean bits of the layers'
    weights and the number of these weights; arguments and ``ValueError`` as for ``evaluate_embeddings``."""
    network = copy.deepcopy(original.model.network)
    if not needs_inputs(method):
        quantize_model(network, dict.fromkeys(original.names, scheme), activations, kernels=False)
        stored = [m.quantized for m in network.modules() if isinstance(m, QuantizedLinear)]
        weights = sum(q.shape[0] * q.shape[1] for q in stored)
        return network, 8 * sum(q.nbytes for q in stored) / weights, weights
    layers, now = original.layers, replace(original.model, network=network)
    inputs_now = partial(original.inputs_in, now)
    bits = quantize_by_method(network, layers, method, scheme, activations, inputs_now=inputs_now)
    return network, bits, sum(layer.weight.numel() for layer in layers)


def embedding_scores(before: Tensor, after: Tensor) -> dict[str, float]:
    """Compute ``cosine``, ``least_cosine``, ``rank`` and ``neighbours`` (see ``EmbeddingDrift``) of
    embeddings [sentences, width] of length one."""
    cosine, similarities = (before * after).sum(1), [e @ e.t() for e in (before, after)]
    rows, columns = torch.triu_indices(len(before), len(before), 1)
    pairs = [one[rows, columns] for one in similarities]
    nearest = [one.fill_diagonal_(-2.0).argmax(1) for one in similarities]
    return {
        "cosine": float(cosine.mean()),
        "least_cosine": float(cosine.min()),
        "rank": _rank_correlation(*pairs),
        "neighbours": float((nearest[0] == nearest[1]).float().mean()),
    }


def _rank_correlation(a: Tensor, b: Tensor) -> float:
    """Spearman's correlation, with mean ranks for ties; 0 if one side is constant and has no ranks."""
    if bool((a == a[:1]).all()) or bool((b == b[:1]).all()):
        return 0.0
    from scipy.stats import spearmanr  # slow to import

    return float(spearmanr(a.numpy(), b.numpy()).statistic)
