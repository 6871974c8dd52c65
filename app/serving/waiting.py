"""Scheduling of requests, and the bound on their waiting time: ``Limits.wait_seconds``.

Visitors take turns: the second request of one address comes after the first of every other, and half of a
line's workers are for others; of all lines together, an address has few. A request that would wait too long
is rejected at once, with its place in the queue and the expected time. That time is an estimate from the
runs so far, so a request that has waited too long nevertheless is ended in the queue; and what nobody
listens for is taken out.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gradio.exceptions import Error
from gradio.queueing import Event, EventQueue, Queue
from gradio.server_messages import ProcessCompletedMessage
from gradio.utils import error_payload

from app import limits
from app.serving.cores import CORES, QUEUED, has_had
from app.serving.kept import Sweeper
from app.serving.listeners import unheard
from app.serving.measure import LOG, REFUSED
from app.serving.sessions import keep_little
from app.serving.values import forget_errors
from app.serving.visitors import address_of

_ADDRESS = "explorer.address"
CHECK_SECONDS = 0.5
"""Between two looks at what waits."""


@dataclass(frozen=True)
class Turn:
    """A place in a line, the first is 1, and the seconds until its work begins."""

    place: int
    seconds: float

    def refusal(self, longest: float) -> str:
        """Message of a rejection: the reason, and the time after which to retry."""
        return (
            f"The page is busy: you would be number {self.place} in this queue and wait about "
            f"{math.ceil(self.seconds)} s; the limit is {longest:.0f} s here; "
            f"try again in {self.until_free(longest)} s"
        )

    def until_free(self, longest: float) -> int:
        """Seconds after which this line is short enough, if nobody else joins it."""
        return max(1, math.ceil(self.seconds - longest))


def next_turn(queue: Queue, function: Any, address: str) -> Turn:
    """The turn that one more request of a visitor to ``function`` (a ``BlockFunction``) would get: the mean
    times of the functions ahead of it and the rest of those that run, shared among the line's workers. A
    function that has not run yet counts 0 s."""
    line = queue.event_queue_per_concurrency_id.get(function.concurrency_id)
    if line is None or line.concurrency_limit is None:
        return Turn(1, 0.0)
    rounds, counted = _rounds(queue, line)
    ahead = [event for event in line.queue if rounds[event._id] <= counted[address]]
    work = sum(_mean_seconds(queue, event.fn) for event in ahead)
    now = time.time()  # the clock of Gradio's start times
    for running, starts in line.start_times_per_fn.items():
        work += sum(max(0.0, start + _mean_seconds(queue, running) - now) for start in starts)
    return Turn(len(ahead) + 1, work / line.concurrency_limit)


def take_turns(queue: Queue) -> None:
    """Order every line by rounds, first come first served within one. Nothing is awaited, so no line's first
    is taken meanwhile."""
    for line in queue.event_queue_per_concurrency_id.values():
        rounds, _ = _rounds(queue, line)
        line.queue.sort(key=lambda event, rounds=rounds: rounds[event._id])  # type: ignore[misc]


def share_workers(queue: Queue) -> None:
    """Let the queue's next request be one whose visitor has fewer than half of its line's workers, one of a
    line that has one, and few of all lines, stopped ones that still compute among them; and no program's
    whose visitor has used up its processor seconds, while others compute."""
    next_of_gradio = queue.get_events

    def get_events() -> Any:
        running = _running(queue)
        lines = queue.event_queue_per_concurrency_id.values()
        closed = [line for line in lines if not _opened(line, running)]
        limits_before = [line.concurrency_limit for line in closed]
        for line in closed:
            line.concurrency_limit = line.current_concurrency
        try:
            return next_of_gradio()
        finally:
            for line, before in zip(closed, limits_before, strict=True):
                line.concurrency_limit = before

    queue.get_events = get_events  # type: ignore[method-assign]


def _opened(line: EventQueue, running: list[Event]) -> bool:
    """True if a worker is free for one of those who wait, who then is the first. ``running``: the requests of
    all lines that do."""
    most = line.concurrency_limit
    if not line.queue or most is None or line.current_concurrency >= most:
        return True  # nothing is to be decided
    here, everywhere = Counter(map(_address_of, _of(line, running))), Counter(map(_address_of, running))

    def able(event: Event) -> bool:
        who = _address_of(event)
        few = here[who] < max(1, most // 2) and max(everywhere[who], QUEUED.of(who)) < most_of_all()
        return few and not (event.fn.api_visibility == "public" and has_had(who))

    if (first := next(filter(able, line.queue), None)) is None:
        return False
    line.queue.remove(first)
    line.queue.insert(0, first)
    return True


def most_of_all() -> int:
    """Workers of all lines for one address, and its views at once: more than there are cores would only slow
    down others' work."""
    bounds = limits.current()
    return min(bounds.views, max(2, CORES)) if bounds.hosted else bounds.views


def _running(queue: Queue) -> list[Event]:
    return [event for jobs in queue.active_jobs if jobs for event in jobs if event.alive]


def _of(line: EventQueue, running: list[Event]) -> list[Event]:
    return [event for event in running if event.concurrency_id == line.concurrency_id]


def _address_of(event: Event) -> str:
    """The visitor's address; kept, as it is looked at every millisecond while a line waits."""
    scope = event.request.scope
    if _ADDRESS not in scope:
        scope[_ADDRESS] = address_of(scope)
    return str(scope[_ADDRESS])


def _rounds(queue: Queue, line: EventQueue) -> tuple[dict[str, int], Counter[str]]:
    """By event: how many of its visitor's come before it, those that run counted; and by visitor (address)
    how many there are."""
    counted = Counter(map(_address_of, _of(line, _running(queue))))
    rounds: dict[str, int] = {}
    for event in line.queue:
        who = _address_of(event)
        rounds[event._id] = counted[who]
        counted[who] += 1
    return rounds, counted


def _mean_seconds(queue: Queue, function: Any) -> float:
    times = queue.process_time_per_fn
    return float(times[function].avg_time) if function in times else 0.0


async def end_overdue(queue: Queue, now: float) -> int:
    """Take every request out of its line that nobody listens for, or that has waited longer than
    ``Limits.wait_seconds`` at the monotonic time ``now``, of which its visitor is told; returns how many."""
    longest, gone = limits.current().wait_seconds, 0
    async with queue.delete_lock:  # a line's first is not taken to be run meanwhile
        for line in queue.event_queue_per_concurrency_id.values():
            for place, event in enumerate(list(line.queue), 1):
                lost, late = unheard(event, now), now - event.enqueue_time > longest
                if not lost and not late:
                    continue
                line.queue.remove(event)
                queue.event_ids_to_events.pop(event._id, None)
                REFUSED.labels("unheard" if lost else "waited").inc()
                if not lost:
                    _tell(queue, event, place, longest)
                gone += 1
    return gone


def _tell(queue: Queue, event: Event, place: int, longest: float) -> None:
    refused = Error(
        f"The page is busy: this has waited for {longest:.0f} s, the limit here, and is "
        f"number {place} in its queue; try again in a minute"
    )
    answer = error_payload(refused, show_error=False)
    queue.send_message(event, ProcessCompletedMessage(output=answer, title="Busy", success=False))


@asynccontextmanager
async def watched(app: Any) -> AsyncIterator[None]:
    """The server's life: as long as it lasts, nobody waits for too long, sessions and requests that failed
    keep little, and answers that nobody listens for are dropped."""
    keep_little(app)
    share_workers(app.get_blocks()._queue)
    forget_errors(app.get_blocks()._queue)
    kept = Sweeper(app)

    async def watch() -> None:
        while True:
            try:
                await end_overdue(app.get_blocks()._queue, time.monotonic())
                kept.sweep()
            except Exception:  # the next look may go well, and without one nothing is dropped any more
                LOG.exception("the queue was not checked")
            await asyncio.sleep(CHECK_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
