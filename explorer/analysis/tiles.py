"""A matrix reduced to a map of cells: the maximum of each tile, or the largest difference and its place."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explorer.core.backend import backend_for

ROWS_AT_ONCE = 1 << 21
"""Number of differences that are held at a time; they fit the fast memory of a CPU core."""


def tile_size(shape: tuple[int, int], limit: int = 256) -> tuple[int, int]:
    """Rows and columns of one tile of a map of at most [limit, limit] cells."""
    return math.ceil(shape[0] / limit), math.ceil(shape[1] / limit)


def tile_maximum(x: Tensor, limit: int = 256) -> Tensor:
    """Reduce ``x`` [rows, cols] to at most [limit, limit] by the maximum of each tile, so that every outlier
    stays visible. Tiles are ceil(rows / limit) × ceil(cols / limit); the last ones may be smaller."""
    tall, wide = tile_size((x.shape[0], x.shape[1]), limit)
    return backend_for(x).tile_maximum(x, tall, wide)


def largest_differences(x: Tensor, y: Tensor, limit: int = 256) -> tuple[Tensor, Tensor]:
    """Find the largest |x - y| of each tile of ``tile_maximum``, float32, and its place in the tile, int32:
    row · (columns of a tile) + column. Of equal differences the first counts; NaN precedes any number."""
    tall, wide = tile_size((x.shape[0], x.shape[1]), limit)
    rows = max(1, ROWS_AT_ONCE // max(x.shape[1], 1))
    parts = [largest_of_runs(a, b, wide) for a, b in zip(x.split(rows), y.split(rows), strict=True)]
    values, columns = (torch.cat(part) for part in zip(*parts, strict=True))
    return merge_rows(values, columns, tall, wide)


def largest_of_runs(x: Tensor, y: Tensor, wide: int) -> tuple[Tensor, Tensor]:
    """Find the largest |x - y| in each run of ``wide`` columns of a row: [rows, runs], and its column in the
    run."""
    padded = torch.nn.functional.pad((x - y).abs_(), (0, -x.shape[1] % wide), value=-math.inf)
    values, columns = padded.view(x.shape[0], -1, wide).max(2)
    return values, columns.to(torch.int32)


def merge_rows(values: Tensor, columns: Tensor, tall: int, wide: int) -> tuple[Tensor, Tensor]:
    """Reduce ``largest_of_runs`` of all rows [rows, runs] over ``tall`` rows each: values and places."""
    padding = (0, 0, 0, -values.shape[0] % tall)
    values = torch.nn.functional.pad(values, padding, value=-math.inf).view(-1, tall, values.shape[1])
    columns = torch.nn.functional.pad(columns, padding).view(-1, tall, columns.shape[1])
    largest, rows = values.max(1)
    offsets = rows * wide + columns.gather(1, rows.unsqueeze(1)).squeeze(1)
    return largest, offsets.to(torch.int32)
