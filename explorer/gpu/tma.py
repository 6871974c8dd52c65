"""Tensor maps: the descriptors by which Hopper's TMA copies boxes of a matrix to shared memory.

A map is a parameter of the kernel (``const __grid_constant__ CUtensorMap``), as in CUTLASS and DeepGEMM. In
global memory it would be rewritten before each launch, and TMA may still use the descriptor that it read
earlier at that address: a product in a CUDA graph would then read another product's X.
"""

from __future__ import annotations

import functools

import torch

from explorer.gpu import driver
from explorer.gpu.runtime import context

KEPT = 4096
"""The number of maps kept for later calls; the least recently used is dropped first."""


def tensor_map(matrix: torch.Tensor, box_rows: int) -> bytes:
    """Return a tensor map, 128 bytes, for boxes of 128 bytes × ``box_rows`` of a contiguous uint8 matrix
    [rows, bytes] with the 128-byte swizzle.

    Elements outside read as zero. Rows are a multiple of 16 bytes. ``KernelError`` if the driver refuses.
    """
    rows, width = matrix.shape
    return encoded_map(matrix.device.index or 0, matrix.data_ptr(), rows, width, box_rows)


@functools.lru_cache(KEPT)
def encoded_map(index: int, address: int, rows: int, width: int, box_rows: int) -> bytes:
    """Return the ``tensor_map`` of a matrix at an address of a device."""
    with context(index):
        return driver.encode_map(driver.library(), address, rows, width, box_rows)
