"""Goals of a quantization, such as 4-bit weights or a size: ranges of the frontier, and schemes to compare.

A goal has a name for the page's address, the ranges of bits and decibels in its figure, and a shortlist of at
most five schemes in a fixed order, beginning with A and B.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass

from explorer.formats import FloatFormat, Format, IntegerFormat
from explorer.formats.integers import FixedPointFormat
from explorer.schemes import SCHEMES, Scheme

MOST = 5
"""Largest number of schemes of a shortlist."""


@dataclass(frozen=True)
class Goal:
    """One goal of a quantization.

    bits, db     ends of the figure's axes: bits per element, SQNR in dB
    schemes      names in ``SCHEMES``, in the order of the table; the first is A, the second B
    asked        further names that the figure labels if there is room
    most_bits    limit of a goal "at most a size", in bits per element; None for others
    logarithmic  True for a logarithmic axis of bits, because they span more than one range
    """

    name: str
    label: str
    bits: tuple[float, float]
    db: tuple[float, float]
    schemes: tuple[str, ...]
    asked: tuple[str, ...] = ()
    most_bits: float | None = None
    logarithmic: bool = False

    @property
    def a(self) -> str:
        """Default scheme A."""
        return self.schemes[0]

    @property
    def b(self) -> str:
        """Default scheme B; empty if the shortlist has one scheme."""
        return self.schemes[1] if len(self.schemes) > 1 else ""

    def takes(self, scheme: Scheme) -> bool:
        """False for weights that are not multiplied by inputs of this goal's format as they are."""
        kinds = _WEIGHTS.get(self.name)
        return kinds is None or (isinstance(scheme.format, kinds) and scheme.format.bits == 8)


_WEIGHTS: dict[str, tuple[type[Format], ...]] = {
    "fp8-inputs": (FloatFormat,),
    "int8-inputs": (IntegerFormat, FixedPointFormat),
}
"""Formats of 8 bits that goals with quantized inputs have for weights."""
_ROWS = (
    Goal("8-bit", "8-bit weights", (6.0, 9.0), (25.0, 50.0),
         ("int8_row", "fp8_e4m3_row", "mxfp8_e4m3", "int8_group128", "q8_0"),
         ("fp8_e4m3_128x128", "mxint8", "q6_k", "fp8_e5m2_row", "int8_tensor", "int8_row_asym")),
    Goal("6-bit", "6-bit weights", (5.0, 7.5), (20.0, 40.0),
         ("int6_group128_asym", "mxfp6_e2m3", "q6_k", "int5_group128_asym", "q5_k"),
         ("mxfp6_e3m2", "int6_group128", "q5_0", "int5_group128", "q5_1")),
    Goal("4-bit", "4-bit weights", (3.0, 6.0), (10.0, 35.0),
         ("int4_group128_asym", "nvfp4", "mxfp4", "nf4_block64", "q4_k"),
         ("int4_group32", "q3_k", "int3_group128_asym", "q5_k", "int5_group128_asym", "int4_row", "q4_0")),
    Goal("3-bit", "3-bit weights", (2.0, 5.0), (5.0, 25.0),
         ("int3_group128_asym", "q3_k", "int3_group64_asym", "int3_group128", "int4_group128_asym"),
         ("q2_k", "int3_row_asym", "q4_k", "nvfp4", "int2_group64_asym")),
    Goal("2-bit", "2-bit weights", (1.0, 4.0), (0.0, 20.0),
         ("int2_group64_asym", "q2_k", "ternary_twn", "binary_row", "int2_group32_full"),
         ("int3_group128_asym", "q3_k", "ternary_absmean", "int2_group128")),
    Goal("fp8-inputs", "FP8 inputs", (7.75, 8.75), (20.0, 45.0),
         ("fp8_e4m3_row", "fp8_e4m3_tensor", "fp8_e4m3_1x128", "mxfp8_e4m3", "fp8_e5m2_row"),
         ("fp8_e4m3_cast", "mxfp8_e5m2", "int8_row", "fp8_e4m3fnuz_row")),
    Goal("int8-inputs", "INT8 inputs", (7.75, 8.75), (20.0, 50.0),
         ("int8_row", "int8_tensor", "int8_row_asym", "int8_group128", "mxint8"),
         ("fp8_e4m3_row", "int8_tensor_asym", "int8_group32")),
    Goal("all", "everything", (1.0, 32.0), (0.0, 75.0),
         ("int4_group128_asym", "nvfp4", "int8_row", "fp8_e4m3_row", "bf16"),
         ("fp16", "int3_group128_asym", "q2_k", "mxfp6_e2m3", "q5_k", "binary_row", "ternary_twn", "q3_k",
          "mxfp4", "int8_group32"), None, True),
)  # fmt: skip

GOALS: dict[str, Goal] = {goal.name: goal for goal in _ROWS}
"""Goals without a number in their name, by their name in the address, in the order of the buttons."""
DEFAULT = "4-bit"
AT_MOST = "at-most-"
"""Prefix of goals with a size: "at-most-4.25" bits per element, "at-most-3MB"."""
_SIZE = re.compile(AT_MOST + r"(\d{1,9}(?:\.\d{1,4})?)(kb|mb|gb)?", re.IGNORECASE)
_UNITS = {"kb": 1e3, "mb": 1e6, "gb": 1e9}
_CANDIDATES = tuple(dict.fromkeys(name for goal in _ROWS for name in (*goal.schemes, *goal.asked)))
_BELOW, _ABOVE = 2.0, 0.25
"""Bits that a figure shows below and above a goal's size."""
_STEP, _ROOM = 5.0, 2.0
"""Grid of the dB axis, and room around the points."""


def goal_of(name: str, shape: tuple[int, int]) -> Goal:
    """Find the goal called ``name`` for a tensor of ``shape`` [rows, cols].

    ``ValueError`` for an unknown name, with the accepted ones, and for a size that no scheme fits.
    """
    if name in GOALS:
        return GOALS[name]
    name = name.strip()
    match = _SIZE.fullmatch(name)
    if match is None and name.startswith(AT_MOST):
        size = name.removeprefix(AT_MOST)
        raise ValueError(
            f"{size[:40]!r} is no size: type a number of bits per element such as 4.25, or a size such as "
            "9MB (kB, MB, GB)"
        )
    if match is None:
        raise ValueError(
            f"no goal {name[:40]!r}; there are {', '.join(GOALS)}, and {AT_MOST}4.25 (bits per element) or "
            f"{AT_MOST}3MB (kB, MB, GB)"
        )
    number, unit = float(match[1]), (match[2] or "").lower()
    elements = max(shape[0] * shape[1], 1)
    return size_goal(number if not unit else 8 * number * _UNITS[unit] / elements, shape, name)


def is_goal(name: str) -> bool:
    """True if ``goal_of`` accepts a name for some tensor."""
    return name in GOALS or _SIZE.fullmatch(name.strip()) is not None


def size_goal(most_bits: float, shape: tuple[int, int], name: str = "") -> Goal:
    """Make the goal "at most ``most_bits`` per element": the five largest schemes that fit."""
    bits = {n: SCHEMES[n].bits_per_element(shape).total for n in _CANDIDATES}
    fit = [n for n in sorted(bits, key=lambda n: -bits[n]) if bits[n] <= most_bits * (1 + 1e-9)]
    if not fit:
        least = min(bits, key=lambda n: bits[n])
        raise ValueError(
            f"nothing fits {most_bits:.3g} bits per element; the smallest of this tensor is "
            f"{SCHEMES[least].label} with {bits[least]:.3g}"
        )
    low = max(0.75, min(most_bits - _BELOW, bits[fit[min(len(fit), MOST) - 1]] - _ABOVE))
    high = min(most_bits, 32.0) + _ABOVE
    name = name or f"{AT_MOST}{most_bits:.4g}"
    label = f"at most {name.removeprefix(AT_MOST)}" + ("" if name[-1].isalpha() else " bits")
    wide = high > 4 * low
    return Goal(name, label, (low, high), (0.0, 75.0), tuple(fit[:MOST]), tuple(fit[MOST:]), most_bits, wide)


def adapted(goal: Goal, points: Iterable[tuple[float, float]]) -> Goal:
    """Extend the dB axis of ``goal`` to the ``points`` (bits, dB) if they do not fit. Points outside of its
    bits, or without a finite SQNR, do not count."""
    low, high = goal.bits
    seen = [db for bits, db in points if low <= bits <= high and math.isfinite(db)]
    fixed = goal.most_bits is None and not goal.logarithmic
    if not seen or (fixed and goal.db[0] <= min(seen) and max(seen) <= goal.db[1]):
        return goal
    bottom = _STEP * math.floor((min(seen) - _ROOM) / _STEP)
    top = _STEP * math.ceil((max(seen) + _ROOM) / _STEP)
    return dataclasses.replace(goal, db=(bottom, top))


def nearest_goal(scheme: Scheme, shape: tuple[int, int]) -> Goal:
    """Find the goal of weights whose figure's centre is nearest to the scheme, for old links, which name no
    goal."""
    bits = scheme.bits_per_element(shape).total
    weights = [goal for goal in _ROWS if goal.name.endswith("-bit")]
    best = min(weights, key=lambda goal: abs(sum(goal.bits) / 2 - bits))
    return best if best.bits[0] <= bits <= best.bits[1] else GOALS["all"]
