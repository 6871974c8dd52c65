"""Requests that are computed at once share the cores, and have the GPU one after another.

If these fail, a busy server takes up to twice the CPU time for every answer, or a lone visitor waits for one
core's work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from queue import SimpleQueue
from threading import Barrier
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from app import limits
from app.serving import cores, work
from app.serving.cores import share_of_cores
from app.serving.sessions import CurrentRequest, answering
from app.state import gpu_lock, selection
from app.state.analyses import reported
from app.state.gpu_lock import locked_steps, one_at_a_time
from app.state.places import Places
from explorer.progress import StoppedError, held, stoppable
from explorer.threads import usable_threads
from tests.app.servers import until


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Threads of later tests begin with what was set last."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def test_each_request_has_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own thread, whatever the others set; all cores again afterwards."""
    monkeypatch.setattr(cores, "CORES", 4)
    for requests, share in ((1, 4), (2, 2), (3, 1), (9, 1)):
        together = Barrier(requests)

        def count(together: Barrier = together) -> tuple[int, int]:
            with share_of_cores():
                together.wait(60)  # the last to come sees all
                inside = torch.get_num_threads()
            return inside, torch.get_num_threads()

        with ThreadPoolExecutor(requests) as pool:
            found = [one.result() for one in [pool.submit(count) for _ in range(requests)]]
        assert min(inside for inside, _ in found) == share and {after for _, after in found} == {4}


def test_a_long_tasks_thread_has_its_requests_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """It is another thread than the request's, which waits for it: both count as one, and what others set
    before does not last."""
    monkeypatch.setattr(cores, "CORES", 4)
    inside = []

    def compute(progress: Callable[[int, int], None]) -> None:
        inside.append(torch.get_num_threads())
        cores.WORKING.add(1)  # another visitor comes
        progress(1, 2)
        inside.append(torch.get_num_threads())
        cores.WORKING.add(-1)

    with share_of_cores():
        steps = reported(compute)
        list(steps)
        assert usable_threads() == 4
    assert inside == [4, 2]


def test_what_is_computed_is_an_addresss() -> None:
    """Another one's views may wait for it; what is nobody's keeps nobody waiting."""
    with share_of_cores():
        assert not cores.WORKING.others("192.0.2.1")
        with answering(CurrentRequest(address="192.0.2.1")), share_of_cores():
            assert cores.WORKING.others("192.0.2.2") and not cores.WORKING.others("192.0.2.1")
    assert not cores.WORKING.others("192.0.2.2") and not cores.WORKING.count


def test_one_at_a_time_in_the_order_of_coming(monkeypatch: pytest.MonkeyPatch) -> None:
    """Six threads that ask one after another run one after another, by the numbers that they drew: each looks
    again and again, so that the last look says nothing."""
    monkeypatch.setattr(gpu_lock, "_CPU", places := Places(1, 1))
    monkeypatch.setattr("app.state.places.AGAIN_S", 60)
    monkeypatch.setattr(places, "_numbers", iter(range(99, 0, -1)))
    running, order, seen = 0, list[int](), list[int]()

    def work(index: int) -> None:
        nonlocal running
        with one_at_a_time():
            running += 1
            seen.append(running)
            order.append(index)
            seen.append(running)
            running -= 1

    with one_at_a_time():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for index, thread in enumerate(threads):
            thread.start()
            until(lambda count=index + 1: len(places.waiting) == count)
    for thread in threads:
        thread.join(60)
    assert order == [5, 4, 3, 2, 1, 0] and set(seen) == {1} and not places.held


def test_large_work_has_room_one_after_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Seven runs of GPTQ on a large layer took more than 6 GB. Who has not had his turn is next; small work
    waits for nobody, and the room is free again after an error."""
    monkeypatch.setattr(gpu_lock, "_ROOM", Places(100 << 20, 100 << 20))
    began, may_end = SimpleQueue[str](), {name: threading.Event() for name in ("a1", "a2", "b1", "c1")}

    def work(name: str, size: int = 80 << 20) -> None:
        with answering(CurrentRequest(name, address=name[0])), gpu_lock.room(size):
            began.put(name)
            assert may_end[name].wait(60)

    with ThreadPoolExecutor(4) as pool:
        runs = [pool.submit(work, "a1")]
        assert began.get(timeout=60) == "a1"
        for waiting, name in enumerate(("a2", "b1"), 1):
            runs.append(pool.submit(work, name))
            until(lambda count=waiting: len(gpu_lock._ROOM.waiting) == count)
        runs.append(pool.submit(work, "c1", 40 << 20))
        assert began.get(timeout=60) == "c1"
        may_end["a1"].set()
        assert began.get(timeout=60) == "b1"
        for event in may_end.values():
            event.set()
        for run in runs:
            run.result(60)
    with pytest.raises(ValueError, match="x"), gpu_lock.room(99 << 20):
        raise ValueError("x")
    assert gpu_lock._ROOM.take("b", 0, size=1 << 30), "alone, whatever it is"


@pytest.mark.parametrize("what", ["_ROOM", "_CPU", "_GPU", "_OPENING"])
def test_time_waited_for_places_is_not_a_runs_own(what: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who waits for another's work has his time nevertheless, as much again at most; who has stopped waits no
    longer. One address had a timing wait, stopped it, and had the next one wait: 136 of them, and 6 GB."""
    now = [0.0]

    def take(*_: Any, **__: Any) -> bool:
        now[0] += 10
        assert now[0] < 1e5, "it waits for ever"
        return False

    full = Places(1, 1)
    monkeypatch.setattr(full, "take", take)
    monkeypatch.setattr(work, "time", SimpleNamespace(monotonic=lambda: now[0]))
    monkeypatch.setattr(selection if what == "_OPENING" else gpu_lock, what, full)
    monkeypatch.setattr(gpu_lock, "gpu_device", lambda: what == "_GPU" or None)
    asked: dict[str, Callable[[], Any]] = {
        "_ROOM": lambda: gpu_lock.gpu_lock(1 << 30).__enter__(),
        "_GPU": lambda: gpu_lock.gpu_lock().__enter__(),
        "_CPU": lambda: one_at_a_time().__enter__(),
        "_OPENING": lambda: selection.opened_once("x", lambda: None, int, selection._OPENING),
    }
    with answering(CurrentRequest("a")):
        check = work.check_of_this_run()
        with pytest.raises(StoppedError, match="other visitors"), stoppable(check):
            asked[what]()
        assert work.own_time() == 0
    longest = limits.current().run_seconds
    assert longest < now[0] <= 2 * longest + 10


def test_who_waits_for_a_lock_stops_as_the_work_does() -> None:
    """Another's export of a model took minutes, in which Stop did nothing."""
    lock = threading.Lock()

    def stop() -> None:
        raise StoppedError("the visitor has left")

    with lock, pytest.raises(StoppedError, match="left"), stoppable(stop), held(lock):
        raise AssertionError("it is another's")
    with held(lock):
        assert lock.locked()
    assert not lock.locked()


def test_an_error_releases_the_lock(monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, one bad request stops the GPU for everyone."""
    monkeypatch.setattr(gpu_lock, "_CPU", places := Places(1, 1))
    with pytest.raises(ValueError, match="x"), one_at_a_time():
        raise ValueError("x")
    assert not places.held and not places.waiting


def test_a_generator_passes_through() -> None:
    """Every item arrives, in order, whatever it is."""
    assert list(locked_steps(iter([1, None, 0, 4]))) == [1, None, 0, 4]
