"""Reductions of whole tensors to a few hundred numbers: histograms, their divergence, and counts of codes."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from explorer.core.backend import backend_for
from explorer.core.quantize import QuantizedTensor
from explorer.formats import CodebookFormat
from explorer.formats.packing import unpack

NARROWEST = 2.0**-100
"""Narrowest width of bins that are counted in float32; the widest is its reciprocal."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """Counts ``counts`` [bins] of the values between ``edges`` [bins + 1]; the end bins count values outside
    too."""

    edges: np.ndarray
    counts: np.ndarray

    @property
    def share(self) -> np.ndarray:
        return self.counts / max(int(self.counts.sum()), 1)

    @property
    def range(self) -> tuple[float, float]:
        """First and last edge."""
        return float(self.edges[0]), float(self.edges[-1])

    def __add__(self, other: Histogram) -> Histogram:
        """Add the counts of a histogram on the same bins."""
        return Histogram(self.edges, self.counts + other.counts)


def histogram(x: Tensor, low: float, high: float, bins: int = 256, minus: Tensor | None = None) -> Histogram:
    """Count finite values of ``x`` (any shape), or of x - ``minus``, in at most 256 equal bins ``around``
    [low, high]."""
    if not 1 <= bins <= 256:
        raise ValueError(f"a histogram has 1 to 256 bins, not {bins}")
    low, high = around(low, high)
    width = (high - low) / bins
    edges = np.linspace(low, high, bins + 1)
    if not NARROWEST <= width <= 1 / NARROWEST:
        # By float64: float32 has neither the reciprocal of a narrow bin's width nor the width of its range.
        x = (((x if minus is None else x - minus).double() - low) / width).to(torch.float32)
        low, width, minus = 0.0, 1.0, None
    counts = backend_for(x).histogram(x, low, 1 / width, bins, minus)
    return Histogram(edges, counts.numpy())


def around(low: float, high: float) -> tuple[float, float]:
    """Widen a range of one value by half of the value on either side, a range of 0 to ±0.5; others stay as
    they are."""
    half = 0.0 if low < high else abs(low) / 2 or 0.5
    return low - half, high + half


def finite_range(x: Tensor) -> tuple[float, float]:
    """The smallest and largest finite value; (0, 1) if there is none."""
    if not x.numel():
        return 0.0, 1.0
    low, high = (float(v) for v in torch.aminmax(x))
    if not (math.isfinite(low) and math.isfinite(high)):
        finite = x[torch.isfinite(x)]
        low, high = (float(v) for v in torch.aminmax(finite)) if len(finite) else (0.0, 1.0)
    return low, high


def code_counts(q: QuantizedTensor) -> Tensor | None:
    """int64 [code_count]: the frequency of each code; None for formats above 16 bits.

    If a byte holds a whole number of codes, bytes are counted, and each counts for its codes; zeros that pad
    the last byte of a row are subtracted.
    """
    fmt, (rows, columns) = q.scheme.format, q.shape
    if fmt.bits > 16:
        return None
    per_byte = fmt.per_byte if isinstance(fmt, CodebookFormat) else 0
    if not per_byte and 8 % fmt.bits == 0:
        per_byte = 8 // fmt.bits
    backend = backend_for(q.packed)
    if not per_byte:
        return backend.code_counts(q.packed, fmt, columns)
    by_byte = backend.byte_counts(q.packed)
    used = by_byte.nonzero().reshape(-1)
    codes = unpack(used.to(torch.uint8).unsqueeze(1), fmt, per_byte).long()
    counts = torch.zeros(fmt.code_count, dtype=torch.int64)
    counts.index_add_(0, codes.reshape(-1), by_byte[used].repeat_interleave(per_byte))
    counts[0] -= rows * (q.packed.shape[1] * per_byte - columns)
    return counts


KL_BINS, KL_VALUES = 256, 100
"""Bins of a report's histograms, and values per bin from which ``histogram_kl`` is within some 15 % of its
limit for many values (INT4 in groups of 128 of normal numbers)."""


def kl_note(count: int) -> str:
    """Warn that the sample is small for ``histogram_kl``, if a tensor has only ``count`` values; else
    empty."""
    if count >= KL_BINS * KL_VALUES:
        return ""
    return (
        f"{count:,} values are {count / KL_BINS:.0f} per bin in {KL_BINS} bins: with so few, KL is mostly "
        "sampling noise and too large"
    )


def histogram_kl(p: Histogram, q: Histogram) -> float:
    """KL(p || (p + q) / 2) in nats of two histograms on the same bins, from 0 (the same shape) to ln 2 (no
    common bins): the K divergence of J. Lin, "Divergence measures based on the Shannon entropy", 1991.

    KL(p || q) itself is infinite if only q has an empty bin, as coarse formats have; pseudocounts would make
    it grow with the number of elements. KL to the mean is finite without them, and converges. ``ValueError``
    if the numbers of bins differ.
    """
    if p.counts.shape != q.counts.shape:
        raise ValueError("KL needs both histograms on the same bins")
    a, b = p.share, q.share
    seen = a > 0
    return max(0.0, float(np.sum(a[seen] * np.log(2 * a[seen] / (a[seen] + b[seen])))))
