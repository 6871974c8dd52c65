"""Headers of every response, which say what the page may load and run, and the HTML of the page itself."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Callable
from functools import cache
from html.parser import HTMLParser

from starlette.concurrency import run_in_threadpool
from starlette.datastructures import MutableHeaders
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from app import limits
from app.theme import HEAD, LATE_HEAD

GRADIOS = "window.gradio_config"
"""What only the page's own HTML holds."""
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


class PageHtml:
    """Adds to Gradio's HTML the page's head, which runs before Gradio's scripts, and what ``complete`` adds
    for an address's query. Allows its inline scripts by their hashes. Bodies are not compressed yet here.
    """

    def __init__(self, app: ASGIApp, complete: Callable[[str, str], str]) -> None:
        self.app, self.complete = app, complete

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        start: Message = {}
        body = b""

        async def completed(message: Message) -> None:
            nonlocal start, body
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                if headers.get("content-type", "").startswith("text/html"):
                    start = message
                    return
            if not start:
                await send(message)
                return
            body += message.get("body", b"")
            if not message.get("more_body", False):
                headers = MutableHeaders(scope=start)
                html = body.decode("utf-8", "replace")
                if GRADIOS in html:
                    query = scope["query_string"].decode("latin-1")
                    html = await run_in_threadpool(self.complete, _with_head(html), query)
                    body = html.encode()
                    headers["content-length"] = str(len(body))
                headers["content-security-policy"] = policy((*inline_scripts(html), *_late_scripts()))
                await send(start)
                await send({"type": "http.response.body", "body": body})

        await self.app(scope, receive, completed if scope["type"] == "http" else send)


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
