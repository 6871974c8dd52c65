"""Views and the handlers' decorator. If these fail, a handler's output lands in another component, or an
error loses what is shown."""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr
import pytest
from app.chosen import RecordView
from app.parts.scheme_controls import SchemeView, show_scheme
from app.parts.tensor_controls import TensorControls

from app.parts.views import Event, Shown, StatusView, View, listen, shows
from app.parts.widgets import TOGETHER
from app.state.forms import Form
from app.state.record import Record
from app.state.selection import Selection
from explorer import gpu
from tests.app import asked
from tests.app.acting import selection, unchanged


@dataclass(frozen=True)
class Two(StatusView):
    """A view for these tests."""

    table: Shown


class Button:
    """Stands for a component: remembers what was wired to its click."""

    def click(self, handler: Any, inputs: Any, outputs: Any, **options: Any) -> tuple[Any, Any]:
        return handler, outputs


def test_a_view_with_a_missing_or_unknown_name_is_refused() -> None:
    """In ``build`` as in a handler: a name too few or too many raises at once."""
    for fields in ({"status": 1}, {"status": 1, "table": 2, "tabel": 3}, {}):
        with pytest.raises(TypeError):
            Two(**fields)
    with pytest.raises(TypeError):
        Two.unchanged(tabel=3)


def test_outputs_are_those_of_the_handlers_view_in_order() -> None:
    """Another view's components raise while the page is built; a generator's steps are ordered too."""

    @shows(Two)
    def handler() -> Two:
        return Two("words", [1])

    @shows(Two)
    def steps() -> Iterator[Two]:
        yield Two.unchanged(status="half")
        yield Two(table=[1], status="done")

    for outputs in (show_scheme("nvfp4"), gr.skip()):
        with pytest.raises(TypeError, match="Two"):
            listen(Button().click, handler, None, outputs)
    wired, outputs = listen(Button().click, handler, None, Two("status box", "table box"))
    assert outputs == ["status box", "table box"] and wired() == ["words", [1]]
    wired, _ = listen(Button().click, steps, None, Two("status box", "table box"))
    assert inspect.isgeneratorfunction(wired) and list(wired()) == [["half", gr.skip()], ["done", [1]]]


ERRORS = [
    (ValueError("no such scheme"), "no such scheme"),
    (OSError("disk gone"), "disk gone"),
    (MemoryError(), "not enough memory"),
    (RuntimeError("CUDA out of memory."), "not enough memory"),
    (gpu.KernelError("nvcc is missing"), "nvcc is missing"),
]


def test_errors_become_words_and_outputs_stay(said: list[str]) -> None:
    """Of a function and of a generator that has begun; a status line repeats the words."""
    for error, words in ERRORS:

        @shows(Two)
        def once(error: Exception = error) -> Two:
            raise error

        @shows(Two)
        def steps(error: Exception = error) -> Iterator[Two]:
            yield Two("begun", [1])
            raise error

        @shows()
        def single(error: Exception = error) -> str:
            raise error

        for out in (once(), list(steps())[-1]):
            assert words in out.status and unchanged(out.table)
        assert unchanged(single())
        assert len(said) == 3 and all(words in message for message in said)
        said.clear()


def test_a_defect_of_ours_is_not_called_bad_input() -> None:
    """An error that no input explains is raised, so that it is seen in the log and in tests."""
    for error in (RuntimeError("shape mismatch"), IndexError("list index out of range")):

        @shows(Two)
        def handler(error: Exception = error) -> Two:
            raise error

        with pytest.raises(type(error)):
            handler()


def test_a_handler_receives_the_bar_as_a_selection() -> None:
    """The first values become a ``Selection``, empty controls its defaults; the others follow."""

    @shows()
    def handler(chosen: Selection, row: int) -> Any:
        return chosen, row

    assert handler(*selection(scheme="nvfp4"), 7) == (Selection(scheme="nvfp4"), 7)
    chosen, _ = handler("file", "mlp_up", "", "", None, None, "", "bf16", None, 0)
    assert chosen == Selection(source="file", scheme="bf16")
    assert [p.kind for p in inspect.signature(handler).parameters.values()] == [
        inspect.Parameter.VAR_POSITIONAL
    ]


def test_every_listener_of_the_page_has_as_many_inputs_as_its_handler_takes() -> None:
    """Every endpoint that takes the bar begins with all of it, in the order of ``Selection``."""
    page = asked.page()
    labels = None
    for function in page.fns.values():
        handler: Any = function.fn
        if getattr(handler, "view", None) is None or "*values" not in str(inspect.signature(handler)):
            continue
        own = inspect.signature(inspect.unwrap(handler), eval_str=True)
        kinds = [p.annotation for p in own.parameters.values()]
        takes = [k.size() if isinstance(k, type) and issubclass(k, Form) else 1 for k in kinds]
        events = sum(isinstance(k, type) and issubclass(k, Event) for k in kinds)
        assert len(function.inputs) == sum(takes) - events, function.api_name
        if kinds[0] is Selection:
            first = [block.label for block in function.inputs[: takes[0]]]
            labels = labels or first
            assert first == labels
    assert labels is not None and labels[-2:] == ["scheme", "second-scheme"]
    assert issubclass(SchemeView, View)


def test_the_views_have_the_records_fields() -> None:
    """Components stand for fields by their order: a field that is added to one alone shifts the others."""
    record, selection = ([f.name for f in dataclasses.fields(one)] for one in (Record, Selection))
    assert (
        [f.name for f in dataclasses.fields(RecordView)] == record == [*selection, *record[len(selection) :]]
    )
    controls = [f.name for f in dataclasses.fields(TensorControls)]
    assert controls == [name for name in selection if name not in ("scheme", "second")]


def test_one_visitors_large_tensor_holds_up_nobody() -> None:
    """Gradio answers one request of a function at a time unless it is told otherwise."""
    for name in ("choose", "frontier", "values", "element"):
        (function,) = (f for f in asked.page().fns.values() if f.api_name == name)
        assert function.concurrency_limit == TOGETHER["concurrency_limit"] > 1
