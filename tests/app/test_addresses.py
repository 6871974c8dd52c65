"""Which addresses the page answers, and what a browser may do with the files among them.

If these fail, the server fetches addresses for strangers, runs what a stranger's file says as the page's own
script, or serves a route of Gradio that nobody has looked at.
"""

from __future__ import annotations

import ast
import base64
import copy
import hashlib
import os
import re
from collections.abc import Iterator
from pathlib import Path
from queue import Queue
from typing import Any
from urllib.parse import quote

import gradio as gr
import httpx
import pytest
from starlette.testclient import TestClient

from app import limits
from app.serving import addresses, internals, uploads
from app.theme import ASSETS, HEAD
from explorer.paths import PLOTLY
from tests.app.test_serving import a_post

PREFIX = "/gradio_api"
REFUSED = str(len(addresses.unknown().body))
"""The length of our own answer to what is not served; Gradio's differ."""


def upload(client: TestClient, name: str = "a.csv", content: bytes = b"1,2") -> str:
    """The path of a visitor's file."""
    answer = client.post(f"{PREFIX}/upload", files={"files": (name, content)})
    assert answer.status_code == 200, answer.text
    return str(answer.json()[0])


def routes(found: Any) -> Iterator[tuple[str, str]]:
    """Every method and path of a list of routes; ``TypeError`` for what has no path."""
    for route in found:
        if (inner := getattr(route, "original_router", None)) is not None:
            prefix = route.include_context.prefix
            yield from ((method, prefix + path) for method, path in routes(inner.routes))
        elif hasattr(route, "path") and hasattr(route, "methods"):
            yield from ((method, route.path) for method in route.methods)
        else:
            raise TypeError(f"{route!r} is no route that this test can read")


def test_every_route_of_gradio_is_known(client: TestClient) -> None:
    """A new Gradio may add a route that fetches, writes or runs something: somebody has to read it."""
    found: Any = client.app
    there = set(routes(found.routes))
    assert len(there) > 60, "the routes were not found"
    known = {(method, route.path) for route in addresses.ROUTES for method in route.methods}
    assert there - known == set(), "not in addresses.ROUTES"
    assert known - there == set(), "in addresses.ROUTES, but not of this Gradio"


def test_what_is_not_served_is_refused_before_gradio(client: TestClient) -> None:
    """By our words: Gradio never saw it. A HEAD or POST of what is only read is refused too."""
    for route in addresses.ROUTES:
        path = re.sub(r"{[^}]*}", "1", route.path)
        methods = () if route.served else route.methods
        for method in (*methods, *(m for m in ("PUT", "DELETE", "PATCH") if "{" not in route.path)):
            answer = client.request(method, path)
            assert answer.status_code == 404 and answer.headers["content-length"] == REFUSED, (method, path)
    paths = ("/a.css", "/../a.css", "/a" * 900, "/a" * 7900)  # longer than the system takes: a traceback
    asked = [a_post(f"/static{path}", method="GET") for path in paths]
    assert [addresses.served(scope) for scope in asked] == [True, False, True, False]


FOREIGN = "http://127.0.0.1:9/x.png"
FETCHED = [
    f"{PREFIX}/file={FOREIGN}",
    f"{PREFIX}/file={quote(FOREIGN, safe='')}",
    f"{PREFIX}/file={quote(quote(FOREIGN, safe=''), safe='')}",
    f"{PREFIX}/file=HTTPS://example.com/x.png",
    f"{PREFIX}/file=%68ttp://example.com/x.png",
    f"{PREFIX}/file=//example.com/x.png",
    f"{PREFIX}/file=http:\\\\example.com\\x.png",
    f"{PREFIX}/file=\\\\example.com\\x.png",
    f"{PREFIX}/file= http://example.com/x.png",
    f"{PREFIX}/file=data:text/html,<script>1</script>",
    f"{PREFIX}/file=file:///etc/passwd",
    f"{PREFIX}/file=/etc/passwd",
    f"{PREFIX}/file=/proc/self/environ",
    f"{PREFIX}/file=assets/style.css",
    f"{PREFIX}/file={ASSETS}/../app.py",
    f"{PREFIX}/file={quote(f'{ASSETS}/../app.py', safe='')}",
    f"{PREFIX}/file={ASSETS}",
    f"{PREFIX}/file={ASSETS}/%00",
    f"{PREFIX}/file={ASSETS}/{'x' * 9000}",
    f"{PREFIX}/file/{FOREIGN}",
    f"{PREFIX}/file/etc/passwd",
    f"{PREFIX}/FILE={FOREIGN}",
    f"{PREFIX}//file={FOREIGN}",
    f"//gradio_api/file={FOREIGN}",
    f"/file={FOREIGN}",
    f"/GRADIO_API/file={FOREIGN}",
    f"/gradio_api%2Ffile={FOREIGN}",
    f"{PREFIX}/proxy={FOREIGN}",
    f"/proxy={FOREIGN}",
]


@pytest.mark.parametrize("method", ["GET", "HEAD"])
def test_no_address_is_fetched(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, method: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Gradio's server fetches what is named so, of any length, and passes on HTML as a page of ours."""

    async def went_out(*_: Any, **__: Any) -> None:
        raise AssertionError("the server asked an address")

    monkeypatch.setattr(httpx.AsyncClient, "send", went_out)
    for path in FETCHED:
        answer = client.request(method, path, follow_redirects=False)
        assert answer.status_code == 404 and answer.headers["content-length"] == REFUSED, path
        if method == "GET":
            assert answer.json() == {"detail": "this page has no such address"}, path


def test_a_name_in_an_address_is_a_name(client: TestClient) -> None:
    """An upload's limits are for an upload alone, and the answers of a session for who asks for them; no file
    system is asked for a name that none can have."""
    body = b"[" + b" " * limits.LOCAL.request_bytes + b"]"
    for name in ("call/upload", "call/v2/upload", "call/v2/upload/"):
        assert client.post(f"{PREFIX}/{name}", content=body).status_code == 413, name
    page: Any = client.app
    page.get_blocks()._queue.pending_messages_per_session["mine"] = Queue()
    asked = [f"{PREFIX}/{call}/queue/data?session_hash=mine" for call in ("call", "call/v2")]
    for path in (*asked, f"/assets/{'x' * 256}", f"/static/img/{'ü' * 128}"):
        assert client.get(path).status_code == 404, path


HTML = b"<!doctype html><script>document.title='run'</script>"


def test_a_visitors_file_is_no_page(client: TestClient) -> None:
    """Whatever it is called and holds: a browser saves it, and lets it do nothing."""
    for name in ("a.html", "a.svg", "a.png", "a.pdf", "a.js", "a.csv", "a.png.html"):
        path = upload(client, name, HTML)
        for ranged in ({}, {"range": "bytes=0-9"}, {"range": "bytes=0-"}):
            answer = client.get(f"{PREFIX}/file={path}", headers=ranged)
            assert answer.status_code == (206 if ranged else 200)
            assert HTML.startswith(answer.content) and answer.content
            assert answer.headers["content-disposition"].startswith("attachment"), name
            assert answer.headers["content-security-policy"] == "default-src 'none'; sandbox"
            assert answer.headers["x-content-type-options"] == "nosniff"
            assert answer.headers["content-type"] == "application/octet-stream"
            assert "range" not in answer.headers, "a request's headers are not given back"
            assert answer.headers["content-encoding"] == "identity", "it takes seconds"
        many = {"range": f"bytes={','.join(f'{at}-{at}' for at in range(0, 40, 2))}"}
        assert client.get(f"{PREFIX}/file={path}", headers=many).content == HTML, "a hundred parts take 22 ms"
        head = client.head(f"{PREFIX}/file={path}")
        assert head.status_code == 200 and not head.content
    for name in (
        "config",
        "info",
        "a",
    ):  # scripts of Gradio's ask for these
        assert client.get(f"{PREFIX}/file={upload(client, name, HTML)}").status_code == 404


@pytest.mark.parametrize("path", [ASSETS / "style.css", PLOTLY], ids=lambda p: p.name)
def test_files_of_the_page_are_served_as_they_are(client: TestClient, path: Path) -> None:
    """Its fonts and scripts: the only files that a browser shows or runs."""
    answer = client.get(f"{PREFIX}/file={path.as_posix()}")
    assert answer.status_code == 200 and answer.content == path.read_bytes()
    assert answer.headers["content-disposition"].startswith("inline")
    assert answer.headers["content-type"].startswith(
        ("text/css", "text/javascript", "application/javascript")
    )


def test_a_link_is_no_file_of_ours(client: TestClient, tmp_path: Path) -> None:
    """Neither out of the store nor into it: by a descriptor of the server a stranger would read what another
    visitor uploads, or learn its path."""
    secret = tmp_path / "secret.csv"
    secret.write_text("1,2")
    path = upload(client)
    inside = Path(path).with_name("link.csv")
    inside.symlink_to(secret)
    assert client.get(f"{PREFIX}/file={inside}").status_code == 404
    assert uploads.of_visitor(path) == Path(path).resolve()
    begun = uploads.store() / "tmpx"
    unfinished = Path(path).parents[1] / "tmpx"
    assert unfinished.parent.name.startswith(uploads.VISITOR)
    for one in (begun, unfinished):
        one.write_text("1,2")
        assert client.get(f"{PREFIX}/file={one}").status_code == 404, "it is being written"
    (tmp_path / "way").symlink_to(uploads.store())
    with open(path) as upload_open, open(unfinished) as upload_begun:
        into = [f"/{way}/fd/{file.fileno()}" for way in ("proc/self", f"proc/{os.getpid()}", "dev")
                for file in (upload_open, upload_begun)]  # fmt: skip
        into += [f"/proc/self/root{path}", str(tmp_path / "way" / Path(path).relative_to(uploads.store()))]
        for way in into:
            assert client.get(f"{PREFIX}/file={way}").status_code == 404, way
            with pytest.raises(ValueError, match="drop it in again"):
                uploads.of_visitor(way)
    roundabout = f"{inside.parent}/x/../{Path(path).name}"
    for wrong in (roundabout, inside, secret, begun, unfinished, inside.parent, "", "a.csv", "/etc/passwd",
                  "a\0b", "x" * 9000, f"{inside.parent}/../../secret.csv",
                  "http://127.0.0.1:9/x.csv"):  # fmt: skip
        with pytest.raises(ValueError, match="drop it in again"):
            uploads.of_visitor(str(wrong))


def hashes(policy: str) -> set[str]:
    return set(re.findall(r"'(sha256-[^']+)'", policy))


@pytest.fixture
def launched(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, entry: Any) -> Iterator[tuple[str, gr.Blocks]]:
    """A page that is launched as the real one is, only then does Gradio write its HTML, and its address."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path / "store"))
    with gr.Blocks() as blocks:
        box = gr.Textbox()
        box.submit(lambda text: text, box, box)
    options = entry.launch_options() | {"server_port": None}
    _, url, _ = blocks.queue(**entry.queue_options()).launch(**options, prevent_thread_lock=True)
    yield url, blocks
    blocks.close()


def test_a_gradio_without_what_the_server_needs_is_refused(
    launched: tuple[str, gr.Blocks], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Before it serves anybody without a limit; and every name that is imported from inside it is known."""
    internals.check(launched[1])
    assert gr.__version__ == internals.TESTED
    other = copy.copy(launched[1])  # the server that runs keeps what it needs
    other._queue = copy.copy(other._queue)
    del other._queue.pending_event_ids_session
    with monkeypatch.context() as patch:
        patch.setattr(gr.Blocks, "process_api", lambda self, block_fn, inputs: None)
        with pytest.raises(ValueError, match=r"Queue\.pending_event_ids_session, event_data of Blocks"):
            internals.check(other)
    found: dict[str, set[str]] = {}
    for path in (ASSETS.parent / "app").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.ImportFrom) and (node.module or "").split(".")[0] == "gradio":
                found.setdefault(str(node.module), set()).update(name.name for name in node.names)
    assert found == internals.IMPORTS


def test_only_the_pages_own_scripts_run(launched: tuple[str, gr.Blocks]) -> None:
    """Each is named by its hash: what a file or a link smuggles into the page stays text."""
    answer = httpx.get(launched[0])
    policy = answer.headers["content-security-policy"]
    scripts = re.search(r"script-src ([^;]*)", policy)
    assert scripts and set(re.sub(r"'sha256-[^']*'", "", scripts[1]).split()) == {"'self'", "'unsafe-eval'"}
    assert {part.partition(" ")[0]: part.partition(" ")[2] for part in policy.split("; ")} == {
        "script-src": scripts[1],
        "style-src": "'self' 'unsafe-inline'",
        "object-src": "'none'",
        "img-src": "'self' data: blob:",
        "font-src": "'self' data:",
        "worker-src": "'self' blob:",
    } | dict.fromkeys(("default-src", "connect-src", "base-uri", "form-action", "frame-ancestors"), "'self'")
    inline = re.findall(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", answer.text, re.DOTALL)
    inline += re.findall(r"<script(?![^>]*\bsrc=)[^>]*>(.*?)</script>", HEAD, re.DOTALL)
    assert len(inline) >= 4
    for script in inline:
        digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
        assert f"sha256-{digest}" in hashes(policy), script[:80]
    for other in ("theme.css", "config", "nowhere", "gradio_api/info"):
        policy = httpx.get(f"{launched[0]}{other}").headers["content-security-policy"]
        assert "unsafe-inline" not in re.findall(r"script-src ([^;]*)", policy)[0] and not hashes(policy)
