"""Blocks of the flattened tensor as blocks along rows: of the tensor's own where they are whole blocks, else
of one row that holds the whole tensor (which is then worked on at once, not in cache-sized runs).
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from explorer.formats import Format
from explorer.formats.packing import pack, unpack
from explorer.schemes import Scales, Scheme

Shape = tuple[int, int]


def unrolled(shape: Shape, scheme: Scheme) -> tuple[Shape, Scheme]:
    """The shape to view a matrix of ``shape`` in, and the scheme with blocks along the rows of that."""
    length = scheme.block[1]
    assert scheme.flat and length is not None
    along_rows = dataclasses.replace(scheme, block=(1, length), flat=False)
    return (shape if shape[1] % length == 0 else (1, shape[0] * shape[1])), along_rows


def with_grid(scales: Scales, grid: Shape) -> Scales:
    """``scales`` in another grid of as many blocks; ``ValueError`` if they are not as many."""
    if scales.stored.numel() != grid[0] * grid[1]:
        blocks = grid[0] * grid[1]
        raise ValueError(
            f"{scales.stored.numel()} scales do not fit the {blocks} blocks of the flattened tensor"
        )
    return scales.map_grids(lambda cells: cells.reshape(grid))


def with_rows(packed: Tensor, fmt: Format, shape: Shape, wanted: Shape) -> Tensor:
    """Codes packed in rows of ``shape``, packed in rows of the ``wanted`` shape."""
    if shape == wanted:
        return packed
    return pack(unpack(packed, fmt, shape[1]).reshape(wanted).contiguous(), fmt)
