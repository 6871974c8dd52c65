"""Follow one element through quantization: its block, its code, and the arithmetic in numbers."""

from __future__ import annotations

import math
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
from explorer.schemes import Scheme
from explorer.schemes.levels import NestedLevel
from explorer.schemes.rules import Ties

Place = TypeVar("Place", int, Tensor)
Span = tuple[int, int]
MOST_BYTES = 48


@dataclass(frozen=True)
class Inspection:
    """One element, its block, and the arithmetic of its restored value.

    rows, columns  [start, stop) of the block; of a block of the flattened tensor, its part in the element's
                   row
    bits, fields   the code, most significant bit first, and the meaning of its bits
    packed_hex     bytes of the block's codes in the element's row
    arithmetic     (quantity, formula with numbers), from the block's range to the error
    """

    row: int
    column: int
    rows: Span
    columns: Span
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
    scheme, scales, fmt = q.scheme, q.scales, q.scheme.format
    i, j = cell = block_index(q, row, column)
    rows, columns, block = _block(x, q, row, column)
    codes = unpack(q.packed[row : row + 1], fmt, q.shape[1])
    code = int(codes[0, column]) & (2**fmt.bits - 1)
    code_value = float(fmt.decode(codes[:, column : column + 1])[0, 0])
    value, scale = float(x[row, column]), float(scales.scale[cell]) if scheme.scale is not None else 1.0
    zero = None if scales.zero_points is None else int(scales.zero_points[cell])
    offset = None if scales.offsets is None else float(scales.offsets[cell])
    # In float32, as ``dequantize`` computes it.
    units = code_value - (zero or 0) - (scales.first_code if offset is not None else 0)
    product = torch.tensor(units) * torch.tensor(scale)
    restored = float(product if offset is None else product + torch.tensor(offset))
    error = restored - value
    place = (slice(row, row + 1), slice(column, column + 1), slice(i, i + 1), slice(j, j + 1))
    scaled = _exact(float(scaled_blocks(Rectangle(*place, 1, 1), x.float(), scales, scheme)))
    known = not scheme.least_squares_scale or scales.unrounded is not None  # the scales that gave the codes

    arithmetic: list[tuple[str, str]] = []
    if scheme.scale is not None:
        low, high = short(float(block.min())), short(float(block.max()))
        arithmetic.append(("block", f"min {low}, max {high}, {block.numel()} values"))
        arithmetic.append(("scale", _scale_formula(q, cell, scale)))
        if zero is not None:
            arithmetic.append(("zero point", f"{zero} (the code of 0)"))
        if offset is not None:
            arithmetic.append(("offset", f"{short(offset)} (the value of the code {scales.first_code})"))
        if known:
            arithmetic.append(_step(q, cell, value, scale, scaled))
    how = _rounding(scheme, scaled, zero) if known else "by the scale before it was refitted"
    minus = short(code_value) if zero is None else f"({short(code_value)} − ({zero}))"
    if offset is not None and scales.first_code:
        minus = f"({minus} − ({scales.first_code}))"
    added = "" if offset is None else f" + ({short(offset)})"
    formula = f"{minus} × {short(scale)}{added} = " if scheme.scale is not None else ""
    relative = f" ({100 * error / value:+.3g} %)" if value else ""
    arithmetic += [
        ("rounded", f"{how} → {short(code_value)}, code 0x{code:0{-(-fmt.bits // 4)}X}"),
        ("the code's value", code_formula(fmt, code)),
        ("restored", f"{formula}{short(restored)}"),
        ("error", f"{short(restored)} − {short(value)} = {short(error)}{relative}"),
    ]
    return Inspection(
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
        error=error,
        packed_hex=_packed_hex(q, row, columns),
        arithmetic=tuple(arithmetic),
    )


def block_index(q: QuantizedTensor, row: Place, column: Place) -> tuple[Place, Place]:
    """Index in ``q``'s scales of the scale of element (row, column); integer tensors index many elements at
    once."""
    height, width = q.scheme.block
    if q.scheme.flat and width:
        return row * 0, (row * q.shape[1] + column) // width
    return row // (height or q.shape[0]), column // (width or q.shape[1])


def _packed_hex(q: QuantizedTensor, row: int, columns: Span) -> str:
    """Bytes of one block's codes in ``row``, in hexadecimal, at most ``MOST_BYTES``."""
    per_element = q.scheme.format.packed_bits / 8
    first, last = math.floor(columns[0] * per_element), math.ceil(columns[1] * per_element)
    shown = q.packed[row, first : min(last, first + MOST_BYTES)].tolist()
    more = last - first - len(shown)
    return " ".join(f"{byte:02X}" for byte in shown) + (f" … {more} more" if more > 0 else "")


def _block(x: Tensor, q: QuantizedTensor, row: int, column: int) -> tuple[Span, Span, Tensor]:
    """Rows and columns of the element's block, or of its part in the element's row, and all its values."""
    height, width = q.scheme.block
    if not q.scheme.flat:
        rows, columns = _span(row, q.shape[0], height), _span(column, q.shape[1], width)
        return rows, columns, x[slice(*rows), slice(*columns)]
    before = row * q.shape[1]
    start, stop = _span(before + column, x.numel(), width)
    columns = max(start - before, 0), min(stop - before, q.shape[1])
    return (row, row + 1), columns, x.reshape(-1)[start:stop]


def _span(index: int, length: int, size: int | None) -> Span:
    """[start, stop) of the block around ``index`` along one axis; ``size`` None is the whole axis."""
    if size is None:
        return 0, length
    start = index // size * size
    return start, min(start + size, length)


_ROUND = {Ties.EVEN: "round", Ties.AWAY: "round ties away", Ties.UP: "round ties up"}


def _rounding(scheme: Scheme, scaled: str, zero: int | None) -> str:
    how = "round at random" if scheme.seed is not None else _ROUND[scheme.codes.ties]
    if zero is not None and scheme.codes.zero_first:
        return f"{how}({scaled} + ({zero}){_in_bfloat16(scheme)})"
    added = int(scheme.code_limits[0]) if scheme.mapping.has_offset else zero
    return f"{how}({scaled})" + ("" if added is None else f" + ({added})")


def _step(
    q: QuantizedTensor, cell: tuple[int, int], value: float, scale: float, scaled: str
) -> tuple[str, str]:
    """Write the division of the value by its scale, by the scheme's rule for codes."""
    scales, rule = q.scales, q.scheme.codes
    text, name, divisor = short(value), "scale", scale
    if scales.offsets is not None:
        text = f"({text} − ({short(float(least_value(scales, q.scheme)[cell]))}))"
    if scales.unrounded is not None and (rule.reciprocal or not rule.bfloat16):
        name, divisor = "unrounded scale", float(scales.unrounded[cell])
    if divisor == 0:
        return f"x / {name}", f"0 under a scale of 0, not {text} / 0"
    if rule.reciprocal and (rule.bfloat16 or abs(divisor) > NO_RECIPROCAL):
        return f"x × 1 / {name}", f"{text} × (1 / {short(divisor)}) = {scaled}{_in_bfloat16(q.scheme)}"
    return f"x / {name}", f"{text} / {short(divisor)} = {scaled}{_in_bfloat16(q.scheme)}"


def _in_bfloat16(scheme: Scheme) -> str:
    return " in BF16" if scheme.codes_in_bfloat16 else ""


def _exact(value: float) -> str:
    """Write a float32 ``value`` with enough digits that the text rounds as the value does."""
    return f"{value:.9g}".replace("-", "−")


def _scale_formula(q: QuantizedTensor, cell: tuple[int, int], scale: float) -> str:
    rule, stored = q.scheme.scale, float(q.scales.stored[cell])
    assert rule is not None
    if (upper := q.scales.upper) is not None:
        above = short(float(upper.scale[cell]))
        if isinstance(upper, NestedLevel):
            mean = short(float(upper.mean[cell]))
            product = f"{short(stored)} (8 bits) × {above} (FP32, 256 blocks) + {mean} (mean of all)"
        else:
            product = f"{short(stored)} (integer) × {above} (FP16, super-block)"
        return f"{product} = {short(scale)}"
    if rule.exponent is not None:
        exponent = round(math.log2(stored))
        return f"2^{exponent} ({rule.exponent.name}), E8M0 code {exponent + 127}"
    if q.scales.tensor_scale is not None:
        tensor_scale, sign = short(float(q.scales.tensor_scale)), "/" if q.scales.divided else "×"
        return f"{short(stored)} (E4M3) {sign} {tensor_scale} (FP32, whole tensor) = {short(scale)}"
    return f"{short(stored)} ({rule.format.label})"
