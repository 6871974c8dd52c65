"""What an address may use of something within a time."""

from __future__ import annotations

import heapq
import threading
import time
from collections.abc import Callable

REMEMBERED = 4096
"""Addresses of which it is known what they used. Beyond, half are forgotten: those with the most left."""


class Allowance:
    """Each address may use ``burst`` at once, and ``rate`` a second after. ``clock``: monotonic seconds."""

    def __init__(self, burst: float, rate: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.burst, self.rate, self.clock = burst, rate, clock
        self._lock, self._whole = threading.Lock(), dict[str, float]()
        """By address: when it has all of its burst again."""

    def left(self, address: str) -> float:
        """What the address may use now; below 0, it has used more."""
        return self.burst - self.rate * max(0.0, self._whole.get(address, 0.0) - self.clock())

    def seconds_until(self, address: str, amount: float = 0.0) -> float:
        """Seconds until the address has ``amount`` left."""
        return max(0.0, amount - self.left(address)) / self.rate

    def use(self, address: str, amount: float) -> None:
        """Take ``amount`` of what the address has left."""
        with self._lock:
            now = self.clock()
            self._whole[address] = max(self._whole.get(address, now), now) + amount / self.rate
            if len(self._whole) > REMEMBERED:
                known = self._whole.items()
                self._whole = dict(heapq.nlargest(REMEMBERED // 2, known, key=lambda one: one[1]))
