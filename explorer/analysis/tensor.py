"""One scheme on one tensor, reduced to what a screen shows: a report, histograms and an error map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from explorer.analysis.element import block_index
from explorer.analysis.histograms import Histogram, histogram, tile_maximum
from explorer.analysis.report import Measured, Report, measure
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.schemes import Scheme

MAP_LIMIT = 192
"""The most rows and columns of an error map: 36 kB at one byte a cell."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """The quantized tensor, its ``Measured`` error, the histogram of signed errors, and ``error_map``.

    ``error_map`` is float32, at most [MAP_LIMIT, MAP_LIMIT]: the largest |x̂ - x| of each tile.
    """

    q: QuantizedTensor
    measured: Measured
    errors: Histogram
    error_map: Tensor

    @property
    def report(self) -> Report:
        return self.measured.report


def analyse(x: Tensor, scheme: Scheme) -> Analysis:
    """Quantize the float32 matrix ``x`` [rows, cols] and measure the error."""
    q = quantize(x, scheme)
    restored = q.dequantize()
    measured = measure(x, q, restored)
    errors = error_histogram(restored, x, measured.report.max_error)
    return Analysis(q, measured, errors, tile_maximum(restored, MAP_LIMIT, minus=x).cpu())


def error_histogram(restored: Tensor, x: Tensor, largest: float) -> Histogram:
    """Signed errors up to ±``largest`` in 255 bins: with an odd number one bin is centred on zero."""
    return histogram(restored, -largest, largest, 255, minus=x)


def block_levels(q: QuantizedTensor, row: int, column: int) -> np.ndarray:
    """float64 [levels]: what the block of element (row, column) can represent; empty above 8 bits."""
    fmt = q.scheme.format
    if fmt.bits > 8:
        return np.empty(0)
    levels = np.array(fmt.levels)
    low, high = q.scheme.code_limits
    levels = levels[(levels >= low) & (levels <= high)]
    if q.scheme.scale is None:
        return levels
    cell = block_index(q, row, column)
    zero = 0 if q.scales.zero_points is None else int(q.scales.zero_points[cell])
    if q.scales.offsets is None:
        return (levels - zero) * float(q.scales.scale[cell])
    return (levels - q.scales.first_code) * float(q.scales.scale[cell]) + float(q.scales.offsets[cell])
