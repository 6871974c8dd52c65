"""Bounded cache of read and computed data, shared by all visitors."""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Value = TypeVar("Value")


class Memo(Generic[Value]):
    """Values by key; the least recently used are dropped once the sizes add up to more than ``capacity``.

    ``capacity`` is in the unit that ``size`` of ``get`` counts in, bytes or entries. The newest value is kept
    even if it alone exceeds the capacity. Two threads that miss at the same time both compute; one of the
    results is kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity, self._used = capacity, 0
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable, compute: Callable[[], Value], size: Callable[[Value], int]) -> Value:
        """The value under ``key``, computed if it is not there. The lock is not held while computing."""
        known = self.peek(key)
        if known is not None:
            return known
        value = compute()
        with self._lock:
            if key not in self._entries:
                self._entries[key] = (value, size(value))
                self._used += self._entries[key][1]
            while self._used > self._capacity and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self._used -= freed
        return value

    def peek(self, key: Hashable) -> Value | None:
        """The value under ``key``, None if it is not there."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]
