"""Launchers of the tensor-core kernels: wgmma (sm_90a), mma.sync (sm_80 on), block-scaled mma.sync (sm_120a).

Operands are K-major rows of bytes, uint8 [M, bytes] and [N, bytes]; their type is a name of ``OperandType``.
"""

from __future__ import annotations

import functools
import math
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.gpu.gemm.epilogue import EPILOGUE_TYPES, Epilogue
from explorer.gpu.gemm.names import BlockScaledFormat, OperandType, ScaleK, macros
from explorer.gpu.gemm.rows import padded_pair
from explorer.gpu.runtime import Build, launch, multiprocessors
from explorer.gpu.tma import tensor_map

TILE_BYTES = 128
"""Of K, in a row of a k-tile."""
TILE_ROWS = 128
MMA_STAGES = 3


@dataclass(frozen=True)
class WgmmaTile:
    """Tile width (128 or 256 columns), CTAs in a cluster, and scaling along K of one compilation of
    gemm_wgmma.cu."""

    columns: int = 256
    cluster: int = 2
    scale_k: ScaleK = ScaleK.NONE

    @property
    def stages(self) -> int:
        """k-tiles that fit shared memory beside the epilogue's staging."""
        if self.scale_k is not ScaleK.NONE:
            return 6
        return {256: 4, 128: 5}[self.columns]

    @property
    def shared_bytes(self) -> int:
        """Alignment, the stages with their scales, barriers, and eight warps' staging of 16 rows."""
        promote = self.scale_k is not ScaleK.NONE
        stage = (TILE_ROWS + self.columns) * TILE_BYTES + (1024 if promote else 0)
        return 1024 + self.stages * stage + 128 + 8 * 16 * (32 if promote else 64) * 4


@functools.cache
def wgmma_build(
    kind: str, dtype: torch.dtype, columns: int = 256, cluster: int = 2, scale_k: ScaleK = ScaleK.NONE
) -> Build:
    """The compilation of gemm_wgmma.cu for an operand type, an output, a tile width, a cluster size and
    scaling along K."""
    tile = WgmmaTile(columns, cluster, scale_k)
    options = macros(
        TYPE=OperandType(kind),
        BN=columns,
        CLUSTER=cluster,
        SCALE_K=scale_k,
        OUT=dtype,
        STAGES=tile.stages,
    )
    return Build("gemm_wgmma.cu", options)


def gemm_wgmma(
    x: Tensor,
    w: Tensor,
    kind: str,
    epilogue: Epilogue,
    scale_k: ScaleK = ScaleK.NONE,
    x_scale: Tensor | None = None,
    w_scale: Tensor | None = None,
    columns: int | None = None,
    cluster: int | None = None,
) -> Tensor:
    """Hopper's asynchronous tensor cores. ``ScaleK.BLOCK`` and ``COLUMN`` scale the accumulator of every 128
    bytes of K in float32: x_scale float32 [⌈K/128⌉, M] with w_scale [⌈N/128⌉, ⌈K/128⌉] (BLOCK), or w_scale
    [⌈K/128⌉, N] alone. Tile width and cluster size are chosen by shape where they are not given."""
    x, w = padded_pair(x, w)
    m, n, device = x.shape[0], w.shape[0], x.device
    k_tiles = math.ceil(x.shape[1] / TILE_BYTES)
    x_scale, w_scale = scales_along_k(scale_k, x_scale, w_scale, (m, n, k_tiles))
    tile = _wgmma_tile(m, n, device, scale_k, columns, cluster)
    tiles_m = math.ceil(math.ceil(m / TILE_ROWS) / tile.cluster) * tile.cluster
    tiles_n = math.ceil(n / tile.columns)
    grid = min(multiprocessors(device) // tile.cluster * tile.cluster, tiles_m * tiles_n)
    maps = tensor_map(x, TILE_ROWS), tensor_map(w, tile.columns // tile.cluster)
    out = x.new_empty((m, n), dtype=epilogue.dtype)
    launch(
        wgmma_build(kind, epilogue.dtype, tile.columns, tile.cluster, scale_k),
        "gemm_wgmma",
        device,
        (grid,),
        384,
        "PPPPiii" + EPILOGUE_TYPES,
        (*maps, x_scale, w_scale, k_tiles, tiles_m, tiles_n, *epilogue.arguments(out)),
        tile.shared_bytes,
    )
    return out


def _wgmma_tile(
    m: int, n: int, device: torch.device, scale_k: ScaleK, columns: int | None, cluster: int | None
) -> WgmmaTile:
    promote = scale_k is not ScaleK.NONE
    if columns is None:
        # 256 columns reuse X more; 128 keep every multiprocessor busy where the output has few tiles.
        wide_tiles = math.ceil(m / TILE_ROWS) * math.ceil(n / 256)
        columns = 128 if promote or wide_tiles < multiprocessors(device) else 256
    if cluster is None:
        # With promotion clusters are slower: CTAs stall on each other's barriers.
        cluster = 2 if m > TILE_ROWS and not promote else 1
    return WgmmaTile(columns, cluster, scale_k)


def scales_along_k(
    scale_k: ScaleK, x_scale: Tensor | None, w_scale: Tensor | None, sizes: tuple[int, int, int]
) -> tuple[Tensor | None, Tensor | None]:
    """Both scales checked and with rows padded for bulk copies: x_scale to 256 values, w_scale to 4 or
    128."""
    m, n, k_tiles = sizes
    if scale_k is ScaleK.BLOCK:
        x_scale = _padded_scale("x_scale", x_scale, (k_tiles, m), 256)
        return x_scale, _padded_scale("w_scale", w_scale, (math.ceil(n / 128), k_tiles), 4)
    if scale_k is ScaleK.COLUMN:
        return None, _padded_scale("w_scale", w_scale, (k_tiles, n), 128)
    return x_scale, w_scale


def _padded_scale(name: str, scale: Tensor | None, shape: tuple[int, int], multiple: int) -> Tensor:
    if scale is None:
        raise ValueError(f"{name} is needed: float32 {list(shape)}")
    if tuple(scale.shape) != shape or scale.dtype != torch.float32 or not scale.is_contiguous():
        raise ValueError(
            f"{name} must be contiguous float32 {list(shape)}, got {scale.dtype} {list(scale.shape)}"
        )
    left = -scale.shape[1] % multiple
    return torch.nn.functional.pad(scale, (0, left)) if left else scale


@functools.cache
def mma_build(kind: str, dtype: torch.dtype) -> Build:
    """The compilation of gemm_mma.cu for an operand type and an output."""
    return Build("gemm_mma.cu", macros(TYPE=OperandType(kind), OUT=dtype, STAGES=MMA_STAGES))


def gemm_mma(x: Tensor, w: Tensor, kind: str, epilogue: Epilogue) -> Tensor:
    """mma.sync tensor cores."""
    x, w = padded_pair(x, w)
    out = x.new_empty((x.shape[0], w.shape[0]), dtype=epilogue.dtype)
    tiles_m, tiles_n = math.ceil(out.shape[0] / 128), math.ceil(out.shape[1] / 128)
    launch(
        mma_build(kind, epilogue.dtype),
        "gemm_mma",
        x.device,
        (tiles_m * tiles_n,),
        256,
        "PPiii" + EPILOGUE_TYPES,
        (x, w, x.shape[1], tiles_m, tiles_n, *epilogue.arguments(out)),
        MMA_STAGES * 2 * TILE_ROWS * TILE_BYTES,
    )
    return out


@functools.cache
def block_scaled_build(element: str, dtype: torch.dtype) -> Build:
    """The compilation of gemm_block_scaled.cu for a ``BlockScaledFormat`` and an output; for sm_120a
    alone."""
    return Build("gemm_block_scaled.cu", macros(ELEMENT=BlockScaledFormat(element), OUT=dtype))


def gemm_block_scaled(
    x: Tensor, w: Tensor, x_scales: Tensor, w_scales: Tensor, element: str, epilogue: Epilogue
) -> Tensor:
    """sm_120a's block-scaled instruction on rows of elements with one scale byte a block, uint8 [rows,
    blocks]."""
    x, w = padded_pair(x, w, 32)
    x_blocks, w_blocks = x_scales.shape[1], w_scales.shape[1]
    if x_scales.dtype != torch.uint8 or w_scales.dtype != torch.uint8 or x_blocks != w_blocks:
        raise ValueError(
            "expected uint8 scales [M, blocks] and [N, blocks] with the same number of blocks, "
            f"got {x_scales.dtype} {list(x_scales.shape)} and {w_scales.dtype} {list(w_scales.shape)}"
        )
    out = x.new_empty((x.shape[0], w.shape[0]), dtype=epilogue.dtype)
    scales = (x_scales.contiguous(), w_scales.contiguous())
    launch(
        block_scaled_build(element, epilogue.dtype),
        "gemm_block_scaled",
        x.device,
        (math.ceil(out.shape[1] / 128), math.ceil(out.shape[0] / 16)),
        128,
        "PPPPii" + EPILOGUE_TYPES,
        (x, w, *scales, x.shape[1], x_blocks, *epilogue.arguments(out)),
    )
    return out
