"""Recorded grouped products: ``assets/measurements/grouped.json``."""

from __future__ import annotations

from dataclasses import dataclass

from explorer.recordings.files import Recording, recorded
from explorer.recordings.times import AgainstBaseline, DeviceState, TimeSpread

NAME = "grouped"


@dataclass(frozen=True)
class GroupedTiming(AgainstBaseline):
    """Time of one kernel for one grouped product.

    Times are seconds. ``dense_s``: the plain kernel's product of as many rows with a single W. ``floor_s``:
    the limit, not measured. ``sqnr_db``: the output against the float64 product of the X and W before
    quantization.
    """

    product: str
    label: str
    variant: str
    case: str
    groups: int
    rows: int
    n: int
    k: int
    graph: TimeSpread
    flush: TimeSpread | None
    baseline: str
    baseline_graph: TimeSpread | None
    baseline_flush: TimeSpread | None
    baseline_note: str
    dense_s: float
    floor_s: float | None
    bytes_moved: int
    sqnr_db: float
    state: DeviceState | None

    @property
    def tflops(self) -> float:
        return 2 * self.rows * self.n * self.k / self.seconds / 1e12

    @property
    def share(self) -> float | None:
        """The limit over the measured time."""
        return self.floor_s / self.seconds if self.floor_s else None


def recorded_grouped() -> Recording[GroupedTiming]:
    """Load the recording ``assets/measurements/grouped.json``; empty if there is none."""
    return recorded(NAME, GroupedTiming)
