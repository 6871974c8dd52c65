"""The bar's pickers: their values for a scheme, and the scheme for their values.

A scheme is one text (``Scheme.parse``, ``str``) in links and between handlers.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from app import limits
from explorer import MappingType, ScaleRule, Scheme
from explorer.schemes import SCALE_RULES, Block, CodeRule, Convention
from explorer.schemes.calibrators import calibrator_named
from explorer.schemes.parts import NO_SCALE
from explorer.schemes.rules import CODE_WORDS
from explorer.schemes.text import ELEMENT_FORMATS
from explorer.sources.coded import STORED
from explorer.sources.tensors import TensorInfo

CUSTOM = "custom"
COLUMNS, ROWS = "Group size (columns)", "Tile rows"
"""Names of the inputs for a block's sides, in labels and in messages."""
DEFAULT_SCHEME = "int4_group128_asym"
DEFAULT_SAMPLE = "mlp_up"
SOURCES = {"builtin": "Built-in tensor", "file": "Your file", "model": "Layer of a model"}

GRANULARITIES: dict[str, str] = {
    "tensor": "whole tensor",
    "row": "per row (channel, token)",
    "column": "per column",
    "group": "groups along the row",
    "tile": "tiles of rows × columns",
    "flat": "runs of the flattened tensor",
}
_ORIGIN = {"FLOOR": " (OCP)", "RCEIL": " (NVIDIA)"}
MAPPINGS: dict[str, str] = {
    "SYMMETRIC": "symmetric",
    "ASYMMETRIC": "asymmetric (zero point)",
    "FULL": "symmetric, full range",
    "POWER": "symmetric, amax / 2^(b-1)",
    "NO_CLIP": "symmetric, no clipping",
    "SIGNED_MAX": "symmetric, signed maximum (GGUF)",
    "MINIMUM": "asymmetric, stored minimum (GGUF)",
    "MIDPOINT": "asymmetric, stored midpoint (tinygemm)",
}
CONVENTIONS: dict[str, str] = {
    "own": "this program's",
    "ct": "compressed-tensors, vLLM",
    "torchao": "torchao",
    "zero": "GGUF, bitsandbytes: may be 0",
}
"""Conventions for stored scales: the values of ``Convention``, "own" for its empty one."""
CODES: dict[str, str] = {
    "reciprocal": "multiply by 1 / scale",
    "zerofirst": "add the zero point first",
    "unrounded": "use the unrounded scale",
    "bf16": "compute in BF16",
    "away": "ties away from zero",
    "up": "ties up",
}
"""Rules for rounding codes: the words of ``CODE_WORDS``."""
_NO_BLOCK: Block = (None, None)
_NAMED_BLOCKS: dict[Block, str] = {_NO_BLOCK: "tensor", (1, None): "row", (None, 1): "column"}
_USUAL_SIDE = 128
LARGEST_SIDE = 10**9 - 1  # what a scheme's text can spell


def scale_label(word: str, rule: ScaleRule | None) -> str:
    """A row of ``SCALE_RULES`` as the picker shows it."""
    if rule is None:
        return "none: plain cast"
    if rule.super_bits is not None:
        found = "llama.cpp's search" if rule.is_searched else "GGUF"
        return f"{rule.super_bits}-bit integers under FP16 super-blocks ({found})"
    if rule.nested:
        return "8 bits under FP32 (double quantization)"
    if rule.exponent is not None:
        return f"E8M0, {word}{_ORIGIN.get(word, '')}"
    if rule.is_searched:
        return f"{rule.format.label} (llama.cpp's search)"
    return f"{rule.format.label} under one FP32 (NVFP4)" if rule.per_tensor else rule.format.label


SCALES = {
    word: scale_label(word, rule)
    for word, rule in SCALE_RULES.items()
    if rule is None or rule.has_upper_level or rule.is_searched or rule.convention is Convention.OWN
}
"""Scales by label; the convention for storing them is a separate choice."""


@dataclass(frozen=True)
class Parts:
    """Values of the bar's scheme controls, as displayed strings and numbers.

    ``rows`` and ``columns`` are the sides of tiles, 0 for a whole axis; groups and runs of the flattened
    tensor have ``columns`` alone. ``convention`` is a key of ``CONVENTIONS``, ``codes`` are of ``CODES``.
    """

    format: str
    granularity: str
    rows: int
    columns: int
    mapping: str
    scale: str
    convention: str
    range: str
    codes: tuple[str, ...]
    refit: bool
    stochastic: bool
    seed: int


def format_choices() -> list[tuple[str, str]]:
    return [(f.label, f.name) for f in ELEMENT_FORMATS.values()]


def parts_of(scheme: Scheme) -> Parts:
    """The controls' values for ``scheme``."""
    rows, columns = scheme.block
    granularity = "flat" if scheme.flat else _NAMED_BLOCKS.get(scheme.block)
    if granularity == "flat":
        rows = columns
    elif granularity is not None:
        rows = columns = _USUAL_SIDE
    elif rows == 1:
        granularity, rows = "group", columns  # from groups a click on tiles gives square ones
    return Parts(
        scheme.format.name,
        granularity or "tile",
        rows or 0,
        columns or 0,
        scheme.mapping.name,
        _own_word(scheme.scale),
        (scheme.scale.of_ranges.convention.value or "own") if scheme.scale else "own",
        scheme.calibrator.name,
        tuple(scheme.codes.words),
        scheme.least_squares_scale,
        scheme.seed is not None,
        scheme.seed or 0,
    )


def _own_word(rule: ScaleRule | None) -> str:
    """The rule's word without its convention; that of llama.cpp's search is part of it."""
    if rule is None or rule.has_upper_level or rule.is_searched:
        return rule.word if rule else NO_SCALE
    return dataclasses.replace(rule, convention=Convention.OWN).word


def scheme_of(parts: Parts) -> Scheme:
    """The scheme that the controls spell, changed as little as makes it possible, so that no order of clicks
    leads to an error: one choice alone where that is enough (symmetry, scales, a rule for codes), then one
    after another. Formats of 16 bits or more are cast.
    """
    block = _block_of(parts)
    legal = (scheme for changed in _simpler(parts) if (scheme := _spelled(changed, block)) is not None)
    return Scheme.parse(str(next(legal)))


def dropped_choices(wanted: Parts, scheme: Scheme) -> str:
    """Choices that ``scheme_of`` did not keep, in words; empty if all were kept."""
    if scheme.scale is None:
        return ""  # a cast has none of them
    got = parts_of(scheme)
    names = {
        "granularity": "one scale for",
        "mapping": "symmetry",
        "scale": "scales",
        "range": "range",
        "convention": "rules of scales",
        "codes": "rules for codes",
    }
    changed = [label for field, label in names.items() if getattr(wanted, field) != getattr(got, field)]
    return f"does not fit the other choices and was reset: {', '.join(changed)}" if changed else ""


def _simpler(parts: Parts) -> Iterator[Parts]:
    """``parts``, then with one choice after another taken back."""
    yield parts
    rule = SCALE_RULES[parts.scale]
    if rule is not None and rule.is_searched:
        ranges = rule.of_ranges
        yield dataclasses.replace(parts, scale=_own_word(ranges), convention=ranges.convention.value)
    yield dataclasses.replace(parts, mapping="SYMMETRIC")
    yield dataclasses.replace(parts, scale="float16", convention="own")
    for word in parts.codes:
        yield dataclasses.replace(parts, codes=tuple(other for other in parts.codes if other != word))
    for change in (
        {"codes": ()},
        {"convention": "own"},
        {"range": "minmax"},
        {"scale": "float32"},
        {"mapping": "SYMMETRIC"},
        {"scale": NO_SCALE},
    ):
        parts = dataclasses.replace(parts, **change)
        yield parts


def _spelled(parts: Parts, block: Block) -> Scheme | None:
    """The scheme that ``parts`` spell, None if there is none."""
    rule = SCALE_RULES[parts.scale]
    try:
        if rule is not None and not rule.has_upper_level and not rule.is_searched:
            convention = Convention("" if parts.convention == "own" else parts.convention)
            rule = dataclasses.replace(rule, convention=convention)
        return Scheme(
            CUSTOM,
            "",
            ELEMENT_FORMATS[parts.format],
            block if rule is not None else _NO_BLOCK,
            rule,
            MappingType[parts.mapping],
            calibrator_named(parts.range),
            parts.refit and rule is not None,
            parts.seed if parts.stochastic else None,
            CodeRule(**dict(CODE_WORDS[word] for word in parts.codes)),  # type: ignore[arg-type]
            flat=parts.granularity == "flat" and rule is not None and block[1] is not None,
        )
    except ValueError:
        return None


def _block_of(parts: Parts) -> Block:
    for block, name in _NAMED_BLOCKS.items():
        if name == parts.granularity:
            return block
    for side in (parts.rows, parts.columns):
        if not 0 <= side <= LARGEST_SIDE:
            raise ValueError(
                f"a side of a block has 1 to {LARGEST_SIDE} values, or 0 for the whole axis, not {side}"
            )
    rows = {"group": 1, "flat": None}.get(parts.granularity, parts.rows or None)
    return rows, parts.columns or None


def text_of_parts(values: Sequence[Any]) -> str:
    """The text of the scheme that the controls spell: ``values`` are theirs, in the order of ``Parts``.

    Impossible combinations fall back to the nearest possible one, which is said. ``ValueError`` names a
    number that is refused, and what is accepted.
    """
    if len(values) != len(dataclasses.fields(Parts)):
        raise ValueError(f"a scheme has {len(dataclasses.fields(Parts))} parts, not {len(values)}")
    fmt, granularity, rows, columns, mapping, scale, convention, wanted, codes, refit, stochastic, seed = (
        values
    )
    texts = (fmt, granularity, mapping, scale, convention, wanted)
    if not all(isinstance(text, str) for text in texts) or not isinstance(codes, list | None):
        raise ValueError("the parts of a scheme are texts, numbers, a list of rules and two switches")
    known: tuple[Collection[str], ...] = (ELEMENT_FORMATS, GRANULARITIES, MAPPINGS, SCALES, CONVENTIONS)
    for text, choices in zip(texts, known, strict=False):
        if text not in choices:
            raise ValueError(f"no choice {text[:40]!r}; accepted: {', '.join(choices)}")
    for word in codes or ():
        if not isinstance(word, str) or word not in CODES:
            raise ValueError(f"no rule for codes {str(word)[:40]!r}; accepted: {', '.join(CODES)}")
    calibrator_named(wanted)
    parts = Parts(
        fmt,
        granularity,
        _side(ROWS, rows, 0),
        _side(COLUMNS, columns, int(granularity in ("group", "flat"))),
        mapping,
        scale,
        convention,
        wanted,
        tuple(codes or ()),
        bool(refit),
        bool(stochastic),
        _seed(seed),
    )
    scheme = scheme_of(parts)
    if notice := dropped_choices(parts, scheme):
        limits.notify(notice)
    return str(scheme)


def _seed(text: Any) -> int:
    words = str(text if text is not None else "").strip()
    if not re.fullmatch(r"[0-9]{0,20}", words) or int(words or 0) >= 1 << 64:
        raise ValueError(f"Seed: a whole number from 0 to 2^64 - 1, not {words[:40]!r}")
    return int(words or 0)


def _side(field: str, value: Any, least: int) -> int:
    """A side of a block as a whole number of at least ``least``; 0 is the whole axis."""
    number = isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
    if not number or value != int(value) or not least <= value <= LARGEST_SIDE:
        shown = f"{value:g}" if number else "nothing" if value is None else repr(value)[:40]
        whole = "" if least else " (the whole axis)"
        raise ValueError(f"{field}: a whole number from {least}{whole} to {LARGEST_SIDE}, not {shown}")
    return int(value)


def best_tensors(every: Sequence[TensorInfo]) -> list[str]:
    """The names of tensors, in the order in which a visitor would want to see them: weight matrices that are
    no embeddings, other matrices, and all others. Bare codes are none of them: they are chosen on purpose."""
    infos = [info for info in every if not info.name.endswith(STORED)]
    return [info.name for info in sorted(infos, key=_rank)]


def multiplied(every: Sequence[TensorInfo]) -> list[TensorInfo]:
    """The tensors of a model that are multiplied by inputs, in their order: weights of layers, then
    embeddings. Norms and biases are left out, unless there is nothing else."""
    found = [info for info in every if _rank(info) < _OTHER]
    return sorted(found, key=_rank) or list(every)


_OTHER = 2


def _rank(info: TensorInfo) -> int:
    """0 for weights of layers, 1 for embeddings, ``_OTHER`` for the rest: vectors, and tables called a bias
    or a norm."""
    name, shape = info.name.lower(), info.shape
    last = name.removesuffix(".weight").rpartition(".")[2]
    if len(shape) < 2 or min(shape[-2:]) < 2 or name.endswith("bias") or "norm" in last:
        return _OTHER
    return 1 if "embed" in name or last in ("wte", "wpe", "relative_attention_bias") else 0
