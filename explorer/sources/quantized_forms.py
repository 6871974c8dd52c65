"""The forms in which checkpoints hold quantized weights: one row of ``FORMS`` a form.

A row says what marks a layer of its form, by the header entries of the tensors beside the weight and by
``quantization_config``, which may be missing or wrong, and restores the values that the codes stand for.
Layouts: the documentation of compressed-tensors, AutoGPTQ, AutoAWQ, bitsandbytes, torchao, HQQ, ModelOpt and
the OCP Microscaling specification; this project's writers of the same layouts, in ``explorer.checkpoints``,
draw them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from explorer.formats import E8M0, FloatFormat, float_format
from explorer.formats.packing import codes_in_words, unpack_bits
from explorer.formats.subnormals import keeps_subnormals
from explorer.progress import checkpoint
from explorer.sources.base import TensorInfo
from explorer.sources.matrix import unpack_fp4
from explorer.sources.safetensors_header import bytes_of

Parts = Mapping[str, Tensor]
"""Tensors of a layer by what follows its name: ".qweight"."""
Infos = Mapping[str, TensorInfo]
"""Their header entries, likewise."""
Settings = Mapping[str, object]
"""``quantization_config`` of config.json; empty where there is none."""
Read = Callable[[TensorInfo], Tensor]
Block = tuple[int | None, int | None]
Part = TypeVar("Part", Tensor, TensorInfo)
_WHOLE: dict[Block, tuple[str, str]] = {
    (None, None): ("tensor", "per tensor"), (1, None): ("row", "per row"),
}  # fmt: skip
"""Blocks that have a word in a scheme's text, and one for people."""
_WORD, _MX = 32, 32
_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16", torch.float32: "float32"}
_FLOATS, _EXPONENTS = ("F32", "F16", "BF16"), ("F8_E8M0", "U8")
_F8 = {"F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_F8_DTYPES = {torch.float8_e4m3fn: "float8_e4m3fn", torch.float8_e5m2: "float8_e5m2"}
_SCALES = (".weight_scale", ".weight_scale_inv", ".scale")
"""Names of the scales of codes that are called ``.weight``."""
_SHAPE = ".weight_shape"
_STATE = ".weight.quant_state.bitsandbytes__"
_INT8_STEPS = 127.0
"""LLM.int8() stores the largest magnitude of a row, which the code 127 stands for."""
AWQ_ORDER = (0, 2, 4, 6, 1, 3, 5, 7)
"""The codes of AWQ's words, from the lowest four bits up."""


@dataclass(frozen=True, eq=False)
class Restored:
    """A weight as the values of its codes.

    values  float32, in the weight's own shape
    kind    what is stored, in the field's words: "INT4 group 128, asymmetric"
    scheme  a text that ``Scheme.parse`` reads where the parts go together, of a scheme with such codes and
            scales; empty without one. How ranges and codes were chosen, a file does not say
    steps   float32, broadcast to ``values``: each element's scale; None without scales, or where they are
            not known
    """

    values: Tensor
    kind: str
    scheme: str = ""
    steps: Tensor | None = None


@dataclass(frozen=True)
class CodeForm:
    """One form.

    label    of the codes, in the field's words, from the header entries
    main     ending of the tensor of codes, which every layer of this form has
    others   endings of the other tensors of the weight
    fits     whether header entries are of this form
    shape    of the weight; ``ValueError`` where the entries do not fit together
    restore  the values; ``ValueError`` likewise
    along    the axis along which codes, and the other parts in ``rows``, follow the weight's rows; None where
             they do not, and the whole weight is restored to read its first rows; ``step`` rows of the
             weight, or a multiple, are whole words
    turned   whether transformers holds the weight [E, N, K] as [E, K, N]
    weight   ending of the weight's name in the network
    """

    label: Callable[[Infos, Settings], str]
    main: str
    others: tuple[str, ...]
    fits: Callable[[Infos, Settings], bool]
    shape: Callable[[Infos, Settings, Read], tuple[int, ...]]
    restore: Callable[[Parts, Infos, Settings], Restored]
    along: int | None = None
    rows: tuple[str, ...] = ()
    step: int = 1
    turned: bool = False
    weight: str = ".weight"


def form_of(infos: Infos, settings: Settings) -> CodeForm | None:
    """The form that the tensors of a layer are of; None for a weight that is stored as it is, and for one of
    a form that no row knows."""
    return next((row for row in FORMS if row.main in infos and row.fits(infos, settings)), None)


def first_rows(
    form: CodeForm,
    infos: Infos,
    read_rows: Callable[[TensorInfo, int | None], Tensor],
    total: int,
    rows: int | None,
) -> dict[str, Tensor]:
    """The tensors of a weight of ``total`` rows, cut to what its first ``rows`` need; whole if None."""
    if rows is None or form.along is None or rows >= total:
        return {end: read_rows(info, None) for end, info in infos.items()}
    found = {}
    rows += -rows % form.step
    for end, info in infos.items():
        length = info.shape[form.along] if end in form.rows and info.shape else 1
        count = None if length == 1 else min(length, -(-rows * length // total))
        if form.along == 0 or count is None:
            found[end] = read_rows(info, count)
        else:
            found[end] = read_rows(info, None)[:, :count].contiguous()
    return found


def scheme_text(fmt: str, block: Block, scale: str, mapping: str = "symmetric") -> str:
    """The text of the scheme with these parts, whether or not they go together."""
    height, width = block
    where = _WHOLE[block][0] if block in _WHOLE else f"{height or 'all'}x{width or 'all'}"
    return f"{fmt}~{where}~{mapping}~{scale}~minmax"


def kind_of(label: str, block: Block, *more: str) -> str:
    """ "INT4 group 128, asymmetric" """
    height, width = block
    group = f"group {width}" if height == 1 else f"{height or 'all'}×{width or 'all'}"
    return ", ".join(
        [f"{label} {_WHOLE[block][1] if block in _WHOLE else group}", *(text for text in more if text)]
    )


def mx_kind(fmt: FloatFormat) -> str:
    """ "MXFP6 E2M3": elements of ``fmt`` in groups of 32 under E8M0 scales."""
    return f"MX{fmt.label}" if fmt.bits > 4 else "MXFP4"


def _stated(settings: Settings) -> Iterator[Mapping[str, object]]:
    """The parts of ``quantization_config`` that describe weights."""
    yield settings
    groups = settings.get("config_groups")
    for group in groups.values() if isinstance(groups, Mapping) else ():
        if isinstance(group, Mapping) and isinstance(group.get("weights"), Mapping):
            yield group["weights"]


def _stated_blocks(settings: Settings) -> Iterator[tuple[int, int]]:
    """Rows and columns of a scale's block, wherever ``quantization_config`` states them."""
    for part in _stated(settings):
        for block in (
            part.get("weight_block_size"),
            part.get("block_structure"),
            [1, part.get("group_size")],
        ):
            if isinstance(block, list) and len(block) == 2 and all(type(n) is int and n > 0 for n in block):
                yield block[0], block[1]


def _side(length: int, count: int, stated: Iterable[int]) -> int:
    """How many of ``length`` codes in a line have one of its ``count`` scales: the number of those ``stated``
    that fits, else the only one of equal shares and of powers of two that does.

    ``ValueError`` where there are none, or several: a block that is cut at the edge may have several sizes.
    """
    if count == 1:
        return max(length, 1)
    if count < 1:
        raise ValueError(f"{length:,} codes in a line have {count:,} scales")
    fitting = {side for side in stated if -(-length // side) == count}
    if len(fitting) == 1:
        return fitting.pop()
    equal = {length // count} if length % count == 0 else set()
    powers = {1 << n for n in range(length.bit_length()) if -(-length // (1 << n)) == count}
    found = fitting or equal | powers
    if len(found) != 1 or not equal | fitting:
        sizes = f"blocks of {' or '.join(f'{n:,}' for n in sorted(found))} fit" if found else "no size fits"
        raise ValueError(
            f"{length:,} codes in a line have {count:,} scales, and quantization_config states no "
            f"group_size, block_structure or weight_block_size that fits: {sizes}"
        )
    return found.pop()


def _steps(scales: Tensor) -> Tensor:
    """float32 of scales in a float dtype, or of E8M0 exponents."""
    if scales.dtype in (torch.uint8, torch.float8_e8m0fnu):
        return E8M0.decode(scales.view(torch.uint8))
    return scales.float()


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
    if len(grid) not in (1, rows):
        raise ValueError(f"{rows:,} rows of codes have {len(grid):,} rows of scales")
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
    grouped = count > 1 or (len(grid) == rows and (1, columns) in _stated_blocks(settings))
    block = (1, width) if grouped else (None if grid.numel() == 1 < rows else 1, None)
    mixed = groups is not None and bool((groups[1:] < groups[:-1]).any())
    words = "asymmetric" if mapping == "asymmetric" else ""
    kind = kind_of(f"INT{bits}", block, words, "groups by activation order" if mixed else "")
    rule = _DTYPES.get(scales.dtype, "float32")
    scheme = scheme_text(f"int{bits}", block, rule, mapping) if torch.equal(where, even) else ""
    return Restored(signed.float() * steps, kind, scheme, steps)


def _gptq(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    scales, bits = parts[".scales"], _gptq_bits(infos)
    count, rows = scales.shape
    columns = _WORD * parts[".qweight"].shape[0] // bits
    codes = codes_in_words(parts[".qweight"].t(), bits, columns)
    if _is_second_version(parts[".qzeros"], settings):
        zeros = codes_in_words(parts[".qzeros"], bits, rows)
    else:
        zeros = _one_more(parts[".qzeros"], bits, rows)
    groups = _groups_of(parts[".g_idx"], columns, count) if ".g_idx" in parts else None
    return _integers(codes, zeros.t(), scales.t(), bits, settings, groups)


def _is_second_version(words: Tensor, settings: Settings) -> bool:
    """Whether zero points are stored themselves, not less one; ``ValueError`` where nothing says so."""
    stated = settings.get("checkpoint_format") or settings.get("format")
    if stated or settings:
        return str(stated).lower() == "gptq_v2"
    first = int(words.reshape(-1)[0]) & 0xFFFFFFFF if words.numel() else 0
    if first in (0x77777777, 0x88888888) and bool((words == words.reshape(-1)[0]).all()):
        return first == 0x88888888
    raise ValueError("no quantization_config says of which version of GPTQ's layout its zero points are")


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


def in_awq_order(words: Tensor) -> Tensor:
    """uint8 [rows, N]: the codes of AWQ's words int32 [rows, N/8]."""
    mixed = codes_in_words(words, 4, 8 * words.shape[1])
    back = [AWQ_ORDER.index(place) for place in range(8)]
    return mixed.unflatten(1, (-1, 8))[:, :, back].flatten(1)


def _awq(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    codes, zeros = in_awq_order(parts[".qweight"]).t(), in_awq_order(parts[".qzeros"]).t()
    return _integers(codes, zeros, parts[".scales"].t(), 4, settings)


def _packed_integers(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    packed, scales = parts[".weight_packed"], parts[".weight_scale"]
    rows, columns = parts[_SHAPE].tolist()
    if columns < 1 or rows != infos[".weight_packed"].shape[0]:
        held = infos[".weight_packed"].shape[0]
        raise ValueError(f"its {_SHAPE} says [{rows}, {columns}], and it has codes of {held} rows")
    bits, rows = _WORD * packed.shape[1] // columns, len(packed)
    codes, zeros = codes_in_words(packed, bits, columns), parts.get(".weight_zero_point")
    if zeros is not None and zeros.dtype is torch.int32:
        zeros = codes_in_words(zeros.t(), bits, rows).t()
    elif zeros is not None:
        zeros = zeros.to(torch.int16) + (1 << (bits - 1))
    groups = parts.get(".weight_g_idx")
    groups = None if groups is None or bool((groups == -1).any()) else groups
    if groups is not None:
        groups = _groups_of(groups, columns, scales.shape[1])
    return _integers(codes, zeros, scales, bits, settings, groups)


def _int8(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    codes, scales = _of(parts, ".weight", "._weight_qdata"), _of(parts, *_SCALES, "._weight_scale")
    zeros = next((parts[end] for end in (".weight_zero_point", "._weight_zero_point") if end in parts), None)
    zeros = None if zeros is None else zeros.to(torch.int16) + 128
    return _integers(codes.view(torch.uint8) ^ 128, zeros, scales, 8, settings)


def _llm_int8(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    if int(parts.get(".weight_format", torch.zeros(1)).reshape(-1)[0]):
        raise ValueError("its INT8 codes are in the order of one GPU's tiles; rows are read")
    scales = parts[".SCB"].float()[:, None] / _INT8_STEPS
    found = _integers(parts[".weight"].view(torch.uint8) ^ 128, None, scales, 8, settings)
    return Restored(found.values, f"{found.kind} (LLM.int8())", found.scheme, found.steps)


def _of(parts: Mapping[str, Part], *ends: str) -> Part:
    """The first of ``parts`` that there is."""
    return next(parts[end] for end in ends if end in parts)


def _block(infos: Infos, scales: str, settings: Settings) -> Block:
    """Rows and columns of the codes of a scale, from the shapes [N, K] of codes and [N, G], [N], [1] or [] of
    scales; None for all."""
    shape, grid = infos[".weight" if ".weight" in infos else "._weight_qdata"].shape, infos[scales].shape
    if len(shape) != 2 or len(grid) > 2:
        raise ValueError(f"its codes have {len(shape)} axes and its scales {len(grid)}; matrices are read")
    if len(grid) == 1 and grid[0] not in (1, shape[0]):
        raise ValueError(f"{shape[0]:,} rows of codes have {grid[0]:,} scales")
    grid = (*grid, 1, 1)[:2]
    stated = [
        block
        for block in _stated_blocks(settings)
        if tuple(-(-n // side) for n, side in zip(shape, block, strict=True)) == grid
    ]
    claimed = settings.get("weight_block_size") and not stated
    if claimed and len(infos[scales].shape) == 2 and grid == (1, 1):
        raise ValueError(f"its one scale has the shape [1, 1]; its codes {list(shape)} need one a block")
    tall = _side(shape[0], grid[0], (down for down, _ in stated))
    wide = _side(shape[1], grid[1], (across for _, across in stated))
    if "._weight_qdata" in infos and grid[0] not in (1, shape[0]):
        raise ValueError(f"its scales have the shape {list(grid)}: their order is not known")
    return None if grid[0] == 1 else tall, None if grid[1] == 1 else wide


def _spread(scales: Tensor, shape: torch.Size, block: Block) -> Tensor:
    """float32 of ``shape``: the scale of each element, of scales that serve ``block`` elements each."""
    grid = _steps(scales)
    grid = grid.reshape(-1, 1) if grid.dim() < 2 else grid
    for axis, side in enumerate(block):
        if side != 1 and side is not None:
            grid = grid.index_select(axis, torch.arange(shape[axis]) // side)
    return grid.expand(shape)


@keeps_subnormals
def _scaled_floats(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    codes = _of(parts, ".weight", "._weight_qdata")
    name = _scales_name(infos)
    block = _block(infos, name, settings)
    values = codes.float()
    steps = _spread(parts[name], values.shape, block)
    fmt = float_format(_F8_DTYPES[codes.dtype])
    if infos[name].dtype in _EXPONENTS:
        kind = mx_kind(fmt) if block == (1, _MX) else kind_of(fmt.label, block, "E8M0 scales")
        return Restored(values.mul_(steps), kind, scheme_text(fmt.name, block, "floor"), steps)
    rule = _DTYPES.get(parts[name].dtype, "float32")
    return Restored(values.mul_(steps), kind_of(fmt.label, block), scheme_text(fmt.name, block, rule), steps)


def _scales_name(infos: Infos) -> str:
    """The ending of the scales of codes that are called ``.weight``."""
    return next(end for end in (*_SCALES, "._weight_scale") if end in infos)


@keeps_subnormals
def _nvfp4(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    codes = unpack_fp4(_of(parts, ".weight_packed", ".weight"))
    blocks = parts[".weight_scale"].float()
    if ".weight_global_scale" in parts:
        blocks, word = blocks / parts[".weight_global_scale"].float(), "nvfp4-ct"
    else:
        blocks, word = blocks * parts[".weight_scale_2"].float(), "nvfp4"
    steps = blocks.repeat_interleave(codes.shape[1] // blocks.shape[1], 1)
    kind = "NVFP4 (E4M3 scale a group of 16, FP32 scale a tensor)"
    return Restored(codes * steps, kind, scheme_text("float4_e2m1fn", (1, 16), word), steps)


def _element(infos: Infos, settings: Settings) -> FloatFormat | None:
    """The format of codes in bytes under E8M0 scales of 32 each, by the bytes that a scale has; None where
    that says nothing: bytes of one code each are E4M3 where the dtype or the configuration says so."""
    codes, scales = _of(infos, ".weight_packed", ".weight"), infos[_scales_name(infos)]
    if len(codes.shape) != 2 or len(scales.shape) != 2 or codes.shape[0] != scales.shape[0]:
        return None
    bits = codes.shape[1] * (4 if codes.dtype == "F4" else 8)
    each = {n: _MX * n * scales.shape[1] for n in (4, 6, 8)}
    if codes.dtype not in ("U8", "I8", "F4"):
        return None
    if bits == each[8]:
        return float_format("float8_e4m3fn") if settings.get("quant_method") == "mxfp8" else None
    names = {each[4]: "float4_e2m1fn"}
    said = str(settings).lower()
    if (".weight_packed" in infos or "mxfp6" in said) and "e3m2" not in said:  # compressed-tensors has E2M3
        names[each[6]] = "float6_e2m3fn"
    return float_format(names[bits]) if bits in names else None


@keeps_subnormals
def _microscaling(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    fmt = _element(infos, settings)
    assert fmt is not None
    raw = _of(parts, ".weight_packed", ".weight").view(torch.uint8)
    steps = _steps(parts[_scales_name(infos)]).repeat_interleave(_MX, 1)
    values = fmt.decode(unpack_bits(raw, fmt.bits, steps.shape[1]))
    return Restored(values * steps, mx_kind(fmt), scheme_text(fmt.name, (1, _MX), "floor"), steps)


@keeps_subnormals
def _experts(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    """[E, N, K] of blocks [E, N, K/32, 16] and their scales [E, N, K/32], an expert at a time."""
    blocks, scales = parts["_blocks"], parts["_scales"]
    experts, outputs, groups, size = blocks.shape
    values = torch.empty(experts, outputs, groups * size * 2)
    for expert in range(experts):
        checkpoint()
        values[expert] = (unpack_fp4(blocks[expert]) * _steps(scales[expert])[..., None]).flatten(1)
    steps = _steps(scales).repeat_interleave(_MX, -1)
    return Restored(values, "MXFP4", scheme_text("float4_e2m1fn", (1, _MX), "floor"), steps)


def _state_of(read: Callable[[str], Tensor], names: Iterable[str]) -> dict[str, object]:
    """What a layer of bitsandbytes says of its codes, as JSON in a tensor of bytes."""
    state = json.loads(bytes(read(next(name for name in names if name.startswith(_STATE))).tolist()))
    if not isinstance(state, dict):
        raise ValueError("its state is no JSON object")
    return state


def _bitsandbytes(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    state = _state_of(parts.__getitem__, parts)
    absmax = parts[".weight.absmax"]
    nested = ".weight.nested_absmax" in parts
    if nested:
        above = _each(parts[".weight.nested_absmax"], state["nested_blocksize"], len(absmax))
        levels = parts[".weight.nested_quant_map"].float()
        absmax = levels[absmax.long()] * above + float(state["nested_offset"])  # type: ignore[arg-type]
    raw = parts[".weight"].contiguous().view(torch.uint8).reshape(-1)
    codes = torch.stack((raw >> 4, raw & 15), 1).reshape(-1)
    shape, size = _stated_shape(state), int(state["blocksize"])  # type: ignore[call-overload]
    count = math.prod(shape)
    steps = _each(absmax, size, count)
    values = parts[".weight.quant_map"].float()[codes[:count].long()] * steps
    fmt, label = {"nf4": ("nf4", "NF4"), "fp4": ("bnb_fp4", "FP4")}[str(state["quant_type"])]
    where = f"1x{size}" if shape[1] % size == 0 else f"flat{size}"
    rule = "nested~minmax~reciprocal~unrounded" if nested else "float32-zero~minmax~reciprocal"
    kind = f"{label} block {size}{', double-quantized' if nested else ''}"
    return Restored(values.reshape(shape), kind, f"{fmt}~{where}~symmetric~{rule}", steps.reshape(shape))


def _stated_shape(state: Mapping[str, object]) -> tuple[int, int]:
    """The two axes that a layer of bitsandbytes says it has."""
    shape = state.get("shape")
    if not isinstance(shape, list) or len(shape) != 2 or not all(type(n) is int for n in shape):
        raise ValueError("its state names no shape of two axes")
    return shape[0], shape[1]


def _each(scales: Tensor, size: object, count: int) -> Tensor:
    """float32 [count]: the scale of each of ``count`` values in blocks of ``size``, a number of the file."""
    if type(size) is not int or size < 1:
        raise ValueError(f"its state says blocks of {size}")
    if len(scales) != -(-count // size):
        raise ValueError(f"its state says blocks of {size}, and {count:,} values have {len(scales):,} scales")
    return scales.float()[torch.arange(count) // size]


def _hqq(parts: Parts, infos: Infos, settings: Settings) -> Restored:
    """Codes of groups that lie in rows ([N·K/G, G], axis 1) or columns ([G, N·K/G], axis 0), several a byte:
    the first rows in the high bits. Values are (code - zero) · scale."""
    bits, axis = int(parts[".nbits"]), int(parts[".axis"])
    rows, columns = parts[".shape"].tolist()
    packed, each = parts[".W_q"], 8 // bits
    shifts = range(8 - bits, -1, -bits)
    codes = torch.cat([(packed >> shift) & ((1 << bits) - 1) for shift in shifts])
    scale, zero = parts[".scale"].float(), parts[".zero"].float()
    groups = (1, -1) if axis == 0 else (-1, 1)
    grid, points = scale.reshape(groups), zero.reshape(groups)
    if codes.numel() != rows * columns or grid.numel() != codes.shape[1 - axis] or each * bits != 8:
        raise ValueError(f"its shape says [{rows}, {columns}], and it has {codes.numel():,} codes")
    steps = grid.expand(codes.shape).reshape(rows, columns)
    values = ((codes.float() - points) * grid).reshape(rows, columns)
    size = codes.numel() // grid.numel()
    return Restored(values, f"INT{bits} groups of {size}, zero points in floating point (HQQ)", "", steps)


def _has(infos: Infos, *ends: str) -> bool:
    return all(end in infos for end in ends)


def _is(infos: Infos, end: str, *dtypes: str) -> bool:
    return end in infos and infos[end].dtype in dtypes


def _scaled(infos: Infos, *dtypes: str) -> bool:
    """Whether codes that are called ``.weight`` have scales in one of ``dtypes``."""
    return any(_is(infos, end, *dtypes) for end in (*_SCALES, "._weight_scale"))


def _same(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    """The shape of one code a byte, whose scales fit it."""
    _block(infos, _scales_name(infos), settings)
    return _of(infos, ".weight", "._weight_qdata").shape


def _in_rows(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    """Of INT8, whose scales are of rows, of groups along them, or of the whole."""
    tall, _ = _block(infos, _scales_name(infos), settings)
    zeros = [infos[end] for end in _ZEROS if end in infos]
    if tall not in (1, None) or any(zero.dtype in _FLOATS for zero in zeros):
        raise ValueError("read are INT8 codes with scales of rows or groups, and integer zero points")
    return _same(infos, settings, read)


def _gptq_bits(infos: Infos) -> int:
    bits = _WORD * infos[".qzeros"].shape[1] // infos[".scales"].shape[1]
    if bits not in (2, 3, 4, 8):
        raise ValueError(f"its zero points and scales make codes of {bits} bits; read are 2, 3, 4 and 8")
    return bits


def _gptq_shape(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    words, rows = infos[".qweight"].shape
    if settings.get("quant_method") == "awq":
        raise ValueError("its config says AWQ, and its tensors have the shapes of GPTQ")
    if (stated := settings.get("bits")) not in (None, _gptq_bits(infos)) and not settings.get("dynamic"):
        raise ValueError(f"its tensors hold codes of {_gptq_bits(infos)} bits, and its config says {stated}")
    return rows, _WORD * words // _gptq_bits(infos)


def _awq_shape(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    if (version := str(settings.get("version") or "gemm").lower()) != "gemm":
        raise ValueError(f"its codes lie in AWQ's order {version!r}; only 'gemm' is read")
    columns, words = infos[".qweight"].shape
    return 8 * words, columns


def _packed_shape(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    """Of ``.weight_shape``: from the bits that the configuration states, or the two numbers themselves."""
    rows, words = infos[".weight_packed"].shape
    stated = {part["num_bits"] for part in _stated(settings) if "num_bits" in part}
    bits, grid = stated.pop() if len(stated) == 1 else None, infos[".weight_scale"].shape
    if type(bits) is int and bits in (4, 8) and len(grid) == 2 and grid[1] > 1:
        columns = _WORD * words // bits
        if any(across * grid[1] == columns for _, across in _stated_blocks(settings)):
            return rows, columns  # without a read: groups are whole
    if infos[_SHAPE].shape != (2,):
        raise ValueError(f"its {_SHAPE} is no pair of numbers")
    stored = [int(n) for n in read(infos[_SHAPE])]
    if stored[0] != rows or not 0 < stored[1] <= _WORD * words:
        raise ValueError(f"its {_SHAPE} says {stored}, and it has codes of {rows} rows")
    return rows, stored[1]


def _two_codes(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    codes, scales = _of(infos, ".weight_packed", ".weight"), infos[".weight_scale"].shape
    rows, columns = codes.shape[0], codes.shape[-1] * (1 if codes.dtype == "F4" else 2)
    above = infos[next(end for end in (".weight_global_scale", ".weight_scale_2") if end in infos)]
    if math.prod(above.shape) != 1:
        raise ValueError(f"its tensor scale has the shape {list(above.shape)}; it is one number")
    if len(codes.shape) != 2 or len(scales) != 2 or scales[0] != rows or scales[1] * 16 != columns:
        raise ValueError(
            f"its scales have the shape {list(scales)}; its codes need [{rows}, {columns // 16}]"
        )
    return rows, columns


def _by_element(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    rows, groups = infos[_scales_name(infos)].shape
    return rows, _MX * groups


def _experts_shape(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    experts, outputs, groups, size = infos["_blocks"].shape
    if size != _MX // 2:
        raise ValueError(f"blocks are of {size} bytes; MXFP4 has {_MX // 2}")
    if "_scales" not in infos:
        raise ValueError("it has no scales: its codes mean nothing without them")
    if infos["_scales"].dtype not in _EXPONENTS:
        raise ValueError(f"its scales are {infos['_scales'].dtype}; accepted are {', '.join(_EXPONENTS)}")
    if infos["_scales"].shape != (experts, outputs, groups):
        shape = list(infos["_scales"].shape)
        raise ValueError(f"its scales have the shape {shape}; its codes need {[experts, outputs, groups]}")
    return experts, outputs, groups * size * 2


def _bnb_shape(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    shape = _stated_shape(_state_of(lambda end: read(infos[end]), infos))
    codes = 2 * bytes_of(infos[".weight"])
    if min(shape) < 0 or math.prod(shape) > codes:
        raise ValueError(f"its state says {list(shape)}, and it has {codes:,} codes")
    return shape


def _hqq_shape(infos: Infos, settings: Settings, read: Read) -> tuple[int, ...]:
    rows, columns = (int(n) for n in read(infos[".shape"]))
    if not 0 <= rows * columns <= 8 * math.prod(infos[".W_q"].shape):
        raise ValueError(f"its shape says [{rows}, {columns}], and it has fewer codes")
    return rows, columns


def _format_label(infos: Infos, settings: Settings) -> str:
    fmt = float_format(_F8[_of(infos, ".weight", "._weight_qdata").dtype])
    name = _scales_name(infos)
    exponents = infos[name].dtype in _EXPONENTS and _block(infos, name, settings) == (1, _MX)
    return mx_kind(fmt) if exponents else fmt.label


def _element_label(infos: Infos, settings: Settings) -> str:
    fmt = _element(infos, settings)
    assert fmt is not None
    return mx_kind(fmt)


def _packed_label(infos: Infos, settings: Settings) -> str:
    stated = {part["num_bits"] for part in _stated(settings) if "num_bits" in part}
    return f"INT{stated.pop()}" if len(stated) == 1 else "INT"


_CODES = (".weight", ".weight_packed", "._weight_qdata", "._weight_scale", *_SCALES)
_ZEROS = (".weight_zero_point", "._weight_zero_point")
OF_INPUTS = (
    ".input_scale", ".input_global_scale", ".input_zero_point", ".output_scale", ".k_scale", ".v_scale",
)  # fmt: skip
"""Endings of tensors of a quantized layer that are no part of its weight."""


def _always(label: str) -> Callable[[Infos, Settings], str]:
    return lambda infos, settings: label


FORMS = (
    CodeForm(
        lambda infos, _: f"INT{_gptq_bits(infos)}",
        ".qweight",
        (".qzeros", ".scales", ".g_idx"),
        lambda infos, _: (
            _has(infos, ".qzeros", ".scales") and infos[".qweight"].shape[-1] == infos[".scales"].shape[-1]
        ),
        _gptq_shape,
        _gptq,
        along=1,
        rows=(".qweight", ".qzeros", ".scales"),
        step=_WORD,
    ),
    CodeForm(
        _always("INT4"),
        ".qweight",
        (".qzeros", ".scales"),
        lambda infos, _: (
            _has(infos, ".qzeros", ".scales")
            and 8 * infos[".qweight"].shape[-1] == infos[".scales"].shape[-1]
        ),
        _awq_shape,
        _awq,
        along=1,
        rows=(".qweight", ".qzeros", ".scales"),
        step=_WORD,
    ),
    CodeForm(
        _packed_label,
        ".weight_packed",
        (".weight_scale", ".weight_zero_point", _SHAPE, ".weight_g_idx"),
        lambda infos, _: _is(infos, ".weight_packed", "I32") and _has(infos, ".weight_scale", _SHAPE),
        _packed_shape,
        _packed_integers,
        along=0,
        rows=(*_CODES, *_ZEROS),
        step=_WORD,
    ),
    *(
        CodeForm(
            _always("NVFP4"),
            main,
            (".weight_scale", above),
            lambda infos, _, main=main, above=above: (  # type: ignore[misc]
                _is(infos, main, "U8", "F4") and _is(infos, ".weight_scale", "F8_E4M3") and above in infos
            ),
            _two_codes,
            _nvfp4,
            along=0,
            rows=_CODES,
        )
        for main, above in ((".weight_packed", ".weight_global_scale"), (".weight", ".weight_scale_2"))
    ),
    *(
        CodeForm(
            _element_label,
            main,
            _SCALES,
            lambda infos, settings: (
                _scaled(infos, *_EXPONENTS) and _element(infos, settings) is not None
            ),
            _by_element,
            _microscaling,
            along=0,
            rows=_CODES,
        )
        for main in (".weight_packed", ".weight")
    ),
    *(
        CodeForm(
            _format_label,
            main,
            (*_SCALES, "._weight_scale"),
            lambda infos, _, main=main: (  # type: ignore[misc]
                _is(infos, main, *_F8) and _scaled(infos, *_FLOATS, *_EXPONENTS)
            ),
            _same,
            _scaled_floats,
            along=0,
            rows=_CODES,
        )
        for main in (".weight", "._weight_qdata")
    ),
    *(
        CodeForm(
            _always("INT8"),
            main,
            (*_SCALES, "._weight_scale", *_ZEROS),
            lambda infos, _, main=main: (  # type: ignore[misc]
                _is(infos, main, "I8") and _scaled(infos, *_FLOATS)
            ),
            _in_rows,
            _int8,
            along=0,
            rows=(*_CODES, *_ZEROS),
        )
        for main in (".weight", "._weight_qdata")
    ),
    CodeForm(
        _always("INT8"),
        ".weight",
        (".SCB", ".weight_format"),
        lambda infos, _: _is(infos, ".weight", "I8") and ".SCB" in infos,
        lambda infos, settings, read: infos[".weight"].shape,
        _llm_int8,
        along=0,
        rows=(".weight", ".SCB"),
    ),
    CodeForm(
        lambda infos, _: "FP4" if f"{_STATE}fp4" in infos else "NF4",
        ".weight",
        (
            ".weight.absmax", ".weight.nested_absmax", ".weight.nested_quant_map", ".weight.quant_map",
            f"{_STATE}nf4", f"{_STATE}fp4",
        ),
        lambda infos, _: (
            _has(infos, ".weight.absmax", ".weight.quant_map")
            and any(end.startswith(_STATE) for end in infos)
        ),
        _bnb_shape,
        _bitsandbytes,
    ),
    CodeForm(
        _always("MXFP4"),
        "_blocks",
        ("_scales",),
        lambda infos, settings: (
            _is(infos, "_blocks", "U8")
            and len(infos["_blocks"].shape) == 4
            and (_is(infos, "_scales", *_EXPONENTS) or settings.get("quant_method") == "mxfp4")
        ),
        _experts_shape,
        _experts,
        along=0,
        rows=("_blocks", "_scales"),
        turned=True,
        weight="",
    ),
    CodeForm(
        _always("INT"),
        ".W_q",
        (
            ".scale", ".zero", ".nbits", ".axis", ".shape", ".group_size", ".packing", ".unpack_view_dtype",
            ".view_as_float", ".compute_dtype", ".channel_wise", ".optimize", ".round_zero", ".offload_meta",
            ".stores_quant_config", ".encoded_state_dict",
        ),
        lambda infos, _: (
            _is(infos, ".W_q", "U8")
            and _is(infos, ".scale", *_FLOATS)
            and _has(infos, ".zero", ".nbits", ".axis", ".shape")
        ),
        _hqq_shape,
        _hqq,
    ),
)  # fmt: skip
"""The first that fits is taken. GGUF's types are read by ``gguf_file``."""
MAINS = tuple(dict.fromkeys(row.main for row in FORMS))
EXTRA = (*_SCALES, *_ZEROS, ".weight_scale_2", ".weight_global_scale", ".weight_offset", ".weight_shift",
         ".scales", ".zeros", ".zero", ".qzeros", ".SCB")  # fmt: skip
"""Endings of tensors that change what codes stand for: one that a form does not know is no part of it."""
BESIDE = tuple(dict.fromkeys(end for row in FORMS for end in row.others))
