"""Requests that are computed at once share the cores, and have the GPU one after another.

If these fail, a busy server takes up to twice the CPU time for every answer, or a lone visitor waits for one
core's work.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from app.serving import cores
from app.serving.cores import share_of_cores
from app.serving.sessions import CurrentRequest, answering
from app.state.analyses import reported
from app.state.gpu_lock import FairLock, locked_steps
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


def test_one_at_a_time_in_the_order_of_coming() -> None:
    """Six threads that ask one after another run one after another."""
    lock, running, order, seen = FairLock(), 0, list[int](), list[int]()

    def work(index: int) -> None:
        nonlocal running
        with lock.hold():
            running += 1
            seen.append(running)
            order.append(index)
            seen.append(running)
            running -= 1

    with lock.hold():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for index, thread in enumerate(threads):
            thread.start()
            until(lambda count=index + 2: len(lock) == count)
    for thread in threads:
        thread.join(60)
    assert order == list(range(6)) and set(seen) == {1} and len(lock) == 0


def test_an_error_releases_the_lock() -> None:
    """If this fails, one bad request stops the GPU for everyone."""
    lock = FairLock()
    with pytest.raises(ValueError, match="x"), lock.hold():
        raise ValueError("x")
    with lock.hold():
        assert len(lock) == 1


def test_a_generator_passes_through() -> None:
    """Every item arrives, in order, whatever it is."""
    assert list(locked_steps(iter([1, None, 0, 4]))) == [1, None, 0, 4]
