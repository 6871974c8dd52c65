"""The Learn place."""

from app.page import Page
from app.tabs import formats, training

TITLE, NAME = "Learn", "learn"


def build(page: Page) -> None:
    with page.section("formats"):
        formats.build(page)
    with page.section("training"):
        training.build(page)
