"""The sums that error measures are computed from, on CPU and GPU alike."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class ErrorSums:
    """Float64 sums over a matrix x and its restored y: Σx², Σ(y-x)², Σy², Σxy, Σ|y-x|; the number of x
    outside their block's limits, and of those that became zero; the largest |y-x| and its row-major index."""

    signal: float
    noise: float
    output: float
    inner: float
    absolute: float
    clipped: int
    zeroed: int
    largest: float
    where: int
