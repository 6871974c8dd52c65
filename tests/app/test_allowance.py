"""What one address uses of what all share: a burst at once, and a rate after.

If these fail, one address's cheap requests take the time of everybody else's runs.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from types import SimpleNamespace
from typing import Any

import pytest
from starlette.requests import ClientDisconnect

from app.serving import allowance, cores, guard
from app.serving.allowance import Allowance
from tests import loops
from tests.app.test_serving import a_post


class Clock:
    """Monotonic seconds that a test sets."""

    now = 1000.0

    def __call__(self) -> float:
        return self.now


def test_an_address_has_a_burst_and_a_rate() -> None:
    """Of its own; what it has used too much it waits for, and it saves up no more than the burst."""
    clock = Clock()
    seconds = Allowance(5, 0.25, clock)
    seconds.use("a", 7)
    assert seconds.left("a") == -2 and seconds.seconds_until("a") == 8 and seconds.left("b") == 5
    clock.now += 8
    assert seconds.left("a") == 0 == seconds.seconds_until("a") and seconds.seconds_until("a", 1) == 4
    clock.now += 1000
    assert seconds.left("a") == 5
    seconds.use("a", 1)
    assert seconds.left("a") == 4


def test_few_addresses_are_remembered(monkeypatch: pytest.MonkeyPatch) -> None:
    """Not those who used the most: they would have their burst anew."""
    monkeypatch.setattr(allowance, "REMEMBERED", 4)
    used = Allowance(5, 0.25, Clock())
    for address, amount in (("greedy", 100), *((f"{number}", 1) for number in range(50))):
        used.use(address, amount)
    assert used.left("greedy") == -95 and len(used._whole) <= 4


def test_requests_of_one_address_are_paced(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a public page, of whatever kind; others are answered meanwhile. Who would wait too long is told."""
    slept, answered, clock = list[float](), list[Any](), Clock()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        answered.append(scope["client"][0])

    async def nothing() -> Any:
        return {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        answered.append(message.get("status") and (message["status"], dict(message["headers"])))

    monkeypatch.setattr(guard, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    monkeypatch.setattr(cores, "thread_time", lambda: 0.0)
    guarded = guard.Paced(guard.Guard(app))
    guarded._requests = Allowance(2, 1, clock)

    def asked(who: str = "192.0.2.1", path: str = "/health") -> Any:
        answered.clear()
        page = SimpleNamespace(get_blocks=lambda: SimpleNamespace(_queue=None))
        scope = a_post(path, method="GET", client=(who, 1), app=page)
        loops.run(asyncio.run, guarded(scope, nothing, send))
        return answered[0]

    for hosted in ("0", "1"):
        monkeypatch.setenv("EXPLORER_HOSTED", hosted)
        assert [asked(), asked(), asked(path="/nowhere")[0], asked()] == ["192.0.2.1"] * 2 + [
            404,
            "192.0.2.1",
        ]
        assert slept == ([] if hosted == "0" else [1, 2])
    assert asked("192.0.2.2") == "192.0.2.2" and slept == [1, 2]
    guarded._requests.use("192.0.2.1", guard.PACED_SECONDS)
    status, headers = asked()
    assert status == 429 and headers[b"retry-after"] == b"3" and slept == [1, 2]
    clock.now += 3
    assert asked() == "192.0.2.1" and slept == [1, 2, 10]


def test_a_request_that_takes_long_counts_as_several(monkeypatch: pytest.MonkeyPatch) -> None:
    """Requests of 11 ms each, which an address may make a hundred times a second, left the thread that reads
    all requests no time. What is awaited, and how that ends, goes through."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    monkeypatch.setattr(cores, "thread_time", map(float, itertools.count()).__next__)

    async def app(scope: Any, receive: Any, send: Any) -> None:
        await asyncio.sleep(0)
        with pytest.raises(TimeoutError):
            await asyncio.wait_for(asyncio.Event().wait(), 0)
        raise KeyError(await receive())

    async def receive() -> str:
        return "received"

    paced = guard.Paced(app)
    paced._requests = Allowance(9_000, 1, Clock())
    with pytest.raises(KeyError, match="received"):
        loops.run(asyncio.run, paced(a_post("/health", client=("192.0.2.1", 1)), receive, receive))
    steps = (9_000 - 1 - paced._requests.left("192.0.2.1")) * guard.A_REQUEST_SECONDS
    assert steps == pytest.approx(round(steps)) and steps >= 2
    assert paced._requests.left("192.0.2.2") == 9_000


def test_what_is_on_its_way_waits_as_requests_do(monkeypatch: pytest.MonkeyPatch) -> None:
    """Uploads of false boundaries took half of the thread that reads all requests, for minutes; and refused
    requests were read on without end, five hundred at once."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    clock, pieces = Clock(), list[str]()

    async def sleep(seconds: float) -> None:
        pieces.append("waits")
        clock.now += 1

    async def receive() -> Any:
        pieces.append("read")
        return {"type": "http.request", "body": b"", "more_body": True}

    monkeypatch.setattr(guard, "asyncio", SimpleNamespace(**vars(asyncio) | {"sleep": sleep}))
    monkeypatch.setattr(guard, "has_had", lambda who: False)
    kind = [(b"content-type", b"multipart/form-data; boundary=b")]
    scope = a_post("/gradio_api/upload", headers=kind, client=("192.0.2.1", 1))
    scope[guard.REQUESTS] = requests = Allowance(5, 1, clock)
    upload: Any = SimpleNamespace(add=lambda size: True)
    read = guard._checked_form(scope, receive, upload)
    for used, waits in ((3, 0), (5, 3), (0, 0)):
        pieces.clear()
        requests.use("192.0.2.1", used)
        loops.run(asyncio.run, read())
        assert pieces == ["read", *["waits"] * waits]
    requests.use("192.0.2.1", 9)
    loops.run(asyncio.run, guard._Body(receive).read_on(scope))
    clock.now += 99
    monkeypatch.setattr(guard, "_read_on", Counter({"192.0.2.1": guard.READ_ON}))
    loops.run(asyncio.run, guard._Body(receive).read_on(scope))
    assert pieces == ["read"], "neither of who has made too many requests, nor of many at once"


def test_a_download_waits_as_requests_do_and_ends_with_its_client(monkeypatch: pytest.MonkeyPatch) -> None:
    """Four hundred downloads made runs of others take nine times as long. Small answers do not wait: nine
    hundred looked ten times a second whether they may go on, after their clients had left, for ever."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    sent, waited, leaves = list[Any](), list[float](), [False]
    scope = a_post("/gradio_api/file=x", client=("192.0.2.1", 1))
    scope[guard.REQUESTS] = requests = Allowance(5, 1, Clock())

    async def wait(receive: Any, seconds: float) -> bool:
        waited.append(seconds)
        return leaves[0]

    async def send(message: Any) -> None:
        sent.append(len(message["body"]))

    paced = guard._as_requests(scope, None, send)  # type: ignore[arg-type]
    large, small = {"body": bytes(guard.LARGE)}, {"body": b"x"}
    with monkeypatch.context() as patch:
        patch.setattr(guard, "_leaves", wait)
        for used, message, waits in ((0, large, 0), (8, large, 1), (0, small, 1), (99, large, 2)):
            requests.use("192.0.2.1", used)
            loops.run(asyncio.run, paced(message))
            assert len(waited) == waits and sent.pop() == len(message["body"])
        leaves[0] = True
        with pytest.raises(ClientDisconnect):
            loops.run(asyncio.run, paced(large))
    assert waited[:2] == [3, guard.PACED_SECONDS] and not sent
    messages = [{"type": "http.disconnect"}, {"type": "http.request"}]

    async def receive() -> Any:
        return messages.pop()

    assert loops.run(asyncio.run, guard._leaves(receive, 60)) and not messages
    assert not loops.run(asyncio.run, guard._leaves(asyncio.Event().wait, 0))  # type: ignore[arg-type]
