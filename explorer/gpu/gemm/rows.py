"""Operands as K-major rows of bytes: padding, alignment, 2-bit fields, bit counts."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def padded_rows(rows: Tensor, multiple: int = 16) -> Tensor:
    """Return uint8 [rows, bytes] with each row zero-padded to ``multiple`` bytes and aligned to 16; unchanged
    if already so."""
    if rows.dim() != 2 or rows.dtype != torch.uint8 or not rows.is_cuda:
        raise ValueError(f"expected CUDA uint8 [rows, bytes], got {rows.dtype} {list(rows.shape)}")
    left = -rows.shape[1] % multiple
    if left:
        return torch.nn.functional.pad(rows, (0, left))
    rows = rows.contiguous()
    return rows if rows.data_ptr() % 16 == 0 else rows.clone()


def padded_columns(values: Tensor, multiple: int) -> Tensor:
    """View [rows, columns] as rows of a multiple of ``multiple`` values, aligned to 16 bytes; the values
    behind the columns are readable but undefined. Unchanged if already so."""
    rows, columns = values.shape
    width = math.ceil(columns / multiple) * multiple
    held = values.untyped_storage().nbytes() // values.element_size() - values.storage_offset()
    in_rows = (rows == 1 or values.stride(0) == width) and (columns == 1 or values.stride(1) == 1)
    if in_rows and held >= rows * width and values.data_ptr() % 16 == 0:
        return values
    padded = values.new_zeros(rows, width)
    padded[:, :columns] = values
    return padded[:, :columns]


def padded_pair(x: Tensor, w: Tensor, multiple: int = 16) -> tuple[Tensor, Tensor]:
    """Pad X [M, bytes] and W [N, bytes] by ``padded_rows``; ``ValueError`` unless they share K and a
    device."""
    if x.shape[1] != w.shape[1]:
        raise ValueError(f"X and W must share K: rows of {x.shape[1]} and {w.shape[1]} bytes")
    if x.device != w.device:
        raise ValueError(f"X and W must lie on one device, got {x.device} and {w.device}")
    if not x.numel() or not w.numel():
        raise ValueError("M, N and K must be at least 1")
    return padded_rows(x, multiple), padded_rows(w, multiple)


def two_bit_rows(codes: Tensor) -> Tensor:
    """Pack codes 0 ... 3, uint8 [rows, k], as plain 2-bit fields, the first lowest; rows are zero-padded to
    16 bytes."""
    codes = torch.nn.functional.pad(codes, (0, -codes.shape[1] % 64))
    four = codes.view(codes.shape[0], -1, 4)
    return four[..., 0] | four[..., 1] << 2 | four[..., 2] << 4 | four[..., 3] << 6


def row_bits(packed: Tensor) -> Tensor:
    """Count the bits set in each row of bytes, int32 [rows]."""
    pairs = packed - (packed >> 1 & 0x55)
    fours = (pairs & 0x33) + (pairs >> 2 & 0x33)
    return ((fours + (fours >> 4)) & 15).sum(1, dtype=torch.int32)
