"""Error map, and one inspected element: its block, its code, and the arithmetic of each scheme."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import ClassVar

import gradio as gr

from app.parts import html
from app.parts.page import Page
from app.parts.views import Control, Event, Shown, View, listen, shows
from app.parts.widgets import LATEST, PRIVATE, block, plot_card
from app.state.analyses import analyses_of, sides_of
from app.state.selection import Selection
from app.theme import plot_data
from explorer.analysis.error_map import clipped_part, part_errors
from explorer.analysis.tensor import Side
from explorer.figures.errors import Errors, error_figure, histogram_figure
from explorer.figures.values import values_figure
from explorer.methods.repaired import inspect, levels_of
from explorer.sources.tensors import Matrix

PICKED = "({element}) => element && explorer.choose({do: 'element', row: element[0], column: element[1]})"
"""A click on the error map inspects the element with the largest error under the cell."""


@dataclass(frozen=True)
class ElementView(View):
    """One element: the card with its arithmetic, its bytes, its position, whether the largest error is
    followed instead, and the values with what its block can represent."""

    inspector: Shown
    packed: Shown
    row: Shown
    column: Shown
    follow: Shown
    values: Shown


class Brushed(Event):
    """The error map was zoomed: the ends of the ``rows`` and ``columns`` that it shows, null for all."""

    FIELDS: ClassVar = {
        name: {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
        for name in ("rows", "columns")
    }
    OPTIONAL: ClassVar = frozenset(FIELDS)


@dataclass(frozen=True)
class ElementParts:
    """The components of the section: the view, and the maps of the errors."""

    view: ElementView
    map: Control


def shown_element(
    matrix: Matrix, sides: Sequence[Side], position: tuple[int, int], name: str, follow: bool
) -> ElementView:
    """View of the section for the element at ``position`` (row, column); ``follow``: it is there because A's
    error is the largest there."""
    levels = [levels_of(side.analysis, *position) for side in sides]
    return ElementView(
        **arithmetic(matrix, sides, position, follow),
        values=plot_data(values_figure(sides[0].analysis.before, sides, levels, name)),
    )


def arithmetic(
    matrix: Matrix, sides: Sequence[Side], position: tuple[int, int], follow: bool
) -> dict[str, Shown]:
    """The fields of ``ElementView`` without the figure."""
    seen = [inspect(matrix.values, side.analysis, *position) for side in sides]
    return {
        "inspector": html.inspector(seen, [side.label for side in sides]),
        "packed": html.packed(seen, [side.analysis.q.scheme for side in sides]),
        "row": position[0],
        "column": position[1],
        "follow": follow,
    }


@shows()
def brushed(chosen: Selection, event: Brushed) -> str:
    """The histogram of the errors in the rows and columns that the map shows."""
    matrix, pairs = analyses_of(chosen)
    sides, name = sides_of(pairs), matrix.name
    if not event.rows or not event.columns:
        return plot_data(error_figure(sides, name))
    shape = pairs[0][1].q.shape
    rows, columns = clipped_part(event.rows, shape[0]), clipped_part(event.columns, shape[1])
    errors = [Errors(s.label, *part_errors(matrix.values, s.analysis, rows, columns)) for s in sides]
    part = f"rows {rows[0]}–{rows[1] - 1}, columns {columns[0]}–{columns[1] - 1}"
    return plot_data(histogram_figure(errors, name, part))


def build_element(page: Page, values: Control, errors: Control) -> ElementParts:
    """Lay out maps and inspector. An element is chosen by a click, by arrow keys, by its row or column, or by
    its error; a part of the maps that is zoomed to shows its ``errors`` in the histogram."""
    with gr.Column(elem_id="element"):
        error_map = plot_card(
            "Where the error is",
            "the largest |error| in each cell; along the edges the RMS error of each row and column. A click "
            "opens the element. Dragging (by touch after Zoom) zooms, and the histogram of errors shows that "
            "part; a double click resets both.",
            "error-map",
            height=480,
            point=PICKED,
        )
        with gr.Column(min_width=380):
            with gr.Row(elem_id="position"):
                row = gr.Number(label="Row", precision=0, min_width=80)
                column = gr.Number(label="Column", precision=0, min_width=80)
                follow = gr.Checkbox(True, label="Follow A's largest error", min_width=180)
            view = ElementView(
                inspector=block(),
                packed=block(),
                row=row,
                column=column,
                follow=follow,
                values=values,
            )
    page.position[:] = [row, column, follow]
    _wire(page.position)
    listen(error_map.brush, brushed, page.selection, errors, api_name="brush", **LATEST)
    return ElementParts(view, error_map)


def _wire(position: list[Control]) -> None:
    """Row, column and what follows the largest error are acts, as a click on the map and the arrow keys."""
    typed = "(row, column) => explorer.choose({do: 'element', row, column})"
    for number in position[:2]:
        number.submit(None, position[:2], None, js=typed, **PRIVATE)
    followed = "follow => explorer.choose({do: follow ? 'largest' : 'stay'})"
    position[2].input(None, position[2], None, js=followed, **PRIVATE)
