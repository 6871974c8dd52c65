"""Launchers of statistics.cu: sums over float32 tensors on a GPU, and counts of packed codes."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explorer.error_sums import ErrorSums
from explorer.gpu.config import BLOCKS, Launch, Layout, multiprocessors
from explorer.gpu.runtime import Build, on_device_of

BUILD = Build("statistics.cu", ())
THREADS = 256


def error_sums(x: Tensor, restored: Tensor, low: Tensor, high: Tensor, layout: Layout) -> ErrorSums:
    """Sum over contiguous float32 matrices; x outside ``low`` ... ``high``, float32 [grid], counts as
    clipped."""
    _check(x, restored, low, high)
    blocks = _blocks(x.numel(), x.device)
    sums = x.new_empty((blocks, 8), dtype=torch.float64)
    where = x.new_empty(blocks, dtype=torch.int64)
    arguments = (x, restored, low, high, sums, where, *layout.blocks)
    _start("error_sums", x, blocks, f"PPPPPP{BLOCKS}", *arguments)
    rows = torch.cat([sums, where.double().unsqueeze(1)], 1).cpu()  # indices below 2^53 are exact
    total = rows[:, :7].sum(0).tolist()
    largest = rows[:, 7].max()
    ties = rows[torch.isnan(rows[:, 7])] if bool(torch.isnan(largest)) else rows[rows[:, 7] == largest]
    return ErrorSums(
        total[0],
        total[1],
        total[2],
        total[3],
        total[4],
        int(total[5]),
        int(total[6]),
        float(largest),
        int(ties[:, 8].min()),
    )


def histogram(x: Tensor, low: float, per_width: float, bins: int, minus: Tensor | None = None) -> Tensor:
    """Count ``x`` (or x - minus), float32 of any shape, by bin ⌊(v - low) · per_width⌋, int64 [bins]."""
    _check(x, *([] if minus is None else [minus]))
    counts = x.new_zeros(bins, dtype=torch.int64)
    if x.numel():
        blocks, arguments = _blocks(x.numel(), x.device), (x, minus, counts, x.numel(), low, per_width, bins)
        _start("histogram", x, blocks, "PPPQffi", *arguments)
    return counts


def byte_counts(packed: Tensor) -> Tensor:
    """Count each byte of a contiguous uint8 tensor, int64 [256]."""
    counts = packed.new_zeros(256, dtype=torch.int64)
    if packed.numel():
        blocks = _blocks(packed.numel() // 4 + 1, packed.device)
        _start("byte_counts", packed, blocks, "PPQ", packed, counts, packed.numel())
    return counts


def code_counts(packed: Tensor, bits: int, columns: int) -> Tensor:
    """Count each code of up to 16 bits in packed rows uint8 [rows, row bytes], int64 [2^bits]."""
    counts = packed.new_zeros(1 << bits, dtype=torch.int64)
    if packed.numel():
        rows, row_bytes = packed.shape
        blocks = _blocks(rows * columns, packed.device)
        _start("code_counts", packed, blocks, "PPQQQi", packed, counts, rows, columns, row_bytes, bits)
    return counts


def tile_maximum(x: Tensor, tall: int, wide: int) -> Tensor:
    """The maximum over each tile of a matrix, float32 [⌈rows/tall⌉, ⌈cols/wide⌉]."""
    _check(x)
    rows, columns = x.shape
    tiles = Layout(rows, columns, tall, wide, row_bytes=0)
    out = x.new_empty(tiles.grid)
    if out.numel():
        _start("tile_maximum", x, tiles.cells, f"PP{BLOCKS}", x, out, *tiles.blocks)
    return out


def _check(*tensors: Tensor) -> None:
    for t in tensors:
        if t.dtype != torch.float32 or not t.is_cuda or not t.is_contiguous():
            raise ValueError("expected contiguous CUDA tensors of float32")


def _blocks(elements: int, device: torch.device) -> int:
    """Eight thread blocks for each multiprocessor, fewer for little work."""
    return max(1, min(multiprocessors(device) * 8, math.ceil(elements / THREADS)))


@on_device_of("x")
def _start(name: str, x: Tensor, blocks: int, types: str, *arguments: object) -> None:
    Launch(BUILD, name, (blocks,), THREADS, types, arguments).start(x.device)
