"""Removal of data that Gradio's server keeps for finished requests, when nobody listens.

Gradio keeps the results of a session until they are fetched, and the names of its requests even longer:
clients that never listen, or leave, fill the memory (``Queue.pending_event_ids_session`` in Gradio 6.31).
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from gradio.queueing import Queue
from gradio.routes import file_upload_statuses

from app.serving import listeners

ANALYTICS = 100
"""Requests of which Gradio keeps a line of statistics; it goes through all of them after each that failed."""
UPLOADS = 1000
"""Uploads of which it is remembered how far they are; the oldest are forgotten."""
FILES_EVERY = 120
"""Sweeps between two looks at which uploaded files still exist."""
FILES_AT_ONCE = 1000
"""Files that one sweep looks at: nobody is answered meanwhile."""


class Silence:
    """Since when nobody has listened to each session that the queue has something of."""

    def __init__(self) -> None:
        self._since: dict[str, float] = {}

    def broken(self, queue: Queue, session: str) -> None:
        """The session asks again; answers that it has not fetched grow no younger by that."""
        if not _unread(queue, session):
            self._since.pop(session, None)

    def overdue(self, queue: Queue, now: float) -> list[str]:
        """The sessions to which nobody has listened for ``UNHEARD_SECONDS`` at a monotonic time, and whose
        requests are over or have answers that nobody took."""
        sessions = {*queue.pending_messages_per_session, *queue.pending_event_ids_session}
        busy = _busy(queue)
        silent = {
            session
            for session in sessions
            if not listeners.heard(session) and (session not in busy or _unread(queue, session))
        }
        self._since = {session: self._since.get(session, now) for session in silent}
        return [session for session, since in self._since.items() if now - since > listeners.UNHEARD_SECONDS]

    def drop(self, queue: Queue, session: str) -> None:
        """Forget what the queue has of a session; of one whose requests still run, the answers so far."""
        self._since.pop(session, None)
        if session in _busy(queue):  # a run writes there
            answers = queue.pending_messages_per_session[session]
            while not answers.empty():
                answers.get_nowait()
            return
        queue.pending_messages_per_session.pop(session, None)
        queue.pending_event_ids_session.pop(session, None)


def _busy(queue: Queue) -> set[str]:
    """The sessions whose requests wait or run."""
    return {event.session_hash for event in queue.event_ids_to_events.values()}


def _unread(queue: Queue, session: str) -> int:
    """Answers of a session that nobody has taken."""
    answers = queue.pending_messages_per_session.get(session)
    return 0 if answers is None else answers.qsize()


SILENCE = Silence()


class Sweeper:
    """Drops overdue data of one server."""

    def __init__(self, app: Any) -> None:
        self._app, self._sweeps = app, 0
        self._files: list[tuple[set[str], str]] = []  # to be looked at, with the set that has the name
        app.get_blocks()._queue.ANALYTICS_MAX_EVENTS = ANALYTICS

    def sweep(self) -> None:
        """To be called over and over, in the server's own thread."""
        queue: Queue = self._app.get_blocks()._queue
        for session in SILENCE.overdue(queue, time.monotonic()):
            SILENCE.drop(queue, session)
        self._app.iterators_to_reset &= queue.event_ids_to_events.keys()
        for known in (file_upload_statuses._statuses, file_upload_statuses._signals):
            for upload in list(known)[:-UPLOADS]:
                del known[upload]
        self._sweeps += 1
        if self._sweeps % FILES_EVERY == 0:
            self._files = [(names, name) for names in self._app.get_blocks().temp_file_sets for name in names]
        self._forget_files()

    def _forget_files(self) -> None:
        """Forget the names of uploaded files that are gone, of a part at a time: Gradio forgets only those
        that it has deleted itself."""
        for names, name in self._files[-FILES_AT_ONCE:]:
            if not Path(name).exists():
                names.discard(name)
        del self._files[-FILES_AT_ONCE:]
