"""The error of a quantized tensor against the original: one ``Report``, summed in float64.

SQNR is 10·log10(Σx² / Σ(x - x̂)²), which is -20·log10 of the relative Frobenius error.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from operator import add

import torch
from torch import Tensor

from explorer.analysis.histograms import Histogram, code_counts, finite_range, histogram, histogram_kl
from explorer.core.backend import backend_for
from explorer.core.blocks import ordered_sum
from explorer.core.quantize import QuantizedTensor
from explorer.formats import CodebookFormat
from explorer.schemes import BitBudget, Scheme

MOST_AT_ONCE = 1 << 24
"""Number of elements up to which a matrix is dequantized as a whole to be measured on the CPU: 64 MB."""
RUN_ELEMENTS = 1 << 21
"""Number of elements of a run of rows of a larger matrix: 8 MB of float32."""


@dataclass(frozen=True)
class Report:
    """Error and size of one quantization. Shares are of all elements, 0 … 1.

    relative_error  ‖x̂ - x‖ / ‖x‖ (Frobenius)
    kl              KL(original || mean of original and dequantized), 0 … ln 2 nats, over 256 bins of the
                    original's range (``histogram_kl``); too large for few values (``kl_note``)
    max_error_at    (row, column) of ``max_error`` = max |x̂ - x|
    clipped         share beyond the block's saturation threshold, where rounding is not to the nearest code
    zeroed          share that is not zero before and zero after
    zero_blocks     number of blocks with values other than zero that are all restored as zeros
    codes_used, code_count, entropy_bits   None for 32-bit formats
    bits, nbytes    storage: per element by part, and in all
    """

    sqnr_db: float
    mse: float
    rmse: float
    mae: float
    relative_error: float
    cosine: float
    kl: float
    max_error: float
    max_error_at: tuple[int, int]
    clipped: float
    zeroed: float
    codes_used: int | None
    code_count: int | None
    entropy_bits: float | None
    bits: BitBudget
    nbytes: int
    zero_blocks: int = 0


@dataclass
class Sums:
    """Sums in float64 from which a ``Report`` is computed, added up over the parts of a matrix.

    ``signal`` Σx², ``noise`` Σ(x̂ - x)², ``output`` Σx̂², ``inner`` Σx·x̂, ``absolute`` Σ|x̂ - x|; then
    counts.
    """

    signal: float = 0.0
    noise: float = 0.0
    output: float = 0.0
    inner: float = 0.0
    absolute: float = 0.0
    clipped: int = 0
    zeroed: int = 0
    zero_blocks: int = 0
    max_error: float = -1.0
    max_error_at: tuple[int, int] = (0, 0)

    def add_part(self, x: Tensor, restored: Tensor, q: QuantizedTensor, first_row: int = 0) -> None:
        """Add a float32 matrix and its dequantized ``q``; it starts at ``first_row`` of the whole matrix."""
        sums = backend_for(x).error_sums(x, restored, *_limits(q), q.scheme)
        for name in ("signal", "noise", "output", "inner", "absolute", "clipped", "zeroed"):
            setattr(self, name, getattr(self, name) + getattr(sums, name))
        self.zero_blocks += _zero_blocks(x, restored, q.scheme) if sums.zeroed else 0
        row, column = divmod(sums.where, max(x.shape[1], 1))
        if sums.largest > self.max_error or (math.isnan(sums.largest) and not math.isnan(self.max_error)):
            self.max_error, self.max_error_at = sums.largest, (first_row + row, column)


@dataclass(frozen=True, eq=False)
class Measured:
    """A report and the counts behind it: histograms ``before`` and ``after`` on the same bins, and
    ``code_counts``, int64 [code_count], the frequency of each code (None for 32-bit formats)."""

    report: Report
    before: Histogram
    after: Histogram
    code_counts: Tensor | None


def compare(x: Tensor, q: QuantizedTensor, restored: Tensor | None = None) -> Report:
    """Measure the error of ``q`` against the matrix ``x`` [rows, cols] that it was quantized from.

    ``restored`` is ``q.dequantize()`` if the caller has it. ``ValueError`` if the shapes differ, or the
    values were not finite (``q.check``).
    """
    return measure(x, q, restored).report


def measure(
    x: Tensor, q: QuantizedTensor, restored: Tensor | None = None, before: Histogram | None = None
) -> Measured:
    """Measure as ``compare`` does, with the histograms and code counts. ``before`` is ``own_histogram(x)`` if
    the caller has it, because it measures many schemes on one matrix."""
    if tuple(x.shape) != q.shape:
        raise ValueError(f"the tensor has shape {tuple(x.shape)}, its quantization {q.shape}")
    q.check()
    x = x.to(torch.float32)
    by_runs = restored is None and x.numel() > MOST_AT_ONCE and x.device.type == "cpu"
    sums, before, after = Sums(), before or own_histogram(x), []
    for start, run in q.runs(RUN_ELEMENTS) if by_runs else [(0, q)]:
        left = run.dequantize() if restored is None else restored
        sums.add_part(x[start : start + run.shape[0]], left, run, start)
        after.append(histogram(left, *before.range))
    return measured_from(sums, q, before, reduce(add, after), code_counts(q))


def measured_from(
    sums: Sums, q: QuantizedTensor, before: Histogram, after: Histogram, counts: Tensor | None
) -> Measured:
    """Compute the report from sums, histograms and code counts of the whole matrix."""
    elements = max(q.shape[0] * q.shape[1], 1)
    used, entropy = _code_usage(counts)
    report = Report(
        sqnr_db=sqnr_db(sums.signal, sums.noise),
        mse=sums.noise / elements,
        rmse=math.sqrt(sums.noise / elements),
        mae=sums.absolute / elements,
        relative_error=_ratio(math.sqrt(sums.noise), math.sqrt(sums.signal)),
        cosine=cosine_of(sums),
        kl=histogram_kl(before, after),
        max_error=max(sums.max_error, 0.0),
        max_error_at=sums.max_error_at,
        clipped=sums.clipped / elements,
        zeroed=sums.zeroed / elements,
        codes_used=used,
        code_count=q.scheme.format.code_count if used is not None else None,
        entropy_bits=entropy,
        bits=q.bits_per_element,
        nbytes=q.nbytes,
        zero_blocks=sums.zero_blocks,
    )
    return Measured(report, before, after, counts)


def _limits(q: QuantizedTensor) -> tuple[Tensor, Tensor]:
    """Limits beyond which values are clipped rather than rounded: two float32 [grid]."""
    fmt, scale = q.scheme.format, q.scales.scale
    low, high = q.scheme.code_limits
    if q.scales.offsets is not None:
        first = q.scales.first_code
        return scale * (low - 0.5 - first) + q.scales.offsets, scale * (high + 0.5 - first) + q.scales.offsets
    if q.scales.zero_points is not None:
        zero = q.scales.zero_points.to(torch.float32)
        return scale * (low - 0.5 - zero), scale * (high + 0.5 - zero)
    margin = fmt.saturation_threshold - fmt.max
    ends = scale * (low - margin), scale * (high + margin)
    if isinstance(fmt, CodebookFormat):
        ends = scale * fmt.negative_saturation_threshold, scale * fmt.saturation_threshold
    return torch.minimum(*ends), torch.maximum(*ends)  # a scale may be negative


def _zero_blocks(x: Tensor, restored: Tensor, scheme: Scheme) -> int:
    """Number of blocks in which ``x`` [rows, cols] has values and all restored values are zero."""
    if scheme.scale is None or scheme.flat:
        return 0
    tall, wide = (min(side or length, length) for side, length in zip(scheme.block, x.shape, strict=True))

    def any_of(mask: Tensor) -> Tensor:
        padded = torch.nn.functional.pad(mask, (0, -mask.shape[1] % wide, 0, -mask.shape[0] % tall))
        return padded.unflatten(0, (-1, tall)).unflatten(2, (-1, wide)).any(3).any(1)

    return int((any_of(x != 0) & ~any_of(restored != 0)).sum())


def sqnr_db(signal: float, noise: float) -> float:
    """10·log10(signal / noise) of two sums of squares.

    +inf without noise (an exact copy), NaN with noise but no signal (an all-zero original that changed).
    """
    if noise == 0:
        return math.inf
    return 10 * math.log10(signal / noise) if signal > 0 else math.nan


def sqnr_of(truth: Tensor, approximation: Tensor) -> float:
    """SQNR in dB of a float64 ``approximation`` of a tensor of the same shape."""
    return sqnr_db(ordered_sum(truth.square()), ordered_sum((approximation - truth).square()))


def cosine_of(sums: Sums) -> float:
    """<x, x̂> / (|x| |x̂|); 1 if both are zero, 0 if one is."""
    if sums.signal == 0 or sums.output == 0:
        return 1.0 if sums.signal == sums.output else 0.0
    return sums.inner / math.sqrt(sums.signal) / math.sqrt(sums.output)


def _ratio(a: float, b: float) -> float:
    return a / b if b else (0.0 if a == 0 else math.inf)


def own_histogram(x: Tensor) -> Histogram:
    """Count ``x`` in 256 bins over its finite range."""
    return histogram(x, *finite_range(x))


def _code_usage(counts: Tensor | None) -> tuple[int | None, float | None]:
    """Number of distinct codes, and their entropy in bits."""
    if counts is None:
        return None, None
    p = counts[counts > 0].double() / max(int(counts.sum()), 1)
    return len(p), float(-(p * torch.log2(p)).sum()) + 0.0
