"""Rounding of values between two codes, and the random numbers of stochastic rounding.

Stochastic rounding goes up with a probability equal to the distance from the lower neighbour (in units
of the spacing), so that its expectation is the value itself. The random numbers come from Philox
4x32-10 (Salmon et al., "Parallel random numbers: as easy as 1, 2, 3", SC 2011), a function of only (seed,
element index): every chunk, thread and device draws the same number for the same element.
"""

from __future__ import annotations

import enum

import torch
from torch import Tensor

_MULTIPLIERS = (0xD2511F53, 0xCD9E8D57)
_WEYL = (0x9E3779B9, 0xBB67AE85)
_MASK = 0xFFFF_FFFF


class Rounding(enum.Enum):
    """Rounding mode: the choice between the two neighbouring codes of a value."""

    NEAREST = "to nearest, ties to even"
    AWAY = "to nearest, ties away from zero"
    STOCHASTIC = "stochastic"


def required(noise: Tensor | None) -> Tensor:
    """Return ``noise``; ``ValueError`` if stochastic rounding was requested without it."""
    if noise is None:
        raise ValueError("stochastic rounding needs noise; see explorer.formats.rounding.philox_uniform")
    return noise


def round_away(x: Tensor) -> Tensor:
    """Round float32 ``x`` to whole numbers, halves away from zero, like C's ``roundf``."""
    below = x.abs().floor()
    return (below + (x.abs() - below >= 0.5)).copysign(x)


def round_to_odd(x: Tensor) -> Tensor:
    """Round float64 ``x`` to float32, in its shape: a number that float32 lacks to its odd neighbour.

    Of the two neighbouring float32 numbers that is the one with a last bit of 1. Rounding it to fewer bits
    gives the same result as rounding ``x``: it is halfway between two codes only if ``x`` is (Boldo and
    Melquiond, "Emulation of a FMA and correctly rounded sums", 2008).
    """
    nearest = x.to(torch.float32)
    back = nearest.double()
    inexact = (back != x) & ~torch.isnan(x)
    toward_zero = nearest.view(torch.int32) - (back.abs() > x.abs()).to(torch.int32)
    return torch.where(inexact, (toward_zero | 1).view(torch.float32), nearest)


def round_stochastic(x: Tensor, noise: Tensor | None) -> Tensor:
    """Compute floor(x), plus 1 with probability x - floor(x) (exact in float32)."""
    below = x.floor()
    return below + (required(noise) < x - below)


def philox_uniform(seed: int, start: int, count: int, device: torch.device | str = "cpu") -> Tensor:
    """Draw float32 [count], uniform in [0, 1) with 24 bits, for the elements start ... start + count - 1.

    Element i takes word i % 4 of the Philox block with counter i // 4 and key ``seed``.
    """
    first = start // 4
    blocks = torch.arange(first, (start + count + 3) // 4, dtype=torch.int64, device=device)
    words = philox_block(blocks, seed)
    flat = torch.stack(words, dim=-1).reshape(-1)[start - 4 * first :][:count]
    return (flat >> 8).to(torch.float32).mul_(2.0**-24)


def philox_block(counter: Tensor, seed: int) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Compute four 32-bit words for every 64-bit counter, each an int64 tensor of ``counter``'s shape."""
    c0, c1 = counter & _MASK, (counter >> 32) & _MASK
    c2, c3 = torch.zeros_like(c0), torch.zeros_like(c0)
    k0, k1 = seed & _MASK, (seed >> 32) & _MASK
    for _ in range(10):
        high0, low0 = _multiply(_MULTIPLIERS[0], c0)
        high1, low1 = _multiply(_MULTIPLIERS[1], c2)
        c0, c1, c2, c3 = high1 ^ c1 ^ k0, low1, high0 ^ c3 ^ k1, low0
        k0, k1 = (k0 + _WEYL[0]) & _MASK, (k1 + _WEYL[1]) & _MASK
    return c0, c1, c2, c3


def _multiply(constant: int, word: Tensor) -> tuple[Tensor, Tensor]:
    """Multiply 32 x 32 bits, high and low 32 bits, in 16-bit halves so that int64 cannot overflow."""
    low_half = word * (constant & 0xFFFF)
    high_half = word * (constant >> 16)
    total_low = low_half + ((high_half & 0xFFFF) << 16)
    high = (high_half >> 16) + (total_low >> 32)
    return high & _MASK, total_low & _MASK
