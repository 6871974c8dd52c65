"""The launcher for few tokens on Hopper: rows of W are the 64-row side of wgmma, tokens its columns."""

from __future__ import annotations

import dataclasses
import functools
import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from explorer.gpu import runtime
from explorer.gpu.gemm.epilogue import EPILOGUE_TYPES, Epilogue
from explorer.gpu.gemm.names import CodeOrder, OperandType, ScaleK, ScalePlace, macros
from explorer.gpu.gemm.rows import padded_pair, padded_rows
from explorer.gpu.gemm.tensor_cores import MOST_SHARED_BYTES, scales_along_k
from explorer.gpu.ready import Ready
from explorer.gpu.runtime import Build, is_capturing, launch, multiprocessors
from explorer.gpu.tma import encoded_map
from explorer.gpu.zero_words import zero_words

TILE_ROWS, TILE_K, TILE_BYTES = 64, 128, 128
"""Rows and elements of K of a repacked tile; bytes of K in a row of a tile in shared memory."""
TOKENS = (8, 16, 32, 64, 128, 256)
"""Tokens of a CTA."""
MOST_SHARED = MOST_SHARED_BYTES - 1024
"""Bytes of shared memory available to a CTA, less the most that alignment may cost."""
MOST_RANKS = 2
"""The most CTAs in a cluster: larger ones cost more than they gain (kernels/gemm_swap_ab.cu)."""

RUN = TILE_ROWS // 2
"""Rows of gate and of up that alternate, so that a tile has both."""
MOST_OF_STEP = 16
"""The most tokens of a step's product: for more, kernels that are not joined are as fast or faster."""
STEP_TYPES = "(PPPPPPiffiii)"
"""The members of ``StepTerms`` in kernels/step.cuh."""

SIXTEEN_BITS = (OperandType.BF16, OperandType.F16)

WIDE = 1.75
"""A CTA's time for a tile of 128 rows of W and few tokens, relative to one of 64. This and the following were
measured on an H200 at N of 4,096 to 22,016 and K of 4,096 and 8,192."""
SPLITTING_FEW, SPLITTING, SPLITTING_DENSE = 26, 15, 0.9
"""The cost of splitting tiles along K, in K-tiles multiplied in that time: with mma.sync, with wgmma from
registers; the last relative to a whole tile if W is not decoded."""
WORTH_SPLITTING = 1.1
"""Ratio of the times of whole tiles and of split ones from which splitting pays: the more tiles are split,
the less is found in L2."""


@dataclass(frozen=True)
class Tiles:
    """The layout of W for ``gemm_swap_ab``.

    bits      width of a code; 0: W is of X's type and lies in rows
    codec     its C++ codec
    two_bit   offset of stored plain 2-bit codes; 0: other codes
    scales    the stage that applies them; each serves ``group`` (at most 128) elements of K, C++ type
              ``scale``
    zeros     True with zero points
    """

    x_type: OperandType
    bits: int = 0
    codec: str = "IntegerCodec<8>"
    two_bit: int = 0
    scales: ScalePlace = ScalePlace.ROW
    group: int = TILE_K
    scale: str = "float"
    zeros: bool = False

    @property
    def groups(self) -> int:
        """Scales of a row in a tile."""
        return 0 if not self.bits or self.scales is ScalePlace.ROW else TILE_K // self.group

    @property
    def order(self) -> CodeOrder:
        """The order of codes in a tile's words."""
        integers = "Integer" in self.codec
        if self.bits != 4 or (integers and not self._float_bytes):
            return CodeOrder.APART
        return CodeOrder.FLOAT4 if "FloatCodec" in self.codec else CodeOrder.PAIRED

    @property
    def tabled(self) -> bool:
        """True if pairs of codes are looked up in a table in shared memory."""
        return self.order is CodeOrder.PAIRED and self.x_type is OperandType.BF16

    @property
    def _float_bytes(self) -> bool:
        return self.x_type is OperandType.E4M3

    @property
    def code_bytes(self) -> int:
        """Bytes of codes in a repacked tile."""
        return TILE_ROWS * TILE_K * self.bits // 8

    @property
    def tile_bytes(self) -> int:
        """Bytes of 64 rows of W in a stage."""
        if not self.bits:
            return TILE_ROWS * TILE_BYTES
        scale_bytes = {"float": 4}.get(self.scale, 2)
        return self.code_bytes + TILE_ROWS * self.groups * (scale_bytes + int(self.zeros))

    @property
    def x_tile_bytes(self) -> int:
        """Bytes of X's K under a repacked tile."""
        return TILE_K * (2 if self.x_type is OperandType.BF16 else 1)

    @property
    def stage_k_bytes(self) -> int:
        """Bytes of X's K in a stage."""
        return 2 * TILE_BYTES if self.bits and self.x_type is OperandType.BF16 else TILE_BYTES

    def repack_build(self) -> Build:
        """The build of repack.cu."""
        options = macros(
            WBITS=self.bits,
            BYTES=self.x_type is not OperandType.BF16,
            ORDER=self.order,
            SCALE_TYPE=self.scale,
            GROUPS=self.groups,
            ZEROS=self.zeros,
        )
        return Build("repack.cu", options)

    @property
    def folded(self) -> bool:
        """True if scales include the power of two that moves a float's bits to its value."""
        return self.scales is ScalePlace.WEIGHT and "FloatCodec" in self.codec

    def unpack_build(self, values: bool) -> Build:
        """The build of unpack.cu, to values or to codes."""
        decoding = macros(VALUES=values, CODEC=self.codec, TWO_BIT=self.two_bit, FOLDED=self.folded)
        return Build("unpack.cu", (*self.repack_build().macros, *decoding))

    def build(self, division: Division, dtype: torch.dtype) -> Build:
        """The build of gemm_swap_ab.cu for a division of the output."""
        return _build(self, division, dtype)


@dataclass(frozen=True)
class Division:
    """The division of the work.

    tokens        of a CTA, and ``blocks`` of 64 rows of W
    ways          parts of K that a CTA's warpgroups share
    ctas          on a multiprocessor at once
    ranks         CTAs of a cluster, which share K
    synchronous   mma.sync multiplies decoded weights: faster than wgmma for up to 16 tokens, since wgmma from
                  registers takes as long for 8 tokens as for 64
    streamed      a CTA multiplies one tile after another (``ranks`` is 1)
    split         streamed CTAs take equal parts of K of all tiles
    step          a step's norm, residual and gate are joined to the product (kernels/step.cuh)
    """

    tokens: int
    blocks: int = 2
    ways: int = 1
    ctas: int = 1
    ranks: int = 1
    synchronous: bool = False
    streamed: bool = False
    split: bool = False
    step: bool = False

    def stage_bytes(self, tiles: Tiles) -> int:
        """Bytes of one stage of the ring."""
        scales = self.tokens * 4 + 16 if tiles.scales is ScalePlace.BLOCK else 0
        return self._stage_bytes(tiles, self.halves(tiles)) + scales

    def _stage_bytes(self, tiles: Tiles, halves: int) -> int:
        w = tiles.tile_bytes - tiles.code_bytes * (halves - 1) // halves
        return self.ways * (self.tokens * tiles.stage_k_bytes // halves + self.blocks * w)

    def halves(self, tiles: Tiles) -> int:
        """The number of stages that share a repacked tile: 2 if three whole ones do not fit."""
        splits = tiles.bits not in (0, 3) and tiles.x_type is OperandType.BF16
        if not splits or self.ways > 1 or tiles.scales is ScalePlace.SUM:
            return 1
        return 1 if 3 * (self._stage_bytes(tiles, 1) + 16) <= self._room(tiles) else 2

    def table_bytes(self, tiles: Tiles) -> int:
        """Bytes of the table of two 4-bit codes in shared memory, with a copy for each lane."""
        return 256 * 256 if tiles.tabled else 0

    def stages(self, tiles: Tiles) -> int:
        """The number of stages that fit, at most 16."""
        return min(16, self._room(tiles) // (self.stage_bytes(tiles) + 16))

    def _room(self, tiles: Tiles) -> int:
        room = MOST_SHARED // self.ctas - 1024 * (self.ctas - 1) - 1024 - self.table_bytes(tiles)
        room -= self.norm_bytes
        return room - self.sums_bytes if self.streamed else room

    @property
    def norm_bytes(self) -> int:
        """Bytes of the tokens' norms in shared memory."""
        return 4 * self.tokens if self.step else 0

    @property
    def consumers(self) -> int:
        """Threads that multiply."""
        return 128 * self.blocks * self.ways

    @property
    def sums_bytes(self) -> int:
        """Bytes of sums held in shared memory at a time."""
        at_once = self.consumers // (8 * self.blocks) if self.streamed else self.tokens
        tokens = min(at_once, self.tokens)
        return self.ways * tokens * (TILE_ROWS * self.blocks + 4) * 4

    def shared_bytes(self, tiles: Tiles) -> int:
        """Bytes for alignment and the ring with its barriers; the sums overlay it, or follow it if
        streamed."""
        ring = self.stages(tiles) * (self.stage_bytes(tiles) + 16) + self.table_bytes(tiles)
        ring += self.norm_bytes
        return 1024 + (ring + self.sums_bytes if self.streamed else max(ring, self.sums_bytes))


@functools.cache
def _build(tiles: Tiles, division: Division, dtype: torch.dtype) -> Build:
    options = macros(
        X_TYPE=tiles.x_type,
        WBITS=tiles.bits,
        CODEC=tiles.codec,
        TWO_BIT=tiles.two_bit,
        SCALES=tiles.scales,
        GROUP=tiles.group,
        SCALE_TYPE=tiles.scale,
        ZEROS=tiles.zeros,
        TOKENS=division.tokens,
        BLOCKS=division.blocks,
        WAYS=division.ways,
        STAGES=division.stages(tiles),
        CTAS=division.ctas,
        SYNCHRONOUS=division.synchronous,
        HALVES=division.halves(tiles),
        STREAMED=division.streamed,
        OUT=dtype,
        STEP=division.step,
    )
    return Build("gemm_swap_ab.cu", options)


def repack(
    packed: Tensor, scales: Tensor | None, zeros: Tensor | None, tiles: Tiles, k: int, group: int
) -> Tensor:
    """Repack codes uint8 [N, bytes], scales and int8 zero points [N, groups] into tiles for ``gemm_swap_ab``:
    uint8 [⌈N/64⌉, ⌈K/128⌉, tile_bytes].

    ``group``: elements of K under one scale, a power of two of at least 16; ``ValueError`` otherwise.
    """
    n, k_tiles = packed.shape[0], math.ceil(k / TILE_K)
    blocks = math.ceil(n / TILE_ROWS)
    out = packed.new_empty((blocks, k_tiles, tiles.tile_bytes))
    groups = scales.shape[1] if scales is not None else 1
    if groups > 1 and (group & (group - 1) or group < 16):
        raise ValueError(f"groups are powers of two of at least 16 along K, not {group}")
    shift = group.bit_length() - 1 if groups > 1 else 31
    packed = packed.contiguous()
    launch(
        tiles.repack_build(),
        "repack",
        packed.device,
        (blocks * k_tiles,),
        128,
        "PPPPiiiiii",
        (packed, scales, zeros, out, n, k, packed.shape[1], groups, shift, k_tiles),
    )
    return out


def alternating_tiles(pair: Sequence[Tensor], tiles: Tiles) -> Tensor:
    """Join the tiles of ``repack`` of two W of one shape, N a multiple of 64: rows of W in turns of
    ``RUN``."""
    blocks, k_tiles, _ = pair[0].shape
    both = torch.stack([*pair])
    scale_bytes = TILE_ROWS * tiles.groups * {"float": 4}.get(tiles.scale, 2)
    parts, joined = (tiles.code_bytes, scale_bytes, tiles.tile_bytes - tiles.code_bytes - scale_bytes), []
    for part, pieces in zip(both.split(parts, dim=-1), (tiles.bits, 1, 1), strict=True):
        halves = part.unflatten(-1, (pieces, 2, -1)) if part.shape[-1] else part.unflatten(-1, (1, 2, 0))
        joined.append(halves.permute(1, 4, 2, 3, 0, 5).reshape(2 * blocks, k_tiles, part.shape[-1]))
    return torch.cat(joined, dim=-1)


def unpack_values(w: Tensor, tiles: Tiles, n: int, k: int) -> Tensor:
    """Restore tiles of ``repack`` as bfloat16 [n, K zero-filled to a multiple of 8]: (value - zero point)
    times the scales in the tiles. Other scales of rows are left to an epilogue."""
    return _unpacked(w, tiles, n, k, torch.bfloat16)


def unpack_codes(w: Tensor, tiles: Tiles, n: int, k: int) -> Tensor:
    """Unpack tiles of ``repack`` to the codes they were packed from, a byte each: uint8 [n, k]. Ternary
    digits become plain 2-bit codes."""
    return _unpacked(w, tiles, n, k, torch.uint8)[:, :k]


def _unpacked(w: Tensor, tiles: Tiles, n: int, k: int, dtype: torch.dtype) -> Tensor:
    blocks, k_tiles = w.shape[0], w.shape[1]
    out = w.new_empty((n, -(-k // 8) * 8), dtype=dtype)
    build, arguments = tiles.unpack_build(dtype == torch.bfloat16), (w, out, n, k, out.shape[1], k_tiles)
    launch(build, "unpack", w.device, (blocks * k_tiles,), 128, "PPiiii", arguments)
    return out


def swap_ab_builds(tiles: Tiles, dtype: torch.dtype) -> list[Build]:
    """All builds that a call may choose."""
    builds = [tiles.repack_build(), tiles.unpack_build(True), tiles.unpack_build(False)] if tiles.bits else []
    for tokens in tokens_for(tiles):
        forms = _forms(tokens, tiles)
        every = [dataclasses.replace(form, streamed=True) for form in forms]
        every += forms[:1] if _shares_k(forms[0], tiles) else []
        if tokens <= MOST_OF_STEP and tiles.bits and tiles.x_type is OperandType.BF16:
            many, few = (dataclasses.replace(form, step=True) for form in _step_forms(tokens, tiles))
            every += [many, few, dataclasses.replace(many, streamed=False)] if dtype == torch.bfloat16 else []
        builds += [tiles.build(form, dtype) for form in every]
    return builds


def tokens_for(tiles: Tiles) -> tuple[int, ...]:
    """The number of tokens of a CTA, among those built: 256 if one set of accumulators is enough."""
    return TOKENS[:-1] if tiles.scales in (ScalePlace.SUM, ScalePlace.BLOCK) else TOKENS


def _forms(tokens: int, tiles: Tiles) -> list[Division]:
    """The fastest form measured on an H200 for so many tokens at N = K = 8192, then another that divides some
    N better."""
    if tokens <= 16 and tiles.bits and tiles.x_type is not OperandType.E4M3:
        return [Division(tokens, blocks=1, ways=2, ctas=1 if tiles.tabled else 2, synchronous=True)]
    if tiles.scales is ScalePlace.BLOCK:
        return [Division(tokens, blocks=1, ctas=2), Division(tokens)] if tokens <= 64 else [Division(tokens)]
    if tokens <= (64 if tiles.bits else 128):
        return [Division(tokens, blocks=1, ways=2), Division(tokens)]
    return [Division(tokens)]


def _shares_k(form: Division, tiles: Tiles) -> bool:
    """True if two CTAs of a cluster may share K: with few tokens this costs time unless W is decoded."""
    return tiles.bits > 0 or tiles.scales is ScalePlace.BLOCK or form.blocks > 1


def division_of(m: int, n: int, k_tiles: int, tiles: Tiles, device: torch.device) -> Division:
    """Divide a product: two CTAs share each tile's K if multiprocessors would idle otherwise. Else the
    fastest of tiles of 64 or 128 rows one after another, whole or in equal parts of all K."""
    tokens = next((t for t in tokens_for(tiles) if m <= t), tokens_for(tiles)[-1])
    forms, count = _forms(tokens, tiles), multiprocessors(device)
    if tokens == 128 and not tiles.bits and tiles.x_type in SIXTEEN_BITS:
        # Half as many rows of X a tile, and twice as many of W, are read from L2: worth it if one tile each
        # keeps the multiprocessors busy.
        halves = Division(64, streamed=True)
        if 0.9 * count <= math.ceil(n / (halves.blocks * TILE_ROWS)) * math.ceil(m / 64) <= count:
            return halves

    def outputs(form: Division) -> int:
        return math.ceil(n / (form.blocks * TILE_ROWS)) * math.ceil(m / form.tokens)

    first = forms[0]
    if (
        MOST_RANKS * outputs(first) <= count
        and _shares_k(first, tiles)
        and k_tiles >= MOST_RANKS * first.ways
    ):
        return dataclasses.replace(first, ranks=MOST_RANKS)
    of_decoded = SPLITTING_FEW if first.synchronous else SPLITTING
    splitting = of_decoded / k_tiles if tiles.bits else SPLITTING_DENSE
    times = {}
    for form in forms:
        waves = outputs(form) / count
        alone = WIDE if form is not first else 1.0
        times[dataclasses.replace(form, streamed=True)] = math.ceil(waves) * alone
        if 2 * outputs(form) > count:  # else many share a tile, and one adds all their sums
            split = (waves * alone + splitting) * WORTH_SPLITTING
            times[dataclasses.replace(form, streamed=True, split=True)] = split
    return min(times, key=lambda division: times[division])


def _step_forms(tokens: int, tiles: Tiles) -> tuple[Division, Division]:
    """The forms of a step's product: for more tiles than multiprocessors, and for fewer, whose CTAs are alone
    on theirs: those that begin early would gather where there is room first."""
    usual, few = _forms(tokens, tiles)[0], tokens == TOKENS[0]
    return dataclasses.replace(usual, streamed=few), dataclasses.replace(usual, ways=4 if few else 2, ctas=1)


def step_division_of(m: int, n: int, k_tiles: int, tiles: Tiles, device: torch.device) -> Division:
    """Divide a step's product of at most ``MOST_OF_STEP`` tokens; ``ValueError`` for more."""
    if m > MOST_OF_STEP:
        raise ValueError(f"a step's product has at most {MOST_OF_STEP} tokens, not {m}")
    many, few = _step_forms(next(t for t in TOKENS if m <= t), tiles)
    outputs, count = math.ceil(n / TILE_ROWS), multiprocessors(device)
    if outputs > count:
        return many
    if k_tiles < MOST_RANKS * few.ways:
        return few
    if MOST_RANKS * outputs <= count:
        return dataclasses.replace(few, ranks=MOST_RANKS)
    return few if many.ctas == 1 else dataclasses.replace(many, streamed=False, ranks=MOST_RANKS)


def gemm_swap_ab(
    x: Tensor,
    w: Tensor,
    n: int,
    tiles: Tiles,
    epilogue: Epilogue,
    x_scale: Tensor | None = None,
    w_scale: Tensor | None = None,
    division: Division | None = None,
    early: bool = False,
    out: Tensor | None = None,
) -> Tensor:
    """Multiply X uint8 [M, bytes of K], rows of ``tiles.x_type``, by W [n, K].

    W is rows of the same type uint8 [n, bytes], or tiles of ``repack``. ``ScalePlace.BLOCK``: x_scale float32
    [⌈K/128⌉, M], w_scale [⌈N/128⌉, ⌈K/128⌉]. ``early``: nothing on the stream still writes W; the product may
    begin to load its tiles while the kernel before it ends. ``out``: Y [M, n] is written here. ``ValueError``
    if W's tiles are not those of n rows and X's K, or Y does not fit ``out``.
    """
    if tiles.bits:
        x, k_tiles = padded_rows(x), w.shape[1]
        expected = (math.ceil(n / TILE_ROWS), math.ceil(x.shape[1] / tiles.x_tile_bytes), tiles.tile_bytes)
        if tuple(w.shape) != expected or x.device != w.device or not x.numel():
            raise ValueError(f"expected W as tiles {list(expected)} on X's device, got {list(w.shape)}")
    else:
        address = w.data_ptr()
        x, w = padded_pair(x, w)
        early = early and w.data_ptr() == address  # a padded copy is written just before
        k_tiles = math.ceil(x.shape[1] / TILE_BYTES)
        if w.shape[0] != n:
            raise ValueError(f"expected W of {n} rows, got {w.shape[0]}")
    m, device = x.shape[0], x.device
    if (
        tiles.bits == 4
        and tiles.x_type is OperandType.S8
        and tiles.scales is ScalePlace.ROW
        and k_tiles > 1024
    ):
        raise ValueError("int32 sums of sixteen times int4 by int8 hold K up to 131,072")
    if tiles.scales is ScalePlace.BLOCK:
        x_scale, w_scale = scales_along_k(ScaleK.BLOCK, x_scale, w_scale, (m, n, k_tiles))
    if out is None:
        out = x.new_empty((m, n), dtype=epilogue.dtype)
    elif tuple(out.shape) != (m, n) or out.dtype != epilogue.dtype or not out.is_contiguous():
        raise ValueError(
            f"out must be contiguous {epilogue.dtype} [{m}, {n}], got {out.dtype} {list(out.shape)}"
        )
    scales = [0 if scale is None else scale.data_ptr() for scale in (x_scale, w_scale)]
    product = planned(m, n, x.shape[1], tiles, epilogue.dtype, device, early, division)
    product.start(x.data_ptr(), w.data_ptr(), epilogue.addresses(out), *scales)
    return out


class SwapAB:
    """The product ``gemm_swap_ab`` at one shape, ready to launch with addresses."""

    def __init__(
        self,
        m: int,
        n: int,
        row_bytes: int,
        tiles: Tiles,
        dtype: torch.dtype,
        device: torch.device,
        early: bool,
        division: Division | None = None,
        step: bool = False,
    ) -> None:
        """``row_bytes`` of X, a multiple of 16; ``dtype`` of Y. ``step``: for ``start`` with ``StepTerms``,
        all tokens in one tile; ``slots`` are then the squares that it stores for a token."""
        k_tiles = math.ceil(row_bytes / (tiles.x_tile_bytes if tiles.bits else TILE_BYTES))
        if step:
            division = dataclasses.replace(step_division_of(m, n, k_tiles, tiles, device), step=True)
        division = division or division_of(m, n, k_tiles, tiles, device)
        blocks, tokens = math.ceil(n / (TILE_ROWS * division.blocks)), math.ceil(m / division.tokens)
        self._k_tiles, self.n, self.slots = k_tiles * division.halves(tiles), n, blocks
        self._ctas = self._sums = 0
        grid = (blocks * division.ranks, tokens)
        if division.streamed:
            ctas, outputs = multiprocessors(device) * division.ctas, blocks * tokens
            fills = math.ceil(self._k_tiles / division.ways)
            grid = (min(ctas, outputs * fills if division.split else outputs), 1)
            if division.split:
                self._ctas, self._sums = ctas, ctas * division.tokens // 2 * division.consumers
        self._device, self._index = device, device.index or 0
        self._x_rows = min(m, division.tokens)
        self._x_map = (m, row_bytes, self._x_rows)
        self._w_map = None if tiles.bits else (n, row_bytes, TILE_ROWS * division.blocks)
        self._launch = Ready(
            tiles.build(division, dtype),
            "gemm_swap_ab",
            device,
            ("MPPPiiPP" if tiles.bits else "MMPPiiPP") + EPILOGUE_TYPES + (STEP_TYPES if step else ""),
            grid,
            division.consumers + 128,
            division.shared_bytes(tiles),
            cluster=division.ranks,
            early=early,
        )

    def start(
        self,
        x: int,
        w: int,
        epilogue: Sequence[int],
        x_scale: int = 0,
        w_scale: int = 0,
        *,
        step: Sequence[float] = (),
    ) -> None:
        """Launch with the addresses of X, W and their scales, padded as by ``gemm_swap_ab`` (0: none),
        ``Epilogue.addresses``, and the members of ``StepTerms`` (kernels/step.cuh)."""
        of_w = w if self._w_map is None else encoded_map(self._index, w, *self._w_map)
        partial = flags = 0
        if self._ctas:
            sums, counted = _partial_sums(self._device, self._ctas, self._sums)
            partial, flags = sums.data_ptr(), counted.data_ptr()
        of_x = encoded_map(self._index, x, *self._x_map)
        self._launch.start(
            (of_x, of_w, x_scale, w_scale, self._k_tiles, self._x_rows, partial, flags, *epilogue, *step)
        )


planned = functools.lru_cache(1024)(SwapAB)
"""Return the product of a shape, cached for the next call."""


_PARTIAL_SUMS: dict[tuple[torch.device, int], tuple[Tensor, Tensor]] = {}
"""Partial sums by device and stream: launches on one stream follow one another and may share them."""


def _partial_sums(device: torch.device, ctas: int, sums: int) -> tuple[Tensor, Tensor]:
    """Memory for the sums of tiles that CTAs share, and a flag for each CTA, which is 0 between launches. A
    graph has its own, since it may be replayed on any stream."""
    if is_capturing(device):
        return torch.empty(sums, device=device), zero_words(device, ctas)
    key = device, runtime.stream_of(device.index or 0)
    held = _PARTIAL_SUMS.get(key)
    if held is None or held[0].numel() < sums or held[1].numel() < ctas:
        held = torch.empty(sums, device=device), torch.zeros(ctas, dtype=torch.int32, device=device)
        _PARTIAL_SUMS[key] = held
    return held
