"""What the server keeps of requests: bounded, and dropped when nobody asks for it.

If these fail, one visitor who never waits for an answer fills the memory, and many uploads at once fill the
disk beyond its bound.
"""

from __future__ import annotations

import asyncio
import collections
import dataclasses
import importlib
import itertools
import math
import os
import queue
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, nullcontext, suppress
from pathlib import Path
from types import SimpleNamespace, coroutine
from typing import Any
from unittest.mock import Mock
from urllib.parse import quote

import gradio as gr
import httpx
import pytest
import torch
from gradio.routes import file_upload_statuses
from starlette.testclient import TestClient

from app import limits
from app.serving import addresses, guard, kept, listeners, uploads, waiting
from app.serving.sessions import CurrentRequest, answering
from app.state import selection
from app.state.files import fresh_folder
from app.state.memo import Memo
from explorer import SourceError
from explorer.progress import StoppedError, checkpoint, stoppable
from explorer.sources.base import InMemory, TensorInfo, TensorSource
from explorer.sources.tensors import Matrix
from tests import loops
from tests.app.servers import until

LONG = "x" * (addresses.NAME_LENGTH + 1)
ODD = ("", LONG, "a b", "a\nb", "\x00", "é", "a<gradio-sep>b")


def test_names_that_are_kept_are_short_and_plain(client: TestClient) -> None:
    """A long name fills the memory, an empty one ends Gradio's queue, a line break writes the log, and with
    Gradio's own separator in one that runs nobody's Stop worked."""
    for name in ODD:
        for key in ("session_hash", "event_id"):
            body = {"data": ["x"], "fn_index": 0, "session_hash": "a", "event_id": "b"} | {key: name}
            for path in ("queue/join", "call/wait", "cancel", "reset"):
                answer = client.post(f"/gradio_api/{path}", json=body)
                assert answer.status_code == 422 and "1 to 64" in answer.json()["detail"], (path, name)
        sent = quote(name)
        paths = (f"heartbeat/{sent}", f"queue/data?session_hash={sent}", f"call/wait/{sent}")
        for path in (*paths, f"upload_progress?upload_id={sent}"):
            assert client.get(f"/gradio_api/{path}").status_code == 404, path
        answer = client.post(f"/gradio_api/upload?upload_id={sent}", files={"files": ("a", b"1")})
        assert answer.status_code == 404


def test_a_stopped_queue_is_no_health(client: TestClient) -> None:
    """Else whoever watches the page keeps one that answers nobody."""
    queue = client.app.get_blocks()._queue
    queue.stopped = True
    answer = client.get("/health")
    assert answer.status_code == 503 and answer.json()["status"] == "stopped"
    queue.stopped = False


def test_an_answer_that_there_is_not_is_refused_in_a_line(
    client: TestClient, caplog: pytest.LogCaptureFixture
) -> None:
    """Gradio begins a stream and then fails: 90 lines of the log for one request of anybody."""
    for path in ("queue/data?session_hash=nobody", "call/wait/nothing"):
        answer = client.get(f"/gradio_api/{path}")
        assert answer.status_code == 404 and answer.json()["detail"]
    assert "Traceback" not in caplog.text


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, gr.Blocks]]:
    """A page behind all that the real one is behind, whose visitors are given up after a quarter second."""
    entry: Any = importlib.import_module("app.start")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("GRADIO_TEMP_DIR", str(tmp_path_factory.mktemp("store")))
        patch.setattr(listeners, "UNHEARD_SECONDS", 0.25)
        patch.setattr(waiting, "CHECK_SECONDS", 0.05)
        for name, value in (("FILES_EVERY", 1), ("UPLOADS", 5), ("ANALYTICS", 5)):
            patch.setattr(kept, name, value)
        with gr.Blocks() as blocks:
            name = gr.Textbox()
            file = gr.File()
            name.submit(lambda text: text, name, name, api_name="quick")
            name.change(_steps, name, name, api_name="steps")
            file.upload(lambda path: str(path), file, name, api_name="take")
        options = entry.launch_options() | {"server_port": None, "state_session_capacity": 5}
        _, url, _ = blocks.queue(**entry.queue_options()).launch(**options, prevent_thread_lock=True)
        yield f"{url}gradio_api/", blocks
        blocks.close()


def _steps(text: str) -> Iterator[str]:
    for _ in range(40):
        yield text


def test_files_that_are_gone_are_forgotten_a_part_at_a_time(tmp_path: Path) -> None:
    """Of the 130,000 that the store has room for a look at all takes most of a second."""
    names = {str(tmp_path / str(number)) for number in range(kept.FILES_AT_ONCE + 5)}
    sweeper = kept.Sweeper(SimpleNamespace(get_blocks=lambda: SimpleNamespace(_queue=SimpleNamespace())))
    for left in (5, 0, 0):
        sweeper._files = sweeper._files or [(names, name) for name in names]
        sweeper._forget_files()
        assert len(names) == left


def test_an_empty_session_leaves_the_queue_running(server: tuple[str, gr.Blocks]) -> None:
    """If this fails, one request stops the page for everyone."""
    url, blocks = server
    with httpx.Client(base_url=url, timeout=60) as client:
        for session in ("one", "two", "", "three"):
            client.post("queue/join", json={"data": ["x"], "fn_index": 1, "session_hash": session})
        with client.stream("GET", "queue/data", params={"session_hash": "three"}) as lines:
            assert any("process_completed" in line for line in lines.iter_lines())
    assert not blocks._queue.stopped


SIZED = (dict, set, list, collections.deque)
CAPS = {
    "session_data": 5, "time_last_used": 5, "_statuses": 5, "_signals": 5,
    "event_analytics": 6 * 5, "cached_event_analytics_summary": 4,
}  # fmt: skip
"""Tables that keep the latest few on purpose, and how many: of statistics five lines of five values, and a
name for each handler."""


def tables(blocks: Any) -> dict[str, int]:
    """Every table of the server's parts that live as long as it does, by its size: of a table of tables, all
    their entries."""
    app = blocks.app
    parts = {
        "app": app,
        "state": app.state_holder,
        "queue": blocks._queue,
        "blocks": blocks,
        "uploads": file_upload_statuses,
        "listeners": listeners,
        "guard": guard,
        "kept": kept.SILENCE,
        "store": uploads,
    }
    found: dict[str, int] = {}
    for of, part in parts.items():
        for name, value in vars(part).items():
            if isinstance(value, SIZED) and name not in ("__builtins__",):
                inner = list(value.values()) if isinstance(value, dict) else list(value)
                found[f"{of}.{name}"] = len(value) + sum(len(i) for i in inner if isinstance(i, SIZED))
    return found


def visit(url: str, number: int) -> None:
    """One session of each kind: that listens to the end, that leaves, that cancels, that never listens."""
    how, session = number % 4, f"s{number}"
    with httpx.Client(base_url=url, timeout=60) as client:
        body = {"data": ["words"], "fn_index": number % 2, "session_hash": session}
        event = client.post("queue/join", json=body).json().get("event_id", "none")
        if how == 0:
            with client.stream("GET", "queue/data", params={"session_hash": session}) as lines:
                assert any("process_completed" in line for line in lines.iter_lines())
        if how == 1:
            with client.stream("GET", "queue/data", params={"session_hash": session}) as lines:
                next(lines.iter_lines())
        if how == 2:
            client.post("cancel", json={"session_hash": session, "fn_index": number % 2, "event_id": event})
        client.post("upload", params={"upload_id": session}, files={"files": (f"{session}.csv", session)})
        if number > 14:  # of an upload that there is not: answered after three seconds
            client.get("upload_progress", params={"upload_id": f"unknown{session}"})
        with client.stream("GET", f"heartbeat/{session}") as lines:
            next(lines.iter_lines())


def test_no_table_of_the_server_grows(server: tuple[str, gr.Blocks]) -> None:
    """Else whoever asks often enough fills the memory."""
    url, blocks = server
    visit(url, 0)
    until(lambda: tables(blocks)["queue.event_ids_to_events"] == 0, lambda: "a request did not end")
    before = tables(blocks)
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda number: visit(url, number), range(1, 17)))
    for path in uploads.store().rglob("*.csv"):
        path.unlink()  # as the sweep of the store does when they are old

    def grown() -> dict[str, tuple[int, int]]:
        now = tables(blocks)
        return {
            name: (before.get(name, 0), size)
            for name, size in now.items()
            if size > max(before.get(name, 0), CAPS.get(name.rpartition(".")[2], 2))
        }

    until(lambda: not grown(), lambda: f"tables grew: {grown()}")


class Queue:
    """What Gradio's queue has of sessions."""

    def __init__(self) -> None:
        self.pending_messages_per_session: Any = collections.defaultdict(queue.Queue)
        self.pending_event_ids_session: dict[str, set[str]] = {}
        self.event_ids_to_events: dict[str, Any] = {}


def test_what_nobody_listens_for_is_dropped_after_a_while() -> None:
    """Asking again does not make old answers young; what is listened for stays, however long it takes."""
    had: Any = Queue()
    silence, look = kept.Silence(), listeners.UNHEARD_SECONDS + 1
    for name in ("asks", "open", "runs"):
        had.pending_messages_per_session[name].put_nowait("answer")
        had.pending_event_ids_session[name] = {"1"}
    had.event_ids_to_events = {"1": SimpleNamespace(session_hash="runs")}
    with listeners.listening("open"):
        assert silence.overdue(had, 0) == [] == silence.overdue(had, look - 2)
        silence.broken(had, "asks")
        assert set(silence.overdue(had, look)) == {"asks", "runs"}
    for name in ("asks", "runs"):
        silence.drop(had, name)
    assert set(had.pending_messages_per_session) == {"open", "runs"} == set(had.pending_event_ids_session)
    assert had.pending_messages_per_session["runs"].empty(), "a run writes there"
    assert silence.overdue(had, look) == [], "the one that was listened to has its time from now on"
    assert silence.overdue(had, 2 * look) == ["open"]
    had.pending_messages_per_session["open"].get_nowait()
    silence.broken(had, "open")
    assert silence.overdue(had, 2 * look) == [], "it has read its answer and asks again"


def test_a_stream_that_is_not_read_is_not_listening(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sending waits where the other end takes nothing: so long it is as if there were no stream."""
    clock, had = [0.0], Queue()
    monkeypatch.setattr(listeners, "time", SimpleNamespace(monotonic=lambda: clock[0]))
    had.pending_messages_per_session["s"].put_nowait("answer")

    @coroutine
    def send(_: Any) -> Iterator[None]:
        yield  # until it is taken

    async def answers(scope: Any, receive: Any, send: Any) -> None:
        for _ in range(2):
            await send({"type": "http.response.body"})

    page = SimpleNamespace(get_blocks=lambda: SimpleNamespace(_queue=had))
    scope = {"type": "http", "method": "GET", "path": "/gradio_api/queue/data", "headers": [], "app": page}
    stream: Any = guard.Guard(answers)({**scope, "query_string": b"session_hash=s"}, None, send)  # type: ignore[arg-type]
    for end in (listeners.UNHEARD_SECONDS + 1, math.inf):
        stream.send(None)
        assert listeners.heard("s")
        clock[0] = end
        assert not listeners.heard("s")
    with suppress(StopIteration):
        stream.send(None)
    assert not listeners.heard("s")


def test_an_error_does_not_end_the_watch(
    server: tuple[str, gr.Blocks], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Without another look nothing is dropped for the rest of the server's life."""
    looks: list[int] = []

    def broken(_: Any) -> None:
        looks.append(1)
        raise OSError("the disk is gone")

    monkeypatch.setattr(kept.Sweeper, "sweep", broken)
    until(lambda: len(looks) > 2)
    assert "the disk is gone" in caplog.text


def test_who_only_announces_holds_little(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nine visitors who announced four large files each, and sent five bytes, left no room for anybody."""
    monkeypatch.setattr(limits, "current", lambda: limits.HOSTED)
    with ExitStack() as held:
        for _ in range(36):
            upload = held.enter_context(uploads.Upload("192.0.2.1", limits.HOSTED.upload_bytes))
            upload.find_room()
            upload.add(5)
        answer = client.post("/gradio_api/upload", files={"files": ("a.csv", b"1,2")})
    assert answer.status_code == 200
    with pytest.raises(uploads.FullError):
        uploads.Upload("192.0.2.2", limits.HOSTED.store_bytes + 1).find_room()


def test_an_upload_that_stalls_is_ended(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """It holds room and a place of its visitor's, for as long as its connection stays open."""
    monkeypatch.setattr(guard, "STALLED_SECONDS", 0.2)
    assert loops.run(asyncio.run, an_upload(client, 3000, who="192.0.2.1", stalls=True)) == 408
    assert not uploads.open_uploads() and not files()


def test_counts_at_once_count_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One at a time: two that each take away what had arrived before them leave less than nothing."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    monkeypatch.setattr(uploads._Count, "at", -math.inf)
    monkeypatch.setattr(uploads._Count, "arrived", collections.Counter({"": 1000}))
    monkeypatch.setattr(uploads._Count, "took", 0.0)
    another: list[bool] = []

    def counted() -> list[Any]:
        another.append(uploads._COUNTING.acquire(blocking=False))
        uploads._Count.arrived[""] += 5  # meanwhile
        return []

    monkeypatch.setattr(uploads, "stored_files", counted)
    uploads.make_room("")
    assert another == [False] and uploads._Count.arrived.total() == 5


def test_small_files_count(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A file without bytes takes room on the disk, and time at every count."""
    monkeypatch.setenv("GRADIO_TEMP_DIR", str(tmp_path))
    for number in range(10):
        (tmp_path / f"{number}").touch()
    assert [size for _, size, _ in uploads.stored_files()] == 10 * [uploads.LEAST_BYTES]


@pytest.mark.parametrize("ahead", [uploads.AHEAD_BYTES, 1000])
def test_uploads_at_once_share_the_store(
    client: TestClient, monkeypatch: pytest.MonkeyPatch, ahead: int
) -> None:
    """A bound that is looked at when an upload begins holds for one at a time: thirty of 7 MB began below
    20 MB and kept 91 MB."""
    monkeypatch.setattr(uploads, "LEAST_BYTES", 1)
    monkeypatch.setattr(uploads, "AHEAD_BYTES", ahead)
    monkeypatch.setattr(uploads._Count, "took", 0.0)
    small = dataclasses.replace(limits.HOSTED, store_bytes=200_000)
    monkeypatch.setattr(limits, "current", lambda: small)
    sent = [an_upload(client, 30_000, who=f"192.0.2.{number}") for number in range(20)]
    answers = loops.run(asyncio.run, gathered(sent))
    assert sum(path.stat().st_size for path in files()) <= small.store_bytes
    assert not uploads.open_uploads(), "no promise outlives its upload"
    if ahead > 1000:  # all that they announce is held
        assert answers.count(503) >= 10
        assert answers.count(200) >= 3, "those whose room was kept are taken"


def test_what_has_no_place_on_the_disk_yet_is_counted(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A part lies in a buffer, or moves from folder to folder while the store is counted: with seven of
    eight such uploads, a store of 200,000 bytes held 210,000."""
    mine = uploads._name("192.0.2.1")

    def counted() -> int:
        monkeypatch.setattr(uploads._Count, "at", -math.inf)
        uploads._count()
        return uploads._Count.held()[mine]

    with uploads.Upload("192.0.2.1", 4000) as upload:
        upload.find_room()
        upload.add(4000)
        assert counted() == 4000
    assert uploads._Count.held()[mine] == 4000 and counted() == 0, "it was broken off"


def test_what_arrives_counts_before_the_store_is_counted(monkeypatch: pytest.MonkeyPatch) -> None:
    """Else two uploads that together announce more than there is fill the disk between two counts. Then a
    result is refused as well."""
    monkeypatch.setattr(uploads, "_count", lambda: None)
    monkeypatch.setattr(uploads, "AHEAD_BYTES", 1000)
    monkeypatch.setattr(limits, "LOCAL", dataclasses.replace(limits.LOCAL, store_bytes=5000))
    for name in ("stored", "arrived", "files"):
        monkeypatch.setattr(uploads._Count, name, collections.Counter())
    with uploads.Upload("192.0.2.1", 4000) as first, uploads.Upload("192.0.2.2", 4000) as second:
        first.find_room()
        second.find_room()
        assert first.add(4000) and not second.add(1)
        for more in (second.find_room, fresh_folder):
            with pytest.raises(uploads.FullError):
                more()


def test_one_address_fills_the_store_for_nobody_else(
    client: TestClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its 32 uploads were all of the store: everybody else was refused for an hour, and then again. A count
    takes so long here that the next one is due after several uploads."""
    monkeypatch.setattr(uploads, "LEAST_BYTES", 1)
    monkeypatch.setattr(uploads._Count, "at", -math.inf)
    monkeypatch.setattr(uploads, "time", SimpleNamespace(monotonic=itertools.count().__next__))
    small = dataclasses.replace(limits.HOSTED, store_bytes=200_000)
    monkeypatch.setattr(limits, "current", lambda: small)

    def sent(number: int, who: str, size: int = 30_000) -> int:
        return loops.run(asyncio.run, an_upload(client, size, who, number))

    assert sent(0, "192.0.2.1") == sent(0, "192.0.2.2") == 200
    first, second = sorted(files(), key=lambda path: path.read_bytes())
    for path in (first, second):
        os.utime(path, (0, 0))
    assert [sent(number, "192.0.2.1") for number in range(1, 12)] == [200] * 11
    assert second.exists() and not first.exists(), "the oldest files of the address with the most go"
    assert sent(1, "192.0.2.2") == 200 and len(files()) == 6 and second.exists()
    for who, size in (("192.0.2.3", 70_000), ("192.0.2.2", 1)):
        monkeypatch.setattr(uploads._Count, "at", -math.inf)
        with answering(CurrentRequest(address=who)):
            (fresh_folder() / "a.csv").write_bytes(b" " * size)
    assert sum(path.stat().st_size for path in files()) <= small.store_bytes, "results make room as well"
    assert second.exists()
    before = files()
    assert sent(0, "192.0.2.4", 190_000) == 503 and files() == before, "nobody with less loses anything"


def files() -> list[Path]:
    """What the store holds."""
    return sorted(path for path in uploads.store().rglob("*") if path.is_file())


def test_an_address_has_few_uploads_open(client: TestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Else one visitor holds all the room of the store by uploads that never end."""
    monkeypatch.setattr(limits, "current", lambda: limits.HOSTED)
    most = limits.HOSTED.uploads
    sent = [an_upload(client, 3000, who="192.0.2.1", number=n) for n in range(most + 3)]
    answers = loops.run(asyncio.run, gathered([*sent, an_upload(client, 3000, who="192.0.2.2")]))
    assert answers == [200] * most + [429] * 3 + [200]
    assert not uploads.open_uploads()


def an_upload(client: TestClient, size: int, who: str, number: int = 0, stalls: bool = False) -> Any:
    """A coroutine: an upload whose bytes come in pieces, others between them; answers with its status."""
    head = b'--b\r\nContent-Disposition: form-data; name="files"; filename="a.csv"\r\n\r\n'
    text = f"{who} {number} ".encode()
    content = (text * (size // len(text) + 1))[:size]
    pieces = [head, *(content[i : i + 1000] for i in range(0, size, 1000)), b"\r\n--b--\r\n"]
    headers = {"content-type": "multipart/form-data; boundary=b", "x-forwarded-for": who}
    headers["content-length"] = str(sum(map(len, pieces)))

    async def body() -> Any:
        for piece in pieces:
            yield piece
            await (asyncio.Event().wait() if stalls else asyncio.sleep(0))

    async def ask() -> int:
        transport = httpx.ASGITransport(app=client.app, client=("127.0.0.1", 5), raise_app_exceptions=False)
        async with httpx.AsyncClient(transport=transport, base_url="http://localhost") as asked:
            answer = await asked.post("/gradio_api/upload", content=body(), headers=headers)
            return answer.status_code

    return ask()


async def gathered(work: list[Any]) -> list[int]:
    return list(await asyncio.gather(*work))


class Opened(InMemory):
    """A file whose opening waits until it may go on."""

    began, gates = list[str](), collections.defaultdict[str, threading.Event](threading.Event)
    all = threading.Event()

    def __init__(self, path: str, limits: object = None) -> None:
        Opened.began.append(path)
        while not (Opened.gates[path].wait(0.01) or Opened.all.is_set()):
            checkpoint()
        if "bad" in path:
            raise SourceError(f"{path} is bad") from (OSError(24, "busy") if "busy" in path else None)
        super().__init__(path, "x", torch.ones(1, 1))


@pytest.fixture
def opening(monkeypatch: pytest.MonkeyPatch) -> Iterator[ThreadPoolExecutor]:
    """Threads of visitors who ask for files, which open when they are told to."""
    monkeypatch.setattr(selection, "open_tensors", Opened)
    monkeypatch.setattr(selection, "_stamp", lambda path: 1)
    monkeypatch.setattr(selection, "_SOURCES", Memo(1 << 20))
    monkeypatch.setattr(selection, "_REFUSED", Memo(1 << 20))
    monkeypatch.setattr(Opened, "began", [])
    monkeypatch.setattr(Opened, "gates", collections.defaultdict(threading.Event))
    monkeypatch.setattr(Opened, "all", threading.Event())
    with ThreadPoolExecutor(40) as visitors:
        yield visitors
        Opened.all.set()


def asks(path: str, address: str = "one", check: Callable[[], None] = lambda: None) -> str:
    """What a visitor is told who asks for a file."""
    with answering(CurrentRequest(address=address)), stoppable(check):
        try:
            return selection.file_source(path).origin
        except SourceError as refusal:
            return str(refusal)


def test_a_file_is_opened_once_for_all_who_ask_for_it(opening: ThreadPoolExecutor) -> None:
    """Each of twenty requests of one page would parse it, and refuse it, anew."""
    for path, said in ("good", "good"), ("bad", "bad is bad"):
        asked = [opening.submit(asks, path, address) for address in ("one", "two") * 10]
        until(lambda path=path: path in Opened.began)  # type: ignore[misc]
        Opened.gates[path].set()
        assert {each.result(60) for each in asked} == {said}
        assert asks(path) == said and Opened.began.count(path) == 1
    for path in "busy, bad", "busy, bad":
        Opened.gates[path].set()
        assert asks(path) == "busy, bad is bad"
    assert Opened.began.count("busy, bad") == 2, "what the system lacks now it may have later"


def test_few_files_are_opened_at_once(opening: ThreadPoolExecutor) -> None:
    """Two for one address, eight for all; another visitor's is opened while one address waits."""
    first = [opening.submit(asks, f"one {i}") for i in range(5)]
    until(lambda: len(Opened.began) == 2)
    others = [opening.submit(asks, f"{i}", f"{i}") for i in range(10)]
    until(lambda: len(Opened.began) == 8)
    assert sum(path.startswith("one") for path in Opened.began) == 2
    Opened.all.set()
    assert [each.result(60) for each in first] == [f"one {i}" for i in range(5)]
    assert [each.result(60) for each in others] == [f"{i}" for i in range(10)] and len(Opened.began) == 15


def test_one_addresss_models_leave_connections_for_others(
    opening: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Two of a slow Hub took all of them, and another's view of a model half a minute."""
    began, go_on = list[str](), threading.Event()

    def opens(name: str, *_: Any) -> TensorSource:
        began.append(name)
        assert go_on.wait(60)
        return InMemory(name, "x", torch.ones(1, 1))

    def asks(name: str) -> str:
        with answering(CurrentRequest(address=name[0])):
            return selection.model_source(name, "").origin

    monkeypatch.setattr(selection, "open_model", opens)
    asked = [opening.submit(asks, name) for name in ("a/1", "a/2", "a/3", "b/1")]
    until(lambda: len(began) == 3 and len(selection._VISITING.waiting) == 1)
    assert "b/1" in began
    go_on.set()
    assert [one.result(60) for one in asked] == ["a/1", "a/2", "a/3", "b/1"]


def test_codes_are_restored_in_memory_that_is_held(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two addresses' took 4.5 GB: each what it read, and four times what that became."""
    held, part = list[int](), TensorInfo("x.scales", (100, 10), "F16")
    monkeypatch.setattr(selection, "room", lambda size: held.append(size) or nullcontext())
    for parts in ((), (part,)):
        source: Any = SimpleNamespace(
            info=lambda name: TensorInfo("x", (10, 10), "F32"),
            matrix=Mock(),
            parts_of=lambda name, p=parts: p,
        )
        selection.read_within(source, "x")
    assert held == [0, 32 * 100 + 2000]


def test_a_tensor_is_read_once_for_all_who_ask_for_it(
    opening: ThreadPoolExecutor, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All sections of a first screen ask at once. Of one address one is read at a time."""
    reads, go_on = list[str](), threading.Event()

    def read(source: Any, name: str) -> Matrix:
        reads.append(name)
        assert go_on.wait(60)
        return Matrix(torch.zeros(2, 2), name, "", (2, 2), "float32")

    def reads_it(name: str, address: str) -> Matrix:
        with answering(CurrentRequest(address=address)):
            return selection.matrix_of(selection.Selection(source="file", file="x", file_tensor=name))

    monkeypatch.setattr(selection, "file_source", lambda path: None)
    monkeypatch.setattr(selection, "read_within", read)
    asked = [opening.submit(reads_it, name, who) for who in ("one", "two") for name in ("a", "b", "a", "b")]
    until(lambda: len(reads) == 2 and len(selection._READING.waiting) == 6)
    assert sorted(reads) == ["a", "b"] and selection._READING.held.keys() == {"one", "two"}
    go_on.set()
    assert sorted(one.result(60).name for one in asked) == ["a"] * 4 + ["b"] * 4 and len(reads) == 2


def test_who_waits_for_a_file_can_leave_and_takes_over(opening: ThreadPoolExecutor) -> None:
    """The one who opens it may leave too: the next one opens it."""
    left = {name: threading.Event() for name in ("opens", "waits")}

    def check(name: str) -> Callable[[], None]:
        def ended() -> None:
            if left[name].is_set():
                raise StoppedError(name)

        return ended

    opens = opening.submit(asks, "x", check=check("opens"))
    until(lambda: Opened.began == ["x"])
    waits, stays = opening.submit(asks, "x", check=check("waits")), opening.submit(asks, "x", "two")
    left["waits"].set()
    with pytest.raises(StoppedError, match="waits"):
        waits.result(60)
    left["opens"].set()
    with pytest.raises(StoppedError, match="opens"):
        opens.result(60)
    until(lambda: Opened.began == ["x", "x"])
    Opened.gates["x"].set()
    assert stays.result(60) == "x" and not selection._OPENING.held
