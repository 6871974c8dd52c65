"""End of a handler's work: after the time limit of a run, or when its visitor has left."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import Any, TypeVar

from gradio.context import LocalContext

from app import limits
from app.serving.listeners import unheard
from explorer.progress import StoppedError, stoppable

Item = TypeVar("Item")


class LeftError(StoppedError):
    """Nobody waits for the answer any more."""


def check_of_this_run() -> Callable[[], None]:
    """Return the function that ``explorer.progress.checkpoint`` calls during the current handler."""
    longest = limits.current().run_seconds
    end, left = time.monotonic() + longest, _left()

    def check() -> None:
        if time.monotonic() > end:
            raise StoppedError(
                f"stopped after {longest:.0f} s, the time limit of a run here; choose a smaller "
                "tensor, fewer schemes or min-max ranges"
            )
        if left():
            raise LeftError("stopped: the visitor has left")

    return check


def _left() -> Callable[[], bool]:
    """Return a check that is true if the visitor of the current request has left, pressed Stop or never
    listened; always false outside a server."""
    blocks, number = LocalContext.blocks.get(None), LocalContext.event_id.get(None)
    if blocks is None or number is None:
        return lambda: False
    event = blocks._queue.event_ids_to_events.get(number)
    known: Any = blocks._queue.event_ids_to_events
    return lambda: event is not None and (not event.alive or number not in known or unheard(event))


def checked_steps(steps: Iterator[Item], check: Callable[[], None]) -> Iterator[Item]:
    """The items of ``steps``, each made under ``check``: a generator's steps may run in different threads."""
    end = object()
    try:
        while True:
            with stoppable(check):
                item = next(steps, end)
            if item is end:
                return
            yield item  # type: ignore[misc]
    finally:
        if hasattr(steps, "close"):
            steps.close()
