"""Object that ``ui.build`` passes to each part of the page: what is chosen, and the ways to choose.

A control of the page does not change what is chosen: it says what the visitor does, an act. The script sends
acts to one handler (``app.chosen``), which computes what is next and shows it whole, or leaves everything as
it was and says why. ``record`` holds what is shown: sections read it, and the address is written from it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from app.parts.bar import Bar
from app.parts.section import Section
from app.parts.views import Control, View, listen
from app.parts.widgets import LATEST, PRIVATE, TOGETHER, hidden
from app.state.record import Record
from app.state.selection import Selection


@dataclass
class Page:
    """The page as a part's ``build`` sees it.

    bar: which tensor and which schemes.
    notice: the line below the bar, for rejected input.
    tensor_left: the event that another tensor is shown: what still runs is of the one before.
    seen: by section, the component whose ``seen`` event says that the section is on the screen and does not
        show the selection yet.
    method_results: what the visitor's methods left of the layer, which reports hold.
    position: the boxes of row and column, and the one that says that the largest error is followed.
    kept: by their keys in the address, the controls of sections that it keeps.
    titles: the names and titles of the sections that the bar lists, in the order of the page.
    record: hidden components that hold the ``Record`` that is shown, in the order of its fields.
    """

    bar: Bar
    notice: Control
    tensor_left: Any
    method_results: Control
    record: list[Control]
    seen: dict[str, Control] = field(default_factory=dict)
    position: list[Control] = field(default_factory=list)
    kept: dict[str, Control] = field(default_factory=dict)
    titles: list[tuple[str, str]] = field(default_factory=list)
    _section: str | None = None
    _last_seen: dict[str, Any] = field(default_factory=dict)

    @property
    def selection(self) -> list[Control]:
        """The components that hold the ``Selection`` that is shown: the first inputs of every handler that
        takes one."""
        return self.record[: Selection.size()]

    @property
    def pair(self) -> list[Control]:
        """The components that hold the texts of schemes A and B."""
        names = [f.name for f in dataclasses.fields(Record)]
        return [self.record[names.index(name)] for name in ("scheme", "second")]

    @contextmanager
    def section(self, name: str, title: str = "") -> Iterator[None]:
        """A part of a place that a link can open; what follows the selection inside waits until it is
        seen. ``title``: what the bar's list of sections calls it; without one it is not listed."""
        with gr.Column(elem_id=f"section-{name}", elem_classes="section"):
            if title:
                self.titles.append((name, title))
            said = f"{json.dumps(name)}, {json.dumps(title)}"
            self.seen[name] = hidden(f"explorer.section(element, {said}, () => trigger('seen'))")
            outer, self._section = self._section, name
            yield
            self._section = outer
            if name in self._last_seen:
                shown = f"() => explorer.sectionShown({json.dumps(name)})"
                self._last_seen[name].then(None, None, None, js=shown, **PRIVATE)

    def add(self, section: Section) -> gr.HTML:
        """Lay out a section that is one component, and list it."""
        if section.title:
            self.titles.append((section.name, section.title))
        return section.build()

    def follow(self, handler: Any, inputs: list[Control], outputs: View | Control, *, api_name: str) -> None:
        """Run ``handler``, with the selection and ``inputs``, when the section that is being built is next on
        the screen after the selection has changed."""
        self.when_seen(handler, [*self.selection, *inputs], outputs, api_name=api_name)

    def when_seen(self, handler: Any, inputs: list[Control], outputs: View | Control, **options: Any) -> None:
        """Run ``handler`` with ``inputs`` when the section that is being built is next on the screen, after
        those that were told so before.

        One listener after another, each waiting for the one before: where two listeners of one event are
        overtaken in turn, Gradio's script sends them the event for ever.
        """
        name = self._section
        if name is None:
            raise ValueError("a section is seen, not the page")
        before = self._last_seen.get(name)
        event = self.seen[name].seen if before is None else before.then
        self._last_seen[name] = listen(event, handler, inputs, outputs, **TOGETHER | options, **LATEST)

    def keep(
        self,
        key: str,
        control: Control,
        *events: Any,
        visit: bool = True,
        most: int | None = None,
        within: tuple[float, float] | None = None,
    ) -> None:
        """Keep what ``control`` holds in the address as ``key``, after each of ``events``, if it has at
        ``most`` so many characters, and is above the first and at most the second of ``within``; with
        ``visit``, Back returns to its previous value. ``link`` reads it."""
        self.kept[key] = control
        kept = ", ".join(json.dumps(word) for word in (control.value, visit, most, within))
        script = f"value => explorer.keep({json.dumps(key)}, value, {kept})"
        for event in events:
            event(None, control, None, js=script, api_visibility="private")

    def act_of(self, event: Any, handler: Any, inputs: list[Control], *, api_name: str) -> None:
        """On ``event`` do what ``handler`` returns: a list of acts as JSON, or "" for none."""
        act = gr.Textbox(visible=False, label="act")
        made = listen(event, handler, inputs, act, api_name=api_name, api_visibility="undocumented", **LATEST)
        made.then(None, act, None, js="act => act && explorer.choose(...JSON.parse(act))", **PRIVATE)


def build_record() -> list[Control]:
    """The hidden components of the record that is shown, as a fresh page has it."""
    fresh = Record()
    labels = {"second": "second-scheme"}
    return [
        gr.File(visible=False, label="file shown")
        if f.name == "file"
        else gr.Textbox(getattr(fresh, f.name) or "", visible=False, label=labels.get(f.name, f.name))
        for f in dataclasses.fields(Record)
    ]
