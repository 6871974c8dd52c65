"""Origin of requests: the client's address, and whether the page is public."""

from __future__ import annotations

import re
from ipaddress import ip_address, ip_network
from urllib.parse import urlsplit

from starlette.datastructures import Headers
from starlette.types import Scope

from app import limits

FORWARDED = ("x-forwarded-for", "forwarded", "x-real-ip")
"""Headers that a proxy adds: behind one, an address of this machine is not the visitor's."""
LOOPBACK = ("127.0.0.1", "::1", "localhost")


def address_of(scope: Scope) -> str:
    """The visitor's address: where the connection comes from, or what the nearest proxy says it is; of IPv6
    the network of 64 bits, which one visitor has as a whole.

    Of ``X-Forwarded-For`` only the last entry counts, which the nearest proxy wrote, and only where the
    connection comes from a private address, as a proxy's does: anything else is what the visitor has sent.
    """
    peer, last = _peer(scope), Headers(scope=scope).getlist("x-forwarded-for")
    if last and limits.current().hosted and is_private(peer):
        peer = last[-1].rpartition(",")[2].strip() or peer
    return network_of(peer)


def is_private(peer: str) -> bool:
    try:
        return ip_address(peer).is_private
    except ValueError:  # a socket of this machine has no address
        return True


def network_of(address: str) -> str:
    """The network that counts as one visitor; a proxy may write a port after the address."""
    bare = re.fullmatch(r"\[(.*)\](?::\d+)?|([\d.]+):\d+", address)
    try:
        known = ip_address((bare[1] or bare[2]) if bare else address)
    except ValueError:
        return address
    known = getattr(known, "ipv4_mapped", None) or known
    return str(ip_network(f"{known}/64", strict=False)) if known.version == 6 else str(known)


def _peer(scope: Scope) -> str:
    return (scope.get("client") or ("unknown", 0))[0]


OTHERS = ("cross-site", "same-site")
"""What browsers say in ``Sec-Fetch-Site`` of a request of another site (Fetch Metadata, W3C)."""


def of_another_site(scope: Scope) -> bool:
    """True if the request comes from another site, while this page runs on its visitor's own machine. A
    hosted page may be reached under a name that it does not know."""
    headers = Headers(scope=scope)
    origin = headers.get("origin")
    if limits.current().hosted:
        return False
    if origin is None:
        return scope["method"] not in ("GET", "HEAD") and headers.get("sec-fetch-site") in OTHERS
    try:
        address = urlsplit(origin)
    except ValueError:  # no address
        return True
    return address.scheme not in ("http", "https") or address.netloc != headers.get("host")


def note_proxies(scope: Scope) -> None:
    """Take the limits of a hosted page from the first request on that came through a proxy or from another
    machine, unless ``EXPLORER_HOSTED`` has decided. A request of another site, or to an address that is not
    served, decides nothing."""
    if not limits.current().hosted:
        headers = Headers(scope=scope)
        for name in FORWARDED:
            if name in headers:
                limits.found_hosted(f"a request carries {name}, so there is a proxy in front")
        if _peer(scope) not in LOOPBACK and not _peer(scope).startswith("127."):
            limits.found_hosted("a request comes from another machine")
