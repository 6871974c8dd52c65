"""Bounds on connections, which a server holds before a request exists.

uvicorn waits for the rest of a request's head without end, and asyncio writes a line to the log for each
connection that it cannot accept. A thread looks at the server's connections: it ends those that send no
request, and what an address has beyond its share.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from typing import Any

from h11 import LocalProtocolError

from app import limits
from app.serving.visitors import is_private, network_of

HEAD_SECONDS = 20.0
"""Time in which the head of a request has to arrive, on a new connection or after the last answer."""
EVERY_SECONDS = 1.0
DESCRIPTORS = 1 << 16
"""Open files and connections that this process asks the system for."""
BY_STRANGERS = (
    "socket.accept() out of system resource", "Invalid HTTP request received.",
    "Unsupported upgrade request.", "No supported WebSocket library detected.",
)  # fmt: skip
"""Messages of asyncio, where no descriptor is left, and of uvicorn."""


class FewPerSecond(logging.Filter):
    """Lets ``most`` lines a second through of those up to ``level`` that begin with one of ``begins``, and
    none of an answer that cannot be sent, because its client sent bytes after its request that are none."""

    def __init__(self, most: int, begins: tuple[str, ...], level: int = logging.CRITICAL) -> None:
        super().__init__()
        self._most, self._begins, self._level = most, begins, level
        self._passed = deque[float](maxlen=most)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], LocalProtocolError):
            return False
        if record.levelno > self._level or not record.getMessage().startswith(self._begins):
            return True
        now = time.monotonic()
        if len(self._passed) == self._most and now - self._passed[0] < 1:
            return False
        self._passed.append(now)
        return True


class Watch:
    """The connections of a running uvicorn ``server``, with the last request of each silent one and the time
    from which it is silent."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._silent: dict[Any, tuple[Any, float]] = {}

    def look(self, now: float) -> int:
        """End silent and excess connections at a monotonic time; the number ended."""
        open_now = list(self._server.server_state.connections)
        cycles = {one: getattr(one, "cycle", None) for one in open_now}  # a WebSocket has none
        before, self._silent = self._silent, {}
        for one, cycle in cycles.items():
            if cycle is None or cycle.response_complete:
                last, since = before.get(one, (cycle, now))
                self._silent[one] = (cycle, since if last is cycle else now)
        over = {one for one, (_, since) in self._silent.items() if now - since > HEAD_SECONDS}
        most, seen = limits.current().connections, Counter[str]()
        for one in open_now:
            address = one.client[0] if one.client else ""
            seen[network_of(address)] += 1
            if seen[network_of(address)] > most and not _from_proxy(address):
                over.add(one)
        for one in over:
            one.loop.call_soon_threadsafe(one.transport.abort)
        return len(over)


def _from_proxy(address: str) -> bool:
    """True for a peer that may be a proxy: all visitors come from its address."""
    return limits.current().hosted and is_private(address)


def watch(server: Any) -> None:
    """Watch the connections of ``server`` as long as this process lives."""
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < (wanted := min(DESCRIPTORS, hard)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    for name in ("asyncio", "uvicorn.error"):
        logging.getLogger(name).addFilter(FewPerSecond(1, BY_STRANGERS))
    connections = Watch(server)

    def forever() -> None:
        while True:
            try:
                connections.look(time.monotonic())
            except Exception:  # uvicorn may change them meanwhile: the next look finds them as they are
                logging.getLogger("explorer").exception("connections could not be looked at")
            time.sleep(EVERY_SECONDS)

    threading.Thread(target=forever, daemon=True).start()
