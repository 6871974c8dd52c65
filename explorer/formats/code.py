"""One code of one format in words and numbers: its bits, its value as a formula, its neighbours."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch

from explorer.formats.base import Format
from explorer.formats.floats import FloatFormat
from explorer.formats.formats import FORMATS
from explorer.formats.integers import FixedPointFormat, IntegerFormat


@dataclass(frozen=True)
class CodeFacts:
    """A code and its value.

    ``bits`` has the most significant bit first, ``words`` is the value as a formula, ``below`` and ``above``
    are the neighbouring finite values (None at the ends, and for NaN and Inf).
    """

    format: Format
    code: int
    bits: str
    value: float
    words: str
    below: float | None
    above: float | None


@dataclass(frozen=True)
class Rendering:
    """Number as one format stores it, and the rounding error ``value`` - number.

    All three are None if the format cannot store the number (NaN without a code for it); ``refused`` then has
    the reason.
    """

    format: Format
    code: int | None
    value: float | None
    error: float | None
    refused: str = ""


class NoNaNError(ValueError):
    """Error for NaN in a format that has no code for it."""


def parse_code(text: str, fmt: Format) -> int:
    """Parse ``text`` as a code: bits (``0b0101``), hexadecimal (``0x50``), or a number to be rounded.

    Raises ``ValueError`` with what is accepted, ``NoNaNError`` for NaN in a format without it.
    """
    word = text.strip().lower().replace("_", "").replace("−", "-")
    try:
        number: float = float(word) if plain_number(word) else int(word, 0)
    except ValueError as error:
        raise ValueError(
            f"{text.strip()[:40]!r} is neither a number, nor bits such as 0b0101, nor hex such as 0x5A"
        ) from error
    return _code_of(number, fmt) if isinstance(number, float) else _checked(fmt, number)


def plain_number(text: str) -> bool:
    """True if ``text`` is a decimal number rather than bits or hexadecimal."""
    return not text.lower().lstrip().startswith(("0b", "0x"))


def _code_of(number: float, fmt: Format) -> int:
    if math.isnan(number) and not fmt.has_nan:
        raise NoNaNError(f"{fmt.label} has no code for NaN")
    codes = fmt.encode(torch.tensor([number], dtype=torch.float64))
    return int(codes[0]) & (2**fmt.bits - 1)


def flip_bit(fmt: Format, code: int, bit: float) -> int:
    """Flip one bit of ``code``, 0 being the lowest.

    ``ValueError`` for a bit that the format does not have or that is no whole number, and if the format does
    not use the resulting code.
    """
    if type(bit) not in (int, float) or not 0 <= bit < fmt.bits or bit != int(bit):
        raise ValueError(f"{fmt.label} has bits 0 to {fmt.bits - 1}, not {str(bit)[:40]}")
    flipped = _checked(fmt, code) ^ (1 << int(bit))
    if flipped >= fmt.code_count:
        raise ValueError(f"{fmt.label} uses only codes 0 to {fmt.code_count - 1}")
    return flipped


def _checked(fmt: Format, code: int) -> int:
    if type(code) is not int or not 0 <= code < fmt.code_count:
        raise ValueError(f"{fmt.label} has codes 0 to {fmt.code_count - 1:#x} ({fmt.bits} bits)")
    return code


def code_facts(fmt: Format, code: int) -> CodeFacts:
    """Collect the facts about one code of ``fmt``; ``ValueError`` unless 0 <= ``code`` < the number of its
    codes."""
    value = fmt.value(_checked(fmt, code))
    below, above = _neighbours(fmt, value)
    return CodeFacts(fmt, code, format(code, f"0{fmt.bits}b"), value, code_formula(fmt, code), below, above)


def code_formula(fmt: Format, code: int) -> str:
    """Formula for the value of ``code`` from its fields, with the numbers: ``+2^(10−7) × (1 + 0/8) = 8``."""
    value = fmt.value(code)
    if isinstance(fmt, FloatFormat):
        return _float_formula(fmt, code)
    if isinstance(fmt, IntegerFormat):
        top = 2 ** (fmt.bits - 1)
        return f"two's complement: −{top}·{code >> (fmt.bits - 1)} + {code & (top - 1)} = {value:g}"
    if isinstance(fmt, FixedPointFormat):
        parts = 2**fmt.fraction
        return f"two's complement / {parts}: {value * parts:g} / {parts} = {value:g}"
    return f"level {code} of {fmt.code_count}: {value:.9g}" if not math.isnan(value) else "unused index"


def _neighbours(fmt: Format, value: float) -> tuple[float | None, float | None]:
    if not math.isfinite(value):
        return None, None
    if fmt.bits <= 8:
        lower = [v for v in fmt.levels if v < value]
        upper = [v for v in fmt.levels if v > value]
        return (lower[-1] if lower else None), (upper[0] if upper else None)
    assert isinstance(fmt, FloatFormat)
    return _next_value(fmt, value, -1), _next_value(fmt, value, 1)


def _next_value(fmt: FloatFormat, value: float, direction: int) -> float | None:
    """The next representable number up (1) or down (-1), by the spacing in the binade of ``value``."""
    outward = (value > 0) == (direction > 0)
    exponent = max(math.frexp(value)[1] - 1, 1 - fmt.bias) if value else 1 - fmt.bias
    gap = 2.0 ** (exponent - fmt.mantissa)
    if value and not outward and abs(value) == 2.0**exponent and exponent > 1 - fmt.bias:
        gap /= 2
    neighbour = value + direction * gap
    return neighbour if abs(neighbour) <= fmt.max else None


def in_every_format(number: float) -> list[Rendering]:
    """Round ``number`` to each row of ``FORMATS``, without a scale."""
    found = []
    for fmt in FORMATS.values():
        try:
            code = _code_of(number, fmt)
            found.append(Rendering(fmt, code, fmt.value(code), fmt.value(code) - number))
        except NoNaNError as refusal:
            found.append(Rendering(fmt, None, None, None, str(refusal)))
    return found


def _float_formula(fmt: FloatFormat, code: int) -> str:
    value = fmt.value(code)
    if not math.isfinite(value):
        return f"special code: {value}"
    fields = {f.name: (code >> f.low) & (2 ** (f.high - f.low + 1) - 1) for f in fmt.fields}
    sign = "−" if fields.get("sign") else "+"
    e, m, denominator = fields["exponent"], fields.get("mantissa", 0), 2**fmt.mantissa
    if not fmt.has_zero:
        return f"2^({e}−{fmt.bias}) = {short(value)}"
    if e == 0:
        return f"{sign}2^(1−{fmt.bias}) × {m}/{denominator} = {short(value)}  (subnormal)"
    return f"{sign}2^({e}−{fmt.bias}) × (1 + {m}/{denominator}) = {short(value)}"


def short(value: float) -> str:
    """Write ``value`` with seven significant digits and a typographic minus sign."""
    return f"{value:.7g}".replace("-", "−")
