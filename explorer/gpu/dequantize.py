"""Launchers of dequantize.cu and dequantize_units.cu."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explorer.gpu.config import BLOCKS, WALKING_WARPS, Config, Launch, Layout, walk_columns
from explorer.gpu.runtime import Build

THREADS = 256
ALL_RUNS, BY_DIVISION = 63, -1
"""Shifts of ``dequantize_runs``: all runs share a cell; the cell is found by division."""


def dequantize(
    packed: Tensor,
    scales: Tensor,
    zeros: Tensor | None,
    tensor_scale: Tensor | None,
    config: Config,
    layout: Layout,
    dtype: torch.dtype,
) -> tuple[Tensor, Launch | None]:
    """Restore the matrix [rows, columns] in ``dtype`` from packed codes and stored scales; also the launch
    (None for an empty matrix)."""
    out = packed.new_empty((layout.rows, layout.columns), dtype=dtype)
    if not out.numel():
        return out, None
    launch = _choose(packed, (packed, scales, zeros, tensor_scale, out), config, layout)
    launch.start(packed.device)
    return out, launch


def launch_for(config: Config, layout: Layout, dtype: torch.dtype) -> Launch:
    """Plan the launch of ``dequantize`` for an aligned matrix of this layout, without memory."""
    packed = torch.empty((layout.rows, layout.row_bytes), dtype=torch.uint8, device="meta")
    out = packed.new_empty((layout.rows, layout.columns), dtype=dtype)
    return _choose(packed, (packed, None, None, None, out), config, layout)


def builds(config: Config, layout: Layout, dtype: torch.dtype) -> list[Build]:
    """The builds of ``dequantize`` for aligned matrices of this layout."""
    return [launch_for(config, layout, dtype).build]


def _choose(packed: Tensor, tensors: tuple[Tensor | None, ...], config: Config, layout: Layout) -> Launch:
    """Choose the launch that fills the last of ``tensors``."""
    out = tensors[-1]
    assert out is not None
    run, rows, columns = config.restored_run, layout.rows, layout.columns
    if config.per_byte:
        build = config.build("dequantize_units.cu", out.dtype)
        warp_takes = 32 * run * (4 // out.dtype.itemsize)
        blocks = math.ceil(rows * math.ceil(columns / warp_takes) / (THREADS // 32))
        arguments: tuple[object, ...] = (*tensors, *layout.blocks, layout.row_bytes)
        kernel = "dequantize_units" if layout.cells == 1 else "dequantize_units_of_cells"
        return Launch(build, kernel, (blocks,), THREADS, f"PPPPP{BLOCKS}Q", arguments)
    one_step = layout.cells == 1 or config.cast
    aligned = columns % run == 0 and packed.data_ptr() % 16 == 0 and packed.is_contiguous()
    build = config.build("dequantize.cu", out.dtype)
    if aligned and (one_step or layout.width % run == 0 or layout.width >= columns):
        runs = out.numel() // run
        numbers: tuple[int, ...] = (runs, _shift(config, layout), columns // run, layout.height, layout.width)
        arguments = (*tensors, *numbers, layout.grid[1])
        return Launch(
            build, "dequantize_runs", (math.ceil(runs / THREADS),), THREADS, "PPPPPQiIiiI", arguments
        )
    if aligned and layout.height >= rows:
        run = config.column_run(out.dtype, run)
        build = config.build("dequantize.cu", out.dtype, RUN=run)
        arguments = (*tensors, rows, columns, layout.row_bytes, layout.width)
        grid = walk_columns(layout, run, packed.device)
        return Launch(build, "dequantize_columns", grid, 32 * WALKING_WARPS, "PPPPPQQQi", arguments)
    arguments = (*tensors, *layout.blocks, layout.row_bytes)
    elements = (math.ceil(out.numel() / THREADS),)
    return Launch(build, "dequantize_any", elements, THREADS, f"PPPPP{BLOCKS}Q", arguments)


def _shift(config: Config, layout: Layout) -> int:
    """log2 of the number of consecutive runs that share a cell, or ``ALL_RUNS`` or ``BY_DIVISION``."""
    if layout.cells == 1 or config.cast:
        return ALL_RUNS
    across = layout.width // config.restored_run
    groups = layout.height == 1 and layout.columns % layout.width == 0
    return across.bit_length() - 1 if groups and across & (across - 1) == 0 else BY_DIVISION
