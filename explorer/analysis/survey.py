"""Compare all schemes on a sample of a matrix's rows; each result is yielded as soon as it is known."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.analysis.histograms import Histogram
from explorer.analysis.intervals import EVEN, carrying, factor
from explorer.analysis.report import Report, measure, own_histogram, sqnr_db
from explorer.analysis.schemes import ComparisonRow, searches, spans_rows
from explorer.cached import cached_property
from explorer.core.quantize import quantize
from explorer.schemes import Scheme

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
        report, half_db = parts[key].report(scheme)
        bits = scheme.bits_per_element((x.shape[0], x.shape[1]))
        report = dataclasses.replace(report, bits=bits)
        yield ComparisonRow(scheme, report, share=parts[key].share, half_db=half_db)


def _needs_all_rows(scheme: Scheme) -> bool:
    """True for scales shared by all rows that max |x| does not determine: of one column each, or by a
    mean."""
    return spans_rows(scheme) and (scheme.block[1] is not None or scheme.calibrator.name != "minmax")


@dataclass(frozen=True, eq=False)
class WeightedRows:
    """Some bands of ``tall`` rows of a matrix. ``weights`` float64 [rows]: the number of the matrix's rows
    that each represents. ``signal`` is Σx² of the whole matrix; ``share`` (0 … 1) of its elements are here.
    """

    values: Tensor
    weights: Tensor
    signal: float
    share: float
    tall: int = 1

    @cached_property
    def _before(self) -> Histogram:
        return own_histogram(self.values)

    @cached_property
    def _squares(self) -> Tensor:
        """float64 [rows]: Σx² of each row."""
        return self.values.double().square().sum(1)

    def report(self, scheme: Scheme) -> tuple[Report, float | None]:
        """Report on these rows; SQNR, relative error, MSE and RMSE are estimates for the whole matrix. Beside
        it half the SQNR's interval (``half_db``)."""
        q = quantize(self.values, scheme)
        if self.share == 1:
            return measure(self.values, q, before=self._before).report, None
        restored = q.dequantize()
        report = measure(self.values, q, restored, self._before).report
        squares = (restored.double() - self.values.double()).square().sum(1)
        seen = float(self._squares @ self.weights)
        # A ratio estimator: a sample with more of the signal has more of the error.
        noise = float(squares @ self.weights) * (self.signal / seen if seen > 0 else 1.0)
        if not (math.isfinite(noise) and noise > 0 and self.signal > 0):
            return report, None
        mse = noise / (float(self.weights.sum()) * self.values.shape[1])
        report = dataclasses.replace(
            report,
            sqnr_db=sqnr_db(self.signal, noise),
            relative_error=math.sqrt(noise / self.signal),
            mse=mse,
            rmse=math.sqrt(mse),
        )
        return report, self._half_db(squares)

    def _half_db(self, noise: Tensor) -> float | None:
        """Half the interval of the SQNR by the squared errors of each row, as if bands were drawn at random
        with their chances: bands of each size are, in fact, so that the interval is rather too wide. None if
        few bands hold most of the error."""
        of_bands, signal = (each.view(-1, self.tall).sum(1) for each in (noise, self._squares))
        chances = 1 / self.weights[:: self.tall]
        if carrying(of_bands, signal, chances) < EVEN:
            return None
        half = 10 * math.log10(factor(of_bands, signal, chances))
        return half if math.isfinite(half) else None


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
    return WeightedRows(values, each.repeat_interleave(tall), signal, values.numel() / x.numel(), tall)
