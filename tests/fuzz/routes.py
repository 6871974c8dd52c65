"""Odd requests to the server that the page is behind: any method, address, header and body."""

from __future__ import annotations

import asyncio
import json
import os
import random
import tempfile
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import Any
from unittest.mock import patch
from urllib.parse import quote

import gradio as gr
import httpx
import safehttpx
from gradio.routes import API_PREFIX, App

from app import limits
from app.serving import addresses, functions, guard, uploads
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
FORM = b"multipart/form-data; boundary=b"
NAMES = ("view", "__class__", "postprocess", "get_config", "server_fns", "launch", "view.__globals__", "_id")
"""Functions and other attributes of a component."""


class WentOutError(Exception):
    """The server asked an address, gave away a file that is not ours, or did not answer once."""


@cache
def server() -> Any:
    """A small page behind all that the real one is behind; nothing of it runs what is asked."""
    os.environ.setdefault("GRADIO_TEMP_DIR", tempfile.mkdtemp(prefix="fuzz-"))
    from app import start as entry  # it takes seconds

    with gr.Blocks() as blocks:
        name = gr.Textbox()
        name.submit(lambda text: text, name, name, api_name="said")
        gr.HTML(server_functions=[view])
    blocks.queue(**entry.queue_options())
    # What ``launch`` sets.
    blocks.max_file_size, blocks.theme, blocks.theme_css = 1 << 20, gr.themes.Base(), ""
    blocks.config = blocks.get_config_file()
    return App.create_app(blocks, app_kwargs=entry.launch_options()["app_kwargs"]), asyncio.new_event_loop()


def view(query: Any) -> Any:
    """A server function that is given a flat object of texts, and nothing else."""
    texts = [*query, *query.values()] if isinstance(query, dict) else [query]
    if not all(isinstance(text, str) and text.encode() is not None for text in texts):
        raise WentOutError(f"a view was given {query!r}")
    return query


def _path(rng: random.Random) -> str:
    """An address of the server's, filled with odd values, with other letters, slashes and escapes."""
    path = rng.choice(addresses.ROUTES).path if rng.random() < 0.6 else "/gradio_api/file={path}"
    while "{" in path:
        before, _, rest = path.partition("{")
        value = rng.choice(FOREIGN) if rng.random() < 0.6 else _utf8(str(rng.choice(ODDITIES[:-3])))[:300]
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


def _call(rng: random.Random) -> bytes:
    """The body of a call of a server function, mostly with something in it that should not be there."""
    number = server()[0].get_blocks().blocks
    good = {
        "data": {"a": "1", "b": words(rng, FOREIGN)},
        "fn_name": rng.choice(("view", rng.choice(NAMES))),
        "session_hash": rng.choice("st"),
        "component_id": rng.choice((max(number), *number)),
    }
    body = json.dumps(good if rng.random() < 0.2 else odd(rng, good), default=str).encode()
    return mutated(rng, body) if rng.random() < 0.2 else body


def request(rng: random.Random) -> Any:
    """A case: one request, answered once, without a failure of the server, and by no other address."""
    path, body = _path(rng), _body(rng)
    method = rng.choice(METHODS[:3] if rng.random() < 0.8 else METHODS)
    query = rng.choice(("", f"session_hash={words(rng, FOREIGN)}", "upload_id=u", "x=%", "deep_link=a"))
    scope = _scope(method, path, query, _headers(rng))
    return lambda: _answered(scope, body)


def bodies(rng: random.Random) -> Any:
    """A case: uploads and calls at once, whose bodies come in pieces, are longer or shorter than said, stop
    or are broken off. Each is answered once at most, and nothing of them is held afterwards."""
    form = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a"\r\n\r\n%b\r\n--b--\r\n'
    requests = []
    for _ in range(rng.choice((1, 1, 8, 40))):
        upload = rng.random() < 0.5
        path = f"{API_PREFIX}/upload" if upload else rng.choice((functions.PATH, f"{API_PREFIX}/queue/join"))
        whole = form % (b"x" * rng.choice((0, 9, 1 << 16))) if upload else _call(rng)
        whole = mutated(rng, whole) if rng.random() < 0.2 else whole
        kinds = [b"application/json"] * 5 + [FORM, b"text/plain", b""]
        kind = FORM if upload else rng.choice(kinds)
        claims = rng.choice((b"", b"%d" % len(whole), b"0", b"1048576", b"%d" % (1 << 40)))
        headers = [(b"host", b"localhost"), (b"content-type", kind)]
        scope = _scope("POST", path, "", headers + ([(b"content-length", claims)] if claims else []))
        cuts = sorted(rng.randrange(len(whole) + 1) for _ in range(rng.randrange(6)))
        pieces = [whole[a:b] for a, b in pairwise((0, *cuts, len(whole)))]
        requests.append((scope, pieces, rng.choice(("stays", "stays", "ends", "stops", "breaks off"))))
    return lambda: _held_nothing(requests)


def _held_nothing(requests: list[tuple[dict[str, Any], list[bytes], str]]) -> None:
    app, loop = server()

    async def all_of_them() -> list[Any]:
        return await asyncio.gather(*(_asked(app, *one) for one in requests), return_exceptions=True)

    with (
        patch.object(limits, "_found", []),
        patch.multiple(guard, BODY_SECONDS=0.01, STALLED_SECONDS=0.01, LINGER_SECONDS=0.01),
    ):
        answers = loops.run(loop.run_until_complete, asyncio.wait_for(all_of_them(), 10))
    for (scope, pieces, how), found in zip(requests, answers, strict=True):
        if isinstance(found, BaseException):
            raise WentOutError(f"{scope['path']!r} {b''.join(pieces)[:200]!r}") from found
        statuses, _ = found
        if (len(statuses) != 1 and (statuses or how == "stays")) or any(status >= 500 for status in statuses):
            raise WentOutError(f"{scope['path']!r} {pieces[:2]!r}, which {how}: {statuses}")
    held = guard._bodies | guard._uploading | guard._joining
    left = [path.name for path in uploads.store().iterdir() if path.is_file()]
    if held or left or uploads.open_uploads():
        raise WentOutError(f"{held} is held, {left} is left")


def _scope(method: str, path: str, query: str, headers: list[tuple[bytes, bytes]]) -> dict[str, Any]:
    return {
        "type": "http",
        "asgi": {"version": "3.0"},
        "http_version": "1.1",
        "scheme": "http",
        "root_path": "",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": _utf8(query).encode(),
        "headers": headers,
        "client": ("127.0.0.1", 5),
        "server": ("localhost", 80),
    }


def _answered(scope: dict[str, Any], body: bytes) -> None:
    """Ask; ``WentOutError`` for an answer that must not be."""
    app, loop = server()
    asked = []

    async def went_out(*address: Any, **__: Any) -> None:
        asked.append(address)
        raise OSError("no network here")

    with (
        patch.object(httpx.AsyncClient, "send", went_out),
        patch.object(safehttpx, "async_validate_url", went_out),
        patch.object(limits, "_found", []),  # a case's proxy is of that case alone
    ):
        asking = asyncio.wait_for(_asked(app, scope, [body]), 10)
        statuses, answer = loops.run(loop.run_until_complete, asking)
    if asked:
        raise WentOutError(f"the server asked {asked[0]}")
    if len(statuses) > 1 or any(status >= 500 for status in statuses):
        raise WentOutError(f"{scope['method']} {scope['path']!r} {body[:200]!r}: {statuses}")
    if b"root:x:0" in answer or b"import annotations" in answer:
        raise WentOutError(f"{scope['path']!r} gave a file away")


async def _asked(
    app: Any, scope: dict[str, Any], pieces: list[bytes], how: str = "ends"
) -> tuple[list[int], bytes]:
    """The statuses that were answered, and the bytes. The visitor stays or leaves once the body has ended, or
    it stops or breaks off."""
    statuses: list[int] = []
    answer = bytearray()
    parts = iter(pieces if how in ("ends", "stays") else pieces[:-1])

    async def receive() -> Any:
        if (part := next(parts, None)) is not None:
            return {"type": "http.request", "body": part, "more_body": part is not pieces[-1]}
        if how in ("stops", "stays"):
            await asyncio.Event().wait()
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        if message["type"] == "http.response.start":
            statuses.append(message["status"])
        answer.extend(message.get("body", b""))

    await app(scope, receive, send)
    return statuses, bytes(answer)
