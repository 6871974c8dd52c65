"""Acts, selections and links as a page sends them, and what of an answer a test looks at."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import gradio as gr
from app.chosen import ChosenView, choose
from app.link import Visited
from app.link import visited as read_address

from app.parts.views import View
from app.state.record import Record
from app.state.selection import Selection


def selection(**changes: Any) -> tuple[Any, ...]:
    """A selection's values as Gradio passes them; what is not in ``changes`` is as on a fresh page."""
    return dataclasses.astuple(Selection(**changes))


def views_of(
    *acts: dict[str, Any], upload: str | None = None, whole: bool = False, sampled: bool = False, **held: Any
) -> Any:
    """The views of a run of ``choose``, on a page that shows ``held``."""
    text = json.dumps({"number": 7, "whole": whole, "acts": acts} | ({"sampled": True} if sampled else {}))
    return choose(text, upload, *dataclasses.astuple(Record(**held)))


def did(*acts: dict[str, Any], **asked: Any) -> ChosenView:
    """All that the page shows after ``acts``, as one view: each view of a run leaves what it does not say."""
    seen = ChosenView.unchanged()
    for view in views_of(*acts, **asked):
        seen = _over(seen, view)
    return seen


def _over(before: View, after: View) -> Any:
    values = {
        f.name: _over(old, new) if isinstance(new, View) else old if unchanged(new) else new
        for f in dataclasses.fields(after)
        for old, new in [(getattr(before, f.name), getattr(after, f.name))]
    }
    return type(after)(**values)


def shown(position: tuple[int, int] | None = None, **held: Any) -> ChosenView:
    """What the page shows of a record from its beginning."""
    element = "" if position is None else f"{position[0]},{position[1]}"
    scheme = held.get("scheme", Record().scheme)
    return did({"do": "scheme", "text": scheme}, whole=True, element=element, **held)


def visited(query: str, upload: str | None = None, first: bool = False, opened: Any = ()) -> Visited:
    """What an address says, on a page that shows what a fresh one does."""
    return read_address(query, Record(), upload, first, opened)


def last(steps: Any) -> Any:
    """The last state of a generator, later views laid over earlier ones."""
    state: Any = None
    for step in steps:
        shown = {name: value for name, value in vars(step).items() if not unchanged(value)}
        state = dataclasses.replace(state, **shown) if state else step
    return state


def plots_of(view: View) -> list[str]:
    """The figures among a view's outputs, as they go over the wire."""
    return [output for output in view.in_order() if isinstance(output, str) and output.startswith('{"data"')]


def unchanged(output: Any) -> bool:
    """Whether an output leaves its component as it is."""
    return isinstance(output, dict) and output == gr.skip()
