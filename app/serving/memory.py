"""How the process gives memory back: tensors of one visitor must not stay as holes between others'."""

from __future__ import annotations

import ctypes
import sys

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
