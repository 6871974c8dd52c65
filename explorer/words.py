"""Numbers and names in words for people: durations, counts, sizes. Files and ``--json`` hold the numbers
themselves.

No exponents where a unit or a thousands separator says the same: "2.11 ms", never "2.11e+03 µs"; "1,024",
never "1.024k". Names come from untrusted files: on a terminal and in Markdown they are text and nothing
else.
"""

from __future__ import annotations

import math
import re

_SMALLEST, _LARGEST = 1e-4, 1e15
"""Outside of these magnitudes a number is written as a power of ten."""
_SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
_DURATIONS = (("ns", 1e-9), ("µs", 1e-6), ("ms", 1e-3), ("s", 1.0))
_SIZES = (("B", 1.0), ("kB", 1e3), ("MB", 1e6), ("GB", 1e9), ("TB", 1e12))


IN_PYTHON = ", or in Python pass allow_nonfinite=True"
"""End of an error message that is of use only to a program."""


def without_python(message: str) -> str:
    """Remove ``IN_PYTHON`` from a message for the command line or the page."""
    return message.replace(IN_PYTHON, "")


def plain(text: str, most: int | None = None) -> str:
    """Return ``text`` on one line with every invisible character escaped as Python does.

    These are control characters (escape sequences of a terminal, line breaks), marks that turn the direction
    of writing, and the like. A text longer than ``most`` characters is cut and ends in "…".
    """
    cut = text[:most]
    shown = cut if cut.isprintable() else "".join(c if c.isprintable() else ascii(c)[1:-1] for c in cut)
    if most is None or max(len(text), len(shown)) <= most:
        return shown
    return f"{shown[:most]}…"


def code(text: str) -> str:
    """Return ``plain(text)`` as Markdown code, in which nothing is markup; not for use in tables."""
    shown = plain(text) or " "
    fence = "`" * (1 + max((len(run) for run in re.findall("`+", shown)), default=0))
    # Of one blank at both ends a reader takes one away.
    pad = " " if shown.strip() and (shown[0] in " `" or shown[-1] in " `") else ""
    return f"{fence}{pad}{shown}{pad}{fence}"


def number(value: float, digits: int = 3) -> str:
    """Round to significant digits, without trailing zeros: "2,110", "0.0352", "1.2 × 10⁻⁷"."""
    if not math.isfinite(value):
        return "not a number" if math.isnan(value) else "∞" if value > 0 else "−∞"
    if value == 0:
        return "0"
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)) + 1e-12)
    if not _SMALLEST <= abs(rounded) < _LARGEST:
        return scientific(value, digits)
    text = f"{rounded:,.{max(digits - 1 - exponent, 0)}f}"
    text = text.rstrip("0").rstrip(".") if "." in text else text
    return text.replace("-", "−")


def scientific(value: float, digits: int = 3) -> str:
    """Write a finite ``value`` other than 0 by its power of ten: "1 × 10¹²"."""
    rounded = float(f"{value:.{digits - 1}e}")
    exponent = math.floor(math.log10(abs(rounded)) + 1e-12)
    power = str(exponent).translate(_SUPERSCRIPT)
    return f"{rounded / 10.0**exponent:.{digits}g} × 10{power}".replace("-", "−")


def count(n: int) -> str:
    """Write a whole number: "1,024"."""
    return f"{n:,}".replace("-", "−")


def duration(seconds: float, digits: int = 3) -> str:
    """Write seconds in a readable unit: "35.5 µs", "2.11 ms", "1.2 s", "3 min 20 s"."""
    if 59.5 <= seconds < math.inf:
        minutes, rest = divmod(round(seconds), 60)
        return f"{count(minutes)} min {rest} s" if rest else f"{count(minutes)} min"
    return _with_unit(seconds, _DURATIONS, "s", digits)


def bytes_(n: float, digits: int = 3) -> str:
    """Write bytes in powers of 1000: "512 B", "8.39 MB", "141 GB"."""
    return _with_unit(n, _SIZES, "B", digits)


def byte_size(text: str) -> float:
    """Read a number of bytes: "3.2GB", "800 mb" or a plain number in powers of 1000, "2 GiB" of 1024.

    ``ValueError`` for anything else.
    """
    found = re.fullmatch(r"(\d+(?:\.\d+)?)\s*(?:([kmgt])(i?)b?|b?)", text.strip(), re.IGNORECASE)
    if found is None:
        raise ValueError(f"{text[:40]!r} is no size: write it like 3.2GB, 800 MB or 2 GiB")
    power = "kmgt".index(found[2].lower()) + 1 if found[2] else 0
    return float(found[1]) * (1024.0 if found[3] else 1000.0) ** power


def percent(share: float) -> str:
    """Write a share of 0 … 1 in percent; values below 1 are never shown as "100 %"."""
    if 0.9995 <= share < 1:
        return "more than 99.9 %"
    return f"{number(100 * share, 3 if share > 0.9 else 2)} %"


def times(factor: float, digits: int = 3) -> str:
    """Write a factor: "1.07×", "1,520×"."""
    return f"{number(factor, digits)}×"


def _with_unit(value: float, units: tuple[tuple[str, float], ...], plain: str, digits: int) -> str:
    """Write ``value`` in the largest unit that its rounded value reaches, or in the smallest."""
    if value == 0 or not math.isfinite(value):
        return f"{number(value)} {plain}"
    rounded = float(f"{value:.{digits - 1}e}")
    unit, size = next((u for u in reversed(units) if abs(rounded) >= u[1] * (1 - 1e-12)), units[0])
    return f"{number(rounded / size, digits)} {unit}"


def kernel_name(variant: str) -> str:
    """Return the name of a kernel for the page and reports. Recordings call one "swap A/B", which would be
    misread beside schemes A and B: it exchanges the operands of the product."""
    return variant.replace("swap A/B", "operands exchanged")
