"""The GPU for one visitor at a time, so that nobody's timing is another's noise.

Without a GPU, timings of the CPU wait for each other, and work for the memory that it needs: the operating
system shares the rest. Next is the address that had its turn longest ago.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TypeVar

from app.serving.sessions import current_request
from app.state.places import Places
from explorer.core.backend import gpu_device

Item = TypeVar("Item")
Result = TypeVar("Result")


_GPU, _CPU = Places(1, 1), Places(1, 1)
_ROOM = Places(of_one=2 << 30, of_all=2 << 30)
"""Bytes of memory for all work of more than ``SMALL`` bytes."""
SMALL = 64 << 20


@contextmanager
def _held(places: Places, size: int = 1) -> Iterator[None]:
    """Hold so many places, once they are free. Not inside of the same places: both could wait for ever."""
    address = current_request().address
    for _ in places.taking(address, size=size):
        pass
    try:
        yield
    finally:
        places.give_back(address, size=size)


def room(size: int) -> AbstractContextManager[None]:
    """Hold so many bytes of memory for work."""
    return _held(_ROOM, size) if size > SMALL else nullcontext()


WAITS = "Waits until others' work leaves enough memory for this."


class Room:
    """``room`` that is held until the last of its users ends: the thread of a stopped computation goes on for
    a while."""

    def __init__(self, size: int) -> None:
        self._size, self._address = size if size > SMALL else 0, current_request().address
        self._users, self._lock = 0, threading.Lock()

    def taking(self) -> Iterator[None]:
        """Take it, however long that takes: yields every half a second."""
        if self._size:
            yield from _ROOM.taking(self._address, size=self._size)

    def __enter__(self) -> None:
        with self._lock:
            self._users += 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._users -= 1
            if not self._users and self._size:
                _ROOM.give_back(self._address, size=self._size)


def in_room(
    size: int, work: Callable[[Room], Generator[Item, None, Result]], waits: Item
) -> Generator[Item, None, Result]:
    """The steps of ``work`` and its result, once so many bytes of memory are held; ``waits`` until then. Not
    inside of ``room``, nor where another may wait for this one's result while it takes room."""
    room = Room(size)
    for _ in room.taking():
        yield waits
    with room:
        return (yield from work(room))


def gpu_lock(size: int = 0) -> AbstractContextManager[None]:
    """Hold the GPU; where there is none, ``room`` for work of ``size`` bytes."""
    return _held(_GPU) if gpu_device() is not None else room(size)


def one_at_a_time() -> AbstractContextManager[None]:
    """Hold the CPU for a timing: two at once would time each other. Where ``room`` is held as well, it is
    taken before: else each of two runs could wait for the other's."""
    return _held(_CPU)


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
