"""Requests to the Hub with two deadlines: for the beginning of the answer, and for its last byte.

The HTTP client comes from huggingface_hub, with the proxies and certificates that its user has set. ``HfApi``
and ``hf_hub_download`` accept an answer of any size, and their timeout starts anew with every byte that
arrives (tests/sources/lying_hub.py: "endless info", "dripping head"). Here a watch closes the request's
sockets when its time is up, however slowly the server sends.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import Any
from urllib.parse import quote

from huggingface_hub import constants

from explorer.progress import Progress, checkpoint
from explorer.sources.base import SourceError, UnreachableError, Watched
from explorer.sources.safetensors_header import parse_json
from explorer.sources.source_limits import SourceLimits

_SLOTS: dict[int, threading.BoundedSemaphore] = {}
_OFFLINE = "the Hub is switched off here (HF_HUB_OFFLINE)"
_CODES = {
    "GatedRepo": " is gated: accept its terms on the Hub and log in (hf auth login, or set HF_TOKEN)",
    "RevisionNotFound": ": the repository has no such revision",
    "RepoNotFound": ": no such model on the Hub, or it is private and no token is set",
}
"""Values of the Hub's X-Error-Code -> messages."""


class Visit:
    """One use of the Hub: the requests of opening the model ``repo``, or of reading one of its tensors.

    ``origin`` is the model's name in messages. Raises ``SourceError`` for every refusal of the Hub, and once
    the visit's time is up.
    """

    def __init__(self, repo: str, origin: str, endpoint: str | None, limits: SourceLimits) -> None:
        from huggingface_hub.utils import build_hf_headers  # slow to import, and of no use for a file

        self._repo, self._origin, self._limits = repo, origin, limits
        self._endpoint = endpoint or constants.ENDPOINT
        self._ends = time.monotonic() + limits.visit_seconds
        self._headers = build_hf_headers(token=None if limits.token else False)

    def about(self, revision: str | None) -> Any:
        """Ask the Hub's API about the repository, at ``revision`` if it is given; returns the parsed JSON."""
        at = f"/revision/{revision.replace('/', '%2F')}" if revision else ""
        body = self._get(
            f"{self._endpoint}/api/models/{self._repo}{at}", None, self._limits.header_bytes, None
        )
        return parse_json(body, self._origin, "answer of the Hub", self._limits)

    def file(self, name: str, commit: str, most: int) -> bytearray:
        """Fetch a whole file of the repository, of at most ``most`` bytes."""
        return self._get(self._url(name, commit), None, most, None)

    def span(
        self, name: str, commit: str, start: int, stop: int, progress: Progress | None = None
    ) -> bytearray:
        """Fetch the bytes [start, stop) of a file of the repository."""
        if start == stop:
            return bytearray()
        received = self._get(self._url(name, commit), (start, stop), stop - start, progress)
        if len(received) != stop - start:
            raise SourceError(
                f"{self._origin}: {name} ended after {len(received):,} of {stop - start:,} bytes"
            )
        return received

    def _url(self, name: str, commit: str) -> str:
        return f"{self._endpoint}/{self._repo}/resolve/{commit}/{quote(name)}"

    def _get(self, url: str, span: tuple[int, int] | None, most: int, progress: Progress | None) -> bytearray:
        from huggingface_hub.errors import HTTPError, OfflineModeIsEnabled

        if constants.HF_HUB_OFFLINE:
            raise SourceError(self._not_here(_OFFLINE))
        watch, watched = _Watch(), Watched(progress)
        try:
            with _slot(self._limits, self._left()):
                return self._body(url, span, most, watched, watch)
        except OfflineModeIsEnabled as error:
            raise SourceError(self._not_here(_OFFLINE)) from error
        except (HTTPError, OSError, ValueError, TypeError) as error:
            if isinstance(error, SourceError) or error is watched.stop:
                raise
            if watch.expired or "Timeout" in type(error).__name__:
                raise UnreachableError(
                    f"{self._origin}: the Hub did not answer within {watch.seconds:.0f} s"
                ) from error
            why = f"the Hub cannot be reached: {type(error).__name__}"
            raise UnreachableError(self._not_here(why)) from error
        finally:
            watch.end()

    def _not_here(self, why: str) -> str:
        """Say that the Hub was needed; the message mentions folders and caches only if they were searched."""
        if not self._limits.folders:
            return f"{self._origin}: {why}"
        return f"{self._origin} is neither a folder here nor in the local cache, and {why}"

    def _body(
        self, url: str, span: tuple[int, int] | None, most: int, progress: Progress, watch: _Watch
    ) -> bytearray:
        """Read the body of the answer to a GET; an answer beyond ``most`` bytes is refused."""
        from huggingface_hub import get_session

        headers = {**self._headers, "Accept-Encoding": "identity", "Connection": "close"}
        if span is not None:
            headers["Range"] = f"bytes={span[0]}-{span[1] - 1}"
        wait = min(self._limits.request_seconds, self._left())
        watch.start(wait)
        received, traced = bytearray(), {"trace": watch.trace}
        with get_session().stream(
            "GET", url, headers=headers, follow_redirects=True, timeout=wait, extensions=traced
        ) as response:
            watch.start(self._left())
            self._check_status(response)
            if span is not None and response.status_code != 206:
                raise SourceError(f"{self._origin}: the server sends whole files only (no range requests)")
            for piece in response.iter_raw():
                checkpoint()
                received += piece
                if len(received) > most:
                    raise SourceError(f"{self._origin}: more than the {most:,} bytes asked for were sent")
                progress(len(received), most)
        return received

    def _check_status(self, response: Any) -> None:
        """``SourceError`` unless the answer is a success; its body is not read."""
        if response.status_code in (200, 206):
            return
        code = response.headers.get("X-Error-Code", "")
        if code not in _CODES and response.status_code == 401:  # the Hub's answer for what does not exist
            code = "RepoNotFound"
        said = _CODES.get(code, f": the Hub answered {response.status_code}")
        if not self._limits.token and code in ("GatedRepo", "RepoNotFound"):  # logging in does not help
            said = " is gated, private or not on the Hub: this page reads public models only"
        raise SourceError(f"{self._origin}{said}")

    def _left(self) -> float:
        left = self._ends - time.monotonic()
        if left <= 0:
            raise SourceError(
                f"{self._origin}: reading from the Hub took more than {self._limits.visit_seconds:g} s"
            )
        return left


class _Watch:
    """Shuts a request's sockets down at its deadline; code waiting for them then gets an error."""

    def __init__(self) -> None:
        self.seconds, self.expired = 0.0, False
        self._sockets: list[socket.socket] = []
        self._timer: threading.Timer | None = None
        self._lock = threading.Lock()

    def start(self, seconds: float) -> None:
        """Count ``seconds`` from now."""
        self.end()
        self.seconds, self._timer = seconds, threading.Timer(seconds, self._expire)
        self._timer.daemon = True
        self._timer.start()

    def end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def trace(self, event: str, info: dict[str, Any]) -> None:
        """Remember new connections; the client calls this at each step of a request."""
        if event.endswith(("connect_tcp.complete", "start_tls.complete")):
            with self._lock:
                self._sockets.append(info["return_value"].get_extra_info("socket"))
            if self.expired:
                self._expire()

    def _expire(self) -> None:
        self.expired = True
        with self._lock:
            for opened in self._sockets:
                with suppress(OSError):  # closed already
                    opened.shutdown(socket.SHUT_RDWR)


@contextmanager
def _slot(limits: SourceLimits, wait: float) -> Iterator[None]:
    """Reserve one of the requests that may run at the same time."""
    slots = _SLOTS.setdefault(limits.requests, threading.BoundedSemaphore(limits.requests))
    if not slots.acquire(timeout=wait):
        raise SourceError("too many requests to the Hub are under way; try again in a minute")
    try:
        yield
    finally:
        slots.release()
