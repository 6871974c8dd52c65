"""Follow one element through quantization: its block, its code, and the arithmetic in numbers."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor

from explorer.core.blocks import Rectangle
from explorer.core.encode import NO_RECIPROCAL, least_value, scaled_blocks
from explorer.core.quantize import QuantizedTensor
from explorer.formats import BitField
from explorer.formats.code import code_formula, short
from explorer.formats.packing import unpack
from explorer.schemes.levels import NestedLevel, UpperLevel
from explorer.schemes.rules import Ties

Place = TypeVar("Place", int, Tensor)


@dataclass(frozen=True)
class Inspection:
    """One element, its block, and the arithmetic of its restored value.

    rows, columns  [start, stop) of the block; of a block of the flattened tensor, its part in the element's
    row bits, fields   the code, most significant bit first, and the meaning of its bits packed_hex     bytes
    of the block's codes in the element's row arithmetic     (quantity, formula with numbers), from the
    block's range to the error
    """

    row: int
    column: int
    rows: tuple[int, int]
    columns: tuple[int, int]
    value: float
    scale: float
    zero_point: int | None
    code: int
    bits: str
    fields: tuple[BitField, ...]
    code_value: float
    restored: float
    error: float
    packed_hex: str
    arithmetic: tuple[tuple[str, str], ...] = ()


def inspect_element(x: Tensor, q: QuantizedTensor, row: int, column: int) -> Inspection:
    """Follow x[row, column] through ``q``. ``ValueError`` with the accepted range if it lies outside."""
    if not (0 <= row < q.shape[0] and 0 <= column < q.shape[1]):
        raise ValueError(f"row 0 to {q.shape[0] - 1} and column 0 to {q.shape[1] - 1}, not ({row}, {column})")
    fmt, cell = q.scheme.format, block_index(q, row, column)
    rows, columns = _block_span(q, row, column)
    codes = unpack(q.packed[row : row + 1], fmt, q.shape[1])
    code = int(codes[0, column]) & (2**fmt.bits - 1)
    zero = None if q.scales.zero_points is None else int(q.scales.zero_points[cell])
    scale = float(q.scales.scale[cell]) if q.scheme.scale is not None else 1.0
    code_value = float(fmt.decode(codes[:, column : column + 1])[0, 0])
    value = float(x[row, column])
    restored = _restored(q, code_value - (zero or 0), scale, cell)
    element = Inspection(
        row=row,
        column=column,
        rows=rows,
        columns=columns,
        value=value,
        scale=scale,
        zero_point=zero,
        code=code,
        bits=format(code, f"0{fmt.bits}b"),
        fields=fmt.fields,
        code_value=code_value,
        restored=restored,
        error=restored - value,
        packed_hex=packed_hex(q, row, columns),
    )
    return dataclasses.replace(element, arithmetic=tuple(_arithmetic(x, q, element)))


def _restored(q: QuantizedTensor, units: float, scale: float, cell: tuple[int, int]) -> float:
    """scale · (value - zero point) + offset in float32, as ``dequantize`` computes it."""
    offset = q.scales.offsets
    product = torch.tensor(units - (q.scales.first_code if offset is not None else 0)) * torch.tensor(scale)
    return float(product if offset is None else product + offset[cell].cpu())


def block_index(q: QuantizedTensor, row: Place, column: Place) -> tuple[Place, Place]:
    """Index of the scale of element (row, column) in ``q``'s scales; of many elements as integer tensors."""
    height, width = q.scheme.block
    if q.scheme.flat and width:
        return row * 0, (row * q.shape[1] + column) // width
    return row // (height or q.shape[0]), column // (width or q.shape[1])


def packed_hex(q: QuantizedTensor, row: int, columns: tuple[int, int], limit: int = 48) -> str:
    """Bytes of one block's codes in ``row``, in hexadecimal, at most ``limit`` of them."""
    per_element = q.scheme.format.packed_bits / 8
    first, last = math.floor(columns[0] * per_element), math.ceil(columns[1] * per_element)
    shown = q.packed[row, first : min(last, first + limit)].tolist()
    more = last - first - len(shown)
    return " ".join(f"{byte:02X}" for byte in shown) + (f" … {more} more" if more > 0 else "")


def _block_span(q: QuantizedTensor, row: int, column: int) -> tuple[tuple[int, int], tuple[int, int]]:
    height, width = q.scheme.block
    if not q.scheme.flat:
        return _span(row, q.shape[0], height), _span(column, q.shape[1], width)
    before = row * q.shape[1]
    start, stop = _span(before + column, q.shape[0] * q.shape[1], width)
    return (row, row + 1), (max(start - before, 0), min(stop - before, q.shape[1]))


def _block_values(x: Tensor, q: QuantizedTensor, e: Inspection) -> Tensor:
    if q.scheme.flat:
        return x.reshape(-1)[slice(*_span(e.row * q.shape[1] + e.column, x.numel(), q.scheme.block[1]))]
    return x[slice(*e.rows), slice(*e.columns)]


def _span(index: int, length: int, size: int | None) -> tuple[int, int]:
    """[start, stop) of the block around ``index`` along one axis; ``size`` None is the whole axis."""
    if size is None:
        return 0, length
    start = index // size * size
    return start, min(start + size, length)


def _arithmetic(x: Tensor, q: QuantizedTensor, e: Inspection) -> Iterator[tuple[str, str]]:
    fmt, zero, offset = q.scheme.format, e.zero_point, _offset(q, e)
    minus = short(e.code_value) if zero is None else f"({short(e.code_value)} − ({zero}))"
    if offset is not None and q.scales.first_code:
        minus = f"({minus} − ({q.scales.first_code}))"
    if q.scheme.scale is not None:
        yield from _scaling(x, q, e)
    code = f"{short(e.code_value)}, code 0x{e.code:0{-(-fmt.bits // 4)}X}"
    yield "rounded", f"{_rounding(x, q, e)} → {code}"
    yield "the code's value", code_formula(fmt, e.code)
    added = "" if offset is None else f" + ({short(offset)})"
    product = f"{minus} × {short(e.scale)}{added} = " if q.scheme.scale is not None else ""
    yield "restored", f"{product}{short(e.restored)}"
    relative = f" ({100 * e.error / e.value:+.3g} %)" if e.value else ""
    yield "error", f"{short(e.restored)} − {short(e.value)} = {short(e.error)}{relative}"


def _rounding(x: Tensor, q: QuantizedTensor, e: Inspection) -> str:
    scheme, scaled = q.scheme, _exact(_in_units(x, q, e))
    if _fitted(q):
        return "by the scale before it was refitted"
    words = "round at random" if scheme.seed is not None else _ROUND[scheme.codes.ties]
    if e.zero_point is not None and scheme.codes.zero_first:
        return f"{words}({scaled} + ({e.zero_point}){_in_bfloat16(q)})"
    added = int(scheme.code_limits[0]) if scheme.mapping.has_offset else e.zero_point
    return f"{words}({scaled})" + ("" if added is None else f" + ({added})")


_ROUND = {Ties.EVEN: "round", Ties.AWAY: "round ties away", Ties.UP: "round ties up"}


def _fitted(q: QuantizedTensor) -> bool:
    """True if the scales by which the codes were computed are not known."""
    return q.scheme.least_squares_scale and q.scales.unrounded is None


def _scaling(x: Tensor, q: QuantizedTensor, e: Inspection) -> Iterator[tuple[str, str]]:
    block = _block_values(x, q, e)
    low, high = short(float(block.min())), short(float(block.max()))
    yield "block", f"min {low}, max {high}, {block.numel()} values"
    yield "scale", _scale_formula(q, block_index(q, e.row, e.column), e.scale)
    if e.zero_point is not None:
        yield "zero point", f"{e.zero_point} (the code of 0)"
    offset = _offset(q, e)
    if offset is not None:
        yield "offset", f"{short(offset)} (the value of the code {q.scales.first_code})"
    if not _fitted(q):
        yield _step(x, q, e)


def _step(x: Tensor, q: QuantizedTensor, e: Inspection) -> tuple[str, str]:
    scales, rule, cell = q.scales, q.scheme.codes, block_index(q, e.row, e.column)
    value, name, divisor = short(e.value), "scale", e.scale
    if scales.offsets is not None:
        value = f"({value} − ({short(float(least_value(scales, q.scheme)[cell]))}))"
    if scales.unrounded is not None and (rule.reciprocal or not rule.bfloat16):
        name, divisor = "unrounded scale", float(scales.unrounded[cell])
    scaled = _exact(_in_units(x, q, e))
    if divisor == 0:
        return f"x / {name}", f"0 under a scale of 0, not {value} / 0"
    if rule.reciprocal and (rule.bfloat16 or abs(divisor) > NO_RECIPROCAL):
        return f"x × 1 / {name}", f"{value} × (1 / {short(divisor)}) = {scaled}{_in_bfloat16(q)}"
    return f"x / {name}", f"{value} / {short(divisor)} = {scaled}{_in_bfloat16(q)}"


def _in_bfloat16(q: QuantizedTensor) -> str:
    return " in BF16" if q.scheme.codes_in_bfloat16 else ""


def _exact(value: float) -> str:
    """A float32 ``value`` in enough digits that the text rounds as it does."""
    return f"{value:.9g}".replace("-", "−")


def _offset(q: QuantizedTensor, e: Inspection) -> float | None:
    offsets = q.scales.offsets
    return None if offsets is None else float(offsets[block_index(q, e.row, e.column)])


def _in_units(x: Tensor, q: QuantizedTensor, e: Inspection) -> float:
    """The value minus the offset, in units of the scale, before it was rounded."""
    i, j = block_index(q, e.row, e.column)
    place = (slice(e.row, e.row + 1), slice(e.column, e.column + 1), slice(i, i + 1), slice(j, j + 1))
    return float(scaled_blocks(Rectangle(*place, 1, 1), x.float(), q.scales, q.scheme))


def _scale_formula(q: QuantizedTensor, cell: tuple[int, int], scale: float) -> str:
    rule = q.scheme.scale
    assert rule is not None
    stored = float(q.scales.stored[cell])
    if q.scales.upper is not None:
        return f"{_under_upper_level(q.scales.upper, stored, cell)} = {short(scale)}"
    if rule.exponent is not None:
        exponent = round(math.log2(stored))
        return f"2^{exponent} ({rule.exponent.name}), E8M0 code {exponent + 127}"
    if q.scales.tensor_scale is not None:
        tensor_scale, sign = short(float(q.scales.tensor_scale)), "/" if q.scales.divided else "×"
        return f"{short(stored)} (E4M3) {sign} {tensor_scale} (FP32, whole tensor) = {short(scale)}"
    return f"{short(stored)} ({rule.format.label})"


def _under_upper_level(upper: UpperLevel, stored: float, cell: tuple[int, int]) -> str:
    above = short(float(upper.scale[cell]))
    if isinstance(upper, NestedLevel):
        mean = short(float(upper.mean[cell]))
        return f"{short(stored)} (8 bits) × {above} (FP32, 256 blocks) + {mean} (mean of all)"
    return f"{short(stored)} (integer) × {above} (FP16, super-block)"
