"""Many schemes on one tensor, one after another, each result as soon as it is there."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from torch import Tensor

from explorer.numerics.metrics import Report, compare
from explorer.numerics.quantize import quantize
from explorer.numerics.schemes import Scheme


@dataclass(frozen=True)
class ComparisonRow:
    """One scheme's answer. ``on_frontier`` is set by ``mark_frontier`` once the others are known."""

    scheme: Scheme
    report: Report
    on_frontier: bool = False


def compare_schemes(x: Tensor, schemes: Iterable[Scheme]) -> Iterator[ComparisonRow]:
    """Quantize the matrix ``x`` by each scheme in turn and report; a generator, so it can be stopped."""
    for scheme in schemes:
        q = quantize(x, scheme)
        yield ComparisonRow(scheme, compare(x, q))


def mark_frontier(rows: Iterable[ComparisonRow]) -> list[ComparisonRow]:
    """The same rows, those marked that no other beats in SQNR at the same bits or fewer."""
    rows = list(rows)
    best, frontier = float("-inf"), set()
    for row in sorted(rows, key=lambda r: (r.report.bits.total, -r.report.sqnr_db)):
        if row.report.sqnr_db > best:
            best = row.report.sqnr_db
            frontier.add(row.scheme.name)
    return [ComparisonRow(r.scheme, r.report, r.scheme.name in frontier) for r in rows]
