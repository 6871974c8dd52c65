"""Object that ``ui.build`` passes to each part of the page: the bar's components, and the listeners to
their changes.

After a change ``assets/address.js`` puts the selection into the URL and raises one event, on which all
listeners run in the order in which they were added.
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
from app.parts.scheme_controls import sync_controls, wire_schemes
from app.parts.tensor_controls import wire_tensor
from app.parts.views import Control, View, listen
from app.parts.widgets import LATEST, PRIVATE, hidden
from app.state.selection import Selection

_FIELDS = json.dumps([field.name for field in dataclasses.fields(Selection)])
JS_CHANGED = f"(...values) => explorer.changed({_FIELDS}, values, true)"
"""For a listener after a change; its inputs are the selection. Back returns to the previous view."""
JS_VISITED = f"(...values) => explorer.changed({_FIELDS}, values, false)"
"""``JS_CHANGED`` for a selection that came from the address."""
JS_ANSWERED = "(...position) => explorer.answered(...position)"
"""For a listener that ends an answer; its inputs are the position of the inspected element."""
JS_FROM_ADDRESS = "() => explorer.began([new URLSearchParams(location.search).get('%s') || ''])"
"""Before a listener whose input becomes what the address has under a key."""


@dataclass(frozen=True)
class Follower:
    """A handler that runs again whenever the selection has changed.

    ``inputs`` come after the selection's; ``api_name`` is its endpoint.
    """

    handler: Any
    inputs: list[Control]
    outputs: View | Control
    api_name: str


@dataclass
class Page:
    """The page as a part's ``build`` sees it.

    bar: which tensor and which schemes.
    notice: the line below the bar, for rejected input.
    tensor_left: the event that another tensor has been chosen: what still runs is of the one before.
    seen: by section, the component whose ``seen`` event says that the section is on the screen and does not
        show the selection yet.
    followers: what runs at once after each change of the selection.
    events: what changes it.
    shown: source, file and tensor of the file that are shown, None before the first answer.
    upload_error: why a file was refused, until that is shown.
    method_results, gemm_timings: what the visitor's methods left of the layer, and which products were timed
        for the visitor: the sections that run them fill these, and reports hold them.
    position: row, column, and whether the largest error is followed instead.
    kept: by their keys in the address, the controls of sections that it keeps.
    pairs: events after which the controls of both schemes have to be written anew, and how the names of
        their endpoints end.
    """

    bar: Bar
    notice: Control
    tensor_left: Any
    shown: Control
    upload_error: Control
    method_results: Control
    gemm_timings: Control
    seen: dict[str, Control] = field(default_factory=dict)
    followers: list[Follower] = field(default_factory=list)
    events: list[Any] = field(default_factory=list)
    pairs: list[tuple[Any, str]] = field(default_factory=list)
    position: list[Control] = field(default_factory=list)
    kept: dict[str, Control] = field(default_factory=dict)
    _section: str | None = None
    _last_seen: dict[str, Any] = field(default_factory=dict)

    @property
    def selection(self) -> list[Control]:
        """The components that hold a ``Selection``: the first inputs of every handler that takes one."""
        return self.bar.selection()

    @contextmanager
    def section(self, name: str) -> Iterator[None]:
        """A part of a place that a link can open; what follows the selection inside waits until it is
        seen."""
        with gr.Column(elem_id=f"section-{name}", elem_classes="section"):
            self.seen[name] = hidden(f"explorer.section(element, {json.dumps(name)}, () => trigger('seen'))")
            outer, self._section = self._section, name
            yield
            self._section = outer

    def follow(self, handler: Any, inputs: list[Control], outputs: View | Control, *, api_name: str) -> None:
        """Run ``handler``, with the selection and ``inputs``, whenever the selection has changed: at once, or
        inside a section when that is next on the screen."""
        if self._section is None:
            self.followers.append(Follower(handler, inputs, outputs, api_name))
        else:
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
        self._last_seen[name] = listen(event, handler, inputs, outputs, **options, **LATEST)

    def keep(self, key: str, control: Control, *events: Any, visit: bool = True) -> None:
        """Keep what ``control`` holds in the address as ``key``, after each of ``events``; with ``visit``,
        Back returns to its previous value. ``link`` reads it."""
        self.kept[key] = control
        kept = [json.dumps(word) for word in (key, control.value, visit)]
        script = f"value => explorer.keep({kept[0]}, value, {kept[1]}, {kept[2]})"
        for event in events:
            event(None, control, None, js=script, api_visibility="private")

    def changed_by(self, event: Any) -> None:
        """Run all followers after ``event``, which changes the selection."""
        self.events.append(event)

    def pair_changed_by(self, event: Any, name: str) -> None:
        """``changed_by``, for an event that has written the schemes' texts (``bar.pair()``) alone."""
        self.pairs.append((event, name))

    def connect(self) -> None:
        """Wire the bar's controls, and after every change of the selection put it into the address and run
        the followers. To be called once, when every part is built."""
        wire_schemes(self.bar.scheme, self.bar.second, self.changed_by)
        wire_tensor(self.bar.tensor, self.shown, self.upload_error, self.changed_by)
        for event, name in self.pairs:
            self._sync(event, name)
        for event in self.events:
            self.into_address(event)
        self._run_followers()

    def into_address(self, event: Any, js: str = JS_CHANGED) -> Any:
        """After ``event`` the selection is what its controls hold."""
        return event.then(None, self.selection, None, js=js, api_visibility="private")

    def _sync(self, event: Any, name: str) -> None:
        """Schemes were chosen elsewhere than in their own controls: the controls follow."""
        event = self.into_address(event)
        for view, which, key in ((self.bar.scheme, "a", "scheme"), (self.bar.second, "b", "second")):
            written = listen(
                event.then,
                sync_controls,
                view.text,
                view,
                js=JS_FROM_ADDRESS % key,
                api_name=f"spell_{name}_{which}",
                api_visibility="undocumented",
                **LATEST,
            )
            event = written.then(None, None, None, js="() => { explorer.outdated() }", **PRIVATE)

    def _run_followers(self) -> None:
        """All changes meet in one event, so that of several in a row the last one is shown last, whichever
        control it came from."""
        changes: Any = hidden("explorer.onChange(() => trigger('changed'))")
        event, run = changes.changed, changes.changed
        for follower in self.followers:
            event = listen(
                run,
                follower.handler,
                [*self.selection, *follower.inputs],
                follower.outputs,
                api_name=follower.api_name,
                **LATEST,
            )
            run = event.then
        event.then(None, self.position, None, js=JS_ANSWERED, api_visibility="private")
