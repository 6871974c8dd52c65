"""The place Learn: one number in every format, a guided story, training through the rounding, glossary."""

from __future__ import annotations

from app.learn import playground, story, training
from app.parts import html
from app.parts.page import Page
from app.parts.widgets import block

TITLE, NAME = "Learn", "learn"
CHAPTERS = {
    "learn-formats": "One number",
    "learn-story": "A guided story",
    "learn-training": "Training",
    "learn-reference": "Reference",
}
"""The chapters' anchors, in order, and how the list of them calls each."""


def build(page: Page) -> None:
    """Lay the chapters out, one below the other."""
    block(html.render("learn/chapters", chapters=CHAPTERS), js_on_load="explorer.chapters(element)")
    with page.section("formats"):
        block(playground.playground(), js_on_load=playground.ON_LOAD)
    with page.section("story"):
        block(story.story(), js_on_load=story.ON_LOAD)
    with page.section("training"):
        block(html.render("learn/training"))
        training.build(page)
    with page.section("reference"):
        block(html.render("learn/reference", table=html.format_table(), terms=html.glossary.terms()))
