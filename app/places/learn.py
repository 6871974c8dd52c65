"""The place Learn: a picture, one number in every format, a guided story, training, and the reference."""

from __future__ import annotations

from app.learn import picture, playground, reference, story, training

TITLE, NAME = "Learn", "learn"
SECTIONS = (
    picture.SECTION,
    playground.SECTION,
    story.SECTION,
    training.SECTION,
    reference.SECTION,
)
