"""Floating-point formats: sign, exponent and mantissa fields, with one of five rules for special codes."""

from __future__ import annotations

import enum
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.cached import cached_property
from explorer.formats.base import FEW, BitField, Format
from explorer.formats.rounding import Rounding, required, round_away, round_stochastic

MANTISSA_BITS = 23
EXPONENT_MASK = 0x7F80_0000
MAGNITUDE_MASK = 0x7FFF_FFFF


class Specials(enum.Enum):
    """Convention for the codes of a floating-point format that are not finite numbers."""

    IEEE = "the largest exponent holds Inf (mantissa 0) and NaN"
    FN = "only the all-ones magnitude is NaN; no Inf"
    FNUZ = "only the code of -0 is NaN; no Inf, no -0"
    NONE = "every code is a finite number"
    SCALE = "the all-ones code is NaN; no zero, no subnormals"


@dataclass(frozen=True, kw_only=True)
class FloatFormat(Format):
    """Sign, exponent, mantissa: (-1)^S · 2^(E-bias) · 1.M, or (-1)^S · 2^(1-bias) · 0.M when E = 0.

    Up to 8 bits, and FP16; wider formats are ``TruncatedFloat32``. A format without a sign bit (``signed``
    False) is for scales only, and encodes magnitudes. Facts that contradict each other raise ``ValueError``.

    >>> FORMATS["float8_e4m3fn"].value(0b0_1111_110)   # S=0 E=15 M=6 -> 2^8 · 1.75
    448.0
    """

    exponent: int
    mantissa: int
    bias: int
    specials: Specials
    signed: bool = True

    def __post_init__(self) -> None:
        self._check_fields()
        super().__post_init__()

    def _check_fields(self) -> None:
        width = self.signed + self.exponent + self.mantissa
        if self.bits != width:
            raise ValueError(
                f"{self.label} has {self.bits} bits, but sign, exponent and mantissa have {width}"
            )
        half = (self.signed, self.exponent, self.bias, self.specials) == (True, 5, 15, Specials.IEEE)
        if self.bits > 8 and not (self.bits == 16 and half):
            raise ValueError(f"{self.label} has no codec: a FloatFormat has up to 8 bits, or is FP16")
        if self.specials is Specials.FNUZ and not self.signed:
            raise ValueError(f"{self.label} has no code of -0 that could be NaN: it has no sign")
        if self.specials is Specials.SCALE and type(self) is FloatFormat:
            raise ValueError(f"{self.label} has no codec: without zero and subnormals there is E8M0 alone")

    @property
    def cuda_codec(self) -> str:
        unsigned = "" if self.signed else ",false"
        return f"FloatCodec<{self.exponent},{self.mantissa},{self.bias},{self.specials.name}{unsigned}>"

    @property
    def scale_only(self) -> bool:
        return not self.signed

    @property
    def holds_scales(self) -> bool:
        """True if scales can use this format: its codes fill 1, 2 or 4 bytes."""
        return self.bits in (8, 16, 32)

    @property
    def fields(self) -> tuple[BitField, ...]:
        top = self.exponent + self.mantissa
        parts = [BitField("sign", top, top)] if self.signed else []
        parts.append(BitField("exponent", top - 1, self.mantissa))
        if self.mantissa:
            parts.append(BitField("mantissa", self.mantissa - 1, 0))
        return tuple(parts)

    @property
    def _magnitude_mask(self) -> int:
        return 2 ** (self.exponent + self.mantissa) - 1

    @cached_property
    def max_code(self) -> int:
        """Code of the largest finite value, directly below the special codes."""
        reserved = {Specials.IEEE: 2**self.mantissa, Specials.FN: 1, Specials.SCALE: 1}.get(self.specials, 0)
        return self._magnitude_mask - reserved

    @property
    def nan_code(self) -> int | None:
        """The canonical NaN (sign dropped, as CUDA's conversions do), or None."""
        if self.specials is Specials.NONE:
            return None
        if self.specials is Specials.FNUZ:
            return self._magnitude_mask + 1
        return self._magnitude_mask

    def value(self, code: int) -> float:
        return self._value_of_fields(code)

    def _value_of_fields(self, code: int) -> float:
        """The value of sign, exponent and mantissa, which fill the low bits of ``code``."""
        magnitude, negative = code & self._magnitude_mask, self.signed and code > self._magnitude_mask
        if self.specials is Specials.FNUZ and code == self.nan_code:
            return math.nan
        if magnitude > self.max_code:
            infinite = self.specials is Specials.IEEE and magnitude == self.max_code + 1
            return math.copysign(math.inf, -1.0 if negative else 1.0) if infinite else math.nan
        e, m = magnitude >> self.mantissa, magnitude & (2**self.mantissa - 1)
        if e == 0 and self.has_zero:
            unsigned = math.ldexp(m, 1 - self.bias - self.mantissa)
        else:
            unsigned = math.ldexp(2**self.mantissa + m, e - self.bias - self.mantissa)
        return -unsigned if negative else unsigned

    def encode_unchecked(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, noise: Tensor | None = None
    ) -> Tensor:
        """Round inside float32 arithmetic, with the same code for every row.

        Multiplying the rounded magnitude by 2^(bias-127) rebiases the exponent, so that a shift of the
        float32's bits is the code.
        """
        a = self._rounded_magnitude(x, rounding, noise)
        bits = a.mul_(2.0 ** (self.bias - 127)).view(torch.int32)
        codes = bits.bitwise_right_shift_(MANTISSA_BITS - self.mantissa)
        if self.signed:
            sign_bit = 1 << (self.exponent + self.mantissa)
            sign = x.view(torch.int32).bitwise_right_shift(31).bitwise_and_(sign_bit)
            if self.specials is Specials.FNUZ:
                sign.mul_(codes != 0)
            codes.bitwise_or_(sign)
        if self.nan_code is not None:
            codes.masked_fill_(torch.isnan(x), self.nan_code)
        return codes.to(self.code_dtype)

    def _rounded_magnitude(self, x: Tensor, rounding: Rounding, noise: Tensor | None) -> Tensor:
        """Round |x| to a value of the format, in a new tensor.

        In the binade 2^e of the magnitude ``a`` the target's values are 2^(e - mantissa) apart. Adding and
        subtracting a power of two 23 binades above that spacing makes the float32 adder round ``a`` to a
        multiple of it, ties to even. Clamping ``e`` from below to the smallest normal exponent gives
        subnormals their constant spacing.
        """
        a = x.abs().clamp_(max=self.max)
        exponent = (
            a.view(torch.int32).bitwise_and(EXPONENT_MASK).clamp_(min=(128 - self.bias) << MANTISSA_BITS)
        )
        if rounding is Rounding.NEAREST:
            magic = exponent.add_((MANTISSA_BITS - self.mantissa) << MANTISSA_BITS).view(torch.float32)
            a.add_(magic).sub_(magic)
        else:
            spacing = exponent.sub_(self.mantissa << MANTISSA_BITS).view(torch.float32)
            whole = a.div_(spacing)
            whole = round_away(whole) if rounding is Rounding.AWAY else round_stochastic(whole, noise)
            a = whole.mul_(spacing)
        return a

    def nearest(self, x: Tensor, rounding: Rounding = Rounding.NEAREST) -> Tensor:
        if self.scale_only or (self.bits <= 8 and x.numel() <= FEW):
            return super().nearest(x, rounding)
        values = self._rounded_magnitude(x, rounding, None).copysign_(x)
        return values if self.has_negative_zero else values.add_(0.0)

    def decode(self, codes: Tensor) -> Tensor:
        if self.bits <= 8:
            return super().decode(codes)
        return codes.view(torch.float16).to(torch.float32)

    @property
    def max(self) -> float:
        return self._value_of_fields(self.max_code)

    @property
    def min(self) -> float:
        return -self.max if self.signed else self._value_of_fields(0)

    @property
    def smallest_subnormal(self) -> float:
        return self._value_of_fields(1 if self.has_zero else 0)

    @property
    def smallest_normal(self) -> float:
        return self._value_of_fields(1 << self.mantissa if self.has_zero else 0)

    @property
    def eps(self) -> float:
        """The spacing just above 1: 2^-mantissa."""
        return 2.0**-self.mantissa

    @property
    def saturation_threshold(self) -> float:
        return self.max + (self.max - self._value_of_fields(self.max_code - 1)) / 2

    @property
    def has_zero(self) -> bool:
        return self.specials is not Specials.SCALE

    @property
    def has_negative_zero(self) -> bool:
        return self.signed and self.specials is not Specials.FNUZ

    @property
    def has_nan(self) -> bool:
        return self.nan_code is not None

    @property
    def has_infinity(self) -> bool:
        return self.specials is Specials.IEEE

    @property
    def significand_bits(self) -> int:
        return self.mantissa


@dataclass(frozen=True, kw_only=True)
class TruncatedFloat32(FloatFormat):
    """A float32 with fewer mantissa bits: bfloat16, tfloat32, and float32 itself (nothing dropped).

    ``away`` selects TF32's rule, round to nearest with ties away from zero (``cvt.rna.tf32.f32``);
    otherwise ties go to even. ``bits`` is what is stored: TF32 keeps its 19 bits in a 32-bit word.
    """

    away: bool = False

    def _check_fields(self) -> None:
        if self.bits not in (16, 32) or self.exponent != 8 or self._unused_bits < 0:
            raise ValueError(
                f"{self.label} has no codec: a float32 with fewer mantissa bits has 8 bits of exponent, "
                "stored in 16 or 32 bits"
            )

    @property
    def cuda_codec(self) -> str:
        return f"TruncatedCodec<{self.mantissa},{self.bits},{'true' if self.away else 'false'}>"

    @property
    def fields(self) -> tuple[BitField, ...]:
        unused = self._unused_bits
        shifted = tuple(BitField(f.name, f.high + unused, f.low + unused) for f in super().fields)
        return shifted + ((BitField("unused", unused - 1, 0),) if unused else ())

    @property
    def _unused_bits(self) -> int:
        """Stored bits below the mantissa: 13 for TF32, none for the others."""
        return self.bits - 9 - self.mantissa

    def value(self, code: int) -> float:
        return self._value_of_fields((code % 2**self.bits) >> self._unused_bits)

    def encode_unchecked(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, noise: Tensor | None = None
    ) -> Tensor:
        dropped = MANTISSA_BITS - self.mantissa
        if dropped == 0:
            return x.contiguous().view(torch.int32).clone()
        bits = x.clamp(-self.max, self.max).view(torch.int32)
        if rounding is Rounding.STOCHASTIC:  # up with the probability that the dropped bits give
            kept = bits.bitwise_right_shift(dropped).bitwise_left_shift_(dropped)
            fraction = (bits - kept).to(torch.float32).mul_(2.0**-dropped)
            bits = kept.add_((required(noise) < fraction).to(torch.int32).bitwise_left_shift_(dropped))
        elif self.away or rounding is Rounding.AWAY:
            bits = bits.add(1 << (dropped - 1))
        else:
            odd = bits.bitwise_right_shift(dropped).bitwise_and_(1)
            bits = odd.add_(bits).add_((1 << (dropped - 1)) - 1)
        bits = bits.bitwise_right_shift(dropped).bitwise_left_shift_(dropped)
        canonical_nan = (MAGNITUDE_MASK >> dropped) << dropped
        bits.masked_fill_(torch.isnan(x), canonical_nan)
        return bits.bitwise_right_shift_(32 - self.bits).to(self.code_dtype)

    def nearest(self, x: Tensor, rounding: Rounding = Rounding.NEAREST) -> Tensor:
        return Format.nearest(self, x, rounding)

    def _double_in_float32(self, x: Tensor) -> Tensor:
        return super()._double_in_float32(x) if self.mantissa < MANTISSA_BITS else x.to(torch.float32)

    def decode(self, codes: Tensor) -> Tensor:
        return codes.to(torch.int32).bitwise_left_shift_(32 - self.bits).view(torch.float32)

    @property
    def nan_code(self) -> int | None:
        return self._magnitude_mask << self._unused_bits


@dataclass(frozen=True, kw_only=True)
class PowerOfTwoScale(FloatFormat):
    """E8M0: 2^(code-127), no sign, no zero. Only a scale; never cast to it, use ``schemes.ExponentRule``.

    Its ``encode`` rounds |x| up to a power of two, as ``cvt.rp.satfinite.ue8m0x2`` does.
    """

    @property
    def cuda_codec(self) -> str:
        return "PowerOfTwoCodec"

    def encode_unchecked(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, noise: Tensor | None = None
    ) -> Tensor:
        bits = x.abs().view(torch.int32)
        codes = bits.bitwise_right_shift(MANTISSA_BITS)
        # float32 subnormals (exponent field 0): up to 2^-127 is code 0, above it rounds up to 2^-126.
        inexact = torch.where(codes == 0, bits > 0x0040_0000, (bits & 0x007F_FFFF) != 0)
        codes = codes.add_(inexact.to(torch.int32)).clamp_(max=254)
        return codes.masked_fill_(torch.isnan(x), 255).to(torch.uint8)
