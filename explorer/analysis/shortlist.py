"""The shortlist: up to five schemes on one tensor, each measured on all of it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from explorer.analysis.report import Report
from explorer.schemes import Scheme

TOKENS = (1, 64, 4096)
"""Numbers of input rows for which times are given."""


@dataclass(frozen=True)
class RowTime:
    """Time of a product with a layer's weight.

    ``seconds``, measured at this shape or at the nearest recorded one; None without a kernel. ``note`` names
    the shape, the kernel and the device.
    """

    tokens: int
    seconds: float | None
    how: Literal["measured", "nearest"] = "nearest"
    note: str = ""


class _Row:
    """A row with times of products."""

    times: tuple[RowTime, ...]

    def time_at(self, tokens: int) -> RowTime | None:
        """The time at this number of tokens; None without one."""
        return next((time for time in self.times if time.tokens == tokens), None)


@dataclass(frozen=True)
class Pending(_Row):
    """Row of the shortlist before its error is known; bits per element and bytes are. ``refused``: the reason
    why the error cannot be computed."""

    text: str
    label: str
    bits: float
    nbytes: int
    held: tuple[str, ...] = ()
    times: tuple[RowTime, ...] = ()
    refused: str = ""


@dataclass(frozen=True)
class Candidate(_Row):
    """Row of the shortlist. ``text`` names the scheme in links; ``report`` measures the ``share`` (0 … 1) of
    the tensor; ``held``: checkpoint formats with this scheme."""

    text: str
    label: str
    report: Report
    held: tuple[str, ...] = ()
    times: tuple[RowTime, ...] = ()
    share: float = 1.0


def storage(scheme: Scheme, shape: tuple[int, int]) -> tuple[float, int]:
    """Compute bits per element and bytes of a tensor [rows, cols] under ``scheme``, scales included."""
    bits = scheme.bits_per_element(shape).total
    return bits, round(bits * shape[0] * shape[1] / 8)
