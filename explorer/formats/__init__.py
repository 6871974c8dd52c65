"""Number formats: the values of their codes, rounding, packing."""

from explorer.formats.base import BitField, Format
from explorer.formats.codebooks import CodebookFormat
from explorer.formats.floats import (
    EXPONENT_MASK,
    MANTISSA_BITS,
    FloatFormat,
    Specials,
    TruncatedFloat32,
)
from explorer.formats.formats import E4M3, E8M0, FLOAT32, FORMATS, float_format
from explorer.formats.integers import IntegerFormat

__all__ = [
    "E4M3", "E8M0", "EXPONENT_MASK", "FLOAT32", "FORMATS", "MANTISSA_BITS", "BitField", "CodebookFormat",
    "FloatFormat", "Format", "IntegerFormat", "Specials", "TruncatedFloat32", "float_format",
]  # fmt: skip
