"""Named differences with their bounds, and how far codes and scales that differ are apart."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.formats import Format, IntegerFormat


@dataclass(frozen=True)
class Difference:
    """Why a case differs, and by how much it may at most.

    codes         share of the case's codes that may differ
    steps         by how many steps of the format, each at most
    scales        share of the case's scales, zero points and tensor scales that may differ
    factor        by which factor, each at most
    moved         share of zero points that may differ
    zero_points   by how many steps, each at most
    special       codes may be NaN or Inf on one side, scales NaN, Inf or 0
    signs         scales may have opposite signs
    under         codes may differ only in blocks whose scale, as computed here, has a magnitude between these
                  two or equal to one; None for all blocks
    """

    why: str
    codes: float = 0.0
    steps: int = 0
    scales: float = 0.0
    factor: float = 1.0
    moved: float = 0.0
    zero_points: int = 0
    special: bool = False
    signs: bool = False
    under: tuple[float, float] | None = None

    @property
    def words(self) -> str:
        """The bound: "at most 0.1 % of the codes, by 1 step; 2 % of the scales, by a factor of 2"."""
        parts = []
        if self.codes:
            by = [_steps(self.steps)] if self.steps else []
            by += ["NaN or Inf on one side"] if self.special and not self.scales else []
            where = "" if self.under is None else f", under scales {_range(*self.under)}"
            parts.append(
                f"{_percent(self.codes)} of the codes, by {' or '.join(by) or 'the sign of zero'}{where}"
            )
        if self.scales:
            by = [f"a factor of {self.factor:.8g}"] if self.factor > 1 else []
            by += ["NaN, Inf or 0 on one side"] if self.special else []
            by += ["the sign"] if self.signs else []
            parts.append(f"{_percent(self.scales)} of the scales, by {' or '.join(by)}")
        if self.moved:
            parts.append(f"{_percent(self.moved)} of the zero points, by {_steps(self.zero_points)}")
        return f"at most {', '.join(parts)}"


def _percent(share: float) -> str:
    return f"{100 * share:.3g} %"


def _range(least: float, most: float) -> str:
    """ "of 0", "up to 1e-38"."""
    return f"of {most:.3g}" if least == most else f"up to {most:.3g}"


def _steps(n: int) -> str:
    return f"{n} step{'s' if n > 1 else ''}"


FP16_ARITHMETIC = "FP16 values are scaled and divided in FP16 there, in float32 here"
"""The treatment of FP16 in torchao and compressed-tensors. With BF16 they compute in BF16, and so do the
schemes compared."""


def integers_in_float16(bits: int) -> Difference:
    """The difference of integers with so many bits that are computed in FP16."""
    codes, steps, moved = (0.09, 2, 0.08) if bits == 8 else (0.01, 1, 0.02)
    return Difference(FP16_ARITHMETIC, codes, steps, scales=1, factor=1.001, moved=moved, zero_points=1)


@dataclass(frozen=True)
class Distance:
    """The largest distances between what differs.

    steps             of codes, in steps of the format: 0 where only the sign of zero differs
    special_codes     how many are NaN, Inf or no code of the format on one side
    factor            of scales (or of restored values), the larger by the smaller magnitude
    special_scales    how many are NaN, Inf or 0 on one side
    opposite_signs    how many have another sign
    zero_points       of zero points, in steps
    moved             how many zero points differ
    """

    steps: int = 0
    special_codes: int = 0
    factor: float = 1.0
    special_scales: int = 0
    opposite_signs: int = 0
    zero_points: int = 0
    moved: int = 0

    def __add__(self, other: Distance) -> Distance:
        return Distance(
            max(self.steps, other.steps),
            self.special_codes + other.special_codes,
            max(self.factor, other.factor),
            self.special_scales + other.special_scales,
            self.opposite_signs + other.opposite_signs,
            max(self.zero_points, other.zero_points),
            self.moved + other.moved,
        )

    def beyond(self, bound: Difference) -> list[str]:
        """Describe the excess over ``bound`` and the expected values; empty if there is none."""
        found = []
        if self.steps > bound.steps:
            found.append(f"codes differ by {self.steps} steps, at most {bound.steps} expected")
        if self.factor > bound.factor * (1 + 1e-5):  # recordings have six digits
            found.append(
                f"scales differ by a factor of {self.factor:.6g}, at most {bound.factor:.6g} expected"
            )
        if self.zero_points > bound.zero_points:
            found.append(f"zero points differ by {self.zero_points}, at most {bound.zero_points} expected")
        if self.opposite_signs and not bound.signs:
            found.append(f"{self.opposite_signs:,} scales have opposite signs, none expected")
        if (self.special_codes or self.special_scales) and not bound.special:
            found.append(
                f"{self.special_codes:,} codes and {self.special_scales:,} scales are NaN, Inf or 0 on one "
                "side, none expected"
            )
        return found


def codes_apart(mine: Tensor, theirs: Tensor, fmt: Format) -> Distance:
    """Measure the distance between codes of ``fmt``, int64 of one shape, in the order of their values."""
    differ = mine != theirs
    mine, theirs = mine[differ], theirs[differ]
    if not len(mine):
        return Distance()
    if isinstance(fmt, IntegerFormat) or fmt.bits > 8:
        sign = 1 << (fmt.bits - 1)
        finite = torch.ones_like(mine, dtype=torch.bool)
        if isinstance(fmt, IntegerFormat):
            ranks = [(codes ^ sign) - sign for codes in (mine, theirs)]
        else:
            finite = fmt.decode(mine.to(fmt.code_dtype)).isfinite()
            finite &= fmt.decode(theirs.to(fmt.code_dtype)).isfinite()
            ranks = [torch.where(codes < sign, codes, sign - codes) for codes in (mine, theirs)]
    else:
        no_code = torch.full((2**fmt.bits - len(fmt.values),), torch.nan)
        table = torch.cat([fmt.values, no_code])
        values = [table[codes] for codes in (mine, theirs)]
        finite = values[0].isfinite() & values[1].isfinite()
        order = fmt.values[fmt.values.isfinite()].unique()
        ranks = [torch.searchsorted(order, part.nan_to_num(0.0, 0.0, 0.0)) for part in values]
    steps = (ranks[0] - ranks[1]).abs()[finite]
    return Distance(int(steps.max()) if len(steps) else 0, int((~finite).sum()))


def numbers_apart(mine: Tensor, theirs: Tensor) -> Distance:
    """Measure the distance between float32 numbers of one shape."""
    differ = mine != theirs
    one, other = mine[differ].double(), theirs[differ].double()
    whole = one.isfinite() & other.isfinite() & (one != 0) & (other != 0)
    ratio = (one / other)[whole]
    factor = torch.maximum(ratio.abs(), 1 / ratio.abs())
    largest = float(factor.max()) if len(factor) else 1.0
    return Distance(0, 0, largest, int((~whole).sum()), int((ratio < 0).sum()))


def steps_apart(mine: Tensor, theirs: Tensor) -> Distance:
    """Measure the distance between integers of one shape (zero points)."""
    apart = (mine - theirs).abs()
    return Distance(zero_points=int(apart.max()) if apart.numel() else 0, moved=int((apart > 0).sum()))
