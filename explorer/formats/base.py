"""Common base of all number formats.

A format is the table of the values of its codes. Everything else (largest and smallest value, spacing, the
codes of NaN) is derived from that table. Encoding follows three rules (sources: OCP OFP8 and MX v1.0, CUDA's
``cuda_fp8.h``, ``cuda_fp6.h`` and ``cuda_fp4.h``):

1. round to nearest, ties to even, subnormals included (exceptions are stated on their row);
2. saturate: numbers beyond the largest finite value, infinities included, become that value;
3. NaN becomes the format's canonical NaN; formats without one refuse it.

float32 itself is stored as it is: nothing saturates there.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explorer.cached import cached_property
from explorer.formats.rounding import Rounding, round_to_odd
from explorer.formats.subnormals import keeps_subnormals

FEW = 2048
"""Number of numbers up to which a lookup takes no longer than encoding them and decoding the codes."""
_INFINITE = 0x7F80_0000
"""The bits of float32's Inf."""


def _in_order(place: Tensor) -> Tensor:
    """Convert int64 ranks to float32 numbers in ascending order: rank 0 is 0, ``_INFINITE`` is Inf."""
    return place.abs().to(torch.int32).view(torch.float32).copysign(place)


@dataclass(frozen=True)
class BitField:
    """Run of bits in a code. ``high`` and ``low`` count from 0, the least significant bit."""

    name: str
    high: int
    low: int


@dataclass(frozen=True, kw_only=True)
class Format:
    """One number format. Codes are uint8 up to 8 bits, then int16, then int32.

    ``tensor_cores`` names the NVIDIA architectures with tensor cores that multiply this format natively.
    ``torch_dtype`` is torch's floating-point dtype with the same codes, if there is one. ``has_codec`` is
    False if kernels/codec.cuh does not encode and decode it; a GPU then uses the reference.
    """

    name: str
    label: str
    bits: int
    tensor_cores: str = "none"
    note: str = ""
    torch_dtype: torch.dtype | None = None
    has_codec: bool = True

    def __post_init__(self) -> None:
        """``ValueError`` unless torch reads codes of up to 8 bits as this format does; wider ones by size."""
        if (dtype := self.torch_dtype) is None:
            return
        same = dtype.is_floating_point and dtype.itemsize == self.code_dtype.itemsize
        if same and self.bits == 8:
            codes = torch.arange(self.code_count, dtype=torch.uint8)
            same = torch.equal(codes.view(dtype).float().nan_to_num(), self.values.nan_to_num())
        if not same:
            raise ValueError(
                f"{self.label}: {dtype} has other values; torch_dtype is the floating-point dtype with the "
                f"same codes, or None, and codes are then stored as {self.code_dtype}"
            )

    def __reduce_ex__(self, protocol: Any) -> Any:
        """Pickle a row of ``FORMATS`` as its name, and read it back as the row: code compares by ``is``."""
        from explorer.formats.formats import FORMATS, format_named

        if FORMATS.get(self.name) is self:
            return format_named, (self.name,)
        return super().__reduce_ex__(protocol)

    @property
    def stored_dtype(self) -> torch.dtype:
        """The dtype of stored scales, in memory and in files: ``torch_dtype``, else ``code_dtype``."""
        return self.torch_dtype or self.code_dtype

    @keeps_subnormals
    def to_stored(self, x: Tensor) -> Tensor:
        """Encode float32 ``x``, without NaN, to codes with ``stored_dtype``, in its shape."""
        return self.encode_unchecked(x.to(torch.float32)).view(self.stored_dtype)

    @keeps_subnormals
    def from_stored(self, stored: Tensor) -> Tensor:
        """float32 values of codes with ``stored_dtype``, in their shape."""
        # torch's conversion gives the same bits and reads no table of values, for which a GPU would wait.
        return self.decode(stored) if self.torch_dtype is None else stored.to(torch.float32)

    @property
    def scale_only(self) -> bool:
        """True if only scales can use this format."""
        return False

    @property
    def cuda_codec(self) -> str:
        """The C++ type of kernels/codec.cuh that encodes and decodes this format."""
        raise NotImplementedError

    def value(self, code: int) -> float:
        """The exact value of one code, by definition: the readable reference of ``decode``."""
        raise NotImplementedError

    @keeps_subnormals
    def encode(self, x: Tensor, rounding: Rounding = Rounding.NEAREST, noise: Tensor | None = None) -> Tensor:
        """Encode ``x`` (any floating dtype and shape) by the three rules of this module; codes in its shape.

        ``noise`` (float32, uniform in [0, 1), shape of ``x``) decides each stochastic rounding.
        ``ValueError`` if ``x`` holds NaN and the format has no code for it.
        """
        if not self.has_nan and bool(torch.isnan(x).any()):
            count = int(torch.isnan(x).sum())
            raise ValueError(f"{count} NaN: {self.label} has no code for NaN; remove or replace them first")
        x = x.to(torch.float32) if rounding is Rounding.STOCHASTIC else self.in_float32(x)
        return self.encode_unchecked(x, rounding, noise)

    @keeps_subnormals
    def in_float32(self, x: Tensor) -> Tensor:
        """Convert ``x`` (any floating dtype) to float32 numbers that round to the same codes, in its shape.

        The float32 nearest to a float64 number may lie exactly halfway between two codes although the number
        itself does not: rounding twice would give another code. Not for stochastic rounding, which takes its
        probabilities from the nearest float32.
        """
        return self._double_in_float32(x) if x.dtype == torch.float64 else x.to(torch.float32)

    def _double_in_float32(self, x: Tensor) -> Tensor:
        """Apply ``in_float32`` to float64 ``x``."""
        return round_to_odd(x)

    def encode_unchecked(
        self, x: Tensor, rounding: Rounding = Rounding.NEAREST, noise: Tensor | None = None
    ) -> Tensor:
        """Encode a float32 tensor known to hold no NaN that the format cannot store."""
        raise NotImplementedError

    def nearest(self, x: Tensor, rounding: Rounding = Rounding.NEAREST) -> Tensor:
        """Round float32 ``x``, which holds no NaN: ``decode(encode_unchecked(x, rounding))`` bit for bit.

        ``rounding`` is not stochastic. Up to ``FEW`` numbers of a format of up to 8 bits are looked up among
        the thresholds between its levels: slower per number, but only three operations.
        """
        if self.bits > 8 or self.scale_only or x.numel() > FEW:
            return self.decode(self.encode_unchecked(x.contiguous(), rounding))
        levels, thresholds = self._steps_on(x.device, rounding)
        values = levels.take(torch.bucketize(x.contiguous(), thresholds, right=True))
        return values.copysign_(x) if self.has_negative_zero else values

    def _steps_on(self, device: torch.device, rounding: Rounding) -> tuple[Tensor, Tensor]:
        """Find ``_steps``, and copy them to a device once."""
        held = self._held_steps.get((device, rounding))
        if held is None:
            levels, thresholds = self._steps(rounding)
            held = self._held_steps[device, rounding] = levels.to(device), thresholds.to(device)
        return held

    @cached_property
    def _held_steps(self) -> dict[tuple[torch.device, Rounding], tuple[Tensor, Tensor]]:
        return {}

    @keeps_subnormals
    def _steps(self, rounding: Rounding) -> tuple[Tensor, Tensor]:
        """The levels, ascending, and the least float32 that rounds to each of them but the first.

        Found by bisection over all float32 numbers: rounding keeps their order.
        """
        levels = torch.tensor(self.levels, dtype=torch.float32)
        below = torch.full((len(levels) - 1,), -_INFINITE, dtype=torch.int64)
        least = -below
        while bool((least - below > 1).any()):
            middle = (below + least) // 2
            reached = self.decode(self.encode_unchecked(_in_order(middle), rounding)) >= levels[1:]
            below, least = torch.where(reached, below, middle), torch.where(reached, middle, least)
        return levels, _in_order(least)

    def decode(self, codes: Tensor) -> Tensor:
        """Decode ``codes`` to float32 values, in their shape. Up to 8 bits this is a lookup in ``values``."""
        flat = codes.reshape(-1).to(torch.int32)
        return self._values_on(codes.device).index_select(0, flat).view(codes.shape)

    def _values_on(self, device: torch.device) -> Tensor:
        """Copy ``values`` to a device once: a captured CUDA graph may not copy from the host."""
        held = self._copies.get(device)
        if held is None:
            held = self._copies[device] = self.values.to(device)
        return held

    @cached_property
    def _copies(self) -> dict[torch.device, Tensor]:
        return {}

    @property
    def fields(self) -> tuple[BitField, ...]:
        """The code's bits by meaning, most significant first."""
        raise NotImplementedError

    @cached_property
    @keeps_subnormals
    def values(self) -> Tensor:
        """float32 [2**bits or fewer]: the value of every code, in code order; up to 8 bits."""
        if self.bits > 8:
            raise ValueError(
                f"{self.label} has 2**{self.bits} codes; only formats of up to 8 bits are tabulated"
            )
        return torch.tensor([self.value(code) for code in range(self.code_count)], dtype=torch.float32)

    @cached_property
    def levels(self) -> tuple[float, ...]:
        """The distinct finite values, ascending; up to 8 bits."""
        return tuple(sorted({v + 0.0 for v in self.values.tolist() if math.isfinite(v)}))

    @property
    def code_count(self) -> int:
        return 2**self.bits

    @property
    def code_dtype(self) -> torch.dtype:
        return torch.uint8 if self.bits <= 8 else torch.int16 if self.bits <= 16 else torch.int32

    @property
    def packed_bits(self) -> float:
        """Bits of storage for one code when packed densely (1.6 for ternary: five codes to a byte)."""
        return float(self.bits)

    @property
    def max(self) -> float:
        """The largest finite value."""
        return self.levels[-1]

    @property
    def min(self) -> float:
        """The smallest (most negative) finite value."""
        return self.levels[0]

    @property
    def smallest_subnormal(self) -> float:
        """The smallest positive value."""
        return next(v for v in self.levels if v > 0)

    @property
    def has_zero(self) -> bool:
        return 0.0 in self.levels

    @property
    def has_negative_zero(self) -> bool:
        return False

    @property
    def has_nan(self) -> bool:
        return False

    @property
    def saturation_threshold(self) -> float:
        """Half a spacing past ``max``: values up to this round to ``max`` without saturation (E4M3: 464)."""
        return self.max + (self.max - self.levels[-2]) / 2

    @property
    def negative_saturation_threshold(self) -> float:
        """Half a spacing past ``min``, for formats that are symmetric there."""
        return -self.saturation_threshold

    @property
    def max_exponent(self) -> int:
        """floor(log2(max)): ``emax_elem`` of the OCP MX scale rules."""
        return math.frexp(self.max)[1] - 1

    @property
    def significand_bits(self) -> int:
        """Mantissa bits below the leading one; for integers, those of the largest magnitude."""
        raise ValueError(f"{self.label} has no significand")
