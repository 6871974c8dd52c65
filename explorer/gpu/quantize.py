"""Launchers of the quantizing kernels: check the arguments, choose kernels, grid and thread blocks, launch.

Blocks that fit a warp or a thread block are quantized in one pass (quantize_groups.cu, quantize_tile.cu). For
others, ranges come first, then scales, then codes (ranges.cu, scales.cu, encode.cu). Scales that depend on
the whole tensor's range come from tensor_range.cu.
"""

from __future__ import annotations

import enum
import math
import threading
from contextlib import nullcontext
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor

from explorer.cached import cached_property
from explorer.gpu import runtime
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
from explorer.gpu.ready import Prepared, Ready, start_all
from explorer.gpu.runtime import Build, cache_bytes
from explorer.gpu.zero_words import zero_word, zero_words

__all__ = [
    "ELEMENTS",
    "RANGES",
    "Config",
    "LaunchPlan",
    "Layout",
    "Output",
    "builds",
    "check_input",
    "dequantize",
    "is_aligned",
    "launches",
    "quantize",
]  # fmt: skip

RANGES = tuple(kind.name.lower() for kind in KernelRange)
"""The calibrators with a kernel, by name."""
THREADS = 256
MAX_TILE_THREADS = 512
GROUP_BLOCKS, FEW_GROUP_BLOCKS, FEW_AFTER_A_RANGE = 128, 32, 8
"""Thread blocks that a multiprocessor runs in turn if blocks of the scheme are parts of rows; in larger
matrices each thread takes several runs. FEW applies where there would not be so many, and fewer after a
tensor's range was found, when much of the matrix lies in the L2 cache."""
RANGE_BLOCKS = 48
"""The most thread blocks per multiprocessor that find the range of a whole tensor."""
KEPT_SHARE = 0.75
"""The share of the L2 cache that a range pass fills with the tensor's end, where the codes' pass begins."""
RANGED_AT_ONCE = 4
"""Thread blocks of ``column_range`` that a multiprocessor runs at once."""
MOST_CELLS = 1 << 16
"""Blocks of the scheme up to which ranges and steps lie in memory that is kept."""
TILE_THREADS = 128
"""Threads of a thread block that holds a small block of the scheme; for larger blocks each thread keeps
several runs."""


class Slot(enum.IntEnum):
    """A value that a call supplies: an argument of a planned launch in place of an address."""

    X = 0
    PACKED = 1
    SCALES = 2
    ZEROS = 3
    AMAX = 4
    BAD = 5
    RANGES = 6
    STEPS = 7
    SUMS = 8
    GATHERED = 9
    NOTHING = 10


@lru_cache(64)
def _kept_words(device: torch.device, stream: int) -> Tensor:
    """Memory between the launches of a call: int32, four words of ``GATHERED`` and two for each range, which
    kernels leave as zeros, and one for each step. Calls on one stream follow one another and share it."""
    return torch.zeros(4 + 3 * MOST_CELLS, dtype=torch.int32, device=device)


_IN_ORDER = threading.Lock()
"""Held while the launches of a call are queued that find what they share in kept memory."""


@dataclass(eq=False, slots=True)
class Output:
    """The result of quantization.

    packed   uint8 [rows, row bytes]        codes
    scales   [grid rows, grid columns]      in the scale's own dtype
    zeros    int8 [grid], or None           zero points of asymmetric schemes
    amax     float32 [4], or None           the largest -x and x, and the tensor scale from them
    bad      int32 [1], or None             1 if a kernel met NaN, Inf or a range beyond 2^127; in a graph, in
                                            any replay so far; None if a flag was given instead
    sums     float64 [2], or None           Σx·v and Σv·v of the codes' values v, for a least-squares scale
    """

    packed: Tensor
    scales: Tensor
    zeros: Tensor | None
    amax: Tensor | None
    bad: Tensor | None
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
    check_input(x)
    plan = LaunchPlan(config, layout, x.dtype, is_aligned(x), x.device, seed, given=steps is not None)
    return plan.start(x, steps=steps, zeros=zeros)


def check_input(x: Tensor) -> None:
    """Raise ``ValueError`` unless kernels can read ``x``."""
    if x.dtype not in ELEMENTS or not x.is_cuda or not x.is_contiguous():
        raise ValueError("expected a contiguous CUDA tensor of float32, bfloat16 or float16")


def is_aligned(x: Tensor) -> bool:
    """True if ``x`` allows loads of 16 bytes."""
    return x.data_ptr() % 16 == 0


def launches(config: Config, layout: Layout, dtype: torch.dtype) -> tuple[Launch, ...]:
    """Plan the launches of ``quantize`` for an aligned matrix of this layout, without memory."""
    return LaunchPlan(config, layout, dtype, True, torch.device("meta")).launches


def builds(config: Config, layout: Layout, dtype: torch.dtype) -> list[Build]:
    """The builds of ``quantize`` for aligned matrices of this layout."""
    return [launch.build for launch in launches(config, layout, dtype)]


class LaunchPlan:
    """The launches that quantize matrices of one layout, element type and alignment on one device: chosen
    once, started by each call with the addresses of its memory. Threads may share it.

    ``aligned``: the matrix allows loads of 16 bytes. ``given``: scales are given and only codes are made.
    """

    def __init__(
        self,
        config: Config,
        layout: Layout,
        dtype: torch.dtype,
        aligned: bool,
        device: torch.device,
        seed: int = 0,
        given: bool = False,
    ) -> None:
        self.config, self.layout, self.dtype, self.aligned = config, layout, dtype, aligned
        self.device, self.seed, self.given = device, seed, given
        self.elements = layout.rows * layout.columns
        self.run = config.run(dtype, self.elements)
        self._planned: list[Launch] = []
        self._prepared: tuple[Prepared, ...] | None = None
        if self.elements:
            self._choose()
        self.launches = tuple(self._planned)
        # What every call needs, as plain values: to derive them takes a share of a small matrix's time.
        self._index = 0 if device.index is None else device.index
        self._packed_shape, self._grid = (layout.rows, layout.row_bytes), layout.grid
        self._makes_zeros = config.asymmetric and not given
        self._makes_amax = config.two_level and not given
        self._has_tensor_range = any(launch.kernel == "tensor_range" for launch in self.launches)
        self._cells = layout.cells if self._ranges_first else 0
        self._shares = self._has_tensor_range or self._cells > 0

    def start(
        self,
        x: Tensor,
        flag: int | None = None,
        steps: Tensor | None = None,
        zeros: Tensor | None = None,
        capturing: bool | None = None,
    ) -> Output:
        """Quantize ``x``, contiguous and as planned, on torch's current stream of its device.

        ``flag`` is the address of an int32 that a kernel sets in place of ``Output.bad``. ``capturing``: a
        graph captures the stream (None: not known).
        """
        if capturing is None:
            capturing = runtime.is_capturing(x.device)
        packed = x.new_empty(self._packed_shape, dtype=torch.uint8)
        scales = x.new_empty(self._grid, dtype=self.config.scale_dtype)
        if self._makes_zeros:
            zeros = x.new_empty(self._grid, dtype=torch.int8)
        # Each launch counts in a small matrix: what the range kernel writes or clears is not filled before.
        make = x.new_empty if self._has_tensor_range else x.new_zeros
        amax = make(4, dtype=torch.float32) if self._makes_amax else None
        sums = make(2, dtype=torch.float64) if self.config.refit else None
        bad = None
        if flag is None:
            bad = zero_words(x.device, 1) if capturing else zero_word(x.device)
        if self.launches:
            addresses = [
                0 if part is None else part.data_ptr()
                for part in (x, packed, scales, zeros, amax, bad, None, steps, sums, None, None)
            ]
            if flag is not None:
                addresses[Slot.BAD] = flag
            ready = self._prepared or self._prepare()
            if self._shares:
                self._start_sharing(x, ready, addresses, capturing)
            else:
                start_all(self._index, ready, addresses)
        return Output(packed, scales, zeros, amax, bad, sums, self.launches)

    def _start_sharing(
        self, x: Tensor, ready: tuple[Prepared, ...], addresses: list[int], capturing: bool
    ) -> None:
        """Start launches that share ranges and steps, in memory of the stream; in a graph in its own."""
        cells, kept, held = self._cells, 0, list[Any]()  # held until the launches are queued
        if not capturing:
            kept = _kept_words(x.device, runtime.stream_of(self._index)).data_ptr()
        if self._has_tensor_range:
            if capturing:
                held.append(zero_words(x.device, 4))
            addresses[Slot.GATHERED] = kept or held[-1].data_ptr()
        if cells and kept and cells <= MOST_CELLS:
            addresses[Slot.STEPS] = kept + 4 * (4 + 2 * MOST_CELLS)
        elif cells:
            held.append(x.new_empty(cells, dtype=torch.float32))
            addresses[Slot.STEPS] = held[-1].data_ptr()
        if cells > 1 and kept and cells <= MOST_CELLS and self._columns_fit:
            addresses[Slot.RANGES] = kept + 16
        elif cells > 1:
            held.append(self._range_memory(x))
            addresses[Slot.RANGES] = held[-1].data_ptr()
        try:
            with _IN_ORDER if kept else nullcontext():
                start_all(self._index, ready, addresses)
        except BaseException:  # a kernel that leaves zeros may be missing
            _kept_words.cache_clear()
            raise

    def _prepare(self) -> tuple[Prepared, ...]:
        """Load the kernels of the launches and fill in the known numbers."""
        self._prepared = tuple(self._launch(launch) for launch in self.launches)
        return self._prepared

    def _launch(self, launch: Launch) -> Prepared:
        device, arguments = torch.device("cuda", self._index), launch.arguments
        what = (launch.build, launch.kernel, device, launch.types, launch.grid, launch.threads)
        return Ready(*what, early=True).prepared(
            [0 if isinstance(a, Slot) else a for a in arguments],
            [(at, int(a)) for at, a in enumerate(arguments) if isinstance(a, Slot)],
        )

    def _range_memory(self, x: Tensor) -> Tensor:
        """Allocate two ranges per cell, zero if kernels add to them."""
        kind = torch.float64 if self.config.range is not KernelRange.MINMAX else torch.float32
        make = x.new_zeros if self._columns_fit else x.new_empty
        return make(2 * self.layout.cells, dtype=kind)

    def _choose(self) -> None:
        if self.given or self.config.cast:
            self._encode()
        elif self._groups_fit:
            self._by_groups()
        elif self._tiles_fit:
            self._by_tiles()
        else:
            self._by_ranges()

    @cached_property
    def _ranges_first(self) -> bool:
        """True if ranges and steps lie in memory between the launches."""
        one_pass = self.given or self.config.cast or self._groups_fit or self._tiles_fit
        return bool(self.elements) and not one_pass

    @property
    def _whole_runs(self) -> bool:
        """True if rows are whole runs and everything is aligned for 16-byte accesses."""
        return self.layout.columns % self.run == 0 and self.aligned and not self.config.per_byte

    @property
    def _column_run(self) -> int:
        return self.config.column_run(self.dtype, self.run)

    @property
    def _groups_fit(self) -> bool:
        """True if blocks lie in one row and are 1, 2, 4 … 32 runs."""
        width = self.layout.width
        lanes, rest = divmod(width, self.run)
        power_of_two = not rest and 0 < lanes <= 32 and lanes & (lanes - 1) == 0
        one_row = self.layout.height == 1 and self.layout.columns % width == 0
        return self._whole_runs and power_of_two and one_row

    @cached_property
    def _columns_fit(self) -> bool:
        """True if blocks are columns with maxima as ranges."""
        several = self.layout.height >= self.layout.rows and self.layout.cells > 1
        return several and self.config.range is KernelRange.MINMAX and self._whole_runs

    @property
    def _tile_threads(self) -> int:
        """The largest thread block with registers for four runs per thread."""
        return THREADS if self.run * self.dtype.itemsize > 32 else MAX_TILE_THREADS

    @property
    def _tile_runs(self) -> int:
        layout = self.layout
        return min(layout.height, layout.rows) * (min(layout.width, layout.columns) // self.run)

    @property
    def _tiles_fit(self) -> bool:
        """True if a block fits the registers of one thread block."""
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
        self._planned.append(Launch(build, kernel, grid, threads, types, arguments))

    def _build(self, file: str, **tunables: int) -> Build:
        return self.config.build(file, self.dtype, **{"RUN": self.run} | tunables)

    def _by_groups(self) -> None:
        if self.config.two_level:
            self._tensor_range()
        runs = self.elements // self.run
        blocks, count = math.ceil(runs / THREADS), multiprocessors(self.device)
        few = FEW_AFTER_A_RANGE if self.config.two_level else FEW_GROUP_BLOCKS
        self._add(
            self._build("quantize_groups.cu"),
            "quantize_groups",
            min(blocks, count * (GROUP_BLOCKS if blocks > count * GROUP_BLOCKS else few)),
            THREADS,
            "PPPPPPQiQ",
            Slot.X,
            Slot.PACKED,
            Slot.SCALES,
            Slot.ZEROS,
            Slot.AMAX,
            Slot.BAD,
            runs,
            self.layout.width // self.run,
            self.seed,
        )

    def _by_tiles(self) -> None:
        runs = self._tile_runs
        # Small thread blocks overlap each other's loads and barriers better than large ones; sub-byte runs of
        # float32 fill too many registers to keep four.
        crowded = self.config.bits < 8 and self.dtype == torch.float32 and runs <= 2 * MAX_TILE_THREADS
        kept = 1 if runs <= TILE_THREADS else 2 if runs <= 2 * TILE_THREADS or crowded else 4
        most = self._tile_threads if kept == 4 else MAX_TILE_THREADS
        self._add(
            self._build("quantize_tile.cu", KEPT=kept, THREADS=most),
            "quantize_tile",
            self.layout.cells,
            math.ceil(runs / kept / 32) * 32,
            f"PPPPP{BLOCKS}QQ",
            Slot.X,
            Slot.PACKED,
            Slot.SCALES,
            Slot.ZEROS,
            Slot.BAD,
            *self.layout.blocks,
            self.layout.row_bytes,
            self.seed,
        )

    def _by_ranges(self) -> None:
        """Plan a maximum (or mean) for every block first, then scales, then codes."""
        if self.layout.cells == 1:
            self._tensor_range(settles=True)
        else:
            if self.config.two_level:
                self._tensor_range()
            if self._columns_fit:
                self._column_range()
            else:
                self._block_range()
            self._scales_of_ranges()
        self._encode()

    def _scales_of_ranges(self) -> None:
        cells = self.layout.cells
        self._add(
            self._build("scales.cu"),
            "scales_of_ranges",
            math.ceil(cells / THREADS),
            THREADS,
            f"PPPPP{BLOCKS}Q",
            Slot.RANGES,
            Slot.AMAX,
            Slot.SCALES,
            Slot.ZEROS,
            Slot.STEPS,
            *self.layout.blocks,
            cells,
        )

    def _tensor_range(self, settles: bool = False) -> None:
        """Plan the whole tensor's range. ``settles``: the scheme has one block, and the kernel stores its
        scale."""
        run = 32 // self.dtype.itemsize
        enough = math.ceil(self.elements / (THREADS * run * 2))
        of_one_block = (Slot.SCALES, Slot.ZEROS, Slot.STEPS) if settles else (Slot.NOTHING,) * 3
        self._add(
            self._build("tensor_range.cu", RUN=run),
            "tensor_range",
            min(enough, multiprocessors(self.device) * RANGE_BLOCKS),
            THREADS,
            "PPPQQPPPPP",
            Slot.X,
            Slot.GATHERED,
            Slot.BAD,
            self.elements,
            self._kept,
            Slot.AMAX,
            *of_one_block,
            Slot.SUMS,
        )

    @property
    def _kept(self) -> int:
        """The first element that a range pass leaves in the L2 cache."""
        kept = int(KEPT_SHARE * cache_bytes(self.device)) // self.dtype.itemsize
        return max(0, self.elements - kept)

    def _column_range(self) -> None:
        layout, run = self.layout, 16 // self.dtype.itemsize
        self._add(
            self._build("ranges.cu", RUN=run),
            "column_range",
            walk_columns(layout, run, self.device, RANGED_AT_ONCE),
            32 * WALKING_WARPS,
            "PPPQQQiQ",
            Slot.X,
            Slot.RANGES,
            Slot.BAD,
            layout.rows,
            layout.columns,
            layout.cells,
            layout.width,
            self._kept,
        )

    def _block_range(self) -> None:
        cells = self.layout.cells
        self._add(
            self._build("ranges.cu", RUN=16 // self.dtype.itemsize),
            "block_range",
            math.ceil(cells / (THREADS // 32)),
            THREADS,
            f"PPP{BLOCKS}Q",
            Slot.X,
            Slot.RANGES,
            Slot.BAD,
            *self.layout.blocks,
            cells,
        )

    def _encode(self) -> None:
        given = int(self.given)
        build, layout = self._build("encode.cu", GIVEN=given), self.layout
        by_runs = self._whole_runs and not self.config.refit
        if by_runs and (self.config.cast or layout.cells == 1):
            runs = self.elements // self.run
            self._add(
                build,
                "encode_flat",
                math.ceil(runs / THREADS),
                THREADS,
                "PPPPPQQ",
                Slot.X,
                Slot.PACKED,
                Slot.STEPS,
                Slot.ZEROS,
                Slot.BAD,
                runs,
                self.seed,
            )
        elif by_runs and layout.height >= layout.rows and not self.config.two_level:
            wide = self._column_run * self.dtype.itemsize > 16
            at_once = 1 if wide else 3 if self.config.asymmetric else 4
            self._add(
                self._build("encode.cu", RUN=self._column_run, GIVEN=given),
                "encode_columns",
                walk_columns(layout, self._column_run, self.device, at_once),
                32 * WALKING_WARPS,
                "PPPPQQQiQ",
                Slot.X,
                Slot.PACKED,
                Slot.STEPS,
                Slot.ZEROS,
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
                min(math.ceil(warps / (THREADS // 32)), multiprocessors(self.device) * 20),
                THREADS,
                "PPPPQQQ",
                Slot.X,
                Slot.PACKED,
                Slot.STEPS,
                Slot.SUMS,
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
                f"PPPPPP{BLOCKS}QQ",
                Slot.X,
                Slot.PACKED,
                Slot.STEPS,
                Slot.ZEROS,
                Slot.SUMS,
                Slot.BAD,
                *layout.blocks,
                layout.row_bytes,
                self.seed,
            )
