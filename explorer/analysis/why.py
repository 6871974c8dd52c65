"""Why a scheme's error is what it is: how wide its steps are, and what decides that.

On a uniform grid the squared error is about a twelfth of the squared step (Bennett 1948, "Spectra of
quantized signals"), and a step is the range of a block's codes divided by the steps in it. So few levels, or
one large value in a large block, make every other value's error large. The steps of a float grow with the
value, and only the values that are subnormal in their block share one step. All numbers are of the tensor and
its scales as they are.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer import words
from explorer.analysis.tensor import Analysis
from explorer.core.quantize import QuantizedTensor
from explorer.formats import FloatFormat, IntegerFormat
from explorer.formats.integers import FixedPointFormat
from explorer.schemes import Scheme

SAME = 0.03
"""Steps whose widths differ by less than this share are called equal."""
FEW = 0.001
"""A smaller share of elements is not told of."""
MANY = 0.2
"""A share of elements that became zero which explains the error beside the width of the steps."""


@dataclass(frozen=True)
class Grid:
    """The codes of a scheme laid over a tensor, in root mean squares of the tensor's elements.

    ``width``  from the least to the largest value that a block's codes stand for; over blocks the root mean
               square, each block as often as it has elements; infinite for a cast
    ``steps``  between those, and ``step`` = width / steps
    """

    scheme: Scheme
    width: float
    steps: int

    @property
    def step(self) -> float:
        return self.width / self.steps

    @property
    def uniform(self) -> bool:
        """Whether all steps are as wide as each other."""
        return isinstance(self.scheme.format, IntegerFormat | FixedPointFormat)


def grid_of(q: QuantizedTensor, rms: float) -> Grid:
    """The ``Grid`` of a quantized tensor whose elements have the root mean square ``rms`` > 0."""
    low, high = q.scheme.code_limits
    levels = [level for level in q.scheme.format.levels if low <= level <= high] if q.scheme.scale else []
    steps = max(len(levels) - 1, 1)
    if not levels:
        return Grid(q.scheme, math.inf, steps)
    return Grid(q.scheme, (max(levels) - min(levels)) * _mean_scale(q) / rms, steps)


def _mean_scale(q: QuantizedTensor) -> float:
    """The root mean square of the scales, each as often as its block has elements."""
    rows, columns = q.shape
    height, width = q.scheme.block
    if q.scheme.flat:
        rows, columns, height = 1, rows * columns, None
    down, along = _sizes(rows, height), _sizes(columns, width)
    squares = q.scales.scale.double().cpu().square()
    return math.sqrt(float(down @ squares @ along) / (rows * columns))


def _sizes(length: int, size: int | None) -> Tensor:
    """float64: how many elements each block has along an axis."""
    starts = torch.arange(0, length, size or length, dtype=torch.float64)
    return (length - starts).clamp(max=size or length)


def why(a: Analysis, b: Analysis | None = None) -> str:
    """What makes the error of A, or the difference between A and B, in a sentence of measured numbers; empty
    where nothing is lost, or nothing was there."""
    sides = [side for side in (a, b) if side is not None]
    if not all(math.isfinite(side.report.sqnr_db) for side in sides):
        return ""
    grids = [grid_of(side.q, _rms(side)) for side in sides]
    if b is None:
        return f"Why: {grids[0].scheme.format.label} {_clause(grids[0], a)}{_outliers(a)}."
    if all(grid.uniform for grid in grids):
        return _of_two_grids(grids, sides)
    formats = {grid.scheme.format.name for grid in grids}
    if len(formats) == 1 and isinstance(grids[0].scheme.format, FloatFormat):
        return _of_one_float(grids[0].scheme.format, sides)
    first, second = (_clause(grid, side) for grid, side in zip(grids, sides, strict=True))
    return f"Why: A {first}; B {second}{_outliers(a)}."


def _of_one_float(fmt: FloatFormat, sides: list[Analysis]) -> str:
    """Of two schemes with the same floats: how many elements are too small for their block's scale."""
    shares = [_subnormal_share(side) for side in sides]
    small = " and ".join(
        f"{_percent(share)} under {letter} ({_sharing(side.q.scheme)})"
        for letter, share, side in zip("AB", shares, sides, strict=True)
    )
    start = f"Why: steps are at most 1/{2**fmt.mantissa} of a value, but for those too small for their scale"
    return f"{start}: {small}{_outliers(sides[0])}."


def _rms(side: Analysis) -> float:
    """The root mean square of the elements of a tensor that is not all zero."""
    return side.report.rmse / side.report.relative_error


def _of_two_grids(grids: list[Grid], sides: list[Analysis]) -> str:
    """Which of two uniform grids is finer, how much, and by what."""
    fine, coarse = sorted((0, 1), key=lambda side: grids[side].step)
    times = grids[coarse].step / grids[fine].step
    if times < 1 + SAME:
        return f"Why: steps are equally wide, {_digits(grids[0].step)} times the RMS{_outliers(sides[0])}."
    first, second = "AB"[fine], "AB"[coarse]
    of = [
        f"{grid.steps} over {_digits(grid.width)} times the RMS ({_sharing(grid.scheme)})" for grid in grids
    ]
    text = (
        f"Why: {first}'s steps are {_digits(times)} times as fine as {second}'s: {first} has {of[fine]}, "
        f"{second} {of[coarse]}"
    )
    zeroed = sides[coarse].report.zeroed
    lost = f"; {_percent(zeroed)} of the elements became 0 under {second}" if zeroed > MANY else ""
    return f"{text}{lost}{_outliers(sides[0])}."


def _clause(grid: Grid, side: Analysis) -> str:
    """What the steps of one scheme are."""
    fmt, sharing = grid.scheme.format, _sharing(grid.scheme)
    if isinstance(fmt, FloatFormat):
        small = _subnormal_share(side)
        text = f"has steps of at most 1/{2**fmt.mantissa} of a value ({sharing})"
        return f"{text}, but for the {_percent(small)} too small for that" if small >= FEW else text
    over = f"over {_digits(grid.width)} times the RMS ({sharing})"
    if not grid.uniform:
        return f"has {grid.steps + 1} {'uneven ' if grid.steps > 2 else ''}levels {over}"
    lost = (
        f", and {_percent(side.report.zeroed)} of the elements became 0" if side.report.zeroed > MANY else ""
    )
    return f"has {grid.steps} equal steps {over}, each {_digits(grid.step)} of it wide{lost}"


def _subnormal_share(side: Analysis) -> float:
    """The share of elements whose code is subnormal, or which became 0; 0 where codes were not counted."""
    fmt, counts = side.q.scheme.format, side.measured.code_counts
    if counts is None or not isinstance(fmt, FloatFormat):
        return 0.0
    field = next(f for f in fmt.fields if f.name == "exponent")
    codes = torch.arange(len(counts))
    subnormal = (codes >> field.low) & (2**fmt.exponent - 1) == 0
    elements = max(int(counts.sum()), 1)
    zero = subnormal & ((codes >> (field.low - fmt.mantissa)) & (2**fmt.mantissa - 1) == 0)
    return (int(counts[subnormal & ~zero].sum()) / elements) + side.report.zeroed


def _outliers(side: Analysis) -> str:
    """How far the largest element lies from the others."""
    before = side.before
    ends = [abs(float(edge)) for edge in (before.below.edges[0], before.above.edges[-1])]
    text = f". The largest |x| is {_digits(max(ends) / _rms(side))} times the RMS"
    beyond = float(before.share(before.below).sum() + before.share(before.above).sum())
    if not beyond:
        return text
    middle = max(abs(float(edge)) for edge in before.middle.edges[[0, -1]])
    return f"{text}, all but {_percent(beyond)} lie within {_digits(middle / _rms(side))} times it"


def _sharing(scheme: Scheme) -> str:
    """What a scale is for, in brackets."""
    if scheme.scale is None:
        return "no scale"
    if scheme.block == (None, None):
        return "one scale for all"
    kinds = {"per row": "a scale a row", "per column": "a scale a column"}
    return kinds.get(scheme.granularity, scheme.granularity)


def _percent(share: float) -> str:
    return f"{words.number(100 * share, 3 if share > 0.9 else 2)} %"


def _digits(value: float) -> str:
    return words.number(value, 2)
