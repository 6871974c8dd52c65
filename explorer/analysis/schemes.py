"""Many schemes on one tensor, one after another, each result as soon as it is there."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explorer.analysis.frontier import on_frontier
from explorer.analysis.report import Report, compare
from explorer.analysis.sliced import analyse_anywhere
from explorer.core.backend import place
from explorer.core.quantize import quantize
from explorer.core.serialize import to_json
from explorer.schemes import Scheme


@dataclass(frozen=True)
class ComparisonRow:
    """One scheme's report. ``on_frontier`` is set by ``mark_frontier`` once the other schemes are known."""

    scheme: Scheme
    report: Report
    on_frontier: bool = False


def compare_schemes(x: Tensor, schemes: Iterable[Scheme]) -> Iterator[ComparisonRow]:
    """Quantize the float32 matrix ``x`` by each scheme and report; a generator, so that it can be stopped."""
    where = place(x)
    x = where.move(x)
    for scheme in schemes:
        if where.whole:
            yield ComparisonRow(scheme, compare(x, quantize(x, scheme)))
        else:
            yield ComparisonRow(scheme, analyse_anywhere(x, scheme).report)


SAMPLE_ELEMENTS = 1 << 17
"""The most elements of a sample: all 87 named schemes took 1.4 s on two busy cores for a 1536 × 384 matrix,
more than half of it for the five that search; with twice as many 3.7 s."""
RUNS = 4
"""The fewest runs of rows that a sample is of: outliers gather in some rows of a weight."""
RUN = 128
"""The most consecutive rows of a run: the height of the tallest tile of a named scheme."""
SEARCHING_CALIBRATORS = ("mse", "entropy")
WHOLE_BLOCKS = 256
"""The part of a row that is taken is a multiple of this, which the named schemes' blocks divide."""


@dataclass(frozen=True, eq=False)
class RowSample:
    """Some rows of a matrix, in runs that lie at even distances; ``share`` (0 … 1) of its elements."""

    values: Tensor
    share: float


def sample_rows(x: Tensor, most: int = SAMPLE_ELEMENTS, tall: int = 1) -> RowSample:
    """At most ``most`` elements of the matrix ``x`` [rows, cols]: all of it where it has no more.

    Rows are whole, as blocks run along them, in at least ``RUNS`` runs from the first row to the last; of a
    single row that does not fit, its first columns. Blocks of ``tall`` > 1 rows (at most ``RUN``) are whole
    too: where ``RUNS`` of them with whole rows do not fit, each run has other columns. A scheme with one
    range for the whole tensor, or for a column, sees the range of the sample: if outliers lie outside of it,
    the error of the whole tensor is larger than the sample's.
    """
    rows, columns = x.shape
    if x.numel() <= most:
        return RowSample(x, 1.0)
    tall = min(tall, rows)
    height = 1 if tall == 1 else min(RUNS * tall, rows)
    width = min(columns, max(1, most // height))
    if WHOLE_BLOCKS < width < columns:
        width -= width % WHOLE_BLOCKS
    bands = rows // tall
    fit = max(1, min(bands, most // (width * tall)))
    run = max(1, min(RUN // tall, fit // RUNS))
    runs = fit // run
    parts = []
    for i in range(runs):
        start = i * (bands - run) // max(runs - 1, 1) * tall
        left = i * (columns - width) // max(runs - 1, 1) // WHOLE_BLOCKS * WHOLE_BLOCKS
        parts.append(x[start : start + run * tall, left : left + width])
    values = torch.cat(parts)
    return RowSample(values, values.numel() / x.numel())


def survey(x: Tensor, schemes: Iterable[Scheme], most: int = SAMPLE_ELEMENTS) -> Iterator[ComparisonRow]:
    """``compare_schemes`` on ``sample_rows`` of ``x``, each scheme once, those that search longest last.

    Bits are those of the whole matrix. A generator, so that it can be stopped.
    """
    once = list({scheme.text: scheme for scheme in schemes}.values())
    samples: dict[int, Tensor] = {}
    for scheme in sorted(once, key=searches):
        tall = _rows_of_a_block(scheme)
        if tall not in samples:
            samples[tall] = sample_rows(x, most, tall).values
        (row,) = compare_schemes(samples[tall], [scheme])
        bits = scheme.bits_per_element((x.shape[0], x.shape[1]))
        yield dataclasses.replace(row, report=dataclasses.replace(row.report, bits=bits))


def _rows_of_a_block(scheme: Scheme) -> int:
    """The height of the scheme's blocks that a sample keeps whole; 1 of blocks that span more than a run."""
    height = scheme.block[0] or 1
    return height if scheme.scale is not None and height <= RUN else 1


def searches(scheme: Scheme) -> bool:
    """True if the scheme tries many scales per block, which takes about thirty times as long as one scale:
    GGUF's K-quants, and calibrators with an objective."""
    searched = scheme.scale is not None and scheme.scale.super_bits is not None
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
