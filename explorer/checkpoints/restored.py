"""Weights of quantized checkpoints as the values of their codes: one row of ``LAYOUTS`` a layout.

A layout knows the tensors of one layer by what follows its name in the files. The writers of the same layouts
are in ``to_compressed_tensors``, ``to_gptq``, ``to_awq`` and ``to_bitsandbytes``, which draw them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints.integer_words import codes_in_words
from explorer.checkpoints.to_awq import in_order
from explorer.formats import E8M0, FloatFormat, float_format
from explorer.formats.packing import unpack_bits
from explorer.formats.subnormals import keeps_subnormals
from explorer.schemes import Scheme
from explorer.sources.base import TensorInfo
from explorer.sources.matrix import unpack_fp4
from explorer.sources.safetensors_header import bytes_of

Parts = Mapping[str, Tensor]
"""Tensors of a layer by what follows its name: ".qweight"."""
Infos = Mapping[str, TensorInfo]
"""Their header entries, likewise."""
Settings = Mapping[str, Any]
"""``quantization_config`` of config.json; empty where there is none."""
_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
Block = tuple[int | None, int | None]
_WHOLE: dict[Block, tuple[str, str]] = {
    (None, None): ("tensor", "per tensor"), (1, None): ("row", "per row"),
}  # fmt: skip
"""Blocks that have a word in a scheme's text, and one for people."""
_WORD, _MX, _FLOATS = 32, 32, ("F32", "F16", "BF16")
_F8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_F8_DTYPES = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}
_SHAPE = ".weight_shape"
_STATE = ".weight.quant_state.bitsandbytes__"
_INT8_STEPS = 127.0
"""LLM.int8() stores the largest magnitude of a row, which the code 127 stands for."""


@dataclass(frozen=True, eq=False)
class Restored:
    """A weight as the values of its codes.

    values  float32, in the weight's own shape
    kind    what is stored, in the field's words: "INT4 group 128, asymmetric"
    scheme  the text of this project's scheme with such codes and scales; empty without one. How ranges and
            codes were chosen, a file does not say
    steps   float32, broadcast to ``values``: each element's scale; None without scales, or where they are
            not known
    """

    values: Tensor
    kind: str
    scheme: str = ""
    steps: Tensor | None = None


@dataclass(frozen=True)
class StoredLayout:
    """One layout: the tensor that every layer has, which others may belong to it, whether header entries are
    of it, how values are restored, and the bits of a code in the first one."""

    main: str
    others: tuple[str, ...]
    fits: Callable[[Infos, Settings], bool]
    restore: Callable[[Parts, Settings], Restored]
    bits: Callable[[Infos], int]

    def elements(self, infos: Infos, read: Callable[[str], Tensor]) -> int:
        """How many values are restored at most, from the headers; ``read`` is asked for the two numbers of
        ``.weight_shape`` where there is one."""
        if _SHAPE not in infos:
            return 8 * bytes_of(infos[self.main]) // self.bits(infos)
        if infos[_SHAPE].shape != (2,):
            raise ValueError(f"its {_SHAPE} is no pair of numbers")
        return math.prod(int(side) for side in read(_SHAPE))


def layout_of(infos: Infos, settings: Settings) -> StoredLayout | None:
    """The layout that the tensors of a layer are of; None for a weight that is stored as it is."""
    return next((row for row in LAYOUTS if row.main in infos and row.fits(infos, settings)), None)


def described(fmt: str, block: Block, scale: str, mapping: str = "symmetric") -> str:
    """The name or text of the scheme with these parts; empty where they do not go together."""
    height, width = block
    where = _WHOLE[block][0] if block in _WHOLE else f"{height or 'all'}x{width or 'all'}"
    try:
        return str(Scheme.parse(f"{fmt}~{where}~{mapping}~{scale}~minmax"))
    except ValueError:
        return ""


def kind_of(label: str, block: Block, *more: str) -> str:
    """ "INT4 group 128, asymmetric" """
    height, width = block
    group = f"group {width}" if height == 1 else f"{height or 'all'}×{width or 'all'}"
    return ", ".join(
        [f"{label} {_WHOLE[block][1] if block in _WHOLE else group}", *(text for text in more if text)]
    )


def _stated_blocks(settings: Settings) -> Iterator[tuple[int, int]]:
    """Rows and columns of a scale's block, wherever ``quantization_config`` states them."""
    groups = settings.get("config_groups")
    parts = [part.get("weights") for part in groups.values()] if isinstance(groups, Mapping) else []
    for part in (settings, *(part for part in parts if isinstance(part, Mapping))):
        for block in (
            part.get("weight_block_size"),
            part.get("block_structure"),
            [1, part.get("group_size")],
        ):
            if isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
                yield block[0], block[1]


def _side(length: int, count: int, stated: Iterable[int]) -> int:
    """How many of ``length`` codes in a line have one of its ``count`` scales: the number of those ``stated``
    that fits, else equal shares. ``ValueError`` where there are none."""
    fitting = {side for side in stated if -(-length // side) == count}
    if count > 1 and len(fitting) == 1:
        return fitting.pop()
    if count < 1 or length % count:
        raise ValueError(
            f"{length:,} codes in a line have {count:,} scales, which is no whole number each, and "
            "quantization_config states no group_size, block_structure or weight_block_size that fits"
        )
    return max(length // count, 1)


def _integers(
    codes: Tensor,
    zeros: Tensor | None,
    scales: Tensor,
    bits: int,
    settings: Settings,
    groups: Tensor | None = None,
) -> Restored:
    """Integer codes uint8 [N, K] counted from the lowest, with zero points alike [N, G], None for the middle,
    and scales [N, G], [N, 1] or [1]; ``groups``: int64 [K], the group of each input where they do not lie
    side by side."""
    (rows, columns), middle = codes.shape, 1 << (bits - 1)
    grid = scales.float().reshape(-1, 1) if scales.dim() < 2 else scales.float()
    count = grid.shape[1]
    if groups is None:
        width = _side(columns, count, (across for _, across in _stated_blocks(settings)))
    else:
        width = int(groups.bincount().max())
    even = torch.arange(columns) // width
    where = even if groups is None else groups
    steps = grid[:, where].expand(rows, columns)
    signed = codes.to(torch.int16) - middle
    if zeros is not None and bool((zeros != middle).any()):
        points = (zeros.to(torch.int16) - middle).reshape(grid.shape)
        signed, mapping = signed - points[:, where], "asymmetric"
    else:
        mapping = "full" if bool((codes == 0).any()) else "symmetric"
    block = (1, width) if count > 1 else (None if grid.numel() == 1 < rows else 1, None)
    mixed = groups is not None and bool((groups[1:] < groups[:-1]).any())
    words = "asymmetric" if mapping == "asymmetric" else ""
    kind = kind_of(f"INT{bits}", block, words, "groups by activation order" if mixed else "")
    scheme = (
        ""
        if not torch.equal(where, even)
        else described(f"int{bits}", block, _DTYPES.get(scales.dtype, "float32"), mapping)
    )
    return Restored(signed.float() * steps, kind, scheme, steps)


def _gptq(parts: Parts, settings: Settings) -> Restored:
    scales = parts[".scales"]
    count, rows = scales.shape
    bits = _WORD * parts[".qzeros"].shape[1] // rows
    columns = _WORD * parts[".qweight"].shape[0] // bits
    codes = codes_in_words(parts[".qweight"].t(), bits, columns)
    if settings.get("checkpoint_format") == "gptq_v2":
        zeros = codes_in_words(parts[".qzeros"], bits, rows)
    else:
        zeros = _one_more(parts[".qzeros"], bits, rows)
    groups = _groups_of(parts[".g_idx"], columns, count) if ".g_idx" in parts else None
    return _integers(codes, zeros.t(), scales.t(), bits, settings, groups)


def _one_more(words: Tensor, bits: int, rows: int) -> Tensor:
    """uint8 [G, N]: the zero points that version 1 of the layout stores less one. Below 0 they wrap, and as
    gptqmodel subtracts from whole words, they borrow from the next: readers add to whole words too. Codes of
    3 bits cross words, and each wraps by itself."""
    if _WORD % bits:
        return (codes_in_words(words, bits, rows) + 1) & ((1 << bits) - 1)
    ones = sum(1 << place for place in range(0, _WORD, bits))
    return codes_in_words((words.long() + ones).to(torch.int32), bits, rows)


def _groups_of(stored: Tensor, columns: int, count: int) -> Tensor:
    """int64 [K]: the group of each input; ``ValueError`` if there are not K numbers of ``count`` groups."""
    if stored.shape != (columns,):
        raise ValueError(f"it has groups of {stored.numel():,} inputs, and codes of {columns:,}")
    groups = stored.long()
    if bool(((groups < 0) | (groups >= count)).any()):
        raise ValueError(f"an input is in a group other than 0 to {count - 1}, of which there are scales")
    return groups


def _awq(parts: Parts, settings: Settings) -> Restored:
    codes, zeros = in_order(parts[".qweight"]).t(), in_order(parts[".qzeros"]).t()
    return _integers(codes, zeros, parts[".scales"].t(), 4, settings)


def _packed_integers(parts: Parts, settings: Settings) -> Restored:
    packed, scales = parts[".weight_packed"], parts[".weight_scale"]
    rows, columns = parts[_SHAPE].tolist()
    if columns < 1 or rows != len(packed):
        raise ValueError(f"its {_SHAPE} says [{rows}, {columns}], and it has codes of {len(packed)} rows")
    bits = _WORD * packed.shape[1] // columns
    codes, zeros = codes_in_words(packed, bits, columns), parts.get(".weight_zero_point")
    if zeros is not None and zeros.dtype is torch.int32:
        zeros = codes_in_words(zeros.t(), bits, rows).t()
    elif zeros is not None:
        zeros = zeros.to(torch.int16) + (1 << (bits - 1))
    groups = parts.get(".weight_g_idx")
    if groups is not None:
        groups = _groups_of(groups, columns, scales.shape[1])
    return _integers(codes, zeros, scales, bits, settings, groups)


def _int8(parts: Parts, settings: Settings) -> Restored:
    zeros = parts.get(".weight_zero_point")
    codes = parts[".weight"].view(torch.uint8) ^ 128
    zeros = None if zeros is None else zeros.to(torch.int16) + 128
    return _integers(codes, zeros, parts[".weight_scale"], 8, settings)


def _llm_int8(parts: Parts, settings: Settings) -> Restored:
    if int(parts.get(".weight_format", torch.zeros(1)).reshape(-1)[0]):
        raise ValueError("its INT8 codes are in the order of one GPU's tiles; rows are read")
    scales = parts[".SCB"].float()[:, None] / _INT8_STEPS
    found = _integers(parts[".weight"].view(torch.uint8) ^ 128, None, scales, 8, settings)
    return Restored(found.values, f"{found.kind} (LLM.int8())", found.scheme, found.steps)


def _tiles(grid: Tensor, shape: tuple[int, ...], settings: Settings) -> tuple[Tensor, Block]:
    """float32 of ``shape``: the scale of each element of scales [N, 1], [1], [], or one a tile; the block."""
    rows, columns = shape
    grid = grid.float().reshape(-1, 1) if grid.dim() < 2 else grid.float()
    stated = [
        block
        for block in _stated_blocks(settings)
        if tuple(-(-length // side) for length, side in zip(shape, block, strict=True)) == tuple(grid.shape)
    ]
    tall = _side(rows, grid.shape[0], (down for down, _ in stated))
    wide = _side(columns, grid.shape[1], (across for _, across in stated))
    block = (
        None if grid.shape[0] == 1 else tall,
        None if grid.shape[1] == 1 else wide,
    )
    down, across = torch.arange(rows) // tall, torch.arange(columns) // wide
    return grid[down][:, across], block


@keeps_subnormals
def _float8(parts: Parts, settings: Settings) -> Restored:
    codes = parts[".weight"]
    scales = parts[".weight_scale"] if ".weight_scale" in parts else parts[".weight_scale_inv"]
    steps, block = _tiles(scales, tuple(codes.shape), settings)
    fmt = float_format(_F8_DTYPES[codes.dtype])
    scheme = described(fmt.name, block, _DTYPES.get(scales.dtype, "float32"))
    return Restored(codes.float() * steps, kind_of(fmt.label, block), scheme, steps)


@keeps_subnormals
def _nvfp4(parts: Parts, settings: Settings) -> Restored:
    codes = unpack_fp4(parts[".weight_packed"] if ".weight_packed" in parts else parts[".weight"])
    blocks = parts[".weight_scale"].float()
    if ".weight_global_scale" in parts:
        blocks, word = blocks / parts[".weight_global_scale"].float(), "nvfp4-ct"
    else:
        blocks, word = blocks * parts[".weight_scale_2"].float(), "nvfp4"
    steps = blocks.repeat_interleave(codes.shape[1] // blocks.shape[1], 1)
    kind = "NVFP4 (E4M3 scale a group of 16, FP32 scale a tensor)"
    return Restored(codes * steps, kind, described("float4_e2m1fn", (1, 16), word), steps)


@keeps_subnormals
def _microscaling(parts: Parts, settings: Settings) -> Restored:
    scales, width = parts[".weight_scale"], _MX
    columns = width * scales.shape[1]
    if ".weight" in parts:
        fmt, values = float_format("float8_e4m3fn"), parts[".weight"].float()
    else:
        packed = parts[".weight_packed"]
        bits = 8 * packed.shape[1] // columns
        fmt = float_format({4: "float4_e2m1fn", 6: "float6_e2m3fn"}[bits])
        values = fmt.decode(unpack_bits(packed, bits, columns))
    steps = E8M0.decode(scales).repeat_interleave(width, 1)
    return Restored(values * steps, mx_kind(fmt), described(fmt.name, (1, width), "floor"), steps)


def mx_kind(fmt: FloatFormat) -> str:
    """ "MXFP6 E2M3": elements of ``fmt`` in groups of 32 under E8M0 scales."""
    return f"MX{fmt.label}" if fmt.bits > 4 else "MXFP4"


def _bitsandbytes(parts: Parts, settings: Settings) -> Restored:
    suffix = next(name for name in parts if name.startswith(_STATE))
    state = json.loads(bytes(parts[suffix].tolist()))
    absmax = parts[".weight.absmax"]
    nested = ".weight.nested_absmax" in parts
    if nested:
        above = _each(parts[".weight.nested_absmax"], state["nested_blocksize"], len(absmax))
        levels = parts[".weight.nested_quant_map"].float()
        absmax = levels[absmax.long()] * above + float(state["nested_offset"])
    raw = parts[".weight"].contiguous().view(torch.uint8).reshape(-1)
    codes = torch.stack((raw >> 4, raw & 15), 1).reshape(-1)
    shape, size = tuple(int(n) for n in state["shape"]), int(state["blocksize"])
    count = shape[0] * shape[1]
    if min(shape) < 0 or count > len(codes):
        raise ValueError(f"its state says {list(shape)}, and it has {len(codes):,} codes")
    steps = _each(absmax, size, count)
    values = parts[".weight.quant_map"].float()[codes[:count].long()] * steps
    fmt, label = {"nf4": ("nf4", "NF4"), "fp4": ("bnb_fp4", "FP4")}[state["quant_type"]]
    where = f"1x{size}" if shape[1] % size == 0 else f"flat{size}"
    rule = "nested~minmax~reciprocal~unrounded" if nested else "float32-zero~minmax~reciprocal"
    kind = f"{label} block {size}{', double-quantized' if nested else ''}"
    scheme = str(Scheme.parse(f"{fmt}~{where}~symmetric~{rule}"))
    return Restored(values.reshape(shape), kind, scheme, steps.reshape(shape))


def _each(scales: Tensor, size: int, count: int) -> Tensor:
    """float32 [count]: the scale of each of ``count`` values in blocks of ``size``, a number of the file."""
    if int(size) < 1:
        raise ValueError(f"its state says blocks of {size}")
    return scales.float()[torch.arange(count) // int(size)]


def _is_gptq(infos: Infos, settings: Settings) -> bool:
    return _has(infos, ".qzeros", ".scales") and infos[".qweight"].shape[-1] == infos[".scales"].shape[-1]


def _is_awq(infos: Infos, settings: Settings) -> bool:
    return _has(infos, ".qzeros", ".scales") and 8 * infos[".qweight"].shape[-1] == infos[".scales"].shape[-1]


def _has(infos: Infos, *suffixes: str) -> bool:
    return all(suffix in infos for suffix in suffixes)


def _is(infos: Infos, suffix: str, *dtypes: str) -> bool:
    return suffix in infos and infos[suffix].dtype in dtypes


_CT = (".weight_scale", ".weight_zero_point", ".weight_shape", ".weight_g_idx", ".weight_global_scale")
_OF_INPUTS = (
    ".input_scale",
    ".input_global_scale",
    ".input_zero_point",
    ".output_scale",
    ".k_scale",
    ".v_scale",
)
"""Of a layer, and no part of its weight."""
_BNB = (
    ".weight.absmax",
    ".weight.nested_absmax",
    ".weight.nested_quant_map",
    ".weight.quant_map",
    f"{_STATE}nf4",
    f"{_STATE}fp4",
)


def _four(infos: Infos) -> int:
    return 4


def _eight(infos: Infos) -> int:
    return 8


def _gptq_bits(infos: Infos) -> int:
    return _WORD * infos[".qzeros"].shape[1] // infos[".scales"].shape[1]


def _microscaling_bits(infos: Infos) -> int:
    return 8 * infos[".weight_packed"].shape[1] // (_MX * infos[".weight_scale"].shape[1])


LAYOUTS = (
    StoredLayout(".qweight", (".qzeros", ".scales", ".g_idx"), _is_gptq, _gptq, _gptq_bits),
    StoredLayout(".qweight", (".qzeros", ".scales"), _is_awq, _awq, _four),
    StoredLayout(
        ".weight_packed",
        _CT,
        lambda infos, _: (
            _is(infos, ".weight_packed", "I32") and _has(infos, ".weight_scale", ".weight_shape")
        ),
        _packed_integers,
        _four,
    ),
    StoredLayout(
        ".weight_packed",
        _CT,
        lambda infos, _: _is(infos, ".weight_packed", "U8") and _is(infos, ".weight_scale", "U8"),
        _microscaling,
        _microscaling_bits,
    ),
    StoredLayout(
        ".weight_packed",
        _CT,
        lambda infos, _: (
            _is(infos, ".weight_packed", "U8") and _has(infos, ".weight_scale", ".weight_global_scale")
        ),
        _nvfp4,
        _four,
    ),
    StoredLayout(
        ".weight",
        (".weight_scale", ".weight_scale_2"),
        lambda infos, _: _is(infos, ".weight", "U8") and _has(infos, ".weight_scale", ".weight_scale_2"),
        _nvfp4,
        _four,
    ),
    StoredLayout(
        ".weight",
        (".weight_scale",),
        lambda infos, _: _is(infos, ".weight", "F8_E4M3") and _is(infos, ".weight_scale", "U8"),
        _microscaling,
        _eight,
    ),
    StoredLayout(
        ".weight",
        (".weight_scale", ".weight_scale_inv"),
        lambda infos, _: (
            _is(infos, ".weight", *_F8)
            and (_is(infos, ".weight_scale", *_FLOATS) or _is(infos, ".weight_scale_inv", *_FLOATS))
        ),
        _float8,
        _eight,
    ),
    StoredLayout(
        ".weight",
        (".weight_scale", ".weight_zero_point"),
        lambda infos, _: _is(infos, ".weight", "I8") and _is(infos, ".weight_scale", *_FLOATS),
        _int8,
        _eight,
    ),
    StoredLayout(
        ".weight",
        (".SCB", ".weight_format"),
        lambda infos, _: _is(infos, ".weight", "I8") and _has(infos, ".SCB"),
        _llm_int8,
        _eight,
    ),
    StoredLayout(
        ".weight",
        _BNB,
        lambda infos, _: (
            _has(infos, ".weight.absmax", ".weight.quant_map")
            and any(suffix.startswith(_STATE) for suffix in infos)
        ),
        _bitsandbytes,
        _four,
    ),
)
"""The first that fits is taken. Beside them: the layouts that sources restore (``sources.coded``), and types
of GGUF."""
MAINS = tuple(dict.fromkeys(row.main for row in LAYOUTS))
BESIDE = tuple(dict.fromkeys([*(suffix for row in LAYOUTS for suffix in row.others), *_OF_INPUTS]))
"""Endings of tensors that are parts of a layer, or say something of its inputs."""
