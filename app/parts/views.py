"""What a handler shows, by name, and the decorator that every handler of a form or button wears."""

from __future__ import annotations

import dataclasses
import functools
import inspect
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, get_origin

import gradio as gr
import torch

from app import limits
from app.parts import html
from app.serving.measure import measured
from app.serving.values import check, shortened
from app.serving.work import LeftError, check_of_this_run, checked_steps
from app.state.selection import NothingChosenError, Selection
from explorer import gpu
from explorer.progress import StoppedError, stoppable

Control = Any
"""A Gradio component. Gradio adds its event methods at run time, where a type checker cannot see them."""
Shown = Any
"""A new value, an update or ``gr.skip()`` in a handler's view; the component in the view of ``build``."""
Result = TypeVar("Result")


@dataclass(frozen=True)
class View:
    """The outputs of a handler, by name. A frozen dataclass derives from it for each group of components
    shown together.

    The same class is filled twice: once by ``build`` with the components, and by every run of the handler
    with what they show. A name that is missing or unknown raises ``TypeError`` in both places.

    begins: JavaScript that runs before each handler of the view, with its inputs, and returns them.
    """

    begins: ClassVar[str | None] = None

    @classmethod
    def unchanged(cls, **changed: Shown) -> Self:
        """Everything stays as it is but what is named in ``changed``."""
        return cls(**{f.name: gr.skip() for f in dataclasses.fields(cls)} | changed)

    @classmethod
    def refused(cls, message: str) -> Self:
        """What is shown after bad input, beside the notification with ``message``: what was there before."""
        return cls.unchanged()

    @classmethod
    def waiting(cls, message: str) -> Self:
        """What is shown while something is still to be chosen, which ``message`` says: as ``refused``."""
        return cls.refused(message)

    def in_order(self) -> list[Shown]:
        """The fields' values, in the order in which Gradio is told the components."""
        return [getattr(self, f.name) for f in dataclasses.fields(self)]


@dataclass(frozen=True)
class StatusView(View):
    """A view that begins with a line on the state of a run; a refusal is written there too."""

    status: Shown

    @classmethod
    def refused(cls, message: str) -> Self:
        return cls.unchanged(status=html.status(message))


class Event(gr.EventData):
    """What a browser has seen, for a handler that reads it. A class derives from it for each kind of event.

    FIELDS: what the handler reads, each by the JSON schema of its value. OPTIONAL: those that may be null:
    the click was on nothing that they are of.
    """

    FIELDS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()


def shows(
    view: type[View] | None = None, told: bool = False
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a handler, or a generator of steps, that returns ``view``; without one, a single component's
    value.

    A first parameter annotated ``Selection`` takes the bar's values, in the order of its fields; a
    last one may be an ``Event``, whose fields are checked. ``ValueError``, ``OSError``, a kernel that does
    not compile and lack of memory become a notification, and the outputs become ``view.refused(message)``; so
    does a run that takes longer than ``Limits.run_seconds``. No notification where another handler of the
    same event has ``told`` it, nor for what is not chosen yet (``view.waiting``), nor when its visitor has
    left.
    """

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        def refused(error: Exception) -> Any:
            if view is None:
                return gr.skip()
            waits = isinstance(error, NothingChosenError)
            return view.waiting(_message(error)) if waits else view.refused(_message(error))

        def refusal(error: Exception) -> Any:
            if not told and not isinstance(error, NothingChosenError):
                limits.notify(_message(error))
            return refused(error)

        prepare: Callable[..., Any] = _as_they_are
        if _takes_selection(function):
            prepare = _with_selection_and_event if _event_of(function) else _with_selection

        texts, lists, event = _places(function, str), _places(function, list), _event_of(function)

        def prepared(values: tuple[Any, ...]) -> list[Any]:
            given = _with_texts(prepare(values), texts)
            for place in lists.keys() & set(range(len(given))):
                given[place] = [] if given[place] is None else given[place]
            if event is not None:
                _check_fields(event, given[-1])
            return given

        name = f"{function.__module__.rpartition('.')[2]}.{function.__name__}"

        @functools.wraps(function)
        def steps(*values: Any) -> Any:
            with measured(name) as outcome:
                try:
                    yield from checked_steps(function(*prepared(values)), check_of_this_run())  # type: ignore[arg-type]
                except LeftError:
                    outcome.how = "left"
                except _REFUSED as error:
                    outcome.how = "refused"
                    yield refusal(error)

        @functools.wraps(function)
        def once(*values: Any) -> Any:
            with measured(name) as outcome:
                try:
                    with stoppable(check_of_this_run()):
                        return function(*prepared(values))
                except LeftError as error:
                    outcome.how = "left"
                    return refused(error)
                except _REFUSED as error:
                    outcome.how = "refused"
                    return refusal(error)

        handler: Any = steps if inspect.isgeneratorfunction(function) else once
        handler.view = view
        # Gradio names an endpoint's parameters after the signature; the bar's values have numbers for names.
        # An event is put where the signature has it.
        if prepare is _with_selection:
            handler.__signature__ = inspect.signature(lambda *values: None)
        if prepare is _with_selection_and_event:
            handler.__signature__ = inspect.signature(lambda event, *values: None)
        return handler

    return decorate


def listen(event: Any, handler: Any, inputs: Any, outputs: View | Control, **options: Any) -> Any:
    """Run ``handler`` on a component's ``event`` and show its view in ``outputs``; returns Gradio's
    dependency.

    ``TypeError`` unless ``outputs`` is the view that the handler was declared to show.
    """
    told = type(outputs) if isinstance(outputs, View) else None
    if handler.view is not told:
        raise TypeError(f"{handler.__name__} shows {handler.view}, but its outputs are {told or outputs}")
    if not isinstance(outputs, View):
        return event(handler, inputs, outputs, **options)
    if outputs.begins:
        options.setdefault("js", outputs.begins)
    return event(_in_order(handler), inputs, outputs.in_order(), **options)


_REFUSED = (ValueError, StoppedError, OSError, ImportError, MemoryError, RuntimeError)


def _message(error: Exception) -> str:
    """The words for a refusal; an error that no input explains is raised again."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error).lower()):
        torch.cuda.empty_cache()
        return "not enough memory for this tensor; choose a smaller one"
    if isinstance(error, RuntimeError) and not isinstance(error, gpu.KernelError):
        raise error
    return str(error)


def _places(function: Callable[..., Any], kind: type) -> dict[int, str]:
    """The parameters that are a ``kind``, or a ``kind`` of something: name by place."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    of_kind = (p.annotation is kind or get_origin(p.annotation) is kind for p in parameters)
    return {place: p.name for place, (p, own) in enumerate(zip(parameters, of_kind, strict=True)) if own}


def _with_texts(values: tuple[Any, ...], texts: dict[int, str]) -> list[Any]:
    """``values`` with "" for a text that is not there, and a number as it is written; ``ValueError`` for what
    is no text at all: only programs send those."""
    given = list(values)
    for place, name in texts.items():
        value = given[place] if place < len(given) else ""
        if value is None or isinstance(value, int | float):
            given[place] = "" if value is None else str(value)
        elif not isinstance(value, str):
            raise ValueError(f"{name} is a text, not {str(value)[:40]}")
    return given


def _takes_selection(function: Callable[..., Any]) -> bool:
    first = next(iter(inspect.signature(function, eval_str=True).parameters.values()), None)
    return first is not None and first.annotation is Selection


def _with_selection(values: tuple[Any, ...]) -> tuple[Any, ...]:
    size = len(dataclasses.fields(Selection))
    return (Selection.of(*values[:size]), *values[size:])


def _with_selection_and_event(values: tuple[Any, ...]) -> tuple[Any, ...]:
    event, *others = values
    return (*_with_selection(tuple(others)), event)


def _event_of(function: Callable[..., Any]) -> type[Event] | None:
    """The kind of event that the last parameter is; None where it is none."""
    last = next(reversed([*inspect.signature(function, eval_str=True).parameters.values()]), None)
    kind = None if last is None else last.annotation
    return kind if isinstance(kind, type) and issubclass(kind, Event) else None


def _check_fields(kind: type[Event], event: Any) -> None:
    """``ValueError`` unless ``event`` has the fields of its ``kind``, each with a value that it can have."""
    said = event._data if isinstance(event, gr.EventData) else vars(event)
    if not isinstance(said, dict):
        raise ValueError(f"an event with {', '.join(kind.FIELDS)} is taken here, not {shortened(said)}")
    for name, schema in kind.FIELDS.items():
        if name not in said:
            raise ValueError(f"the event says nothing of {name}")
        if said[name] is not None or name not in kind.OPTIONAL:
            check(f"{name} of the event", said[name], schema)


def _as_they_are(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return values


def _in_order(handler: Any) -> Any:
    """``handler`` with its views as the lists that Gradio takes."""

    @functools.wraps(handler)
    def steps(*values: Any) -> Any:
        for view in handler(*values):
            yield view.in_order()

    @functools.wraps(handler)
    def once(*values: Any) -> Any:
        return handler(*values).in_order()

    return steps if inspect.isgeneratorfunction(handler) else once
