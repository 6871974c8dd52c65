"""The glossary file, and the terms that templates ask it for."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from app import glossary
from app.learn import story
from app.parts import html
from explorer.paths import ASSETS

TEMPLATES = Path(html.__file__).with_name("templates")
USED = re.compile(r"""\bterm\(\s*["']([^"']+)["']""")


@pytest.mark.parametrize("entry", glossary.terms(), ids=lambda e: e.id)
def test_each_entry_is_short_and_leads_somewhere(entry: glossary.Term) -> None:
    """An explanation is one to three sentences; what it refers to exists; its id can stand in HTML."""
    assert re.fullmatch(r"[a-z0-9-]+", entry.id) and entry.term
    sentences = re.findall(r"[.!?](?=\s|$)", entry.text)
    assert 1 <= len(sentences) <= 3 and 30 < len(entry.text) < 260
    assert entry.id not in entry.see
    for other in entry.see:
        assert glossary.find(other).id == other


def test_no_word_means_two_things() -> None:
    """Two entries under one word: which of them opens would depend on their order."""
    words = [w for e in glossary.terms() for w in {name.lower() for name in (e.id, e.term, *e.aliases)}]
    assert len(words) == len(set(words))
    assert len(json.loads((ASSETS / "glossary.json").read_text(encoding="utf-8"))) >= 35


@pytest.mark.parametrize("path", sorted(TEMPLATES.rglob("*.html")), ids=lambda p: p.stem)
def test_every_term_of_a_template_is_explained(path: Path) -> None:
    """A term without an entry would fail only when its page is opened."""
    for name in USED.findall(path.read_text(encoding="utf-8")):
        assert glossary.find(name)


@pytest.mark.parametrize("step", story.STEPS, ids=lambda s: s.title)
def test_every_term_of_the_story_is_explained(step: story.Step) -> None:
    """Terms stand in the texts in angle brackets; the last step's must be found as surely as the first's."""
    assert glossary.linked(step.text + step.lesson).count("data-term") >= 1


def test_a_term_is_a_button_and_an_unknown_one_is_refused() -> None:
    """Names are escaped; what the glossary lacks is a clear error."""
    assert glossary.term("SQNR", "<b>") == (
        '<button type="button" class="term" data-term="sqnr">&lt;b&gt;</button>'
    )
    with pytest.raises(KeyError, match="no term 'pear'"):
        glossary.term("pear")


def test_the_glossary_in_the_head_ends_no_script_early() -> None:
    assert "<" not in re.sub(r"^<script[^>]*>|</script>$", "", glossary.head())
