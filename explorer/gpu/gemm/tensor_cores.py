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
from explorer.gpu.gemm.names import BlockScaledFormat, OperandType, ProductSide, ScaleK, macros
from explorer.gpu.gemm.rows import padded_columns, padded_pair
from explorer.gpu.runtime import Build, launch, multiprocessors
from explorer.gpu.tma import tensor_map

TILE_BYTES = 128
"""Bytes of K in a row of a k-tile."""
TILE_ROWS = 128
SCALE_COLUMNS = 128
"""Rows of W (columns of the output) under one of its block scales."""
FEW_ROWS = 2048
"""Rows of X up to which CTAs of ``gemm_wgmma`` share nothing: on an H200 waiting for each other costs 1 to 3
% at N = K = 4,096 and 8,192; from 4,096 rows on there is no difference."""
MMA_STAGES = 3


MOST_GROUPS = 256
"""The most groups of a grouped product: their tiles are counted in shared memory."""
MOST_SHARED_BYTES = 232448
"""Bytes of dynamic shared memory available to one CTA on Hopper."""
CONSUMER_WARPS, BARRIER_BYTES, MOST_STAGES = 8, 128, 6


@dataclass(frozen=True)
class WgmmaTile:
    """One build of gemm_wgmma.cu.

    Rows (64, 128, 256) and columns (128, 256) of a CTA's tile, CTAs in a cluster and the side with the shared
    tile, scaling along K, and True if rows of X belong to groups.
    """

    rows: int = 128
    columns: int = 256
    cluster: int = 2
    shared: ProductSide = ProductSide.W
    scale_k: ScaleK = ScaleK.NONE
    grouped: bool = False

    @property
    def _fixed_bytes(self) -> int:
        """Bytes for alignment, barriers, each consumer warp's staging of 16 rows, and the groups' tiles."""
        staging = CONSUMER_WARPS * 16 * (64 if self.scale_k is ScaleK.NONE else 32) * 4
        return 1024 + BARRIER_BYTES + staging + (4 * (MOST_GROUPS + 1) if self.grouped else 0)

    @property
    def _stage_bytes(self) -> int:
        """Bytes of a k-tile of both sides and its scales."""
        of_w = 0 if self.scale_k is ScaleK.NONE else self.columns // 32
        if self.scale_k is ScaleK.COLUMN:
            of_w = 128
        scales = of_w + (self.rows + 4 if of_w else 0)
        return (self.rows + self.columns) * TILE_BYTES + 4 * scales

    @property
    def stages(self) -> int:
        """The number of k-tiles that fit shared memory."""
        return min(MOST_STAGES, (MOST_SHARED_BYTES - self._fixed_bytes) // self._stage_bytes)

    @property
    def shared_bytes(self) -> int:
        """Bytes of dynamic shared memory."""
        return self._fixed_bytes + self.stages * self._stage_bytes

    def tiles(self, m: int, n: int) -> tuple[int, int]:
        """The numbers of tiles along M and N of an output, filled up to whole clusters."""
        clusters = (1, self.cluster) if self.shared is ProductSide.X else (self.cluster, 1)
        return (
            math.ceil(m / (self.rows * clusters[0])) * clusters[0],
            math.ceil(n / (self.columns * clusters[1])) * clusters[1],
        )

    def maps(self, x: Tensor, w: Tensor) -> tuple[bytes, bytes]:
        """The tensor maps of both sides; a CTA loads its part of the shared side."""
        parts = (self.cluster, 1) if self.shared is ProductSide.X else (1, self.cluster)
        return tensor_map(x, self.x_rows(x.shape[0]) // parts[0]), tensor_map(w, self.columns // parts[1])

    def x_rows(self, m: int) -> int:
        """The number of rows of X (of ``m``) that a CTA waits for; a cluster that shares them loads whole
        tiles."""
        shares = self.cluster > 1 and self.shared is ProductSide.X
        return self.rows if shares else min(self.rows, m)


@functools.cache
def wgmma_build(kind: str, dtype: torch.dtype, tile: WgmmaTile) -> Build:
    """The build of gemm_wgmma.cu for an operand type, an output type and a tile."""
    options = macros(
        TYPE=OperandType(kind),
        ROWS=tile.rows,
        BN=tile.columns,
        CLUSTER=tile.cluster,
        SHARED=tile.shared,
        SCALE_K=tile.scale_k,
        GROUPED=tile.grouped,
        OUT=dtype,
        STAGES=tile.stages,
    )
    return Build("gemm_wgmma.cu", options)


def wgmma_tiles(scale_k: ScaleK = ScaleK.NONE) -> tuple[WgmmaTile, ...]:
    """All tiles that ``gemm_wgmma`` chooses from."""
    # With promotion clusters are slower: CTAs stall on each other's barriers.
    if scale_k is not ScaleK.NONE:
        return tuple(WgmmaTile(rows, 128, 1, ProductSide.W, scale_k) for rows in (128, 256))
    return tuple(WgmmaTile(128, columns, cluster) for columns in (256, 128) for cluster in (1, 2))


def gemm_wgmma(
    x: Tensor,
    w: Tensor,
    kind: str,
    epilogue: Epilogue,
    scale_k: ScaleK = ScaleK.NONE,
    x_scale: Tensor | None = None,
    w_scale: Tensor | None = None,
    tile: WgmmaTile | None = None,
) -> Tensor:
    """Multiply on Hopper's asynchronous tensor cores.

    ``ScaleK.BLOCK`` and ``COLUMN`` scale the accumulator of every 128 bytes of K in float32: x_scale float32
    [⌈K/128⌉, M] with w_scale [⌈N/128⌉, ⌈K/128⌉] (BLOCK), or w_scale [⌈K/128⌉, N] alone. A tile that is not
    given is chosen by shape.
    """
    x, w = padded_pair(x, w)
    m, n = x.shape[0], w.shape[0]
    tile = _checked(tile or _wgmma_tile(m, n, x.device, scale_k), scale_k, grouped=False)
    x_scale, w_scale = scales_along_k(scale_k, x_scale, w_scale, (m, n, math.ceil(x.shape[1] / TILE_BYTES)))
    return _launch(tile, x, w, kind, epilogue, (x_scale, w_scale), n)


def _launch(
    tile: WgmmaTile,
    x: Tensor,
    w: Tensor,
    kind: str,
    epilogue: Epilogue,
    scales: tuple[Tensor | None, Tensor | None],
    n: int,
    groups: tuple[Tensor | None, int, int] = (None, 0, 0),
) -> Tensor:
    """Launch on rows of X and W and their scales in the kernel's layout; ``groups``: ends, their number,
    capacity."""
    m, device = x.shape[0], x.device
    tiles_m, tiles_n = tile.tiles(m, n)
    most = (tiles_m + groups[1]) * tiles_n  # a group's last tile may be part of one
    grid = min(multiprocessors(device) // tile.cluster * tile.cluster, most)
    out = x.new_empty((m, n), dtype=epilogue.dtype)
    launch(
        wgmma_build(kind, epilogue.dtype, tile),
        "gemm_wgmma",
        device,
        (grid,),
        384,
        "MMPPPiiiiii" + EPILOGUE_TYPES,
        (
            *tile.maps(x, w),
            *scales,
            *groups,
            math.ceil(x.shape[1] / TILE_BYTES),
            tile.x_rows(m),
            tiles_m,
            tiles_n,
            *epilogue.arguments(out),
        ),
        tile.shared_bytes,
    )
    return out


def _checked(tile: WgmmaTile, scale_k: ScaleK, grouped: bool) -> WgmmaTile:
    """Return the tile; ``ValueError`` if it belongs to another product, or CTAs of a cluster could wait for
    each other forever."""
    if tile.scale_k is not scale_k or tile.grouped is not grouped:
        kind = f"{'grouped' if grouped else 'plain'} products with {scale_k} scales along K"
        raise ValueError(f"{tile} is not for {kind}")
    if grouped and tile.cluster > 1 and tile.shared is not ProductSide.X:
        raise ValueError("in grouped products the CTAs of a cluster share X: a group may have one tile")
    return tile


def _waves(tile: WgmmaTile, m: int, n: int, device: torch.device) -> int:
    """The most tiles that one multiprocessor multiplies one after another."""
    return math.ceil(math.prod(tile.tiles(m, n)) / multiprocessors(device))


def _wgmma_tile(m: int, n: int, device: torch.device, scale_k: ScaleK) -> WgmmaTile:
    if scale_k is not ScaleK.NONE:
        # The fewest rows one after another; of as many, more at a time.
        return min(reversed(wgmma_tiles(scale_k)), key=lambda tile: tile.rows * _waves(tile, m, n, device))
    # The fewest columns one after another; of as many, more at a time, which reuse X more. Up to FEW_ROWS
    # the CTAs of a cluster only wait for each other.
    cluster = 2 if m > FEW_ROWS else 1
    wide, narrow = (WgmmaTile(TILE_ROWS, columns, cluster) for columns in (256, 128))
    return min((wide, narrow), key=lambda tile: tile.columns * _waves(tile, m, n, device))


def grouped_tiles(scale_k: ScaleK = ScaleK.NONE) -> tuple[WgmmaTile, ...]:
    """All tiles of ``gemm_grouped``, those for few rows per group first."""
    few = WgmmaTile(64, 256, 1, ProductSide.W, scale_k, grouped=True)
    if scale_k is ScaleK.NONE:
        return few, WgmmaTile(128, 256, 2, ProductSide.X, grouped=True)
    wide = (WgmmaTile(rows, 128, 1, ProductSide.W, scale_k, grouped=True) for rows in (128, 256))
    return (few, *wide)


MANY_ROWS = 512
"""Average rows per group from which tiles of 256 lose little."""


def grouped_tile(rows: float, scale_k: ScaleK = ScaleK.NONE) -> WgmmaTile:
    """The tile for an average of ``rows`` per group."""
    few, *wide = grouped_tiles(scale_k)
    if rows <= few.rows:
        return few
    return wide[-1] if rows >= MANY_ROWS else wide[0]


def gemm_grouped(
    x: Tensor,
    w: Tensor,
    ends: Tensor,
    kind: str,
    epilogue: Epilogue,
    capacity: int = 0,
    x_scale: Tensor | None = None,
    w_scale: Tensor | None = None,
    expected: float | None = None,
    tile: WgmmaTile | None = None,
) -> Tensor:
    """Multiply rows of X [rows, bytes] by the W of their group, W [groups, N, bytes]; the result is [rows,
    N].

    Without a ``capacity`` (contiguous) group g has the rows from ``ends[g - 1]`` (0 for the first) to
    ``ends[g]``, int32 [groups] on the device. With one (masked) it has the first ``ends[g]`` of the
    ``capacity`` rows from g · ``capacity`` on. Rows of no group keep the output memory's content. The counts
    stay on the device: nothing waits for the host. x_scale [⌈K/128⌉, rows] and w_scale [groups, ⌈N/128⌉,
    ⌈K/128⌉] as with ``ScaleK.BLOCK``. The epilogue has no vectors. A tile that is not given is chosen for
    ``expected`` rows per group on average, by default the rows that X has room for. ``ValueError`` for shapes
    that do not fit.
    """
    if w.dim() != 3 or not w.numel():
        raise ValueError(f"expected W [groups, N, bytes], got {list(w.shape)}")
    groups, n, _ = w.shape
    if not 1 <= groups <= MOST_GROUPS:
        raise ValueError(f"1 to {MOST_GROUPS} groups, got {groups}")
    if ends.dtype != torch.int32 or tuple(ends.shape) != (groups,) or ends.device != x.device:
        raise ValueError(
            f"expected int32 [{groups}] on {x.device}, got {ends.dtype} {list(ends.shape)} on {ends.device}"
        )
    if capacity and x.shape[0] != groups * capacity:
        raise ValueError(f"expected {groups} · {capacity} rows of X, got {x.shape[0]}")
    if epilogue.has_vectors:
        raise ValueError("a grouped product takes no vectors in its epilogue")
    x, rows = padded_pair(x, w.reshape(groups * n, -1))
    scale_k = ScaleK.NONE if x_scale is None and w_scale is None else ScaleK.BLOCK
    if scale_k is ScaleK.BLOCK:
        k_tiles = math.ceil(x.shape[1] / TILE_BYTES)
        blocks = math.ceil(n / SCALE_COLUMNS)
        if w_scale is not None and tuple(w_scale.shape) == (groups, blocks, k_tiles):
            w_scale = w_scale.reshape(groups * blocks, k_tiles)
        x_scale = _padded_scale("x_scale", x_scale, (k_tiles, x.shape[0]), 4)
        w_scale = _padded_scale("w_scale", w_scale, (groups * blocks, k_tiles), 4)
    expected = x.shape[0] / groups if expected is None else expected
    tile = _checked(tile or grouped_tile(expected, scale_k), scale_k, grouped=True)
    counts = (ends.contiguous(), groups, capacity)
    return _launch(tile, x, rows, kind, epilogue, (x_scale, w_scale), n, counts)


def scales_along_k(
    scale_k: ScaleK,
    x_scale: Tensor | None,
    w_scale: Tensor | None,
    sizes: tuple[int, int, int],
) -> tuple[Tensor | None, Tensor | None]:
    """Check both scales and pad their rows for bulk copies: x_scale to 4 values, w_scale to 4 or 128."""
    m, n, k_tiles = sizes
    if scale_k is ScaleK.BLOCK:
        x_scale = _padded_scale("x_scale", x_scale, (k_tiles, m), 4)
        return x_scale, _padded_scale("w_scale", w_scale, (math.ceil(n / SCALE_COLUMNS), k_tiles), 4)
    if scale_k is ScaleK.COLUMN:
        return None, _padded_scale("w_scale", w_scale, (k_tiles, n), 128)
    return x_scale, w_scale


def _padded_scale(name: str, scale: Tensor | None, shape: tuple[int, int], multiple: int) -> Tensor:
    """Pad rows for bulk copies (``padded_columns``)."""
    if scale is None:
        raise ValueError(f"{name} is needed: float32 {list(shape)}")
    if tuple(scale.shape) != shape or scale.dtype != torch.float32:
        raise ValueError(f"{name} must be float32 {list(shape)}, got {scale.dtype} {list(scale.shape)}")
    return padded_columns(scale, multiple)


@functools.cache
def mma_build(kind: str, dtype: torch.dtype) -> Build:
    """The build of gemm_mma.cu for an operand type and an output type."""
    return Build("gemm_mma.cu", macros(TYPE=OperandType(kind), OUT=dtype, STAGES=MMA_STAGES))


def gemm_mma(x: Tensor, w: Tensor, kind: str, epilogue: Epilogue) -> Tensor:
    """Multiply on tensor cores by mma.sync."""
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
    """The build of gemm_block_scaled.cu for a ``BlockScaledFormat`` and an output type; for sm_120a alone."""
    return Build("gemm_block_scaled.cu", macros(ELEMENT=BlockScaledFormat(element), OUT=dtype))


def gemm_block_scaled(
    x: Tensor, w: Tensor, x_scales: Tensor, w_scales: Tensor, element: str, epilogue: Epilogue
) -> Tensor:
    """Multiply by sm_120a's block-scaled instruction: rows of elements with one scale byte per block, uint8
    [rows, blocks]."""
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
