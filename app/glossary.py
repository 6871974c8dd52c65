"""The glossary: one explanation for each term, from ``assets/glossary.json``, wherever the term stands."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup

from explorer.paths import ASSETS


@dataclass(frozen=True)
class Term:
    """One entry. ``aliases`` are other words for the term, ``see`` the ids of related ones."""

    id: str
    term: str
    aliases: tuple[str, ...]
    text: str
    see: tuple[str, ...]


@cache
def terms() -> tuple[Term, ...]:
    """All entries, as the file has them."""
    rows = json.loads((ASSETS / "glossary.json").read_text(encoding="utf-8"))
    return tuple(Term(r["id"], r["term"], tuple(r["aliases"]), r["text"], tuple(r["see"])) for r in rows)


@cache
def _by_name() -> dict[str, Term]:
    return {name.lower(): entry for entry in terms() for name in (entry.id, entry.term, *entry.aliases)}


def find(name: str) -> Term:
    """The entry for an id, a term or an alias, in any case; ``KeyError`` if there is none."""
    found = _by_name().get(name.lower())
    if found is None:
        raise KeyError(f"the glossary (assets/glossary.json) has no term {name!r}")
    return found


def term(name: str, text: str | None = None) -> Markup:
    """A button that reads ``text`` (or ``name``) and opens the explanation of ``name``; for templates."""
    return Markup('<button type="button" class="term" data-term="{}">{}</button>').format(
        find(name).id, text or name
    )


def linked(text: str) -> Markup:
    """``text`` with each <term> in angle brackets as its button."""
    pieces = re.split(r"<([^<>]+)>", text)
    return Markup("").join(term(piece) if i % 2 else piece for i, piece in enumerate(pieces))


def head() -> str:
    """The glossary as JSON for the page's head, where ``assets/glossary.js`` reads it."""
    entries = {e.id: {"term": e.term, "text": e.text, "see": e.see} for e in terms()}
    text = json.dumps(entries, ensure_ascii=False).replace("<", "\\u003c")
    return f'<script type="application/json" id="glossary">{text}</script>'
