"""Who asks: the address that a request comes from, and whether the page is open to strangers."""

from __future__ import annotations

from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from app import limits

FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip")
"""Headers that a proxy adds: behind one, an address of this machine is not the visitor's."""
LOOPBACK = ("127.0.0.1", "::1", "localhost", "testclient")


def address_of(scope: Scope) -> str:
    """The visitor's address: where the connection comes from, or what the nearest proxy says it is.

    Of ``X-Forwarded-For`` only the last entry counts, which the nearest proxy wrote: those before it are
    whatever the visitor has sent.
    """
    last = Headers(scope=scope).getlist("x-forwarded-for")
    if limits.current().hosted and last:
        return last[-1].rpartition(",")[2].strip() or _peer(scope)
    return _peer(scope)


def _peer(scope: Scope) -> str:
    return (scope.get("client") or ("unknown", 0))[0]


class HostedWatch:
    """Takes the limits of a hosted page from the first request on that came through a proxy or from another
    machine, unless ``EXPLORER_HOSTED`` has decided."""

    def __init__(self, app: ASGIApp) -> None:
        self.app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] == "http" and not limits.current().hosted:
            headers = Headers(scope=scope)
            for name in FORWARDED:
                if name in headers:
                    limits.found_hosted(f"a request carries {name}, so there is a proxy in front")
            if _peer(scope) not in LOOPBACK and not _peer(scope).startswith("127."):
                limits.found_hosted("a request comes from another machine")
        await self.app(scope, receive, send)
