"""Sessions: the one that the current work is for, and what Gradio keeps of each in memory.

Gradio's own ``SessionState`` keeps a copy of everything that was shown, for its own links, which this page
does not need: its URL holds the view.
"""

from __future__ import annotations

from asyncio import Queue as AsyncQueue
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

from gradio.state_holder import SessionState, StateHolder
from gradio.utils import LRUCache


def _goes_on() -> None:
    """Do nothing: outside a server somebody waits for every answer."""


@dataclass
class Waited:
    """Seconds for which a request's work has waited for other visitors'."""

    seconds: float = 0.0


@dataclass(frozen=True)
class CurrentRequest:
    """The request that the current work answers: its session (None outside a server), a function that raises
    ``StoppedError`` once nobody waits for the answer, the visitor's address, and how long it has waited."""

    session: str | None = None
    ended: Callable[[], None] = _goes_on
    address: str = ""
    waited: Waited = field(default_factory=Waited)


_NOBODY = CurrentRequest()
_ASKED: ContextVar[CurrentRequest] = ContextVar("asked", default=_NOBODY)


@contextmanager
def answering(asked: CurrentRequest) -> Iterator[None]:
    """Inside, and in threads that start with a copy of this context, ``asked`` is the current request."""
    before = _ASKED.set(asked)
    try:
        yield
    finally:
        _ASKED.reset(before)


def current_request() -> CurrentRequest:
    """The request that the current work answers."""
    return _ASKED.get()


def current_session() -> str | None:
    """The session of the current queued handler or server function; None outside a server. Data of one
    visitor is kept under this name: the browser draws it at random, and nobody else knows it."""
    return _ASKED.get().session


class Session(SessionState):
    """A visit, of which nothing that is shown is kept."""

    def __init__(self, blocks: Any) -> None:
        super().__init__(SimpleNamespace(default_config=blocks.default_config, blocks={}))  # type: ignore[arg-type]

    def _update_config(self, key: int) -> None:
        """Nothing: the copy is not kept."""

    def _update_value_in_config(self, key: int, value: Any) -> None:
        """Nothing: the copy is not kept."""


class Sessions(StateHolder):
    """The visits by their session; the one that was used longest ago is dropped beyond ``capacity``."""

    def __getitem__(self, session_id: str) -> SessionState:
        if session_id not in self.session_data:
            self.session_data[session_id] = Session(self.blocks)
        return super().__getitem__(session_id)


class Unread(LRUCache[str, Any]):
    """Answers by session; beyond ``max_size``, the oldest session of the address with the most is forgotten.

    As a stream is closed, Gradio deletes those of its session, where another stream may have done so, and
    fails before it ends the stream's task.
    """

    def __init__(self, max_size: int) -> None:
        super().__init__(max_size)
        self._addresses: dict[str, str] = {}
        """By session: whose request made it. Those of sessions that are gone remain until it is full."""

    def __setitem__(self, session: str, answers: Any) -> None:
        if session not in self:
            if len(self) >= self.max_size or len(self._addresses) > 2 * self.max_size:
                self._addresses = {one: self._addresses.get(one, "") for one in self}
            if len(self) >= self.max_size:
                ((most, _),) = Counter(self._addresses.values()).most_common(1)
                del self[next(one for one, address in self._addresses.items() if address == most)]
            self._addresses[session] = current_request().address
        super().__setitem__(session, answers)

    def __missing__(self, session: str) -> AsyncQueue[Any]:
        """Where the answers of a run go whose session was forgotten: Gradio would fail with a traceback."""
        return AsyncQueue()

    def __delitem__(self, session: str) -> None:
        if session in self:
            super().__delitem__(session)


def keep_little(app: Any) -> None:
    """Let the Gradio app ``app`` keep its sessions in ``Sessions``, and answers in ``Unread``; before its
    first visitor."""
    sessions, queue = Sessions(), app.get_blocks()._queue
    sessions.set_blocks(app.get_blocks())
    app.state_holder = sessions
    queue.pending_messages_per_session = Unread(queue.pending_messages_per_session.max_size)
