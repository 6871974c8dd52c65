"""What became of the values, where the error is, one element, and the errors, codes and scales of schemes."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import plotly.graph_objects as go

from app.parts import html
from app.parts.controls import IntegerInput, TextInput
from app.parts.section import SELECTION, NotComputedError, Section, Shown
from app.sections.overview import whole
from app.state.analyses import Pairs, sides_of
from app.state.known import keep_analyses, refused, whole_errors
from app.state.memo import Memo
from app.state.query import ASKED, ELEMENT, Query, page_words
from app.state.record import Record, goal_now, listed, shape_of
from app.state.selection import tensor_key
from app.theme import plot_data
from explorer.analysis.error_map import clipped_part, part_errors
from explorer.analysis.tensor import Side
from explorer.figures.error_map import error_map_figure
from explorer.figures.errors import Errors, error_figure, histogram_figure, multiples_figure
from explorer.figures.tensor import scales_figures, usage_figures
from explorer.figures.values import values_figure
from explorer.methods.recipe import Recipe
from explorer.methods.repaired import inspect, levels_of
from explorer.sources.tensors import Matrix

PART = TextInput(key="part", label="Part that the map shows", linked=False)
"""The ends of its rows and of its columns, four numbers with commas between them; empty for all."""
_DRAWN = Memo[str](32 << 20)


def position_of(chosen: Record, pairs: Pairs) -> tuple[int, int]:
    """Return row and column of the inspected element: the nearest one that there is, or where A errs most if
    none is chosen."""
    if chosen.position is None:
        return pairs[0][1].report.max_error_at
    rows, columns = pairs[0][1].q.shape
    return min(chosen.position[0], rows - 1), min(chosen.position[1], columns - 1)


def _drawn(chosen: Record, what: str, draw: Callable[[], go.Figure]) -> str:
    """The figure ``what`` of the record's tensor and schemes, drawn once."""
    key = (*tensor_key(chosen), chosen.schemes, what)
    return _DRAWN.get(key, lambda: plot_data(draw()))


def values(query: Query) -> Shown:
    """Draw the values before and after, with the levels of the inspected block, and the errors of all
    elements, or of ``part``."""
    chosen = query.record
    matrix, pairs = whole(chosen)
    sides, position = sides_of(pairs), position_of(chosen, pairs)
    levels = [levels_of(side.analysis, *position) for side in sides]
    return {
        "values-plot": values_figure(sides[0].analysis.before, sides, levels, matrix.name),
        "error-plot": _errors(matrix, sides, PART.of(query)),
    }


def _errors(matrix: Matrix, sides: Sequence[Side], part: str) -> go.Figure:
    if not part:
        return error_figure(sides, matrix.name)
    try:
        ends = [float(end) for end in part.split(",")]
    except ValueError:
        ends = []
    if len(ends) != 4 or not all(map(math.isfinite, ends)):
        raise ValueError("a part of the map is four numbers: the ends of its rows and of its columns")
    shape = matrix.values.shape
    rows, columns = clipped_part(ends[:2], shape[0]), clipped_part(ends[2:], shape[1])
    errors = [Errors(s.label, *part_errors(matrix.values, s.analysis, rows, columns)) for s in sides]
    named = f"rows {rows[0]}–{rows[1] - 1}, columns {columns[0]}–{columns[1] - 1}"
    return histogram_figure(errors, matrix.name, named)


def error_map(query: Query) -> Shown:
    """Draw the error over the matrix, by A, by B and their difference."""
    matrix, pairs = whole(query.record)
    at = pairs[0][1].report.max_error_at
    return {
        "error-map": _drawn(
            query.record, "map", lambda: error_map_figure(matrix.values, sides_of(pairs), at, matrix.name)
        )
    }


def element(query: Query) -> Shown:
    """Show one element: its block, its code and the arithmetic of each scheme."""
    chosen = query.record
    matrix, pairs = whole(chosen)
    position = position_of(chosen, pairs)
    seen = [inspect(matrix.values, analysis, *position) for _, analysis in pairs]
    worst = [analysis.report.max_error_at for _, analysis in pairs]
    shape = pairs[0][1].q.shape
    note = ""
    if chosen.position not in (None, position):
        note = f"The nearest element: the tensor has {shape[0]:,} rows and {shape[1]:,} columns, from 0."
    return {
        "inspector": html.inspector(seen, [recipe.label for recipe, _ in pairs], worst, shape),
        "packed": html.packed(seen, [analysis.q.scheme for _, analysis in pairs]),
        "status": html.status(note) if note else "",
    }


def multiples(query: Query) -> Shown:
    """Draw the errors of the shortlist's schemes side by side, A and B first, as the first screen computes
    them."""
    chosen = query.record
    matrix, pairs = whole(chosen)
    keep_analyses(chosen, pairs)
    texts = dict.fromkeys((*chosen.schemes, *listed(chosen, goal_now(chosen, shape_of(chosen)))))
    found = {text: whole_errors(chosen, text) for text in texts}
    missing = {Recipe.parse(text).label: refused(chosen, text) for text in texts if found[text] is None}
    shown = {"multiples": multiples_figure([each for each in found.values() if each], matrix.name)}
    if not all(missing.values()):
        raise NotComputedError("The list's other schemes are being computed …", shown)
    left_out = ". ".join(f"{label} is left out: {page_words(why)}" for label, why in missing.items())
    return {**shown, "status": html.status(left_out) if missing else ""}


def codes(query: Query) -> Shown:
    """Draw how often each code is used, and the scales."""
    matrix, pairs = whole(query.record)
    sides, shown = sides_of(pairs), dict[str, str | go.Figure]()
    for name, figures in {
        "usage-plot": usage_figures(sides, matrix.name),
        "scales-plot": scales_figures(sides, matrix.name),
    }.items():
        shown |= {name: figures[0], f"{name}-b": figures[1] if len(figures) > 1 else ""}
    return shown


SECTIONS = (
    Section(
        name="values",
        title="Values and error",
        follows=(*SELECTION, *ELEMENT),
        controls=(PART,),
        view=values,
    ),
    Section(name="element", view=error_map, script="explorer.errorMap.section"),
    Section(
        name="inspector",
        follows=(*SELECTION, *ELEMENT),
        controls=[
            IntegerInput(key=key, label=key.capitalize(), low=0, high=10**9 - 1) for key in ("row", "column")
        ],
        view=element,
        script="explorer.errorMap.inspector",
    ),
    Section(name="multiples", follows=(*SELECTION, *ASKED), view=multiples),
    Section(name="codes", view=codes),
)
