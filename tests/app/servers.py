"""Running servers, and waiting for what happens in them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from typing import Any

import uvicorn
from gradio.http_server import Server


def served(app: Any) -> tuple[Any, int]:
    """A running server of ``app``, and its port."""
    server = Server(uvicorn.Config(app, port=0, log_level="error", lifespan="off"))
    server.run_in_thread()
    return server, server.servers[0].sockets[0].getsockname()[1]


def until(holds: Callable[[], bool], what: Callable[[], str] = lambda: "it has not come about") -> None:
    """Wait for something to come about, however busy the machine is; fail after a minute, when it hangs."""
    end, never = time.monotonic() + 60, threading.Event()
    while not holds():
        assert time.monotonic() < end, what()
        never.wait(0.02)
