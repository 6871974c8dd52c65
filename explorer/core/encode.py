"""Codes of a float32 matrix under given scales, and the values that codes stand for: the readable reference.

Plain torch operations, so they run on any device; every kernel gives the same bits. A code is rounded from
x / scale by IEEE float32 division, with the scale as it is stored.
"""

from __future__ import annotations

import torch
from torch import Tensor

from explorer.core.blocks import Rectangle, chunks, rectangles
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack, packed_row_bytes, unpack
from explorer.formats.rounding import philox_uniform
from explorer.schemes import Scales, Scheme, fit_scales


def encode_matrix(x: Tensor, scales: Scales, scheme: Scheme) -> tuple[Tensor, Scales]:
    """Packed codes uint8 [rows, row bytes] of float32 ``x`` [rows, cols], and the scales to restore them
    with.

    These are ``scales``, or the least-squares scales where the scheme asks for them.
    """
    shape, fmt = (x.shape[0], x.shape[1]), scheme.format
    packed = torch.zeros(shape[0], packed_row_bytes(fmt, shape[1]), dtype=torch.uint8, device=x.device)
    rule = scheme.scale if scheme.least_squares_scale else None
    sums = _LeastSquares(scales) if rule is not None else None
    for group in _row_groups(shape, scheme):
        rows = group[0].rows
        codes = torch.empty(rows.stop - rows.start, shape[1], dtype=fmt.code_dtype, device=x.device)
        for part in group:
            part_codes = encode_blocks(part, x, scales, scheme)
            codes[:, part.columns] = part_codes
            if sums is not None:
                sums.add(part, x, fmt.decode(part_codes))
        packed[rows] = pack(codes, fmt)
    if sums is not None and rule is not None:
        scales = fit_scales(sums.xv, sums.vv, scales, rule)
    return packed, scales


def decode_matrix(packed: Tensor, scales: Scales, scheme: Scheme, shape: tuple[int, int]) -> Tensor:
    """float32 [rows, cols]: scale · (value of the code - zero point)."""
    out = torch.empty(shape, dtype=torch.float32, device=packed.device)
    fmt, scale = scheme.format, scales.scale
    for group in _row_groups(shape, scheme):
        codes = unpack(packed[group[0].rows], fmt, shape[1])
        for part in group:
            values = fmt.decode(codes[:, part.columns])
            blocks = values.unflatten(1, (-1, part.width)).unflatten(0, (-1, part.height))
            if scales.zero_points is not None:
                blocks -= part.cells(scales.zero_points)
            if scheme.scale is not None:
                blocks *= part.cells(scale)
            out[part.rows, part.columns] = values
    return out


def converted(values: Tensor, dtype: torch.dtype) -> Tensor:
    """float32 ``values`` in ``dtype``; finite ones saturate in float16, where they would become Inf."""
    if dtype != torch.float16:
        return values.to(dtype)
    return torch.where(values.isinf(), values, values.clamp(-65504.0, 65504.0)).to(dtype)


def encode_blocks(part: Rectangle, x: Tensor, scales: Scales, scheme: Scheme) -> Tensor:
    """Codes [rows, cols] of one rectangle of float32 ``x``."""
    blocks, fmt = part.blocks(x), scheme.format
    scaled = blocks if scheme.scale is None else blocks / part.cells(scales.scale)
    noise = None
    if scheme.seed is not None:
        noise = _noise(part, x.shape[1], scheme.seed, x.device).view(scaled.shape)
    if not isinstance(fmt, IntegerFormat):
        codes = fmt.encode_unchecked(scaled.contiguous(), scheme.rounding, noise)
    else:
        low, high = scheme.code_limits
        q = scaled.round_() if noise is None else scaled.floor() + (noise < scaled - scaled.floor())
        if scales.zero_points is not None:
            q += part.cells(scales.zero_points)
        codes = fmt.codes_of(q.clamp_(low, high))
    return codes.reshape(codes.shape[0] * codes.shape[1], -1)


def not_clipped(x: Tensor, scales: Scales, scheme: Scheme) -> Tensor:
    """bool [rows, cols]: where rounding alone keeps float32 ``x`` [rows, cols] among the codes.

    Integers are tested by the rounded code, as torch's fake quantization does: -128.5 rounds to -128 and is
    inside, 127.5 rounds to 128 and is not.
    """
    fmt, zero, shape = scheme.format, scales.zero_points, (x.shape[0], x.shape[1])
    low, high = scheme.code_limits
    mask = torch.empty(shape, dtype=torch.bool, device=x.device)
    for part in rectangles(shape, scheme.block if scheme.scale is not None else (None, None)):
        scaled = part.blocks(x) if scheme.scale is None else part.blocks(x) / part.cells(scales.scale)
        if isinstance(fmt, IntegerFormat):
            scaled = scaled.round()
            if zero is not None:
                scaled = scaled + part.cells(zero)
            inside = (scaled >= low) & (scaled <= high)
        else:
            inside = scaled.abs() <= fmt.saturation_threshold
        mask[part.rows, part.columns] = inside.reshape(inside.shape[0] * inside.shape[1], -1)
    return mask


def _row_groups(shape: tuple[int, int], scheme: Scheme) -> list[list[Rectangle]]:
    """Chunks grouped by the rows they cover, so that a group fills whole rows."""
    groups: dict[int, list[Rectangle]] = {}
    # A shorter last column of blocks has a rectangle of its own; cutting every rectangle at the same rows
    # keeps the groups aligned.
    for body in chunks(shape, (scheme.block[0], None)):
        groups[body.rows.start] = [
            Rectangle(body.rows, part.columns, body.grid_rows, part.grid_columns, body.height, part.width)
            for part in rectangles((1, shape[1]), (1, scheme.block[1]))
        ]
    return list(groups.values()) if shape[1] else []


def _noise(part: Rectangle, columns: int, seed: int, device: torch.device) -> Tensor:
    """Uniform numbers for the rectangle's elements, by their index in the whole row-major matrix."""
    start = part.rows.start * columns
    count = (part.rows.stop - part.rows.start) * columns
    return philox_uniform(seed, start, count, device).view(-1, columns)[:, part.columns].contiguous()


class _LeastSquares:
    """Σx·v and Σv·v of every block in float64, v the code's value less the zero point; see ``fit_scales``."""

    def __init__(self, scales: Scales) -> None:
        self.zero_points = scales.zero_points
        self.xv = torch.zeros(scales.stored.shape, dtype=torch.float64, device=scales.stored.device)
        self.vv = torch.zeros_like(self.xv)

    def add(self, part: Rectangle, x: Tensor, values: Tensor) -> None:
        v = values.unflatten(1, (-1, part.width)).unflatten(0, (-1, part.height)).double()
        if self.zero_points is not None:
            v = v - part.cells(self.zero_points)
        self.xv[part.grid_rows, part.grid_columns] += (part.blocks(x).double() * v).sum((1, 3))
        self.vv[part.grid_rows, part.grid_columns] += (v * v).sum((1, 3))
