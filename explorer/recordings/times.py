"""Times of one call and of its baseline, and the state of the GPU after them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

from pydantic import AfterValidator, Field


def _divisor(value: float) -> float:
    if value < 1e-30:
        raise ValueError("so small a number is no measurement")
    return value


Positive = Annotated[float, Field(gt=0, lt=1e30), AfterValidator(_divisor)]
Seconds = Annotated[float, Field(ge=1e-12, le=1e6)]
"""Accepted seconds of a call."""


@dataclass(frozen=True)
class TimeSpread:
    """Seconds of one call: median of the repeats, and their 10th and 90th percentile."""

    median_s: Seconds
    low_s: Seconds
    high_s: Seconds


@dataclass(frozen=True)
class DeviceState:
    """Clock in MHz, power in W and temperature in °C just after a measurement, as the driver reports them."""

    clock_mhz: float
    power_w: float
    temperature_c: float


class AgainstBaseline:
    """Times of a kernel and of its baseline."""

    graph: TimeSpread
    flush: TimeSpread | None
    baseline_graph: TimeSpread | None
    baseline_flush: TimeSpread | None

    @property
    def seconds(self) -> float:
        """Median seconds of the graph replays."""
        return self.graph.median_s

    @property
    def speedup(self) -> float | None:
        """The baseline's time over the kernel's, by graph replay; None if the baseline did not run."""
        return self.baseline_graph.median_s / self.seconds if self.baseline_graph else None

    @property
    def flushed_speedup(self) -> float | None:
        """``speedup`` with L2 overwritten before each launch; None if either was not timed so."""
        if self.flush is None or self.baseline_flush is None:
            return None
        return self.baseline_flush.median_s / self.flush.median_s
