"""The Tensor place: the answer on one screen, and below it how it came about and what can be taken away."""

from __future__ import annotations

from app.parts.page import Page
from app.parts.widgets import heading
from app.sections import answer, calibration, compare, methods, overview, take_away

TITLE, NAME = "Tensor", "tensor"


def build(page: Page) -> tuple[answer.AnswerView, overview.TensorView]:
    """Lay the sections out, from the answer to what can be taken away; returns the first screen, and what
    else shows the tensor."""
    first = answer.build(page, answer.first_sight())
    view = overview.build(page, overview.first_sight())
    with page.section("multiples", "Shortlist"):
        answer.build_multiples(page)
    with page.section("compare", "All schemes"):
        compare.build(page)
    with page.section("calibration", "Range"):
        heading("Improve the range", "the range of values that the codes cover")
        calibration.build(page)
    with page.section("methods", "Rounding"):
        heading("Improve the rounding", "methods that use the layer's inputs, on this layer")
        methods.build(page)
    with page.section("take-away", "Take away"):
        heading(
            "Take it away",
            "the quantized tensor, its numbers, a report of this page, and the commands that make them",
        )
        take_away.build(page)
    return first, view
