"""A tensor of any rank and dtype as a float32 matrix."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.formats import float_format

MATRIX_RULE = (
    "a scalar is 1×1, a vector one row; of three axes the first two become rows (tokens, experts); "
    "of four or more the first stays rows and the rest become columns (convolutions)"
)


@dataclass(frozen=True, eq=False)
class Matrix:
    """A tensor ready to be quantized: float32 [rows, cols], and its origin.

    ``shape`` is the shape in the file; ``cut`` is True if only its first rows were read.
    """

    values: Tensor
    name: str
    origin: str
    shape: tuple[int, ...]
    dtype: str
    cut: bool = False

    @property
    def description(self) -> str:
        """One line: origin, name, shape and dtype."""
        rows, columns = self.values.shape
        shown, stored = f"{rows}×{columns}", "×".join(map(str, self.shape)) or "a scalar"
        if self.cut:
            shown += f" (first rows of {stored})"
        elif self.shape != (rows, columns):
            shown += f" (from {stored})"
        return " · ".join(part for part in (self.origin, self.name, shown, self.dtype) if part)


def matrix_shape(shape: tuple[int, ...]) -> tuple[int, int]:
    """The two axes that ``MATRIX_RULE`` makes of ``shape``."""
    if len(shape) < 2:
        return 1, math.prod(shape)
    if len(shape) == 3:
        return shape[0] * shape[1], shape[2]
    return shape[0], math.prod(shape[1:])


def as_matrix(x: Tensor) -> Tensor:
    """Reshape ``x`` of any rank to [rows, cols] by ``MATRIX_RULE``."""
    return x.reshape(matrix_shape(tuple(x.shape)))


def to_float32(tensor: Tensor) -> Tensor:
    """Convert a real tensor of any dtype to float32; packed FP4 is unpacked, which doubles the last axis.

    ``ValueError`` for finite float64 values beyond float32, with the place of the first by ``MATRIX_RULE``.
    """
    if tensor.dtype is getattr(torch, "float4_e2m1fn_x2", None):  # torch 2.8 and later
        return unpack_fp4(tensor)
    values = tensor.to(torch.float32)
    if tensor.dtype == torch.float64:
        beyond = tensor.isfinite() & ~values.isfinite()
        if count := int(beyond.sum()):
            first = int(beyond.reshape(-1).to(torch.uint8).argmax())
            row, column = divmod(first, matrix_shape(tuple(tensor.shape))[1])
            raise ValueError(
                f"{count} of {tensor.numel()} float64 values are beyond float32 (largest value 3.4e38), the "
                f"first at row {row}, column {column}; scale the tensor down first"
            )
    return values


def unpack_fp4(tensor: Tensor) -> Tensor:
    """Decode E2M1 codes, two a byte, the first in the low nibble, to float32; the last axis doubles."""
    data = tensor.view(torch.uint8)
    codes = torch.stack((data & 15, data >> 4), dim=-1).flatten(-2)
    return float_format("float4_e2m1fn").decode(codes)
