"""A word of host memory that kernels set; the host reads it without a copy once their work has ended."""

from __future__ import annotations

import ctypes
import threading

import torch


class HostFlag:
    """Word of host memory: zero until a kernel that is given ``address`` writes to it. Page-locked memory has
    one address for the host and all GPUs (CUDA's unified addressing)."""

    def __init__(self) -> None:
        self._memory = torch.zeros(1, dtype=torch.int32, pin_memory=True)
        self.address = self._memory.data_ptr()
        self._word = ctypes.c_int32.from_address(self.address)

    def lower(self) -> bool:
        """Return True if the flag was set, and reset it. The kernels must have been waited for."""
        was_set = bool(self._word.value)
        if was_set:
            self._word.value = 0
        return was_set


_OF_THREAD = threading.local()
_ABANDONED: list[HostFlag] = []
"""Flags that a kernel may still set because their call ended before it did: never used again."""


def flag_of_thread() -> HostFlag:
    """Return this thread's flag. A caller that gives it to kernels waits for them before the thread asks for
    it again."""
    flag: HostFlag | None = getattr(_OF_THREAD, "flag", None)
    if flag is None:
        flag = _OF_THREAD.flag = HostFlag()
    return flag


def abandon_flag() -> None:
    """Give up this thread's flag, because kernels that may write to it were not waited for."""
    _ABANDONED.append(_OF_THREAD.flag)
    del _OF_THREAD.flag
