"""Bounded cache of read and computed data, shared by all visitors."""

from __future__ import annotations

import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Mapping
from typing import Any, Generic, TypeVar

import numpy as np
from torch import Tensor

from explorer import Scheme
from explorer.progress import checkpoint
from explorer.survey.times import StepTimes

Value = TypeVar("Value")
_OF_ALL = (Scheme, StepTimes, type)
_BETWEEN_CHECKS = 1 << 12


def size_of(value: Any) -> int:
    """Bytes of a value and of all that it refers to: containers, arrays, and objects of this program. What
    all values share, and objects of other libraries, count without what they refer to."""
    seen: dict[int, Any] = {}
    left, total = [value], 0
    while left:
        if id(one := left.pop()) in seen:
            continue
        seen[id(one)] = one
        total += sys.getsizeof(one)
        if len(seen) % _BETWEEN_CHECKS == 0:
            checkpoint()
        if isinstance(one, Mapping):
            left += [*one, *one.values()]
        elif isinstance(one, tuple | list | set | frozenset):
            left += one
        elif isinstance(one, Tensor):
            total += one.untyped_storage().nbytes()  # a part of it keeps it whole
        elif isinstance(one, np.ndarray):
            total += one.nbytes
        elif type(one).__module__.startswith(("explorer.", "app.")) and not isinstance(one, _OF_ALL):
            left.append(getattr(one, "__dict__", None))
    return total


class Memo(Generic[Value]):
    """Values by key; the least recently used are dropped once they and their keys have more than ``capacity``
    bytes.

    The newest value is kept even if it alone exceeds the capacity. Two threads that miss at the same time
    both compute; one of the results is kept.
    """

    def __init__(self, capacity: int) -> None:
        self._capacity, self._used = capacity, 0
        self._entries: OrderedDict[Hashable, tuple[Value, int]] = OrderedDict()
        self._lock = threading.Lock()

    def get(
        self, key: Hashable, compute: Callable[[], Value], size: Callable[[Value], int] = size_of
    ) -> Value:
        """The value under ``key``, computed if it is not there. The lock is not held while computing."""
        known = self.peek(key)
        if known is not None:
            return known
        value = compute()
        bytes_ = size(value) + size_of(key)
        with self._lock:
            if key not in self._entries:
                self._entries[key] = (value, bytes_)
                self._used += bytes_
            while self._used > self._capacity and len(self._entries) > 1:
                _, (_, freed) = self._entries.popitem(last=False)
                self._used -= freed
        return value

    def keep(self, key: Hashable, value: Value) -> None:
        """Make ``value`` the newest, or the one that is there under ``key``."""
        self.get(key, lambda: value)

    def peek(self, key: Hashable) -> Value | None:
        """The value under ``key``, None if it is not there."""
        with self._lock:
            if key not in self._entries:
                return None
            self._entries.move_to_end(key)
            return self._entries[key][0]
