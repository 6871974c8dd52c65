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

from app import limits
from app.parts.scheme_controls import SchemeView, show_scheme
from app.parts.views import Event, Shown, StatusView, View, listen, shows
from app.state.controls import Parts
from app.state.forms import Form
from app.state.selection import Selection
from app.ui import build
from explorer import gpu
from tests.app.test_handlers import selection, unchanged
from tests.covering import EACH_SCHEME


@dataclass(frozen=True)
class Two(StatusView):
    """A view for these tests."""

    table: Shown


class Button:
    """Stands for a component: remembers what was wired to its click."""

    def click(self, handler: Any, inputs: Any, outputs: Any, **options: Any) -> tuple[Any, Any]:
        return handler, outputs


@pytest.fixture
def said(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The messages shown to the visitor."""
    messages: list[str] = []
    monkeypatch.setattr(limits, "notify", messages.append)
    return messages


@pytest.mark.parametrize("fields", [{"status": 1}, {"status": 1, "table": 2, "tabel": 3}, {}])
def test_a_view_with_a_missing_or_unknown_name_is_refused(fields: dict[str, Any]) -> None:
    """In ``build`` as in a handler: a name too few or too many raises at once."""
    with pytest.raises(TypeError):
        Two(**fields)
    with pytest.raises(TypeError):
        Two.unchanged(tabel=3)


def test_outputs_that_are_not_the_handlers_view_are_refused() -> None:
    """A handler wired to another view's components raises while the page is built."""

    @shows(Two)
    def handler() -> Two:
        return Two("words", [1])

    with pytest.raises(TypeError, match="Two"):
        listen(Button().click, handler, None, show_scheme("nvfp4"))
    with pytest.raises(TypeError, match="Two"):
        listen(Button().click, handler, None, gr.skip())
    wired, outputs = listen(Button().click, handler, None, Two("status box", "table box"))
    assert outputs == ["status box", "table box"] and wired() == ["words", [1]]


def test_a_generators_steps_are_put_in_order() -> None:
    """Each step of a run reaches Gradio as a list in the order of the components."""

    @shows(Two)
    def handler() -> Iterator[Two]:
        yield Two.unchanged(status="half")
        yield Two(table=[1], status="done")

    wired, _ = listen(Button().click, handler, None, Two("status box", "table box"))
    assert inspect.isgeneratorfunction(wired)
    first, second = wired()
    assert first == ["half", gr.skip()] and second == ["done", [1]]


ERRORS = [
    (ValueError("no such scheme"), "no such scheme"),
    (OSError("disk gone"), "disk gone"),
    (MemoryError(), "not enough memory"),
    (RuntimeError("CUDA out of memory."), "not enough memory"),
    (gpu.KernelError("nvcc is missing"), "nvcc is missing"),
]


@pytest.mark.parametrize(("error", "words"), ERRORS, ids=lambda v: type(v).__name__)
def test_errors_become_words_and_outputs_stay(error: Exception, words: str, said: list[str]) -> None:
    """Of a function and of a generator that has begun; a status line repeats the words."""

    @shows(Two)
    def once() -> Two:
        raise error

    @shows(Two)
    def steps() -> Iterator[Two]:
        yield Two("begun", [1])
        raise error

    @shows()
    def single() -> str:
        raise error

    for out in (once(), list(steps())[-1]):
        assert words in out.status and unchanged(out.table)
    assert unchanged(single())
    assert len(said) == 3 and all(words in message for message in said)


def test_a_defect_of_ours_is_not_called_bad_input() -> None:
    """An error that no input explains is raised, so that it is seen in the log and in tests."""

    @shows(Two)
    def handler() -> Two:
        raise RuntimeError("shape mismatch")

    with pytest.raises(RuntimeError, match="shape mismatch"):
        handler()

    @shows(Two)
    def beyond_the_end() -> Two:
        return Two("", [][1])

    with pytest.raises(IndexError):
        beyond_the_end()


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


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_the_scheme_controls_show_every_scheme(name: str) -> None:
    """One value for each control, and the parts' controls are exactly the fields of ``Parts``."""
    shown = show_scheme(name)
    assert shown.preset == name
    assert len(shown.parts()) == len(dataclasses.fields(Parts))


def test_every_listener_of_the_page_has_as_many_inputs_as_its_handler_takes() -> None:
    """Every endpoint that takes the bar begins with all of it, in the order of ``Selection``."""
    page = build()
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
