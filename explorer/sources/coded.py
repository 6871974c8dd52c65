"""Weights of models that are published quantized, read as the values of their codes.

Two layouts, by config.json's ``quantization_config``::

    fp8    X.weight F8_E4M3 [N, K], X.weight_scale_inv [⌈N/r⌉, ⌈K/c⌉]: the scale of each tile of
           weight_block_size = [r, c] multiplies its codes (DeepSeek-V3, Qwen3; the tiles at the edges may be
           cut)
    mxfp4  X_blocks U8 [E, N, K/32, 16], X_scales U8 [E, N, K/32]: two E2M1 codes a byte, the first in the low
           nibble, times 2^(scale - 127) (the experts of gpt-oss)

A source lists such a weight once, as X.weight [N, K] or X [E, N, K], inputs last; its scales are not listed.
Values are float32: the product of code and scale, rounded once. transformers holds X of experts as [E, K, N]
(``as_in_network``). Weights of other layouts stay what they are in the files.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.formats import E8M0
from explorer.formats.subnormals import keeps_subnormals
from explorer.progress import Progress, checkpoint
from explorer.sources.base import SourceError, TensorInfo, TensorSource, shape_words
from explorer.sources.matrix import unpack_fp4
from explorer.words import plain

CONFIG = "config.json"
SETTINGS = "quantization_config"
_FP8, _FP4 = "F8_E4M3 ", "F4_E2M1 "
CODED = (_FP8, _FP4)
"""Prefixes of the dtypes that restored weights are listed with; no dtype of a file has them."""
_FP8_WEIGHT, _FP8_SCALES = ".weight", ".weight_scale_inv"
_BLOCKS, _MX_SCALES = "_blocks", "_scales"
_FP8_SCALE_DTYPES = ("F32", "BF16", "F16", "F8_E8M0")
_MOST_TILE = 1 << 20
_MX_BLOCK, _MX_BYTES = 32, 16
_BLOCK = re.compile(r"([1-9]\d{0,8})×([1-9]\d{0,8})", re.ASCII)
_BITS = {_FP8: (8, 32), _FP4: (4, 8)}
"""Of each prefix: bits of a code, and of a scale."""
Restore = Callable[[Tensor, Tensor, Progress | None], Tensor]
ReadRows = Callable[[TensorInfo, int | None, Progress | None], Tensor]


@dataclass(frozen=True)
class CodeLayout:
    """How a model's files hold codes: ``tile`` of a scale of FP8, None for MXFP4."""

    tile: tuple[int, int] | None


@dataclass(frozen=True)
class CodedWeight:
    """One weight: ``info`` as it is listed, ``codes`` and ``scales`` as the files hold them; a row of scales
    serves ``rows`` rows of codes. ``problem``: why the parts do not fit together; empty if they do."""

    info: TensorInfo
    codes: TensorInfo
    scales: TensorInfo | None
    restore: Restore
    rows: int = 1
    problem: str = ""

    def read(self, read_rows: ReadRows, rows: int | None, progress: Progress | None) -> Tensor:
        """float32: the first ``rows`` rows of the weight, all if None, read from the bytes of those alone.

        ``SourceError`` where the scales are missing, or have another shape or dtype.
        """
        if self.problem or self.scales is None:
            raise SourceError(self.problem)
        codes = read_rows(self.codes, rows, None)
        scales = read_rows(self.scales, None if rows is None else -(-rows // self.rows), None)
        return self.restore(codes, scales, progress)


class CodedWeights:
    """The weights that a model's files hold as codes, by name, and ``infos``: what the model is listed as."""

    def __init__(self, infos: Iterable[TensorInfo], layout: CodeLayout | None) -> None:
        raw = {info.name: info for info in infos}
        found = [_weight(info, raw, layout) for info in raw.values()] if layout else []
        self._by_codes = {weight.codes.name: weight for weight in found if weight}
        self.by_name = {weight.info.name: weight for weight in self._by_codes.values()}
        parts = {weight.scales.name for weight in self.by_name.values() if weight.scales}
        self.infos = tuple(
            self._by_codes[name].info if name in self._by_codes else info
            for name, info in raw.items()
            if name not in parts
        )

    def parts_of(self, name: str) -> tuple[TensorInfo, ...]:
        """Codes and scales of a weight; none for a tensor that is no weight of codes, or has no scales."""
        weight = self.by_name.get(name)
        return (weight.codes, weight.scales) if weight and weight.scales else ()

    @property
    def names(self) -> frozenset[str]:
        """The names of the weights, as they are listed."""
        return frozenset(self.by_name)


def layout_of(config: Mapping[str, Any]) -> CodeLayout | None:
    """The layout that a model's configuration names; None for every other, and for none."""
    settings = config.get(SETTINGS)
    if not isinstance(settings, Mapping):
        return None
    if settings.get("quant_method") == "mxfp4":
        return CodeLayout(None)
    tile = settings.get("weight_block_size")
    if settings.get("quant_method") != "fp8" or settings.get("fmt", "e4m3") != "e4m3":
        return None
    if (
        not isinstance(tile, list)
        or len(tile) != 2
        or not all(type(n) is int and 0 < n <= _MOST_TILE for n in tile)
    ):
        return None
    return CodeLayout((tile[0], tile[1]))


def may_hold_codes(infos: Iterable[TensorInfo]) -> bool:
    """Whether some of a model's tensors could be codes of one of the layouts, so that its configuration has
    to be asked."""
    return any(
        (info.dtype == _FP8.strip() and info.name.endswith(_FP8_WEIGHT))
        or (info.dtype == "U8" and info.name.endswith(_BLOCKS))
        for info in infos
    )


def stored_bits(dtype: str) -> float | None:
    """Bits per weight that codes and scales take in the files of a weight listed with ``dtype``; None for
    dtypes of other weights."""
    prefix = next((prefix for prefix in CODED if dtype.startswith(prefix)), None)
    block = _BLOCK.search(dtype)
    if prefix is None or block is None:
        return None
    code, scale = _BITS[prefix]
    return code + scale / (int(block[1]) * int(block[2]))


def as_in_network(source: TensorSource, name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """One tensor as transformers' network holds it: a restored weight in ``dtype``, experts as [E, inputs,
    outputs]; every other tensor as it is."""
    tensor = source.read(name)
    if name not in source.restored:
        return tensor
    tensor = tensor.to(dtype)
    return tensor.transpose(1, 2).contiguous() if tensor.dim() == 3 else tensor


def shape_in_network(source: TensorSource, info: TensorInfo) -> tuple[int, ...]:
    """The shape of ``as_in_network``, from the header."""
    experts = info.name in source.restored and len(info.shape) == 3
    return (info.shape[0], info.shape[2], info.shape[1]) if experts else info.shape


def _weight(codes: TensorInfo, raw: Mapping[str, TensorInfo], layout: CodeLayout) -> CodedWeight | None:
    """The weight whose codes are the tensor ``codes``; None for a tensor that holds none."""
    return _fp8_weight(codes, raw, layout.tile) if layout.tile else _mxfp4_weight(codes, raw)


def _fp8_weight(
    codes: TensorInfo, raw: Mapping[str, TensorInfo], tile: tuple[int, int]
) -> CodedWeight | None:
    if not codes.name.endswith(_FP8_WEIGHT) or codes.dtype != _FP8.strip() or len(codes.shape) != 2:
        return None
    info = TensorInfo(codes.name, codes.shape, f"{_FP8}{tile[0]}×{tile[1]}")
    scales = raw.get(codes.name.removesuffix(_FP8_WEIGHT) + _FP8_SCALES)
    wanted = tuple(-(-length // side) for length, side in zip(codes.shape, tile, strict=True))
    problem = _problem(info, scales, wanted, _FP8_SCALE_DTYPES)
    return CodedWeight(info, codes, scales, partial(_tiles, tile=tile), tile[0], problem)


def _mxfp4_weight(codes: TensorInfo, raw: Mapping[str, TensorInfo]) -> CodedWeight | None:
    name = codes.name.removesuffix(_BLOCKS)
    if name == codes.name or name in raw or codes.dtype != "U8" or len(codes.shape) != 4:
        return None
    experts, outputs, blocks, size = codes.shape
    info = TensorInfo(name, (experts, outputs, blocks * size * 2), f"{_FP4}1×{_MX_BLOCK}")
    scales = raw.get(name + _MX_SCALES)
    problem = _problem(info, scales, codes.shape[:-1], ("U8",))
    if size != _MX_BYTES:
        problem = f"{plain(name, 80)}: blocks are of {size} bytes; MXFP4 has {_MX_BYTES}"
    return CodedWeight(info, codes, scales, _experts, 1, problem)


def _problem(
    info: TensorInfo, scales: TensorInfo | None, wanted: tuple[int, ...], dtypes: tuple[str, ...]
) -> str:
    """Why ``scales`` are not those of the weight ``info``; empty if they may be."""
    name = plain(info.name, 80)
    if scales is None:
        return f"{name} has no scales: its codes mean nothing without them"
    if scales.dtype not in dtypes:
        return f"{name}: its scales are {scales.dtype}; accepted are {', '.join(dtypes)}"
    if scales.shape != wanted:
        return (
            f"{name}: its scales have the shape {shape_words(scales.shape)}; its codes need "
            f"{shape_words(wanted)}"
        )
    return ""


@keeps_subnormals
def _tiles(codes: Tensor, scales: Tensor, progress: Progress | None, tile: tuple[int, int]) -> Tensor:
    """float32 [N, K]: codes [N, K] times the scale of their tile, a row of tiles at a time."""
    rows, columns = codes.shape
    values, grid = codes.to(torch.float32), scales.to(torch.float32)
    # A configuration may claim tiles of any size: none is wider than the weight.
    wide = grid.repeat_interleave(min(tile[1], max(columns, 1)), 1)[:, :columns]
    for number, first in enumerate(range(0, rows, tile[0])):
        checkpoint()
        values[first : first + tile[0]] *= wide[number]
        if progress is not None:
            progress(min(first + tile[0], rows), rows)
    return values


@keeps_subnormals
def _experts(blocks: Tensor, scales: Tensor, progress: Progress | None) -> Tensor:
    """float32 [E, N, K]: blocks [E, N, K/32, 16] times their scales [E, N, K/32], an expert at a time."""
    experts, outputs, groups, size = blocks.shape
    values = torch.empty(experts, outputs, groups * size * 2)
    for expert in range(experts):
        checkpoint()
        restored = unpack_fp4(blocks[expert]) * E8M0.decode(scales[expert])[..., None]
        values[expert] = restored.flatten(1)
        if progress is not None:
            progress(expert + 1, experts)
    return values
