"""Views, the named outputs of handlers, and the decorator for every handler of a form or button."""

from __future__ import annotations

import dataclasses
import functools
import inspect
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any, ClassVar, Self, TypeVar, get_origin, get_type_hints

import gradio as gr
import torch

from app import limits
from app.parts import html
from app.serving.cores import share_of_cores
from app.serving.measure import measured
from app.serving.values import check, shortened
from app.serving.work import LeftError, OvertakenError, awaited, check_of_this_run, checked_steps
from app.state.forms import Form, as_text
from app.state.record import FileRefusedError
from app.state.selection import NothingChosenError
from explorer import gpu
from explorer.progress import StoppedError, stoppable
from explorer.words import without_python

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
        """Leave all fields unchanged except those named in ``changed``."""
        kinds = get_type_hints(cls)
        same = {f.name: _unchanged(kinds[f.name]) for f in dataclasses.fields(cls)}
        return cls(**same | changed)

    @classmethod
    def refused(cls, message: str) -> Self:
        """View after bad input, in addition to the notification with ``message``: unchanged by default."""
        return cls.unchanged()

    @classmethod
    def waiting(cls, message: str) -> Self:
        """View while a choice named by ``message`` is missing; as ``refused`` by default."""
        return cls.refused(message)

    def in_order(self) -> list[Shown]:
        """The fields' values, in the order in which Gradio is told the components; a view among them gives
        its own."""
        values = [getattr(self, f.name) for f in dataclasses.fields(self)]
        return [one for value in values for one in (value.in_order() if isinstance(value, View) else [value])]


def _unchanged(kind: Any) -> Shown:
    """Update that leaves a field of a view unchanged; for a nested view, each of its fields."""
    return kind.unchanged() if isinstance(kind, type) and issubclass(kind, View) else gr.skip()


@dataclass(frozen=True)
class StatusView(View):
    """A view that begins with a line on the state of a run; a refusal is written there too."""

    status: Shown

    @classmethod
    def refused(cls, message: str) -> Self:
        return cls.unchanged(status=html.status(message))


class Event(gr.EventData):
    """Browser event that a handler reads. Each kind of event has a derived class.

    FIELDS: the fields that the handler reads, with the JSON schemas of their values. OPTIONAL: fields that
    may be null if the click was outside their target.
    """

    FIELDS: ClassVar[Mapping[str, Mapping[str, Any]]] = {}
    OPTIONAL: ClassVar[frozenset[str]] = frozenset()


def shows(
    view: type[View] | None = None, told: bool = False, overtaken: str = "", seen: bool = False
) -> Callable[[Callable[..., Result]], Callable[..., Result]]:
    """Decorate a handler, or a generator of steps, that returns ``view``; without one, a single component's
    value.

    A parameter annotated with a ``Form``, as ``Selection`` is one, takes as many values as that has fields,
    in their order; a last one may be an ``Event``, whose fields are checked. ``ValueError``, ``OSError``, a
    kernel that does not compile and lack of memory become a notification, and the outputs become
    ``view.refused(message)``; so does a run that takes longer than ``Limits.run_seconds``. No notification
    where another handler of the same event has ``told`` it, nor for what is not chosen yet
    (``view.waiting``), nor for a file (the page says it where it was dropped), nor when its visitor has left.

    ``overtaken``: the kind of work that ends, and shows nothing more, once its visitor has asked for
    something else (``work.overtake``). ``seen``: visitors look at what it computes, so that work behind it
    gives way (``work.awaited``).
    """
    around: Callable[[], AbstractContextManager[None]] = awaited if seen else nullcontext

    def decorate(function: Callable[..., Result]) -> Callable[..., Result]:
        def refused(error: Exception) -> Any:
            if view is None:
                return gr.skip()
            waits = isinstance(error, NothingChosenError)
            return view.waiting(_message(error)) if waits else view.refused(_message(error))

        def refusal(error: Exception) -> Any:
            if not told and not isinstance(error, NothingChosenError | FileRefusedError):
                limits.notify(_message(error))
            return refused(error)

        forms, event = _forms(function), _event_of(function)
        texts, lists = _places(function, str), _places(function, list)

        def prepared(values: tuple[Any, ...]) -> list[Any]:
            if forms and event is not None:  # Gradio has put the event first
                values = (*values[1:], values[0])
            given = _with_texts(_gathered(values, forms), texts)
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
                    run: Any = function(*prepared(values))
                    yield from checked_steps(run, check_of_this_run(overtaken), around)
                except (LeftError, OvertakenError):
                    outcome.how = "left"
                except _REFUSED as error:
                    outcome.how = "refused"
                    yield refusal(error)

        @functools.wraps(function)
        def once(*values: Any) -> Any:
            with measured(name) as outcome:
                try:
                    with around(), share_of_cores(), stoppable(check_of_this_run(overtaken)):
                        return function(*prepared(values))
                except (LeftError, OvertakenError) as error:
                    outcome.how = "left"
                    return refused(error)
                except _REFUSED as error:
                    outcome.how = "refused"
                    return refusal(error)

        handler: Any = steps if inspect.isgeneratorfunction(function) else once
        handler.view = view
        # Gradio names an endpoint's parameters after the signature; values of a form have numbers for names.
        # An event is put where the signature has it.
        if forms:
            shape = (lambda *values: None) if event is None else (lambda event, *values: None)
            handler.__signature__ = inspect.signature(shape)
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
    return page_words(str(error))


def refusal_words(error: Exception) -> str | None:
    """The words for a refusal; None for an error that no input explains."""
    if not isinstance(error, _REFUSED):
        return None
    try:
        return _message(error)
    except RuntimeError:
        return None


def page_words(message: str) -> str:
    """A message of the library without what is of use only in Python or on the command line."""
    return _LISTS_SCHEMES.sub(SCHEMES_ARE_CHOSEN, without_python(message))


SCHEMES_ARE_CHOSEN = "; choose one at A or B in the bar, such as int4_group128_asym or nvfp4"
_LISTS_SCHEMES = re.compile(r"; `explorer schemes` lists all.*$", re.DOTALL)


def _places(function: Callable[..., Any], kind: type) -> dict[int, str]:
    """The parameters that are a ``kind``, or a ``kind`` of something: name by place."""
    parameters = inspect.signature(function, eval_str=True).parameters.values()
    of_kind = (p.annotation is kind or get_origin(p.annotation) is kind for p in parameters)
    return {place: p.name for place, (p, own) in enumerate(zip(parameters, of_kind, strict=True)) if own}


def _with_texts(values: Sequence[Any], texts: dict[int, str]) -> list[Any]:
    """``values`` with "" for a text that is not there, and a number as it is written; ``ValueError`` for what
    is no text at all: only programs send those."""
    given = list(values)
    for place, name in texts.items():
        if place < len(given):
            given[place] = as_text(name, given[place])
    return given


def _forms(function: Callable[..., Any]) -> dict[int, type[Form]]:
    """The parameters that are forms, by place."""
    parameters = enumerate(inspect.signature(function, eval_str=True).parameters.values())
    kinds = ((place, p.annotation) for place, p in parameters)
    return {place: kind for place, kind in kinds if isinstance(kind, type) and issubclass(kind, Form)}


def _gathered(values: Sequence[Any], forms: Mapping[int, type[Form]]) -> list[Any]:
    """``values`` with those of each form put together."""
    given: list[Any] = []
    rest = list(values)
    while rest:
        form = forms.get(len(given))
        size = 1 if form is None else form.size()
        part, rest = rest[:size], rest[size:]
        given.append(part[0] if form is None else form.of(*part))
    return given


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
