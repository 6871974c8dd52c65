"""The place Learn: a picture, one number in every format, a guided story, training, glossary."""

from __future__ import annotations

from app.learn import picture, playground, story, training
from app.parts import html
from app.parts.page import Page
from app.parts.widgets import block

TITLE, NAME = "Learn", "learn"


def build(page: Page) -> None:
    """Lay the chapters out, one below the other."""
    with page.section("picture", "A picture"):
        block(picture.picture(), js_on_load=picture.ON_LOAD)
    with page.section("formats", "One number"):
        block(playground.playground(), js_on_load=playground.ON_LOAD)
    with page.section("story", "A guided story"):
        block(story.story(), js_on_load=story.ON_LOAD)
    with page.section("training", "Training"):
        block(html.render("learn/training"))
        training.build(page)
    with page.section("reference", "Reference"):
        block(html.render("learn/reference", table=html.format_table(), terms=html.glossary.terms()))
