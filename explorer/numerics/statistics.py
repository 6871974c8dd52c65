"""Reductions of whole tensors to what fits on a screen: histograms, maxima over tiles, code usage.

They run in cache-sized pieces and return arrays of a few hundred numbers.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from explorer.numerics.blocks import CHUNK_ELEMENTS


@dataclass(frozen=True, eq=False)
class Histogram:
    """``counts`` [bins] of values between ``edges`` [bins + 1]; values outside fall into the end bins."""

    edges: np.ndarray
    counts: np.ndarray

    @property
    def share(self) -> np.ndarray:
        return self.counts / max(int(self.counts.sum()), 1)


def histogram(x: Tensor, low: float, high: float, bins: int = 256) -> Histogram:
    """Counts of finite ``x`` (any shape) in equal bins over [low, high]; at most 256 bins."""
    if not 1 <= bins <= 256:
        raise ValueError(f"a histogram has 1 to 256 bins, not {bins}")
    width = (high - low) / bins or 1.0
    counts = torch.zeros(bins, dtype=torch.int64)
    for piece in pieces(x):
        index = (piece - low).mul_(1 / width).clamp_(0, bins - 1)
        counts += _bincount(index.to(torch.uint8), bins)
    return Histogram(np.linspace(low, low + width * bins, bins + 1), counts.numpy())


def code_counts(code_pieces: Iterable[Tensor], code_count: int) -> Tensor:
    """int64 [code_count]: how often each code occurs in the pieces (uint8 or int16)."""
    counts = torch.zeros(code_count, dtype=torch.int64)
    for piece in code_pieces:
        flat = piece.reshape(-1)
        unsigned = flat if flat.dtype == torch.uint8 else flat.to(torch.int32) & 0xFFFF
        counts += _bincount(unsigned, code_count)
    return counts


def tile_maximum(x: Tensor, limit: int = 256) -> Tensor:
    """``x`` [rows, cols] reduced to at most [limit, limit] by the maximum of each tile: no outlier is lost.

    Tiles are ceil(rows / limit) × ceil(cols / limit); the last ones may be smaller.
    """
    tall, wide = tile_size((x.shape[0], x.shape[1]), limit)
    padded = torch.nn.functional.pad(x, (0, -x.shape[1] % wide), value=-math.inf)
    columns = padded.view(x.shape[0], -1, wide).amax(2)
    rows = torch.nn.functional.pad(columns, (0, 0, 0, -x.shape[0] % tall), value=-math.inf)
    return rows.view(-1, tall, columns.shape[1]).amax(1)


def tile_size(shape: tuple[int, int], limit: int = 256) -> tuple[int, int]:
    """Rows and columns of one tile of ``tile_maximum``."""
    return math.ceil(shape[0] / limit), math.ceil(shape[1] / limit)


def histogram_kl(p: Histogram, q: Histogram) -> float:
    """KL(p || q) in nats over a shared histogram; empty bins of q count as half an observation."""
    if p.counts.shape != q.counts.shape:
        raise ValueError("KL needs both histograms on the same bins")
    a, b = p.share, np.maximum(q.counts, 0.5) / max(int(q.counts.sum()), 1)
    seen = a > 0
    return float(np.sum(a[seen] * np.log(a[seen] / b[seen])))


def pieces(x: Tensor) -> tuple[Tensor, ...]:
    """``x`` flattened, in runs of about ``CHUNK_ELEMENTS``."""
    return x.reshape(-1).split(CHUNK_ELEMENTS[x.device.type])


def _bincount(index: Tensor, bins: int) -> Tensor:
    return torch.bincount(index, minlength=bins).cpu()
