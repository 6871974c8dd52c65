"""Schemes in words: a label for pickers and figures, and a sentence."""

from __future__ import annotations

from explorer.formats import IntegerFormat
from explorer.schemes.calibrators import MINMAX
from explorer.schemes.parts import SchemeParts
from explorer.schemes.rules import CODE_SENTENCES, K_QUANTS, NESTED_BLOCK, SUPER_BLOCK, MappingType, ScaleRule

_MAPPING_WORDS = {
    MappingType.FULL: "the full code range is used, so the largest magnitudes land on rounding ties",
    MappingType.POWER: "scale = amax / 2^(b-1), so the largest positive value is clipped by one code",
    MappingType.NO_CLIP: "the full code range is used and nothing is clipped",
    MappingType.SIGNED_MAX: "the first value of largest magnitude takes the code -2^(b-1), whatever its sign",
    MappingType.MINIMUM: "x = scale · (code + 2^(b-1)) + minimum, and 0 need not be exact",
    MappingType.MIDPOINT: "x = scale · code + the value of code 0, and 0 need not be exact",
}
_MAPPING_LABELS = {
    MappingType.FULL: "full range",
    MappingType.POWER: "range of 2^(b−1) steps",
    MappingType.NO_CLIP: "full range unclipped",
    MappingType.ASYMMETRIC: "asymmetric",
    MappingType.SIGNED_MAX: "signed maximum",
    MappingType.MINIMUM: "with minimums",
    MappingType.MIDPOINT: "with offsets",
}
_CODE_LABELS = {
    "reciprocal": "by reciprocals",
    "zerofirst": "zero point first",
    "unrounded": "unrounded scales for codes",
    "bf16": "in BF16",
    "away": "ties away",
    "up": "ties up",
}


def custom_label(parts: SchemeParts) -> str:
    """Write a unique label for a scheme without a row: "INT4 groups of 48, asymmetric, least squared error,
    FP16 scales". With the layout of a K-quant: "Q4_K layout, least squared error"."""
    layout = _k_quant(parts)
    words = [f"{layout} layout" if layout else f"{parts.format.label} {parts.granularity}"]
    if parts.mapping is not MappingType.SYMMETRIC and not layout:
        words.append(_MAPPING_LABELS[parts.mapping])
    if parts.calibrator is not MINMAX or layout:
        words.append(parts.calibrator.label)
    if parts.least_squares_scale:
        words.append("scales refitted")
    if parts.seed is not None:
        words.append(f"stochastic (seed {parts.seed})")
    words += [_CODE_LABELS[word] for word in parts.codes.words]
    if parts.scale is not None and not layout:
        words.append(_scale_label(parts.scale))
    return ", ".join(words)


def _k_quant(parts: SchemeParts) -> str:
    """Name the K-quant with this layout ("Q4_K") if llama.cpp's search does not find the scales; otherwise
    empty."""
    if parts.scale is None or parts.scale.is_searched or parts.flat:
        return ""
    layout = (parts.block, parts.scale.super_bits, parts.mapping)
    for bits, length, scale_bits, mapping in K_QUANTS:
        if parts.format.name == f"int{bits}" and layout == ((1, length), scale_bits, mapping):
            return f"Q{bits}_K"
    return ""


def _scale_label(rule: ScaleRule) -> str:
    """Label the storage of scales: "FP16 scales", "E8M0 scales (RCEIL)"."""
    if rule.super_bits is not None:
        text = f"{rule.super_bits}-bit scales in super-blocks"
        return f"{text} {rule.convention.words}" if rule.is_searched else text
    if rule.nested:
        return "doubly quantized scales"
    name = rule.format.label.split(" (")[0]
    text = f"{name} scales{' under FP32' if rule.per_tensor else ''}"
    text += f" ({rule.exponent.name})" if rule.exponent else ""
    return f"{text} {rule.convention.words}".strip()


def sentence(parts: SchemeParts, stored_by: str = "") -> str:
    """Describe the scheme in one sentence: the stored value, the block that shares a scale, and the library
    that stores exactly this."""
    fmt = parts.format
    if parts.scale is None:
        return f"Each value is rounded to {fmt.label} ({fmt.bits} bits) as it is, without a scale."
    article = "an" if fmt.packed_bits == 8 else "a"
    text = f"Each value becomes {article} {fmt.packed_bits:g}-bit {fmt.label} code; {_scale_words(parts)}"
    text += f"; {_mapping_words(parts)}" if parts.mapping in _MAPPING_WORDS else ""
    text += f"; ranges by {parts.calibrator.label}" if parts.calibrator is not MINMAX else ""
    text += ", scales refitted by least squares" if parts.least_squares_scale else ""
    text += f"; rounded stochastically (seed {parts.seed})" if parts.seed is not None else ""
    by_word = CODE_SENTENCES | (
        {"bf16": "scales computed in BF16"} if parts.scale.divides_by_tensor_scale else {}
    )
    text += "".join(f"; {by_word[word]}" for word in parts.codes.words)
    who = f": the same codes and scales as {stored_by}" if stored_by else _layout_words(parts)
    return f"{text}{who}."


def _layout_words(parts: SchemeParts) -> str:
    """Describe the layout and the search of the scales, for K-quants without llama.cpp's search."""
    layout = _k_quant(parts)
    if not layout:
        return ""
    by = parts.calibrator
    scales = f"by our search for the {by.label}" if by.name == "mse" else f"of ranges by {by.label}"
    return f": the layout of GGUF's {layout}, with scales {scales}, not by llama.cpp's search"


def _mapping_words(parts: SchemeParts) -> str:
    fmt = parts.format
    if isinstance(fmt, IntegerFormat):
        return _MAPPING_WORDS[parts.mapping]
    return f"levels are whole numbers from {fmt.min:g} to {fmt.max:g}, and a scale has either sign"


def _scale_words(parts: SchemeParts) -> str:
    """Describe block and scale: "every row shares an FP16 scale and an integer zero point, so 0 stays
    exact"."""
    assert parts.scale is not None
    if parts.scale.super_bits is not None:
        text, both = f"{_sharing_words(parts)} a scale", parts.mapping.has_offset
        text += " and a minimum" if both else ""
        text += f" of {parts.scale.super_bits} bits{' each' if both else ''}"
        text = f"{text} under FP16 scales of super-blocks of {SUPER_BLOCK}"
        return f"{text}, all {parts.scale.convention.words}" if parts.scale.is_searched else text
    if parts.scale.nested:
        return (
            f"{_sharing_words(parts)} a scale, stored less the mean of all scales in 8 bits under FP32 "
            f"scales of {NESTED_BLOCK} blocks"
        )
    label = parts.scale.format.label.split(" (")[0]
    text = f"{_sharing_words(parts)} {'an' if label[0] in 'EF' else 'a'} {label} scale"
    text += f" ({parts.scale.convention.words})" if parts.scale.convention.words else ""
    text += " and an integer zero point, so 0 stays exact" if parts.asymmetric else ""
    text += " and an offset in the same format" if parts.mapping.has_offset else ""
    text += f" ({parts.scale.exponent.name} rule)" if parts.scale.exponent else ""
    return text + (", and one FP32 scale lies over the whole tensor" if parts.scale.per_tensor else "")


def _sharing_words(parts: SchemeParts) -> str:
    height, width = parts.block
    if parts.flat:
        return f"every block of {width} of the flattened tensor shares"
    if parts.block == (None, None):
        return "the whole tensor shares"
    if parts.block in ((1, None), (None, 1)):
        return f"every {'row' if height == 1 else 'column'} shares"
    if height == 1:
        return f"every block of {width} along a row shares"
    return f"every block of {height or 'all'} rows × {width or 'all'} columns shares"
