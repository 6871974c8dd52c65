"""A scheme and a matrix in the kernels' terms, the compilations they need, and kernels ready to be launched.

Nothing here knows schemes: a ``Config`` holds C++ types and enumerators, a ``Layout`` whole numbers.
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
"""The letters of ``Layout.blocks``: blocks.cuh's ``Blocks``, one parameter."""


SMALL = 2**25
"""Elements below which a matrix does not fill a GPU several times with long runs."""
WALKING_WARPS = 8
"""Warps of a thread block that walks down columns; ranges.cu's ``column_range`` merges as many."""


class Mapping(enum.Enum):
    """scale.cuh's ``Mapping``: how a range is laid over the codes."""

    SYMMETRIC = enum.auto()
    ASYMMETRIC = enum.auto()
    FULL = enum.auto()
    POWER = enum.auto()
    NO_CLIP = enum.auto()


class KernelScaleRule(enum.Enum):
    """scale.cuh's ``ScaleRule``: none, rounded to its format, E8M0 by four rules, or under a tensor scale."""

    CAST = enum.auto()
    ROUNDED = enum.auto()
    FLOOR = enum.auto()
    RCEIL = enum.auto()
    CEIL = enum.auto()
    EVEN = enum.auto()
    TWO_LEVEL = enum.auto()


class KernelRange(enum.Enum):
    """extent.cuh's ``Range``: the calibrators that a kernel has."""

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
"""The macros that each file reads: builds that differ in no other macro are one."""


@dataclass(frozen=True)
class Config:
    """A scheme in the kernels' terms.

    ``codec`` and ``scale_codec`` are C++ types of codec.cuh, ``bits`` a code's; ``per_byte`` codes share a
    byte in base three (ternary: 5; 0 otherwise). Stored scales have ``scale_dtype`` and are at least
    ``smallest_scale``. ``wide`` says that blocks are whole runs of 32 elements.
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
        """Elements of ``dtype`` that a quantizing thread takes at a time of so many: whole packing units and
        loads. Long runs share the work of a scale; in a small matrix they leave too few threads."""
        if self.per_byte:
            return 20
        if self.bits < 8:
            few = elements < SMALL and not self.asymmetric
            return 32 if self.wide and dtype != torch.float32 and not few else 16
        return 16 if self.bits == 8 and dtype != torch.float32 else 8

    @property
    def restored_run(self) -> int:
        """Elements that a dequantizing thread takes at a time."""
        return 20 if self.per_byte else 16 if self.bits < 8 else 8

    def column_run(self, dtype: torch.dtype, run: int) -> int:
        """Elements that a thread takes at a time where each column has its step: one access of 16 bytes, or
        ``run`` where the codes of that are not whole pairs of bytes. Few, for the steps fill registers."""
        narrow = 16 // dtype.itemsize
        return narrow if narrow < run and narrow * self.bits % 16 == 0 else run

    def build(self, file: str, dtype: torch.dtype, **tunables: int) -> Build:
        """The compilation of ``file`` for this scheme and element type; ``tunables``: KEPT, THREADS,
        and RUN, which is ``restored_run`` unless given."""
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
    """A matrix and its blocks: ``height`` and ``width`` are whole numbers, the last blocks may be smaller."""

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
        """The members of blocks.cuh's ``Blocks``; their letters are ``BLOCKS``."""
        return self.rows, self.columns, self.height, self.width, self.grid[1]


@dataclass(frozen=True, eq=False)
class Launch:
    """A kernel with its grid and arguments; ``types`` has a letter for each (``runtime.launch``). It
    begins with dependent.cuh's ``follow``."""

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
    """The grid of kernels that walk down columns: blocks of 32 runs across, and as many down as leave the
    last of them little of the time, of at least 16 rows a warp. Where that is more than run ``at_once`` on
    every multiprocessor (0: not asked for), whole rounds of those."""
    across = math.ceil(layout.columns / (32 * run))
    enough = math.ceil(multiprocessors(device) * 32 / across)
    down = max(1, min(math.ceil(layout.rows / (16 * WALKING_WARPS)), enough, 65535))
    a_round = max(1, multiprocessors(device) * at_once // across)
    return across, down // a_round * a_round if down > a_round else down
