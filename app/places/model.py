"""The place for models and hardware: speed, a model's survey, texts that it writes, a whole model by
one scheme, two checkpoints, sizes."""

from __future__ import annotations

from app.parts.page import Page
from app.parts.widgets import heading
from app.sections import checkpoints, run, sizes, speed, steps, survey, whole_model

TITLE, NAME = "Model and hardware", "model"


def build(page: Page) -> None:
    """Lay the sections out."""
    with page.section("speed", "Speed"):
        heading("Speed", "how much faster each format is on a GPU, and on this CPU")
        speed.build(page)
    with page.section("survey", "Survey"):
        surveyed = survey.build(page)
    with page.section("run", "Run"):
        run.build(page, surveyed)
        steps.build(page)
    with page.section("whole-model", "Whole model"):
        whole_model.build_whole_model(page)
    with page.section("checkpoints", "Two checkpoints"):
        checkpoints.build(page)
    page.add(sizes.SECTION)
