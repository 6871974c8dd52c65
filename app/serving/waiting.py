"""How long a request may wait for its turn: ``Limits.wait_seconds``.

Who would wait longer is refused when asking, with the place in the line and the time that it would take. That
is an estimate from the runs so far, so what has waited for too long even so is ended in the line.
"""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from gradio.exceptions import Error
from gradio.queueing import Event, Queue
from gradio.server_messages import ProcessCompletedMessage
from gradio.utils import error_payload

from app import limits
from app.serving.measure import REFUSED

CHECK_SECONDS = 0.5
"""Between two looks at what waits."""


@dataclass(frozen=True)
class Turn:
    """A place in a line, the first is 1, and the seconds until its work begins."""

    place: int
    seconds: float

    def refusal(self, longest: float) -> str:
        """Why this place is not given, and when one may be."""
        return (
            f"The page is busy: you would be number {self.place} in this line and wait about "
            f"{math.ceil(self.seconds)} s, and nobody waits longer than {longest:.0f} s here; "
            f"ask again in {self.until_free(longest)} s"
        )

    def until_free(self, longest: float) -> int:
        """Seconds after which this line is short enough, if nobody else joins it."""
        return max(1, math.ceil(self.seconds - longest))


def next_turn(queue: Queue, function: Any) -> Turn:
    """The turn that one more request to ``function`` (a ``BlockFunction``) would get: the mean times of the
    functions ahead of it and the rest of those that run, shared among the line's workers. A function that
    has not run yet counts 0 s."""
    line = queue.event_queue_per_concurrency_id.get(function.concurrency_id)
    if line is None or line.concurrency_limit is None:
        return Turn(1, 0.0)
    ahead = [event for event in line.queue if event.alive]
    work = sum(_mean_seconds(queue, event.fn) for event in ahead)
    now = time.time()  # the clock of Gradio's start times
    for running, starts in line.start_times_per_fn.items():
        work += sum(max(0.0, start + _mean_seconds(queue, running) - now) for start in starts)
    return Turn(len(ahead) + 1, work / line.concurrency_limit)


def _mean_seconds(queue: Queue, function: Any) -> float:
    times = queue.process_time_per_fn
    return float(times[function].avg_time) if function in times else 0.0


async def end_overdue(queue: Queue, now: float) -> int:
    """Take every request out of its line that has waited longer than ``Limits.wait_seconds`` at the monotonic
    time ``now``, and tell its visitor; returns how many."""
    longest, gone = limits.current().wait_seconds, 0
    async with queue.delete_lock:  # a line's first is not taken to be run meanwhile
        for line in queue.event_queue_per_concurrency_id.values():
            for event in [event for event in line.queue if now - event.enqueue_time > longest]:
                place = line.queue.index(event) + 1
                line.queue.remove(event)
                queue.event_ids_to_events.pop(event._id, None)
                _tell(queue, event, place, longest)
                gone += 1
    REFUSED.labels("waited").inc(gone)
    return gone


def _tell(queue: Queue, event: Event, place: int, longest: float) -> None:
    refused = Error(
        f"The page is busy: this has waited for {longest:.0f} s, the longest that anybody waits here, and is "
        f"number {place} in its line; ask again in a minute"
    )
    answer = error_payload(refused, show_error=False)
    queue.send_message(event, ProcessCompletedMessage(output=answer, title="Busy", success=False))


@asynccontextmanager
async def watched(app: Any) -> AsyncIterator[None]:
    """The server's life: as long as it lasts, nobody waits for too long."""

    async def watch() -> None:
        while True:
            await end_overdue(app.get_blocks()._queue, time.monotonic())
            await asyncio.sleep(CHECK_SECONDS)

    watching = asyncio.create_task(watch())
    try:
        yield
    finally:
        watching.cancel()
