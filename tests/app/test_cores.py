"""Requests that are computed at once share the cores.

If these fail, a busy server takes up to twice the CPU time for every answer, or a lone visitor waits for one
core's work.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from threading import Barrier

import pytest
import torch

from app.serving import cores
from app.serving.cores import share_of_cores


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
    torch.set_num_threads(torch.get_num_threads())  # what threads of later tests begin with
