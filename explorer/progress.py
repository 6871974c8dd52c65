"""Progress of long operations, and the way to stop them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[int, int], None]
"""A function that a long operation calls with (done, total); an exception that it raises stops the work."""


class StoppedError(Exception):
    """End of work before it was done; the text says why.

    It is no ``ValueError``, so that no caller takes it for refused input and goes on.
    """


_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


def checkpoint() -> None:
    """Stop here if ``stoppable`` was told to; to be called in loops that may take long."""
    check = _CHECK.get()
    if check is not None:
        check()


@contextmanager
def stoppable(check: Callable[[], None]) -> Iterator[None]:
    """Let ``checkpoint`` call ``check`` inside the block; it raises ``StoppedError`` to end the work."""
    before = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(before)


@contextmanager
def held(lock: threading.Lock) -> Iterator[None]:
    """Hold a lock that others may hold for long: the wait ends as the work does."""
    while not lock.acquire(timeout=0.5):
        checkpoint()
    try:
        yield
    finally:
        lock.release()
