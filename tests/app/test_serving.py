"""What a stranger's requests are answered with before any handler runs.

If these fail, one visitor can fill the memory, the disk or the queue for all, have the server fetch an
address, or read the page of somebody's own machine from another site.
"""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import gc
import itertools
import json
import logging
import math
import os
import re
import shutil
import socket
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import ExitStack, nullcontext
from io import StringIO
from pathlib import Path
from queue import SimpleQueue
from types import SimpleNamespace
from typing import Any, cast

import gradio as gr
import httpx
import plotly.graph_objects as go
import pytest
import uvicorn
from gradio.queueing import Event
from h11 import (
    NEED_DATA,
    PAUSED,
    SERVER,
    EndOfMessage,
    LocalProtocolError,
    RemoteProtocolError,
    Request,
    Response,
)
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect
from starlette.responses import FileResponse, HTMLResponse, JSONResponse
from starlette.testclient import TestClient
from uvicorn.server import ServerState

from app import api, limits
from app.parts import section
from app.parts.refusals import for_program, refusal_words
from app.serving import (
    connections,
    cores,
    guard,
    listeners,
    measure,
    sessions,
    uploads,
    visitors,
    waiting,
    work,
)
from app.serving.allowance import Allowance
from app.serving.cores import queued, share_of_cores
from app.serving.headers import HEADERS, MadeOnce, SecurityHeaders
from app.serving.sessions import CurrentRequest, answering
from app.serving.values import CheckedBlocks
from app.serving.work import LeftError, check_of_this_run, while_heard
from app.state import choices
from app.state.files import fresh_folder
from explorer.progress import StoppedError, checkpoint, stoppable
from tests import loops
from tests.app.servers import served, until


def a_post(path: str, **more: Any) -> Any:
    """A request as a server hands it on, without a body."""
    return {"type": "http", "method": "POST", "path": path, "headers": [], "client": ("192.0.2.9", 1)} | more


def join(
    client: TestClient, session: str, data: Any, number: int = 0, headers: dict[str, str] | None = None
) -> Any:
    body = {"data": [data], "fn_index": number, "session_hash": session}
    return client.post("/gradio_api/queue/join", json=body, headers=headers)


def test_only_this_machines_names_are_answered(client: TestClient) -> None:
    """A site whose name points to 127.0.0.1 would otherwise read the page through its visitor's browser."""
    assert client.get("/config").status_code == 200
    for host in ("evil.example", "localhost.evil.example", "127.0.0.1.evil.example"):
        assert client.get("/config", headers={"host": host}).status_code == 400
    assert client.get("/config", headers={"host": "127.0.0.1:7860"}).status_code == 200


def test_another_site_asks_nothing_of_ones_own_page(client: TestClient) -> None:
    """Else any site that its owner visits fills the disk with uploads, and any local server reads."""
    for origin in ("http://evil.example", "http://localhost:9999", "null"):
        asked = {"origin": origin}
        answer = client.post("/gradio_api/upload", files={"files": ("x", b"1")}, headers=asked)
        assert answer.status_code == 403 and client.get("/config", headers=asked).status_code == 403, origin
    for site in ("cross-site", "same-site"):  # of a browser that names no origin
        asked = {"sec-fetch-site": site}
        answer = client.post("/gradio_api/upload", files={"files": ("x", b"1")}, headers=asked)
        assert answer.status_code == 403 and client.get("/", headers=asked).status_code == 200, "a link"
    own = {"origin": "http://localhost", "sec-fetch-site": "same-origin"}
    assert client.post("/gradio_api/upload", files={"files": ("x", b"1")}, headers=own).status_code == 200


def test_no_value_is_a_file(client: TestClient) -> None:
    """Gradio would open a file that a value names, or download it from an address, of any length."""
    for path in ("/tmp/x\nFORGED", "/etc/passwd", "http://127.0.0.1:9/x.npy", "HTTPS://example.com/x.npy", 1):
        for value in ({"path": path, "meta": {"_type": "gradio.FileData"}}, [[{"path": path}]]):
            answer = join(client, "a", value)
            assert answer.status_code == 422 and "uploaded" in answer.json()["detail"], path


def test_a_body_that_is_broken_off_is_no_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else each leaves a traceback of eighty lines in the log."""

    async def reads(scope: Any, receive: Any, send: Any) -> None:
        raise ClientDisconnect

    async def receive() -> Any:
        return {"type": "http.request", "body": b"{}", "more_body": False}

    loops.run(asyncio.run, guard.Guard(reads)(a_post("/gradio_api/reset"), receive, None))  # type: ignore[arg-type]


def test_answers_carry_a_policy_and_are_compressed(client: TestClient) -> None:
    answer = client.get("/config", headers={"accept-encoding": "gzip"})
    assert answer.headers["content-encoding"] == "gzip" and answer.json()["components"]
    for name, value in HEADERS.items():
        assert answer.headers[name] == value


@pytest.mark.parametrize("claimed", [True, False])
def test_a_body_has_a_bound(client: TestClient, monkeypatch: pytest.MonkeyPatch, claimed: bool) -> None:
    """Said by its length, or found while more comes in than that."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    body = json.dumps({"data": ["x" * limits.HOSTED.request_bytes], "fn_index": 0, "session_hash": "a"})
    length = {} if claimed else {"content-length": "9"}
    answer = client.post("/gradio_api/queue/join", content=body, headers=length)
    assert answer.status_code == 413 and f"{limits.HOSTED.request_bytes:,}" in answer.json()["detail"]


@pytest.mark.parametrize("claimed", [True, False])
def test_an_upload_has_a_bound(client: TestClient, monkeypatch: pytest.MonkeyPatch, claimed: bool) -> None:
    """One that says that it is too long takes no room from others before it is refused."""
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, upload_bytes=1000))
    monkeypatch.setattr(guard, "FORM_BYTES", 1000)
    if claimed:
        monkeypatch.setattr(uploads.Upload, "find_room", None)
    size, length = (1, "2001") if claimed else (2001, "9")
    sent = {"files": ("a.csv", b"1" * size)}
    answer = client.post("/gradio_api/upload", files=sent, headers={"content-length": length})
    assert (
        answer.status_code == 413 and answer.json()["detail"] == "an upload may have at most 2,000 bytes here"
    )


def test_a_body_arrives_in_time_and_few_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Bodies that are announced and never finished would be kept for ever."""

    async def asked() -> list[Any]:
        path, most = "/gradio_api/queue/join", limits.LOCAL.bodies
        sent = [guard._whole_body(a_post(path), asyncio.Event().wait) for _ in range(most + 1)]  # type: ignore[arg-type]
        return await asyncio.gather(*sent, return_exceptions=True)

    monkeypatch.setattr(guard, "BODY_SECONDS", 0)
    refused = [error.status for error in loops.run(asyncio.run, asked())]
    assert refused == [408] * limits.LOCAL.bodies + [429] and not guard._bodies


def test_streams_of_one_address_are_bounded(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, streams=2))
    server, port = served(client.app)
    url = f"http://127.0.0.1:{port}/gradio_api/"
    with ExitStack() as open_now, httpx.Client(base_url=url, timeout=30) as visitor:
        for path in ("heartbeat/a", "heartbeat/b"):
            assert open_now.enter_context(visitor.stream("GET", path)).status_code == 200
        for path in ("queue/data?session_hash=abc", "heartbeat/abc", "upload_progress?upload_id=a"):
            with visitor.stream("GET", path) as answer:
                assert answer.status_code == 429 and b"2 streams" in answer.read(), path
    server.close()


def test_the_page_holds_nothing_of_a_request(client: TestClient) -> None:
    """A shared cache would hand a page to all visitors that one visitor has made."""
    evil = client.get(
        "/?a=evil.example", headers={"x-forwarded-host": "evil.example"}
    )  # the first, which is kept
    plain = client.get("/")
    assert "evil.example" not in evil.text and "//localhost" not in evil.text
    for headers in ({"x-gradio-server": "http://evil.example"}, {"x-forwarded-host": "evil.example"}):
        assert client.get("/?a=evil.example", headers=headers).content == plain.content
    assert "cache-control" in plain.headers and "page.invalid" not in plain.text
    unzipped = client.get("/", headers={"accept-encoding": "identity"})
    assert unzipped.content == plain.content and "content-encoding" not in unzipped.headers


def test_scripts_and_styles_are_compressed_once(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio compresses them anew for each client, with 8 MB for one that reads slowly."""
    linked = re.findall(r'(?:src|href)="\.?/?([^"]+\.(?:js|css))"', client.get("/").text)
    assert {name.partition("/")[0] for name in linked} >= {"assets", "gradio_api"}, linked
    plain = {name: client.get(f"/{name}", headers={"accept-encoding": "identity"}) for name in linked}
    with monkeypatch.context() as patch:
        patch.setattr(FileResponse, "__call__", None)
        for (name, whole), taken in itertools.product(plain.items(), ("gzip, deflate, br", "br", "")):
            asked = {"accept-encoding": taken, "range": "bytes=0-9"}
            answer = client.get(f"/{name}?x={taken}", headers=asked)
            assert answer.status_code == 200 and answer.content == whole.content, name
            assert answer.headers.get("content-encoding") == ("gzip" if "gzip" in taken else "identity")
            for kept in ("cache-control", "content-type", "etag"):
                assert answer.headers.get(kept) == whole.headers.get(kept)
    end = next(name for name in linked if name.startswith("assets/")).removeprefix("assets/")
    for other in (f"/assets//{end}", f"/assets/%2e/{end}", f"/assets/x/%2e%2e/{end}", "/assets/none.js"):
        for taken in ("gzip", "br"):
            answer = client.get(other, headers={"accept-encoding": taken})
            assert answer.headers.get("content-encoding") == "identity", "an address for each spelling"
    assert answer.status_code == 404


def made_once(app: Any) -> Any:
    """The page's answers for everybody, in its middleware."""
    found = app.middleware_stack
    while not isinstance(found, MadeOnce):
        found = found.app
    return found


@pytest.mark.parametrize("path", ["config", "config/", "gradio_api/info", "gradio_api/openapi.json"])
def test_what_programs_ask_first_is_made_once(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Gradio makes it anew for each request, in a tenth of a second of a core, or keeps the host that
    the first request named, in examples for all."""
    evil = client.get(f"/{path}?deep_link=x", headers={"x-forwarded-host": "evil.example"})
    with monkeypatch.context() as patch:
        patch.setattr(gr.utils, "safe_deepcopy", None)  # by which Gradio makes it
        plain = client.get(f"/{path}")
    assert "evil.example" not in plain.text and "page.invalid" not in plain.text
    assert plain.headers["cache-control"] == "no-store" and plain.json().keys() == evil.json().keys()
    assert ('Client(\\"http://localhost' in plain.text) is path.endswith("info")
    with monkeypatch.context() as patch:  # asked for first, before the description
        patch.setattr(client.app, "api_info", None)
        patch.setattr(made_once(client.app), "_kept", {})
        headers = {"x-forwarded-host": "evil.example"}
        asked = client.post("/gradio_api/call/v2/wait", json={"text": "x"}, headers=headers)
        assert asked.status_code == 200 and "evil.example" not in client.get(f"/{path}").text
    every = client.get("/gradio_api/info?all_endpoints=true").json()["named_endpoints"]
    assert every.keys() == client.get("/gradio_api/info").json()["named_endpoints"].keys()


@pytest.mark.parametrize(
    ("query", "headers", "status"),
    [("q" * 10_000, {}, 414), ("a&" * 200, {}, 414),
     ("", {"x-forwarded-host": "[::1"}, 400), ("", {"host": "[::1"}, 400)],
    ids=["query", "values", "forwarded", "host"],
)  # fmt: skip
@pytest.mark.parametrize("path", ["/", "/config"])
def test_an_address_that_cannot_be_read_is_refused(
    client: TestClient, query: str, headers: dict[str, str], status: int, path: str
) -> None:
    assert client.get(f"{path}?{query}", headers=headers).status_code == status


def test_a_page_that_could_not_be_made_is_made_again() -> None:
    """Else all visitors would have one visitor's failure."""
    answers = [HTMLResponse("failed", 500), HTMLResponse("<head></head>")]

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await answers.pop(0)(scope, receive, send)

    client = TestClient(MadeOnce(app))
    assert [client.get("/").status_code for _ in range(3)] == [500, 200, 200]


def test_a_look_at_connections_that_fails_is_not_the_last(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = SimpleQueue[float]()

    def look(self: connections.Watch, now: float) -> int:
        looks.put(now)
        raise AttributeError("a connection that ends meanwhile")

    monkeypatch.setattr(connections.Watch, "look", look)
    monkeypatch.setattr(connections, "EVERY_SECONDS", 0.01)
    config = SimpleNamespace(loaded_app=None)
    server = SimpleNamespace(server_state=SimpleNamespace(connections=set()), config=config)
    connections.watch(server)
    assert looks.get(timeout=30) < looks.get(timeout=30)


def test_who_leaves_the_page_writes_no_log(caplog: pytest.LogCaptureFixture) -> None:
    """asyncio has a line for each part that is sent to nobody."""
    server, port = served(MadeOnce(HTMLResponse("a" * (1 << 22))))
    for _ in range(8):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as leaving:
            leaving.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
            leaving.recv(10)
    server.close()
    assert not caplog.messages


def test_a_head_has_few_fields() -> None:
    """A thousand take h11 milliseconds, in the thread that answers everybody, before a limit is looked at.
    Nor has a GET a body: uvicorn reads it to its end, as fast as it comes."""
    server, port = served(JSONResponse("ok"))
    server.config.http_protocol_class = connections.BoundedProtocol
    heads = [(b"a:1\r\n" * fields, fields < 100) for fields in (90, connections.FIELDS + 1, 3000)]
    heads += [(b"a:" + b"1" * size, size < connections.HEAD_BYTES) for size in (16_000, 17_000)]
    body = b"content-length: 60000\r\n\r\n" + b"\n" * 60_000
    for rest, fits in (*heads, (body, False), (b"content-length: 0\r\n", True)):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
            one.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n" + rest.removesuffix(b"\r\n") + b"\r\n\r\n")
            assert one.recv(4096).split()[1] == (b"200" if fits else b"400")
    with socket.create_connection(("127.0.0.1", port), timeout=30) as one:
        one.sendall(b"POST / HTTP/1.1\r\nHost: a\r\n" + body)
        assert one.recv(4096).split()[1] == b"200", "line breaks of a body are no fields"
    server.close()


def test_a_head_in_many_packets_is_not_looked_through_at_each(monkeypatch: pytest.MonkeyPatch) -> None:
    """60 kB of one cost a tenth of a millisecond for each byte that followed. What comes with a request's end
    is of the next one's head."""
    looks, first, many = list[bytes](), b"GET / HTTP/1.1\r\nHost: a\r\n", b"a:1\r\n" * 3000
    look = connections._BoundedHeads._look_through
    monkeypatch.setattr(
        connections._BoundedHeads,
        "_look_through",
        lambda self, given: looks.append(given) or look(self, given),
    )
    conn = connections._BoundedHeads(SERVER, connections.HEAD_BYTES)
    for part in (first, b"a:1\r\n" * 90, b"b: ", *[b"c" * 100] * 110, *[b"\r"] * 2000, *[b"d"] * 2000):
        conn.receive_data(part)
        assert conn.next_event() is NEED_DATA
    assert len(looks) <= 1
    conn.receive_data(b"a:1\r\n" * 20)
    with pytest.raises(RemoteProtocolError, match="100 fields"):
        conn.next_event()

    for body in (b"", b"\n" * 5000):
        conn = connections._BoundedHeads(SERVER, connections.HEAD_BYTES)
        conn.receive_data(
            first.replace(b"GET", b"POST") + b"Content-Length: %d\r\n\r\n" % len(body) + body + first
        )
        while conn.next_event() is not PAUSED:
            pass
        for event in (Response(status_code=200, headers=[("content-length", "0")]), EndOfMessage()):
            conn.send(event)
        conn.start_next_cycle()
        assert conn.next_event() is NEED_DATA
        conn.receive_data(many[:450] + b"\r\n" if body else many)
        if body:
            assert isinstance(conn.next_event(), Request)
        else:
            with pytest.raises(RemoteProtocolError, match="100 fields"):
                conn.next_event()


def test_new_connections_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who opens and leaves thousands a second makes others wait for seconds; a proxy has all visitors'."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    monkeypatch.setattr(connections, "_NEW", Allowance(2, 1, lambda: 0.0))
    monkeypatch.setattr(connections.H11Protocol, "connection_made", lambda *_: None)
    config, ended = uvicorn.Config(JSONResponse("ok"), log_config=None), list[str]()
    config.load()
    for peer in ("192.0.2.1", "8.8.8.8", "8.8.8.8", "10.0.0.1", "8.8.8.8", "8.8.4.4"):
        one = connections.BoundedProtocol(config, ServerState(), {}, asyncio.new_event_loop())
        one.client = (peer, 1)
        one.connection_made(SimpleNamespace(abort=lambda peer=peer: ended.append(peer)))
        one.loop.close()
    assert ended == ["8.8.8.8"]


def test_preflights_are_paced(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio answers them before any middleware of the page."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    monkeypatch.setattr(guard, "REQUESTS_AT_ONCE", 1)
    monkeypatch.setattr(guard, "REQUESTS_A_SECOND", 0.01)
    server, port = served(client.app)
    connections.watch(server)
    asked = {"Origin": "http://localhost", "Access-Control-Request-Method": "POST"}
    statuses = [httpx.options(f"http://127.0.0.1:{port}/", headers=asked).status_code for _ in range(2)]
    server.close()
    assert statuses == [200, 429]


def test_a_connection_without_a_request_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    """Half requests would hold descriptors until no visitor can connect."""

    server, port = served(JSONResponse("ok"))
    watch = connections.Watch(server)
    half, whole = (socket.create_connection(("127.0.0.1", port), timeout=30) for _ in range(2))
    half.sendall(b"GET / HTTP/1.1\r\nHost: a")
    for _ in range(2):
        whole.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        while b"ok" not in whole.recv(4096):
            pass
        watch.look(0)
    assert watch.look(connections.HEAD_SECONDS - 1) == 0
    whole.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
    while b"ok" not in whole.recv(4096):
        pass
    assert watch.look(connections.HEAD_SECONDS + 1) == 1
    assert half.recv(1) == b""
    socket_of_web: Any = type("WebSocket", (), {"client": None})()  # as uvicorn keeps it, without a cycle
    server.server_state.connections.add(socket_of_web)
    assert watch.look(connections.HEAD_SECONDS + 1) == 0
    server.server_state.connections.remove(socket_of_web)
    for name in ("HOSTED", "LOCAL"):
        monkeypatch.setattr(limits, name, dataclasses.replace(getattr(limits, name), connections=0))
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    assert watch.look(connections.HEAD_SECONDS + 1) == 0, "of all visitors behind a proxy"
    monkeypatch.setenv("EXPLORER_HOSTED", "0")
    assert watch.look(connections.HEAD_SECONDS + 1) >= 1
    server.close()


def test_what_a_stranger_can_have_logged_is_few_lines_a_second(
    caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of any level, a traceback once a second; and bytes that are no request, after one that is answered, are
    no traceback."""
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep))
    few = connections.FewPerSecond(3, ("a", "b"))
    for line, level, passed in (("a1", logging.INFO, 3), ("c", logging.INFO, 9), ("b", logging.ERROR, 0)):
        said = [few.filter(logging.makeLogRecord({"msg": line, "levelno": level})) for _ in range(9)]
        assert said == [True] * passed + [False] * (9 - passed)
    few = connections.FewPerSecond(9)
    for error in (KeyError("x"), KeyError("y")):
        defect = {"msg": "d", "levelno": logging.ERROR, "exc_info": (KeyError, error, None)}
        said = [few.filter(logging.makeLogRecord(defect)) for _ in range(3)]
        assert said == [error.args == ("x",), False, False]
    assert few.filter(logging.makeLogRecord({"msg": "a"})), "lines are counted apart"
    assert not few.filter(logging.makeLogRecord({"msg": "failed: Traceback\n a"})), "one that is a text, too"
    unsent = {"msg": "b", "levelno": logging.ERROR, "exc_info": (None, LocalProtocolError("x"), None)}
    assert not few.filter(logging.makeLogRecord(unsent))
    server, port = served(JSONResponse("ok"))
    connections.watch(server)
    for _ in range(3):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as mine:
            mine.sendall(b"GET / HTTP/1.1\r\nHost: a\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n")
            while mine.recv(4096):
                pass
    server.close()
    assert len([line for line in caplog.messages if "Invalid" in line]) <= 1
    assert not any(record.exc_info for record in caplog.records)


def test_a_page_that_ends_answers_no_more(monkeypatch: pytest.MonkeyPatch) -> None:
    """Under a flood of requests its files took 19 s to remove, of which a container has 10."""
    where = SimpleQueue[Any]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        where.put(threading.current_thread())
        await JSONResponse("ok")(scope, receive, send)

    server, port = served(app)
    clock = SimpleNamespace(sleep=lambda seconds: where.put((threading.current_thread(), seconds)))
    monkeypatch.setattr(connections, "time", clock)
    connections.stop(server)
    held, seconds = where.get(timeout=60)
    assert seconds > 600 and httpx.get(f"http://127.0.0.1:{port}/").json() == "ok"
    assert where.get(timeout=60) is held
    server.close()


def test_every_log_of_the_server_is_limited(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of libraries, too: python-multipart has a line for each bad byte."""
    written = {name: StringIO() for name in ("", "uvicorn")}
    for name, out in written.items():
        monkeypatch.setattr(logging.getLogger(name), "handlers", [logging.StreamHandler(out)])
    monkeypatch.setattr(connections, "time", SimpleNamespace(monotonic=lambda: 0.0, sleep=time.sleep))
    monkeypatch.setattr(sys, "unraisablehook", None)
    connections.limit_log()
    for error in (KeyError("x"), KeyError("y")):
        ignored = {"exc_type": KeyError, "exc_value": error, "exc_traceback": None, "err_msg": None}
        sys.unraisablehook(SimpleNamespace(**ignored))
    assert written[""].getvalue().count("KeyError") == 1
    written[""].truncate(0)
    for number in range(500):
        logging.getLogger("uvicorn.error").error("one %d", number)
        logging.getLogger("python_multipart.multipart").warning("two %d", number)
    assert {out.getvalue().count("\n") for out in written.values()} == {connections.LINES_A_SECOND}


def test_a_client_that_takes_nothing_of_its_answer_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that reads slowly is not."""
    monkeypatch.setattr(connections, "EVERY_SECONDS", 3600)
    server, port = served(SecurityHeaders(MadeOnce(HTMLResponse("a" * (1 << 25)))))
    connections.watch(server)
    watch, size = connections.Watch(server), 0
    with socket.create_connection(("127.0.0.1", port), timeout=30) as mine:
        mine.sendall(b"GET / HTTP/1.1\r\nHost: a\r\n\r\n")
        until(lambda: any(one.flow.write_paused for one in server.server_state.connections))
        (held,) = server.server_state.connections
        option = held.transport.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF)
        assert option <= 2 * connections.SENT_AHEAD, "which Linux doubles"
        for now in (0.0, 15.0, 30.0):  # the kernel has room for parts of an answer only once several are read
            while mine.recv(1 << 16) and (size := size + 1) % 128:
                pass
            until(lambda: all(one.flow.write_paused for one in server.server_state.connections))
            assert watch.look(now) == 0
        assert watch.look(30 + connections.HEAD_SECONDS - 1) == 0
        assert watch.look(30 + connections.HEAD_SECONDS + 1) == 1
        until(lambda: not server.server_state.connections)
    server.close()


def test_values_nested_without_end(client: TestClient) -> None:
    deep = "[" * 5000 + "]" * 5000
    answer = client.post("/gradio_api/queue/join", content=f'{{"data": {deep}}}')
    assert answer.status_code == 400 and "nest" in answer.json()["detail"]


NO_JSON = ("NaN", '{"session_hash": Infinity}', '{"data": [1e999]}', '"\\ud800"', '{"\\udfff": 1}',
           b'"\xed\xa0\x80"', b"\xff\xfe1\x00")  # fmt: skip
"""What Python's parser takes: numbers that JSON does not have, half characters, and other encodings."""


def test_what_is_no_json_is_refused(client: TestClient) -> None:
    """FastAPI repeats what is wrong in its answer, which cannot be written then: a traceback for each."""
    for body in NO_JSON:
        for path in ("queue/join", "component_server", "call/wait"):
            kind = {"content-type": "application/json"}
            answer = client.post(f"/gradio_api/{path}", content=body, headers=kind)
            assert answer.status_code == 400 and "JSON" in answer.json()["detail"], body
    for number in ("9" * 41, "-1." + "9" * 50, "1e" + "0" * 50):  # 121 of 4,300 digits took 9 ms
        answer = client.post("/gradio_api/queue/join", content=f'{{"data": [{number}]}}')
        assert answer.status_code == 400 and "40 characters" in answer.json()["detail"], number
    good = {"data": ["𝄞 \\ud800", -(2**63), 5e-324], "fn_index": 0, "session_hash": "a"}
    assert client.post("/gradio_api/queue/join", json=good).status_code == 200


def test_a_request_says_how_long_it_is() -> None:
    """Of chunks of a byte a packet holds ten thousand; each is looked at, even in a refused request."""
    asked = list[str]()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        asked.append(scope["path"])

    server, port = served(app)
    connections.watch(server)
    for head in ("Transfer-Encoding: chunked", "transfer-encoding:  Chunked\r\nUpgrade: websocket"):
        with socket.create_connection(("127.0.0.1", port), timeout=30) as mine:
            mine.sendall(f"POST /gradio_api/upload HTTP/1.1\r\nHost: a\r\n{head}\r\n\r\n".encode())
            answer = b"".join(iter(lambda mine=mine: mine.recv(4096), b""))
            assert answer.startswith(b"HTTP/1.1 400") and b"says the length of its body" in answer
    server.close()
    assert not asked


def test_a_request_has_few_values(client: TestClient) -> None:
    """To look at the million that a body has room for takes a second, in which nobody is answered."""
    for most, part in itertools.product((guard.VALUES, guard.COMMAS), ("[],", "{},", "1.5,", "[[],{}],")):
        body = f'{{"data": [{part * (most // part.count(","))}1]}}'
        assert len(body) < limits.LOCAL.request_bytes
        answer = client.post("/gradio_api/queue/join", content=body)
        assert answer.status_code == 413 and "a request has at most" in answer.json()["detail"], part
    answer = join(client, "a", "," * 2000)
    assert answer.status_code == 200


@pytest.mark.parametrize("path", ["cancel", "reset", "queue/join", "call/wait", "component_server"])
def test_a_refusal_repeats_no_request(client: TestClient, path: str) -> None:
    """FastAPI repeats it for each mistake, which takes the thread that answers everybody 50 ms."""
    asked = {"x": [{"a": "repeated", "b": 2}] * 600}
    answer = client.post(f"/gradio_api/{path}", json=asked)
    assert answer.status_code == 422 and isinstance(answer.json()["detail"], str)
    assert "repeated" not in answer.text and len(answer.content) < 400


@pytest.mark.parametrize("path", ["config", "gradio_api/queue/status", "manifest.json"])
def test_no_cookie_is_parsed(client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Python takes .25 s for 55 kB of them (CVE-2024-7592), in the thread that answers everybody."""
    monkeypatch.setattr("starlette.requests.cookie_parser", None)
    assert client.get(f"/{path}", headers={"cookie": 'a="\\"'}).status_code == 200


def test_a_form_is_a_file_and_little_else(client: TestClient) -> None:
    """Gradio keeps a form's fields in memory, whatever their size."""
    for boundary in ("b" * 300, "", '"', "x; charset=undefined", "x; charset=punycode"):
        kind = {"content-type": f"multipart/form-data; boundary={boundary}"}
        assert client.post("/gradio_api/upload", content=b"x", headers=kind).status_code == 400
    for field in ("field", "filename"):
        for size in (1, guard.FIELD_BYTES + 1):
            answer = client.post("/gradio_api/upload", data={field: "x" * size}, files={"files": b"1,2"})
            assert answer.status_code == 400
    assert client.post("/gradio_api/upload", content=b"x").status_code == 400
    many = [("files", (f"{number}.csv", b"1")) for number in range(guard.FILES + 1)]
    assert client.post("/gradio_api/upload", files=many[1:]).status_code == 200
    answer = client.post("/gradio_api/upload", files=many)
    assert answer.status_code == 413 and "16" in answer.json()["detail"]
    long = {"x": "x" * guard.FIELD_BYTES}
    answer = client.post("/gradio_api/upload", files={"files": ("a.csv", b"1", "text/csv", long)})
    assert answer.status_code == 400 and "header" in answer.json()["detail"]
    fields = guard._Fields(b"b")
    fields._parser.max_header_size = 1 << 20  # which older versions of python-multipart lack
    with pytest.raises(guard.TooMuchError, match="65,536"):
        fields.add(b"--b\r\nx: " + b"x" * guard.FIELD_BYTES)
    answer = client.post("/gradio_api/upload", files={"files": ("a.csv", b"1,2\n" * 100_000)})
    assert answer.status_code == 200
    assert Path(answer.json()[0]).read_bytes() == b"1,2\n" * 100_000


def test_a_forms_headers_are_short(client: TestClient) -> None:
    """Python's parser takes 11 ms for 16 kB of semicolons, where all requests are: one address ended
    everybody's runs."""
    for many in (0, 4000):
        named = b'Content-Disposition: form-data; name="files"; filename="a.csv"'
        body = b"--b\r\n%s%s\r\n\r\n1,2\r\n--b--\r\n" % (named, b";" * min(many, 2000))
        short, long = ({"content-type": "multipart/form-data; boundary=b" + ";" * end} for end in (0, many))
        answers = [client.post("/gradio_api/upload", content=body, headers=kind) for kind in (short, long)]
        assert [one.status_code for one in answers] == ([400, 400] if many else [200, 200])
    assert "semicolons" in answers[0].json()["detail"] and "256" in answers[1].json()["detail"]


def test_what_a_form_takes_to_read_is_its_visitors(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One upload of what is nearly a boundary, again and again, kept runs of others from ending."""
    asked, ticks = list[str](), itertools.count()
    monkeypatch.setattr(cores.SECONDS, "_whole", {})
    monkeypatch.setattr(cores.SECONDS, "clock", lambda: 0.0)
    monkeypatch.setattr(guard, "thread_time", lambda: next(ticks))
    monkeypatch.setattr(guard, "has_had", lambda who: asked.append(who) or len(asked) < 3)
    assert client.post("/gradio_api/upload", files={"files": ("a.csv", b"1,2")}).status_code == 200
    assert asked[:3] == ["127.0.0.1"] * 3
    assert cores.SECONDS.left("127.0.0.1") <= cores.SECONDS_AT_ONCE - 2, "Gradio reads it as well"


def test_a_full_disk_is_a_refusal(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Else each upload is a traceback, and what came of it keeps the disk full. Nor is the path of a file
    that could not be written for the visitor to read."""
    written, write = [], UploadFile.write

    async def full(self: Any, data: bytes) -> None:
        written.append(self.file)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(UploadFile, "write", full)
    answer = client.post("/gradio_api/upload", files={"files": ("a.csv", b"1,2\n" * 100_000)})
    assert answer.status_code == 503 and "full" in answer.json()["detail"] and not caplog.messages
    assert not [path for path in uploads.store().rglob("*") if path.is_file()] and written[0].closed
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    path = uploads.store() / "made-secret" / "a b.csv"
    for error in (
        OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), str(path)),
        OSError(f"{path} cannot be written: No space left on device (os error 28)"),
        FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path)),
    ):
        said = refusal_words(error)
        assert said and "secret" not in said and str(uploads.store()) not in said

    def rename(*paths: Any) -> None:
        uploads.remove_store()
        raise OSError

    monkeypatch.setattr(UploadFile, "write", write)
    monkeypatch.setattr("gradio.route_utils.os", SimpleNamespace(**vars(os) | {"rename": rename}))
    caplog.clear()
    answer = client.post("/gradio_api/upload", files={"files": ("a.csv", b"1,2")})
    assert answer.status_code == 200 and uploads.removed(), "Gradio moves it once it has answered"
    answer = client.post("/gradio_api/upload", files={"files": ("a.csv", b"1,2")})
    assert answer.status_code == 503 and "the page ends" in answer.json()["detail"] and not caplog.messages


def test_a_refusal_is_one_line_and_none_of_a_figures() -> None:
    """What plotly does not take comes of the page's own code, though it is a ``ValueError``."""
    assert refusal_words(ValueError("a\n  b\n")) == "a b"
    with pytest.raises(ValueError, match="updatemenu") as raised:
        go.Figure(layout={"updatemenus": [{"y": 6.45}]})
    assert refusal_words(raised.value) is None
    with pytest.raises(ValueError, match="updatemenu"), for_program("x"):
        go.Figure(layout={"updatemenus": [{"y": 6.45}]})


@pytest.mark.parametrize(
    ("path", "status"), [("queue/join", 413), ("nowhere", 404), (f"queue/join?{'q' * 9000}", 414)], ids=str
)
def test_a_refused_request_is_read_on(
    client: TestClient, path: str, status: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A connection that is closed while its client sends is reset: he would never read the reason. Who sends
    nothing more is not waited for."""
    server, port = served(client.app)
    size = limits.LOCAL.request_bytes + (1 << 22)
    head = f"POST /gradio_api/{path} HTTP/1.1\r\nHost: localhost\r\nContent-Length: {size}\r\n\r\n"
    for sent, seconds in ((size, guard.LINGER_SECONDS), (0, 0)):
        monkeypatch.setattr(guard, "LINGER_SECONDS", seconds)
        with socket.create_connection(("127.0.0.1", port), timeout=30) as mine:
            mine.sendall(head.encode())
            for _ in range(sent >> 16):
                mine.sendall(b" " * (1 << 16))
            answer = b""
            while part := mine.recv(1 << 16):
                answer += part
        assert answer.startswith(f"HTTP/1.1 {status}".encode()) and answer.endswith(b"}")
    server.close()


def test_a_form_may_come_in_pieces(client: TestClient) -> None:
    """The network ends a piece anywhere, in the middle of a header too: the file is a file."""
    file = "x" * (guard.FIELD_BYTES + 1)
    head = '--b\r\nContent-Disposition: form-data; name="files"; filename="a.csv"\r\nContent-Type: text/csv'
    body = f"{head}\r\n\r\n{file}\r\n--b--\r\n".encode()
    kind = {"content-type": "multipart/form-data; boundary=b", "content-length": str(len(body))}
    for cut in range(60, 130):
        pieces = iter([body[:cut], body[cut:]])
        answer = client.post("/gradio_api/upload", content=pieces, headers=kind)
        assert answer.status_code == 200, (cut, answer.text)


def test_one_address_pushes_out_no_others_answers(
    client: TestClient, release: threading.Event, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two thousand short requests of one, each of a session of its own, ended another visitor's run: Gradio
    keeps the answers of so many sessions."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    monkeypatch.setattr(queue_of(client).pending_messages_per_session, "max_size", 3)
    for session in ("mine", "a", "b", "c", "d"):
        who = {"x-forwarded-for": f"192.0.2.{session == 'mine'}"}
        assert join(client, session, "x", headers=who).status_code == 200
    assert [*queue_of(client).pending_messages_per_session] == ["mine", "c", "d"]


def test_a_visitor_has_a_share_of_the_queue(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """However many sessions one address opens, and at once, the next visitor still gets in. What runs is of
    the share as well."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    mine = {"x-forwarded-for": "spoofed, 192.0.2.1"}

    async def at_once(count: int) -> list[int]:
        transport = httpx.ASGITransport(client.app, client=("127.0.0.1", 5))
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as visitor:
            asked = ({"data": ["x"], "fn_index": 0, "session_hash": f"s{i}"} for i in range(count))
            sent = [visitor.post("/gradio_api/queue/join", json=body, headers=mine) for body in asked]
            return sorted(answer.status_code for answer in await asyncio.gather(*sent))

    assert client.portal
    assert client.portal.call(at_once, limits.HOSTED.share + 3) == [200] * limits.HOSTED.share + [429] * 3
    queue = queue_of(client)
    line = queue.event_queue_per_concurrency_id[queue.blocks.fns[0].concurrency_id].queue
    queue.active_jobs.append([line.pop()])
    assert join(client, "late", "x", headers=mine).status_code == 429
    assert join(client, "other", "x", headers={"x-forwarded-for": "192.0.2.2"}).status_code == 200


def queue_of(client: TestClient, mean: float | None = None) -> Any:
    """The page's queue, whose first function has taken ``mean`` seconds so far."""
    blocks = cast(Any, client.app).get_blocks()
    if mean is not None:
        blocks._queue.process_time_per_fn[blocks.fns[0]].add(mean)
    return blocks._queue


@pytest.mark.parametrize("path", ["queue/join", "call/wait", "call/v2/wait"])
def test_who_would_wait_too_long_is_told_place_and_time(
    client: TestClient, path: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Three runs of 25 s are ahead: 75 s, and 60 are the most. Else visitors wait for minutes."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    queue = queue_of(client, 25.0)
    assert [join(client, f"s{i}", "x").status_code for i in range(3)] == [200] * 3
    data = {"text": "x"} if "v2" in path else {"data": ["x"]}
    extra = {"fn_index": 0, "session_hash": "late"} if "join" in path else {}
    answer = client.post(f"/gradio_api/{path}", json=data | extra)
    assert answer.status_code == 429 and answer.headers["retry-after"] == "15"
    assert re.findall(r"\d+", answer.json()["detail"]) == ["4", "75", "60", "15"]
    assert join(client, "other-line", None, 1).status_code == 200, "only that line"
    assert len(queue.event_queue_per_concurrency_id[queue.blocks.fns[0].concurrency_id].queue) == 3


def test_a_full_queue_tells_the_place(client: TestClient) -> None:
    """Gradio's own refusal would be a 503, for which its page shows other words."""
    queue_of(client).max_size = 2
    answers = [join(client, f"s{i}", "x") for i in range(3)]
    assert [answer.status_code for answer in answers] == [200, 200, 429]
    assert re.findall(r"\d+", answers[2].json()["detail"]) == ["2", "3", "1"]


def test_visitors_take_turns(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who asks sixteen times does not stand before everyone who comes later."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    for i in range(4):
        assert join(client, f"many{i}", "x", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 200
    for i in range(2):
        assert join(client, f"two{i}", "x", headers={"x-forwarded-for": "192.0.2.2"}).status_code == 200
    queue = queue_of(client, 1.0)
    function = queue.blocks.fns[0]
    line = queue.event_queue_per_concurrency_id[function.concurrency_id].queue
    assert [event.session_hash for event in line] == ["many0", "two0", "many1", "two1", "many2", "many3"]
    places = [waiting.next_turn(queue, function, f"192.0.2.{i}").place for i in (1, 2, 3)]
    assert places == [7, 6, 3]


def started(queue: Any) -> list[str]:
    """The sessions whose requests begin now."""
    begun = []
    while (found := queue.get_events()) is not None:
        queue.active_jobs.append(found[0])
        queue.event_queue_per_concurrency_id[found[2]].current_concurrency += 1
        begun.append(found[0][0].session_hash)
    return begun


def test_one_address_has_half_of_the_workers(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else everybody's first answer waits until a run of his ends, be it the next."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    queue = queue_of(client, 1.0)
    monkeypatch.setattr(queue, "active_jobs", [])
    monkeypatch.setattr(queue.blocks.fns[0], "concurrency_limit", 4)
    for i in range(4):
        assert join(client, f"many{i}", "x", headers={"x-forwarded-for": "192.0.2.1"}).status_code == 200
    line = queue.event_queue_per_concurrency_id[queue.blocks.fns[0].concurrency_id]
    assert started(queue) == ["many0", "many1"]
    assert join(client, "other", "x", headers={"x-forwarded-for": "192.0.2.2"}).status_code == 200
    assert started(queue) == ["other"] and line.concurrency_limit == 4
    queue.active_jobs.pop(0)
    line.current_concurrency -= 1
    assert started(queue) == ["many2"]


def test_one_address_has_few_workers_of_all_lines(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each endpoint for programs is a line of its own: sixteen at once made others' runs take tenfold."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    monkeypatch.setattr(limits, "HOSTED", dataclasses.replace(limits.HOSTED, views=1))
    queue = queue_of(client)
    monkeypatch.setattr(queue, "active_jobs", [])
    who = [{"x-forwarded-for": f"192.0.2.{i}"} for i in (1, 2)]
    answers = [join(client, f"s{number}", "x", number, who[0]) for number in (0, 1)]
    assert [answer.status_code for answer in answers] == [200, 200]
    assert len(first := started(queue)) == 1
    assert join(client, "other", "x", 0 if first == ["s1"] else 1, who[1]).status_code == 200
    assert started(queue) == ["other"]
    queue.active_jobs.clear()
    for line in queue.event_queue_per_concurrency_id.values():
        line.current_concurrency = 0
    with answering(CurrentRequest(address="192.0.2.1")), queued():
        assert started(queue) == [], "what was stopped is still computed"
    assert len(started(queue)) == 1
    monkeypatch.setattr(limits, "HOSTED", dataclasses.replace(limits.HOSTED, views=4))
    monkeypatch.setattr(waiting, "CORES", 3)
    assert waiting.most_of_all() == 3
    monkeypatch.setenv("EXPLORER_HOSTED", "0")
    assert waiting.most_of_all() == limits.LOCAL.views


def test_a_program_that_has_computed_much_waits_for_others(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its processor seconds are of those that its address's views have; what the page asks for is not."""
    queue, now = queue_of(client), [0.0]
    monkeypatch.setattr(queue, "active_jobs", [])
    monkeypatch.setattr(cores, "thread_time", lambda: now[0])
    monkeypatch.setattr(cores.SECONDS, "_whole", {})
    with answering(CurrentRequest(address="127.0.0.1")), for_program("x"):
        now[0] += cores.SECONDS_AT_ONCE + 60
    assert join(client, "s0", "x").status_code == 200
    with answering(CurrentRequest(address="192.0.2.1")), share_of_cores():
        assert started(queue) == []
        monkeypatch.setattr(queue.blocks.fns[1], "api_visibility", "private")
        assert join(client, "page", "x", 1).status_code == 200
        assert started(queue) == ["page"]
    assert started(queue) == ["s0"], "nothing of another is computed"


def test_a_second_stream_of_a_session_ends_in_silence(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Gradio raises in the middle of it, once the first has had the last answer."""
    page: Any = client.app
    pending = queue_of(client).pending_messages_per_session
    pending["mine"] = SimpleQueue()

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await send({"type": "http.response.start", "status": 200, "headers": []})
        await send({"type": "http.response.body", "body": b"data", "more_body": True})
        raise RuntimeError("response already started") from HTTPException(404)

    async def guarded(scope: Any, receive: Any, send: Any) -> None:
        await guard.Guard(app)({**scope, "app": page}, receive, send)

    server, port = served(guarded)
    answer = httpx.get(f"http://127.0.0.1:{port}/gradio_api/queue/data?session_hash=mine")
    server.close()
    del pending["mine"]
    assert answer.content == b"data" and not caplog.messages


@pytest.mark.parametrize("listens", [True, False])
def test_what_nobody_listens_for_is_given_up(client: TestClient, listens: bool) -> None:
    """Else a stranger's requests hold a core without costing him a connection."""
    assert join(client, "deaf", "x").status_code == 200
    queue = queue_of(client)
    event = queue.event_queue_per_concurrency_id[queue.blocks.fns[0].concurrency_id].queue[0]
    scopes = [
        {"path": "/gradio_api/queue/data", "query_string": b"session_hash=deaf"},
        {"path": f"/gradio_api/call/wait/{event._id}", "query_string": b""},
    ]
    for scope in scopes:
        assert listeners.session_of({"method": "GET", **scope}, queue) == "deaf"
    with listeners.listening("deaf") if listens else nullcontext():
        event.enqueue_time -= listeners.UNHEARD_SECONDS + 1
        assert listeners.unheard(event) is not listens
        ended = while_heard(queue, event)
        with nullcontext() if listens else pytest.raises(LeftError):
            ended()
        assert client.portal
        client.portal.call(waiting.end_overdue, queue, time.monotonic())
        assert (event._id in queue.event_ids_to_events) is listens
        queue.event_ids_to_events.clear()
        event.enqueue_time = math.inf  # what Gradio has forgotten ends, too, however young it is
        with pytest.raises(LeftError):
            ended()


NAMES_NOTHING = [
    ("call/nothing", {"data": []}, 404),
    ("call/v2/nothing", {}, 404),
    ("call/v2/wait", {"x": 1}, 422),
    ("call/v2/wait", {"text": "x", "more": "y" * 10_000}, 422),
    ("queue/join", {"fn_index": 99_999, "data": [], "session_hash": "s"}, 404),
    ("queue/join", {"fn_index": 2, "data": [], "session_hash": "s"}, 404),
    ("queue/join", {"fn_index": "0", "data": ["x"], "session_hash": "s"}, 422),
    ("queue/join", {"fn_index": 0.0, "data": ["x"], "session_hash": "s"}, 422),
    ("queue/join", {"fn_index": True, "data": ["x"], "session_hash": "s"}, 422),
    ("queue/join", {"fn_index": [0], "data": ["x"], "session_hash": "s"}, 422),
]


def test_what_names_no_function_is_refused(client: TestClient) -> None:
    """In a sentence. Else Gradio fails, and each such request writes some eighty lines into the log."""
    for path, body, status in NAMES_NOTHING:
        answer = client.post(f"/gradio_api/{path}", json=body)
        assert answer.status_code == status and 20 < len(answer.json()["detail"]) < 300, (path, body)


def test_what_has_waited_too_long_is_ended_in_words(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The times so far promised less: the visitor is told all the same, and the place is free again."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    for name in ("old", "older"):
        assert join(client, name, "x").status_code == 200
    queue = queue_of(client)
    line = queue.event_queue_per_concurrency_id[queue.blocks.fns[0].concurrency_id].queue
    line[1].enqueue_time -= 61
    with listeners.listening("old"), listeners.listening("older"):
        assert client.portal
        client.portal.call(waiting.end_overdue, queue, line[0].enqueue_time + 30)
    assert [event.session_hash for event in line] == ["old"]
    messages = queue.pending_messages_per_session["older"]
    said = [messages.get_nowait() for _ in range(messages.qsize())][-1]
    assert not said.success and re.findall(r"\d+", said.output["error"]) == ["60", "2"]


@pytest.fixture(scope="module")
def real() -> Iterator[tuple[str, SimpleQueue[str], gr.Blocks]]:
    """A server on a port of its own with two endpoints that would never end, one a generator; and that their
    runs began, and how they ended."""
    ended: SimpleQueue[str] = SimpleQueue()

    def work() -> None:
        ended.put("began")
        try:
            while True:
                checkpoint()
        except BaseException as error:
            ended.put(type(error).__name__)
            raise

    def once(text: str) -> str:
        with stoppable(check_of_this_run()):
            work()
        return text

    def steps(text: str) -> Iterator[str]:
        yield text
        yield once(text)

    def waits(text: str) -> Iterator[str]:
        for _ in range(3):
            sessions.current_request().waited.seconds += 1
            yield f"waited for {sessions.current_request().waited.seconds:.0f} s"

    with CheckedBlocks() as blocks:
        name = gr.Textbox()
        for number, handler in enumerate((once, steps)):
            (name.submit if number else name.change)(handler, name, name, api_name=handler.__name__)
        name.blur(lambda text: f"{text * 1000} of {sessions.current_session()}", name, name, api_name="fill")
        name.input(waits, name, name, api_name="waits")
    blocks.queue()
    options = {"lifespan": waiting.watched, "middleware": [Middleware(guard.Guard)]}
    _, url, _ = blocks.launch(
        prevent_thread_lock=True, quiet=True, server_name="127.0.0.1", app_kwargs=options
    )
    yield url, ended, blocks
    blocks.close()


def answered(url: str, number: int) -> str:
    """All that a function says to the session "long"."""
    with httpx.Client(base_url=f"{url}gradio_api/", timeout=60) as client:
        body = {"data": ["words"], "fn_index": number, "session_hash": "long"}
        assert client.post("queue/join", json=body).status_code == 200
        with client.stream("GET", "queue/data", params={"session_hash": "long"}) as lines:
            return "".join(lines.iter_lines())


def test_what_a_run_has_waited_is_of_all_its_steps(real: Any) -> None:
    """Gradio asks for each step of a generator anew: the time was that of the last step."""
    assert "waited for 3 s" in answered(real[0], 3) and "waited for 3 s" in answered(real[0], 3)


def test_a_session_keeps_no_answers(real: Any) -> None:
    """Else each answer stays in memory for as long as the page is open, twice over."""
    for _ in range(5):
        assert "wordswords of long" in answered(real[0], 2)
    blocks = real[2]
    session = blocks.state_holder["long"]
    assert set(session.blocks_config.blocks) == set(blocks.blocks)
    assert not list(session.components)


def test_sessions_are_bounded() -> None:
    """The one that was used longest ago goes first."""
    kept = sessions.Sessions()
    with gr.Blocks() as blocks:
        gr.Textbox()
    blocks.state_session_capacity = 3
    kept.set_blocks(blocks)
    for i in range(9):
        assert kept[f"visit{i}"] is kept[f"visit{i}"]
    assert list(kept.session_data) == ["visit6", "visit7", "visit8"]


def test_streams_of_one_session_leave_nothing(real: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of those that were open at once, all but one left a task that never ended, and a traceback in the log:
    one address filled the memory by a gigabyte an hour."""
    url, ended, _ = real
    monkeypatch.setattr(listeners, "UNHEARD_SECONDS", math.inf)

    def heartbeats() -> int:
        tasks = [one for one in gc.get_objects() if isinstance(one, asyncio.Task) and not one.done()]
        return sum("heartbeat" in str(one.get_coro()) for one in tasks)

    until(lambda: not heartbeats())
    with httpx.Client(base_url=f"{url}gradio_api/", timeout=60) as client:
        body = {"data": ["x"], "fn_index": 1, "session_hash": "several"}
        assert client.post("queue/join", json=body).status_code == 200
        with ExitStack() as open_streams:
            for _ in range(3):
                stream = client.stream("GET", "queue/data", params={"session_hash": "several"})
                assert open_streams.enter_context(stream).status_code == 200
            assert ended.get(timeout=60) == "began"
            until(lambda: heartbeats() == 3)
    until(lambda: not heartbeats())
    assert ended.get(timeout=60) in ("LeftError", "GeneratorExit")


@pytest.mark.parametrize("stops", [False, True], ids=["leaves", "stops"])
@pytest.mark.parametrize("number", [0, 1], ids=["function", "generator"])
def test_leaving_stops_the_work(real: Any, number: int, stops: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who closes the page, or presses Stop there, holds no core: at the next checkpoint the work ends. By
    Gradio alone, Stop waits for the end of a generator's step. Nobody stops another session's work."""
    url, ended, blocks = real
    monkeypatch.setattr(listeners, "UNHEARD_SECONDS", math.inf)
    with httpx.Client(base_url=f"{url}gradio_api/", timeout=60) as client:
        body = {"data": ["x"], "fn_index": number, "session_hash": f"leaving{number}{stops}"}
        body["event_id"] = client.post("queue/join", json=body).json()["event_id"]
        with client.stream("GET", "queue/data", params={"session_hash": body["session_hash"]}) as messages:
            lines = messages.iter_lines()  # held: an iterator that is dropped closes its connection
            assert any("process_starts" in line for line in lines)
            assert ended.get(timeout=60) == "began"  # who leaves earlier finds nothing to stop
            if stops:  # Gradio would begin a generator anew, with all its time
                assert client.post("cancel", json=body | {"session_hash": "other"}).status_code == 404
                assert blocks._queue.event_ids_to_events[body["event_id"]].alive and ended.empty()
            if stops:
                assert client.post("cancel", json=body).status_code == 200
                assert ended.get(timeout=60) == "LeftError"
    assert stops or ended.get(timeout=60) in ("LeftError", "GeneratorExit")


@pytest.mark.parametrize("number", [0, 1], ids=["function", "generator"])
def test_runs_that_end_early_leave_nothing(real: Any, number: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """What was stopped or refused lay in memory with all its values until Python looked for cycles."""
    url, ended, _ = real
    monkeypatch.setattr(listeners, "UNHEARD_SECONDS", math.inf)

    def kept() -> list[str]:
        events = [one for one in gc.get_objects() if type(one) is Event]
        return [str(one.session_hash) for one in events if str(one.session_hash).startswith("early")]

    gc.collect()
    gc.disable()
    try:
        for name, values in (("stops", ["x"]), ("leaves", ["x"]), ("refused", [1])) * 2:
            with httpx.Client(base_url=f"{url}gradio_api/", timeout=60) as client:
                body = {"data": values, "fn_index": number, "session_hash": f"early-{name}"}
                body["event_id"] = client.post("queue/join", json=body).json()["event_id"]
                with client.stream("GET", "queue/data", params={"session_hash": f"early-{name}"}) as stream:
                    lines = stream.iter_lines()
                    assert any("process_starts" in line for line in lines)
                    if name == "refused":
                        assert any("process_completed" in line for line in lines)
                        continue
                    assert ended.get(timeout=60) == "began"
                    if name == "stops":
                        assert client.post("cancel", json=body).status_code == 200
            assert ended.get(timeout=60) in ("LeftError", "GeneratorExit")
        until(lambda: len(kept()) <= 2, lambda: str(kept()))  # each loop of Gradio's holds its last one
    finally:
        gc.enable()


def test_a_run_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """Inside one item of work too: a search that would take minutes ends with a sentence."""
    monkeypatch.setattr(limits, "current", lambda: dataclasses.replace(limits.HOSTED, run_seconds=-1))
    with pytest.raises(StoppedError, match="time limit"), stoppable(check_of_this_run()):
        checkpoint()


def test_what_gives_way_to_views_has_its_time(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else what a crowded page computes for a large tensor never ends: each run would begin anew."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0])
    quiet = SimpleNamespace(wait=lambda seconds: now.__setitem__(0, now[0] + seconds))
    monkeypatch.setattr(work, "time", clock)
    monkeypatch.setattr(work, "_NO_VIEW", quiet)
    check, spent = check_of_this_run(work.FILLING), 0.0
    with pytest.raises(StoppedError, match="time limit"):
        while spent < 2 * limits.current().run_seconds:
            check()
            now[0] += 10
            spent += 10
    assert spent == limits.current().run_seconds + 10


def test_a_filling_gives_way_to_views_and_not_to_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    """One run of another visitor made the first screen take three times as long."""
    monkeypatch.setattr(cores.SECONDS, "_whole", {})
    seen = []

    def steps(query: Any) -> Iterator[dict[str, str]]:
        seen.append(work._NO_VIEW._event.is_set())
        yield {}

    *_, end = section._steps("methods.methods", steps, {}, ())
    for used in (0, cores.SECONDS_AT_ONCE):  # and not to views that are asked for without a pause
        cores.SECONDS.use("192.0.2.1", used)
        with answering(CurrentRequest(address="192.0.2.1")), work.awaited():
            seen.append(work._NO_VIEW._event.is_set())
    assert end["ended"] and seen == [True, False, True] and work._NO_VIEW._event.is_set()


def test_a_view_that_takes_long_leaves_time_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """While others compute, at its checks, and charged there: four views of 30 s made runs of 3 take 25."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda took: now.__setitem__(0, now[0] + took))
    monkeypatch.setattr(work, "time", clock)
    monkeypatch.setattr(cores, "thread_time", lambda: now[0])
    monkeypatch.setattr(cores.SECONDS, "_whole", {})
    monkeypatch.setattr(cores.SECONDS, "clock", lambda: 0.0)
    cores.WORKING.add(1, "192.0.2.2")
    with answering(CurrentRequest(address="192.0.2.1")), cores.charged():
        check = check_of_this_run()
        for _ in range(200):
            now[0] += 0.1
            check()
        assert cores.SECONDS.left("192.0.2.1") < -10
    cores.WORKING.add(-1, "192.0.2.2")
    assert 60 < now[0] <= 80 + 1, "three quarters of the time are others'"


def test_a_moment_of_others_takes_little_of_a_view(monkeypatch: pytest.MonkeyPatch) -> None:
    """One who asked for 5 ms of work now and then made long requests of others take twice as long."""
    now = [0.0]
    clock = SimpleNamespace(monotonic=lambda: now[0], sleep=lambda took: now.__setitem__(0, now[0] + took))
    monkeypatch.setattr(work, "time", clock)
    monkeypatch.setattr(work, "charge", lambda: None)
    others = itertools.cycle([True, *[False] * 9])
    monkeypatch.setattr(work, "has_had", lambda who: next(others))
    check = check_of_this_run()
    for _ in range(200):
        now[0] += 0.1
        check()
    assert 20 + 20 * 0.3 - 1 < now[0] < 20 + 20 * 0.3 + 1


def test_one_request_has_few_schemes() -> None:
    """2,000 times the same is one; 299 different ones are refused before any work."""
    assert [str(scheme) for scheme in choices.schemes_of(["nvfp4"] * 2000)] == ["nvfp4"]
    many = ",".join(f"int4~1x{side}~symmetric~float32~minmax" for side in range(1, 300))
    with pytest.raises(gr.Error, match="at most 200"):
        api.report("mlp_up", many)


def test_whose_share_it_is(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who could name any address would have any number of shares."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    for peer, header, counted in (
        ("8.8.4.4", "1.2.3.4", "8.8.4.4"),  # no proxy's address: what it says is the visitor's own
        ("127.0.0.1", "8.8.8.8, 198.51.100.7", "198.51.100.7"),
        ("10.1.2.3", "2001:db8:1:2:aaaa::1", "2001:db8:1:2::/64"),
        ("2001:db8:1:2:bbbb::2", "", "2001:db8:1:2::/64"),
        ("127.0.0.1", "::ffff:8.8.4.4", "8.8.4.4"),  # of a proxy that listens to both
        ("127.0.0.1", "8.8.8.8:50001", "8.8.8.8"),  # of one that adds the connection's port
        ("127.0.0.1", "[2001:db8:1:2::1]:50001", "2001:db8:1:2::/64"),
    ):
        headers = [(b"x-forwarded-for", header.encode())] if header else []
        scope: Any = {"type": "http", "client": (peer, 1), "headers": headers}
        assert visitors.address_of(scope) == counted
    monkeypatch.setenv("EXPLORER_HOSTED", "0")
    assert visitors.address_of(scope) == "127.0.0.1", "of a page of this machine alone"


def test_no_answer_goes_round_the_queue(client: TestClient, release: threading.Event) -> None:
    """Gradio's /run/… has neither a share nor an end."""
    release.set()
    for path in ("run", "api"):
        answer = client.post(f"/gradio_api/{path}/wait", json={"data": ["x"]})
        assert answer.status_code == 404, answer.text


def test_health_and_metrics(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """What a load balancer and a monitor ask; refusals are counted by reason. Metrics take 3 ms, in which
    nobody is answered: they are made once a second."""
    monkeypatch.setattr(measure, "_made", (math.inf, b"made"))
    assert client.get("/metrics").content == b"made"
    monkeypatch.setattr(measure, "METRICS_SECONDS", -math.inf)
    before = client.get("/metrics").text
    assert client.get("/health").json() | {"status": "ok", "hosted": False} == client.get("/health").json()
    join(client, "a", {"path": "http://example.com/"}, 1)
    after = client.get("/metrics").text

    def refused(text: str) -> float:
        lines = [
            line for line in text.splitlines() if line.startswith('explorer_refused_total{reason="address"}')
        ]
        return float(lines[0].split()[-1]) if lines else 0.0

    assert refused(after) == refused(before) + 1
    assert "explorer_queue 0.0" in after


HOSTED_BY = [
    ({}, {}, False),
    ({"SPACE_ID": "a/b"}, {}, True),
    ({"GRADIO_SHARE": "True"}, {}, True),
    ({"GRADIO_SERVER_NAME": "0.0.0.0"}, {}, True),
    ({}, {"x-forwarded-for": "192.0.2.1"}, True),
    ({}, {"forwarded": "for=192.0.2.1"}, True),
    ({"EXPLORER_HOSTED": "0"}, {"x-forwarded-for": "192.0.2.1"}, False),
    ({"EXPLORER_HOSTED": "0", "SPACE_ID": "a/b"}, {}, False),
    ({"EXPLORER_HOSTED": "1"}, {}, True),
]


def test_what_makes_a_page_hosted(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    """Behind a proxy every address looks local: its headers tell. The log says which."""
    for environment, headers, hosted in HOSTED_BY:
        for name in ("SPACE_ID", "GRADIO_SHARE", "GRADIO_SERVER_NAME", "EXPLORER_HOSTED"):
            monkeypatch.delenv(name, raising=False)
        for name, value in environment.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setattr(limits, "_found", [])
        caplog.clear()
        raw = [(name.encode(), value.encode()) for name, value in headers.items()]
        scope: Any = {"type": "http", "client": ("127.0.0.1", 1), "headers": raw}
        with caplog.at_level(logging.WARNING, "explorer"):
            visitors.note_proxies(scope)
        assert limits.current().hosted is hosted, (environment, headers)
        assert not (headers and hosted) or next(iter(headers)) in caplog.text
        assert next(iter(environment), "") in limits.why() or not environment


def test_a_refused_name_does_not_open_the_page_to_strangers(client: TestClient) -> None:
    """A site whose name points here can send the header of a proxy: refused, it decides nothing. What comes
    through a proxy does."""
    headers = {"host": "evil.example:7860", "x-real-ip": "1"}
    assert client.get("/health", headers=headers).status_code == 400
    assert client.get("/health").json()["hosted"] is False
    for origin in ("http://evil.example", "foo://localhost", "//localhost", "http://[::1"):
        sent = {"origin": origin, "x-forwarded-for": "1.2.3.4"}
        answer = client.post("/gradio_api/upload", files={"files": b"1"}, headers=sent)
        assert answer.status_code == 403, origin
    assert client.get("/nowhere", headers={"x-forwarded-for": "1.2.3.4"}).status_code == 404
    assert client.get("/health").json()["hosted"] is False
    client.get("/config", headers={"x-forwarded-for": "1.2.3.4"})
    assert client.get("/health").json()["hosted"] is True


def test_a_page_of_this_machine_stands_in_no_other_sites_frame(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Anybody can have a Space, and lead a click in its frame to this page."""
    assert "hf.space" not in client.get("/health").headers["content-security-policy"]
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    policy = client.get("/health").headers["content-security-policy"]
    assert "frame-ancestors 'self' https://huggingface.co" in policy


def test_what_was_broken_off_is_swept(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Gradio leaves the file of an upload that was broken off beside the folders of finished ones."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    now = time.time()
    finished = tmp_path / "hash" / "a.npy"
    finished.parent.mkdir()
    old = uploads.visitor_folder("192.0.2.1") / "tmpold"
    old.parent.mkdir()
    for path, age in ((old, 3600), (tmp_path / "tmpnew", 1), (finished, 3600)):
        path.write_bytes(b"x")
        os.utime(path, (now - age, now - age))
    assert uploads.sweep(now) == 1
    old.parent.rmdir()
    assert {path.name for path in tmp_path.rglob("*")} == {"tmpnew", "hash", "a.npy"}
    os.utime(tmp_path / "tmpnew", (now - 10**6, now - 10**6))
    os.utime(finished, (now - 10**6, now - 10**6))
    assert uploads.sweep(now) == 2
    os.utime(finished.parent, (now - 10**6, now - 10**6))
    uploads.sweep(now)
    assert not list(tmp_path.iterdir()), "empty folders go too"


def test_folders_of_processes_that_are_gone_are_removed(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """A process that was killed cannot remove its own. Its number says nothing: in a container, each page is
    number 1."""
    monkeypatch.setattr(uploads.tempfile, "gettempdir", lambda: str(tmp_path))
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    running = uploads.make_store().rename(tmp_path / f"{uploads.PREFIX}4194305-b")
    monkeypatch.setenv("GRADIO_TEMP_DIR", "")
    gone, other = (tmp_path / name for name in (f"{uploads.PREFIX}{os.getpid()}-a", f"{uploads.PREFIX}main"))
    for folder in (gone, other):
        folder.mkdir()
    made = uploads.make_store()
    assert made.is_dir() and uploads.store() == made
    assert fresh_folder().parent == made, "results are counted, and removed, with the uploads"
    mine = tmp_path / "mine"
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(mine))
    assert uploads.make_store().parent == mine, "what else lies in a chosen folder is not swept"
    assert not gone.exists() and running.exists() and other.exists()


def test_nothing_is_written_into_a_removed_store(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Threads still write for visitors as the page ends: in four of four runs their files remained."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    uploads.make_store()
    remove, folder = shutil.rmtree, fresh_folder()

    def while_written(path: Path, **options: Any) -> None:
        monkeypatch.setattr(uploads.shutil, "rmtree", remove)
        for late in (fresh_folder, lambda: (folder / "a.csv").write_text("1")):
            with pytest.raises(OSError):
                late()
        folder.mkdir(parents=True)  # by a thread that knows its path
        remove(path, **options)

    monkeypatch.setattr(uploads.shutil, "rmtree", while_written)
    uploads.remove_store()
    assert not list(tmp_path.iterdir())


def test_what_a_file_says_is_text(monkeypatch: pytest.MonkeyPatch) -> None:
    """Gradio reads a toast as HTML: a cell of a csv could show a link, or fetch a picture from elsewhere."""
    said: list[str] = []
    monkeypatch.setattr(gr, "Warning", lambda message, duration: said.append(message))
    limits.notify('<img src="http://example.com/x"> & more')
    assert said == ['&lt;img src="http://example.com/x"&gt; &amp; more']
