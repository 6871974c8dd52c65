"""Launchers of the kernels on ordinary cores: the reference for any codes, dp4a and popc, additions for
ternary."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.gpu.gemm.epilogue import EPILOGUE_TYPES, Epilogue
from explorer.gpu.gemm.names import WordOp, macros
from explorer.gpu.gemm.rows import padded_pair
from explorer.gpu.runtime import Build, launch

CODES_TYPES = "PPPiiii"
"""The letters of ``Codes.arguments`` (``driver.LETTERS``)."""


@dataclass(frozen=True, eq=False)
class Codes:
    """A matrix [rows, k] of packed codes for the reference kernels.

    uint8 [rows, bytes], float32 scales and int8 zero points on a grid of blocks of height × width (None:
    unscaled), a C++ codec type, and the number of base-three digits in a byte (0: plain bits).
    """

    packed: Tensor
    scales: Tensor | None
    zero_points: Tensor | None
    height: int
    width: int
    grid_columns: int
    codec: str
    per_byte: int

    def arguments(self) -> tuple[object, ...]:
        """The kernels' OPERAND_PARAMETERS."""
        blocks = (self.height, self.width, self.grid_columns)
        return (self.packed, self.scales, self.zero_points, self.packed.shape[1], *blocks)


@functools.cache
def reference_build(
    x_codec: str, w_codec: str, x_per_byte: int, w_per_byte: int, dtype: torch.dtype, tiled: bool
) -> Build:
    """The build of gemm_naive.cu or gemm_tiled.cu for two codecs and an output type."""
    options = macros(
        X_CODEC=x_codec, W_CODEC=w_codec, X_PER_BYTE=x_per_byte, W_PER_BYTE=w_per_byte, OUT=dtype
    )
    return Build("gemm_tiled.cu" if tiled else "gemm_naive.cu", options)


def gemm_reference(x: Codes, w: Codes, k: int, epilogue: Epilogue, tiled: bool) -> Tensor:
    """Multiply any codes, decoded on the fly: one output per thread, or tiles in shared memory."""
    m, n = x.packed.shape[0], w.packed.shape[0]
    if not m or not n or not k:
        raise ValueError("M, N and K must be at least 1")
    out = x.packed.new_empty((m, n), dtype=epilogue.dtype)
    name, columns, rows = ("gemm_tiled", 64, 64) if tiled else ("gemm_naive", 32, 8)
    launch(
        reference_build(x.codec, w.codec, x.per_byte, w.per_byte, epilogue.dtype, tiled),
        name,
        out.device,
        (math.ceil(n / columns), math.ceil(m / rows)),
        256,
        2 * CODES_TYPES + "i" + EPILOGUE_TYPES,
        (*x.arguments(), *w.arguments(), k, *epilogue.arguments(out)),
    )
    return out


@functools.cache
def simt32_build(op: WordOp, dtype: torch.dtype) -> Build:
    """The build of gemm_simt32.cu for an operation and an output type."""
    return Build("gemm_simt32.cu", macros(OP=op, OUT=dtype))


def gemm_simt32(x: Tensor, w: Tensor, op: WordOp, epilogue: Epilogue) -> Tensor:
    """Multiply rows of bytes, uint8 [M, bytes] and [N, bytes], 32 bits at a time by dp4a (int8) or popc
    (bits)."""
    x, w = padded_pair(x, w)
    out = x.new_empty((x.shape[0], w.shape[0]), dtype=epilogue.dtype)
    launch(
        simt32_build(op, epilogue.dtype),
        "gemm_simt32",
        x.device,
        (math.ceil(out.shape[1] / 128), math.ceil(out.shape[0] / 128)),
        256,
        "PPi" + EPILOGUE_TYPES,
        (x, w, x.shape[1] // 4, *epilogue.arguments(out)),
    )
    return out


@functools.cache
def addsub_build(dtype: torch.dtype) -> Build:
    """The build of gemm_addsub.cu for an output type."""
    return Build("gemm_addsub.cu", macros(OUT=dtype))


def gemm_addsub(x: Tensor, w: Tensor, epilogue: Epilogue) -> Tensor:
    """Multiply int8 rows [M, K] (as uint8) by plain 2-bit ternary codes [N, K/4], K a multiple of 16."""
    if x.shape[1] != w.shape[1] * 4 or x.shape[1] % 16:
        raise ValueError(
            f"expected K a multiple of 16 and W of K/4 bytes a row, got rows of {x.shape[1]} and {w.shape[1]}"
        )
    out = x.new_empty((x.shape[0], w.shape[0]), dtype=epilogue.dtype)
    launch(
        addsub_build(epilogue.dtype),
        "gemm_addsub",
        x.device,
        (math.ceil(out.shape[1] / 32), math.ceil(out.shape[0] / 8)),
        256,
        "PPi" + EPILOGUE_TYPES,
        (x.contiguous(), w.contiguous(), x.shape[1] // 16, *epilogue.arguments(out)),
    )
    return out
