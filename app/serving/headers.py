"""Headers of every response, which say what the page may load and run, and answers that are made once."""

from __future__ import annotations

import asyncio
import base64
import gzip
import hashlib
import json
import re
from dataclasses import dataclass
from functools import cache
from html.parser import HTMLParser

from gradio import route_utils
from gradio.routes import API_PREFIX
from starlette._utils import get_route_path
from starlette.concurrency import run_in_threadpool
from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import Request
from starlette.responses import JSONResponse
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import limits
from app.theme import ASSETS, HEAD, LATE_HEAD

NOWHERE = "page.invalid"
"""A host that no address has (RFC 2606)."""
SENT = "explorer.sent"
"""Where a request's scope says how many messages of its answer were taken."""
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
    """Adds ``HEADERS`` to every response, and ``policy`` if the response has no policy; counts under ``SENT``
    in the scope what the client has taken of it. A file has an encoding: else Gradio would compress it as it
    is sent."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def with_headers(message: Message) -> None:
            scope[SENT] = scope.get(SENT, 0) + 1
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                headers.update(HEADERS)
                headers.setdefault("content-security-policy", policy())
                if "." in scope["path"]:
                    headers.setdefault("content-encoding", "identity")
            await send(message)

        await self.app(scope, receive, with_headers if scope["type"] == "http" else send)


@dataclass(frozen=True)
class _Answer:
    """One answer for everybody, its gzip form, the headers that it has, and whether ``NOWHERE`` in it stands
    for the page."""

    body: bytes
    zipped: bytes
    headers: dict[str, str]
    names_page: bool = False

    @classmethod
    def of(cls, path: str, body: bytes, given: Headers) -> _Answer:
        if path not in DESCRIPTIONS:
            headers = {name: given[name] for name in KEPT if name in given}
            return cls(body, gzip.compress(body, 6, mtime=0), headers)
        text, headers = body.decode(), {"content-type": "application/json", "cache-control": "no-store"}
        if "/info" not in path:  # its examples name the page
            text = text.replace(f"http://{NOWHERE}", ".")
        if path == "/":
            text = _with_head(text)
            own = policy((*inline_scripts(text), *_late_scripts()))
            headers = {"content-type": HTML, "cache-control": "no-cache", "content-security-policy": own}
        body = text.encode()
        return cls(body, gzip.compress(body, 6, mtime=0), headers, NOWHERE in text)


HTML = "text/html; charset=utf-8"
INFO, NAMED_CALLS = f"{API_PREFIX}/info", f"{API_PREFIX}/call/v2/"
DESCRIPTIONS = ("/", *(f"{path}{end}" for path in ("/config", INFO) for end in ("", "/")),
                f"{API_PREFIX}/openapi.json")  # fmt: skip
"""The page, and what describes it for programs."""
KEPT = ("content-type", "content-disposition", "cache-control", "etag", "last-modified")
"""Headers of an asset that are kept with it."""
_FOLDERS = f"/assets|/static|{API_PREFIX}/file={re.escape(ASSETS.as_posix())}"
_ASSET = re.compile(rf"({_FOLDERS})(/[\w@-][\w@.-]*)+|({API_PREFIX})?/theme\.css|/page\.js", re.ASCII)
"""Addresses of files of the page, each written in one way."""


class MadeOnce:
    """Answers what is the same for everybody: the page's HTML, completed by its head, what programs ask for
    first (``DESCRIPTIONS``), and scripts, styles and pictures.

    Gradio makes the page and its descriptions anew for each request, with the request's host in them, or
    keeps what the first one named; an asset it compresses in the server's own thread while it is sent, with
    some 8 MB for each client. Here each is made once, for no request, with relative addresses, and kept with
    its compressed form; the HTML's policy allows its inline scripts by their hashes.
    """

    def __init__(self, app: ASGIApp) -> None:
        self.app = app
        self._kept: dict[tuple[str, bytes], _Answer] = {}
        self._making = asyncio.Lock()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = get_route_path(scope) if scope["type"] == "http" else ""
        if path.startswith(NAMED_CALLS):  # of which Gradio keeps the first one's host for ``INFO``
            await self._ready((INFO, b""), scope)
        if path not in DESCRIPTIONS and not _ASSET.fullmatch(path):
            await self.app(scope, receive, send)
            return
        query = b"all_endpoints=true" if b"all_endpoints" in scope["query_string"] else b""
        key = path, query if path in DESCRIPTIONS else b""
        if (status := await self._ready(key, scope)) != 200:  # the next one may succeed
            words = "the page could not be made" if status >= 500 else "this page has no such address"
            await JSONResponse({"detail": words}, status)(scope, receive, send)
            return
        kept = self._kept[key]
        headers, body = {**kept.headers, "vary": "Accept-Encoding"}, kept.body
        if kept.names_page:
            root = str(route_utils.get_root_url(Request(scope), path, None))
            body = body.replace(f"http://{NOWHERE}".encode(), json.dumps(root)[1:-1].encode())
        elif takes_gzip(scope) and len(kept.zipped) < len(body):
            headers["content-encoding"], body = "gzip", kept.zipped
        headers["content-length"] = str(len(body))
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        await send({"type": "http.response.start", "status": 200, "headers": raw})
        await in_pieces(body, send)

    async def _ready(self, key: tuple[str, bytes], scope: Scope) -> int:
        """Make an answer, unless it is kept; its status."""
        if key in self._kept:
            return 200
        async with self._making:
            return 200 if key in self._kept else await self._make(key, scope)

    async def _make(self, key: tuple[str, bytes], scope: Scope) -> int:
        """Keep Gradio's answer, asked for under a host that does not exist; its status."""
        status, parts, given = 500, list[bytes](), Headers()
        unread: list[Message] = [{"type": "http.request", "body": b"", "more_body": False}]

        async def received(message: Message) -> None:
            nonlocal status, given
            if message["type"] == "http.response.start":
                status, given = message["status"], Headers(raw=message["headers"])
            parts.append(message.get("body", b""))

        async def request() -> Message:
            if not unread:
                await asyncio.Event().wait()  # until the client leaves, which it does not
            return unread.pop()

        headers = [(b"host", NOWHERE.encode())]
        path = scope.get("root_path", "") + key[0]
        bare: Scope = {"method": "GET", "path": path, "raw_path": path.encode(), "scheme": "http"}
        await self.app({**scope, **bare, "query_string": key[1], "headers": headers}, request, received)
        if status == 200:
            self._kept[key] = await run_in_threadpool(_Answer.of, key[0], b"".join(parts), given)
        return status


def takes_gzip(scope: Scope) -> bool:
    """True if a request's client takes what is compressed by gzip."""
    return "gzip" in Headers(scope=scope).get("accept-encoding", "")


async def in_pieces(body: bytes, send: Send) -> None:
    """Send the body of a response as its client takes it: what a slow one has not read is no copy of it."""
    for start in range(0, len(body), CHUNK):
        part, more = body[start : start + CHUNK], start + CHUNK < len(body)
        await send({"type": "http.response.body", "body": part, "more_body": more})
        await asyncio.sleep(0)  # a client that has left is noticed: asyncio logs what is sent to it


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
