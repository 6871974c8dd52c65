"""Blocks of the flattened tensor, viewed as blocks along rows.

If a row holds whole blocks, the tensor's own rows serve. Otherwise the whole tensor becomes one row, which is
processed at once instead of in cache-sized runs.
"""

from __future__ import annotations

import dataclasses

from torch import Tensor

from explorer.formats import Format
from explorer.formats.packing import pack, unpack
from explorer.schemes import Scales, Scheme

Shape = tuple[int, int]


def unrolled(shape: Shape, scheme: Scheme) -> tuple[Shape, Scheme]:
    """Return the shape of the view for a matrix of ``shape``, and the scheme with blocks along its rows."""
    length = scheme.block[1]
    assert scheme.flat and length is not None
    along_rows = dataclasses.replace(scheme, block=(1, length), flat=False)
    return (shape if shape[1] % length == 0 else (1, shape[0] * shape[1])), along_rows


def with_grid(scales: Scales, grid: Shape) -> Scales:
    """Reshape ``scales`` to another grid; ``ValueError`` for a different number of blocks."""
    if scales.stored.numel() != grid[0] * grid[1]:
        blocks = grid[0] * grid[1]
        raise ValueError(
            f"{scales.stored.numel()} scales do not fit the {blocks} blocks of the flattened tensor"
        )
    return scales.map_grids(lambda cells: cells.reshape(grid))


def with_rows(packed: Tensor, fmt: Format, shape: Shape, wanted: Shape) -> Tensor:
    """Repack codes from rows of ``shape`` into rows of ``wanted``."""
    if shape == wanted:
        return packed
    return pack(unpack(packed, fmt, shape[1]).reshape(wanted).contiguous(), fmt)
