"""The CPU's cores, shared among the requests that are computed at once.

A request that is alone has all of them. Among several each has its part, at least one, of as many as there
are when it begins (a long one again as it goes on): where there are more of torch's threads than cores, every
operation waits for a thread that has no core. All named schemes on 512 x 1024 values took 0.63 s of CPU by
one thread and 0.87 s by two on a busy machine with two cores.

A request that waits, for a download or for the GPU, counts as one that computes. It is an address's: what may
wait does so while something of another is computed.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from app.serving.sessions import current_request
from explorer.threads import part_of, take_part

CORES = torch.get_num_threads()
"""The threads that torch takes by itself: one for each core."""


class _Working:
    """How many requests are computed now, by address."""

    def __init__(self) -> None:
        self._lock, self._by = threading.Lock(), Counter[str]()

    def add(self, by: int, address: str = "") -> None:
        with self._lock:
            self._by[address] += by
            self._by += Counter()  # an address that has none is not kept

    @property
    def count(self) -> int:
        with self._lock:
            return self._by.total()

    def others(self, address: str) -> bool:
        """True while something is computed for another address; "" is nobody's."""
        with self._lock:
            return any(who not in ("", address) for who in self._by)


WORKING = _Working()


def take_share() -> None:
    """Give torch the share of one request, of as many as there are now, in this thread."""
    take_part(CORES // max(WORKING.count, 1))


@contextmanager
def share_of_cores() -> Iterator[None]:
    """Inside, this thread computes a request with its share of the cores."""
    address = current_request().address
    WORKING.add(1, address)
    try:
        with share_of_this_request():
            yield
    finally:
        WORKING.add(-1, address)


@contextmanager
def share_of_this_request() -> Iterator[None]:
    """Inside, this thread computes for a request that waits for it, and counts as that one."""
    with part_of(CORES):
        take_share()
        yield
