"""What a format of the cache of keys and values costs a causal model, measured by its next tokens.

The original network is run piece by piece, ``PIECE`` tokens at a time, with a cache that restores older keys
and values from their codes before attention reads them, as a serving engine does while it writes. A token
sees the last ``recent`` tokens, its own piece and the pieces that are not complete exactly; all before are
restored once, when they become old.

Keys are cached after rotary embedding. Few of their channels are large, always the same ones, so that scales
of a channel (blocks of tokens x 1) suit them; values have no such channels, and scales of a token (1 x
channels) suit them: Z. Liu et al., "KIVI", arXiv 2402.02750; C. Hooper et al., "KVQuant", arXiv 2401.18079.
With ``rotated`` each head's channels are multiplied by a Hadamard matrix first ("QuaRot", arXiv 2404.00456).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import torch
from torch import Tensor, nn
from transformers.cache_utils import Cache, DynamicLayer

from explorer.core.hadamard import Rotation, find_rotation
from explorer.core.quantize import quantize
from explorer.models.capture import LONGEST, Model
from explorer.models.texts import AnyTexts, texts_of, token_sequences
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme
from explorer.sources.base import SourceError
from explorer.survey.loss import LossReference, reference_for
from explorer.survey.run import held_out_texts

PIECE = 32
"""Tokens that become old together: blocks of a scheme are as many tokens high at most, and divide it."""
KEYS, VALUES, BOTH = "keys", "values", "both"
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


@dataclass(frozen=True)
class CachePlan:
    """How a cache is stored: the schemes of keys and of values, None for those that stay exact; the last
    ``recent`` tokens stay exact; ``rotated``: keys and values are multiplied by a Hadamard matrix within each
    head before they are quantized. ``ValueError`` for blocks that are not within a piece of tokens."""

    keys: Scheme | None = None
    values: Scheme | None = None
    recent: int = 0
    rotated: bool = False

    def __post_init__(self) -> None:
        if self.recent < 0:
            raise ValueError(f"0 tokens or more stay exact, not {self.recent}")
        for scheme in (self.keys, self.values):
            if scheme is not None:
                check_scheme(scheme)


def check_scheme(scheme: Scheme) -> None:
    """``ValueError`` unless tokens can be appended to what ``scheme`` has quantized."""
    height = scheme.block[0]
    whole = scheme.scale is not None and (height is None or scheme.flat)
    if whole or (height is not None and PIECE % height):
        raise ValueError(
            f"{scheme}: a cache grows token by token, so that the blocks of its scheme are 1, 2, 4, 8, 16 or "
            f"{PIECE} tokens high (int4~{PIECE}x1~asymmetric~float16~minmax, int8_row), or it has no scale "
            "(fp8_e4m3_cast)"
        )


class _RestoredLayer(DynamicLayer):
    """Keys and values of one layer, [1, heads, tokens, channels]; the first ``_old`` are restored."""

    def __init__(self, plan: CachePlan) -> None:
        super().__init__()
        self._plan, self._old = plan, 0

    def update(self, key_states: Tensor, value_states: Tensor, *args: Any, **kwargs: Any) -> Any:
        before = self.get_seq_length()
        super().update(key_states, value_states, *args, **kwargs)
        old = max(0, before - self._plan.recent) // PIECE * PIECE
        if old > self._old:
            for states, scheme in ((self.keys, self._plan.keys), (self.values, self._plan.values)):
                if scheme is not None:
                    part = states[:, :, self._old : old]
                    part.copy_(restored(part, scheme, self._plan.rotated))
            self._old = old
        return self.keys, self.values


def restored(states: Tensor, scheme: Scheme, rotated: bool = False) -> Tensor:
    """``states`` [1, heads, tokens, channels] from the codes of the matrix [tokens, heads · channels]."""
    by_token = states[0].transpose(0, 1).float()  # [tokens, heads, channels]
    heads = by_token.reshape(-1, by_token.shape[-1])
    rotation = _rotation(heads.shape[1], heads.device) if rotated else None
    mixed = heads if rotation is None else rotation.inputs(heads)
    found = quantize(mixed.reshape(len(by_token), -1), scheme).dequantize().reshape(mixed.shape)
    whole = found if rotation is None else rotation.undo(found)
    return whole.view_as(by_token).transpose(0, 1)[None].to(states.dtype)


def _rotation(channels: int, device: torch.device) -> Rotation:
    found = find_rotation(channels)
    return replace(found, signs=found.signs.to(device))


class CachedNetwork(nn.Module):
    """A causal network whose cache is stored as ``plan`` says; outputs have ``logits`` [1, tokens,
    vocabulary]. ``ValueError`` for a network that attention does not run in."""

    def __init__(self, network: nn.Module, plan: CachePlan) -> None:
        super().__init__()
        self.network, self.plan = network, plan

    def forward(self, input_ids: Tensor) -> Any:
        cache, found = _cache(self.plan), []
        for piece in input_ids.split(PIECE, 1):
            checkpoint()
            output = self.network(input_ids=piece, past_key_values=cache, use_cache=True)
            found.append(output.logits)
        if not cache.layers:
            raise ValueError("the network caches no keys and values")
        output.logits = torch.cat(found, 1)
        return output


def _cache(plan: CachePlan) -> Cache:
    return Cache(layer_class_to_replicate=lambda: _RestoredLayer(plan))


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
    over texts, None of a single one; ``bits`` of each number, scales included, and ``bytes_a_token`` of the
    whole cache, where the other part has 16 bits."""

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


@dataclass(frozen=True)
class CacheShape:
    """Numbers that each layer with a cache keeps of a token: ``keys`` and ``values``. A layer with a sliding
    window is counted as if it had none."""

    keys: tuple[int, ...]
    values: tuple[int, ...]

    def bytes_a_token(self, keys: float, values: float) -> float:
        """Of a cache with so many bits of a number."""
        return (sum(self.keys) * keys + sum(self.values) * values) / 8


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
        captured = captured_cache(self.model, self.run_on, tokens=2)

        def widths(part: str) -> tuple[int, ...]:
            return tuple(x.shape[1] for name, x in captured.items() if name.endswith(f".{part}"))

        return CacheShape(widths(KEYS), widths(VALUES))

    def row(self, plan: CachePlan, progress: Progress | None = None) -> CacheRow:
        """What ``plan`` costs."""
        loss = self.reference.measure(CachedNetwork(self.model.network, plan), progress)
        stored = {KEYS: plan.keys, VALUES: plan.values}
        chosen = {part: scheme for part, scheme in stored.items() if scheme is not None}
        widths = {KEYS: self.shape.keys, VALUES: self.shape.values}
        bits = {part: _bits(scheme, widths[part]) for part, scheme in stored.items()}
        counted = [bits[part] for part in chosen] or [16.0]
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
            bytes_a_token=self.shape.bytes_a_token(bits[KEYS], bits[VALUES]),
        )

    def rows(self, plans: Sequence[CachePlan], progress: Progress | None = None) -> Iterator[CacheRow]:
        """What each of ``plans`` costs."""
        for done, plan in enumerate(plans, 1):
            yield self.row(plan)
            if progress is not None:
                progress(done, len(plans))


def _bits(scheme: Scheme | None, widths: Sequence[int]) -> float:
    """Of a number, over layers of these widths."""
    if scheme is None:
        return 16.0
    whole = sum(width * scheme.bits_per_element((PIECE, width)).total for width in widths)
    return whole / sum(widths)


def captured_cache(model: Model, texts: AnyTexts, tokens: int = 512) -> dict[str, Tensor]:
    """Keys and values of the first ``tokens`` tokens of ``texts``, float32 [tokens, heads · channels], as
    "layers.0.keys" (after rotary embedding) and "layers.0.values"; and "layers.0.keys_before_rotary" of
    networks whose projection of keys is called ``k_proj``. ``SourceError`` where there is no cache."""
    before: dict[str, list[Tensor]] = {}
    projections = [m for name, m in model.network.named_modules() if name.endswith("k_proj")]
    handles = [
        m.register_forward_hook(
            lambda _, __, output, name=f"layers.{i}.keys_before_rotary": before.setdefault(name, []).append(
                output[0].float().cpu()
            )
        )
        for i, m in enumerate(projections)
    ]
    found: dict[str, list[Tensor]] = {}
    kept = 0
    try:
        for sequence in token_sequences(model, texts_of(texts), LONGEST):
            checkpoint()
            if kept >= tokens:
                break
            cache = _cache(CachePlan())
            ids = torch.tensor([sequence.ids[: tokens - kept]], device=model.device)
            with torch.no_grad():
                model.network(input_ids=ids, past_key_values=cache, use_cache=True)
            if not cache.layers:
                raise SourceError(f"{model.name} caches no keys and values")
            kept += ids.shape[1]
            for i, layer in enumerate(cache.layers):
                for name, states in (("keys", layer.keys), ("values", layer.values)):
                    rows = states[0].transpose(0, 1).flatten(1).float().cpu()
                    found.setdefault(f"layers.{i}.{name}", []).append(rows)
    finally:
        for handle in handles:
            handle.remove()
    return {name: torch.cat(parts) for name, parts in sorted((found | before).items())}
