"""torch's threads of this process, whatever part of them the current thread has."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WHOLE = threading.local()


def usable_threads() -> int:
    """How many threads torch has; inside ``part_of``, how many it has without it."""
    return getattr(_WHOLE, "threads", None) or torch.get_num_threads()


@contextmanager
def part_of(threads: int) -> Iterator[None]:
    """Inside, this thread has a part of ``threads``, which ``take_part`` sets; all of them afterwards."""
    before = getattr(_WHOLE, "threads", None)
    _WHOLE.threads = threads
    try:
        yield
    finally:
        _WHOLE.threads = before
        torch.set_num_threads(threads)


def take_part(threads: int) -> None:
    """Give torch so many threads, at least one, in this thread alone."""
    torch.get_num_threads()  # a thread's first operation would take the number that any thread set last
    torch.set_num_threads(max(1, threads))
