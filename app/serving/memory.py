"""Return of memory to the system: freed tensors of one visitor must not stay as holes between others'."""

from __future__ import annotations

import ctypes
import sys
import threading
import time

LARGE_BYTES = 1 << 20
"""Blocks from this size on are returned to the system as soon as they are free."""
_M_TRIM_THRESHOLD, _M_MMAP_THRESHOLD = -1, -3


def return_large_blocks() -> bool:
    """Have the C library map each large block by itself; False where it is not glibc.

    By default glibc raises the size from which it does so to that of the largest block freed so far (up to
    32 MiB), and keeps what is smaller in arenas, a set for each thread, between blocks that are still in use.
    """
    if not sys.platform.startswith("linux"):
        return False
    option = getattr(ctypes.CDLL(None), "mallopt", None)
    if option is None:
        return False
    return bool(option(_M_MMAP_THRESHOLD, LARGE_BYTES) and option(_M_TRIM_THRESHOLD, LARGE_BYTES))


def return_small_holes() -> bool:
    """Give the system the whole pages between small blocks that are still in use; False where the C library
    is not glibc. The allocator does so by itself only at the end of its first arena."""
    if not sys.platform.startswith("linux"):
        return False
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)
    if trim is None:
        return False
    trim(ctypes.c_size_t(0))
    return True


def return_forever(every: float = 30) -> None:
    """Call ``return_small_holes`` at a fixed interval, in the background, until the process ends."""

    def run() -> None:
        while return_small_holes():
            time.sleep(every)

    threading.Thread(target=run, daemon=True, name="memory").start()
