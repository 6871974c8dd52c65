"""Codes of a float32 matrix under given scales, and values of codes: the readable reference.

Plain torch operations that run on any device; every kernel gives the same bits. A code is the rounded
quotient x / stored scale in IEEE float32, unless ``Scheme.codes`` says otherwise.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import torch
from torch import Tensor

from explorer.cached import cached_property
from explorer.core.blocks import Rectangle, chunks, rectangles, spread
from explorer.core.flat import unrolled, with_grid, with_rows
from explorer.formats import IntegerFormat
from explorer.formats.integers import FixedPointFormat
from explorer.formats.packing import pack, packed_row_bytes, unpack
from explorer.formats.rounding import philox_uniform, round_away
from explorer.formats.subnormals import keeps_subnormals
from explorer.schemes import MappingType, Scales, Scheme, fit_scales, through_bfloat16
from explorer.schemes.rules import Ties


def encode_matrix(x: Tensor, scales: Scales, scheme: Scheme) -> tuple[Tensor, Scales]:
    """Return packed codes uint8 [rows, row bytes] of float32 ``x`` [rows, cols], and the scales that restore
    them: ``scales``, or the least-squares scales if the scheme asks for them."""
    shape, fmt = (x.shape[0], x.shape[1]), scheme.format
    if scheme.flat:
        view, along_rows = unrolled(shape, scheme)
        scales = with_grid(scales, along_rows.grid(view))
        packed, scales = encode_matrix(x.reshape(view), scales, along_rows)
        return with_rows(packed, fmt, view, shape), with_grid(scales, scheme.grid(shape))
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
    """Restore float32 [rows, cols]: scale · (value of the code - zero point) + offset."""
    fmt = scheme.format
    if scheme.flat:
        view, along_rows = unrolled(shape, scheme)
        packed, scales = with_rows(packed, fmt, shape, view), with_grid(scales, along_rows.grid(view))
        return decode_matrix(packed, scales, along_rows, view).view(shape)
    out = torch.empty(shape, dtype=torch.float32, device=packed.device)
    for group in _row_groups(shape, scheme):
        codes = unpack(packed[group[0].rows], fmt, shape[1])
        for part in group:
            values = fmt.decode(codes[:, part.columns])
            blocks = values.unflatten(1, (-1, part.width)).unflatten(0, (-1, part.height))
            if scheme.scale is not None:
                blocks = UnderScales(part.scales(scales), scheme).restored(blocks)
            out[part.rows, part.columns] = blocks.reshape(values.shape)
    return out


def as_float32(x: Tensor, scheme: Scheme) -> Tensor:
    """Convert floating ``x`` to float32. A cast scheme rounds float64 numbers once (``Format.in_float32``);
    values beyond float32 become Inf."""
    nearest = x.to(torch.float32)
    if x.dtype != torch.float64 or scheme.scale is not None or scheme.seed is not None:
        return nearest
    return torch.where(nearest.isinf(), nearest, scheme.format.in_float32(x))


def converted(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert float32 ``values`` to ``dtype``; finite values saturate in float16 instead of becoming Inf."""
    return saturated(values, dtype) if dtype == torch.float16 else values.to(dtype)


def saturated(values: Tensor, dtype: torch.dtype) -> Tensor:
    """Convert float32 ``values`` to ``dtype``; finite values saturate at its largest number."""
    largest = torch.finfo(dtype).max
    return torch.where(values.isinf(), values, values.clamp(-largest, largest)).to(dtype)


def beyond_bfloat16(scheme: Scheme, dtype: torch.dtype) -> bool:
    """True if restoring to bfloat16 must saturate: under casts to FP32 and TF32, whose largest numbers are
    larger. Scaled values end at 2^127 (``ranges.LARGEST``)."""
    return (
        dtype == torch.bfloat16
        and scheme.scale is None
        and scheme.format.max > torch.finfo(torch.bfloat16).max
    )


@keeps_subnormals
def encode_blocks(part: Rectangle, x: Tensor, scales: Scales, scheme: Scheme) -> Tensor:
    """Encode one rectangle of float32 ``x``: codes [rows, cols]."""
    fmt, under = scheme.format, UnderScales(part.scales(scales), scheme)
    scaled, noise = under.scaled(part.blocks(x)), None
    if scheme.seed is not None:
        noise = _noise(part, x.shape[1], scheme.seed, x.device).view(scaled.shape)
    if isinstance(fmt, IntegerFormat):
        codes = fmt.codes_of(under.whole_codes(scaled, noise).clamp_(*scheme.code_limits))
    else:
        codes = fmt.encode_unchecked(scaled.contiguous(), scheme.rounding, noise)
    return codes.reshape(codes.shape[0] * codes.shape[1], -1)


def scaled_blocks(part: Rectangle, x: Tensor, scales: Scales, scheme: Scheme) -> Tensor:
    """Return one rectangle's blocks of float32 ``x``, less the offset, in units of their scale."""
    return UnderScales(part.scales(scales), scheme).scaled(part.blocks(x))


def least_value(scales: Scales, scheme: Scheme) -> Tensor:
    """Value of the least code for ``scales`` with offsets, float32 [grid]: codes count from there."""
    assert scales.offsets is not None
    if scales.minimum is not None:
        return scales.minimum
    if scheme.mapping is MappingType.MINIMUM:
        return scales.offsets
    return scales.offsets + scales.scale * scheme.code_limits[0]


NO_RECIPROCAL = 2.0**-128
"""The largest scale with a reciprocal beyond float32."""


class UnderScales:
    """Rounding and restoring under given ``scales``, with the divisors computed once.

    ``scales`` are those of the values alone (``Rectangle.scales``): those of a whole matrix would be
    processed again for each of its chunks. ``shaped`` makes grids broadcast over the values, by default over
    blocks [grid rows, height, grid columns, width].
    """

    def __init__(self, scales: Scales, scheme: Scheme, shaped: Callable[[Tensor], Tensor] = spread) -> None:
        self.scales, self.scheme, self._shaped = scales, scheme, shaped

    def scaled(self, values: Tensor) -> Tensor:
        """Return float32 ``values``, less the offset, in units of their scale."""
        rule = self.scheme.codes
        if self.scheme.scale is None:
            return values
        if self._minimum is not None:
            values = values - self._minimum
        if rule.reciprocal and rule.bfloat16:
            return through_bfloat16(through_bfloat16(values) * through_bfloat16(self._reciprocal))
        if rule.reciprocal:
            scaled, beyond = values * self._reciprocal, self._beyond
            return scaled if beyond is None else torch.where(beyond, values / self._unrounded, scaled)
        divisor, zero = self._divisor
        scaled = (through_bfloat16(values) if rule.bfloat16 else values) / divisor
        scaled = through_bfloat16(scaled) if self.scheme.codes_in_bfloat16 else scaled
        return scaled if zero is None else torch.where(zero, torch.zeros_like(scaled), scaled)

    def whole_codes(self, scaled: Tensor, noise: Tensor | None) -> Tensor:
        """Round ``scaled`` values to whole numbers and add the zero point, without clipping."""
        scheme, zero = self.scheme, self._zero
        if scheme.codes.zero_first and zero is not None:
            scaled, zero = scaled + zero, None
            scaled = through_bfloat16(scaled) if scheme.codes.bfloat16 else scaled
        if noise is not None:
            q = scaled.floor() + (noise < scaled - scaled.floor())
        elif scheme.codes.ties is Ties.UP:
            # Counted from the least code, so that the sum of 1/2 is rounded as llama.cpp rounds it.
            first = 0.0 if scheme.mapping.has_offset else self.limits[0]
            q = (scaled + (0.5 - first)).floor() + first
        else:
            q = round_away(scaled) if scheme.codes.ties is Ties.AWAY else scaled.round()
        if scheme.mapping.has_offset:
            q += self.limits[0]
        return q if zero is None else q + zero

    def rounded(self, values: Tensor) -> Tensor:
        """Round float32 ``values`` (no NaN) to nearest and restore them, as from their codes; a zero may be
        -0.0."""
        fmt, scaled = self.scheme.format, self.scaled(values)
        if isinstance(fmt, IntegerFormat):
            return self.restored(self.whole_codes(scaled, None).clamp_(*self.limits))
        return self.restored(fmt.nearest(scaled, self.scheme.codes.rounding(None)))

    def restored(self, values: Tensor) -> Tensor:
        """Restore the ``values`` of codes: scale · (value - zero point) + offset."""
        if self._zero is not None:
            values = values - self._zero
        if self._offset is None:
            return values * self._scale
        return (values - self.scales.first_code) * self._scale + self._offset

    @cached_property
    def limits(self) -> tuple[float, float]:
        """The least and the largest value of a code."""
        return self.scheme.code_limits

    @cached_property
    def _scale(self) -> Tensor:
        return self._shaped(self.scales.scale)

    @cached_property
    def _zero(self) -> Tensor | None:
        zero = self.scales.zero_points
        return None if zero is None else self._shaped(zero).float()

    @cached_property
    def _offset(self) -> Tensor | None:
        return None if self.scales.offsets is None else self._shaped(self.scales.offsets)

    @cached_property
    def _minimum(self) -> Tensor | None:
        return None if self.scales.offsets is None else self._shaped(least_value(self.scales, self.scheme))

    @cached_property
    def _divisor(self) -> tuple[Tensor, Tensor | None]:
        """The divisor of the values, and bool: True where the divisor is 0 and values become 0."""
        scales, scheme = self.scales, self.scheme
        by = scales.scale if scales.unrounded is None or scheme.codes.bfloat16 else scales.unrounded
        # Elements without a zero keep the sign that x / 0 has; for the others 0 / 0 would be no code.
        smallest = 0.0 if scheme.scale is None else scheme.scale.smallest
        may_be_zero = (scales.unrounded is not None or smallest == 0) and scheme.format.has_zero
        if may_be_zero and isinstance(scheme.format, IntegerFormat):
            return self._shaped(torch.where(by == 0, torch.inf, by)), None  # x / inf is 0 as well, or -0
        divisor = self._shaped(by)
        return divisor, divisor == 0 if may_be_zero else None

    @cached_property
    def _unrounded(self) -> Tensor:
        """The scale before it was rounded to its stored format, if known."""
        scales = self.scales
        return self._shaped(scales.scale if scales.unrounded is None else scales.unrounded)

    @cached_property
    def _reciprocal(self) -> Tensor:
        """1 / scale, under a tensor scale (1 / tensor scale) / scale; 0 for a scale of 0."""
        scales = self.scales
        stored = scales.stored if scales.upper is None else scales.scale
        divisor = stored if scales.unrounded is None else scales.unrounded
        if scales.tensor_scale is None or scales.unrounded is not None:
            inverse = 1 / divisor
        elif scales.divided:
            inverse = scales.tensor_scale / divisor
        else:
            inverse = (1 / scales.tensor_scale) / divisor
        return self._shaped(torch.where(divisor == 0, torch.zeros_like(inverse), inverse))

    @cached_property
    def _beyond(self) -> Tensor | None:
        """True where a reciprocal is infinite (``NO_RECIPROCAL``), so that values are divided by the scale
        instead (0 · inf is NaN). None if there is no such scale."""
        beyond = self._reciprocal.isinf()
        return beyond if bool(beyond.any()) else None


def not_clipped(x: Tensor, scales: Scales, scheme: Scheme) -> Tensor:
    """Return bool [rows, cols]: True where rounding alone keeps float32 ``x`` [rows, cols] among the codes.

    Integers and fixed-point numbers are judged by the rounded code, as in torch's fake quantization: -128.5
    rounds to -128 and is inside, 127.5 rounds to 128 and is not.
    """
    fmt, shape, nearest = scheme.format, (x.shape[0], x.shape[1]), dataclasses.replace(scheme, seed=None)
    if scheme.flat:
        view, along_rows = unrolled(shape, nearest)
        return not_clipped(x.reshape(view), with_grid(scales, along_rows.grid(view)), along_rows).view(shape)
    low, high = scheme.code_limits
    mask = torch.empty(shape, dtype=torch.bool, device=x.device)
    for part in rectangles(shape, scheme.block if scheme.scale is not None else (None, None)):
        under = UnderScales(part.scales(scales), nearest)
        scaled = under.scaled(part.blocks(x))
        if isinstance(fmt, IntegerFormat):
            code = under.whole_codes(scaled, None)
            inside = (code >= low) & (code <= high)
        elif isinstance(fmt, FixedPointFormat):
            value = (scaled * 2.0**fmt.fraction).round() * 2.0**-fmt.fraction
            inside = (value >= low) & (value <= high)
        else:
            inside = (scaled <= fmt.saturation_threshold) & (scaled >= fmt.negative_saturation_threshold)
        mask[part.rows, part.columns] = inside.reshape(inside.shape[0] * inside.shape[1], -1)
    return mask


def _row_groups(shape: tuple[int, int], scheme: Scheme) -> list[list[Rectangle]]:
    """Group chunks by the rows they cover, so that a group fills whole rows."""
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
    """Draw uniform random numbers for the rectangle's elements, by their index in the row-major matrix."""
    start = part.rows.start * columns
    count = (part.rows.stop - part.rows.start) * columns
    return philox_uniform(seed, start, count, device).view(-1, columns)[:, part.columns].contiguous()


class _LeastSquares:
    """Float64 sums Σx·v and Σv·v of each block, with x less the offset and v = code value - zero point
    (``fit_scales``)."""

    def __init__(self, scales: Scales) -> None:
        self.scales = scales
        self.xv = torch.zeros(scales.stored.shape, dtype=torch.float64, device=scales.stored.device)
        self.vv = torch.zeros_like(self.xv)

    def add(self, part: Rectangle, x: Tensor, values: Tensor) -> None:
        v = values.unflatten(1, (-1, part.width)).unflatten(0, (-1, part.height)).double()
        above = part.blocks(x).double()
        if self.scales.zero_points is not None:
            v = v - part.cells(self.scales.zero_points)
        if self.scales.offsets is not None:
            v, above = v - self.scales.first_code, above - part.cells(self.scales.offsets).double()
        self.xv[part.grid_rows, part.grid_columns] += (above * v).sum((1, 3))
        self.vv[part.grid_rows, part.grid_columns] += (v * v).sum((1, 3))
