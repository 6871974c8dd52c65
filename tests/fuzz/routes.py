"""Odd requests to the server that the page is behind: any method, address, header and body."""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from functools import cache
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import gradio as gr
import httpx
import safehttpx
from gradio.routes import App

from app import limits
from app.serving import addresses
from tests import loops
from tests.fuzz.mutate import ODDITIES, mutated, odd, words

ROOT = Path(__file__).resolve().parents[2]
FOREIGN = (
    "http://127.0.0.1:9/x.png", "https://example.com/x.png", "//example.com", "data:text/html,x",
    "file:///etc/passwd", "/etc/passwd", "/proc/self/environ", "../../etc/passwd", "\\\\host\\x",
    "~/.ssh/id_rsa", str(ROOT / "app.py"), "",
)  # fmt: skip
METHODS = ("GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS", "TRACE", "get", "")
BODY = {
    "data": ["x"],
    "fn_index": 0,
    "session_hash": "s",
    "event_id": "e",
    "event_data": {"index": 1},
    "trigger_id": 1,
}


class WentOutError(Exception):
    """The server asked an address, gave away a file that is not ours, or did not answer once."""


@cache
def _server() -> Any:
    """A small page behind all that the real one is behind; nothing of it runs what is asked."""
    os.environ.setdefault("GRADIO_TEMP_DIR", tempfile.mkdtemp(prefix="fuzz-"))
    from app import start as entry  # it takes seconds

    with gr.Blocks() as blocks:
        name = gr.Textbox()
        name.submit(lambda text: text, name, name, api_name="said")
    blocks.queue(**entry.queue_options())
    # What ``launch`` sets.
    blocks.max_file_size, blocks.theme, blocks.theme_css = 1 << 20, gr.themes.Base(), ""
    blocks.config = blocks.get_config_file()
    return App.create_app(blocks, app_kwargs=entry.launch_options()["app_kwargs"]), asyncio.new_event_loop()


def _path(rng: random.Random) -> str:
    """An address of the server's, filled with odd values, with other letters, slashes and escapes."""
    path = rng.choice(addresses.ROUTES).path if rng.random() < 0.6 else "/gradio_api/file={path}"
    while "{" in path:
        before, _, rest = path.partition("{")
        value = rng.choice(FOREIGN) if rng.random() < 0.6 else _utf8(str(rng.choice(ODDITIES[:-3])))[:200]
        path = before + (quote(value, safe="") if rng.random() < 0.3 else value) + rest.partition("}")[2]
    if rng.random() < 0.2:
        path = (
            path.upper()
            if rng.random() < 0.3
            else path.replace("/", rng.choice(("//", "/./", "\\", "%2F", "/../")), 1)
        )
    if rng.random() < 0.2:
        path = mutated(rng, path.encode()).decode("latin-1")
    return path


def _utf8(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def _headers(rng: random.Random) -> list[tuple[bytes, bytes]]:
    known = {
        "content-type": ("application/json", "multipart/form-data; boundary=b", "text/html", ""),
        "content-length": ("0", "-1", "9" * 30, "abc", "5"),
        "range": ("bytes=0-9", "bytes=5-1", "bytes=-", "bytes=0-0,1-1", "x"),
        "x-forwarded-for": ("192.0.2.1", "x" * 300, ""),
        "origin": ("http://evil.example", "null", "http://localhost"),
        "cookie": ("a=b",),
        "if-none-match": ("*",),
    }
    chosen = rng.sample(list(known), rng.randrange(4))
    found = [(name.encode(), rng.choice(known[name]).encode()) for name in chosen]
    return [(b"host", b"localhost"), *found]


def _body(rng: random.Random) -> bytes:
    kind = rng.randrange(4)
    if kind == 0:
        return mutated(rng, json.dumps(BODY).encode())
    if kind == 1:
        return json.dumps(odd(rng, BODY), default=str).encode()
    if kind == 2:
        form = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\nx\r\n--b--\r\n'
        return mutated(rng, form)
    return words(rng, ("{", "[", "null", '"x"', "1e999", "]")).encode("utf-8", "replace")


def request(rng: random.Random) -> Any:
    """A case: one request, answered once, without a failure of the server, and by no other address."""
    path, body = _path(rng), _body(rng)
    method = rng.choice(METHODS[:3] if rng.random() < 0.8 else METHODS)
    query = rng.choice(("", f"session_hash={words(rng, FOREIGN)}", "upload_id=u", "x=%", "deep_link=a"))
    scope = {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": _utf8(query).encode(),
        "headers": _headers(rng),
        "client": ("127.0.0.1", 5),
        "server": ("localhost", 80),
    }

    def run() -> None:
        app, loop = _server()
        work = asyncio.wait_for(_asked(app, scope, body), 10)
        statuses, answer = loops.run(loop.run_until_complete, work)
        if len(statuses) > 1 or any(status >= 500 for status in statuses):
            raise WentOutError(f"{scope['method']} {path!r}: {statuses}")
        if b"root:x:0" in answer or b"import annotations" in answer:
            raise WentOutError(f"{path!r} gave a file away")

    return run


async def _asked(app: Any, scope: dict[str, Any], body: bytes) -> tuple[list[int], bytes]:
    """The statuses that were answered, and the bytes; the visitor leaves once the body is sent."""
    parts = [{"type": "http.request", "body": body, "more_body": False}]
    statuses: list[int] = []
    answer = bytearray()

    async def receive() -> Any:
        return parts.pop() if parts else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        answer.extend(message.get("body", b""))

    asked = []

    async def went_out(*address: Any, **__: Any) -> None:
        asked.append(address)
        raise OSError("no network here")

    with (
        patch.object(httpx.AsyncClient, "send", went_out),
        patch.object(safehttpx, "async_validate_url", went_out),
        patch.object(limits, "_found", []),  # a case's proxy is of that case alone
    ):
        await app(scope, receive, send)
    if asked:
        raise WentOutError(f"the server asked {asked[0]}")
    return statuses, bytes(answer)
