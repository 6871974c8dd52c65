"""The glossary file, and the terms that templates ask it for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from app import glossary
from app.learn import story
from app.parts import html

TEMPLATES = Path(html.__file__).with_name("templates")
USED = re.compile(r"""\bterm\(\s*["']([^"']+)["']""")


def test_each_entry_leads_somewhere_and_means_one_thing() -> None:
    """Of two entries under one word, which opens depends on their order; an id has to stand in HTML."""
    for entry in glossary.terms():
        assert re.fullmatch(r"[a-z0-9-]+", entry.id) and entry.term and entry.text
        assert entry.id not in entry.see
        assert all(glossary.find(other).id == other for other in entry.see)
    words = [w for e in glossary.terms() for w in {name.lower() for name in (e.id, e.term, *e.aliases)}]
    assert len(words) == len(set(words)) > 35


def test_every_term_that_is_used_is_explained() -> None:
    """A term without an entry would fail only when its page is opened."""
    used = [name for path in TEMPLATES.rglob("*.html") for name in USED.findall(path.read_text())]
    assert len(used) > 5 and all(glossary.find(name) for name in used)
    for step in story.STEPS:
        assert "data-term" in glossary.linked(step.text + step.lesson)


def test_a_term_is_a_button_and_an_unknown_one_is_refused() -> None:
    """Names are escaped; what the glossary lacks is a clear error."""
    assert glossary.term("SQNR", "<b>") == (
        '<button type="button" class="term" data-term="sqnr">&lt;b&gt;</button>'
    )
    with pytest.raises(KeyError, match="pear"):
        glossary.term("pear")


def test_the_glossary_in_the_head_ends_no_script_early() -> None:
    assert "<" not in re.sub(r"^<script[^>]*>|</script>$", "", glossary.head())
