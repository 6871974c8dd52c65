"""Error map, and one inspected element: its block, its code, and the arithmetic of each scheme."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

import gradio as gr

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.views import Control, Event, Shown, View, listen, shows
from app.parts.widgets import JS_BEFORE_CHANGE, LATEST, PRIVATE, block, hidden, plot_pair
from app.state.analyses import analyses_of, sides_of
from app.state.selection import Selection
from app.theme import plot_data
from explorer.analysis.tensor import Side
from explorer.figures.values import values_figure
from explorer.methods.repaired import inspect, levels_of
from explorer.sources.tensors import Matrix


@dataclass(frozen=True)
class ElementView(View):
    """One element: the card with its arithmetic, its bytes, its position, whether the largest error is
    followed instead, and the values with what its block can represent."""

    begins: ClassVar[str | None] = JS_BEFORE_CHANGE
    inspector: Shown
    packed: Shown
    row: Shown
    column: Shown
    follow: Shown
    values: Shown


class Picked(Event):
    """A click on the error map: ``element`` is [row, column] of the largest error under the cell."""

    FIELDS: ClassVar = {
        "element": {"type": "array", "items": {"type": "number"}, "minItems": 2, "maxItems": 2}
    }
    OPTIONAL: ClassVar = frozenset({"element"})


@dataclass(frozen=True)
class ElementParts:
    """The components of the section: the view, and the maps of schemes A and B."""

    view: ElementView
    maps: tuple[Control, Control]


def shown_element(
    matrix: Matrix, sides: Sequence[Side], position: tuple[int, int], name: str, follow: Shown = None
) -> ElementView:
    """View of the section for the element at ``position`` (row, column)."""
    seen = [inspect(matrix.values, side.analysis, *position) for side in sides]
    levels = [levels_of(side.analysis, *position) for side in sides]
    schemes = [side.analysis.q.scheme for side in sides]
    return ElementView(
        inspector=html.inspector(seen, [side.label for side in sides]),
        packed=html.packed(seen, schemes),
        row=position[0],
        column=position[1],
        follow=gr.skip() if follow is None else follow,
        values=plot_data(values_figure(sides[0].analysis.before, sides, levels, name)),
    )


def inside(position: tuple[float, float], shape: tuple[int, int]) -> tuple[int, int]:
    """The element at ``position``, or the nearest one of a matrix of ``shape``, and a message about that."""
    row, column = (min(max(int(at), 0), size - 1) for at, size in zip(position, shape, strict=True))
    if (row, column) != position:
        limits.notify(
            f"The tensor has rows 0 to {shape[0] - 1} and columns 0 to {shape[1] - 1}; "
            f"showing ({row}, {column})"
        )
    return row, column


def _at(chosen: Selection, wanted: tuple[float, float], follow: bool) -> ElementView:
    matrix, pairs = analyses_of(chosen)
    position = inside(wanted, pairs[0][1].q.shape)
    name = f"{matrix.name} {' '.join(chosen.schemes)}"
    return shown_element(matrix, sides_of(pairs), position, name, follow)


@shows(ElementView)
def typed(chosen: Selection, row: float | None, column: float | None, follow: bool) -> ElementView:
    """The element at a row and column that were typed."""
    if row is None or column is None:
        raise ValueError("Row and Column are whole numbers from 0")
    return _at(chosen, (row, column), False)


@shows(ElementView)
def followed(chosen: Selection, row: float | None, column: float | None, follow: bool) -> ElementView:
    """The element with scheme A's largest error, or the current one."""
    if follow or row is None or column is None:
        _, pairs = analyses_of(chosen)
        return _at(chosen, pairs[0][1].report.max_error_at, follow)
    return _at(chosen, (row, column), False)


@shows(ElementView)
def picked(chosen: Selection, event: Picked) -> ElementView:
    """The element with the largest error under the cell of the map that was clicked."""
    if not event.element:
        return ElementView.unchanged()
    row, column = event.element
    return _at(chosen, (int(row), int(column)), False)


@shows(ElementView)
def moved(
    chosen: Selection, row: float | None, column: float | None, follow: bool, steps: str
) -> ElementView:
    """The element that lies ``steps``, such as "3,-1", further down and to the right, within the matrix."""
    if not re.fullmatch(r"-?\d{1,9},-?\d{1,9}", steps):
        raise ValueError(f"steps are two whole numbers such as 3,-1, not {steps!r}")
    _, pairs = analyses_of(chosen)
    rows, columns = pairs[0][1].q.shape
    down, right = map(int, steps.split(","))
    wanted = (int(row or 0) + down, int(column or 0) + right)
    return _at(chosen, (min(max(wanted[0], 0), rows - 1), min(max(wanted[1], 0), columns - 1)), False)


def build_element(page: Page, values: Control) -> ElementParts:
    """Lay out maps and inspector. An element is chosen by a click, by arrow keys, by its row or column, or by
    its error."""
    with gr.Row(elem_id="element"):
        with gr.Column(min_width=380):
            first, second = plot_pair(
                "Where the error is",
                "the largest |error| under each cell; click a cell to look into that element",
                "error-map",
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
    _wire(page, view, (first, second))
    return ElementParts(view, (first, second))


def _wire(page: Page, view: ElementView, maps: tuple[Control, Control]) -> None:
    inputs = [*page.selection, *page.position]
    keys: Any = hidden("explorer.onMove(() => trigger('move'))")
    steps = gr.Textbox(visible=False, label="steps")
    stepped = "(...values) => explorer.began([...values.slice(0, -1), explorer.takeSteps()])"
    chosen = [
        listen(map_.point, picked, page.selection, view, api_name=name, **LATEST)
        for map_, name in zip(maps, ("pick", "pick_second"), strict=True)
    ]
    walked = listen(keys.move, moved, [*inputs, steps], view, js=stepped, api_name="move", **LATEST)
    typed_events = [
        listen(number.submit, typed, inputs, view, api_name=f"tensor_{axis}", **LATEST)
        for number, axis in ((view.row, "row"), (view.column, "column"))
    ]
    chosen.append(listen(view.follow.input, followed, inputs, view, api_name="tensor_follow", **LATEST))
    walked.then(None, None, None, js="() => explorer.sendSteps.done()", **PRIVATE)
    for event in (walked, *chosen):  # Back does not lead through each step of a walk
        visit = "false" if event is walked else "true"
        script = f"(...position) => {{ explorer.showElement(...position, {visit}) }}"
        event.then(None, page.position, None, js=script, api_visibility="private")
    for event in typed_events:  # an emptied box goes back to the element that is shown
        script = "(...position) => explorer.showElement(...position, true)"
        event.then(None, page.position, page.position, js=script, api_visibility="private")
