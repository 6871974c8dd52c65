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
    """Uploads of false boundaries took half of the thread that reads all requests, for minutes; refused
    requests were read on without end, five hundred at once; and four hundred downloads made runs of others
    take nine times as long."""
    monkeypatch.setenv("EXPLORER_HOSTED", "1")
    clock, pieces = Clock(), list[str]()

    async def sleep(seconds: float) -> None:
        pieces.append("waits")
        clock.now += 1

    async def send(message: Any) -> None:
        pieces.append("sent")

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
    pieces.clear()
    requests.use("192.0.2.1", 5 + 2)
    loops.run(asyncio.run, guard._as_requests(scope, send)({}))
    assert pieces == ["waits", "waits", "sent"]
