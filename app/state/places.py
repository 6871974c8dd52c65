"""Places of work: few at once for one address, so that others' work goes on, and for all of them together."""

from __future__ import annotations

import itertools
import threading
from collections import Counter
from collections.abc import Hashable, Iterator
from dataclasses import dataclass

from app.serving.work import waiting_for_others
from explorer.progress import checkpoint

AGAIN_S = 0.5
"""Between two looks whether who waits for places is still wanted."""


@dataclass(frozen=True)
class _Asked:
    """What somebody waits for: so many places, and the turn: of the address that had one longest ago."""

    address: str
    name: Hashable
    size: int
    turn: tuple[int, int]


class Places:
    """Work that goes on, by its visitors' addresses: up to ``of_one`` places of an address, ``of_all``
    together. Larger work than that goes on alone."""

    def __init__(self, of_one: int, of_all: int) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._change, self.held = threading.Condition(), Counter[str]()
        self._named = set[Hashable]()
        self._numbers, self._had = itertools.count(1), dict[str, int]()
        self.waiting: list[_Asked] = []

    def taking(self, address: str, name: Hashable = None, size: int = 1) -> Iterator[None]:
        """``take`` places, however long that takes: yields every half a second until it has them. The wait is
        not the run's own time, and ends as the run does."""
        number = next(self._numbers)
        while True:
            with waiting_for_others():
                if self.take(address, AGAIN_S, name, size, number):
                    return
            checkpoint()
            yield

    def take(
        self, address: str, seconds: float, name: Hashable = None, size: int = 1, number: int = 0
    ) -> bool:
        """Take ``size`` places; False if they are not free for so long, or if the work called ``name`` has
        some. Of those who wait, an address that has had none comes first, then who has the lowest
        ``number``, by default a new one."""
        with self._change:
            asked = _Asked(address, name, size, (self._had.get(address, 0), number or next(self._numbers)))
            self.waiting.append(asked)
            try:
                taken = self._change.wait_for(lambda: self._is_next(asked), seconds)
            finally:
                self.waiting.remove(asked)
            if taken:
                self.held[address] += size
                self._had[address] = next(self._numbers)
                if name is not None:
                    self._named.add(name)
            self._forget()
            self._change.notify_all()
            return taken

    def give_back(self, address: str, name: Hashable = None, size: int = 1) -> None:
        """Free places that were taken."""
        with self._change:
            self.held[address] -= size
            self.held += Counter()  # an address that has none is not kept
            self._named.discard(name)
            self._forget()
            self._change.notify_all()

    def _is_next(self, asked: _Asked) -> bool:
        """True if the places are free, and nobody waits for them who comes before."""
        total = self.held.total()
        if not self._may(asked) or (total and total + asked.size > self._of_all):
            return False
        return not any(one.turn < asked.turn and self._may(one) for one in self.waiting)

    def _may(self, asked: _Asked) -> bool:
        """True if what one address may have, and what has a name, leave it free."""
        own = self.held[asked.address]
        return asked.name not in self._named and (not own or own + asked.size <= self._of_one)

    def _forget(self) -> None:
        """When an address had a place matters as long as it asks for more."""
        asking = {*self.held, *(one.address for one in self.waiting)}
        self._had = {address: when for address, when in self._had.items() if address in asking}
