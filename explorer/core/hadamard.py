"""Random Hadamard matrices: the rotation of a layer's channels, or of tokens.

A Hadamard matrix with random signs spreads every outlier over all channels of its block, and costs n·log n.
(X·Q)(W·Q)ᵀ equals X·Wᵀ. S. Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs",
arXiv 2404.00456; A. Tseng et al., "QuIP#", arXiv 2402.04396. Orders that are no power of two come from
R. Paley's first construction (1933): the quadratic residues of a prime p ≡ 3 (mod 4) give order p + 1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import ClassVar

import torch
from torch import Tensor

from explorer.core.quantize import QuantizedTensor


@dataclass(frozen=True, eq=False)
class Rotation:
    """Rotation of channels: signs ``signs`` [K] of ±1, then Paley ⊗ Sylvester in blocks of ``order``
    channels.

    ``paley_order`` is 1 or the order of a Paley matrix, ``sylvester_order`` a power of two.
    """

    signs: Tensor
    paley_order: int
    sylvester_order: int
    names: ClassVar[tuple[str, ...]] = ("hadamard_signs", "hadamard_order")

    @property
    def bits(self) -> int:
        """Stored bits: one for each sign."""
        return self.signs.numel()

    @property
    def order(self) -> int:
        """Number of channels that are mixed with each other."""
        return self.paley_order * self.sylvester_order

    def inputs(self, x: Tensor) -> Tensor:
        return self._hadamard(x * self.signs)

    def weight(self, w: Tensor) -> Tensor:
        return self.inputs(w)

    def undo(self, w: Tensor) -> Tensor:
        return self._hadamard(w, inverse=True) * self.signs

    def tensors(self) -> dict[str, Tensor]:
        orders = torch.tensor([self.paley_order, self.sylvester_order])
        return {"hadamard_signs": self.signs, "hadamard_order": orders}

    @classmethod
    def from_tensors(cls, tensors: Mapping[str, Tensor], q: QuantizedTensor) -> Rotation:
        paley, sylvester = tensors["hadamard_order"].tolist()
        return cls(tensors["hadamard_signs"], paley, sylvester)

    def _hadamard(self, x: Tensor, inverse: bool = False) -> Tensor:
        """Multiply ``x`` [rows, K] by the normalised matrix, or its transpose, block by block."""
        rows, k = x.shape
        shape = (rows, k // self.order, self.paley_order, self.sylvester_order)
        blocks, half = x.reshape(shape), 1
        while half < self.sylvester_order:  # Sylvester's matrix is symmetric: it is its own transpose
            pairs = blocks.reshape(*shape[:3], -1, 2, half)
            first, second = pairs[..., 0, :], pairs[..., 1, :]
            blocks = torch.stack([first + second, first - second], -2).reshape(shape)
            half *= 2
        if self.paley_order > 1:
            paley = paley_matrix(self.paley_order).to(x)
            blocks = torch.einsum("rbid,ij->rbjd", blocks, paley.t() if inverse else paley)
        return blocks.reshape(rows, k) / math.sqrt(self.order)


def find_rotation(channels: int, seed: int = 0, device: torch.device | str = "cpu") -> Rotation:
    """Draw a random rotation of ``channels``. It mixes all channels if a Hadamard matrix of that order is
    available here, otherwise blocks of the greatest power of two that divides their number."""
    generator = torch.Generator().manual_seed(seed)
    signs = (torch.randint(0, 2, (channels,), generator=generator) * 2 - 1).float().to(device)
    odd, twos = channels, 1
    while odd % 2 == 0:
        odd, twos = odd // 2, twos * 2
    order = odd * 4
    while odd > 1 and order <= odd * twos:
        if _is_paley_order(order):
            return Rotation(signs, order, odd * twos // order)
        order *= 2
    return Rotation(signs, 1, twos)


@cache
def paley_matrix(order: int) -> Tensor:
    """Build Paley's first construction: float64 [order, order] of ±1 with orthogonal rows, order = p + 1."""
    p = order - 1
    if not _is_paley_order(order):
        raise ValueError(f"no Paley matrix of order {order}: {p} is no prime that leaves 3 when divided by 4")
    squares = {i * i % p for i in range(1, p)}
    residue = torch.tensor([0] + [1 if i in squares else -1 for i in range(1, p)], dtype=torch.float64)
    index = torch.arange(p)
    skew = torch.zeros(order, order, dtype=torch.float64)
    skew[0, 1:], skew[1:, 0] = 1, -1
    skew[1:, 1:] = residue[(index[:, None] - index[None]) % p]
    return skew + torch.eye(order, dtype=torch.float64)


def _is_paley_order(order: int) -> bool:
    """True if order - 1 is a prime congruent to 3 modulo 4."""
    p = order - 1
    return order % 4 == 0 and p > 1 and all(p % d for d in range(2, math.isqrt(p) + 1))
