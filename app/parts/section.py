"""A section of the page: one component, and one function that computes what it shows of the address.

The browser sends the whole record of the address to ``view``, a server function, and fills the section's
slots with what comes back (``assets/section.js``). What takes longer than a second is a run: it goes through
Gradio's queue, shows its progress and can be stopped. The same functions are endpoints with named parameters.
"""

from __future__ import annotations

import inspect
import json
from collections import deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any, cast

import gradio as gr
import orjson
import plotly.graph_objects as go
from markupsafe import Markup, escape

from app import limits
from app.parts import html
from app.parts.controls import Control
from app.parts.refusals import for_program, refusal_words
from app.serving.measure import LOG, measured
from app.serving.sessions import current_session
from app.serving.values import DEFECT
from app.serving.work import (
    FILLING,
    LeftError,
    OvertakenError,
    check_of_this_run,
    checked_steps,
    overtake,
)
from app.state.analyses import analysing
from app.state.query import ASKED, ELEMENT, SCHEMES_KEYS, TENSOR, Query
from app.state.rows import fill_listed
from app.theme import FigureData, plot_data

PRIVATE: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}
"""For listeners that only move the page's own parts and are no endpoints."""
FIGURE = """<div class="figure-tools" hidden></div>\
<div class="figure" style="min-height:{height}px"{options}></div>"""
"""``assets/figure.js`` adds the buttons."""
SELECTION = (*TENSOR, *SCHEMES_KEYS)
"""Keys of the tensor and of schemes A and B."""
RECORD = (*SELECTION, *ELEMENT, *ASKED)
"""Keys of all that the bar and the first screen choose."""
Shown = Mapping[str, str | go.Figure]
"""What a section shows: by the name of its slot, HTML that ``app.parts.html`` has made, or a figure. ""
empties a slot, and one that is not named stays as it is."""
WORKERS = 2
"""Runs of a section that go on at once: the second is another visitor's."""
UNBUILT = '<div class="unbuilt" aria-busy="true"></div>'


class NotComputedError(Exception):
    """Another part of the page computes it now: the section asks again in a moment, and says so in words.
    ``meanwhile``: slots that are shown until then."""

    def __init__(self, words: str, meanwhile: Shown | None = None) -> None:
        super().__init__(words)
        self.meanwhile = meanwhile


@dataclass(frozen=True, kw_only=True)
class Section:
    """A section. Its markup is the template ``sections/NAME.html``, or ``body``.

    name: in links, and of the endpoint. title: in the place's list of sections; "" leaves it out.
    follows: keys of the record that it shows something of; its ``controls``' keys are always among them.
    view: what it shows of a record, in well under a second. runs: by name, generators of what a longer run
    shows, started by a button. acts: by name, what a click on ``data-act`` (or a figure's "point", "brush",
    "range") changes in the address, given the record and what was clicked. script: a function of the page's
    scripts that is called with the section, once it is built. shares: values of the project for the template.
    says: other keys than its controls' whose invalid values it names; None: all, as the bar does.
    eager: the section is built with the page; all others when they are first near the screen. workers: how
    many runs go on at once, half of them one visitor's. element_id, classes, template: where they are not
    those of a section of a place.
    """

    name: str
    title: str = ""
    follows: Sequence[str] = SELECTION
    controls: Sequence[Control] = ()
    view: Callable[[Query], Shown] | None = None
    runs: Mapping[str, Callable[[Query], Iterator[Shown]]] = field(default_factory=dict)
    acts: Mapping[str, Callable[[Query, Mapping[str, Any]], Mapping[str, str]]] = field(default_factory=dict)
    script: str = ""
    shares: Mapping[str, Any] = field(default_factory=dict)
    says: Sequence[str] | None = ()
    eager: bool = False
    workers: int = WORKERS
    element_id: str = ""
    classes: str = "section"
    template: str = ""
    body: str = ""

    @property
    def keys(self) -> tuple[str, ...]:
        """Keys of the address that the section reads."""
        return tuple(dict.fromkeys((*self.follows, *(control.key for control in self.controls))))

    def markup(self) -> str:
        """The section's HTML, its controls as on a fresh page."""
        by_key = {control.key: control for control in self.controls}
        parts: dict[str, Any] = {
            "control": lambda key, **changed: by_key[key].markup(**changed),
            "figure": figure_slot,
            "slot": slot,
            "run": run_buttons,
            **self.shares,
        }
        if self.body:
            return html.render_text(self.body, **parts)
        return html.render(f"sections/{self.template or self.name}", **parts)

    def build(self) -> gr.HTML:
        """Lay the section out as one component."""
        facts = json.dumps({"name": self.name, "title": self.title, "keys": self.keys, "eager": self.eager})
        part: Any = gr.HTML(
            "",
            html_template=self.markup() if self.eager else UNBUILT,
            # Gradio finds the names of events in this text.
            js_on_load=f"explorer.mount(element, props, {facts}, {self.script or 'null'}, server, "
            "(what, data) => trigger(what === 'run' ? 'run' : 'stop', data), watch, upload)",
            server_functions=self._server_functions(),
            apply_default_css=False,
            padding=False,
            elem_id=self.element_id or f"section-{self.name}",
            elem_classes=self.classes,
        )
        if self.runs:
            running = part.run(
                self._runner(), None, part, api_visibility="private", trigger_mode="multiple",
                show_progress="hidden", concurrency_limit=self.workers,
            )  # fmt: skip
            ended = f"() => explorer.runEnded({json.dumps(self.name)})"
            running.failure(None, None, None, js=ended, **PRIVATE)
            part.stop(None, None, None, cancels=[running], queue=False, **PRIVATE)
        if self.view is not None and not self.element_id:
            gr.api(self._endpoint(), api_name=self.name.replace("-", "_"), api_description=self._about())
        return part

    def _server_functions(self) -> list[Callable[..., Any]]:
        """Functions that the section's script calls with an object of texts."""
        compute, acts = self.view, self.acts

        def build(given: dict[str, str]) -> dict[str, Any]:
            return {"markup": self.markup()}

        def view(given: dict[str, str]) -> dict[str, Any]:
            return self._own(_answered(self.name, given, lambda query: {"slots": drawn(compute(query))}))  # type: ignore[misc]

        def act(given: dict[str, str]) -> dict[str, Any]:
            """The record, with the act's name under "act" and what was clicked, as JSON, under "what"."""
            name, what = given.pop("act", ""), given.pop("what", "{}")
            if name not in acts:
                return {"refused": f"an act is one of {', '.join(acts)}"}
            return self._own(
                _answered(self.name, given, lambda query: {"set": dict(acts[name](query, _object(what)))})
            )

        return [
            *([] if self.eager else [build]),
            *([view] if compute is not None else []),
            *([act] if acts else []),
        ]

    def _own(self, answer: dict[str, Any]) -> dict[str, Any]:
        """The answer with the problems that are said here: those of other keys are said elsewhere."""
        if self.says is None or "problems" not in answer:
            return answer
        own = {*self.says, *(control.key for control in self.controls if control.key not in RECORD)}
        return {**answer, "problems": {key: said for key, said in answer["problems"].items() if key in own}}

    def _runner(self) -> Callable[..., Iterator[str]]:
        """The listener for the section's runs; it says at its end that it has ended."""

        def run(event: gr.EventData) -> Iterator[str]:
            asked = event._data if isinstance(event._data, dict) else {}
            function, number = self.runs.get(str(asked.get("run"))), str(asked.get("number"))[:20]
            if function is None:
                raise gr.Error(f"a run is one of {', '.join(self.runs)}", print_exception=False)
            for said in _steps(f"{self.name}.{asked['run']}", function, asked.get("query"), self.controls):
                yield json.dumps({**self._own(said), "number": number})

        return run

    def _endpoint(self) -> Callable[..., dict[str, Any]]:
        """The view for programs: an object with the keys of an address in, the slots by name out."""
        compute, name, keys = self.view, self.name, self.keys

        def endpoint(record: dict[str, str]) -> dict[str, Any]:
            if unknown := [key for key in record or {} if key not in keys]:
                raise gr.Error(
                    f"no key {unknown[0][:40]!r}; accepted: {', '.join(keys)}", print_exception=False
                )
            with for_program(name):
                said = _answered(name, record, lambda query: {"slots": drawn(_patiently(compute, query))})
                problem = said.get("refused") or said.get("waits") or ". ".join(said["problems"].values())
                if problem:
                    raise ValueError(problem)
            return dict(said["slots"])

        return endpoint

    def _about(self) -> str:
        """The endpoint's description: what it shows, and the keys of its record."""
        usual = {control.key: control.usual for control in self.controls}
        keys = ", ".join(f"{key} ({usual[key]})" if usual.get(key) else key for key in self.keys)
        return f"{inspect.getdoc(self.view)}\n\nKeys of the record, with what a fresh page has: {keys}."


def _patiently(compute: Callable[[Query], Shown] | None, query: Query) -> Shown:
    """A section's view for a program, which waits until the tensor is quantized, and its list."""
    assert compute is not None
    for steps in (analysing, partial(fill_listed, of_searches=False), partial(fill_listed, of_searches=True)):
        try:
            return compute(query)
        except NotComputedError:
            deque(cast(Iterator[object], steps(query.record)), 0)
    return compute(query)


def drawn(shown: Shown) -> dict[str, str]:
    """The slots as texts: figures as the JSON that plotly's script takes. ``ValueError`` of many bytes."""
    texts = {name: _text_of(value) for name, value in shown.items()}
    limits.check_answer(sum(map(len, texts.values())))
    return texts


def _text_of(value: object) -> str:
    """A slot's HTML or figure; words that nobody has marked as HTML are none."""
    if isinstance(value, go.Figure):
        return plot_data(value)
    return str(value if isinstance(value, FigureData) or "<" not in str(value) else escape(value))


def _object(text: str) -> dict[str, Any]:
    """The JSON object of what was clicked; ``ValueError`` for anything else."""
    try:
        found = orjson.loads(text)  # no number that is none, no half character, nothing deep
    except ValueError as error:
        raise ValueError("what was clicked is a JSON object") from error
    if not isinstance(found, dict):
        raise ValueError("what was clicked is a JSON object")
    return found


def _answered(name: str, given: Any, compute: Callable[[Query], dict[str, Any]]) -> dict[str, Any]:
    """What ``compute`` makes of a record, with the words for its invalid values; or why it is refused."""
    with limits.gathered() as notices:
        try:
            query = Query(given)
            return {**compute(query), "problems": query.problems, "notices": notices}
        except NotComputedError as error:
            return {"waits": str(error), "slots": drawn(error.meanwhile or {})}
        except (LeftError, OvertakenError):
            raise
        except Exception as error:  # what no input explains is a defect: logged, and said to be one
            said = refusal_words(error)
            if said is None:
                LOG.exception("%s failed", name)
            return {"refused": said or DEFECT}


def _steps(
    name: str, function: Callable[[Query], Iterator[Shown]], given: Any, controls: Sequence[Control]
) -> Iterator[dict[str, Any]]:
    """What a run shows, step by step, and at last how it ended; a value of ``controls`` that is not valid is
    refused. The same visitor's earlier run by the same name ends."""
    overtake(current_session(), name)
    with measured(name) as outcome:
        try:
            query = Query(given)
            for control in () if name == FILLING else controls:
                control.taken(query)
            for shown in checked_steps(function(query), check_of_this_run(name)):
                yield {"slots": drawn(shown)}
            yield {"ended": True, "problems": query.problems}
        except (LeftError, OvertakenError):
            outcome.how = "left"
            yield {"ended": True}
        except Exception as error:  # as above
            outcome.how, said = "refused", refusal_words(error)
            if said is None:
                outcome.how, said = "failed", DEFECT
                LOG.exception("%s failed", name)
            yield {"ended": True, "refused": said}


def slot(name: str, tag: str = "div", classes: str = "") -> Markup:
    """A place in a template that a view fills with HTML."""
    return Markup(f'<{tag} data-slot="{name}" class="{classes}"></{tag}>')


def figure_slot(name: str, height: int = 340, draggable: bool = False) -> Markup:
    """A place in a template that a view fills with a figure; its id is ``name``."""
    inner = FIGURE.format(height=height, options=" data-draggable" if draggable else "")
    return Markup(f'<div class="figure-box" id="{name}" data-figure="{name}">{inner}</div>')


def run_buttons(name: str, label: str, classes: str = "primary") -> Markup:
    """The button that starts the run ``name``, and the Stop that stands there while it runs."""
    return Markup(
        '<span class="run-buttons"><button type="button" class="{}" data-run="{}">{}</button>'
        '<button type="button" data-stop="{}" hidden>Stop</button></span>'
    ).format(classes, name, label, name)
