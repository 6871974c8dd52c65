"""How long operations report how far they are, and how they are stopped."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar

Progress = Callable[[int, int], None]
"""Called with (done, total) while a long operation runs; an exception that it raises stops the operation."""


class StoppedError(Exception):
    """Work that was ended before it was done; the text says why.

    No ``ValueError``: nothing takes it for input that one of several methods refuses, and goes on.
    """


_CHECK: ContextVar[Callable[[], None] | None] = ContextVar("check", default=None)


def checkpoint() -> None:
    """Called in loops that may take long: raises what the ``check`` of ``stoppable`` raises."""
    check = _CHECK.get()
    if check is not None:
        check()


@contextmanager
def stoppable(check: Callable[[], None]) -> Iterator[None]:
    """Inside, ``checkpoint`` calls ``check``, which raises ``StoppedError`` to end the work."""
    before = _CHECK.set(check)
    try:
        yield
    finally:
        _CHECK.reset(before)
