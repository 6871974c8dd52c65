"""Acts, records and addresses as a page sends them, and what of an answer a test looks at."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable
from typing import Any

import plotly.graph_objects as go

from app.parts.section import Shown
from app.sections import answer, bar
from app.state.query import Query, texts_of
from app.state.record import Record
from app.state.selection import Selection


def selection(**changes: Any) -> tuple[Any, ...]:
    """A selection's values as Gradio passes them; what is not in ``changes`` is as on a fresh page."""
    return dataclasses.astuple(Selection(**changes))


def query_of(**held: Any) -> Query:
    """The query of a page that shows the record ``held``; as ``Record`` has it for what is not said."""
    record = Record(**held)
    texts = texts_of(record) | {"scheme": record.scheme, "second": record.second, "file": record.file or ""}
    return Query({key: text for key, text in texts.items() if text or key == "second"})


def did(*acts: dict[str, Any], **held: Any) -> Record:
    """The record after ``acts`` on a page that shows ``held``."""
    query = query_of(**held)
    return Query({**query, **bar.choose(query, {"acts": list(acts)})}).record


def shown(**held: Any) -> dict[str, Any]:
    """What the first screen shows of a record."""
    return dict(answer.view(query_of(**held)))


def figures_of(slots: Shown) -> list[str]:
    """The figures among slots, as they go over the wire."""
    return [value.to_json() for value in slots.values() if isinstance(value, go.Figure)]


def ran(steps: Iterable[Shown]) -> dict[str, Any]:
    """What a run has shown at its end: later steps laid over earlier ones."""
    state: dict[str, Any] = {}
    for step in steps:
        state |= step
    return state


def traces(figure: Any) -> list[dict[str, Any]]:
    """The traces of a figure of a slot."""
    return list(json.loads(figure if isinstance(figure, str) else figure.to_json())["data"])
