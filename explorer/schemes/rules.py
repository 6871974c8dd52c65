"""The rules of a scheme: how a range is laid over the codes, and in which format its scale is stored."""

from __future__ import annotations

import enum
from dataclasses import dataclass

import torch

from explorer.formats import E4M3, E8M0, FLOAT32, FloatFormat, Format


class MappingType(enum.Enum):
    """How a range is laid over the codes. All but SYMMETRIC need an integer format."""

    SYMMETRIC = "symmetric: scale = amax / max, for integers the codes -Q ... Q (restricted range)"
    FULL = "symmetric, full range: scale = amax / (2^(b-1) - 1/2), codes -2^(b-1) ... 2^(b-1)-1"
    POWER = "symmetric, scale = amax / 2^(b-1): the largest positive value is clipped by one code"
    NO_CLIP = "symmetric, scale = max(-min / 2^(b-1), max / (2^(b-1)-1)): full range, nothing clipped"
    ASYMMETRIC = "asymmetric: scale = (max - min) / (2^b - 1), integer zero point, 0 stays exact"


class ExponentRule(enum.Enum):
    """How a block's largest magnitude becomes a power-of-two scale (OCP MX v1.0 and its variants)."""

    FLOOR = "OCP: 2^(floor(log2 amax) - emax); elements above the format's maximum saturate"
    RCEIL = "NVIDIA: 2^ceil(log2(amax / max)); never saturates"
    CEIL = "2^(ceil(log2 amax) - emax); never saturates, loses a bit unless amax is a power of two"
    EVEN = "floor after rounding amax to the element's mantissa width"


@dataclass(frozen=True)
class ScaleRule:
    """The number format of the scales. ``exponent`` is given exactly when that format is E8M0.

    ``per_tensor`` puts one float32 scale over the whole tensor above the block scales (NVFP4).
    """

    format: FloatFormat = FLOAT32
    exponent: ExponentRule | None = None
    per_tensor: bool = False

    def __post_init__(self) -> None:
        if (self.format is E8M0) != (self.exponent is not None):
            raise ValueError("an E8M0 scale needs an ExponentRule, and no other scale format takes one")
        if self.per_tensor and self.format is not E4M3:
            raise ValueError("two-level scaling is defined for E4M3 block scales (NVFP4)")
        if self.format.torch_dtype is None:
            raise ValueError(f"torch has no dtype to store {self.format.label} scales in")

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of stored scales, in memory and in files."""
        assert self.format.torch_dtype is not None
        return self.format.torch_dtype

    @property
    def smallest(self) -> float:
        """The smallest positive scale, a subnormal of the format (E8M0: 2^-127). Smaller ones are raised to
        it: the values of such a block are then less than a step apart, and what is below half of it
        becomes 0.
        """
        return self.format.smallest_subnormal

    def empty(self, fmt: Format) -> float:
        """The scale of a block of zeros: 1, whose codes of 0 restore zeros; for element formats without a
        zero 0, or the smallest there is (E8M0).
        """
        if fmt.has_zero:
            return 1.0
        return 0.0 if self.format.has_zero else self.smallest

    @property
    def word(self) -> str:
        """The rule in a scheme's text: ``float16``, ``RCEIL`` (E8M0 by that rule), ``nvfp4`` (two levels)."""
        if self.per_tensor:
            return "nvfp4"
        return self.exponent.name if self.exponent else self.format.name
