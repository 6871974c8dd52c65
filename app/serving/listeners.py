"""Listeners for results: work for a request without a listener is soon stopped."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any
from urllib.parse import parse_qs

from gradio.queueing import Event, Queue
from starlette.types import Message, Scope, Send

from app.serving import addresses

UNHEARD_SECONDS = 20.0
"""Between a request and the moment from which somebody has to listen for its answer. A browser does at once;
by hand, the answer of ``POST /call/…`` has to be read and its address typed."""

_listening: dict[str, list[Stream]] = {}
"""By session: open streams of answers."""


class Stream:
    """An open stream of answers. One that is not read is full after some: sending waits."""

    def __init__(self) -> None:
        self._waiting_since: float | None = None

    def watched(self, send: Send) -> Send:
        """``send`` that notes since when it waits."""

        async def noted(message: Message) -> None:
            self._waiting_since = time.monotonic()
            await send(message)
            self._waiting_since = None

        return noted

    @property
    def read(self) -> bool:
        """True if the client reads the sent data."""
        since = self._waiting_since
        return since is None or time.monotonic() - since < UNHEARD_SECONDS


def session_of(scope: Scope, queue: Queue) -> str | None:
    """The session whose answers a GET request asks for, as a stream; None for another request."""
    route, named = addresses.asked(scope)
    if route == addresses.DATA:
        asked: list[Any] = parse_qs(scope["query_string"].decode("latin-1")).get("session_hash", [])
        return str(asked[-1]) if asked else None  # as Gradio takes it
    if route.startswith(addresses.CALL):
        number = named["event_id"]
        if (event := queue.event_ids_to_events.get(number)) is not None:
            return event.session_hash
        of_it = (session for session, ids in queue.pending_event_ids_session.items() if number in ids)
        return next(of_it, number)
    return None


def heard(session: str) -> bool:
    """True if a client currently listens for the results of a session, and reads them."""
    return any(stream.read for stream in _listening.get(session, ()))


@contextmanager
def listening(session: str) -> Iterator[Stream]:
    """As long as one stream of answers is open."""
    stream = Stream()
    _listening.setdefault(session, []).append(stream)
    try:
        yield stream
    finally:
        _listening[session].remove(stream)
        if not _listening[session]:
            del _listening[session]


@contextmanager
def counted(counter: Counter[str], name: str, by: int = 1) -> Iterator[None]:
    """So many more of ``name`` for as long as this lasts; a name that has none is not kept."""
    counter[name] += by
    try:
        yield
    finally:
        counter[name] -= by
        if not counter[name]:
            del counter[name]


def unheard(event: Event, now: float | None = None) -> bool:
    """True if nobody listens for a request made ``UNHEARD_SECONDS`` ago, at a monotonic time."""
    waited = (time.monotonic() if now is None else now) - event.enqueue_time
    return waited > UNHEARD_SECONDS and not heard(event.session_hash)
