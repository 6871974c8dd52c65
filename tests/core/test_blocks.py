"""A matrix in blocks, chunks and runs: every element once, in pieces of the size that was asked for.

If these fail, values are left out, counted twice, or a large matrix is worked on whole.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator

import pytest
import torch

from explorer import SCHEMES, quantize
from explorer.core import blocks
from explorer.core.blocks import NARROW, Rectangle, chunks, ordered_sum, pieces, rectangles, runs_of_blocks

Block = tuple[int | None, int | None]
SHAPES = [(1, 1), (7, 5), (64, 96), (100, 33), (3, 1000), (1000, 3), (0, 4), (4, 0)]
BLOCKS: tuple[Block, ...] = (
    (None, None), (1, None), (None, 1), (1, 32), (16, 16), (None, 32), (128, 128), (3, None)
)  # fmt: skip
MOST = 512
WHOLE_BLOCKS: list[Callable[[tuple[int, int], Block], Iterator[Rectangle]]] = [rectangles, runs_of_blocks]


@pytest.fixture(autouse=True)
def small_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(blocks.CHUNK_ELEMENTS, "cpu", MOST)


@pytest.mark.parametrize("cut", [*WHOLE_BLOCKS, chunks])
def test_every_element_lies_in_one_piece_under_its_own_cell(
    cut: Callable[[tuple[int, int], Block], Iterator[Rectangle]],
) -> None:
    """Each piece holds the elements of its cells alone, and all pieces together every element once."""
    for shape, block in itertools.product(SHAPES, BLOCKS):
        tall, wide = block[0] or max(shape[0], 1), block[1] or max(shape[1], 1)
        cell = torch.arange(shape[0])[:, None] // tall * 10_000 + torch.arange(shape[1]) // wide
        grid = torch.arange(-(-shape[0] // tall))[:, None] * 10_000 + torch.arange(-(-shape[1] // wide))
        seen = torch.zeros(shape, dtype=torch.int64)
        for part in cut(shape, block):
            seen[part.rows, part.columns] += 1
            own = part.blocks(cell)
            assert own.shape[1] == part.height and own.shape[3] == part.width
            assert torch.equal(own, part.cells(grid).expand_as(own)), (shape, block)
        assert bool((seen == 1).all()), (shape, block)


def test_pieces_are_as_large_as_was_asked_for() -> None:
    """Chunks hold at most ``CHUNK_ELEMENTS``, or one row; no two neighbours could have been one."""
    for shape, block in itertools.product(SHAPES, BLOCKS):
        found = list(chunks(shape, block))
        sizes = [(part.rows.stop - part.rows.start, part.columns.stop - part.columns.start) for part in found]
        for rows, columns in sizes:
            assert rows * columns <= MOST or rows == 1, (shape, block)
        largest = sum(-(-(rows * columns) // MOST) for rows, columns in sizes)
        parts = list(rectangles(shape, block))
        cells = sum((part.grid_rows.stop - part.grid_rows.start) for part in parts)
        assert len(found) <= largest + cells, (shape, block)
        for run in runs_of_blocks(shape, block):
            wide = run.columns.stop - run.columns.start
            elements = (run.rows.stop - run.rows.start) * wide
            one_block = run.height * run.width
            assert elements <= max(MOST, one_block, run.height * max(NARROW, run.width)), (shape, block)


def test_a_chunk_takes_all_rows_that_fit() -> None:
    """8 rows of 64 elements in 512; a block of more rows is split, and each piece says its height."""

    def cut(shape: tuple[int, int], block: Block) -> list[tuple[int, int, int]]:
        return [(part.rows.start, part.rows.stop, part.height) for part in chunks(shape, block)]

    assert cut((20, 64), (1, None)) == [(0, 8, 1), (8, 16, 1), (16, 20, 1)]
    assert cut((20, 64), (20, None)) == [(0, 8, 8), (8, 16, 8), (16, 20, 4)]
    assert cut((12, 64), (3, 64)) == [(0, 6, 3), (6, 12, 3)]
    runs = [(run.grid_rows, run.grid_columns) for run in runs_of_blocks((4, 1024), (2, 64))]
    assert runs == [(slice(i, i + 1), slice(j, j + 4)) for i in (0, 1) for j in (0, 4, 8, 12)]
    assert [len(piece) for piece in pieces(torch.zeros(3, 400))] == [512, 512, 176]
    q = quantize(torch.zeros(20, 64), SCHEMES["int8_row"])
    assert [len(codes) for codes in q.code_pieces()] == [8, 8, 4]


def test_runs_of_rows_are_whole_blocks() -> None:
    """About so many elements; their rows restore what the whole restores."""
    x = torch.randn(20, 64, generator=torch.Generator().manual_seed(0))
    for name, starts in (("int8_row", [0, 8, 16]), ("fp8_e4m3_128x128", [0]), ("int8_tensor", [0, 8, 16])):
        q = quantize(x, SCHEMES[name])
        runs = list(q.runs(MOST))
        assert [start for start, _ in runs] == starts
        assert torch.equal(torch.cat([run.dequantize() for _, run in runs]), q.dequantize())


def test_an_ordered_sum_is_exact_where_the_numbers_are() -> None:
    """Whole numbers, the rest behind the last run of 512 included."""
    for count in (0, 1, 511, 512, 513, 1300):
        whole = torch.arange(1.0, count + 1, dtype=torch.float64)
        assert ordered_sum(whole) == count * (count + 1) / 2
        assert ordered_sum(torch.full((2, count), 0.5, dtype=torch.float64)) == count
