"""Places of work: few at once for one address, so that others' work goes on, and for all of them together."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Hashable


class Places:
    """Work that goes on, by its visitors' addresses: up to ``of_one`` of an address, ``of_all`` together."""

    def __init__(self, of_one: int, of_all: int) -> None:
        self._of_one, self._of_all = of_one, of_all
        self._change, self.held = threading.Condition(), Counter[str]()
        self._named = set[Hashable]()

    def take(self, address: str, seconds: float, name: Hashable = None) -> bool:
        """Take a place; False if none is free for so long, or if the work called ``name`` has one."""

        def free() -> bool:
            return (
                name not in self._named
                and self.held[address] < self._of_one
                and self.held.total() < self._of_all
            )

        with self._change:
            if taken := self._change.wait_for(free, seconds):
                self.held[address] += 1
                if name is not None:
                    self._named.add(name)
            return taken

    def give_back(self, address: str, name: Hashable = None) -> None:
        """Free a place that was taken."""
        with self._change:
            self.held[address] -= 1
            self.held += Counter()  # an address that has none is not kept
            self._named.discard(name)
            self._change.notify_all()
