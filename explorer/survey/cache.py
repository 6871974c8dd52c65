"""Measure the loss that a format of the cache of keys and values costs a causal model, by its next tokens.

The original network is run ``PIECE`` tokens at a time. Its cache restores older keys and values from their
codes before attention reads them, as a serving engine does while it writes. Exact are the last ``recent``
tokens, the piece that is run, and incomplete pieces; all earlier tokens are restored once, when they become
old. This holds for all schemes that find scales from the stored values, so that scales of tokens compare with
scales of channels. Schemes without scales, or with fixed ones, round each number at once.

Blocks do not cross heads: a block of 64 channels in heads of 80 is followed by one of 16. Scales of a whole
token (``int8_row``) are of all its heads. Keys are cached after rotary embedding: few of their channels are
large, always the same ones, so that scales of a channel (blocks of tokens x 1) suit them. Values have no such
channels, and scales of a token (1 x channels) suit them: Z. Liu et al., "KIVI", arXiv 2402.02750.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicCache, DynamicLayer

from explorer.analysis.cache import (
    BOTH,
    CONTEXT,
    EXACT_BITS,
    KEYS,
    PIECE,
    VALUES,
    CacheLayer,
    CachePlan,
    CacheShape,
    as_they_come,
    is_fixed,
    matrix_of,
)
from explorer.cached import cached_property
from explorer.models.capture import LONGEST, Model
from explorer.models.evaluate import built_in_texts, held_out_texts
from explorer.models.inputs import fixed_scale, quantized_inputs
from explorer.models.texts import AnyTexts, texts_of, token_sequences
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme
from explorer.schemes.observer import Observer
from explorer.sources.base import SourceError
from explorer.survey.loss import Loss, LossReference, reference_for

SCHEMES = (
    "fp8_e4m3_cast",
    *("int8~32x1~asymmetric~float16~minmax", "int8~1x64~asymmetric~float16~minmax"),
    *("mxfp4", "nvfp4"),
    *(f"int{b}~{block}~asymmetric~float16~minmax" for b in (4, 3, 2) for block in ("32x1", "1x64")),
)
"""Usual schemes: scales of 32 tokens of a channel, scales of 64 channels of a token (a head, if it has so
many), and formats with blocks of their own."""
_BEFORE = "_before_rotary"


class _RestoredLayer(DynamicLayer):
    """Keys and values of one layer, [1, heads, tokens, channels]; the first ``_old`` tokens of each are
    restored from codes. ``scales``: the fixed ones of "keys" and "values"."""

    def __init__(self, plan: CachePlan, scales: Mapping[str, float] | None = None) -> None:
        super().__init__()
        self._plan, self._scales, self._old = plan, scales or {}, dict.fromkeys((KEYS, VALUES), 0)

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        before = self.get_seq_length()
        super().update(key_states, value_states, *args, **kwargs)
        for (name, scheme), states in zip(self._plan.parts, (self.keys, self.values), strict=True):
            if scheme is None:
                continue
            start, old = self._old[name], self._old_by(scheme, before)
            if old > start:
                part = states[:, :, start:old]
                part.copy_(restored(part, scheme, self._scales.get(name)))
                self._old[name] = old
        return self.keys, self.values

    def _old_by(self, scheme: Scheme, before: int) -> int:
        """Number of tokens that attention reads from codes, with ``before`` tokens before this piece."""
        recent = self._plan.recent
        if not as_they_come(scheme):
            return max(0, before - recent) // PIECE * PIECE
        return max(0, before - recent) if recent else self.get_seq_length()


def restored(states: Tensor, scheme: Scheme, scale: float | None = None) -> Tensor:
    """Restore ``states`` [1, heads, tokens, channels] from the codes of the matrix that ``matrix_of`` makes
    of them, by the fixed ``scale`` if given."""
    count, tokens, channels = states.shape[1:]
    by_token = scheme.block[1] is None
    rows = states[0].transpose(0, 1) if by_token else states[0]
    matrix = rows.float().reshape(matrix_of(scheme, tokens, (count, channels)))
    found = quantized_inputs(matrix, scheme, scale).view(rows.shape)
    return (found.transpose(0, 1) if by_token else found)[None].to(states.dtype)


class CachedNetwork(nn.Module):
    """Causal network whose cache is stored by ``plan``, with the fixed scales of ``fixed_scales``. Outputs
    have ``logits`` [1, tokens, vocabulary].

    ``ValueError`` for a network without a cache, for missing scales that the plan needs, and for a rotated
    plan of an earlier version.
    """

    def __init__(
        self, network: nn.Module, plan: CachePlan, scales: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
        if plan.rotated:
            raise ValueError("a cache multiplied by a Hadamard matrix is not run by this version")
        if plan.is_fixed and not scales:
            raise ValueError(f"{plan.text}: its fixed scales are not known")
        self.network, self.plan, self.scales = network, plan, scales or {}

    def forward(self, input_ids: Tensor) -> Any:
        cache, found = _cache(self.plan, self.scales), []
        for piece in input_ids.split(PIECE, 1):
            checkpoint()
            output = self.network(input_ids=piece, past_key_values=cache, use_cache=True)
            found.append(output.logits)
        if not cache.layers:
            raise ValueError("the network caches no keys and values")
        output.logits = torch.cat(found, 1)
        return output


def _cache(plan: CachePlan, scales: Mapping[str, float]) -> Cache:
    """Make an empty cache. Layers with a sliding window keep all tokens: the network masks them."""
    numbers = itertools.count()

    def layer() -> _RestoredLayer:
        name = f"layers.{next(numbers)}"
        own = {part: scales[f"{name}.{part}"] for part in (KEYS, VALUES) if f"{name}.{part}" in scales}
        return _RestoredLayer(plan, own)

    return Cache(layer_class_to_replicate=layer)


def fixed_scales(model: Model, plan: CachePlan, texts: AnyTexts = ()) -> dict[str, float]:
    """Find the fixed scales that ``plan`` needs: "layers.0.keys" -> scale.

    A scheme's calibrator finds the range of all keys, or values, of ``texts`` (built-in calibration texts if
    empty). Without fixed scales nothing is run.
    """
    schemes = {part: scheme for part, scheme in plan.parts if scheme is not None and is_fixed(scheme)}
    if not schemes:
        return {}
    observers: dict[str, Observer] = {}
    for layers in _each_text(model, texts or built_in_texts(True)):
        for i, states in enumerate(layers):
            for part, heads in zip((KEYS, VALUES), states, strict=True):
                if part in schemes:
                    observers.setdefault(f"layers.{i}.{part}", Observer()).add(heads)
    return {name: fixed_scale(one, schemes[name.rpartition(".")[2]]) for name, one in observers.items()}


@dataclass(frozen=True)
class CacheRow:
    """Loss and size of one scheme for ``part`` (keys, values or both) of a cache.

    ``kl`` in nats a token, with its 95 % interval over texts, None for a single text. ``bits`` of each
    number, with scales. ``bytes_a_token`` of the whole cache, with 16 bits for the other part;
    ``context_bytes``: its size at ``CONTEXT`` tokens.
    """

    part: str
    scheme: str
    kl: float
    low: float | None
    high: float | None
    same_top: float
    bits: float
    bytes_a_token: float
    context_bytes: float


@dataclass(frozen=True, eq=False)
class CacheSurvey:
    """Measure caches of a causal model on texts; if none are given, on the built-in texts of checks.
    ``SourceError`` for other models."""

    model: Model
    texts: AnyTexts = ()

    def __post_init__(self) -> None:
        if not self.model.causal:
            raise SourceError(f"{self.model.name} predicts no tokens: it keeps no keys and values")
        object.__setattr__(self, "texts", self.texts or held_out_texts(True))

    @cached_property
    def reference(self) -> LossReference:
        return reference_for(self.model, self.texts)

    @cached_property
    def shape(self) -> CacheShape:
        """The shape of the keys and values that the model's layers keep."""
        return shape_of(self.model, self.texts)

    def loss(self, plan: CachePlan) -> Loss:
        """Measure the loss of ``plan``; fixed scales are found on the built-in calibration texts."""
        scales = fixed_scales(self.model, plan)
        return self.reference.measure(CachedNetwork(self.model.network, plan, scales))

    def row(self, plan: CachePlan, loss: Loss) -> CacheRow:
        """Make the row of ``plan`` with its measured loss."""
        chosen = {part: scheme for part, scheme in plan.parts if scheme is not None}
        counted = [self.shape.bits(part, scheme) for part, scheme in chosen.items()] or [float(EXACT_BITS)]
        return CacheRow(
            part=next(iter(chosen)) if len(chosen) == 1 else BOTH,
            scheme=" / ".join(dict.fromkeys(map(str, chosen.values()))) or "as it is",
            kl=loss.value,
            low=loss.low,
            high=loss.high,
            same_top=loss.scores["same_top"],
            bits=sum(counted) / len(counted),
            bytes_a_token=self.shape.bytes_a_token(plan),
            context_bytes=self.shape.bytes_of(plan, CONTEXT),
        )

    def rows(self, schemes: Sequence[Scheme], progress: Progress | None = None) -> Iterator[CacheRow]:
        """Measure each scheme for keys alone, then for values alone."""
        plans = [plan for one in schemes for plan in (CachePlan(keys=one), CachePlan(values=one))]
        for done, plan in enumerate(plans, 1):
            yield self.row(plan, self.loss(plan))
            if progress is not None:
                progress(done, len(plans))


def shape_of(model: Model, texts: AnyTexts) -> CacheShape:
    """Find the shape of the keys and values that the layers of ``model`` keep, by running two tokens of
    ``texts``; and the sliding windows that its config names."""
    windows = [
        layer.sliding_window if layer.is_sliding else None
        for layer in DynamicCache(config=model.network.config).layers
    ]
    heads = [
        [(states.shape[0], states.shape[2]) for states in layer]
        for layer in next(_each_text(model, texts, 2))
    ]
    pairs = itertools.zip_longest(heads, windows[: len(heads)])
    return CacheShape(tuple(CacheLayer(keys, values, window) for (keys, values), window in pairs))


def captured_cache(model: Model, texts: AnyTexts, tokens: int = 512) -> dict[str, Tensor]:
    """Capture keys and values of the first ``tokens`` tokens of ``texts``, float32 [tokens, heads ·
    channels].

    Names: "layers.0.keys" (after rotary embedding), "layers.0.values", and "layers.0.keys_before_rotary" for
    networks whose projection of keys is called ``k_proj``. ``SourceError`` for a model without a cache.
    """
    found: dict[str, list[Tensor]] = {}
    projections = [m for name, m in model.network.named_modules() if name.endswith("k_proj")]

    def keep(name: str, rows: Tensor) -> None:
        found.setdefault(name, []).append(rows.float().cpu())

    handles = [
        projection.register_forward_hook(
            lambda _, __, output, name=f"layers.{i}.{KEYS}{_BEFORE}": keep(name, output[0])
        )
        for i, projection in enumerate(projections)
    ]
    try:
        for layers in _each_text(model, texts, tokens):
            for i, states in enumerate(layers):
                for part, heads in zip((KEYS, VALUES), states, strict=True):
                    keep(f"layers.{i}.{part}", heads.transpose(0, 1).flatten(1))
    finally:
        for handle in handles:
            handle.remove()
    return {name: torch.cat(parts) for name, parts in sorted(found.items())}


def labelled_cache(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Label the tensors of ``captured_cache``, layer by layer: "keys of layer 3, before rotary", "keys of
    layer 3, after rotary" and "values of layer 3".

    If the projection's keys are not known, or are cached unchanged, the keys are one tensor, "keys of layer
    3".
    """
    labelled = {}
    for i in range(sum(name.endswith(f".{VALUES}") for name in found)):
        keys, before = found[f"layers.{i}.{KEYS}"], found.get(f"layers.{i}.{KEYS}{_BEFORE}")
        if before is None or torch.equal(before, keys):
            labelled[f"keys of layer {i}"] = keys
        else:
            labelled[f"keys of layer {i}, before rotary"] = before
            labelled[f"keys of layer {i}, after rotary"] = keys
        labelled[f"values of layer {i}"] = found[f"layers.{i}.{VALUES}"]
    return labelled


def _each_text(
    model: Model, texts: AnyTexts, tokens: float = math.inf
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Run ``texts`` until there were ``tokens`` tokens. Yields each text's keys and values by layer, float32
    [heads, tokens, channels]. ``SourceError`` for a model without a cache."""
    kept = 0
    for sequence in token_sequences(model, texts_of(texts), LONGEST):
        checkpoint()
        if kept >= tokens:
            break
        cache = _cache(CachePlan(), {})
        ids = torch.tensor([sequence.ids[: int(min(len(sequence.ids), tokens - kept))]], device=model.device)
        with torch.no_grad():
            model.network(input_ids=ids, past_key_values=cache, use_cache=True)
        if not cache.layers:
            raise SourceError(f"{model.name} caches no keys and values")
        kept += ids.shape[1]
        yield [(layer.keys[0].float(), layer.values[0].float()) for layer in cache.layers]
