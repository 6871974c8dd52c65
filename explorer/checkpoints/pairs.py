"""Pair the weights of two checkpoints: by name, by the names of GGUF, and if one of them holds several layers
as one matrix."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from explorer.checkpoints.stored import Checkpoint, GgufCheckpoint
from explorer.progress import checkpoint
from explorer.sources.base import SourceError
from explorer.words import plain

JOINED = {
    "qkv_proj": ("q_proj", "k_proj", "v_proj"),
    "gate_up_proj": ("gate_proj", "up_proj"),
    "attn_qkv": ("attn_q", "attn_k", "attn_v"),
}
"""Matrices that hold the rows of several layers, one after another."""
_PREFIXES = (
    "model.",
    "model.language_model.",
    "language_model.",
    "language_model.model.",
    "base_model.model.",
)
_ONLY_GGUF = ("rope_freqs.weight", "rope_factors_long.weight", "rope_factors_short.weight")
"""Tensors that llama.cpp's converter computes from the configuration."""


@dataclass(frozen=True)
class Pair:
    """One layer: its ``name``, and the weights of each checkpoint whose rows make up its matrix."""

    name: str
    original: tuple[str, ...]
    quantized: tuple[str, ...]


@dataclass(frozen=True)
class Pairs:
    """All pairs in the order of the original's files, and the names that only the original (``missing``) or
    only the quantized checkpoint has (``extra``)."""

    pairs: tuple[Pair, ...]
    missing: tuple[str, ...] = ()
    extra: tuple[str, ...] = ()


def find_pairs(original: Checkpoint, quantized: Checkpoint) -> Pairs:
    """Pair the weights; ``SourceError`` if the checkpoints have no name in common."""
    if isinstance(original, GgufCheckpoint) and not isinstance(quantized, GgufCheckpoint):
        raise SourceError(
            f"{original.origin} is a GGUF file and {quantized.origin} is none: name the model's folder as "
            "the original"
        )
    places = dict(_places(original, quantized))
    found: dict[tuple[str, ...], list[str]] = {}
    for name, place in places.items():
        found.setdefault(place, []).append(name)
    if not found:
        raise SourceError(
            f"no weight of {quantized.origin} has a name that {original.origin} has: {_some(quantized)} "
            f"there, {_some(original)} here"
        )
    pairs = []
    for place, names in found.items():
        first, *more = whole = _in_order(names, place)
        pairs.append(Pair(f"{first} and {len(more)} more" if more else first, whole, place))
    used = {name for place in found for name in place}
    missing = tuple(name for name in original.weights if name not in places)
    extra = tuple(name for name in quantized.weights if name not in used and name not in _ONLY_GGUF)
    return Pairs(tuple(pairs), missing, extra)


def _in_order(names: list[str], place: tuple[str, ...]) -> tuple[str, ...]:
    """``names`` in the order of their rows at ``place``: by the parts of a joined matrix, or by the numbers
    of experts."""
    parts = JOINED.get(_part(place[0]), ())

    def key(name: str) -> tuple[int, list[int]]:
        part = _part(name)
        at = parts.index(part) if part in parts else len(parts)
        return at, list(map(int, re.findall(r"\d+", name)))

    return tuple(sorted(names, key=key))


def _part(name: str) -> str:
    """The layer's part of a name: "q_proj" in "model.layers.0.self_attn.q_proj.weight"."""
    return name.rpartition(".")[0].rpartition(".")[2]


def _some(checkpoint: Checkpoint) -> str:
    names = list(checkpoint.weights)
    return ", ".join(plain(name, 80) for name in names[:2]) + (", …" if len(names) > 2 else "")


def _places(original: Checkpoint, quantized: Checkpoint) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Map each weight of the original to the weights of the other checkpoint that hold its rows."""
    if len(original.weights) == len(quantized.weights) == 1:
        yield next(iter(original.weights)), tuple(quantized.weights)
        return
    for name in original.weights:
        checkpoint()
        for place in _candidates(name, quantized):
            if place and all(part in quantized for part in place):
                yield name, place
                break


def _candidates(name: str, quantized: Checkpoint) -> Iterator[tuple[str, ...]]:
    """The places where the other checkpoint may hold ``name``, the likeliest first."""
    yield (name,)
    if isinstance(quantized, GgufCheckpoint):
        place = quantized.model.name_of(name)
        yield (place,) if place else ()
        if place:
            yield from _joined(place, quantized.weights)
    yield (name.removesuffix(".weight"),)
    for prefix in _PREFIXES:
        yield (f"{prefix}{name}",)
        if name.startswith(prefix):
            yield (name.removeprefix(prefix),)
    yield from _joined(name, quantized.weights)


def _joined(name: str, there: Mapping[str, object]) -> Iterator[tuple[str, ...]]:
    """The matrix that ``name`` is a part of, or the parts that it is made of."""
    layer, _, end = name.rpartition(".")
    block, _, part = layer.rpartition(".")
    for whole, parts in JOINED.items():
        if part in parts:
            yield (f"{block}.{whole}.{end}",)
        if part == whole:
            yield tuple(f"{block}.{one}.{end}" for one in parts)
