"""Headers of every response, which say what the page may load and run, and the HTML of the page itself."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser

from starlette._utils import get_route_path
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import limits
from app.theme import HEAD, LATE_HEAD

NOWHERE = "page.invalid"
"""A host that no address has (RFC 2606)."""
CHUNK = 1 << 16
"""Bytes that are sent at a time."""
SPACES = " https://huggingface.co https://*.hf.space"
"""Sites that show a Space in a frame."""


def policy(scripts: tuple[str, ...] = ()) -> str:
    """Content security policy: nothing is loaded from or sent to another address, and of inline scripts only
    those with the texts ``scripts`` run."""
    hashes = "".join(f" 'sha256-{_digest(script)}'" for script in scripts)
    return "; ".join(
        (
            "default-src 'self'",
            # Gradio compiles the scripts of HTML components and of events.
            f"script-src 'self' 'unsafe-eval'{hashes}",
            "style-src 'self' 'unsafe-inline'",
            "img-src 'self' data: blob:",
            "font-src 'self' data:",
            "connect-src 'self'",
            "worker-src 'self' blob:",
            "object-src 'none'",
            "base-uri 'self'",
            "form-action 'self'",
            f"frame-ancestors 'self'{SPACES if limits.current().hosted else ''}",
        )
    )


HEADERS = {
    "x-content-type-options": "nosniff",
    "referrer-policy": "no-referrer",
    "permissions-policy": "camera=(), microphone=(), geolocation=()",
}


class SecurityHeaders:
    """Adds ``HEADERS`` to every response, and ``policy`` if the response has no policy."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("content-security-policy", policy())
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


@dataclass(frozen=True)
class _Page:
    """One HTML, its gzip form, and its policy."""

    body: bytes
    zipped: bytes
    policy: str

    @classmethod
    def of(cls, html: str) -> _Page:
        body = html.encode()
        return cls(body, gzip.compress(body, 6, mtime=0), policy((*inline_scripts(html), *_late_scripts())))


class PageHtml:
    """Answers ``/`` with Gradio's HTML, completed by the page's head.

    Gradio renders the HTML anew for each request, with the request's host in it. Here it is rendered once,
    for no request, with relative addresses. It is kept with its compressed form and its policy, which allows
    its inline scripts by their hashes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._page: _Page | None = None
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http" or get_route_path(scope) != "/":
            await self.app(scope, receive, send)
            return
        async with self._making:
            if self._page is None:
                self._page = await run_in_threadpool(_completed, await self._rendered(scope))
        page = self._page
        headers = Headers(scope=scope)
        zipped = "gzip" in headers.get("accept-encoding", "")
        body = page.zipped if zipped else page.body
        answer = {
            "content-type": "text/html; charset=utf-8",
            "content-length": str(len(body)),
            "content-security-policy": page.policy,
            "cache-control": "no-cache",
            "vary": "Accept-Encoding",
        } | ({"content-encoding": "gzip"} if zipped else {})
        raw = [(name.encode(), value.encode()) for name, value in answer.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        for start in range(0, len(body), CHUNK):  # what a slow client has not read is no copy of the page
            part, more = body[start : start + CHUNK], start + CHUNK < len(body)
            await send({"type": "http.response.body", "body": part, "more_body": more})
            await asyncio.sleep(0)  # a client that has left is noticed: asyncio logs what is sent to it

    async def _rendered(self, scope: Scope) -> str:
        """Gradio's HTML, asked for under a host that does not exist."""
        parts: list[bytes] = []

        async def received(message: Message) -> None:
            parts.append(message.get("body", b""))

        async def empty() -> Message:
            return {"type": "http.request", "body": b"", "more_body": False}

        bare: Scope = {
            "method": "GET",
            "query_string": b"",
            "headers": [(b"host", NOWHERE.encode())],
            "scheme": "http",
        }
        await self.app({**scope, **bare}, empty, received)
        return b"".join(parts).decode()


def _completed(html: str) -> _Page:
    return _Page.of(_with_head(html.replace(f"http://{NOWHERE}", ".")))


def _with_head(html: str) -> str:
    """``html`` with the page's head at the end of its own."""
    before, end, after = html.partition("</head>")
    return f"{before}{HEAD}{end}{after}"


def inline_scripts(html: str) -> tuple[str, ...]:
    """The inline scripts of ``html``."""
    parser = _Scripts()
    parser.feed(html)
    parser.close()
    return tuple(parser.found)


@cache
def _late_scripts() -> tuple[str, ...]:
    """Scripts that Gradio's own puts into the page's head."""
    return inline_scripts(LATE_HEAD)


def _digest(script: str) -> str:
    return base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()


class _Scripts(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.found: list[str] = []
        self._inside = False

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        self._inside = tag == "script" and "src" not in dict(attributes)
        if self._inside:
            self.found.append("")

    def handle_endtag(self, tag: str) -> None:
        self._inside = False

    def handle_data(self, data: str) -> None:
        if self._inside:
            self.found[-1] += data
