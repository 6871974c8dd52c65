"""Compare many schemes on one tensor; each result is yielded as soon as it is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, TypeVar

import torch
from torch import Tensor

from explorer.analysis.histograms import Histogram
from explorer.analysis.report import Report, measure, own_histogram, sqnr_db
from explorer.analysis.sliced import analyse_anywhere
from explorer.core.backend import place
from explorer.core.quantize import quantize
from explorer.core.serialize import to_json
from explorer.schemes import Scheme

Item = TypeVar("Item")
SAMPLE_ELEMENTS = 1 << 18
"""Number of elements of a sample: the SQNRs of all named schemes are then within 0.05 dB of those of the
whole matrix on the built-in layers; with half as many within 0.4 dB."""
SEARCHED_LESS = 2
"""Divisor of the sample's size for schemes that search: their blocks are small and alike."""
CERTAIN = 0.25
"""Share of a sample that consists of the matrix's largest rows."""
RUN = 128
"""Largest height of blocks that a sample keeps whole: that of the tallest tile of a named scheme."""
MIN_BANDS = 8
"""Smallest number of bands in a sample; a matrix of fewer than twice as many is measured whole."""
SEARCHING_CALIBRATORS = ("mse", "entropy")


@dataclass(frozen=True)
class ComparisonRow:
    """Report of one scheme.

    on_frontier  set by ``mark_frontier`` once the other schemes are known
    share        share (0 … 1) of the elements that were measured
    recipe, named  text and label of a scheme under a method; empty for the scheme alone
    """

    scheme: Scheme
    report: Report
    on_frontier: bool = False
    share: float = 1.0
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


def survey(x: Tensor, schemes: Iterable[Scheme], most: int = SAMPLE_ELEMENTS) -> Iterator[ComparisonRow]:
    """Compare schemes on a sample of ``x`` of about ``most`` elements; the SQNR estimates that of the whole
    matrix (``weighted_rows``).

    Each scheme is yielded once, the slowest searches last. Bits are those of the whole matrix. Columns that
    share a scale are measured whole. A generator, so that it can be stopped.
    """
    once = list({scheme.text: scheme for scheme in schemes}.values())
    parts: dict[tuple[int, int], WeightedRows] = {}
    for scheme in sorted(once, key=searches):
        size = most // SEARCHED_LESS if searches(scheme) else most
        height = scheme.block[0] or 1
        tall = height if scheme.scale is not None and height <= RUN else 1
        key = (tall, x.numel() if _needs_all_rows(scheme) else size)
        if key not in parts:
            parts[key] = weighted_rows(x, key[1], tall)
        report = parts[key].report(scheme)
        bits = scheme.bits_per_element((x.shape[0], x.shape[1]))
        yield ComparisonRow(scheme, dataclasses.replace(report, bits=bits), share=parts[key].share)


def spans_rows(scheme: Scheme) -> bool:
    """True if all rows share a scale of the scheme."""
    return scheme.scale is not None and scheme.block[0] is None


def _needs_all_rows(scheme: Scheme) -> bool:
    """True for scales shared by all rows that max |x| does not determine: of one column each, or by a
    mean."""
    return spans_rows(scheme) and (scheme.block[1] is not None or scheme.calibrator.name != "minmax")


def searches(scheme: Scheme) -> bool:
    """True if the scheme tries many scales per block, which takes three to thirty times as long as one scale:
    llama.cpp's search, scales under super-blocks, and calibrators with an objective."""
    rule = scheme.scale
    searched = rule is not None and (rule.is_searched or rule.super_bits is not None)
    return searched or scheme.calibrator.name in SEARCHING_CALIBRATORS


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Some rows of a matrix, each with the number of the matrix's rows that it represents (float64 [rows]).

    ``signal`` is Σx² of the whole matrix; ``share`` (0 … 1) of its elements are here.
    """

    values: Tensor
    weights: Tensor
    signal: float
    share: float

    @cached_property
    def _before(self) -> Histogram:
        return own_histogram(self.values)

    @cached_property
    def _signal_here(self) -> float:
        """Estimate of ``signal`` from the rows here."""
        return float(self.values.double().square().sum(1) @ self.weights)

    def report(self, scheme: Scheme) -> Report:
        """Report on these rows; SQNR, relative error, MSE and RMSE are estimates for the whole matrix."""
        q = quantize(self.values, scheme)
        if self.share == 1:
            return measure(self.values, q, before=self._before).report
        restored = q.dequantize()
        report = measure(self.values, q, restored, self._before).report
        squares = (restored.double() - self.values.double()).square().sum(1)
        seen = self._signal_here
        # A ratio estimator: a sample with more of the signal has more of the error.
        noise = float(squares @ self.weights) * (self.signal / seen if seen > 0 else 1.0)
        if not (math.isfinite(noise) and noise > 0 and self.signal > 0):
            return report
        mse = noise / (float(self.weights.sum()) * self.values.shape[1])
        return dataclasses.replace(
            report,
            sqnr_db=sqnr_db(self.signal, noise),
            relative_error=math.sqrt(noise / self.signal),
            mse=mse,
            rmse=math.sqrt(mse),
        )


def weighted_rows(x: Tensor, most: int, tall: int = 1) -> WeightedRows:
    """Sample about ``most`` elements of ``x`` [rows, cols] in whole bands of ``tall`` rows.

    The bands with the largest |x|, which determine the error of a wide scale, are all taken and represent
    only themselves. Of the others, in the order of their size, every n-th is taken and represents its
    neighbours. The largest and the smallest element are among them, so that the scale of the whole tensor is
    right.
    """
    rows, columns = x.shape
    signal = float(x.double().square().sum())
    bands = rows // tall
    room = most // max(columns * tall, 1)
    if x.numel() <= most or bands < 2 * MIN_BANDS or room >= bands:
        return WeightedRows(x, torch.ones(rows, dtype=torch.float64, device=x.device), signal, 1.0)
    room = max(room, MIN_BANDS)
    size = x[: bands * tall].abs().nan_to_num(math.inf).view(bands, -1).amax(1)
    order = size.argsort(descending=True, stable=True)
    ends = torch.stack([x[: bands * tall].argmax(), x[: bands * tall].argmin()]) // (columns * tall)
    first = order[: max(1, int(CERTAIN * room))]
    certain = torch.cat([first, ends[~torch.isin(ends, first)]]).unique()
    others = order[~torch.isin(order, certain)]
    count = max(1, min(len(others), room - len(certain)))
    steps = ((torch.arange(count, device=x.device) + 0.5) * len(others) / count).long()
    chosen = torch.cat([certain, others[steps]])
    each = torch.ones(len(chosen), dtype=torch.float64, device=x.device)
    each[len(certain) :] = (rows / tall - len(certain)) / count
    index = (chosen[:, None] * tall + torch.arange(tall, device=x.device)).reshape(-1)
    values = x[index].contiguous()
    return WeightedRows(values, each.repeat_interleave(tall), signal, values.numel() / x.numel())


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
