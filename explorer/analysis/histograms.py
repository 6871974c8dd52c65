"""Reductions of whole tensors to a few hundred numbers: histograms and counts of codes.

On the CPU they work through the tensor in pieces that fit the cache.
"""

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
"""Bins from this width to its reciprocal are counted in float32."""


@dataclass(frozen=True, eq=False)
class Histogram:
    """``counts`` [bins] of the values between ``edges`` [bins + 1]; values outside count in the end bins."""

    edges: np.ndarray
    counts: np.ndarray

    @property
    def share(self) -> np.ndarray:
        return self.counts / max(int(self.counts.sum()), 1)


def histogram(x: Tensor, low: float, high: float, bins: int = 256, minus: Tensor | None = None) -> Histogram:
    """Counts of finite ``x`` (any shape), or of x - minus, in at most 256 bins ``around`` [low, high]."""
    if not 1 <= bins <= 256:
        raise ValueError(f"a histogram has 1 to 256 bins, not {bins}")
    low, high = around(low, high)
    width = (high - low) / bins
    edges = np.linspace(low, high, bins + 1)
    if not NARROWEST <= width <= 1 / NARROWEST:
        x = _in_bins(x if minus is None else x - minus, low, width)
        low, width, minus = 0.0, 1.0, None
    counts = backend_for(x).histogram(x, low, 1 / width, bins, minus)
    return Histogram(edges, counts.numpy())


def around(low: float, high: float) -> tuple[float, float]:
    """[low, high] as it is; a range of one value widened by half of its size to either side, 0 to ±0.5."""
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


def _in_bins(x: Tensor, low: float, width: float) -> Tensor:
    """float32 (x - low) / width by float64: the reciprocal of a narrow bin's width, and the width of a range
    over all of float32, are no float32 numbers."""
    return ((x.double() - low) / width).to(torch.float32)


def code_counts(q: QuantizedTensor) -> Tensor | None:
    """int64 [code_count]: how often each code occurs; None for formats above 16 bits.

    Where a whole number of codes fills a byte, bytes are counted and each is then counted as its codes; the
    zeros that pad a row's last byte are subtracted.
    """
    fmt, (rows, columns) = q.scheme.format, q.shape
    if fmt.bits > 16:
        return None
    per_byte = (
        fmt.per_byte
        if isinstance(fmt, CodebookFormat) and fmt.per_byte
        else 8 // fmt.bits
        if 8 % fmt.bits == 0
        else 0
    )
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
"""Bins of a report's histograms, and the values to each from which on ``histogram_kl`` is within some 15 % of
that of many more (INT4 in groups of 128 of normal numbers)."""


def kl_note(count: int) -> str:
    """That ``histogram_kl`` of a tensor of ``count`` values is that of a small sample, or an empty text."""
    if count >= KL_BINS * KL_VALUES:
        return ""
    return (
        f"{count:,} values are {count / KL_BINS:.0f} to each of {KL_BINS} bins: of so few, KL is mostly "
        "sampling and too large"
    )


def histogram_kl(p: Histogram, q: Histogram) -> float:
    """KL(p || (p + q) / 2) in nats of two histograms on the same bins, from 0 (the same shape) to ln 2 (no
    bin has values of both): the K divergence of J. Lin, "Divergence measures based on the Shannon entropy",
    1991.

    KL(p || q) itself is infinite where q alone has an empty bin, as a coarse format leaves most of them; a
    count put there instead makes it grow with the number of elements. Against the mean of both it is finite
    without such a count, and converges. ``ValueError`` if the numbers of bins differ.
    """
    if p.counts.shape != q.counts.shape:
        raise ValueError("KL needs both histograms on the same bins")
    a, b = p.share, q.share
    seen = a > 0
    return max(0.0, float(np.sum(a[seen] * np.log(2 * a[seen] / (a[seen] + b[seen])))))
