"""Keep subnormal numbers, whatever the process has set.

``torch.set_flush_denormal(True)`` makes the processor replace subnormal results and operands by zero.
Encoding, decoding and scales pass through subnormal float32 numbers, so they turn it off while they run.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import ParamSpec, TypeVar

import torch

P = ParamSpec("P")
T = TypeVar("T")

_smallest = 5e-324


def keeps_subnormals(function: Callable[P, T]) -> Callable[P, T]:
    """Wrap ``function`` so that flushing is off in this thread while it runs."""

    @wraps(function)
    def kept(*args: P.args, **kwargs: P.kwargs) -> T:
        if _smallest * 1.0:  # zero where the processor flushes
            return function(*args, **kwargs)
        torch.set_flush_denormal(False)
        try:
            return function(*args, **kwargs)
        finally:
            torch.set_flush_denormal(True)

    return kept
