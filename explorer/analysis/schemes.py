"""Compare many schemes on one tensor; each result is yielded as soon as it is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from torch import Tensor

from explorer.analysis.report import Report, measure, own_histogram
from explorer.analysis.sliced import analyse_anywhere
from explorer.core.backend import place
from explorer.core.quantize import quantize
from explorer.core.serialize import to_json
from explorer.schemes import Scheme

Item = TypeVar("Item")
SEARCHING_CALIBRATORS = ("mse", "entropy")


@dataclass(frozen=True)
class ComparisonRow:
    """Report of one scheme.

    on_frontier  set by ``mark_frontier`` once the other schemes are known
    share        share (0 … 1) of the elements that were measured
    half_db      half the confidence interval of an estimated SQNR (``estimate.Estimate``); None without one
    recipe, named  text and label of a scheme under a method; empty for the scheme alone
    """

    scheme: Scheme
    report: Report
    on_frontier: bool = False
    share: float = 1.0
    half_db: float | None = None
    recipe: str = ""
    named: str = ""

    @property
    def text(self) -> str:
        return self.recipe or str(self.scheme)

    @property
    def label(self) -> str:
        return self.named or self.scheme.label


def compare_schemes(x: Tensor, schemes: Iterable[Scheme]) -> Iterator[ComparisonRow]:
    """Quantize the float32 matrix ``x`` by each scheme and report; a generator, so that it can be stopped."""
    where = place(x)
    x = where.move(x)
    before = own_histogram(x) if where.whole else None
    for scheme in schemes:
        if where.whole:
            yield ComparisonRow(scheme, measure(x, quantize(x, scheme), before=before).report)
        else:
            yield ComparisonRow(scheme, analyse_anywhere(x, scheme).report)


def spans_rows(scheme: Scheme) -> bool:
    """True if all rows share a scale of the scheme."""
    return scheme.scale is not None and scheme.block[0] is None


def searches(scheme: Scheme) -> bool:
    """True if the scheme tries many scales per block, which takes three to thirty times as long as one scale:
    llama.cpp's search, scales under super-blocks, and calibrators with an objective."""
    rule = scheme.scale
    searched = rule is not None and (rule.is_searched or rule.super_bits is not None)
    return searched or scheme.calibrator.name in SEARCHING_CALIBRATORS


def on_frontier(
    items: Sequence[Item], cost: Callable[[Item], float], gain: Callable[[Item], float]
) -> list[bool]:
    """Mark the Pareto frontier: items for which no other item has the same ``cost`` or less and a ``gain`` as
    high.

    Of items with equal cost and gain the first is marked; items with a gain of NaN never are.
    """
    known = (i for i, item in enumerate(items) if not math.isnan(gain(item)))
    marks, best = [False] * len(items), -math.inf
    for i in sorted(known, key=lambda i: (cost(items[i]), -gain(items[i]))):
        if gain(items[i]) > best:
            best, marks[i] = gain(items[i]), True
    return marks


def mark_frontier(rows: Iterable[ComparisonRow]) -> list[ComparisonRow]:
    """Mark the rows of which no other has an SQNR as high at the same bits per element or fewer."""
    rows = list(rows)
    marks = on_frontier(rows, lambda r: r.report.bits.total, lambda r: r.report.sqnr_db)
    return [dataclasses.replace(row, on_frontier=mark) for row, mark in zip(rows, marks, strict=True)]


def comparison_record(row: ComparisonRow) -> dict[str, Any]:
    """Return a row as JSON values: the scheme's name, the report's fields, whether it is on the frontier."""
    total = {"total_bits": row.report.bits.total, "on_frontier": row.on_frontier}
    return {"scheme": row.scheme.name, **to_json(row.report), **total}
