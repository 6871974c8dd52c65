"""The CPU's cores, shared among the requests that are computed at once.

A request that is alone has all of them. Among several each has its part, at least one: where there are more
of torch's threads than cores, every operation waits for a thread that has no core. All named schemes on 512 x
1024 values took 0.63 s of CPU by one thread and 0.87 s by two on a busy machine with two cores.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

CORES = torch.get_num_threads()
"""The threads that torch takes by itself: one for each core."""


class _Working:
    """How many requests are computed now."""

    def __init__(self) -> None:
        self._lock, self._count = threading.Lock(), 0

    def add(self, by: int) -> int:
        """The number after ``by`` more."""
        with self._lock:
            self._count += by
            return self._count


_WORKING = _Working()


@contextmanager
def share_of_cores() -> Iterator[None]:
    """Inside, torch has this request's share of the cores in this thread."""
    torch.get_num_threads()  # a thread's first operation would take the number that any thread set last
    torch.set_num_threads(max(1, CORES // _WORKING.add(1)))
    try:
        yield
    finally:
        _WORKING.add(-1)
        torch.set_num_threads(CORES)
