"""Coroutines of tests beside browsers."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def run(runner: Callable[[Coroutine[Any, Any, T]], T], work: Coroutine[Any, Any, T]) -> T:
    """``runner(work)``, in another thread where a test with a browser has left its loop running in this
    one."""
    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return runner(work)
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(runner, work).result()
