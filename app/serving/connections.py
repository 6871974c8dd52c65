"""Bounds on connections, which a server holds before a request exists.

uvicorn waits for the rest of a request's head without end, and asyncio writes a line to the log for each
connection that it cannot accept. A thread looks at the server's connections: it ends those that send no
request, and what an address has beyond its share.
"""

from __future__ import annotations

import logging
import os
import socket
import sys
import threading
import time
from collections import Counter, deque
from typing import Any, NoReturn

from h11 import IDLE, SERVER, Connection, LocalProtocolError, RemoteProtocolError, Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from app import limits
from app.serving.allowance import Allowance
from app.serving.guard import Paced
from app.serving.headers import SENT
from app.serving.visitors import is_private, network_of

HEAD_SECONDS = 20.0
"""Time in which the head of a request has to arrive, on a new connection or after the last answer, and in
which a client has to take something of an answer."""
SENT_AHEAD = 1 << 18
"""Bytes that the system takes for a client that has not read them; it has room for twice as many."""
LINES_A_SECOND = 50
EVERY_SECONDS = 1.0
DESCRIPTORS = 1 << 16
"""Open files and connections that this process asks the system for."""
BY_STRANGERS = (
    "socket.accept() out of system resource", "Invalid HTTP request received.",
    "Unsupported upgrade request.", "No supported WebSocket library detected.",
)  # fmt: skip
"""Messages of asyncio, where no descriptor is left, and of uvicorn."""


class FewPerSecond(logging.Filter):
    """Lets ``most`` lines and one traceback a second through of those that begin with one of ``begins``, and
    none of an answer that cannot be sent, because its client sent bytes after its request that are none."""

    def __init__(self, most: int, begins: tuple[str, ...] = ("",)) -> None:
        super().__init__()
        self._begins = begins
        self._passed, self._long = deque[float](maxlen=most), deque[float](maxlen=1)

    def filter(self, record: logging.LogRecord) -> bool:
        if record.exc_info and isinstance(record.exc_info[1], LocalProtocolError):
            return False
        said, now = record.getMessage(), time.monotonic()
        if not said.startswith(self._begins):
            return True
        passed = self._long if record.exc_info or "\n" in said else self._passed
        if len(passed) == passed.maxlen and now - passed[0] < 1:
            return False
        passed.append(now)
        return True


def limit_log() -> None:
    """Let all that is logged be ``LINES_A_SECOND``, and a traceback, in each second: what a request has a
    library say, too."""
    for name in ("", "uvicorn"):  # its messages come to no other handler
        for handler in logging.getLogger(name).handlers:
            handler.addFilter(FewPerSecond(LINES_A_SECOND))
    logging.captureWarnings(True)
    sys.unraisablehook = _log_unraised


def _log_unraised(ignored: Any) -> None:
    """Log an error that Python can raise nowhere, of an object that is deleted, as any other."""
    error = (ignored.exc_type, ignored.exc_value, ignored.exc_traceback)
    logging.getLogger("explorer").error("%s", ignored.err_msg or "ignored", exc_info=error)


HEAD_BYTES = 1 << 14
"""Bytes of a request's head. Python's parsers of single fields take up to milliseconds for a kilobyte."""
FIELDS = 100
"""Fields of a request's head; a browser sends some twenty."""
CONNECTIONS_AT_ONCE, CONNECTIONS_A_SECOND = 1_000, 50
"""New connections of one address that is no proxy, to a public page; a browser opens six."""
_NEW = Allowance(CONNECTIONS_AT_ONCE, CONNECTIONS_A_SECOND)


_BODILESS = (b"GET", b"HEAD", b"OPTIONS")


class _BoundedHeads(Connection):
    """Refuses a head of more than ``FIELDS`` fields or ``HEAD_BYTES`` before it is parsed, and one that does
    not say how long its body is before that is read: a field or a chunk of a byte takes a microsecond or more
    in the thread that answers everybody."""

    refusal = ""
    """Why a head was refused."""
    _breaks = 0
    """Line breaks that have come and may be of the next head. A head that comes in many packets is not looked
    through at each of them."""

    def receive_data(self, data: bytes) -> None:
        self._breaks += data.count(b"\n")
        super().receive_data(data)

    def next_event(self) -> Any:
        if self.their_state is IDLE:
            given = self.trailing_data[0]
            if self._breaks > FIELDS or len(given) > HEAD_BYTES:
                self._look_through(given)
        event = super().next_event()
        if isinstance(event, Request) and any(name == b"transfer-encoding" for name, _ in event.headers):
            self._refuse("a request says the length of its body, and has no chunks")
        if isinstance(event, Request) and event.method in _BODILESS and _has_body(event):
            self._refuse("such a request has no body")  # it would be read to its end, without a limit
        return event

    def _look_through(self, given: bytes) -> None:
        """Refuse the head that ``given``, all that has come, begins with, if it is too large."""
        start = given[: HEAD_BYTES + 4].replace(b"\r\n", b"\n")  # requests may follow that wait for this one
        head, end, rest = start.partition(b"\n\n")
        if head.count(b"\n") > FIELDS or (len(given) if not end else len(head)) > HEAD_BYTES:
            self._refuse(f"a request's head has at most {FIELDS} fields and {HEAD_BYTES:,} bytes")
        if len(given) <= HEAD_BYTES:
            self._breaks = (rest if end else head).count(b"\n")

    def _refuse(self, words: str) -> NoReturn:
        self.refusal = words
        raise RemoteProtocolError(words)


def _has_body(request: Request) -> bool:
    return any(name == b"content-length" and value.strip(b"0") for name, value in request.headers)


class BoundedProtocol(H11Protocol):
    """uvicorn's protocol with bounds on heads and on new connections."""

    conn: _BoundedHeads

    def __init__(self, *given: Any, **named: Any) -> None:
        super().__init__(*given, **named)
        self.conn = _BoundedHeads(SERVER, HEAD_BYTES)

    def send_400_response(self, msg: str) -> None:
        super().send_400_response(self.conn.refusal or msg)

    def connection_made(self, transport: Any) -> None:
        super().connection_made(transport)
        peer = self.client[0] if self.client else ""
        if not limits.current().hosted or _from_proxy(peer):
            return
        if _NEW.left(network_of(peer)) < 1:
            transport.abort()
        else:
            _NEW.use(network_of(peer), 1)


class Watch:
    """The connections of a running uvicorn ``server``: of each whose client has to ask or to read, the last
    request and how much of its answer was taken, and since when that is so."""

    def __init__(self, server: Any) -> None:
        self._server = server
        self._silent: dict[Any, tuple[tuple[Any, ...], float]] = {}

    def look(self, now: float) -> int:
        """End silent and excess connections at a monotonic time; the number ended."""
        open_now = list(self._server.server_state.connections)
        cycles = {one: getattr(one, "cycle", None) for one in open_now}  # a WebSocket has none
        before, self._silent = self._silent, {}
        for one, cycle in cycles.items():
            unsent = _unsent(one)
            if cycle is None or cycle.response_complete or unsent:
                state = (cycle, cycle and cycle.scope.get(SENT), unsent)
                last, since = before.get(one, (state, now))
                self._silent[one] = (state, since if last == state else now)
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


def _unsent(connection: Any) -> int:
    """Bytes that wait in this process for a connection's client."""
    try:
        return int(connection.transport.get_write_buffer_size())
    except (AttributeError, RuntimeError):  # a WebSocket has none; another thread may change them just now
        return 0


def _from_proxy(address: str) -> bool:
    """True for a peer that may be a proxy: all visitors come from its address."""
    return limits.current().hosted and is_private(address)


def stop(server: Any) -> None:
    """Have the thread that answers requests answer no more, for the end of this process: a flood of them
    would take the time in which visitors' files are removed."""
    for listening in getattr(server, "servers", ()):
        listening.get_loop().call_soon_threadsafe(time.sleep, 3600)


def watch(server: Any) -> None:
    """Watch the connections of ``server`` as long as this process lives; new ones are bounded, and requests
    paced."""
    server.config.http_protocol_class = BoundedProtocol
    server.config.ws_protocol_class = None  # the page has none, and their heads have other bounds
    server.config.loaded_app = Paced(server.config.loaded_app)
    if os.name == "posix":
        import resource

        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        if soft < (wanted := min(DESCRIPTORS, hard)):
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    for listening in (one for each in getattr(server, "servers", ()) for one in each.sockets):
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, SENT_AHEAD)  # its connections inherit that
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
