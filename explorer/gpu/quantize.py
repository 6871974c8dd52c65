"""Launchers of the quantizing kernels: check the arguments, choose kernels, grid and thread blocks, launch.

Blocks that fit a warp or a thread block are quantized in one pass (quantize_groups.cu, quantize_tile.cu); for
others the ranges come first, then scales, then codes (ranges.cu, scales.cu, encode.cu).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.gpu.config import (
    BLOCKS,
    ELEMENTS,
    WALKING_WARPS,
    Config,
    KernelRange,
    Launch,
    Layout,
    multiprocessors,
    walk_columns,
)
from explorer.gpu.dequantize import dequantize
from explorer.gpu.runtime import Build
from explorer.gpu.zero_words import zero_words

__all__ = ["ELEMENTS", "RANGES", "Config", "Layout", "Output", "builds", "dequantize", "launches", "quantize"]

RANGES = tuple(kind.name.lower() for kind in KernelRange)
"""The calibrators that a kernel has, by name."""
THREADS = 256
MAX_TILE_THREADS = 512
GROUP_BLOCKS, FEW_GROUP_BLOCKS = 64, 16
"""Thread blocks on a multiprocessor, one after another, where blocks of the scheme are parts of rows: in
larger matrices each thread takes several runs. Few where there would not be so many."""
TILE_THREADS = 64
"""Threads of a thread block that holds a small block of the scheme: beyond them each keeps several runs."""


@dataclass(frozen=True, eq=False)
class Output:
    """What quantization leaves.

    packed   uint8 [rows, row bytes]        codes
    scales   [grid rows, grid columns]      in the scale's own dtype
    zeros    int8 [grid], or None           zero points of asymmetric schemes
    amax     float32 [2], or None           the largest -x and x, for a tensor scale
    bad      int32 [1]                      1 if a kernel met NaN, Inf or a range beyond 2^127; of a graph, in
                                            this replay or one before
    sums     float64 [2], or None           Σx·v and Σv·v of the codes' values v, for a least-squares scale
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    amax: Tensor | None
    bad: Tensor
    sums: Tensor | None
    launches: tuple[Launch, ...]

    @property
    def kernels(self) -> tuple[str, ...]:
        """The kernels that ran, in order."""
        return tuple(launch.kernel for launch in self.launches)


def quantize(
    x: Tensor,
    config: Config,
    layout: Layout,
    seed: int = 0,
    steps: Tensor | None = None,
    zeros: Tensor | None = None,
) -> Output:
    """Quantize a contiguous CUDA matrix of float32, bfloat16 or float16.

    With ``steps`` (float32 [cells]; and ``zeros``, int8) the scales are given and only codes are made.
    """
    if x.dtype not in ELEMENTS or not x.is_cuda or not x.is_contiguous():
        raise ValueError("expected a contiguous CUDA tensor of float32, bfloat16 or float16")
    output = _Plan(x, config, layout, seed, steps is None).output(steps, zeros)
    for launch in output.launches:
        launch.start(x.device)
    return output


def launches(config: Config, layout: Layout, dtype: torch.dtype) -> tuple[Launch, ...]:
    """What ``quantize`` would launch for an aligned matrix of this layout, without any memory."""
    x = torch.empty((layout.rows, layout.columns), dtype=dtype, device="meta")
    return _Plan(x, config, layout, 0, True).output(None, None).launches


def builds(config: Config, layout: Layout, dtype: torch.dtype) -> list[Build]:
    """What ``quantize`` compiles for aligned matrices of this layout."""
    return [launch.build for launch in launches(config, layout, dtype)]


class _Plan:
    """One quantization: its outputs, and the launches that fill them."""

    def __init__(self, x: Tensor, config: Config, layout: Layout, seed: int, finds_steps: bool) -> None:
        self.x, self.config, self.layout, self.seed = x, config, layout, seed
        self.run = config.run(x.dtype, layout.rows * layout.columns)
        self.launches: list[Launch] = []
        self.packed = x.new_empty((layout.rows, layout.row_bytes), dtype=torch.uint8)
        self.scales = x.new_empty(layout.grid, dtype=config.scale_dtype)
        self.zeros = x.new_empty(layout.grid, dtype=torch.int8) if config.asymmetric else None
        one_pass = config.cast or self._groups_fit or self._tiles_fit
        cells = layout.cells if finds_steps and not one_pass else 0
        self.sums = x.new_zeros(2, dtype=torch.float64) if config.refit else None
        self.amax = x.new_zeros(2, dtype=torch.float32) if config.two_level else None
        # Each launch counts in a small matrix: one range, which is zero again in the end, is not filled.
        ranges = torch.float64 if config.range is not KernelRange.MINMAX else torch.float32
        if cells == 1:
            self.ranges = zero_words(x.device, 4).view(ranges)
        else:
            self.ranges = (x.new_zeros if self._columns_fit else x.new_empty)(2 * cells, dtype=ranges)
        self.bad = zero_words(x.device, 1)

    def output(self, steps: Tensor | None, zeros: Tensor | None) -> Output:
        if self.x.numel():
            self._choose(steps, zeros)
        started = tuple(self.launches)
        return Output(self.packed, self.scales, self.zeros, self.amax, self.bad, self.sums, started)

    def _choose(self, steps: Tensor | None, zeros: Tensor | None) -> None:
        if steps is not None:
            self._encode(steps, zeros, given=True)
        elif self.config.cast:
            self._encode(self.x.new_ones(1, dtype=torch.float32), None)
        elif self._groups_fit:
            self._by_groups()
        elif self._tiles_fit:
            self._by_tiles()
        else:
            self._by_ranges()

    @property
    def _whole_runs(self) -> bool:
        """Rows are whole runs and everything is aligned for 16-byte accesses."""
        whole = self.layout.columns % self.run == 0
        return whole and self.x.data_ptr() % 16 == 0 and not self.config.per_byte

    @property
    def _column_run(self) -> int:
        return self.config.column_run(self.x.dtype, self.run)

    @property
    def _groups_fit(self) -> bool:
        """Blocks lie in one row and are 1, 2, 4 … 32 runs."""
        width = self.layout.width
        lanes, rest = divmod(width, self.run)
        power_of_two = not rest and 0 < lanes <= 32 and lanes & (lanes - 1) == 0
        one_row = self.layout.height == 1 and self.layout.columns % width == 0
        return self._whole_runs and power_of_two and one_row

    @property
    def _columns_fit(self) -> bool:
        """Blocks are columns, whose ranges are maxima."""
        several = self.layout.height >= self.layout.rows and self.layout.cells > 1
        return several and self.config.range is KernelRange.MINMAX and self._whole_runs

    @property
    def _tile_threads(self) -> int:
        """The largest thread block whose registers hold four runs a thread."""
        return THREADS if self.run * self.x.element_size() > 32 else MAX_TILE_THREADS

    @property
    def _tile_runs(self) -> int:
        layout = self.layout
        return min(layout.height, layout.rows) * (min(layout.width, layout.columns) // self.run)

    @property
    def _tiles_fit(self) -> bool:
        """A block fits the registers of one thread block."""
        whole = self._whole_runs and min(self.layout.width, self.layout.columns) % self.run == 0
        held = 0 < self._tile_runs <= 4 * self._tile_threads
        one_pass = not self.config.two_level and not self.config.refit
        return whole and held and one_pass and 1 < self.layout.cells < 2**31

    def _add(
        self,
        build: Build,
        kernel: str,
        blocks: int | tuple[int, int],
        threads: int,
        types: str,
        *arguments: object,
    ) -> None:
        grid = blocks if isinstance(blocks, tuple) else (blocks,)
        self.launches.append(Launch(build, kernel, grid, threads, types, arguments))

    def _build(self, file: str, **tunables: int) -> Build:
        return self.config.build(file, self.x.dtype, **{"RUN": self.run} | tunables)

    def _by_groups(self) -> None:
        if self.amax is not None:
            self._tensor_range(self.amax)
        runs = self.x.numel() // self.run
        blocks, count = math.ceil(runs / THREADS), multiprocessors(self.x.device)
        self._add(
            self._build("quantize_groups.cu"),
            "quantize_groups",
            min(blocks, count * (GROUP_BLOCKS if blocks > count * GROUP_BLOCKS else FEW_GROUP_BLOCKS)),
            THREADS,
            "PPPPPPQiQ",
            self.x,
            self.packed,
            self.scales,
            self.zeros,
            self.amax,
            self.bad,
            runs,
            self.layout.width // self.run,
            self.seed,
        )

    def _by_tiles(self) -> None:
        runs = self._tile_runs
        # Small thread blocks overlap each other's loads and barriers better than large ones; sub-byte runs of
        # float32 fill too many registers to keep four.
        crowded = self.config.bits < 8 and self.x.dtype == torch.float32 and runs <= 2 * MAX_TILE_THREADS
        kept = 1 if runs <= TILE_THREADS else 2 if runs <= 2 * TILE_THREADS or crowded else 4
        most = self._tile_threads if kept == 4 else MAX_TILE_THREADS
        self._add(
            self._build("quantize_tile.cu", KEPT=kept, THREADS=most),
            "quantize_tile",
            self.layout.cells,
            math.ceil(runs / kept / 32) * 32,
            f"PPPPP{BLOCKS}QQ",
            self.x,
            self.packed,
            self.scales,
            self.zeros,
            self.bad,
            *self.layout.blocks,
            self.layout.row_bytes,
            self.seed,
        )

    def _by_ranges(self) -> None:
        """A maximum (or mean) for every block first, scales from those, then the codes."""
        if self.amax is not None:
            self._tensor_range(self.amax)
        cells, ranges = self.layout.cells, self.ranges
        if cells == 1 and self.x.data_ptr() % 16 == 0:
            self._tensor_range(ranges)
        elif self._columns_fit:
            self._column_range(ranges)
        else:
            self._block_range(ranges)
        steps = self.x.new_empty(cells, dtype=torch.float32)
        self._add(
            self._build("scales.cu"),
            "scales_of_ranges",
            math.ceil(cells / THREADS),
            THREADS,
            f"PPPPP{BLOCKS}Q",
            ranges,
            self.amax,
            self.scales,
            self.zeros,
            steps,
            *self.layout.blocks,
            cells,
        )
        self._encode(steps, self.zeros)

    def _tensor_range(self, range_: Tensor) -> None:
        run = 32 // self.x.element_size()
        enough = math.ceil(self.x.numel() / (THREADS * run * 2))
        blocks = max(1, min(enough, multiprocessors(self.x.device) * 12))
        self._add(
            self._build("ranges.cu", RUN=run),
            "tensor_range",
            blocks,
            THREADS,
            "PPPQ",
            self.x,
            range_,
            self.bad,
            self.x.numel(),
        )

    def _column_range(self, ranges: Tensor) -> None:
        layout, run = self.layout, 16 // self.x.element_size()
        self._add(
            self._build("ranges.cu", RUN=run),
            "column_range",
            walk_columns(layout, run, self.x.device),
            32 * WALKING_WARPS,
            "PPPQQQi",
            self.x,
            ranges,
            self.bad,
            layout.rows,
            layout.columns,
            layout.cells,
            layout.width,
        )

    def _block_range(self, ranges: Tensor) -> None:
        cells = self.layout.cells
        self._add(
            self._build("ranges.cu", RUN=16 // self.x.element_size()),
            "block_range",
            math.ceil(cells / (THREADS // 32)),
            THREADS,
            f"PPP{BLOCKS}Q",
            self.x,
            ranges,
            self.bad,
            *self.layout.blocks,
            cells,
        )

    def _encode(self, steps: Tensor, zeros: Tensor | None, given: bool = False) -> None:
        build, layout = self._build("encode.cu", GIVEN=int(given)), self.layout
        by_runs = self._whole_runs and not self.config.refit
        if by_runs and (self.config.cast or layout.cells == 1):
            runs = self.x.numel() // self.run
            self._add(
                build,
                "encode_flat",
                math.ceil(runs / THREADS),
                THREADS,
                "PPPPQQ",
                self.x,
                self.packed,
                steps,
                zeros,
                runs,
                self.seed,
            )
        elif by_runs and layout.height >= layout.rows and not self.config.two_level:
            self._add(
                self._build("encode.cu", RUN=self._column_run, GIVEN=int(given)),
                "encode_columns",
                walk_columns(layout, self._column_run, self.x.device),
                32 * WALKING_WARPS,
                "PPPPQQQiQ",
                self.x,
                self.packed,
                steps,
                zeros,
                layout.rows,
                layout.columns,
                layout.row_bytes,
                layout.width,
                self.seed,
            )
        elif self.config.per_byte and layout.cells == 1 and not self.config.stochastic:
            warps = layout.rows * math.ceil(layout.columns / (32 * self.run))
            self._add(
                self._build("encode_units.cu"),
                "encode_units",
                min(math.ceil(warps / (THREADS // 32)), multiprocessors(self.x.device) * 20),
                THREADS,
                "PPPPQQQ",
                self.x,
                self.packed,
                steps,
                self.sums,
                layout.rows,
                layout.columns,
                layout.row_bytes,
            )
        else:
            units = layout.rows * math.ceil(layout.columns / (20 if self.config.per_byte else 8))
            self._add(
                build,
                "encode_any",
                math.ceil(units / THREADS),
                THREADS,
                f"PPPPP{BLOCKS}QQ",
                self.x,
                self.packed,
                steps,
                zeros,
                self.sums,
                *layout.blocks,
                layout.row_bytes,
                self.seed,
            )
