"""What a format of the cache of keys and values costs a causal model, measured by its next tokens.

The original network is run piece by piece, ``PIECE`` tokens at a time, with a cache that restores older keys
and values from their codes before attention reads them, as a serving engine does while it writes. A token
sees the last ``recent`` tokens, its own piece and the pieces that are not complete exactly; all before are
restored once, when they become old. That is so for all schemes whose scales are found from what is stored, so
that those of tokens compare with those of channels. Schemes without scales, and with fixed ones, round each
number as it comes: with ``recent`` 0 no token is exact, as where an engine stores FP8.

Blocks do not cross heads: a block of 64 channels in heads of 80 is followed by one of 16. Scales of a whole
token (``int8_row``) are of all its heads.

Keys are cached after rotary embedding. Few of their channels are large, always the same ones, so that scales
of a channel (blocks of tokens x 1) suit them; values have no such channels, and scales of a token (1 x
channels) suit them: Z. Liu et al., "KIVI", arXiv 2402.02750; C. Hooper et al., "KVQuant", arXiv 2401.18079.
With ``rotated`` each head's channels are multiplied by a Hadamard matrix first ("QuaRot", arXiv 2404.00456).
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
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
from explorer.core.hadamard import Rotation, find_rotation
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
    "int8~32x1~asymmetric~float16~minmax",
    "int8~1x64~asymmetric~float16~minmax",
    "mxfp4",
    "nvfp4",
    "int4~32x1~asymmetric~float16~minmax",
    "int4~1x64~asymmetric~float16~minmax",
    "int3~32x1~asymmetric~float16~minmax",
    "int3~1x64~asymmetric~float16~minmax",
    "int2~32x1~asymmetric~float16~minmax",
    "int2~1x64~asymmetric~float16~minmax",
)
"""Scales of a channel's 32 tokens or of 64 channels of a token, which are a head's where it has so many, and
formats with blocks of their own."""


class _RestoredLayer(DynamicLayer):
    """Keys and values of one layer, [1, heads, tokens, channels]; of each the first ``_old`` are restored.
    ``scales``: the fixed ones of "keys" and "values"."""

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
                part.copy_(restored(part, scheme, self._plan.rotated, self._scales.get(name)))
                self._old[name] = old
        return self.keys, self.values

    def _old_by(self, scheme: Scheme, before: int) -> int:
        """Tokens that attention reads from codes, when there were ``before`` of them before this piece."""
        recent = self._plan.recent
        if not as_they_come(scheme):
            return max(0, before - recent) // PIECE * PIECE
        return max(0, before - recent) if recent else self.get_seq_length()


def restored(states: Tensor, scheme: Scheme, rotated: bool = False, scale: float | None = None) -> Tensor:
    """``states`` [1, heads, tokens, channels] from the codes of the matrix that ``matrix_of`` says, by the
    fixed ``scale`` if given."""
    (count, tokens, channels), mixed = states.shape[1:], _mixed(states[0].float(), rotated)
    rows = mixed.transpose(0, 1) if scheme.block[1] is None else mixed
    matrix = rows.reshape(matrix_of(scheme, tokens, (count, channels)))
    found = quantized_inputs(matrix, scheme, scale).view(rows.shape)
    heads = found.transpose(0, 1) if scheme.block[1] is None else found
    rotation = _rotation(channels, heads.device) if rotated else None
    whole = heads if rotation is None else rotation.undo(heads.reshape(-1, channels)).view(heads.shape)
    return whole[None].to(states.dtype)


def _mixed(heads: Tensor, rotated: bool) -> Tensor:
    """``heads`` [heads, tokens, channels], multiplied by a Hadamard matrix if ``rotated``."""
    if not rotated:
        return heads
    rotation = _rotation(heads.shape[-1], heads.device)
    return rotation.inputs(heads.reshape(-1, heads.shape[-1])).view(heads.shape)


def _rotation(channels: int, device: torch.device) -> Rotation:
    found = find_rotation(channels)
    return replace(found, signs=found.signs.to(device))


class CachedNetwork(nn.Module):
    """A causal network whose cache is stored as ``plan`` says, with the fixed ``scales`` of ``fixed_scales``;
    outputs have ``logits`` [1, tokens, vocabulary]. ``ValueError`` for a network that attention does not run
    in, and without the scales that the plan needs."""

    def __init__(
        self, network: nn.Module, plan: CachePlan, scales: Mapping[str, float] | None = None
    ) -> None:
        super().__init__()
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


def _cache(plan: CachePlan, scales: Mapping[str, float] | None = None) -> Cache:
    """An empty cache. Layers with a sliding window keep all tokens: the network masks them."""
    names, known = (f"layers.{i}" for i in itertools.count()), scales or {}

    def layer() -> _RestoredLayer:
        name = next(names)
        own = {part: known[f"{name}.{part}"] for part in (KEYS, VALUES) if f"{name}.{part}" in known}
        return _RestoredLayer(plan, own)

    return Cache(layer_class_to_replicate=layer)


def fixed_scales(model: Model, plan: CachePlan, texts: AnyTexts = ()) -> dict[str, float]:
    """The fixed scales that ``plan`` needs, "layers.0.keys" -> scale: of the range that a scheme's calibrator
    finds in all keys, or values, that ``texts`` (built-in calibration texts if empty) give a layer. None are
    found, and nothing is run, where the plan has no fixed scales."""
    schemes = {part: scheme for part, scheme in plan.parts if scheme is not None and is_fixed(scheme)}
    if not schemes:
        return {}
    observers: dict[str, Observer] = {}
    for layers in _each_text(model, texts or built_in_texts(True)):
        for i, (keys, values) in enumerate(layers):
            for part, states in ((KEYS, keys), (VALUES, values)):
                if part in schemes:
                    observers.setdefault(f"layers.{i}.{part}", Observer()).add(_mixed(states, plan.rotated))
    return {
        name: fixed_scale(observer, schemes[name.rpartition(".")[2]]) for name, observer in observers.items()
    }


def each_alone(
    schemes: Sequence[Scheme], recent: int = 0, rotated: Sequence[bool] = (False,)
) -> list[CachePlan]:
    """Each scheme for keys alone, then for values alone, as it is and rotated as ``rotated`` says."""
    plans = []
    for scheme in schemes:
        for turned in rotated:
            plans.append(CachePlan(keys=scheme, recent=recent, rotated=turned))
            plans.append(CachePlan(values=scheme, recent=recent, rotated=turned))
    return plans


@dataclass(frozen=True)
class CacheRow:
    """One scheme of ``part`` (keys, values or both) of a cache: ``kl`` in nats a token with its 95 % interval
    over texts, None of a single one; ``bits`` of each number, scales included; ``bytes_a_token`` of the whole
    cache, where the other part has 16 bits, and ``context_bytes`` that it takes at ``CONTEXT`` tokens."""

    part: str
    scheme: str
    rotated: bool
    recent: int
    kl: float
    low: float | None
    high: float | None
    same_top: float
    bits: float
    bytes_a_token: float
    context_bytes: float


@dataclass(frozen=True, eq=False)
class CacheSurvey:
    """A causal model on texts, against which caches are measured; without texts, on the built-in ones that
    checks use. ``SourceError`` for other models."""

    model: Model
    texts: AnyTexts

    def __post_init__(self) -> None:
        if not self.model.causal:
            raise SourceError(f"{self.model.name} predicts no tokens: it keeps no keys and values")

    @property
    def run_on(self) -> AnyTexts:
        """The texts."""
        return self.texts or held_out_texts(True)

    @cached_property
    def reference(self) -> LossReference:
        return reference_for(self.model, self.run_on)

    @cached_property
    def shape(self) -> CacheShape:
        """What the model's layers keep of a token."""
        return shape_of(self.model, self.run_on)

    def loss(self, plan: CachePlan, progress: Progress | None = None) -> Loss:
        """The loss of ``plan``; fixed scales are those of the built-in calibration texts."""
        network = CachedNetwork(self.model.network, plan, fixed_scales(self.model, plan))
        return self.reference.measure(network, progress)

    def row(self, plan: CachePlan, loss: Loss) -> CacheRow:
        """What ``plan``, whose loss is given, costs and saves."""
        chosen = {part: scheme for part, scheme in plan.parts if scheme is not None}
        counted = [self.shape.bits(part, scheme) for part, scheme in chosen.items()] or [float(EXACT_BITS)]
        return CacheRow(
            part=next(iter(chosen)) if len(chosen) == 1 else BOTH,
            scheme=" / ".join(dict.fromkeys(map(str, chosen.values()))) or "as it is",
            rotated=plan.rotated,
            recent=plan.recent,
            kl=loss.value,
            low=loss.low,
            high=loss.high,
            same_top=loss.scores["same_top"],
            bits=sum(counted) / len(counted),
            bytes_a_token=self.shape.bytes_a_token(plan),
            context_bytes=self.shape.bytes_of(plan, CONTEXT),
        )

    def rows(self, plans: Sequence[CachePlan], progress: Progress | None = None) -> Iterator[CacheRow]:
        """What each of ``plans`` costs."""
        for done, plan in enumerate(plans, 1):
            yield self.row(plan, self.loss(plan))
            if progress is not None:
                progress(done, len(plans))


def shape_of(model: Model, texts: AnyTexts) -> CacheShape:
    """What the layers of ``model`` keep of a token, as two tokens of ``texts`` show, and the sliding windows
    that its config names."""
    config = model.network.config
    windows = [
        getattr(layer, "sliding_window", None) if layer.is_sliding else None
        for layer in DynamicCache(config=config).layers
    ]
    layers = next(_each_text(model, texts, 2))
    return CacheShape(
        tuple(
            CacheLayer(_heads(keys), _heads(values), windows[i] if i < len(windows) else None)
            for i, (keys, values) in enumerate(layers)
        )
    )


def _heads(states: Tensor) -> tuple[int, int]:
    return states.shape[0], states.shape[2]


def captured_cache(model: Model, texts: AnyTexts, tokens: int = 512) -> dict[str, Tensor]:
    """Keys and values of the first ``tokens`` tokens of ``texts``, float32 [tokens, heads · channels], as
    "layers.0.keys" (after rotary embedding) and "layers.0.values"; and "layers.0.keys_before_rotary" of
    networks whose projection of keys is called ``k_proj``. ``SourceError`` where there is no cache."""
    before: dict[str, list[Tensor]] = {}
    projections = [m for name, m in model.network.named_modules() if name.endswith("k_proj")]
    handles = [
        m.register_forward_hook(
            lambda _, __, output, name=f"layers.{i}.{KEYS}{_BEFORE}": before.setdefault(name, []).append(
                output[0].float().cpu()
            )
        )
        for i, m in enumerate(projections)
    ]
    found: dict[str, list[Tensor]] = {}
    try:
        for layers in _each_text(model, texts, tokens):
            for i, states in enumerate(layers):
                for part, heads in zip((KEYS, VALUES), states, strict=True):
                    rows = heads.transpose(0, 1).flatten(1).cpu()
                    found.setdefault(f"layers.{i}.{part}", []).append(rows)
    finally:
        for handle in handles:
            handle.remove()
    return {name: torch.cat(parts) for name, parts in sorted((found | before).items())}


_BEFORE = "_before_rotary"


def labelled_cache(found: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The tensors of ``captured_cache`` by names to choose from, layer by layer: "keys of layer 3, before
    rotary", "keys of layer 3, after rotary" and "values of layer 3". Where the projection's keys are not
    known, or are cached as they are, there is one tensor, "keys of layer 3"."""
    labelled = {}
    for i in range(len([name for name in found if name.endswith(f".{VALUES}")])):
        keys, values = (found[f"layers.{i}.{part}"] for part in (KEYS, VALUES))
        before = found.get(f"layers.{i}.{KEYS}{_BEFORE}")
        if before is None or torch.equal(before, keys):
            labelled[f"keys of layer {i}"] = keys
        else:
            labelled[f"keys of layer {i}, before rotary"] = before
            labelled[f"keys of layer {i}, after rotary"] = keys
        labelled[f"values of layer {i}"] = values
    return labelled


def _each_text(
    model: Model, texts: AnyTexts, tokens: float = math.inf
) -> Iterator[list[tuple[Tensor, Tensor]]]:
    """Run ``texts`` until there were ``tokens`` tokens: keys and values, float32 [heads, tokens, channels],
    of each layer by text. ``SourceError`` where there is no cache."""
    kept = 0
    for sequence in token_sequences(model, texts_of(texts), LONGEST):
        checkpoint()
        if kept >= tokens:
            break
        cache = _cache(CachePlan())
        length = min(len(sequence.ids), tokens - kept)
        ids = torch.tensor([sequence.ids[: int(length)]], device=model.device)
        with torch.no_grad():
            model.network(input_ids=ids, past_key_values=cache, use_cache=True)
        if not cache.layers:
            raise SourceError(f"{model.name} caches no keys and values")
        kept += ids.shape[1]
        yield [(layer.keys[0].float(), layer.values[0].float()) for layer in cache.layers]
