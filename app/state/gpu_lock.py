"""The GPU for one visitor at a time, first come first served, so that nobody's timing is another's noise.

Without a GPU nothing waits but timings of the CPU: the operating system shares it.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from explorer.core.backend import gpu_device

Item = TypeVar("Item")


class FairLock:
    """A lock granted in the order of asking. ``len`` counts the holder and all who wait."""

    def __init__(self) -> None:
        self._change = threading.Condition()
        self._waiting: deque[object] = deque()

    @contextmanager
    def hold(self) -> Iterator[None]:
        """Wait for everyone who came before, then run alone. Not re-entrant."""
        ticket = object()
        with self._change:
            self._waiting.append(ticket)
            self._change.wait_for(lambda: self._waiting[0] is ticket)
        try:
            yield
        finally:
            with self._change:
                self._waiting.popleft()
                self._change.notify_all()

    def __len__(self) -> int:
        return len(self._waiting)


_GPU = FairLock()


@contextmanager
def gpu_lock() -> Iterator[None]:
    """Hold the GPU; returns at once where there is none."""
    if gpu_device() is None:
        yield
        return
    with _GPU.hold():
        yield


_CPU = FairLock()


def one_at_a_time() -> AbstractContextManager[None]:
    """Hold the CPU for a timing: two at once would time each other."""
    return _CPU.hold()


_END = object()


def locked_steps(
    steps: Iterable[Item], lock: Callable[[], AbstractContextManager[None]] = gpu_lock
) -> Iterator[Item]:
    """The items of a generator. The lock is held for one item at a time: others are served in between."""
    iterator = iter(steps)
    while True:
        with lock():
            item = next(iterator, _END)
        if item is _END:
            return
        yield item  # type: ignore[misc]
