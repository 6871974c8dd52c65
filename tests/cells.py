"""What a click on an error map opens, by what the server knows: the page finds the same from the figure."""

from __future__ import annotations

from explorer.analysis.tensor import MAP_LIMIT, Analysis
from explorer.analysis.tiles import tile_size


def largest_in_cell(analysis: Analysis, row: int, column: int) -> tuple[int, int]:
    """(row, column) of the largest error in the cell of the error map that holds this element."""
    tall, wide = tile_size(analysis.q.shape, MAP_LIMIT)
    down, right = divmod(int(analysis.largest_at[row // tall, column // wide]), wide)
    return row // tall * tall + down, column // wide * wide + right
