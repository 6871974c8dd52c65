"""Server functions: what a stranger may call, how much at once, and for how long.

If these fail, a request reaches any method of a component, or a few slow ones stop the page for all.
"""

from __future__ import annotations

import dataclasses
import json
import threading
from collections.abc import Iterator
from queue import SimpleQueue
from typing import Any

import gradio as gr
import pytest
from gradio.routes import App
from starlette.testclient import TestClient

from app import limits
from app.serving import functions
from app.serving.sessions import CurrentRequest, answering, current_session
from app.state import visits
from app.state.visits import visit
from explorer.progress import checkpoint

PATH = "/gradio_api/component_server"
JSON = {"content-type": "application/json"}


class Page:
    """A page with one section, and a client of it. ``view`` answers at once or goes on until ``release``."""

    def __init__(self, entry: Any) -> None:
        self.release = threading.Event()
        self.said: SimpleQueue[str] = SimpleQueue()
        self.release.set()

        def view(query: dict[str, str]) -> dict[str, Any]:
            return self.answer(query)

        def other(query: dict[str, str]) -> dict[str, Any]:
            return self.answer(query)

        with gr.Blocks() as blocks:
            self.box = gr.Textbox()
            self.section = gr.HTML(server_functions=[view, other], elem_id="section")
        blocks.queue(**entry.queue_options())
        self.app = App.create_app(blocks, app_kwargs=entry.launch_options()["app_kwargs"])
        blocks.config = blocks.get_config_file() | {"body_css": {}}

    def answer(self, query: dict[str, str]) -> dict[str, Any]:
        self.said.put("began")
        if (wrong := query.get("wrong")) is not None:
            raise {"value": ValueError, "defect": KeyError}[wrong](wrong)
        try:
            while not self.release.is_set():
                checkpoint()
        except BaseException as error:
            self.said.put(type(error).__name__)
            raise
        return {"query": query, "session": current_session(), "nan": float("nan")}

    def body(self, session: str = "s", name: str = "view", **query: str) -> dict[str, Any]:
        return {"data": query, "fn_name": name, "session_hash": session, "component_id": self.section._id}


@pytest.fixture
def page(monkeypatch: pytest.MonkeyPatch, entry: Any) -> Iterator[Page]:
    monkeypatch.delenv("EXPLORER_HOSTED", raising=False)
    monkeypatch.setattr(limits, "_found", [])
    monkeypatch.setattr(functions, "LINE", functions.Line())
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
        *((good | {"component_id": number}, 422) for number in (None, True, "1", 1.0, [1], float("nan"))),
        *((good | {"session_hash": name}, 422) for name in (None, 1, "", "a b", "x" * 65, ["s"])),
        *((good | {"data": data}, 422) for data in (None, "x", 1, [], [{}, {}], [[{}]], {"a": 1}, {"a": None},
                                                    {"a": {"path": "x"}}, {"a": "\ud800"}, {"a": ["x"]},
                                                    {"\ud800": "a"}, {"a": "x" * 65537}, {"a": 1e999})),
        *((good | {"data": data}, 413) for data in ({"x" * 65: "a"}, {str(i): "" for i in range(101)})),
        (good | {"data": deep}, 400),
    ]  # fmt: skip
    for body, status in wrong:
        answer = client.post(PATH, content=json.dumps(body), headers=JSON)
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
