"""How the page's parts hang together, read from what Gradio is told.

If these fail, an answer that comes late can stand over that of a later choice.
"""

from __future__ import annotations

import dataclasses
import inspect
from typing import Any

import gradio as gr
import pytest

from app import limits, ui
from app.chosen import RecordView
from app.parts.tensor_controls import TensorControls
from app.parts.widgets import TOGETHER
from app.state.record import Record
from app.state.selection import Selection
from explorer.progress import StoppedError
from tests.load.visitor import values_of


@pytest.fixture(scope="module")
def config() -> dict[str, Any]:
    return ui.build().get_config_file()


@pytest.mark.parametrize("shown", ["verdict", "numbers", "chips", "notice"])
def test_what_follows_the_selection_has_one_listener(config: dict[str, Any], shown: str) -> None:
    """Gradio keeps only the latest of several events in a row within one listener: where two listeners write
    one component, the slower answer wins, not the later one."""
    (number,) = (c["id"] for c in config["components"] if c["props"].get("elem_id") == shown)
    writers = [d for d in config["dependencies"] if number in d["outputs"]]
    assert [d["trigger_mode"] for d in writers] == ["always_last"]


def test_the_views_have_the_records_fields() -> None:
    """Components stand for fields by their order: a field that is added to one alone shifts the others."""
    record, selection = ([f.name for f in dataclasses.fields(one)] for one in (Record, Selection))
    assert (
        [f.name for f in dataclasses.fields(RecordView)] == record == [*selection, *record[len(selection) :]]
    )
    controls = [f.name for f in dataclasses.fields(TensorControls)]
    assert controls == [name for name in selection if name not in ("scheme", "second")]


def test_the_latest_of_an_event_is_asked_by_one_listener(config: dict[str, Any]) -> None:
    """Where a listener that answers the latest event was overtaken, Gradio's script sends the event to every
    listener of it anew: two that are overtaken in turn ask the server for ever."""
    asked: dict[tuple[int, str], list[dict[str, Any]]] = {}
    for dependency in config["dependencies"]:
        for part, event in dependency["targets"]:
            if dependency["backend_fn"] and event != "then":
                asked.setdefault((part, event), []).append(dependency)
    several = [
        sorted(d["api_name"] for d in together)
        for together in asked.values()
        if len(together) > 1 and any(d["trigger_mode"] == "always_last" for d in together)
    ]
    assert asked and not several


@pytest.mark.parametrize("name", ["choose", "tensor", "frontier", "calibration", "take"])
def test_the_visitors_of_the_load_send_what_the_page_sends(config: dict[str, Any], name: str) -> None:
    """Else every such request is refused at once, and the load that is measured lacks it."""
    (function,) = (d for d in config["dependencies"] if d["api_name"] == name)
    selection = [""] * Selection.size()
    assert len(values_of(name, selection)) == len(function["inputs"])


@pytest.mark.parametrize("name", ["choose", "frontier", "values", "element"])
def test_one_visitors_large_tensor_holds_up_nobody(config: dict[str, Any], name: str) -> None:
    """Gradio answers one request of a function at a time unless it is told otherwise: who opens the page
    while another visitor's tensor is computed sees nothing for minutes."""
    (function,) = (f for f in ui.build().fns.values() if f.api_name == name)
    assert function.concurrency_limit == TOGETHER["concurrency_limit"] > 1


def test_nothing_where_a_value_belongs_is_no_defect(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program may send null for anything that a control of the page never leaves empty: it is told what is
    wrong, or gets what an empty control gives. Of what only a click starts, the click is not there."""
    monkeypatch.setattr(limits, "notify", lambda message: None)
    failed, asked = [], 0
    for function in ui.build().fns.values():
        clicked = function.fn and "event" in inspect.signature(function.fn).parameters
        kept = any(isinstance(part, gr.State) for part in function.inputs)
        if function.fn is None or function.api_visibility == "private" or clicked or kept:
            continue
        asked += 1
        try:
            answer = function.fn(*[None] * len(function.inputs))
            if inspect.isgenerator(answer):
                next(answer, None)
                answer.close()
        except (gr.Error, ValueError, StoppedError):
            continue
        except Exception as error:
            failed.append((function.api_name, repr(error)))
    assert not failed and asked > 30
