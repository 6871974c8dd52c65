"""Routes that the page answers: every route of Gradio's server, and whether the page needs it.

An address that no served route has is refused before Gradio sees it, so that a route which fetches, writes or
runs something is not reached because nobody knew of it. Files are answered here: Gradio's own route for them
also streams any address of the web, and shows what a visitor uploaded as a page of this site.
"""

from __future__ import annotations

import mimetypes
import re
import unicodedata
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import parse_qsl

from gradio.routes import API_PREFIX
from starlette._utils import get_route_path
from starlette.requests import Request
from starlette.responses import FileResponse, JSONResponse, Response
from starlette.routing import Route as Address
from starlette.routing import compile_path
from starlette.types import Scope

from app.serving import uploads
from app.theme import ASSETS, SCRIPT

NAME_LENGTH = 64
"""Characters of a session, an event or an upload: a browser sends 32 at most, and the server keeps them."""
_NAME = re.compile(rf"[A-Za-z0-9._:-]{{1,{NAME_LENGTH}}}")
UNKNOWN = "this page has no such address"
SANDBOX = "default-src 'none'; sandbox"
"""The policy of a visitor's file: opened in a browser it runs nothing, and is of no site."""


@dataclass(frozen=True)
class Route:
    """One route of the server: path and methods as in Starlette, whether it is served, and its purpose."""

    path: str
    methods: tuple[str, ...]
    served: bool
    use: str


def _both(path: str, methods: tuple[str, ...], served: bool, use: str) -> tuple[Route, Route]:
    """The route with and without a slash at its end."""
    return Route(path, methods, served, use), Route(f"{path}/", methods, served, use)


GET, POST, READ = ("GET",), ("POST",), ("GET", "HEAD")
ROUTES: tuple[Route, ...] = (
    # the page
    Route("/", READ, True, "the page's HTML"),
    *_both("/config", GET, True, "the page's components, for clients"),
    Route("/assets/{path:path}", GET, True, "Gradio's scripts and styles"),
    Route("/static/{path:path}", GET, True, "Gradio's pictures and fonts"),
    Route("/theme.css", GET, True, "the theme"),
    Route(f"{API_PREFIX}/theme.css", GET, True, "the theme"),
    Route("/page.js", READ, True, "the page's own scripts"),
    Route("/favicon.ico", GET, True, "the icon"),
    Route("/manifest.json", GET, True, "name and icon, for browsers"),
    Route("/robots.txt", GET, True, "for crawlers"),
    Route("/health", READ, True, "whether the page answers"),
    Route("/metrics", READ, True, "counts, for Prometheus"),
    Route("/picture/{name}.png", READ, True, "the photograph of Learn, under a scheme"),
    # requests and their answers
    *_both(f"{API_PREFIX}/info", GET, True, "the endpoints and their parameters, for clients"),
    Route(f"{API_PREFIX}/openapi.json", GET, True, "the same as OpenAPI"),
    *_both(f"{API_PREFIX}/app_id", GET, True, "by which a page sees that the server was started anew"),
    Route(f"{API_PREFIX}/startup-events", GET, True, "asked by Gradio itself as it starts"),
    Route(f"{API_PREFIX}/queue/join", POST, True, "a request from the page or a client"),
    Route(f"{API_PREFIX}/queue/data", GET, True, "its answers, as a stream"),
    Route(f"{API_PREFIX}/queue/status", GET, True, "how many requests wait"),
    *_both(f"{API_PREFIX}/call/{{api_name}}", POST, True, "a request from a program"),
    Route(f"{API_PREFIX}/call/{{api_name}}/{{event_id}}", GET, True, "its answers, as a stream"),
    *_both(f"{API_PREFIX}/call/v2/{{api_name}}", POST, True, "a request with named parameters"),
    Route(f"{API_PREFIX}/call/v2/{{api_name}}/{{event_id}}", GET, True, "its answers, as a stream"),
    *_both(f"{API_PREFIX}/component_server", POST, True, "a view of a section: ``functions``"),
    *_both(f"{API_PREFIX}/run/{{api_name}}", POST, False, "handlers that do not wait: the page has none"),
    Route(f"{API_PREFIX}/cancel", POST, True, "Stop"),
    *_both(f"{API_PREFIX}/reset", POST, True, "does nothing; older clients ask it"),
    Route(f"{API_PREFIX}/heartbeat/{{session_hash}}", GET, True, "open as long as a page is"),
    # files
    Route(f"{API_PREFIX}/upload", POST, True, "a visitor's file comes in"),
    Route(f"{API_PREFIX}/upload_progress", GET, True, "how much of it has"),
    Route(f"{API_PREFIX}/file={{path:path}}", READ, True, "``file`` below"),
    Route(f"{API_PREFIX}/file={{path_or_url:path}}", READ, False, "Gradio's: fetches addresses"),
    Route(f"{API_PREFIX}/file/{{path:path}}", GET, False, "its former name; fetches addresses too"),
    Route(f"{API_PREFIX}/proxy={{url_path:path}}", READ, False, "fetches from Spaces"),
    Route(f"{API_PREFIX}/deep_link", GET, False, "writes what is shown to the disk"),
    Route("/svelte/{path:path}", GET, False, "for components that are not Gradio's own"),
    Route(
        f"{API_PREFIX}/custom_component/{{id}}/{{environment}}/{{type}}/{{file_name}}", GET, False, "the same"
    ),
    Route(f"{API_PREFIX}/process_recording", POST, False, "writes a recording to the disk"),
    Route("/pwa_icon", GET, False, "resizes an icon that the page does not have"),
    Route("/pwa_icon/{size}", GET, False, "the same, to any size"),
    # streams of sound and video
    Route(f"{API_PREFIX}/stream/{{event_id}}", POST, False, "the page has none"),
    Route(f"{API_PREFIX}/stream/{{event_id}}/close", POST, False, "the same"),
    *(
        Route(f"{API_PREFIX}/stream/{{session_hash}}/{{run}}/{{component_id}}/{name}", GET, False, "the same")
        for name in ("playlist.m3u8", "playlist-file", "{segment_id}.{ext}")
    ),
    # users, of whom the page knows none
    *_both("/login", POST, False, "no users"),
    Route("/logout", GET, False, "no users"),
    *_both(f"{API_PREFIX}/user", GET, False, "no users"),
    *_both(f"{API_PREFIX}/token", GET, False, "no users"),
    *_both(f"{API_PREFIX}/login_check", GET, False, "no users"),
    # what Gradio offers to authors of pages
    *_both(f"{API_PREFIX}/api/{{api_name}}", POST, False, "the former name of /run"),
    Route("/openapi.json", READ, False, "the server's own routes"),
    Route(f"{API_PREFIX}/dev/reload", GET, False, "reloads the page while it is written"),
    Route("/monitoring", GET, False, "/metrics has what we count"),
    Route("/monitoring/summary", GET, False, "the same"),
    Route("/monitoring/{key}", GET, False, "starts a page of its own"),
    *_both(f"{API_PREFIX}/runs", GET, False, "run history, which is off"),
    Route(f"{API_PREFIX}/run-history/connect", POST, False, "the same; talks to the Hub"),
    Route(f"{API_PREFIX}/run-history/buckets", GET, False, "the same"),
    Route(f"{API_PREFIX}/run-history/records", GET, False, "the same"),
    Route(
        f"{API_PREFIX}/run-history/records/{{endpoint}}/{{record_id}}/assets/{{asset_id}}",
        GET,
        False,
        "the same",
    ),
    *_both(f"{API_PREFIX}/vibe-edit", POST, False, "has the page's code rewritten"),
    *_both(f"{API_PREFIX}/undo-vibe-edit", POST, False, "the same"),
    *_both(f"{API_PREFIX}/vibe-code", ("GET", "POST"), False, "the same"),
    *_both(f"{API_PREFIX}/vibe-starter-queries", POST, False, "the same"),
)  # fmt: skip
_SERVED = [(compile_path(route.path)[0], route) for route in ROUTES if route.served]
_NAMES = ("session_hash", "event_id", "api_name", "upload_id")
"""Parameters of addresses that the server keeps."""
LONGEST_PART, LONGEST_PATH = 255, 2048
"""Bytes of a part of a path, and of all: file systems take no longer names, and Gradio asks them for any."""
UPLOAD, JOIN, DATA, CANCEL = (
    f"{API_PREFIX}/{end}" for end in ("upload", "queue/join", "queue/data", "cancel")
)
CALL, CALL_BY_NAME = f"{API_PREFIX}/call/", f"{API_PREFIX}/call/v2/"


def asked(scope: Scope) -> tuple[str, dict[str, str]]:
    """The path of the route of ``ROUTES`` that a request asks for, without a slash at its end, and the values
    in its address; "" if it is not served. (Names in addresses are a client's: ``/call/upload`` is no
    upload.)"""
    path = get_route_path(scope)
    for pattern, route in _SERVED:
        match = pattern.match(path) if scope["method"] in route.methods else None
        if match is not None:
            return route.path.rstrip("/") or "/", match.groupdict()
    return "", {}


def served(scope: Scope) -> bool:
    """True if a request names a served address of ``ROUTES``, and only our own files."""
    route, named = asked(scope)
    if route.startswith(f"{API_PREFIX}/file="):
        return file_of(named["path"]) is not None
    path = scope["path"].encode(errors="replace")
    parts = path.split(b"/")
    if not route or b".." in parts or len(path) > LONGEST_PATH or max(map(len, parts)) > LONGEST_PART:
        return False
    query = dict(parse_qsl(scope.get("query_string", b"").decode("latin-1"), keep_blank_values=True))
    return all(is_name(given) for name, given in (query | named).items() if name in _NAMES)


def is_name(text: str) -> bool:
    """True if ``text`` is a valid name of a session, an event or an upload: 1 to 64 letters, digits and marks
    of ASCII. An empty name stops Gradio's queue; with "<gradio-sep>" in a name, Gradio cancels nothing."""
    return _NAME.fullmatch(text) is not None


def is_path(text: str) -> bool:
    """True if ``text`` is a valid file path: without control characters and line breaks. Spaces of every
    script are allowed."""
    return not any(unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") for letter in text)


def file_of(text: str) -> Path | None:
    """The file of the page or of a visitor that ``text``, decoded once, is the absolute path of; None for
    everything else, whether it exists or not."""
    return (uploads.named_in(ASSETS, text) or uploads.of_store(text)) if is_path(text) else None


async def file(request: Request) -> Response:
    """A file of the page as it is, or a visitor's to be saved: it is shown as no page, and runs nothing."""
    path = file_of(request.path_params["path"])
    if path is None or not path.suffix:  # Gradio's scripts take "config" beside a page for its description
        return unknown()
    if path.is_relative_to(ASSETS.resolve()):
        kind, _ = mimetypes.guess_type(path)
        return FileResponse(path, media_type=kind, filename=path.name, content_disposition_type="inline")
    return FileResponse(
        path,
        media_type="application/octet-stream",
        filename=path.name,
        headers={"content-security-policy": SANDBOX},
    )


def unknown() -> JSONResponse:
    """The response to requests that are not served."""
    return JSONResponse({"detail": UNKNOWN}, 404)


async def script(request: Request) -> Response:
    """The page's scripts, which a browser keeps: their address changes with them."""
    forever = {"cache-control": "public, max-age=31536000, immutable"}
    return Response(SCRIPT, media_type="text/javascript; charset=utf-8", headers=forever)


SCRIPTS = Address("/page.js", script, methods=["GET"])
FILE = Address(f"{API_PREFIX}/file={{path:path}}", file)
"""Stands before Gradio's route of the same address."""
