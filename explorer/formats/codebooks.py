"""Codebook formats: a short sorted list of levels (NF4, ternary, binary)."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.cached import cached_property
from explorer.formats.base import BitField, Format
from explorer.formats.rounding import Rounding, required


class LevelTies(enum.Enum):
    """Rounding of values halfway between two levels of a codebook."""

    LOWER = "to the lower level"
    UPPER = "to the upper level"
    ZERO = "toward zero"
    AWAY = "away from zero"


@dataclass(frozen=True, kw_only=True)
class CodebookFormat(Format):
    """A sorted list of levels; the value of code i is ``table[i]``; numbers are rounded to the nearest level.

    ``per_byte`` codes are packed into one byte as digits of base ``len(table)``; 0 packs bits. The packed
    codes of a row begin a new byte after ``run`` codes; 0 packs a row as one run.
    """

    table: tuple[float, ...]
    ties: LevelTies
    per_byte: int = 0
    run: int = 0

    @property
    def cuda_codec(self) -> str:
        """The C++ type, named by the row in capitalized words (Nf4, BnbFp4); ``ValueError`` without one."""
        if not self.has_codec:
            raise ValueError(f"{self.label} has no codec in kernels/codec.cuh: no kernel reads its codes")
        return f"CodebookCodec<{''.join(word.capitalize() for word in self.name.split('_'))}>"

    @property
    def fields(self) -> tuple[BitField, ...]:
        return (BitField("index", self.bits - 1, 0),)

    @property
    def code_count(self) -> int:
        return len(self.table)

    @property
    def largest_is_negative(self) -> bool:
        """True if the level of largest magnitude is the most negative one, as in IQ4_NL."""
        return -self.table[0] > self.table[-1]

    @property
    def negative_saturation_threshold(self) -> float:
        if self.largest_is_negative:
            return self.table[0] - (self.table[1] - self.table[0]) / 2
        return -self.saturation_threshold

    @property
    def significand_bits(self) -> int:
        """Return 0: codebooks have no mantissa, so that rules that round to its width round to a power of
        two."""
        return 0

    @property
    def packed_bits(self) -> float:
        if self.per_byte and self.run:
            return 8 * math.ceil(self.run / self.per_byte) / self.run
        return 8 / self.per_byte if self.per_byte else float(self.bits)

    def value(self, code: int) -> float:
        """The float32 nearest to the level in ``table``; NaN for an unused code."""
        return (
            torch.tensor(self.table[code], dtype=torch.float32).item() if code < len(self.table) else math.nan
        )

    @cached_property
    def thresholds(self) -> tuple[float, ...]:
        """Least float32 that rounds to each code > 0: the code of x is the number of thresholds <= x."""
        found = []
        for middle, tie_goes_up in self.boundaries:
            nearest = torch.tensor(middle, dtype=torch.float32)
            above = nearest.double() > middle or (nearest.double() == middle and tie_goes_up)
            found.append(float(nearest if above else torch.nextafter(nearest, torch.tensor(math.inf))))
        return tuple(found)

    @property
    def boundaries(self) -> tuple[tuple[float, bool], ...]:
        """The midpoint between each level and the next, and whether the midpoint itself rounds up."""
        table = torch.tensor(self.table, dtype=torch.float32).double()  # in which midpoints are exact
        return tuple((middle, self._ties_up(middle)) for middle in ((table[1:] + table[:-1]) / 2).tolist())

    def _ties_up(self, middle: float) -> bool:
        return {
            LevelTies.LOWER: False,
            LevelTies.UPPER: True,
            LevelTies.ZERO: middle < 0,
            LevelTies.AWAY: middle > 0,
        }[self.ties]

    def _double_in_float32(self, x: Tensor) -> Tensor:
        """Round to the nearest levels: the midpoint of two need not be a float32."""
        codes = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
        for middle, tie_goes_up in self.boundaries:
            codes += x >= middle if tie_goes_up else x > middle
        return torch.where(torch.isnan(x), math.nan, self.decode(codes))

    def encode_unchecked(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, noise: Tensor | None = None
    ) -> Tensor:
        if rounding is not Rounding.STOCHASTIC:
            codes = torch.zeros(x.shape, dtype=torch.uint8, device=x.device)
            for threshold in self.thresholds:
                codes += x >= threshold
            return codes
        x = x.clamp(self.table[0], self.table[-1]).nan_to_num(self.table[-1])  # 0 / 0 under a scale of 0
        below = torch.zeros(x.shape, dtype=torch.int32, device=x.device)
        for level in self.table[1:-1]:
            below += x >= torch.tensor(level, dtype=torch.float32)
        lower, upper = self.decode(below), self.decode(below + 1)
        return below.add_(required(noise) < (x - lower) / (upper - lower)).to(torch.uint8)


AF4_LEVELS = (
    -1.0, -0.69441008, -0.51243739, -0.3736951, -0.25607552, -0.14982478, -0.04934812, 0.0,
    0.04273164, 0.12934483, 0.21961274, 0.31675666, 0.42563882, 0.55496234, 0.72424863, 1.0,
)  # fmt: skip
"""AbnormalFloat for blocks of 64: least expected absolute error for normal values divided by their largest
(arXiv 2306.06965).
"""
BNB_FP4_LEVELS = tuple(n / 12 for n in (-12, -8, -6, -4, -3, -2, -1 / 16, 0, 1 / 16, 2, 3, 4, 6, 8, 12))
"""bitsandbytes' "fp4", not E2M1: 15 levels, ± {1/16, 2, 3, 4, 6, 8, 12} / 12 and 0."""
IQ4_LEVELS = (
    -127.0, -104.0, -83.0, -65.0, -49.0, -35.0, -22.0, -10.0, 1.0, 13.0, 25.0, 38.0, 53.0, 69.0, 89.0, 113.0,
)  # fmt: skip
"""ggml's kvalues_iq4nl, of IQ4_NL and IQ4_XS: whole numbers, denser near 0, without 0."""
NF4_LEVELS = (
    -1.0, -0.6961928009986877, -0.5250730514526367, -0.39491748809814453,
    -0.28444138169288635, -0.18477343022823334, -0.09105003625154495, 0.0,
    0.07958029955625534, 0.16093020141124725, 0.24611230194568634, 0.33791524171829224,
    0.44070982933044434, 0.5626170039176941, 0.7229568362236023, 1.0,
)  # fmt: skip
"""Quantiles of N(0, 1), normalised to [-1, 1], zero exact (QLoRA, arXiv 2305.14314)."""
