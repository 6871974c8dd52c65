"""The first look: what a page shows, as markup in its HTML. A browser paints it seconds before Gradio has
built the page. There is one of a page without a link, and of one that opens on the file that the page was
started on: of a large tensor it shows the numbers of a sample.

It is made of the same words by the same templates as the first screen; ``explorer.figures.still`` draws its
figure. It lies over the page in a closed shadow root. ``assets/first-look.js`` takes it away once the page
shows the same, and does what was clicked on it.
"""

from __future__ import annotations

import json
import logging
import re
from dataclasses import dataclass
from functools import lru_cache

from markupsafe import Markup

from app.link import opens_a_file, says_fresh
from app.parts import html
from app.sections import answer
from app.state.analyses import Pairs, analyses_of, known_report
from app.state.estimates import estimated
from app.state.record import Record
from app.theme import CODE_FONT, TEXT_FONT
from explorer.figures.still import still
from explorer.sources.tensors import Matrix

_FOCUSABLE = re.compile(r"<(button|input|a)\b")
_LOG = logging.getLogger("explorer")


@dataclass(frozen=True, eq=False)
class FirstLook:
    """What the first look shows around the answer: the header, and the names and titles of the place's
    sections. ``found``: the analyses of what a page without a link shows."""

    header: str
    sections: tuple[tuple[str, str], ...]
    found: tuple[Matrix, Pairs]

    def markup(self, query: str = "") -> str:
        """The first look of an address with ``query`` by all that is known by now; "" where it has none."""
        if says_fresh(query):
            shown = answer.shown_by(Record.fresh(), self.found) | {"chips": _chips(self.found)}
        else:
            linked = opens_a_file(query)
            shown = {} if linked is None else _of_file(linked)
        return _rendered(self, tuple(sorted(shown.items()))) if shown else ""


def _chips(found: tuple[Matrix, Pairs]) -> str:
    matrix, pairs = found
    return html.chips(matrix.name, [recipe for recipe, _ in pairs])


def _of_file(chosen: Record) -> dict[str, str]:
    """What the page shows first of a file's tensor; nothing where all of it has to be computed before."""
    if all(known_report(chosen, recipe) is not None for recipe in chosen.recipes):
        found = analyses_of(chosen)
        return answer.shown_by(chosen, found) | {"chips": _chips(found)}
    seen = estimated(chosen)
    if seen is None:
        return {}
    shown = answer.sampled(chosen, seen) | answer.of_sampled_tensor(chosen, seen)
    return shown | {"chips": html.chips(seen.name, seen.recipes)}


@lru_cache(maxsize=4)
def _rendered(look: FirstLook, words: tuple[tuple[str, str], ...]) -> str:
    shown = dict(words) | {"header": look.header, "drop": html.drop()}
    shown["figure"] = still(json.loads(shown["figure"]))
    markup = {name: Markup(_without_focus(text)) for name, text in shown.items()}
    return html.render("first_look", sections=look.sections, **markup)


def _without_focus(text: str) -> str:
    """``text`` with nothing that Tab leads to: whoever uses keys waits for the page itself."""
    return _FOCUSABLE.sub(r'<\1 tabindex="-1"', text.replace('tabindex="0"', 'tabindex="-1"'))


def _links(theme: str) -> str:
    """What the first look needs at once, and the page later: Gradio's style sheet of the theme, whose version
    is ``theme``, and the fonts."""
    fonts = (
        f'<link rel="preload" as="font" type="font/woff2" crossorigin href="{font.address}">'
        for font in (TEXT_FONT, CODE_FONT)
    )
    return f'<link rel="stylesheet" href="theme.css?v={theme}">{"".join(fonts)}'


_made: list[FirstLook] = []


def prepare(header: str, sections: list[tuple[str, str]]) -> None:
    """Have pages show a first look from now on, with ``header`` and ``sections`` as in ``FirstLook``. Where
    it cannot be made, pages open without one, and the log says why."""
    _made.clear()
    try:
        look = FirstLook(header, tuple(sections), analyses_of(Record.fresh()))
        look.markup()
    except Exception:
        _LOG.exception("pages open without a first look, which could not be made")
    else:
        _made.append(look)


def look_of(query: str) -> str:
    """Return the first look of an address's ``query``, "" if it has none. A failure is logged and costs the
    visitor seconds: the page itself needs no first look."""
    try:
        return _made[0].markup(query) if _made else ""
    except Exception:
        _LOG.exception("a page opens without a first look, which could not be made")
        return ""


def with_first_look(page: str, look: str) -> str:
    """Add the markup ``look`` to the HTML ``page``; unchanged, with a line in the log, if Gradio's HTML has
    another form."""
    head, end, body = page.partition("</head>")
    opening = re.search(r"<body\b[^>]*>", body)
    theme = re.search(r'"theme_hash":"(\w+)"', head)
    if not end or opening is None or theme is None:
        _LOG.error("a page opens without a first look: Gradio's HTML is not what it was")
        return page
    at = opening.end()
    return f"{head}{_links(theme[1])}{end}{body[:at]}{look}{body[at:]}"
