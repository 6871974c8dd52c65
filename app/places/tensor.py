"""The Tensor place: one argument from the tensor to a verdict on one scheme, or on two side by side."""

from __future__ import annotations

from app.parts.page import Page
from app.parts.widgets import heading
from app.sections import calibration, compare, methods, overview, take_away

TITLE, NAME = "Tensor", "tensor"


def build(page: Page) -> None:
    """Lay the sections out, from the verdict to what can be taken away."""
    verdict, kpis = overview.build_verdict(page)
    with page.section("frontier"):
        compare.build(page)
    overview.build_values(page, verdict, kpis)
    with page.section("calibration"):
        heading("Improve the range", "the range of values that the codes cover")
        calibration.build(page)
    with page.section("methods"):
        heading("Improve the rounding", "methods that use the layer's inputs, on this layer")
        methods.build(page)
    with page.section("take-away"):
        heading(
            "Take it away",
            "the quantized tensor, its numbers, a report of this page, and the commands that make them",
        )
        take_away.build(page)
