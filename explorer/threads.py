"""The number of torch threads in this process, independent of the current thread's share."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

import torch

_WHOLE = threading.local()


def usable_threads() -> int:
    """The number of torch threads; inside ``part_of``, the number outside it."""
    return getattr(_WHOLE, "threads", None) or torch.get_num_threads()


@contextmanager
def part_of(threads: int) -> Iterator[None]:
    """Mark a context in which this thread may use only part of ``threads`` (``take_part``); all are restored
    afterwards."""
    before = getattr(_WHOLE, "threads", None)
    _WHOLE.threads = threads
    try:
        yield
    finally:
        _WHOLE.threads = before
        torch.set_num_threads(threads)


def take_part(threads: int) -> None:
    """Limit torch to ``threads`` threads (at least one) in this thread alone."""
    torch.get_num_threads()  # a thread's first operation would take the number that any thread set last
    torch.set_num_threads(max(1, threads))
