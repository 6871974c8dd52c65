"""A scheme and a matrix in the kernels' terms, the builds they need, and kernels ready to launch.

Nothing here depends on schemes: a ``Config`` holds C++ types and enumerators, a ``Layout`` integers.
"""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch

from explorer.gpu.runtime import Build, launch, multiprocessors

ELEMENTS = {torch.float32: "float", torch.bfloat16: "__nv_bfloat16", torch.float16: "__half"}
"""The element types that the kernels read and write, as C++ types."""
BLOCKS = "(QQiiQ)"
"""The letters of ``Layout.blocks``: one parameter, ``Blocks`` of blocks.cuh."""


SMALL = 2**25
"""Elements below which long runs do not fill a GPU several times over."""
WALKING_WARPS = 8
"""Warps of a thread block that walks down columns; ``column_range`` in ranges.cu merges as many."""


class Mapping(enum.Enum):
    """``Mapping`` of scale.cuh: the mapping of a range to codes."""

    SYMMETRIC = enum.auto()
    ASYMMETRIC = enum.auto()
    FULL = enum.auto()
    POWER = enum.auto()
    NO_CLIP = enum.auto()


class KernelScaleRule(enum.Enum):
    """``ScaleRule`` of scale.cuh: none, rounded to its format, E8M0 by four rules, or under a tensor
    scale."""

    CAST = enum.auto()
    ROUNDED = enum.auto()
    FLOOR = enum.auto()
    RCEIL = enum.auto()
    CEIL = enum.auto()
    EVEN = enum.auto()
    TWO_LEVEL = enum.auto()


class KernelRange(enum.Enum):
    """``Range`` of extent.cuh: the calibrators with a kernel."""

    MINMAX = enum.auto()
    ABSMEAN = enum.auto()
    TWN = enum.auto()


_SCALE = ("CODEC", "MAPPING", "SCALE", "SCALE_RULE", "SMALLEST_SCALE", "RANGE")
_ONE_PASS = ("ELEMENT", "RUN", *_SCALE, "STOCHASTIC")
MACROS: dict[str, tuple[str, ...]] = {
    "quantize_groups.cu": _ONE_PASS,
    "quantize_tile.cu": (*_ONE_PASS, "KEPT", "THREADS"),
    "tensor_range.cu": ("ELEMENT", "RUN", *_SCALE, "REFIT"),
    "ranges.cu": ("ELEMENT", "RUN", "MAPPING", "RANGE"),
    "scales.cu": _SCALE,
    "encode.cu": ("ELEMENT", "RUN", "CODEC", "MAPPING", "SCALE_RULE", "STOCHASTIC", "REFIT", "GIVEN"),
    "encode_units.cu": ("ELEMENT", "CODEC", "REFIT"),
    "dequantize.cu": ("ELEMENT", "RUN", "CODEC", "MAPPING", "SCALE", "SCALE_RULE"),
    "dequantize_units.cu": ("ELEMENT", "CODEC", "MAPPING", "SCALE", "SCALE_RULE"),
    "fake_quantize.cu": ("ELEMENT", "CODEC", "MAPPING", "SCALE_RULE", "STOCHASTIC"),
    "learned_step.cu": ("ELEMENT", "CODEC", "MAPPING"),
}
"""The macros that each file reads: builds that differ in other macros are the same."""


@dataclass(frozen=True)
class Config:
    """A scheme in the kernels' terms.

    ``codec`` and ``scale_codec`` are C++ types of codec.cuh, ``bits`` the width of a code. ``per_byte`` codes
    share a byte in base three (ternary: 5; otherwise 0). Stored scales have ``scale_dtype`` and are at least
    ``smallest_scale``. ``wide`` marks blocks of whole runs of 32 elements.
    """

    codec: str
    bits: int
    per_byte: int
    mapping: Mapping
    scale_codec: str
    scale_dtype: torch.dtype
    scale_rule: KernelScaleRule
    smallest_scale: float
    range: KernelRange
    refit: bool
    stochastic: bool
    wide: bool

    @property
    def asymmetric(self) -> bool:
        return self.mapping is Mapping.ASYMMETRIC

    @property
    def cast(self) -> bool:
        return self.scale_rule is KernelScaleRule.CAST

    @property
    def two_level(self) -> bool:
        return self.scale_rule is KernelScaleRule.TWO_LEVEL

    def run(self, dtype: torch.dtype, elements: int) -> int:
        """The number of elements of ``dtype`` that a quantizing thread takes at a time: whole packing units
        and loads. Long runs share the work of a scale, but leave too few threads in a small matrix."""
        if self.per_byte:
            return 20
        if self.bits < 8:
            few = elements < SMALL and not self.asymmetric
            return 32 if self.wide and dtype != torch.float32 and not few else 16
        return 16 if self.bits == 8 and dtype != torch.float32 else 8

    @property
    def restored_run(self) -> int:
        """The number of elements that a dequantizing thread takes at a time."""
        return 20 if self.per_byte else 16 if self.bits < 8 else 8

    def column_run(self, dtype: torch.dtype, run: int) -> int:
        """The number of elements that a thread takes at a time if each column has its step: one access of 16
        bytes, or ``run`` if their codes are not whole pairs of bytes. Few, because steps fill registers."""
        narrow = 16 // dtype.itemsize
        return narrow if narrow < run and narrow * self.bits % 16 == 0 else run

    def build(self, file: str, dtype: torch.dtype, **tunables: int) -> Build:
        """The build of ``file`` for this scheme and element type; ``tunables``: KEPT, THREADS, and RUN
        (default ``restored_run``)."""
        values: dict[str, str | int] = {
            "ELEMENT": ELEMENTS[dtype],
            "RUN": self.restored_run,
            "CODEC": self.codec,
            "MAPPING": self.mapping.name,
            "SCALE": self.scale_codec,
            "SCALE_RULE": self.scale_rule.name,
            "SMALLEST_SCALE": f"{self.smallest_scale.hex()}f",
            "RANGE": self.range.name,
            "STOCHASTIC": int(self.stochastic),
            "REFIT": int(self.refit),
            "GIVEN": 0,
            **tunables,
        }
        return Build(file, tuple((name, str(values[name])) for name in MACROS[file]))


@dataclass(frozen=True)
class Layout:
    """A matrix and its blocks: ``height`` and ``width`` are integers, the last blocks may be smaller."""

    rows: int
    columns: int
    height: int
    width: int
    row_bytes: int

    @property
    def grid(self) -> tuple[int, int]:
        return math.ceil(self.rows / self.height), math.ceil(self.columns / self.width)

    @property
    def cells(self) -> int:
        return math.prod(self.grid)

    @property
    def blocks(self) -> tuple[int, int, int, int, int]:
        """The members of ``Blocks`` (blocks.cuh); ``BLOCKS`` has their letters."""
        return self.rows, self.columns, self.height, self.width, self.grid[1]


@dataclass(frozen=True, eq=False)
class Launch:
    """Kernel with its grid and arguments; ``types`` has a letter for each (``runtime.launch``). The kernel
    begins by calling ``follow`` of dependent.cuh."""

    build: Build
    kernel: str
    grid: tuple[int, ...]
    threads: int
    types: str
    arguments: tuple[object, ...]

    def start(self, device: torch.device) -> None:
        what = (self.build, self.kernel, device, self.grid, self.threads, self.types, self.arguments)
        launch(*what, early=True)


def walk_columns(layout: Layout, run: int, device: torch.device, at_once: int = 0) -> tuple[int, int]:
    """Choose the grid of kernels that walk down columns: blocks of 32 runs across, and enough down that the
    last of them take little of the time, with at least 16 rows a warp. If more than ``at_once`` per
    multiprocessor would result (0: no limit), whole rounds of those."""
    across = math.ceil(layout.columns / (32 * run))
    enough = math.ceil(multiprocessors(device) * 32 / across)
    down = max(1, min(math.ceil(layout.rows / (16 * WALKING_WARPS)), enough, 65535))
    a_round = max(1, multiprocessors(device) * at_once // across)
    return across, down // a_round * a_round if down > a_round else down
