"""Odd bytes over many connections to a running server: half requests, odd heads, clients that leave."""

from __future__ import annotations

import logging
import random
import select
import socket
import time
from functools import cache
from typing import Any

import httpx

from app.serving import connections
from tests.app.servers import served
from tests.fuzz.mutate import mutated
from tests.fuzz.routes import WentOutError, server

REQUEST = (
    b"%b /%b HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n%b\r\n%b"
)
PATHS = (
    b"health",
    b"config",
    b"gradio_api/queue/data?session_hash=a",
    b"gradio_api/component_server",
    b"x" * 9000,
)
MORE = (
    b"",
    b"Expect: 100-continue\r\n",
    b"Transfer-Encoding: chunked\r\n",
    b"Upgrade: websocket\r\n",
    b"X: y\r\n" * 3000,
)
READ_SECONDS = 0.02


class Failures(logging.Handler):
    """The tracebacks that the server has logged."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.found: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        self.found.append(record.getMessage())


FAILURES = Failures()


@cache
def _running() -> tuple[Any, int]:
    """A server with the page's watch over its connections; and its port."""
    running, port = served(server()[0])
    connections.watch(running)
    logging.getLogger("uvicorn.error").addHandler(FAILURES)
    return running, port


def crowd(rng: random.Random) -> Any:
    """A case: connections that send anything and read little. Those that stay silent are ended, and the next
    visitor is answered."""
    sent = []
    for _ in range(rng.choice((1, 4, 20))):
        body = b"{}" * rng.randrange(3)
        raw = REQUEST % (
            rng.choice((b"GET", b"POST", b"PRI", b"")), rng.choice(PATHS), rng.choice((len(body), 9, 2**40)),
            rng.choice(MORE), body,
        )  # fmt: skip
        raw = mutated(rng, raw) if rng.random() < 0.5 else raw * rng.choice((1, 1, 3))
        sent.append((raw[: rng.randrange(len(raw) + 1)] if rng.random() < 0.4 else raw, rng.random() < 0.3))
    return lambda: _crowded(sent)


def _crowded(sent: list[tuple[bytes, bool]]) -> None:
    running, port = _running()
    stay = []
    for raw, leaves in sent:
        one = socket.create_connection(("127.0.0.1", port), timeout=5)
        one.sendall(raw)
        if leaves:
            one.close()
        else:
            stay.append(one)
    ready = select.select(stay, [], [], READ_SECONDS)[0]
    answers = [one.recv(1 << 16)[:100] for one in ready]
    watch = connections.Watch(running)
    watch.look(time.monotonic())
    watch.look(time.monotonic() + connections.HEAD_SECONDS + 1)
    status = httpx.get(f"http://127.0.0.1:{port}/health", timeout=5).status_code
    for one in stay:
        one.close()
    failures, FAILURES.found = FAILURES.found, []
    if failures or status != 200 or any(answer.startswith(b"HTTP/1.1 5") for answer in answers):
        raise WentOutError(f"health: {status}, {failures}; {[raw[:100] for raw, _ in sent]}: {answers}")
