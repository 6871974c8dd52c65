"""The CPU's cores, shared among the requests that are computed at once.

A request that is alone has all of them. Among several each has its part, at least one, of as many as there
are when it begins (a long one again as it goes on): where there are more of torch's threads than cores, every
operation waits for a thread that has no core. All named schemes on 512 x 1024 values took 0.63 s of CPU by
one thread and 0.87 s by two on a busy machine with two cores.

A request that waits, for a download or for the GPU, counts as one that computes. It is an address's: what may
wait does so while something of another is computed: a view, or a program's request, whose address has used up
its processor seconds.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Awaitable, Callable, Generator, Iterator
from contextlib import contextmanager
from functools import partial
from time import thread_time
from typing import Any

import torch

from app.serving.allowance import Allowance
from app.serving.sessions import current_request
from explorer.threads import part_of, take_part

CORES = torch.get_num_threads()
"""The threads that torch takes by itself: one for each core."""
SECONDS_AT_ONCE, SECONDS_A_SECOND = 4.0, 0.25
"""Processor seconds of an address's views and programs' requests while something of another address is
computed: so many, then so many a second. Views are mostly Python, which runs in one thread at a time: a run
of thousands of small operations waits after each of them while a view is computed. With these numbers a run
takes about a third longer beside one address that never stops, once its seconds at once are used up. All
sections of a page take .4 s, of a new tensor 1 s, of the largest 1.8 s; a slider that is dragged some .1 s a
second. The time is the processor's, and not the clock's, which is longer for everybody while one address
computes much."""


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

    def of(self, address: str) -> int:
        with self._lock:
            return self._by[address]

    @contextmanager
    def counted(self, address: str) -> Iterator[None]:
        """Inside, one more is computed for the address."""
        self.add(1, address)
        try:
            yield
        finally:
            self.add(-1, address)

    def others(self, address: str) -> bool:
        """True while something is computed for another address; "" is nobody's."""
        with self._lock:
            return any(who not in ("", address) for who in self._by)


WORKING, QUEUED = _Working(), _Working()
"""All requests; those of the queue: a stopped one is computed until its next check."""
_METER = threading.local()
SECONDS = Allowance(SECONDS_AT_ONCE, SECONDS_A_SECOND)


def has_had(address: str) -> bool:
    """True for an address that has used up its seconds, while another one is computed for."""
    return SECONDS.left(address) < 0 and WORKING.others(address)


@contextmanager
def charged() -> Iterator[None]:
    """Inside, the processor seconds of this thread are used by the current request's address: at its end, and
    as often as it is asked to ``charge``."""
    _METER.since = thread_time()
    try:
        yield
    finally:
        charge()
        _METER.since = None


def charge() -> None:
    """Have what this thread has computed since it was ``charged`` last be used."""
    since, address = getattr(_METER, "since", None), current_request().address
    if address and since is not None:
        _METER.since = thread_time()
        SECONDS.use(address, _METER.since - since)


class Metered:
    """Awaits ``work``, and tells ``use`` the processor seconds of each of its steps in this thread."""

    def __init__(self, work: Awaitable[None], use: Callable[[float], None]) -> None:
        self._work, self._use = work, use

    def __await__(self) -> Generator[Any, Any, None]:
        steps = self._work.__await__()
        step: Callable[[], Any] = partial(steps.send, None)
        while True:
            began = thread_time()
            try:
                awaited = step()
            except StopIteration:
                return
            finally:
                self._use(thread_time() - began)
            try:
                step = partial(steps.send, (yield awaited))
            except BaseException as error:  # a request that is cancelled, too
                step = partial(steps.throw, error)


def take_share() -> None:
    """Give torch the share of one request, of as many as there are now, in this thread."""
    take_part(CORES // max(WORKING.count, 1))


@contextmanager
def share_of_cores() -> Iterator[None]:
    """Inside, this thread computes a request with its share of the cores."""
    with WORKING.counted(current_request().address), share_of_this_request():
        yield


@contextmanager
def queued() -> Iterator[None]:
    """Inside, this thread computes a request of the queue with its share of the cores."""
    with QUEUED.counted(current_request().address), share_of_cores():
        yield


@contextmanager
def share_of_this_request() -> Iterator[None]:
    """Inside, this thread computes for a request that waits for it, and counts as that one."""
    with part_of(CORES):
        take_share()
        yield
