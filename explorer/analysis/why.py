"""Explain a scheme's error by the width of its steps, and the cause of that width.

On a uniform grid the squared error is about a twelfth of the squared step (Bennett 1948, "Spectra of
quantized signals"), and a step is the range of a block's codes divided by the number of steps. Few levels, or
one large value in a large block, therefore make the errors of all other values large. The steps of a float
grow with the value; only values that are subnormal in their block share one step. All numbers are measured on
the tensor and its scales.
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
from explorer.words import percent

FEW = 0.001
"""Share of elements below which nothing is reported."""
MANY = 0.2
"""Least share of elements rounded to zero that is reported as a cause beside the step width."""
MUCH = 0.1
"""Least share of all squared errors for which one clipped element is reported."""
_EVENLY = (
    "0.29 is the error of values that are evenly spread between levels; values on levels have a smaller one, "
    "clipped values a larger one"
)


@dataclass(frozen=True)
class Grid:
    """The codes of a scheme laid over a tensor, in root mean squares of the tensor's elements.

    width  from the smallest to the largest value of a block's codes; root mean square over blocks, weighted
           by their elements; infinite for a cast
    steps  number of steps between these values, each ``step`` = width / steps wide
    """

    scheme: Scheme
    width: float
    steps: int

    @property
    def step(self) -> float:
        return self.width / self.steps

    @property
    def uniform(self) -> bool:
        """True if all steps have the same width."""
        return isinstance(self.scheme.format, IntegerFormat | FixedPointFormat)


def grid_of(q: QuantizedTensor, rms: float) -> Grid:
    """Compute the grid of a quantized tensor with the root mean square ``rms`` > 0."""
    low, high = q.scheme.code_limits
    levels = [level for level in q.scheme.format.levels if low <= level <= high] if q.scheme.scale else []
    steps = max(len(levels) - 1, 1)
    if not levels:
        return Grid(q.scheme, math.inf, steps)
    return Grid(q.scheme, (max(levels) - min(levels)) * _mean_scale(q) / rms, steps)


def _mean_scale(q: QuantizedTensor) -> float:
    """Root mean square of the scales, each weighted by the elements of its block."""
    rows, columns = q.shape
    height, width = q.scheme.block
    if q.scheme.flat:
        rows, columns, height = 1, rows * columns, None

    def sizes(length: int, size: int | None) -> Tensor:
        starts = torch.arange(0, length, size or length, dtype=torch.float64)
        return (length - starts).clamp(max=size or length)

    squares = q.scales.scale.double().cpu().square()
    return math.sqrt(float(sizes(rows, height) @ squares @ sizes(columns, width)) / (rows * columns))


def why(a: Analysis, b: Analysis | None = None) -> str:
    """Explain the error of A, or the difference between A and B, in one sentence with measured numbers;
    empty if there is no error or the tensor is zero."""
    sides = [side for side in (a, b) if side is not None]
    if not all(math.isfinite(side.report.sqnr_db) for side in sides):
        return ""
    grids = [grid_of(side.q, _rms(side)) for side in sides]
    ended = "".join(
        _scales_end(side, letter) or _scales_collapse(side, letter)
        for side, letter in zip(sides, "AB", strict=False)
    )
    if ended:
        return f"Why:{ended}"
    if b is None:
        return f"Why: {grids[0].scheme.format.label} {_clause(grids[0], a)}{_outliers(a)}."
    if all(grid.uniform for grid in grids):
        return _of_two_grids(grids, sides)
    formats = {grid.scheme.format.name for grid in grids}
    if len(formats) == 1 and isinstance(grids[0].scheme.format, FloatFormat):
        return _of_one_float(grids[0].scheme.format, sides)
    first, second = (_clause(grid, side) for grid, side in zip(grids, sides, strict=True))
    return f"Why: A {first}; B {second}{_outliers(a)}."


def _scales_end(side: Analysis, letter: str) -> str:
    """Say that blocks need larger scales than the scales' format has; empty if they do not."""
    rule, grid = side.q.scheme.scale, side.q.scales.scale
    if rule is None or rule.per_tensor or rule.has_upper_level or side.report.clipped < FEW:
        return ""
    share = float((grid.abs() >= rule.format.max).double().mean())
    if share < FEW:
        return ""
    end, clipped = words.number(rule.format.max, 5), percent(side.report.clipped)
    return (
        f" {letter}'s {rule.format.label} scales end at {end}, and {percent(share)} of the blocks need "
        f"larger ones: {clipped} of the elements are clipped."
    )


def _scales_collapse(side: Analysis, letter: str) -> str:
    """Say that double quantization stores scales of blocks as 0 or below; empty if it does not."""
    rule, grid, raw = side.q.scheme.scale, side.q.scales.scale, side.q.scales.unrounded
    if rule is None or not rule.nested:
        return ""
    collapsed = (grid <= 0) if raw is None else (grid <= 0) & (raw > 0)  # a block of zeros loses nothing
    lost, blocks = int(collapsed.sum()), grid.numel()
    if lost == 0 or lost < FEW * blocks:
        return ""
    return (
        f" of {letter}'s {words.count(blocks)} scales {words.count(lost)} are stored as 0 or below, so that "
        "their blocks are restored as zeros or with the wrong sign: bitsandbytes' double quantization "
        "subtracts the mean of all scales, and one large block leaves the others too few steps."
    )


def _of_one_float(fmt: FloatFormat, sides: list[Analysis]) -> str:
    """Compare two schemes with one float format by the shares of elements too small for their block's
    scale."""
    shares = [_subnormal_share(side) for side in sides]
    if max(shares) < FEW:
        return ""
    small = " and ".join(
        f"{percent(share)} under {letter} ({_sharing(side.q.scheme)})"
        for letter, share, side in zip("AB", shares, sides, strict=True)
    )
    start = f"Why: steps are at most 1/{2**fmt.mantissa} of the value, except for subnormal values"
    return f"{start}: {small}{_outliers(sides[0])}."


def _rms(side: Analysis) -> float:
    return side.report.rmse / side.report.relative_error


def _of_two_grids(grids: list[Grid], sides: list[Analysis]) -> str:
    """Name the finer of two uniform grids, the ratio of their steps, and its cause; or the errors in steps if
    the finer grid has no smaller error."""
    fine, coarse = sorted((0, 1), key=lambda side: grids[side].step)
    first, second, times = "AB"[fine], "AB"[coarse], _digits(grids[coarse].step / grids[fine].step)
    # The root mean squared error by the width of a step: 12^-1/2 for evenly spread values.
    errors = [_digits(s.report.relative_error / grid.step) for grid, s in zip(grids, sides, strict=True)]
    if times == "1":
        text = f"Why: steps are equally wide, {_digits(grids[0].step)} times the RMS"
        if errors[0] == errors[1]:
            return f"{text}{_outliers(sides[0])}."
        return f"{text}; A's error is {errors[0]} of a step, B's {errors[1]}: {_EVENLY}."
    start = f"Why: {first}'s steps are {times} times as fine as {second}'s"
    if sides[fine].report.sqnr_db <= sides[coarse].report.sqnr_db:
        error, other = errors[fine], errors[coarse]
        return f"{start}, but its error is {error} of a step, {second}'s {other}: {_EVENLY}."
    of = [
        f"{grid.steps} steps over {_digits(grid.width)} times the RMS ({_sharing(grid.scheme)})"
        for grid in grids
    ]
    zeroed = sides[coarse].report.zeroed
    lost = f"; {percent(zeroed)} of the elements became 0 under {second}" if zeroed > MANY else ""
    clipped = "".join(_clipped(side, f" under {name}") for name, side in zip("AB", sides, strict=True))
    return f"{start}: {first} has {of[fine]}, {second} {of[coarse]}{lost}{clipped}{_outliers(sides[0])}."


def _clause(grid: Grid, side: Analysis) -> str:
    """Describe the steps of one scheme, and the values that they clip."""
    fmt, sharing, zeroed = grid.scheme.format, _sharing(grid.scheme), side.report.zeroed
    over = f"over {_digits(grid.width)} times the RMS ({sharing})"
    if isinstance(fmt, FloatFormat):
        small = _subnormal_share(side)
        text = f"has steps of at most 1/{2**fmt.mantissa} of the value ({sharing})"
        if small >= FEW:
            text += f", except for the {percent(small)} of values that are subnormal or became 0"
    elif not grid.uniform:
        text = f"has {grid.steps + 1} {'uneven ' if grid.steps > 2 else ''}levels {over}"
    else:
        text = f"has {grid.steps} equal steps {over}, each {_digits(grid.step)} of the RMS wide"
        text += f", and {percent(zeroed)} of the elements became 0" if zeroed > MANY else ""
    return text + _clipped(side)


def _clipped(side: Analysis, under: str = "") -> str:
    """Describe the clipping, if the largest error alone is a large part of the total error."""
    report = side.report
    elements = side.q.shape[0] * side.q.shape[1]
    if not report.clipped or report.max_error**2 < MUCH * report.mse * elements:
        return ""
    return (
        f"; {percent(report.clipped)} of the elements lie beyond the codes{under} and are clipped, by up to "
        f"{_digits(report.max_error / _rms(side))} times the RMS"
    )


def _subnormal_share(side: Analysis) -> float:
    """Share of elements that have a subnormal code or became 0; 0 if codes were not counted."""
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
    """Describe how much larger the largest elements are than all others."""
    before = side.before
    ends = [abs(float(edge)) for edge in (before.below.edges[0], before.above.edges[-1])]
    text = f". The largest |x| is {_digits(max(ends) / _rms(side))} times the RMS of all elements"
    beyond = float(before.share(before.below).sum() + before.share(before.above).sum())
    if not beyond:
        return text
    middle = max(abs(float(edge)) for edge in before.middle.edges[[0, -1]])
    within = _at_least(middle / _rms(side))
    return f"{text}; at most {percent(beyond)} of the elements are larger than {within} times the RMS"


def _sharing(scheme: Scheme) -> str:

    if scheme.scale is None:
        return "no scale"
    if scheme.block == (None, None):
        return "one scale for all"
    return f"{'one scale ' if scheme.granularity in ('per row', 'per column') else ''}{scheme.granularity}"


def _digits(value: float) -> str:
    return words.number(value, 2)


def _at_least(value: float) -> str:
    """Format ``value`` > 0 with two digits, rounded up."""
    unit = 10.0 ** (math.floor(math.log10(value)) - 1)
    return _digits(math.ceil(value / unit * (1 - 1e-9)) * unit)
