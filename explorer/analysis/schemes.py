"""Many schemes on one tensor, one after another, each result as soon as it is there."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor

from explorer.analysis.frontier import on_frontier
from explorer.analysis.histograms import Histogram
from explorer.analysis.report import Report, measure, own_histogram
from explorer.analysis.sliced import analyse_anywhere
from explorer.core.backend import place
from explorer.core.quantize import quantize
from explorer.core.serialize import to_json
from explorer.schemes import Scheme


@dataclass(frozen=True)
class ComparisonRow:
    """One scheme's report. ``on_frontier`` is set by ``mark_frontier`` once the other schemes are known.
    ``share`` (0 … 1): the part of the elements that was measured. ``recipe`` and ``named``: the text and the
    label of a scheme under a method, whose report this is; empty for the scheme alone."""

    scheme: Scheme
    report: Report
    on_frontier: bool = False
    share: float = 1.0
    recipe: str = ""
    named: str = ""

    @property
    def text(self) -> str:
        """The text of the scheme, or of the recipe."""
        return self.recipe or str(self.scheme)

    @property
    def label(self) -> str:
        """The label of the scheme, or of the recipe."""
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


SAMPLE_ELEMENTS = 1 << 18
"""The most elements of a part: the SQNRs of all named schemes are then within 0.05 dB of those of the
whole matrix on the built-in layers; with half as many within 0.4 dB."""
RUN = 128
"""The most rows of a block that a sample keeps whole: the height of the tallest tile of a named scheme."""
SEARCHING_CALIBRATORS = ("mse", "entropy")


def survey(x: Tensor, schemes: Iterable[Scheme], most: int = SAMPLE_ELEMENTS) -> Iterator[ComparisonRow]:
    """``compare_schemes`` on a part of ``x`` of about ``most`` elements, each scheme once, those that search
    longest last; the SQNR is an estimate of that of the whole matrix (``weighted_rows``).

    Bits are those of the whole matrix. Columns that share a scale are measured whole. A generator, so that it
    can be stopped.
    """
    once = list({scheme.text: scheme for scheme in schemes}.values())
    parts: dict[tuple[int, int], WeightedRows] = {}
    for scheme in sorted(once, key=searches):
        size = most // SEARCHED_LESS if searches(scheme) else most
        key = (_rows_of_a_block(scheme), x.numel() if _needs_all_rows(scheme) else size)
        if key not in parts:
            parts[key] = weighted_rows(x, key[1], key[0])
        report = parts[key].report(scheme)
        bits = scheme.bits_per_element((x.shape[0], x.shape[1]))
        yield ComparisonRow(scheme, dataclasses.replace(report, bits=bits), share=parts[key].share)


def _needs_all_rows(scheme: Scheme) -> bool:
    """True of a scale of all rows that the largest |x| does not determine: one a column, or of a mean."""
    spans = scheme.scale is not None and scheme.block[0] is None
    return spans and (scheme.block[1] is not None or scheme.calibrator.name != "minmax")


SEARCHED_LESS = 2
"""Schemes that search are measured on so many times fewer elements: their blocks are small and alike."""
CERTAIN = 0.25
"""The share of a part that is its largest rows."""


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Some rows of a matrix, each with the number of the matrix's rows that it stands for (float64 [rows]).

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
        """Σx² of the rows here, each for those that it stands for."""
        return float(self.values.double().square().sum(1) @ self.weights)

    def report(self, scheme: Scheme) -> Report:
        """The report on these rows, with the SQNR, relative error, MSE and RMSE as estimates of the whole."""
        q = quantize(self.values, scheme)
        if self.share == 1:
            return measure(self.values, q, before=self._before).report
        restored = q.dequantize()
        report = measure(self.values, q, restored, self._before).report
        squares = (restored.double() - self.values.double()).square().sum(1)
        seen = self._signal_here
        # By the ratio: where the part has more of the signal, it has more of the error.
        noise = float(squares @ self.weights) * (self.signal / seen if seen > 0 else 1.0)
        if not (math.isfinite(noise) and noise > 0 and self.signal > 0):
            return report
        mse = noise / (float(self.weights.sum()) * self.values.shape[1])
        relative = math.sqrt(noise / self.signal)
        return dataclasses.replace(
            report, sqnr_db=-20 * math.log10(relative), relative_error=relative, mse=mse, rmse=math.sqrt(mse)
        )


def weighted_rows(x: Tensor, most: int, tall: int = 1) -> WeightedRows:
    """About ``most`` elements of ``x`` [rows, cols] in whole bands of ``tall`` rows: those with the largest
    |x|, which decide the error of a wide scale, each for itself, and of the others every n-th for its
    neighbours, in the order of their size.

    The largest and the smallest element are among them, so a scale of the whole tensor is the right one.
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


MIN_BANDS = 8
"""The fewest bands of a part; a matrix of fewer than twice as many is measured whole."""


def _rows_of_a_block(scheme: Scheme) -> int:
    """The height of the scheme's blocks that a sample keeps whole; 1 of blocks that span more than a run."""
    height = scheme.block[0] or 1
    return height if scheme.scale is not None and height <= RUN else 1


def searches(scheme: Scheme) -> bool:
    """True if the scheme tries many scales per block, which takes three to thirty times as long as one scale:
    what llama.cpp's search finds, scales under super-blocks, and calibrators with an objective."""
    rule = scheme.scale
    searched = rule is not None and (rule.is_searched or rule.super_bits is not None)
    return searched or scheme.calibrator.name in SEARCHING_CALIBRATORS


def mark_frontier(rows: Iterable[ComparisonRow]) -> list[ComparisonRow]:
    """The same rows, marked where no other has an SQNR as high at the same bits per element or fewer."""
    rows = list(rows)
    marks = on_frontier(rows, lambda r: r.report.bits.total, lambda r: r.report.sqnr_db)
    return [dataclasses.replace(row, on_frontier=mark) for row, mark in zip(rows, marks, strict=True)]


def comparison_record(row: ComparisonRow) -> dict[str, Any]:
    """One row as plain JSON values: the scheme's name, the report's fields, whether it is on the frontier."""
    total = {"total_bits": row.report.bits.total, "on_frontier": row.on_frontier}
    return {"scheme": row.scheme.name, **to_json(row.report), **total}
