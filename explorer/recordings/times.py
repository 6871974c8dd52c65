"""Times of one call and of its baseline, and the GPU's state after them."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TimeSpread:
    """Seconds of one call: median of the repeats, and their 10th and 90th percentile."""

    median_s: float
    low_s: float
    high_s: float


@dataclass(frozen=True)
class DeviceState:
    """Clock in MHz, power in W and temperature in °C just after a measurement, as the driver reports them."""

    clock_mhz: float
    power_w: float
    temperature_c: float


class AgainstBaseline:
    """Comparison of the times of a kernel and of its baseline."""

    graph: TimeSpread
    flush: TimeSpread | None
    baseline_graph: TimeSpread | None
    baseline_flush: TimeSpread | None

    @property
    def seconds(self) -> float:
        """Median of the graph replays."""
        return self.graph.median_s

    @property
    def speedup(self) -> float | None:
        """Times as fast as the baseline, by graph replay; None where that did not run."""
        return self.baseline_graph.median_s / self.seconds if self.baseline_graph else None

    @property
    def flushed_speedup(self) -> float | None:
        """Times as fast as the baseline, L2 overwritten before each launch; None where either was not timed
        so."""
        if self.flush is None or self.baseline_flush is None:
            return None
        return self.baseline_flush.median_s / self.flush.median_s
