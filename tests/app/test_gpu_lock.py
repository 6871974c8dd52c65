"""The lock of the GPU. If these fail, two visitors run on it at once, or one waits forever."""

from __future__ import annotations

import threading
import time

import pytest

from app.state.gpu_lock import FairLock, locked_steps


def test_one_at_a_time_in_the_order_of_coming() -> None:
    """Six threads that ask one after another run one after another."""
    lock, running, order = FairLock(), 0, []
    most = 0

    def work(index: int) -> None:
        nonlocal running, most
        with lock.hold():
            running += 1
            most = max(most, running)
            order.append(index)
            time.sleep(0.005)
            running -= 1

    with lock.hold():
        threads = [threading.Thread(target=work, args=(i,)) for i in range(6)]
        for index, thread in enumerate(threads):
            thread.start()
            while len(lock) < index + 2:
                time.sleep(0.001)
    for thread in threads:
        thread.join(5)
    assert order == list(range(6)) and most == 1 and len(lock) == 0


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
