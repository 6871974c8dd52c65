"""Server functions: what a stranger may call, how much at once, and for how long.

If these fail, a request reaches any method of a component, or a few slow ones stop the page for all.
"""

from __future__ import annotations

import dataclasses
import gc
import itertools
import json
import socket
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor, as_completed
from queue import SimpleQueue
from typing import Any

import gradio as gr
import httpx
import pytest
from gradio.routes import App
from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.testclient import TestClient

from app import limits
from app.serving import cores, functions
from app.serving.sessions import CurrentRequest, answering, current_session
from app.serving.values import MOST_TEXT
from app.state import visits
from app.state.query import Query
from app.state.visits import visit
from explorer.progress import checkpoint
from tests.app.servers import served, until

PATH = "/gradio_api/component_server"
JSON = {"content-type": "application/json"}


class Page:
    """A page with one section, and a client of it. ``view`` answers at once or goes on until ``release``."""

    def __init__(self, entry: Any) -> None:
        self.release = threading.Event()
        self.ended = set[str | None]()
        self.said: SimpleQueue[str] = SimpleQueue()
        self.release.set()

        def view(query: dict[str, str]) -> dict[str, Any]:
            return self.answer(query)

        def other(query: dict[str, str]) -> dict[str, Any]:
            return self.answer(query)

        with gr.Blocks() as blocks:
            self.box, self.files = gr.Textbox(), gr.FileExplorer()  # Gradio's own has functions, too
            self.section = gr.HTML(server_functions=[view, other], elem_id="section")
        blocks.queue(**entry.queue_options())
        self.app = App.create_app(blocks, app_kwargs=entry.launch_options()["app_kwargs"])
        blocks.config = blocks.get_config_file() | {"body_css": {}}

    def answer(self, query: dict[str, str]) -> dict[str, Any]:
        self.said.put("began")
        if (wrong := query.get("wrong")) is not None:
            raise {"value": ValueError, "defect": KeyError}[wrong](wrong)
        end = time.monotonic() + 60  # of a test that fails
        try:
            while not self.release.is_set() and current_session() not in self.ended:
                assert time.monotonic() < end
                checkpoint()
        except BaseException as error:
            self.said.put(type(error).__name__)
            raise
        return {"query": query, "session": current_session(), "nan": float("nan")}

    def end(self, session: str) -> None:
        """Let the views of one session end."""
        self.ended.add(session)

    def body(self, session: str = "s", name: str = "view", **query: str) -> dict[str, Any]:
        return {"data": query, "fn_name": name, "session_hash": session, "component_id": self.section._id}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, entry: Any) -> Iterator[Page]:
    monkeypatch.delenv("EXPLORER_HOSTED", raising=False)
    monkeypatch.setattr(functions, "LINE", functions.Line())
    monkeypatch.setattr(cores.SECONDS, "_whole", {})
    made = Page(entry)
    yield made
    made.release.set()


@pytest.fixture
def client(page: Page) -> Iterator[TestClient]:
    with TestClient(page.app, base_url="http://localhost", client=("127.0.0.1", 5)) as client:
        yield client
        page.release.set()


def test_a_view_is_answered_in_its_session(client: TestClient, page: Page) -> None:
    """As one object, or as a list of it."""
    for data in ({"a": "1"}, [{"a": "1"}]):
        for path in (PATH, f"{PATH}/"):
            answer = client.post(path, json=page.body("mine") | {"data": data})
            assert answer.json() == {"query": {"a": "1"}, "session": "mine", "nan": None}


def test_what_names_no_function_of_a_section_is_refused(client: TestClient, page: Page) -> None:
    """In words, and before anything is looked up by a name of the caller's."""
    good, deep = page.body(), "x"
    for _ in range(100):
        deep = [deep]  # type: ignore[assignment]
    wrong: list[tuple[Any, int]] = [
        ([good], 422), (None, 422), ({}, 422),
        *((good | {"fn_name": name}, 404) for name in ("__class__", "launch", "postprocess", "preprocess", "",
                                                       "server_fns", "view.__wrapped__", "get_config")),
        *((good | {"fn_name": name}, 422) for name in (None, 1, ["view"], {})),
        *((good | {"component_id": number}, 404) for number in (page.box._id, -1, 10**30)),
        *((good | {"component_id": number}, 422) for number in (None, True, "1", 1.0, [1])),
        *((good | {"session_hash": name}, 422) for name in (None, 1, "", "a b", "x" * 65, ["s"])),
        *((good | {"data": data}, 422) for data in (None, "x", 1, [], [{}, {}], [[{}]], {"a": 1}, {"a": None},
                                                    {"a": {"path": "x"}}, {"a": ["x"]},
                                                    {"a": "x" * 65537})),
        *((good | {"data": data}, 422) for data in ({"x" * 65: "a"}, {str(i): "" for i in range(101)})),
        (good | {"component_id": page.files._id, "fn_name": "ls"}, 404),
        (good | {"data": deep}, 400),
    ]  # fmt: skip
    for body, status in [("", 422), *((json.dumps(one), status) for one, status in wrong)]:
        answer = client.post(PATH, content=body, headers=JSON)
        assert answer.status_code == status and 10 < len(answer.json()["detail"]) < 300, (body, answer.text)
    assert page.said.empty()


def test_a_view_takes_no_form(client: TestClient, page: Page) -> None:
    """Gradio's route reads files from forms, into the memory."""
    fields = {key: str(value) for key, value in page.body().items()}
    assert client.post(PATH, data=fields, files={"file": b"x"}).status_code in (400, 415)
    for kind in ("text/plain", "multipart/form-data; boundary=b", ""):
        answer = client.post(PATH, content=json.dumps(page.body()), headers={"content-type": kind})
        assert answer.status_code == 415, kind
    assert page.said.empty()


def test_a_refusal_of_a_view_is_words_and_a_defect_is_none_of_its_callers(
    client: TestClient, page: Page, caplog: pytest.LogCaptureFixture
) -> None:
    answer = client.post(PATH, json=page.body(wrong="value"))
    assert answer.status_code == 422 and answer.json() == {"detail": "value"}
    answer = client.post(PATH, json=page.body(wrong="defect", a="secret" * 100))
    assert answer.status_code == 500 and "defect of the page" in answer.json()["detail"]
    assert "KeyError" in caplog.text and "secret" not in caplog.text


def test_an_answer_has_a_limit(
    client: TestClient, page: Page, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Long names of a small file make large answers, which a client may leave unread."""
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, answer_bytes=1000))
    assert client.post(PATH, json=page.body(a="x" * 500)).status_code == 200
    answer = client.post(PATH, json=page.body(a="x" * 1000))
    assert answer.status_code == 422 and "at most 1 kB" in answer.json()["detail"]
    assert "is refused" in caplog.text and "xxx" not in caplog.text


def test_visitors_do_not_see_each_others_visit(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nor does who is dropped get anybody else's; outside a server nothing is kept."""
    monkeypatch.setattr(visits, "_visits", type(visits._visits)())
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, sessions=2))
    of = {}
    for session in ("a", "b", "a", "c"):
        with answering(CurrentRequest(session)):
            of[session] = visit()
            assert visit() is of[session]
            visit().opened_recordings = (session,)  # type: ignore[assignment]
    assert list(visits._visits) == ["a", "c"] and of["a"].opened_recordings == ("a",)
    with answering(CurrentRequest("b")):
        assert visit().opened_recordings == ()
    assert visit() is not visit() and list(visits._visits) == ["c", "b"]


def test_one_address_takes_no_visit_from_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """However many pages it opens: the oldest visit goes of the address that has the most."""
    monkeypatch.setattr(visits, "_visits", type(visits._visits)())
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, sessions=4))
    for session, address in (("a", "x"), ("b", "y"), ("c", "y"), *((f"d{i}", "z") for i in range(9))):
        with answering(CurrentRequest(session, address=address)):
            visit()
    assert list(visits._visits) == ["a", "c", "d7", "d8"]


def test_visits_are_bounded_in_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    """The oldest visit goes of the address that has most of them, until the others fit."""
    monkeypatch.setattr(visits, "_visits", type(visits._visits)())
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, visit_bytes=100_000))
    for session, address in (("a", "x"), ("b", "y"), ("c", "x"), ("d", "x"), ("e", "x")):
        with answering(CurrentRequest(session, address=address)):
            visit().checks = {}
            visit().checks = {session * 20_000: None}  # type: ignore[dict-item]
    with answering(CurrentRequest("e", address="x")):
        assert visit().checks
    assert list(visits._visits) == ["b", "c", "d", "e"]
    with answering(CurrentRequest("b", address="y")):
        visit().checks = {"b" * 200_000: None}  # type: ignore[dict-item]
    with answering(CurrentRequest("c", address="x")):
        visit()
    assert list(visits._visits) == ["d", "e", "c"]


@pytest.mark.parametrize(
    ("headers", "status"),
    [({"host": "evil.example"}, 400), ({"origin": "http://evil.example"}, 403), ({"origin": "null"}, 403)],
    ids=["host", "origin", "frame"],
)  # fmt: skip
def test_another_site_calls_no_view(
    client: TestClient, page: Page, headers: dict[str, str], status: int
) -> None:
    assert client.post(PATH, json=page.body(), headers=headers).status_code == status and page.said.empty()


def test_a_view_is_called_with_little(client: TestClient, page: Page) -> None:
    body = page.body() | {"data": {str(i): "x" * MOST_TEXT for i in range(99)} | {"what": "x" * 65_536}}
    assert client.post(PATH, json=body).status_code == 200
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, request_bytes=1 << 18))
        assert client.post(PATH, json=body).status_code == 413


def test_what_one_address_leaves_unread_is_little(
    client: TestClient, page: Page, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Answers of megabytes that are never read would fill the memory; others are answered meanwhile."""
    monkeypatch.setattr(page, "answer", lambda query: page.release.wait(60) and {"text": "x" * (1 << 24)})
    monkeypatch.setattr(functions, "address_of", lambda scope: Headers(scope=scope)["session"])
    server, port = served(page.app)

    def asked(who: str, session: str) -> socket.socket:
        body = json.dumps(page.body(session)).encode()
        mine = socket.create_connection(("127.0.0.1", port), timeout=30)
        mine.sendall(
            f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nSession: {who}\r\nContent-Type: application/json\r\n"
            f"Content-Length: {len(body)}\r\n\r\n".encode()
            + body
        )
        return mine

    def statuses(*asked: socket.socket) -> list[bytes]:
        found = [one.recv(12)[-3:] for one in asked]
        for one in asked:
            one.close()
        until(lambda: not functions.UNSENT, lambda: f"still held: {functions.UNSENT}")
        return found

    few = [b"200", b"200", b"429", b"429", b"200"]  # two have as many bytes as one answer may have
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, answer_bytes=1 << 25, views=1))
    assert statuses(*(asked("greedy", str(number)) for number in range(4)), asked("other", "o")) == few
    page.release.clear()  # all wait for the first
    at_once = [asked("greedy", str(number)) for number in range(6)]
    until(lambda: len(functions.LINE.waiting) == 5)
    page.release.set()
    assert sorted(statuses(*at_once)) == [b"200"] * 2 + [b"429"] * 4
    server.close()


def test_one_record_is_made_while_another_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """Python 3.11's cached properties have one lock for all: a slow file of one visitor stops all others."""
    began, release = threading.Event(), threading.Event()

    def slow(query: Query) -> str | None:
        began.set()
        assert query.get("sample") != "held" or release.wait(60)
        return None

    monkeypatch.setattr(Query, "_file", slow)
    with ThreadPoolExecutor(1) as pool:
        held = pool.submit(lambda: Query({"source": "file", "sample": "held"}).record)
        assert began.wait(60)
        free = threading.Thread(target=lambda: Query({"source": "file"}).record, daemon=True)
        free.start()
        free.join(60)
        waits = free.is_alive()
        release.set()
        assert held.result().source == "builtin" and not waits


def test_a_view_has_an_end(client: TestClient, page: Page, monkeypatch: pytest.MonkeyPatch) -> None:
    page.release.clear()
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, run_seconds=-1))
    answer = client.post(PATH, json=page.body())
    assert answer.status_code == 422 and "time limit" in answer.json()["detail"]


class Visitors:
    """Calls of the views of a running server by several visitors at once."""

    def __init__(self, page: Page, url: str, pool: ThreadPoolExecutor) -> None:
        self.page, self._url, self._pool = page, url, pool

    def call(self, session: str, number: int = 1, name: str = "view") -> Future[httpx.Response]:
        """A call in a session from the address with a ``number``."""
        headers, body = {"x-forwarded-for": f"192.0.2.{number}"}, self.page.body(session, name)
        return self._pool.submit(httpx.post, self._url, json=body, headers=headers, timeout=20)

    def leaving(self, session: str) -> socket.socket:
        """The connection of such a call."""
        text = json.dumps(self.page.body(session)).encode()
        head = f"POST {PATH} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        connection = socket.create_connection(("127.0.0.1", httpx.URL(self._url).port or 0), timeout=20)
        connection.sendall(f"{head}Content-Length: {len(text)}\r\n\r\n".encode() + text)
        return connection

    def said(self) -> str:
        """What the next view says: it has begun, or how it ended."""
        return self.page.said.get(timeout=8)


@pytest.fixture
def visitors(page: Page, monkeypatch: pytest.MonkeyPatch) -> Iterator[Visitors]:
    """Of a hosted page with a place for two views of each address, and three of all; they do not end by
    themselves."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    monkeypatch.setattr(limits, "HOSTED", dataclasses.replace(limits.HOSTED, views=2))
    monkeypatch.setattr(functions, "AT_ONCE", 3)
    page.release.clear()
    server, port = served(page.app)
    with ThreadPoolExecutor(8) as pool:
        yield Visitors(page, f"http://127.0.0.1:{port}{PATH}", pool)
        page.release.set()
    server.close()


def test_views_of_one_address_leave_room_for_others(
    visitors: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else one visitor's slow views keep everybody waiting. Who waits too long is told so."""
    monkeypatch.setattr(functions, "WAIT_SECONDS", 0.2)
    mine = [visitors.call(f"s{i}") for i in range(4)]
    assert [visitors.said(), visitors.said()] == ["began", "began"]
    refused = [one.result() for one in itertools.islice(as_completed(mine, timeout=20), 2)]
    assert [one.status_code for one in refused] == [429, 429] and refused[0].headers["retry-after"]
    assert refused[0].json()["detail"].startswith("2 views of your address or 3 of all visitors")
    other = visitors.call("t", 2)
    assert visitors.said() == "began"
    assert visitors.call("u", 3).result().status_code == 429, "three are the most of all"
    monkeypatch.setattr(functions, "WAITING", 0)
    monkeypatch.setattr(functions, "WAIT_SECONDS", 60)
    assert visitors.call("v", 3).result().json()["detail"].startswith("0 views wait")
    assert visitors.page.said.empty()
    visitors.page.release.set()
    assert sorted(one.result().status_code for one in (*mine, other)) == [200, 200, 200, 429, 429]
    assert not functions.LINE.running and not functions.LINE.waiting and not functions._latest


def test_who_has_the_fewest_views_is_next(visitors: Visitors) -> None:
    """However many one address asked for before."""
    mine = [visitors.call("s0"), visitors.call("s1")]
    assert [visitors.said(), visitors.said()] == ["began", "began"]
    mine += [visitors.call(f"s{i}", 3 if i == 2 else 1) for i in range(2, 5)]
    until(lambda: len(functions.LINE.waiting) == 2)
    other = visitors.call("t", 2)
    until(lambda: len(functions.LINE.waiting) == 3)
    assert visitors.said() == "began"
    visitors.page.end("s0")
    assert mine[0].result().json()["session"] == "s0"
    assert visitors.said() == "began"
    visitors.page.end("t")
    assert other.result().json()["session"] == "t", "it did not wait for s3 and s4"


def test_a_newer_view_ends_the_older(visitors: Visitors) -> None:
    """Of its session and function alone; and whether that runs or waits."""
    old = visitors.call("s")
    assert visitors.said() == "began"
    other = visitors.call("s", name="other")
    assert visitors.said() == "began"
    waits = visitors.call("t")
    until(lambda: len(functions.LINE.waiting) == 1)
    newer = visitors.call("t")
    assert waits.result().json() is None
    assert visitors.page.said.empty() and not old.done(), "another session's goes on"
    newest = visitors.call("s")
    assert old.result().json() is None and visitors.said() == "OvertakenError"
    assert visitors.said() == "began"
    visitors.page.release.set()
    assert [one.result().json()["session"] for one in (other, newer, newest)] == ["s", "t", "s"]


def test_views_that_end_early_leave_nothing(visitors: Visitors) -> None:
    """Overtaken ones and those that were left lay in memory with their bodies until the collector came: one
    address filled 5 GB in 10 s."""

    def kept() -> list[Any]:
        page, every = visitors.page, gc.get_objects()
        calls = [one for one in every if type(one) is functions.Call and one.named.component is page.section]
        return calls + [one for one in every if type(one) is Request and one.scope.get("app") is page.app]

    gc.collect()
    gc.disable()
    try:
        old = visitors.call("s")
        assert visitors.said() == "began"
        waits = visitors.leaving("t")
        assert visitors.said() == "began"
        newer = visitors.call("s")
        waits.close()
        said = sorted(visitors.said() for _ in range(3))
        assert said == ["LeftError", "OvertakenError", "began"] and old.result().json() is None
        visitors.page.release.set()
        assert newer.result().json()["session"] == "s"
        until(lambda: not kept(), lambda: str(kept()))
    finally:
        gc.enable()


def test_an_overtaken_view_that_meets_no_checkpoint_is_not_answered(
    visitors: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its answer would come after the newer one's, and be shown in its place."""
    monkeypatch.setattr(sys.modules[__name__], "checkpoint", visitors.page.release.wait)
    old = visitors.call("s")
    assert visitors.said() == "began"
    newer = visitors.call("s")
    assert visitors.said() == "began"
    visitors.page.release.set()
    assert old.result().json() is None and newer.result().json()["session"] == "s"


def test_who_leaves_is_computed_nothing(visitors: Visitors, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else a stranger's views hold places and cores without costing him a connection."""
    monkeypatch.setattr(functions, "WAIT_SECONDS", 100)
    leaving = [visitors.leaving(f"s{i}") for i in range(2)]
    assert [visitors.said(), visitors.said()] == ["began", "began"]
    waits = visitors.leaving("waits")
    until(lambda: len(functions.LINE.waiting) == 1)
    waits.close()
    until(lambda: not functions.LINE.waiting)
    for one in leaving:
        one.close()
    assert [visitors.said(), visitors.said()] == ["LeftError", "LeftError"]
    until(lambda: not functions.LINE.running)
    assert visitors.page.said.empty()


def test_an_address_that_has_computed_much_waits_for_others(
    visitors: Visitors, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that loops cheap views on two connections kept everybody's runs from ending within their time."""
    now, clock = [0.0], [0.0]
    monkeypatch.setattr(cores, "thread_time", lambda: now[0])
    line, seconds = functions.LINE, cores.SECONDS
    monkeypatch.setattr(seconds, "clock", lambda: clock[0])

    def computed(seconds: float, session: str) -> None:
        call = visitors.call(session)
        assert visitors.said() == "began"
        now[0] += seconds
        visitors.page.end(session)
        assert call.result().status_code == 200

    computed(cores.SECONDS_AT_ONCE, "s0")
    other = visitors.call("t", 2)
    assert visitors.said() == "began"
    computed(2, "s1")
    assert seconds.left("192.0.2.1") == -2
    waits = visitors.call("s2")
    until(lambda: len(line.waiting) == 1)
    third = visitors.call("u", 3)
    assert visitors.said() == "began" and len(line.waiting) == 1, "another's does not wait behind it"
    clock[0] = 8.0  # it has a quarter of a second in each second
    assert visitors.said() == "began" and not line.waiting
    clock[0] = 0.0
    visitors.page.end("s2")
    assert waits.result().status_code == 200
    monkeypatch.setattr(functions, "WAIT_SECONDS", 0.0)
    refused = visitors.call("s3").result()
    assert refused.status_code == 429 and refused.headers["retry-after"] == "8"
    assert "others compute here" in refused.json()["detail"]
    monkeypatch.setattr(functions, "WAIT_SECONDS", 60.0)
    waits = visitors.call("s4")
    until(lambda: len(line.waiting) == 1)
    for session in ("t", "u"):
        visitors.page.end(session)
    assert [one.result().status_code for one in (other, third)] == [200, 200]
    assert visitors.said() == "began", "nothing of another is computed"
    visitors.page.end("s4")
    assert waits.result().status_code == 200 and seconds.left("192.0.2.1") == -2
