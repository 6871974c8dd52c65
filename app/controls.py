"""The sidebar's pickers: what they show for a scheme, and the scheme that they spell.

A scheme is one text (``Scheme.parse``, ``str``) in links and between handlers.
"""

from __future__ import annotations

from dataclasses import dataclass

from explorer import CALIBRATORS, SCHEMES, MappingType, ScaleRule, Scheme
from explorer.formats import E4M3, E8M0, FloatFormat, IntegerFormat
from explorer.schemes import SCALE_RULES, Block
from explorer.schemes.scheme import NO_SCALE
from explorer.schemes.text import ELEMENT_FORMATS

CUSTOM = "custom"
DEFAULT_SCHEME = "int4_group128_asym"
DEFAULT_SAMPLE = "mlp_up"
SOURCES = {"builtin": "Built-in tensor", "file": "A file of mine", "model": "Layer of a model"}

GRANULARITIES: dict[str, str] = {
    "tensor": "whole tensor",
    "row": "per row (channel, token)",
    "column": "per column",
    "group": "groups along the row",
    "tile": "tiles of rows × columns",
}
_ORIGIN = {"FLOOR": " (OCP)", "RCEIL": " (NVIDIA)"}
MAPPINGS: dict[str, str] = {
    "SYMMETRIC": "symmetric",
    "ASYMMETRIC": "asymmetric (zero point)",
    "FULL": "symmetric, full range",
    "POWER": "symmetric, amax / 2^(b-1)",
    "NO_CLIP": "symmetric, no clipping",
}
_NO_BLOCK: Block = (None, None)
_NAMED_BLOCKS: dict[Block, str] = {_NO_BLOCK: "tensor", (1, None): "row", (None, 1): "column"}
_USUAL_SIDE = 128
_LARGEST_SIDE = 10**9 - 1  # what a scheme's text can spell


def scale_label(word: str, rule: ScaleRule | None) -> str:
    """A row of ``SCALE_RULES`` as the picker shows it."""
    if rule is None:
        return "none: cast as it is"
    if rule.exponent is not None:
        return f"E8M0, {word}{_ORIGIN.get(word, '')}"
    return f"{rule.format.label} under one FP32 (NVFP4)" if rule.per_tensor else rule.format.label


SCALES = {word: scale_label(word, rule) for word, rule in SCALE_RULES.items()}


@dataclass(frozen=True)
class Parts:
    """What the sidebar's scheme controls hold, as the strings and numbers they show.

    ``rows`` and ``columns`` are the sides of tiles, 0 for a whole axis; groups have ``columns`` alone.
    """

    format: str
    granularity: str
    rows: int
    columns: int
    mapping: str
    scale: str
    range: str
    refit: bool
    stochastic: bool
    seed: int


def format_choices() -> list[tuple[str, str]]:
    return [(f.label, f.name) for f in ELEMENT_FORMATS.values()]


def scheme_choices() -> list[tuple[str, str]]:
    return [(s.label, s.name) for s in SCHEMES.values()]


def parts_of(scheme: Scheme) -> Parts:
    """The controls' values that stand for ``scheme``."""
    rows, columns = scheme.block
    granularity = _NAMED_BLOCKS.get(scheme.block)
    if granularity is not None:
        rows = columns = _USUAL_SIDE
    elif rows == 1:
        granularity, rows = "group", columns  # from groups a click on tiles gives square ones
    return Parts(
        scheme.format.name,
        granularity or "tile",
        rows or 0,
        columns or 0,
        scheme.mapping.name,
        scheme.scale.word if scheme.scale else NO_SCALE,
        scheme.calibrator.name,
        scheme.least_squares_scale,
        scheme.seed is not None,
        scheme.seed or 0,
    )


def scheme_of(parts: Parts) -> Scheme:
    """The scheme that the controls spell, changed as little as makes it possible.

    A format that takes no asymmetric mapping falls back to symmetric, and one of 16 bits or more to a
    cast, so that no order of clicks leads to an error.
    """
    fmt = ELEMENT_FORMATS[parts.format]
    scale = SCALE_RULES[parts.scale]
    if fmt.bits > 8:
        scale = None
    elif scale is None and not isinstance(fmt, FloatFormat):
        scale = ScaleRule()
    mapping = MappingType[parts.mapping]
    scaled_by_power = scale is not None and scale.format in (E8M0, E4M3)
    if scale is None or not isinstance(fmt, IntegerFormat) or scaled_by_power:
        mapping = MappingType.SYMMETRIC
    scheme = Scheme(
        CUSTOM,
        "",
        fmt,
        _block_of(parts) if scale is not None else _NO_BLOCK,
        scale,
        mapping,
        CALIBRATORS[parts.range],
        parts.refit and scale is not None,
        parts.seed if parts.stochastic else None,
    )
    return Scheme.parse(str(scheme))


def _block_of(parts: Parts) -> Block:
    for block, name in _NAMED_BLOCKS.items():
        if name == parts.granularity:
            return block
    for side in (parts.rows, parts.columns):
        if not 0 <= side <= _LARGEST_SIDE:
            raise ValueError(
                f"a side of a block has 1 to {_LARGEST_SIDE} values, or 0 for the whole axis, not {side}"
            )
    return (1 if parts.granularity == "group" else parts.rows or None), parts.columns or None
