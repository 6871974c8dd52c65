"""Launchers for packed weights: decoded in registers during the product, or widened to bytes beforehand."""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.gpu.gemm.epilogue import EPILOGUE_TYPES, Epilogue
from explorer.gpu.gemm.names import OperandType, macros
from explorer.gpu.runtime import Build, launch

X_SMEM_BYTES = 36 * 1024
"""X is staged in shared memory up to this size, which leaves room for four CTAs on a multiprocessor."""
X_TYPES = {
    torch.bfloat16: OperandType.BF16,
    torch.int8: OperandType.S8,
    torch.float8_e4m3fn: OperandType.E4M3,
}
"""The types of activations that ``gemm_dequant_in_registers`` takes."""


@dataclass(frozen=True)
class Weight:
    """The storage of W for ``gemm_dequant_in_registers``.

    Its C++ codec, bits per code, codes that a lane loads at once, the scale's C++ type, True if the
    accumulator of each group is scaled (else the weights, before the product), True with zero points, and the
    offset of stored plain 2-bit codes (0: other codes).
    """

    codec: str
    bits: int
    elements: int
    scale: str
    grouped: bool
    zeros: bool
    two_bit: int

    def build(self, x_type: OperandType, tiles: int, x_in_smem: bool, dtype: torch.dtype) -> Build:
        """The build for a type of activations, tiles of eight tokens, X staged in shared memory, and an
        output type."""
        return _dequant_build(self, x_type, tiles, x_in_smem, dtype)

    def builds(self, x_type: OperandType, dtype: torch.dtype) -> list[Build]:
        """All builds that a call may choose."""
        choices = ((1, True), (1, False), (2, False), (4, False))
        return [self.build(x_type, tiles, x_in_smem, dtype) for tiles, x_in_smem in choices]

    def x_smem_bytes(self, m: int, k: int, dtype: torch.dtype) -> int:
        """Bytes of X [m, k] in shared memory: int8 or bfloat16, with 16 bytes between rows against bank
        conflicts."""
        k_tile = 4 * self.elements
        return m * (math.ceil(k / k_tile) * k_tile * (1 if dtype == torch.int8 else 2) + 16)


@functools.cache
def _dequant_build(
    how: Weight, x_type: OperandType, tiles: int, x_in_smem: bool, dtype: torch.dtype
) -> Build:
    options = macros(
        CODEC=how.codec,
        WBITS=how.bits,
        ELEMENTS=how.elements,
        SCALE_TYPE=how.scale,
        GROUPED=how.grouped,
        ZEROS=how.zeros,
        X_TYPE=x_type,
        TILES=tiles,
        X_IN_SMEM=x_in_smem,
        TWO_BIT=how.two_bit,
        OUT=dtype,
    )
    return Build("gemm_dequant_in_registers.cu", options)


def gemm_dequant_in_registers(
    x: Tensor, w: Tensor, scales: Tensor, zeros: Tensor | None, how: Weight, group: int, epilogue: Epilogue
) -> Tensor:
    """Multiply X [M, K] (bfloat16, int8 or float8_e4m3fn) by packed codes W uint8 [N, bytes] with scales and
    zeros [N, groups].

    K is a multiple of 16 and W's rows are padded to 16 bytes: ``padded_rows``. ``group``: elements of K under
    one scale, a power of two. ``ValueError`` otherwise.
    """
    m, k = x.shape
    if x.dtype not in X_TYPES or k % 16 or w.shape[1] % 16 or x.device != w.device:
        raise ValueError(
            "expected X of bfloat16, int8 or float8_e4m3fn with K a multiple of 16, and W in rows of 16 bytes"
        )
    groups = scales.shape[1]
    if groups > 1 and group & (group - 1):
        raise ValueError(f"groups are powers of two along K, not {group}")
    shift = group.bit_length() - 1 if groups > 1 else 31
    tiles = 1 if m <= 8 else 2 if m <= 16 else 4
    x_smem = how.x_smem_bytes(m, k, x.dtype)
    x_in_smem = m <= 8 and x_smem <= X_SMEM_BYTES
    out = w.new_empty((m, w.shape[0]), dtype=epilogue.dtype)
    launch(
        how.build(X_TYPES[x.dtype], tiles, x_in_smem, epilogue.dtype),
        "gemm_dequant_in_registers",
        w.device,
        (math.ceil(w.shape[0] / 16), math.ceil(m / (8 * tiles))),
        128,
        "PPPPiiii" + EPILOGUE_TYPES,
        (x.contiguous(), w, scales, zeros, k, w.shape[1], shift, groups, *epilogue.arguments(out)),
        x_smem if x_in_smem else 0,
    )
    return out


@functools.cache
def widen_build(codec: str, bits: int, two_bit: int, to_e4m3: bool, scaled: bool = False) -> Build:
    """The build of widen.cu."""
    options = macros(CODEC=codec, WBITS=bits, TWO_BIT=two_bit, TO_E4M3=to_e4m3, SCALED=scaled)
    return Build("widen.cu", options)


def widen(
    packed: Tensor,
    codec: str,
    bits: int,
    two_bit: int = 0,
    to_e4m3: bool = False,
    ratios: Tensor | None = None,
    group: int = 32,
) -> Tensor:
    """Widen 4- or 2-bit codes uint8 [rows, bytes] (a multiple of 16 or 2) to int8 or E4M3 bytes, uint8 [rows,
    elements].

    With ``ratios``, float32 [rows, groups], each code is multiplied by that of its group of ``group``
    elements (a power of two, at least 32) and rounded to nearest, ties to even. int8 products are at most 127
    in magnitude; E4M3 saturates. ``ValueError`` for other shapes.
    """
    if bits not in (2, 4):
        raise ValueError(f"expected codes of 4 or 2 bits, not {bits}")
    unit = 32 if bits == 4 else 8
    if packed.shape[1] * 8 // bits % unit or packed.data_ptr() % 16:
        raise ValueError(f"expected aligned rows of whole units of {unit} codes of {bits} bits")
    if group < 32 or group & (group - 1):
        raise ValueError(f"groups are powers of two of at least 32 elements, not {group}")
    out = packed.new_empty((packed.shape[0], packed.shape[1] * 8 // bits))
    if ratios is not None and (
        ratios.dtype != torch.float32
        or ratios.dim() != 2
        or ratios.shape[0] != out.shape[0]
        or ratios.shape[1] != max(1, math.ceil(out.shape[1] / group))
        or ratios.device != packed.device
    ):
        raise ValueError(
            f"expected ratios float32 [{out.shape[0]}, groups of {group} of {out.shape[1]}] on "
            f"{packed.device}, got {ratios.dtype} {list(ratios.shape)} on {ratios.device}"
        )
    rows, units = out.shape[0], out.shape[1] // unit
    if not out.numel():
        return out
    launch(
        widen_build(codec, bits, two_bit, to_e4m3, ratios is not None),
        "widen",
        packed.device,
        (math.ceil(units / 256), min(rows, 65535)),
        256,
        "PPPiiii",
        (
            packed.contiguous(),
            out,
            None if ratios is None else ratios.contiguous(),
            rows,
            units,
            1 if ratios is None else ratios.shape[1],
            (group // unit).bit_length() - 1,
        ),
    )
    return out
