"""The CPU's cores, shared among the requests that are computed at once.

A request that is alone has all of them. Among several each has its part, at least one, of as many as there
are when it begins (a long one again as it goes on): where there are more of torch's threads than cores, every
operation waits for a thread that has no core. All named schemes on 512 x 1024 values took 0.63 s of CPU by
one thread and 0.87 s by two on a busy machine with two cores.

A request that waits, for a download or for the GPU, counts as one that computes.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

from explorer.threads import part_of, take_part

CORES = torch.get_num_threads()
"""The threads that torch takes by itself: one for each core."""


class _Working:
    """How many requests are computed now."""

    def __init__(self) -> None:
        self._lock, self.count = threading.Lock(), 0

    def add(self, by: int) -> None:
        with self._lock:
            self.count += by


_WORKING = _Working()


def take_share() -> None:
    """Give torch the share of one request, of as many as there are now, in this thread."""
    take_part(CORES // max(_WORKING.count, 1))


@contextmanager
def share_of_cores() -> Iterator[None]:
    """Inside, this thread computes a request with its share of the cores."""
    _WORKING.add(1)
    try:
        with share_of_this_request():
            yield
    finally:
        _WORKING.add(-1)


@contextmanager
def share_of_this_request() -> Iterator[None]:
    """Inside, this thread computes for a request that waits for it, and counts as that one."""
    with part_of(CORES):
        take_share()
        yield
