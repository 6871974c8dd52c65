"""Analyse one scheme on one tensor: a report, histograms and an error map, as a page shows them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

import numpy as np
from torch import Tensor

from explorer.analysis.element import block_index
from explorer.analysis.report import Measured, Report, measure
from explorer.analysis.spread import Own, Spread, error_spread, frame_of, spread
from explorer.analysis.tiles import largest_differences
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.schemes import Scheme

MAP_LIMIT = 128
"""Most rows and columns of an error map: three maps side by side have three pixels per cell."""
MOST_KEPT = 1 << 22
"""Number of elements up to which a dequantized matrix is kept: 16 MB."""


@dataclass(frozen=True, eq=False)
class Analysis:
    """Quantized tensor ``q``, and the differences from its original.

    errors         spread of signed errors
    before, after  spread of the original and of the restored values, in the same bins
    error_map      float32, at most [MAP_LIMIT, MAP_LIMIT]: the largest |x̂ - x| of each tile
    largest_at     int32 of the same shape: its place in the tile (``largest_differences``)
    kept           the dequantized matrix, if it has at most ``MOST_KEPT`` elements
    """

    q: QuantizedTensor
    measured: Measured
    errors: Spread
    before: Spread
    after: Spread
    error_map: Tensor
    largest_at: Tensor
    kept: Tensor | None = field(default=None, kw_only=True)

    @property
    def report(self) -> Report:
        return self.measured.report

    @property
    def in_own_basis(self) -> bool:
        """True if the codes are of the matrix itself, so that an error can be counted in scales."""
        return True

    def restored(self) -> Tensor:
        """The dequantized matrix [rows, cols], float32, on the device of the codes."""
        return self.q.dequantize() if self.kept is None else self.kept


@dataclass(frozen=True)
class Side:
    """One of the schemes in a figure: its label and its analysis."""

    label: str
    analysis: Analysis


def analyse(x: Tensor, scheme: Scheme, own: Callable[[], Own] | None = None) -> Analysis:
    """Quantize the float32 matrix ``x`` [rows, cols] and measure the error. ``own`` returns ``own_values(x)``
    for callers that cache it while they analyse several schemes."""
    q = quantize(x, scheme)
    restored = q.dequantize()
    known = None if own is None else own()
    measured = measure(x, q, restored, None if known is None else known.histogram)
    return Analysis(q, *differences(x, restored, measured, known), kept=small(restored))


def small(restored: Tensor) -> Tensor | None:
    """Return ``restored`` if it is small enough to be kept."""
    return restored if restored.numel() <= MOST_KEPT else None


def differences(
    x: Tensor, restored: Tensor, measured: Measured, own: Own | None = None
) -> tuple[Measured, Spread, Spread, Spread, Tensor, Tensor]:
    """Compute the fields of ``Analysis`` other than the codes, in order, from ``x`` and the dequantized
    tensor, both float32 [rows, cols]. ``own``: ``own_values(x)``, if it is known."""
    errors = error_spread(restored, x, measured.report.mae, measured.report.max_error)
    frame = frame_of(x) if own is None else own.frame
    before = spread(x, frame, measured.before if frame.whole else None) if own is None else own.spread
    after = spread(restored, frame, measured.after if frame.whole else None)
    error_map, largest_at = largest_differences(restored, x, MAP_LIMIT)
    return measured, errors, before, after, error_map.cpu(), largest_at.cpu()


def block_levels(q: QuantizedTensor, row: int, column: int) -> np.ndarray:
    """Values that the block of element (row, column) can represent, float64 [levels]; empty above 8 bits."""
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
