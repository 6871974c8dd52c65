"""The shortlist: up to five schemes on one tensor, each measured on all of it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from explorer.analysis.report import Report
from explorer.schemes import Scheme

TOKENS = (1, 64, 4096)
"""Numbers of input rows for which the table has times."""


SAME_TIME = 1.03
"""Ratio of times below which no difference is reported."""
UNEVEN = 0.25
"""Half a time's spread, as a share of it, above which it ranks nothing."""


@dataclass(frozen=True)
class RowTime:
    """Time of a product with a layer's weight.

    seconds    median, None without a time; ``low``, ``high``: 10th and 90th percentile
    how        "measured" at the layer's own shape, or at the "nearest" recorded one
    note       shape, kernel and device, or the reason why there is no time
    """

    tokens: int
    seconds: float | None
    how: Literal["measured", "nearest"] = "nearest"
    note: str = ""
    low: float = 0.0
    high: float = 0.0

    def faster_than(self, other: RowTime) -> float | None:
        """The other's time over this one, if that is told apart from 1; None otherwise, also without a
        time."""
        if not self.seconds or not other.seconds:
            return None
        ratio = other.seconds / self.seconds
        apart = (self.high or self.seconds) < (other.low or other.seconds)
        return ratio if apart and ratio >= SAME_TIME else None


@dataclass(frozen=True)
class Race:
    """Recorded times of products with weights of one shape, ``at`` [N, K], so that they can be ranked.

    near    True if the layer is not much smaller or larger
    times   by scheme's text, in the order of ``tokens``
    bf16    times of weights that are not quantized
    """

    at: tuple[int, int]
    near: bool
    gpu: str
    tokens: tuple[int, ...]
    times: Mapping[str, tuple[RowTime, ...]]
    bf16: tuple[RowTime, ...]


@dataclass(frozen=True)
class Pending:
    """Row of the shortlist before its error is known; bits per element and bytes are. ``refused``: the reason
    why the error cannot be computed; ``unheld``: why no checkpoint format has the scheme."""

    text: str
    label: str
    bits: float
    nbytes: int
    held: tuple[str, ...] = ()
    refused: str = ""
    unheld: str = ""


@dataclass(frozen=True)
class Candidate:
    """Row of the shortlist. ``text`` names the scheme in links; ``held``: checkpoint formats with the scheme;
    ``unheld``: the reason why there is none.

    report     measures the ``share`` (0 … 1) of the tensor
    half_db    half the interval of an estimated SQNR; None without one
    note       the reason why the report is not of the whole tensor, if it stays so
    output_db  SQNR of the layer's output on inputs that no method saw; None if it was not computed
    """

    text: str
    label: str
    report: Report
    held: tuple[str, ...] = ()
    share: float = 1.0
    half_db: float | None = None
    note: str = ""
    output_db: float | None = None
    unheld: str = ""


def storage(scheme: Scheme, shape: tuple[int, int]) -> tuple[float, int]:
    """Compute bits per element and bytes of a tensor [rows, cols] under ``scheme``, scales included."""
    bits = scheme.bits_per_element(shape).total
    return bits, round(bits * shape[0] * shape[1] / 8)
