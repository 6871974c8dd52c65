"""Names of schemes as a grammar: a named scheme with another block, such as ``int4_group48_asym``.

In EBNF::

    name   = format "_" block [ "_" ending ] ;
    format = the beginning of a name of SCHEMES: "int4", "fp8_e4m3", "nf4" ;
    block  = "tensor" | "row" | "column" | ( "group" | "block" ) number | side "x" side ;
    side   = number | "all" ;
    ending = that of a name of SCHEMES with this format and kind of block
           | "asym" | "full" ;                                          (integers)

Parts that a name leaves open, above all the storage of scales, come from the named scheme with the same
format and ending whose block is most similar: ``int8_group48_asym`` has the float16 scales of
``int8_group32``, and ``int8_64x64`` the float32 scales of ``int8_tensor``.
"""

from __future__ import annotations

import dataclasses
import re
from dataclasses import dataclass
from typing import NoReturn

from explorer.formats import IntegerFormat
from explorer.schemes.named import ALIASES, ROWS
from explorer.schemes.parts import BLOCK_WORDS, Block, SchemeParts
from explorer.schemes.rules import MappingType
from explorer.schemes.text import OUTLINE, suggestion

_SIDE = r"(?:[0-9]{1,20}|all)"
_BLOCK = rf"{'|'.join(BLOCK_WORDS.values())}|(?:group|block)[0-9]{{1,20}}|{_SIDE}x{_SIDE}"
_NAME = re.compile(rf"(?P<format>.+?)_(?P<block>{_BLOCK})(?:_(?P<ending>.+))?")
_WORDS = {word: block for block, word in BLOCK_WORDS.items()}
_LONGEST = 80
MAPPING_ENDINGS = {"asym": MappingType.ASYMMETRIC, "full": MappingType.FULL}
"""Endings for the mapping of integers, allowed with any block."""


@dataclass(frozen=True)
class _Name:
    """A name split into its parts; ``ending`` is empty if there is none."""

    format: str
    block: Block
    ending: str

    @property
    def kind(self) -> str:
        """The kind of block: one of ``BLOCK_WORDS``, a group along the row, or a tile."""
        return BLOCK_WORDS.get(self.block) or ("group" if self.block[0] == 1 else "tile")


def _taken_apart(name: str) -> _Name | None:
    found = _NAME.fullmatch(name) if len(name) <= _LONGEST else None
    if not found:
        return None
    word = found["block"]
    if word in _WORDS:
        block = _WORDS[word]
    elif word.startswith(("group", "block")):
        block = (1, int(word[5:]))
    else:
        rows, columns = (None if side == "all" else int(side) for side in word.split("x"))
        block = (rows, columns)
    return _Name(found["format"], block, found["ending"] or "")


_TAKEN_APART = [(own, row) for row in ROWS.values() if (own := _taken_apart(row.name))]


def named(name: str) -> SchemeParts:
    """Return the scheme of a lower-case name that is no row of ``ROWS``, with that name as its name and
    label.

    ``ValueError`` says which part is wrong.
    """
    wanted = _taken_apart(name)
    same_format = [(own, row) for own, row in _TAKEN_APART if wanted and own.format == wanted.format]
    if wanted is None or not same_format:
        _refuse(name)
    row = _most_like(wanted, same_format)
    if row is None:
        _refuse_ending(name, wanted, same_format)
    try:
        return dataclasses.replace(row, name=name, label=name, block=wanted.block)
    except ValueError as error:
        raise ValueError(f"the scheme {name!r} cannot be: {error}") from error


def _most_like(wanted: _Name, rows: list[tuple[_Name, SchemeParts]]) -> SchemeParts | None:
    """Find the row of ``rows`` with the same ending and kind of block, or the most similar one; None without
    one.

    An ending of ``MAPPING_ENDINGS`` is added to a row without ending. Without an ending, or with such a one,
    rows of other blocks are accepted too.
    """
    integer = isinstance(rows[0][1].format, IntegerFormat)
    mapping = MAPPING_ENDINGS.get(wanted.ending) if integer else None
    same_kind = [(own, row) for own, row in rows if own.kind == wanted.kind]
    for group in (same_kind, rows) if mapping or not wanted.ending else (same_kind,):
        with_ending = next((row for own, row in group if own.ending == wanted.ending), None)
        plain = next((row for own, row in group if not own.ending), None)
        if with_ending:
            return with_ending
        if plain and mapping:
            return dataclasses.replace(plain, mapping=mapping)
    return None


def _refuse_ending(name: str, wanted: _Name, rows: list[tuple[_Name, SchemeParts]]) -> NoReturn:
    endings = [own.ending for own, _ in rows if own.ending and own.kind == wanted.kind]
    if isinstance(rows[0][1].format, IntegerFormat):
        endings = [*MAPPING_ENDINGS, *endings]
    accepted = list(dict.fromkeys(endings))
    start = name.removesuffix(f"_{wanted.ending}") if wanted.ending else name
    what = f"{wanted.ending!r} is no ending of {start}" if wanted.ending else f"{start} needs an ending"
    raise ValueError(
        f"no scheme {name!r}: {what}{suggestion(wanted.ending, accepted)}; "
        f"accepted: {', '.join(accepted) or 'none'}"
    )


def _refuse(name: str) -> NoReturn:
    raise ValueError(
        f"no scheme {name[:_LONGEST]!r}{suggestion(name, [*ROWS, *ALIASES]) or '.'} `explorer schemes` lists "
        "the names; the block in a name may be of another size, as in int4_group48_asym. Any other scheme is "
        f"spelled {OUTLINE}, such as int4~1x48~asymmetric~float16~minmax"
    )
