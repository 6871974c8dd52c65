"""Subnormal numbers kept, whatever the process has set.

``torch.set_flush_denormal(True)`` makes the processor replace subnormal results and operands by zero.
Encoding, decoding and scales pass through subnormal float32 numbers, so they turn that off while they run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

_smallest = 5e-324


@contextmanager
def subnormals_kept() -> Iterator[None]:
    """Switch flushing off for this thread while the body runs, if it is on."""
    if _smallest * 1.0:  # a product of the processor's: zero when it flushes
        yield
        return
    torch.set_flush_denormal(False)
    try:
        yield
    finally:
        torch.set_flush_denormal(True)


def keeps_subnormals(function: Callable[P, T]) -> Callable[P, T]:
    """``function`` with ``subnormals_kept`` around it."""

    @wraps(function)
    def kept(*args: P.args, **kwargs: P.kwargs) -> T:
        if _smallest * 1.0:
            return function(*args, **kwargs)
        with subnormals_kept():
            return function(*args, **kwargs)

    return kept
