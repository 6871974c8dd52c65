"""Metrics of the server, and their endpoints: /health and /metrics.

A hosted page logs one line for each handler that ran: its name, how it ended, and the time that it took;
never a name of a file or a tensor.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client import CONTENT_TYPE_LATEST, Counter, Gauge, Histogram, generate_latest
from starlette.requests import Request
from starlette.responses import JSONResponse, Response
from starlette.routing import Route

from app import limits
from explorer.core.backend import gpu_device, gpu_status

LOG = logging.getLogger("explorer")
SECONDS = Histogram(
    "explorer_handler_seconds",
    "Seconds that a handler ran, by handler",
    ["handler"],
    buckets=(0.01, 0.03, 0.1, 0.3, 1, 3, 10, 30, 100, 300),
)
ENDED = Counter("explorer_handlers", "Handlers that ended, by handler and how", ["handler", "how"])
REFUSED = Counter("explorer_refused", "Requests that were refused before a handler, by reason", ["reason"])
RUNNING = Gauge("explorer_running", "Handlers that run now")
QUEUE = Gauge("explorer_queue", "Requests that wait")
GPU = Gauge("explorer_gpu_bytes", "Memory of the GPU that this process has allocated")


class HandlerOutcome:
    """HandlerOutcome of a handler; "answered" by default."""

    how = "answered"


@contextmanager
def measured(handler: str) -> Iterator[HandlerOutcome]:
    """Count and time one run of a handler, and log it. An exception that leaves it counts as "failed", a
    visitor who has left (``GeneratorExit``) as "left"."""
    outcome, start = HandlerOutcome(), time.monotonic()
    RUNNING.inc()
    try:
        yield outcome
    except GeneratorExit:
        outcome.how = "left"
        raise
    except BaseException:
        if outcome.how == "answered":
            outcome.how = "failed"
        raise
    finally:
        took = time.monotonic() - start
        RUNNING.dec()
        SECONDS.labels(handler).observe(took)
        ENDED.labels(handler, outcome.how).inc()
        level = logging.INFO if limits.current().hosted else logging.DEBUG
        LOG.log(level, "%s %s %.0f ms", handler, outcome.how, 1e3 * took)


METRICS_SECONDS = 1.0
"""How long the text of ``metrics`` is kept."""
_made = (-math.inf, b"")
"""When it was made, and the text."""


async def health(request: Request) -> JSONResponse:
    """Report the state of the page, whether it is public, and its GPU; 503 if its queue has stopped."""
    status, queue = gpu_status(), request.app.get_blocks()._queue
    return JSONResponse(
        {
            "status": "stopped" if queue.stopped else "ok",
            "hosted": limits.current().hosted,
            "why": limits.why(),
            "gpu": status.ok,
            "gpu_status": status.reason,
            "waiting": len(queue),
        },
        503 if queue.stopped else 200,
    )


async def metrics(request: Request) -> Response:
    """Prometheus' text format; memory, descriptors and CPU of the process are among it."""
    global _made
    if time.monotonic() - _made[0] < METRICS_SECONDS:
        return Response(_made[1], media_type=CONTENT_TYPE_LATEST)
    QUEUE.set(len(request.app.get_blocks()._queue))
    if (device := gpu_device()) is not None:
        import torch

        GPU.set(torch.cuda.memory_allocated(device))
    _made = time.monotonic(), generate_latest()
    return Response(_made[1], media_type=CONTENT_TYPE_LATEST)


ROUTES = [Route("/health", health), Route("/metrics", metrics)]
