"""Integer and fixed-point formats: two's complement."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.formats.base import BitField, Format
from explorer.formats.rounding import Rounding, round_away, round_stochastic


@dataclass(frozen=True, kw_only=True)
class IntegerFormat(Format):
    """Two's complement: -2^(bits-1) ... 2^(bits-1)-1; the code of q is its low ``bits`` bits.

    >>> FORMATS["int4"].value(0b1111)
    -1.0
    """

    @property
    def cuda_codec(self) -> str:
        return f"IntegerCodec<{self.bits}>"

    @property
    def fields(self) -> tuple[BitField, ...]:
        return (BitField("sign", self.bits - 1, self.bits - 1), BitField("value", self.bits - 2, 0))

    @property
    def qmax(self) -> int:
        return 2 ** (self.bits - 1) - 1

    @property
    def qmin(self) -> int:
        return -(2 ** (self.bits - 1))

    def value(self, code: int) -> float:
        return float(code - 2**self.bits if code > self.qmax else code)

    def encode_unchecked(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, noise: Tensor | None = None
    ) -> Tensor:
        if rounding is Rounding.STOCHASTIC:
            q = round_stochastic(x, noise)
        else:
            q = round_away(x) if rounding is Rounding.AWAY else x.round()
        return self.codes_of(q.clamp_(self.qmin, self.qmax))

    def codes_of(self, q: Tensor) -> Tensor:
        """uint8 codes of the integers ``q`` (any dtype), which must lie in [qmin, qmax]."""
        codes = q.to(torch.int8, copy=True).view(torch.uint8)
        return codes if self.bits == 8 else codes.bitwise_and_(2**self.bits - 1)

    @property
    def significand_bits(self) -> int:
        return self.bits - 2


@dataclass(frozen=True, kw_only=True)
class FixedPointFormat(Format):
    """Two's complement with ``fraction`` bits after the point: the value of code q is q / 2^fraction.

    The elements of MXINT8 (OCP MX v1.0, section 5.3.4): 8 bits, 6 of them after the point, -2 ... 127/64.

    >>> FORMATS["ocp_int8"].value(0b0100_0000)
    1.0
    """

    fraction: int

    @property
    def cuda_codec(self) -> str:
        return f"FixedPointCodec<{self.bits},{self.fraction}>"

    @property
    def _integer(self) -> IntegerFormat:
        return IntegerFormat(name=self.name, label=self.label, bits=self.bits)

    @property
    def fields(self) -> tuple[BitField, ...]:
        sign, _ = self._integer.fields
        return (
            sign,
            BitField("whole", self.bits - 2, self.fraction),
            BitField("fraction", self.fraction - 1, 0),
        )

    def value(self, code: int) -> float:
        return self._integer.value(code) / 2**self.fraction

    def encode_unchecked(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, noise: Tensor | None = None
    ) -> Tensor:
        return self._integer.encode_unchecked(x * 2.0**self.fraction, rounding, noise)

    @property
    def significand_bits(self) -> int:
        return self.bits - 2
