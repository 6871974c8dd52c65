"""Requests that are computed at once share the cores.

If these fail, a busy server takes up to twice the CPU time for every answer, or a lone visitor waits for one
core's work.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from app.serving import cores
from app.serving.cores import share_of_cores
from app.state.analyses import reported
from explorer.threads import usable_threads


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    """Threads of later tests begin with what was set last."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize(("requests", "share"), [(1, 4), (2, 2), (3, 1), (9, 1)])
def test_each_request_has_its_share(requests: int, share: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """In its own thread, whatever the others set; all cores again afterwards."""
    monkeypatch.setattr(cores, "CORES", 4)
    together = Barrier(requests)

    def count() -> tuple[int, int]:
        with share_of_cores():
            together.wait(20)  # the last to come sees all
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
        cores._WORKING.add(1)  # another visitor comes
        progress(1, 2)
        inside.append(torch.get_num_threads())
        cores._WORKING.add(-1)

    with share_of_cores():
        steps = reported(compute)
        list(steps)
        assert usable_threads() == 4
    assert inside == [4, 2]
