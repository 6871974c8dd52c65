"""The epilogue of a product (epilogue.cuh): integer terms, scales, bias, activation, the output's type."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.gpu.gemm.names import Activation

EPILOGUE_TYPES = "PPPPPPPPiiiiii"
"""The letters of ``Epilogue.arguments`` (``driver.LETTERS``)."""


@dataclass(frozen=True, eq=False)
class Epilogue:
    """Terms applied to the accumulator.

    ``multiply`` · accumulator - row_a ⊗ col_a - row_b ⊗ col_b for integer accumulators (int32 tensors [M] and
    [N]; a missing col_a or row_b is one), then float32 scales ([M] or one, [N] or one), bias float32 [N], and
    an activation: "none", "gelu" or "gelu_tanh".
    """

    dtype: torch.dtype = torch.bfloat16
    row_scale: Tensor | None = None
    col_scale: Tensor | None = None
    bias: Tensor | None = None
    activation: str = "none"
    row_a: Tensor | None = None
    col_a: Tensor | None = None
    row_b: Tensor | None = None
    col_b: Tensor | None = None
    multiply: int = 1

    @property
    def has_vectors(self) -> bool:
        """True if a term has an entry per row or column."""
        vectors = (self.row_scale, self.col_scale, self.bias, self.row_a, self.col_a, self.row_b, self.col_b)
        return any(vector is not None for vector in vectors)

    def arguments(self, out: Tensor) -> tuple[object, ...]:
        """The kernels' EPILOGUE_PARAMETERS; ``ValueError`` if a vector does not fit the output [M, N]."""
        m, n = out.shape
        for name, size in (("row_scale", m), ("col_scale", n), ("bias", n)):
            _check_vector(name, getattr(self, name), size, torch.float32, name != "bias")
        for name, size in (("row_a", m), ("col_a", n), ("row_b", m), ("col_b", n)):
            _check_vector(name, getattr(self, name), size, torch.int32, False)
        bias, col_a, col_b = (_padded_to_eight(v) for v in (self.bias, self.col_a, self.col_b))
        col_scale = _padded_to_eight(self.col_scale) if _stride(self.col_scale) else self.col_scale
        vectors = (self.row_scale, col_scale, bias, self.row_a, col_a, self.row_b, col_b)
        strides = (_stride(self.row_scale), _stride(self.col_scale))
        return (out, *vectors, *strides, self.multiply, int(self._activation), m, n)

    def addresses(self, out: Tensor) -> list[int]:
        """The ``arguments`` with tensors replaced by their addresses."""
        every = self.arguments(out)
        return [a.data_ptr() if isinstance(a, Tensor) else int(a or 0) for a in every]  # type: ignore[call-overload]

    @property
    def _activation(self) -> Activation:
        try:
            return Activation[self.activation.upper()]
        except KeyError:
            names = ", ".join(a.name.lower() for a in Activation)
            raise ValueError(f"no activation {self.activation!r}; there are {names}") from None


def _check_vector(name: str, v: Tensor | None, size: int, dtype: torch.dtype, one: bool) -> None:
    if v is None:
        return
    if v.dtype != dtype or not v.is_contiguous() or v.numel() not in ((1, size) if one else (size,)):
        expected = f"{name} must be contiguous {dtype} of {size} values{' or one' if one else ''}"
        raise ValueError(f"{expected}, got {list(v.shape)} {v.dtype}")
    if v.data_ptr() % 16:
        raise ValueError(
            f"{name} must start at a multiple of 16 bytes: the kernels load four values at a time"
        )


def _padded_to_eight(v: Tensor | None) -> Tensor | None:
    """Pad a vector over columns to a multiple of eight, which the kernels load at once; unchanged if it is
    one."""
    return v if v is None or v.numel() % 8 == 0 else torch.nn.functional.pad(v, (0, -v.numel() % 8))


def _stride(scale: Tensor | None) -> int:
    return 0 if scale is None or scale.numel() == 1 else 1
