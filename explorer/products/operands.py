"""The two operands of a product, and the reference result."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.core.cuda import quantize_on_device
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.schemes import Scheme


@dataclass(frozen=True, eq=False)
class Operand:
    """One side of a product: ``values`` [rows, K] of any float dtype, and the quantized ``q``."""

    values: Tensor
    q: QuantizedTensor

    @classmethod
    def of(cls, values: Tensor, scheme: Scheme) -> Operand:
        """Quantize ``values`` by ``scheme``."""
        return cls(values, quantize(values, scheme))

    @property
    def scheme(self) -> Scheme:
        return self.q.scheme

    @property
    def rows(self) -> int:
        return self.values.shape[0]

    def requantized(self) -> Operand:
        """Quantize again on the GPU, as a layer does with X in every call, without waiting for the host."""
        packed, scales, _ = quantize_on_device(self.values, self.scheme)
        return Operand(self.values, QuantizedTensor(packed, scales, self.scheme, self.q.shape))

    def in_bfloat16(self) -> Operand:
        """Keep the codes, and convert the values to bfloat16, in which layers receive them."""
        return dataclasses.replace(self, values=self.values.to(torch.bfloat16))


@dataclass(frozen=True, eq=False)
class Operands:
    """X [M, K] and W [N, K] on one device, the product's dtype, a float32 bias [N] and an activation."""

    x: Operand
    w: Operand
    out: torch.dtype = torch.bfloat16
    bias: Tensor | None = None
    activation: str = "none"

    @classmethod
    def of(
        cls,
        x: Tensor,
        w: Tensor,
        schemes: tuple[Scheme, Scheme],
        out: torch.dtype = torch.bfloat16,
        bias: Tensor | None = None,
        activation: str = "none",
    ) -> Operands:
        """Quantize both sides, X by the first of ``schemes`` and W by the second; ``ValueError`` for shapes
        that do not fit together."""
        if x.dim() != 2 or w.dim() != 2 or x.shape[1] != w.shape[1] or not x.numel() or not w.numel():
            raise ValueError(
                f"expected X [M, K] and W [N, K] with M, N, K ≥ 1, got {list(x.shape)} and {list(w.shape)}"
            )
        if bias is not None and tuple(bias.shape) != (w.shape[0],):
            raise ValueError(f"expected a bias of {w.shape[0]} values, got {list(bias.shape)}")
        bias = None if bias is None else bias.to(torch.float32).contiguous()
        return cls(Operand.of(x, schemes[0]), Operand.of(w, schemes[1]), out, bias, activation)

    @property
    def shape(self) -> tuple[int, int, int]:
        """(M, N, K)."""
        return self.x.rows, self.w.rows, self.x.values.shape[1]

    @property
    def bytes_moved(self) -> int:
        """Least memory traffic in bytes: X and W as stored, and Y."""
        m, n, _ = self.shape
        return self.x.q.nbytes + self.w.q.nbytes + m * n * self.out.itemsize

    def as_served(self) -> Operands:
        """Keep the codes, and convert the values to the dtype that layers receive: bfloat16, or float32 for
        products in FP16 or float32. Quantization of X and baselines start from them."""
        if self.out != torch.bfloat16:
            return self
        return dataclasses.replace(self, x=self.x.in_bfloat16(), w=self.w.in_bfloat16())

    def unquantized_product(self) -> Tensor:
        """Compute X·Wᵀ before any quantization: float64 [M, N]."""
        return self.x.values.double() @ self.w.values.double().t()

    def exact(self, w: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """Compute in float64 the product of the dequantized operands before bias and activation, [M, N], and
        Σ|x·w|. ``w`` [N, K] replaces the dequantized W."""
        x, w = self.x.q.dequantize().double(), (self.w.q.dequantize() if w is None else w).double()
        return x @ w.t(), x.abs() @ w.abs().t()

    def finished(self, product: Tensor) -> Tensor:
        """Apply bias and activation in float64."""
        if self.bias is not None:
            product = product + self.bias.double()
        if self.activation == "none":
            return product
        approximate = "tanh" if self.activation == "gelu_tanh" else "none"
        return torch.nn.functional.gelu(product, approximate=approximate)


def reference(operands: Operands) -> Tensor:
    """Multiply the dequantized operands by torch, on any device, in float32; [M, N] in the product's
    dtype."""
    x, w = operands.x.q.dequantize(), operands.w.q.dequantize()
    return operands.finished((x @ w.t()).double()).to(operands.out)
