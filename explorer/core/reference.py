"""The operations of ``Backend`` in plain torch, on any device. Every kernel equals them bit for bit."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from explorer.core.blocks import chunks, ordered_sum, pieces, rectangles
from explorer.core.encode import (
    as_float32,
    beyond_bfloat16,
    converted,
    decode_matrix,
    encode_matrix,
    not_clipped,
    saturated,
)
from explorer.core.flat import unrolled
from explorer.core.k_quants import k_quantized
from explorer.core.ranges import check_finite, find_ranges, find_scales
from explorer.error_sums import ErrorSums
from explorer.formats import Format
from explorer.formats.packing import unpack
from explorer.formats.subnormals import keeps_subnormals
from explorer.schemes import Scales, Scheme


class Reference:
    """See ``Backend`` for what each operation takes and gives."""

    @keeps_subnormals
    def quantize(self, x: Tensor, scheme: Scheme, check: bool = True) -> tuple[Tensor, Scales, Tensor | None]:
        check_finite(x)
        x = as_float32(x, scheme)
        if scheme.scale is not None and scheme.scale.is_searched:
            find_ranges(x, scheme)  # which refuses those that are too large
            return *k_quantized(x, scheme), None
        return *self.encode(x, find_scales(x, scheme), scheme), None

    @keeps_subnormals
    def encode(self, x: Tensor, scales: Scales, scheme: Scheme) -> tuple[Tensor, Scales]:
        return encode_matrix(x, scales, scheme)

    @keeps_subnormals
    def dequantize(
        self, packed: Tensor, scales: Scales, scheme: Scheme, shape: tuple[int, int], dtype: torch.dtype
    ) -> Tensor:
        values = decode_matrix(packed, scales, scheme, shape)
        return saturated(values, dtype) if beyond_bfloat16(scheme, dtype) else converted(values, dtype)

    @keeps_subnormals
    def fake_quantize(self, x: Tensor, scheme: Scheme) -> tuple[Tensor, Tensor]:
        packed, scales, _ = self.quantize(x, scheme)
        shape = (x.shape[0], x.shape[1])
        restored = self.dequantize(packed, scales, scheme, shape, x.dtype)
        return restored, not_clipped(x.to(torch.float32), scales, scheme)

    @keeps_subnormals
    def learned_quantize(self, x: Tensor, step_size: Tensor, scheme: Scheme) -> Tensor:
        low, high = scheme.code_limits
        out = torch.empty(x.shape, dtype=x.dtype, device=x.device)
        for part in rectangles((x.shape[0], x.shape[1]), scheme.block):
            scaled = part.blocks(x.to(torch.float32)) / part.cells(step_size)
            restored = scaled.clamp_(low, high).round_() * part.cells(step_size)
            out[part.rows, part.columns] = converted(restored.flatten(2).flatten(0, 1), x.dtype)
        return out

    @keeps_subnormals
    def learned_gradients(
        self, x: Tensor, upstream: Tensor, step_size: Tensor, scheme: Scheme
    ) -> tuple[Tensor, Tensor]:
        low, high = scheme.code_limits
        dx, dstep = torch.empty_like(x), torch.empty_like(step_size)
        for part in rectangles((x.shape[0], x.shape[1]), scheme.block):
            flows = part.blocks(upstream.to(torch.float32))
            scaled = part.blocks(x.to(torch.float32)) / part.cells(step_size)
            inside = (scaled > low) & (scaled < high)
            slope = torch.where(inside, scaled.round() - scaled, scaled.clamp(low, high))
            sums = (flows.double() * slope.double()).sum((1, 3))
            dstep[part.grid_rows, part.grid_columns] = sums.to(torch.float32)
            dx[part.rows, part.columns] = (flows * inside).flatten(2).flatten(0, 1).to(x.dtype)
        return dx, dstep

    @keeps_subnormals
    def error_sums(self, x: Tensor, restored: Tensor, low: Tensor, high: Tensor, scheme: Scheme) -> ErrorSums:
        if scheme.flat:
            view, along_rows = unrolled((x.shape[0], x.shape[1]), scheme)
            low, high = (end.reshape(along_rows.grid(view)) for end in (low, high))
            return self.error_sums(x.reshape(view), restored.reshape(view), low, high, along_rows)
        sums, clipped, zeroed, largest, where = [0.0] * 5, 0, 0, -1.0, 0
        for part in chunks((x.shape[0], x.shape[1]), scheme.block, x.device):
            original, output = x[part.rows, part.columns], restored[part.rows, part.columns]
            products, magnitude = _products(original, output)
            sums = [a + b for a, b in zip(sums, products, strict=True)]
            blocks = part.blocks(x)
            outside = (blocks < part.cells(low)).logical_or_(blocks > part.cells(high))
            clipped += int(torch.count_nonzero(outside))
            zeroed += int(torch.count_nonzero((output == 0).logical_and_(original != 0)))
            most = float(magnitude.amax())  # a third of the time of max()
            if most > largest or (math.isnan(most) and not math.isnan(largest)):
                row, column = divmod(int(magnitude.argmax()), original.shape[1])
                largest, where = most, (part.rows.start + row) * x.shape[1] + part.columns.start + column
        signal, noise, output_sum, inner, absolute = sums
        return ErrorSums(signal, noise, output_sum, inner, absolute, clipped, zeroed, largest, where)

    def histogram(
        self, x: Tensor, low: float, per_width: float, bins: int, minus: Tensor | None = None
    ) -> Tensor:
        counts = torch.zeros(bins, dtype=torch.int64)
        others = pieces(minus) if minus is not None else (None,) * len(pieces(x))
        for piece, other in zip(pieces(x), others, strict=True):
            value = piece if other is None else piece - other
            index = (value - low).mul_(per_width).clamp_(0, bins - 1)
            counts += _bincount(index.to(torch.uint8), bins)
        return counts

    def byte_counts(self, packed: Tensor) -> Tensor:
        counts = torch.zeros(256, dtype=torch.int64)
        for piece in pieces(packed):
            counts += _bincount(piece, 256)
        return counts

    def code_counts(self, packed: Tensor, fmt: Format, columns: int) -> Tensor:
        counts = torch.zeros(fmt.code_count, dtype=torch.int64)
        for part in chunks((packed.shape[0], columns), (1, None), packed.device):
            flat = unpack(packed[part.rows], fmt, columns).reshape(-1)
            flat = flat if flat.dtype == torch.uint8 else flat.to(torch.int32) & 0xFFFF
            counts += _bincount(flat, fmt.code_count)
        return counts

    def tile_maximum(self, x: Tensor, tall: int, wide: int) -> Tensor:
        padded = torch.nn.functional.pad(x, (0, -x.shape[1] % wide), value=-math.inf)
        columns = padded.view(x.shape[0], -1, wide).amax(2)
        rows = torch.nn.functional.pad(columns, (0, 0, 0, -x.shape[0] % tall), value=-math.inf)
        return rows.view(-1, tall, columns.shape[1]).amax(1)


def _products(original: Tensor, output: Tensor) -> tuple[list[float], Tensor]:
    """Compute Σx², Σ(y-x)², Σy², Σxy, Σ|y-x| in float64, and float64 |y-x| flattened."""
    x, y = original.double().reshape(-1), output.double().reshape(-1)
    error = (y - x).abs_()
    product = torch.empty_like(x)  # one for all: five would leave the core's cache
    pairs = ((x, x), (error, error), (y, y), (x, y))
    return [*(ordered_sum(torch.mul(a, b, out=product)) for a, b in pairs), ordered_sum(error)], error


def _bincount(index: Tensor, bins: int) -> Tensor:
    return torch.bincount(index, minlength=bins).cpu()
