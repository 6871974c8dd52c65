"""The GPU for one visitor at a time, first come first served, so that nobody's timing is another's noise.

Without a GPU, timings of the CPU wait for each other, and work for the memory that it needs: the operating
system shares the rest.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import TypeVar

from app.serving.sessions import current_request
from app.serving.work import waiting_for_others
from app.state.places import Places
from explorer.core.backend import gpu_device
from explorer.progress import checkpoint

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


_ROOM = Places(of_one=2 << 30, of_all=2 << 30)
"""Bytes of memory for all work of more than ``SMALL`` bytes."""
SMALL = 64 << 20
_LOOKS_S = 0.5


@contextmanager
def room(size: int) -> Iterator[None]:
    """Hold so many bytes of memory for work; not inside of another ``room``: both could wait for ever. The
    wait is not the run's own time."""
    address = current_request().address
    if size <= SMALL:
        yield
        return
    while True:
        with waiting_for_others():
            taken = _ROOM.take(address, _LOOKS_S, size=size)
        if taken:
            break
        checkpoint()
    try:
        yield
    finally:
        _ROOM.give_back(address, size=size)


@contextmanager
def gpu_lock(size: int = 0) -> Iterator[None]:
    """Hold the GPU; where there is none, ``room`` for work of ``size`` bytes."""
    with _GPU.hold() if gpu_device() is not None else room(size):
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
