"""A matrix as the blocks of a scheme: strided views, without copies and without padding.

A matrix [rows, cols] under blocks of (height, width) is at most four rectangles in which all blocks have the
same size: the body, the shorter last column of blocks, the shorter last row, and their corner::

    body    right          Each rectangle is a strided view
    bottom  corner         [grid rows, block rows, grid columns, block columns].
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.progress import checkpoint
from explorer.schemes import Scales

CHUNK_ELEMENTS = {"cpu": 1 << 18, "cuda": 1 << 26}
"""Elements processed at a time. CPU: 1 MB of float32, which stays in a core's cache. GPU: enough to occupy
it, few enough for float64 temporaries to fit.
"""
NARROW = 256
"""Number of columns of the narrowest run: 1 kB of each row, so that columns are not read an element at a
time."""
CPU = torch.device("cpu")


@dataclass(frozen=True)
class Rectangle:
    """Part of a matrix in which all blocks have the same size: its rows and columns, its grid cells, and that
    size."""

    rows: slice
    columns: slice
    grid_rows: slice
    grid_columns: slice
    height: int
    width: int

    def blocks(self, x: Tensor) -> Tensor:
        """View of this part of the matrix, [grid rows, height, grid columns, width]."""
        part = x[self.rows, self.columns]
        return part.unflatten(1, (-1, self.width)).unflatten(0, (-1, self.height))

    def cells(self, per_block: Tensor) -> Tensor:
        """View of this part of a per-block tensor, shaped to broadcast over ``blocks``."""
        return spread(per_block[self.grid_rows, self.grid_columns])

    def scales(self, scales: Scales) -> Scales:
        """The scales of this part's blocks, from those of the whole matrix: views."""
        return scales.map_grids(lambda grid: grid[self.grid_rows, self.grid_columns])


def spread(grid: Tensor) -> Tensor:
    """View numbers per block [grid rows, grid columns] so that they broadcast over their ``blocks``."""
    return grid[:, None, :, None]


def rectangles(shape: tuple[int, int], block: tuple[int | None, int | None]) -> Iterator[Rectangle]:
    """List the rectangles of equal blocks that cover a matrix of ``shape``, for reductions over blocks."""
    rows, columns = shape
    for row_slice, grid_rows, height in _spans(rows, block[0] or max(rows, 1)):
        for column_slice, grid_columns, width in _spans(columns, block[1] or max(columns, 1)):
            yield Rectangle(row_slice, column_slice, grid_rows, grid_columns, height, width)


def chunks(
    shape: tuple[int, int], block: tuple[int | None, int | None], device: torch.device = CPU
) -> Iterator[Rectangle]:
    """Cut the matrix into rectangles of about ``CHUNK_ELEMENTS`` for elementwise work: cache-sized runs of
    rows.

    Blocks taller than a chunk are split; ``height`` is then the height of the piece.
    """
    for part in rectangles(shape, block):
        checkpoint()
        columns = max(part.columns.stop - part.columns.start, 1)
        fitting = max(CHUNK_ELEMENTS[device.type] // columns, 1)
        if part.height >= fitting:
            yield from _cut_tall(part, fitting)
        else:
            yield from _cut_flat(part, max(fitting // part.height, 1))


def runs_of_blocks(
    shape: tuple[int, int],
    block: tuple[int | None, int | None],
    device: torch.device = CPU,
    most: int | None = None,
) -> Iterator[Rectangle]:
    """Yield rectangles of whole blocks with about ``most`` elements (default ``CHUNK_ELEMENTS``), for work on
    each block by itself. A row of blocks larger than that is divided into runs of columns."""
    most = CHUNK_ELEMENTS[device.type] if most is None else most
    for part in rectangles(shape, block):
        wide = part.grid_columns.stop - part.grid_columns.start
        high = max(1, most // max(1, part.height * wide * part.width))
        fit = max(1, most // (part.height * part.width), NARROW // part.width) if high == 1 else wide
        for run in _cut_flat(part, high):
            for first in range(0, wide, fit):
                checkpoint()
                last = min(first + fit, wide)
                start, left = run.columns.start, run.grid_columns.start
                columns = slice(start + first * run.width, start + last * run.width)
                cells = slice(left + first, left + last)
                yield Rectangle(run.rows, columns, run.grid_rows, cells, run.height, run.width)


def pieces(x: Tensor) -> tuple[Tensor, ...]:
    """Flatten ``x`` and cut it into runs of about ``CHUNK_ELEMENTS``."""
    return x.reshape(-1).split(CHUNK_ELEMENTS[x.device.type])


def ordered_sum(values: Tensor) -> float:
    """Sum float64 ``values`` in an order that does not depend on the number of threads.

    Each run of 512 is summed by one thread; Python adds the runs' sums with correct rounding.
    """
    flat = values.reshape(-1)
    whole = len(flat) // 512 * 512
    runs = flat[:whole].view(-1, 512).sum(1)
    return math.fsum([*runs.tolist(), *flat[whole:].tolist()])


def _cut_flat(part: Rectangle, count: int) -> Iterator[Rectangle]:
    """Cut into runs of ``count`` whole grid rows."""
    for first in range(part.grid_rows.start, part.grid_rows.stop, count):
        checkpoint()
        last = min(first + count, part.grid_rows.stop)
        start = part.rows.start + (first - part.grid_rows.start) * part.height
        stop = part.rows.start + (last - part.grid_rows.start) * part.height
        yield Rectangle(
            slice(start, stop), part.columns, slice(first, last), part.grid_columns, part.height, part.width
        )


def _cut_tall(part: Rectangle, rows: int) -> Iterator[Rectangle]:
    """Cut into runs of ``rows`` rows inside each grid row."""
    for index in range(part.grid_rows.start, part.grid_rows.stop):
        top = part.rows.start + (index - part.grid_rows.start) * part.height
        for start in range(top, top + part.height, rows):
            checkpoint()
            stop = min(start + rows, top + part.height)
            cell = slice(index, index + 1)
            yield Rectangle(
                slice(start, stop), part.columns, cell, part.grid_columns, stop - start, part.width
            )


def _spans(length: int, size: int) -> Iterator[tuple[slice, slice, int]]:
    """Split an axis into whole blocks of ``size`` and the shorter last one: (elements, grid cells, block
    size)."""
    whole = length // size
    if whole:
        yield slice(0, whole * size), slice(0, whole), size
    if length % size:
        yield slice(whole * size, length), slice(whole, whole + 1), length % size
