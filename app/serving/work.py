"""End of a handler's work: after the time limit of a run, when its visitor has left or asks for something
else."""

from __future__ import annotations

import math
import threading
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TypeVar

from gradio.queueing import Event, Queue

from app import limits
from app.serving.cores import SECONDS, charge, has_had, queued
from app.serving.listeners import unheard
from app.serving.sessions import current_request
from explorer.progress import StoppedError, stoppable

Item = TypeVar("Item")
FILLING = "frontier.filling"
"""The kind of work that goes on behind what is shown: another record overtakes it, and it waits at its
checkpoints while a view is computed (``awaited``)."""
_WAITS_S = 1.0
"""The longest that it waits there."""
GIVEN_WAY = 0.5
"""The share of its time for which it waits for views, after a first second: on a busy page there is always
one."""


_HELD_UP = 3.0
"""How many times as long as it has computed since its last checkpoint a view, or a program's request, waits
whose address has used up its processor seconds, while others compute: a quarter of its time is left."""


class LeftError(StoppedError):
    """Nobody waits for the answer any more."""


class OvertakenError(StoppedError):
    """The visitor has asked for something else meanwhile."""


_OVERTAKEN: OrderedDict[tuple[str, str], float] = OrderedDict()
"""By session and kind of work: until when (monotonic) such runs began that are no longer wanted."""
REMEMBERED = 1000
"""Sessions of which that is remembered; the oldest are forgotten: a run of theirs goes on to its end."""


def overtake(session: str | None, kind: str) -> None:
    """What a session has begun of a ``kind`` of work until now is no longer wanted: it ends at its next
    checkpoint."""
    if session is None:
        return
    _OVERTAKEN[session, kind] = time.monotonic()
    _OVERTAKEN.move_to_end((session, kind))
    while len(_OVERTAKEN) > REMEMBERED:
        _OVERTAKEN.popitem(last=False)


class _Quiet:
    """Whether nothing is computed that a visitor waits for."""

    def __init__(self) -> None:
        self._lock, self._count, self._event = threading.Lock(), 0, threading.Event()
        self._event.set()

    def add(self, by: int) -> None:
        with self._lock:
            self._count += by
            if self._count:
                self._event.clear()
            else:
                self._event.set()

    def wait(self, seconds: float) -> None:
        self._event.wait(seconds)


_NO_VIEW = _Quiet()


@contextmanager
def awaited() -> Iterator[None]:
    """Inside, what a visitor looks at is computed: ``FILLING`` of all visitors waits, for a second and
    ``GIVEN_WAY`` of its time at most. It does not for an address that computes views without a pause."""
    one = int(SECONDS.left(current_request().address) > SECONDS.burst / 2)
    _NO_VIEW.add(one)
    try:
        yield
    finally:
        _NO_VIEW.add(-one)


@contextmanager
def waiting_for_others() -> Iterator[None]:
    """Inside, the current request waits for other visitors' work: that is not its own time."""
    began = time.monotonic()
    try:
        yield
    finally:
        current_request().waited.seconds += time.monotonic() - began


def own_time() -> float:
    """Seconds of a clock that stands still while the current request waits for other visitors' work."""
    return time.monotonic() - current_request().waited.seconds


def check_of_this_run(kind: str = "") -> Callable[[], None]:
    """Return the function that ``explorer.progress.checkpoint`` calls during the current handler.

    ``kind``: of work that the same visitor can ``overtake``.
    """
    longest = limits.current().run_seconds
    began, asked = time.monotonic(), current_request()
    session, waited = asked.session if kind else None, asked.waited
    before, looked, owed = waited.seconds, began, 0.0

    def check() -> None:
        nonlocal looked, owed
        if kind == FILLING:
            given = _WAITS_S + GIVEN_WAY * (time.monotonic() - began) - (waited.seconds - before)
            with waiting_for_others():
                _NO_VIEW.wait(max(0.0, min(_WAITS_S, given)))
        if not kind:
            charge()
            now = time.monotonic()
            owed = owed + _HELD_UP * (now - looked) if has_had(asked.address) else 0.0
            if owed > 0:
                with waiting_for_others():
                    time.sleep(min(_WAITS_S, owed))
            looked = time.monotonic()
            owed = max(0.0, owed - (looked - now))
        took, others = time.monotonic() - began, waited.seconds - before
        if took > longest + min(others, longest):  # what waits for others has its time nevertheless
            if others > longest > 0:
                raise StoppedError(
                    f"stopped: work of other visitors has taken {others:.0f} s of this run's {took:.0f}; "
                    "try again later"
                )
            raise StoppedError(
                f"stopped after {longest:.0f} s, the time limit of a run here; choose a smaller "
                "tensor or shape, fewer schemes or min-max ranges"
            )
        if session is not None and began <= _OVERTAKEN.get((session, kind), -math.inf):
            raise OvertakenError("stopped: something else was asked for")
        asked.ended()

    return check


def while_heard(queue: Queue, event: Event | None) -> Callable[[], None]:
    """The function that raises ``LeftError`` once nobody waits for a queued request any more: its visitor has
    left, pressed Stop or never listened."""
    known = queue.event_ids_to_events

    def ended() -> None:
        if event is not None and (not event.alive or event._id not in known or unheard(event)):
            raise LeftError("stopped: the visitor has left")

    return ended


def checked_steps(steps: Iterator[Item], check: Callable[[], None]) -> Iterator[Item]:
    """The items of ``steps``, each made under ``check``: a generator's steps may run in different threads."""
    end = object()
    try:
        while True:
            with queued(), stoppable(check):
                item = next(steps, end)
            if item is end:
                return
            yield item  # type: ignore[misc]
    finally:
        if hasattr(steps, "close"):
            steps.close()
