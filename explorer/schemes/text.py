"""A scheme as one text: what links, ``--scheme``, saved files and the torch operators carry.

A text is the name of a row of ``SCHEMES`` (or an older name, ``ALIASES``), such a name with another block
(``schemes.names``), or all parts of a scheme in order, which this module reads::

    int4~1x128~asymmetric~float16~minmax
    float4_e2m1fn~1x32~symmetric~floor~mse~fit~s7

In EBNF::

    scheme     = name
               | format "~" block "~" mapping "~" scale "~" calibrator { "~" option } ;
    format     = a name of FORMATS, except those for scales only | "int7" ;
    block      = "tensor" | "row" | "column" | side "x" side        (rows x columns)
               | "flat" number ;                                    (runs of the flattened tensor)
    side       = number | "all" ;                                   ("all": the whole axis; older: "row")
    mapping    = a member of MappingType in lower case ;
    scale      = "none"                                             (a cast)
               | a floating-point name of FORMATS                   (the format the scales are stored in)
               | a member of ExponentRule in lower case             (E8M0 scales by this rule)
               | "nvfp4"                                            (E4M3 scales under one float32 scale)
               | one of these three, "-", a value of Convention     (by another library's rules: nvfp4-ct)
               | "super4" | "super6" | "super8"                     (integers under float16 of super-blocks)
               | one of these three or "float16", "-ggml"           (found by llama.cpp's search)
               | "nested" ;                                         (8 bits under float32, less their mean)
    calibrator = a name of CALIBRATORS
               | "share" number ;                                   (of min-max, above 0 and at most 1)
    option     = "fit"                                              (least-squares scales)
               | "s" number                                         (stochastic rounding with this seed)
               | a word of CODE_WORDS ;                             (how codes are rounded)

Letters and digits are those of ASCII. Upper and lower case are the same to the reader: texts of earlier
versions name mappings and exponent rules in upper case. Every character is unreserved in a URL (RFC 3986),
so a text needs no escaping.
``Scheme.parse(str(scheme))`` equals ``scheme`` up to name and label.
"""

from __future__ import annotations

import contextlib
import dataclasses
import difflib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import NoReturn, TypeVar

from explorer.formats import E4M3, E8M0, FORMATS, FloatFormat, Format, IntegerFormat, float_format
from explorer.schemes.calibrators import CALIBRATORS, SHARES, Calibrator, calibrator_named
from explorer.schemes.parts import BLOCK_WORDS, FLAT, NO_SCALE, SEPARATOR, Block, SchemeParts
from explorer.schemes.rules import (
    CODE_WORDS,
    SUPER_BITS,
    CodeRule,
    Convention,
    ExponentRule,
    MappingType,
    ScaleRule,
    Ties,
)

_INT7 = IntegerFormat(name="int7", label="INT7", bits=7)
ELEMENT_FORMATS: dict[str, Format] = {
    row.name: row for row in (*FORMATS.values(), _INT7) if not row.scale_only
}
"""The formats of codes. INT7 has no row of FORMATS; training sweeps over it."""
SCALE_FORMATS = tuple(row for row in FORMATS.values() if isinstance(row, FloatFormat) and row.holds_scales)
"""The formats of scales."""
_SCALE_RULES = (
    *(ScaleRule(row) for row in SCALE_FORMATS if row is not E8M0),
    *(ScaleRule(E8M0, rule) for rule in ExponentRule),
    ScaleRule(E4M3, per_tensor=True),
    *(ScaleRule(float_format("float16"), convention=Convention.ZERO, super_bits=bits) for bits in SUPER_BITS),
    ScaleRule(convention=Convention.ZERO, nested=True),
)


def _by_conventions(rule: ScaleRule) -> Iterator[ScaleRule]:
    """Return ``rule`` under every convention that its format supports."""
    for convention in Convention:
        with contextlib.suppress(ValueError):
            yield dataclasses.replace(rule, convention=convention)


SCALE_RULES: dict[str, ScaleRule | None] = {
    NO_SCALE: None,
    **{rule.word: rule for plain in _SCALE_RULES for rule in _by_conventions(plain)},
}
"""Every rule by its word; None casts without a scale."""
_MAPPINGS = {mapping.word: mapping for mapping in MappingType}
_BLOCKS = {word: block for block, word in BLOCK_WORDS.items()}
_SIDES = re.compile(r"([0-9]{1,9}|all|row)x([0-9]{1,9}|all|row)", re.IGNORECASE)
_FLAT = re.compile(rf"{FLAT}([0-9]{{1,9}})", re.IGNORECASE)
_SEED = re.compile(r"s([0-9]{1,20})", re.IGNORECASE)
OUTLINE = "format~block~mapping~scale~calibrator"
LONGEST = 200  # the longest legal text has about 120 characters

Row = TypeVar("Row")


def checked_text(parts: SchemeParts) -> str:
    """Return the spelled text for files and operators; ``Scheme.parse`` restores the same parts.

    ``ValueError`` for a format or calibrator outside its table.
    """
    if name := unlisted(parts):
        raise ValueError(f"{name!r} is no row of its table, so {parts.name!r} cannot be read back")
    return parts.text


def unlisted(parts: SchemeParts) -> str:
    """The name of the scheme's format or calibrator if the table has another entry under it or none;
    otherwise empty."""
    if ELEMENT_FORMATS.get(parts.format.name) != parts.format:
        return parts.format.name
    with contextlib.suppress(ValueError):
        if calibrator_named(parts.calibrator.name) == parts.calibrator:
            return ""
    return parts.calibrator.name


@dataclass(frozen=True)
class _Part:
    """Part of the text ``whole``: its word, its number (from 1), and its first character (from 0)."""

    whole: str
    number: int
    start: int
    word: str

    def choose(self, kind: str, table: Mapping[str, Row]) -> Row:
        """Return the row of ``table`` named by the word, in any case."""
        by_lower = {name.lower(): row for name, row in table.items()}
        if self.word.lower() not in by_lower:
            self.refuse(kind, by_lower)
        return by_lower[self.word.lower()]

    def refuse(self, kind: str, accepted: Iterable[str]) -> NoReturn:
        """Raise ``ValueError`` with the part's position and the accepted values; a note points at it."""
        words = list(accepted)
        place = f"part {self.number} of the scheme {self.whole!r}"
        if self.word:
            wrong = f"{place}, {self.word!r} at character {self.start + 1}, is no {kind}"
        else:
            wrong = f"{place} is missing: at character {self.start + 1} a {kind} is expected"
        error = ValueError(f"{wrong}{suggestion(self.word, words)}; accepted: {', '.join(words)}")
        error.add_note(f"{self.whole}\n{' ' * self.start}{'^' * max(len(self.word), 1)}")
        raise error


def _split(text: str) -> list[_Part]:
    parts, start = [], 0
    for number, word in enumerate(text.split(SEPARATOR), 1):
        parts.append(_Part(text, number, start, word))
        start += len(word) + len(SEPARATOR)
    # A text that ends early is wrong where the next part would start.
    parts += [_Part(text, number, len(text), "") for number in range(len(parts) + 1, 6)]
    return parts


def check_ascii(text: str) -> None:
    """Raise ``ValueError`` that names the first non-ASCII character of ``text``: lower-casing turns some of
    them, such as the Kelvin sign, into ASCII letters."""
    if text.isascii():
        return
    place, wrong = next((i, c) for i, c in enumerate(text) if not c.isascii())
    raise ValueError(
        f"names and texts of schemes have ASCII letters and digits only, not {wrong!r} (U+{ord(wrong):04X}) "
        f"at character {place + 1} of {text[:LONGEST]!r}"
    )


def read(text: str) -> SchemeParts:
    """Parse the parts that ``text`` spells, with the text as name and label.

    ``ValueError`` names the wrong part and the accepted values.
    """
    if len(text) > LONGEST:
        raise ValueError(f"the text of a scheme has at most {LONGEST} characters, this one {len(text)}")
    format_, block, mapping, scale, calibrator, *options = _split(text)
    # From left to right, so that the leftmost wrong part is the one reported.
    fmt = format_.choose("number format", ELEMENT_FORMATS)
    sides, flat = _block(block)
    kind = mapping.choose("mapping", _MAPPINGS)
    rule = scale.choose("scale", SCALE_RULES)
    row = _calibrator(calibrator)
    least_squares_scale, seed, codes = _options(options)
    if rule is None:  # texts of earlier versions may give a cast a block
        sides, flat, least_squares_scale = (None, None), False, False
    try:
        return SchemeParts(text, text, fmt, sides, rule, kind, row, least_squares_scale, seed, codes, flat)
    except ValueError as error:
        raise ValueError(f"the scheme {text!r} cannot be: {error}") from error


def _calibrator(part: _Part) -> Calibrator:
    try:
        return calibrator_named(part.word)
    except ValueError:
        part.refuse("calibrator", [*CALIBRATORS, SHARES])


def _block(part: _Part) -> tuple[Block, bool]:
    """The sides of a block, and True if its runs cross the ends of rows (``flat``)."""
    if part.word.lower() in _BLOCKS:
        return _BLOCKS[part.word.lower()], False
    if flat := _FLAT.fullmatch(part.word):
        return (None, int(flat[1])), True
    sides = _SIDES.fullmatch(part.word)
    if not sides:
        part.refuse("block", (*_BLOCKS, "rows x columns such as 1x128, 128x128 or 4xall", "flat64"))
    rows, columns = (None if side.lower() in ("all", "row") else int(side) for side in sides.groups())
    return (rows, columns), False


def _options(parts: list[_Part]) -> tuple[bool, int | None, CodeRule]:
    least_squares_scale, seed, switches = False, None, dict[str, bool | Ties]()
    for part in parts:
        given = _SEED.fullmatch(part.word)
        if part.word.lower() == "fit" and not least_squares_scale:
            least_squares_scale = True
        elif given and seed is None:
            seed = int(given[1])
        elif CODE_WORDS.get(part.word.lower(), ("",))[0] not in ("", *switches):
            switches.update([CODE_WORDS[part.word.lower()]])
        else:
            part.refuse("further option", ("fit", "one seed such as s7", *CODE_WORDS))
    return least_squares_scale, seed, CodeRule(**switches)  # type: ignore[arg-type]


def suggestion(word: str, accepted: Iterable[str]) -> str:
    """A hint such as "; did you mean int4_group128?", empty if no accepted word is close."""
    by_lower = {name.lower(): name for name in accepted}
    close = difflib.get_close_matches(word[:80].lower(), by_lower, 3)
    return f"; did you mean {', '.join(by_lower[name] for name in close)}?" if close else ""
