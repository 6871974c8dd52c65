"""From a tensor to codes and scales, and back.

    x  -> blocks -> calibrator -> Range -> scale_for -> Scales -> encode -> packed codes

A tensor is quantized where it lies: by the kernels on a GPU, by the reference elsewhere, with the same bits.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from explorer.core.backend import backend_for
from explorer.core.blocks import chunks
from explorer.core.ranges import check_finite, check_range, find_scales
from explorer.core.ranges import find_ranges as find_ranges
from explorer.formats.packing import packed_row_bytes, unpack
from explorer.schemes import BitBudget, Scales, Scheme, scale_for
from explorer.schemes.calibrators import Range
from explorer.schemes.levels import NestedLevel, SuperBlockLevel
from explorer.schemes.scheme import scheme_called


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedTensor:
    """A quantized matrix as it would be stored.

    packed        uint8 [rows, packed_row_bytes]   codes, each row from a byte boundary
    scales        per block [grid rows, grid columns], see ``Scales``

    ``save`` and ``explorer.load`` keep it in a safetensors file. It can be pickled, copied, and kept by
    ``torch.save``, which ``torch.load`` reads with ``weights_only=True`` after ``from explorer import
    QuantizedTensor``.
    """

    packed: Tensor
    scales: Scales
    scheme: Scheme
    shape: tuple[int, int]

    @property
    def codes(self) -> Tensor:
        """Unpacked codes [rows, cols]: uint8 up to 8 bits, int16 or int32 above."""
        return unpack(self.packed, self.scheme.format, self.shape[1])

    def code_pieces(self) -> Iterator[Tensor]:
        """``codes`` in cache-sized runs of rows."""
        for part in chunks(self.shape, (1, None), self.packed.device):
            yield unpack(self.packed[part.rows], self.scheme.format, self.shape[1])

    def dequantize(self, dtype: torch.dtype = torch.float32) -> Tensor:
        return dequantize(self, dtype)

    @property
    def bits_per_element(self) -> BitBudget:
        return self.scheme.bits_per_element(self.shape)

    @property
    def nbytes(self) -> int:
        """Bytes of codes, scales, zero points and tensor scale as stored."""
        return math.ceil(self.bits_per_element.total * self.shape[0] * self.shape[1] / 8 - 1e-6)

    @property
    def device(self) -> torch.device:
        return self.packed.device

    def to(self, device: torch.device | str) -> QuantizedTensor:
        """The same codes and scales on ``device``."""
        return QuantizedTensor(self.packed.to(device), self.scales.to(device), self.scheme, self.shape)

    def cpu(self) -> QuantizedTensor:
        return self.to("cpu")

    def cuda(self) -> QuantizedTensor:
        """The same codes and scales on torch's current GPU."""
        return self.to("cuda")

    def save(self, path: str | Path, name: str = "tensor") -> None:
        """Write a safetensors file that ``explorer.load`` reads, as ``explorer quantize --out`` does; its
        tensors are called ``<name>.packed``, ``<name>.scale`` and so on.

        ``ValueError`` for a scheme whose format or calibrator has no row, since it could not be read back;
        ``OSError`` if the path cannot be written.
        """
        from explorer.core.file import save_quantized  # which reads files as QuantizedTensor

        save_quantized(self, path, name)

    def __repr__(self) -> str:
        rows, columns = self.shape
        bits = f"{self.bits_per_element.total:.4g} bits an element"
        return f"QuantizedTensor({self.scheme}, {rows} x {columns}, {bits}, {self.device})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.packed, self.scales, self.scheme, self.shape)


def _unpickled(packed: Tensor, scales: Scales, scheme: Scheme, shape: tuple[int, int]) -> QuantizedTensor:
    """A pickled tensor; ``ValueError`` where its parts do not fit together, since kernels would read beyond
    their ends."""
    grids = [part for part in (scales.stored, scales.zero_points, scales.offsets) if part is not None]
    fits = packed.dtype == torch.uint8 and packed.shape == (
        shape[0],
        packed_row_bytes(scheme.format, shape[1]),
    )
    if not fits or any(part.shape != scheme.grid(shape) for part in grids):
        raise ValueError(f"the codes or scales of this pickled tensor are not those of {scheme}, {shape}")
    return QuantizedTensor(packed, scales, scheme, shape)


torch.serialization.add_safe_globals([_unpickled, Scales, SuperBlockLevel, NestedLevel, scheme_called])


def check_matrix(x: Tensor) -> tuple[int, int]:
    """The shape of ``x``; ``ValueError`` unless it has two dimensions and a floating-point dtype."""
    if not x.is_floating_point():
        raise ValueError(f"expected a floating-point matrix, got {x.dtype}")
    if x.dim() != 2:
        raise ValueError(f"expected a matrix [rows, cols], got shape {tuple(x.shape)}; see sources.as_matrix")
    return x.shape[0], x.shape[1]


def quantize(
    x: Tensor, scheme: Scheme, *, clip_range: Range | None = None, allow_nonfinite: bool = False
) -> QuantizedTensor:
    """Quantize a matrix [rows, cols] of any floating dtype by ``scheme``.

    ``clip_range`` fixes the range of every block (static quantization); otherwise the scheme's calibrator
    finds it. ``allow_nonfinite`` lets NaN and Inf through to formats that have NaN: Inf saturates, NaN stays
    NaN, and ranges are taken over the finite values. Raises ``ValueError`` for any other non-finite input.
    """
    shape, x = check_matrix(x), x.detach()
    if clip_range is None and not allow_nonfinite:
        packed, scales = backend_for(x).quantize(x, scheme)
        return QuantizedTensor(packed, scales, scheme, shape)
    if not allow_nonfinite:
        check_finite(x)
    elif not scheme.format.has_nan and bool(torch.isnan(x).any()):
        raise ValueError(
            f"{scheme.format.label} has no code for NaN, so allow_nonfinite cannot let it through"
        )
    x = x.to(torch.float32)
    if clip_range is None:
        return quantize_with_scales(x, scheme, find_scales(torch.nan_to_num(x, 0.0, 0.0, 0.0), scheme))
    check_range(clip_range, scheme)
    return quantize_with_scales(x, scheme, scale_for(clip_range, scheme))


def quantize_as_one(parts: Sequence[Tensor], scheme: Scheme) -> list[QuantizedTensor]:
    """Matrices [rows of each, cols] quantized as the rows of one, so that they have one scale of the whole
    tensor: what engines that multiply them as one matrix expect of query, key and value.

    ``ValueError`` for blocks of several rows, which would span two of them.
    """
    height, whole = scheme.block[0], scheme.block == (None, None)
    if scheme.flat or (height != 1 and not whole):
        raise ValueError(f"{scheme} has blocks of several rows: matrices cannot share them")
    q, found, start = quantize(torch.cat([part.detach() for part in parts]), scheme), [], 0
    for part in parts:
        rows = slice(start, start + part.shape[0])
        scales = q.scales if whole else q.scales.map_grids(lambda grid, rows=rows: grid[rows])  # type: ignore[misc]
        found.append(QuantizedTensor(q.packed[rows], scales, scheme, (part.shape[0], part.shape[1])))
        start = rows.stop
    return found


def quantize_with_scales(x: Tensor, scheme: Scheme, scales: Scales) -> QuantizedTensor:
    """Codes of float32 ``x`` [rows, cols] under given scales (static quantization's second half)."""
    packed, scales = backend_for(x).encode(x, scales, scheme)
    return QuantizedTensor(packed, scales, scheme, (x.shape[0], x.shape[1]))


def dequantize(q: QuantizedTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The matrix [rows, cols]: scale · (code's value - zero point) + offset in float32, then ``dtype``."""
    return backend_for(q.packed).dequantize(q.packed, q.scales, q.scheme, q.shape, dtype)
