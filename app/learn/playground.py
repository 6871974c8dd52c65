"""One number in every format. ``assets/playground.js`` computes in the browser with facts of ``FORMATS``."""

from __future__ import annotations

import math
from typing import Any

from app.parts.section import Section
from explorer.figures.style import FAMILY_COLORS, family
from explorer.formats import FLOAT32, FORMATS, CodebookFormat, FloatFormat, Format, IntegerFormat
from explorer.formats.code import parse_code
from explorer.formats.floats import TruncatedFloat32
from explorer.formats.integers import FixedPointFormat


def format_facts() -> list[dict[str, Any]]:
    """One JSON object a format, for ``assets/numbers.js``; numbers that JSON lacks are strings."""
    return [_facts(fmt) for fmt in FORMATS.values()]


def _facts(fmt: Format) -> dict[str, Any]:
    facts = {
        "name": fmt.name,
        "label": fmt.label,
        "bits": fmt.bits,
        "count": fmt.code_count,
        "max": fmt.max,
        "color": FAMILY_COLORS[family(fmt)],
        "family": family(fmt),
        "fields": [{"name": f.name, "high": f.high, "low": f.low} for f in fmt.fields],
        "nan": parse_code("nan", fmt) if fmt.has_nan else None,
        "scaleOnly": fmt.scale_only,
        **_encoding(fmt),
    }
    if fmt.bits <= 8:
        facts["values"] = [_jsonable(fmt.value(code)) for code in range(fmt.code_count)]
        facts["levels"] = list(fmt.levels)
    return facts


def _encoding(fmt: Format) -> dict[str, Any]:
    """Data needed for rounding: the kind of format, and the facts of that kind."""
    if isinstance(fmt, CodebookFormat):
        return {"kind": "codebook", "boundaries": fmt.boundaries}
    if isinstance(fmt, FloatFormat):
        return {
            "kind": "float" if fmt.has_zero else "scale",
            "signed": fmt.signed,
            "exponent": fmt.exponent,
            "mantissa": fmt.mantissa,
            "bias": fmt.bias,
            "unused": next((f.high + 1 for f in fmt.fields if f.name == "unused"), 0),
            "saturates": fmt is not FLOAT32,
            "away": isinstance(fmt, TruncatedFloat32) and fmt.away,
            "negativeZero": fmt.has_negative_zero,
        }
    if not isinstance(fmt, IntegerFormat | FixedPointFormat):
        raise TypeError(f"the playground cannot encode {fmt.label}")
    return {"kind": "integer", "fraction": getattr(fmt, "fraction", 0)}


def _jsonable(value: float) -> float | str:
    if math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


SECTION = Section(
    name="formats",
    title="One number",
    follows=("format", "number", "code"),
    script="explorer.playground",
    shares={"facts": format_facts()},
)
