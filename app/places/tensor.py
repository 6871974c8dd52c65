"""The Tensor place: the answer on one screen, and below it how it came about and what can be taken away."""

from app.sections import answer, methods, overview, ranges, take_away, values

TITLE, NAME = "Tensor", "tensor"
SECTIONS = (
    answer.SECTION,
    overview.SECTION,
    *values.SECTIONS,
    methods.SECTION,
    ranges.SECTION,
    take_away.SECTION,
)
