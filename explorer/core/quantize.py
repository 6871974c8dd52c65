"""Quantize a tensor to codes and scales, and restore it.

    x  -> blocks -> calibrator -> Range -> scale_for -> Scales -> encode -> packed codes

A tensor is quantized on its own device: by the kernels on a GPU, elsewhere by the reference, with the same
bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from operator import itemgetter
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional

from explorer.core.backend import backend_for
from explorer.core.blocks import chunks
from explorer.core.encode import as_float32
from explorer.core.importances import quantized_by_importance
from explorer.core.ranges import check_finite, check_range
from explorer.core.ranges import find_ranges as find_ranges
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack, packed_row_bytes, unpack
from explorer.progress import checkpoint
from explorer.schemes import SCHEMES, BitBudget, Scales, Scheme, scale_for
from explorer.schemes.calibrators import Range
from explorer.schemes.levels import NestedLevel, SuperBlockLevel
from explorer.schemes.scheme import scheme_called

_FIRST_ROWS = 8
"""Number of rows of a weight that are tried before the whole."""


@dataclass(frozen=True, eq=False, repr=False)
class QuantizedTensor:
    """A quantized matrix as it would be stored.

    packed        uint8 [rows, packed_row_bytes]   codes, each row from a byte boundary
    scales        per block [grid rows, grid columns], see ``Scales``
    unchecked     int32 [1] that is not 0 if the values were not finite; None where that was checked

    ``save`` and ``explorer.load`` keep it in a safetensors file. It can be pickled, copied, and kept by
    ``torch.save``, which ``torch.load`` reads with ``weights_only=True`` after ``from explorer import
    QuantizedTensor``.
    """

    packed: Tensor
    scales: Scales
    scheme: Scheme
    shape: tuple[int, int]
    unchecked: Tensor | None = None

    def check(self) -> None:
        """Wait for the GPU; ``ValueError`` if the values held NaN or Inf, or a range too large to be scaled.

        Needed after ``quantize`` without ``check``, and in a CUDA graph. ``save`` and ``explorer.compare``
        call it; ``dequantize`` does not, because it would wait. The tensor of a graph reports all replays so
        far; ``q.unchecked.zero_()`` starts anew.
        """
        if self.unchecked is not None and int(self.unchecked):
            raise ValueError(
                "values were NaN or Inf, or too large to be scaled, when they were quantized; "
                "explorer.quantize with check=True says which"
            )

    @property
    def codes(self) -> Tensor:
        """Unpacked codes [rows, cols]: uint8 up to 8 bits, int16 or int32 above."""
        return unpack(self.packed, self.scheme.format, self.shape[1])

    def code_pieces(self) -> Iterator[Tensor]:
        """Yield ``codes`` in cache-sized runs of rows."""
        for part in chunks(self.shape, (1, None), self.packed.device):
            yield unpack(self.packed[part.rows], self.scheme.format, self.shape[1])

    def rows(self, start: int, stop: int) -> QuantizedTensor:
        """View the rows from ``start`` to ``stop``: whole blocks, or part of the rows of blocks that span all
        rows. Not for ``flat`` schemes, whose blocks end within rows."""
        scales = scales_of_rows(self.scales, self.scheme, start, stop)
        packed = self.packed[start:stop]
        return QuantizedTensor(packed, scales, self.scheme, (len(packed), self.shape[1]), self.unchecked)

    def runs(self, elements: int) -> Iterator[tuple[int, QuantizedTensor]]:
        """Yield (first row, ``rows``) in runs of about so many elements; a ``flat`` scheme gives one run."""
        tall = (self.scheme.block[0] or 1) if self.scheme.scale is not None else 1
        each = max(tall, elements // max(self.shape[1], 1) // tall * tall)
        if self.scheme.flat or self.shape[0] <= each:
            yield 0, self
            return
        for start in range(0, self.shape[0], each):
            checkpoint()
            yield start, self.rows(start, min(start + each, self.shape[0]))

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
        """Copy codes and scales to ``device``."""
        unchecked = None if self.unchecked is None else self.unchecked.to(device)
        packed, scales = self.packed.to(device), self.scales.to(device)
        return QuantizedTensor(packed, scales, self.scheme, self.shape, unchecked)

    def cpu(self) -> QuantizedTensor:
        return self.to("cpu")

    def cuda(self) -> QuantizedTensor:
        """Copy codes and scales to torch's current GPU."""
        return self.to("cuda")

    def save(self, path: str | Path, name: str = "tensor") -> None:
        """Write a safetensors file that ``explorer.load`` reads, as ``explorer quantize --out`` does; its
        tensors are called ``<name>.packed``, ``<name>.scale`` and so on.

        ``ValueError`` for a scheme whose format or calibrator has no row, since it could not be read back;
        ``OSError`` if the path cannot be written. ``check`` is called first.
        """
        from explorer.core.file import save_quantized  # which reads files as QuantizedTensor

        self.check()
        save_quantized(self, path, name)

    def __repr__(self) -> str:
        rows, columns = self.shape
        bits = f"{self.bits_per_element.total:.4g} bits an element"
        return f"QuantizedTensor({self.scheme}, {rows} x {columns}, {bits}, {self.device})"

    def __reduce__(self) -> tuple[Any, ...]:
        return _unpickled, (self.packed, self.scales, self.scheme, self.shape, self.unchecked)


def scales_of_rows(scales: Scales, scheme: Scheme, start: int, stop: int) -> Scales:
    """View the scales of the rows from ``start`` to ``stop``."""
    tall = scheme.block[0] if scheme.scale is not None else None
    part = slice(None) if tall is None else slice(start // tall, -(-stop // tall))
    return scales.map_grids(itemgetter(part))


def _unpickled(
    packed: Tensor, scales: Scales, scheme: Scheme, shape: tuple[int, int], unchecked: Tensor | None
) -> QuantizedTensor:
    """Rebuild a pickled tensor; ``ValueError`` if its parts do not fit together, since kernels would read
    beyond their ends."""
    grids = [part for part in (scales.stored, scales.zero_points, scales.offsets) if part is not None]
    fits = packed.dtype == torch.uint8 and packed.shape == (
        shape[0],
        packed_row_bytes(scheme.format, shape[1]),
    )
    raw = scales.raw
    if raw is not None:
        grids.append(raw)
        fits = fits and scheme.scale is not None and raw.dtype == scheme.scale.format.stored_dtype
    fits = fits and packed.is_contiguous() and scales.stored.dtype == torch.float32
    if not fits or any(part.shape != scheme.grid(shape) for part in grids):
        raise ValueError(f"the codes or scales of this pickled tensor are not those of {scheme}, {shape}")
    return QuantizedTensor(packed, scales, scheme, shape, unchecked)


torch.serialization.add_safe_globals([_unpickled, Scales, SuperBlockLevel, NestedLevel, scheme_called])


def check_matrix(x: Tensor) -> tuple[int, int]:
    """Return the shape of ``x``; ``ValueError`` unless it has two dimensions and a floating-point dtype."""
    if not x.is_floating_point():
        raise ValueError(f"expected a floating-point matrix, got {x.dtype}")
    if x.dim() != 2:
        raise ValueError(f"expected a matrix [rows, cols], got shape {tuple(x.shape)}; see sources.as_matrix")
    return x.shape[0], x.shape[1]


def quantize(
    x: Tensor,
    scheme: Scheme,
    *,
    clip_range: Range | None = None,
    allow_nonfinite: bool = False,
    check: bool = True,
    importance: Tensor | None = None,
) -> QuantizedTensor:
    """Quantize a matrix [rows, cols] of any floating dtype by ``scheme``.

    ``clip_range`` fixes the range of every block (static quantization); otherwise the scheme's calibrator
    finds it. ``allow_nonfinite`` lets NaN and Inf through to formats that have NaN: Inf saturates, NaN stays
    NaN, both count as 0 where scales are found, and all other codes are those without them. Raises
    ``ValueError`` for any other non-finite input.

    Arithmetic is in float32, to which float64 values are rounded first; a cast rounds them once.

    ``importance`` [cols], not negative, is what the squared error of each column counts, the mean square of
    the layer's inputs: for types of GGUF whose search llama.cpp weighs by an importance matrix
    (``core.importances.takes_importance``), with its codes. ``ValueError`` for other schemes, and beside
    ``clip_range`` or ``allow_nonfinite``.

    To know whether values are finite, the host waits for the GPU. With ``check`` False it does not: the codes
    of non-finite values are then meaningless, and ``QuantizedTensor.check`` says so when it is asked. So it
    is in a CUDA graph, which can capture the call for schemes with kernels. Values on the CPU, and those that
    torch operations quantize, are always checked.
    """
    shape = check_matrix(x)
    x = x.detach() if x.requires_grad else x
    if importance is not None:
        if clip_range is not None or allow_nonfinite:
            raise ValueError("importances weigh a search: they go with no clip_range and no allow_nonfinite")
        return QuantizedTensor(*quantized_by_importance(x, scheme, importance), scheme, shape)
    if clip_range is None and not allow_nonfinite:
        packed, scales, unchecked = backend_for(x).quantize(x, scheme, check)
        return QuantizedTensor(packed, scales, scheme, shape, unchecked)
    if not allow_nonfinite:
        check_finite(x)
    elif not scheme.format.has_nan and bool(torch.isnan(x).any()):
        raise ValueError(
            f"{scheme.format.label} has no code for NaN, so allow_nonfinite cannot let it through"
        )
    x = as_float32(x, scheme)
    if clip_range is None:
        return _beside_nonfinite(x, scheme)
    check_range(clip_range, scheme)
    return quantize_with_scales(x, scheme, scale_for(clip_range, scheme))


def _beside_nonfinite(x: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Quantize float32 ``x`` with zeros in place of NaN and Inf, then encode those under the scales found."""
    finite = torch.isfinite(x)
    q = quantize(torch.where(finite, x, 0.0), scheme)
    if bool(finite.all()):
        return q
    if isinstance(scheme.format, IntegerFormat):  # Inf over a scale of 0 would be NaN
        largest = torch.finfo(torch.bfloat16).max
        x = x.clamp(-largest, largest)
    fixed = dataclasses.replace(scheme, least_squares_scale=False)
    own = quantize_with_scales(x, fixed, q.scales)
    codes = torch.where(finite, q.codes, own.codes)
    return dataclasses.replace(q, packed=pack(codes, scheme.format))


def quantize_weight(x: Tensor, scheme: Scheme, importance: Tensor | None = None) -> QuantizedTensor:
    """Quantize a layer's weight for a checkpoint: by ``nvfp4_exactly`` if such codes exist, otherwise by
    ``quantize``."""
    exact = nvfp4_exactly(x) if scheme.text == SCHEMES["nvfp4"].text else None
    return exact or quantize(x, scheme, importance=importance)


def nvfp4_exactly(x: Tensor) -> QuantizedTensor | None:
    """Return NVFP4 codes that restore ``x`` [rows, cols] without error, or None if none exist.

    Weights published in MXFP4 have such codes if the exponents of their blocks differ by at most 17. A
    block's scale is the power of two above amax / 6; the tensor's is 2^(kmax - 8), where kmax is the largest
    exponent (NVIDIA Model-Optimizer, pull request 1372). ``quantize`` rounds amax / 6 to E4M3 instead, which
    changes every block with a largest code other than 6.
    """
    scheme, (rows, columns) = SCHEMES["nvfp4"], check_matrix(x)
    x = x.detach().float()
    if rows > _FIRST_ROWS and nvfp4_exactly(x[:_FIRST_ROWS]) is None:
        return None
    if not x.numel():
        return None
    amax = functional.pad(x, (0, -columns % 16)).abs().view(rows, -1, 16).amax(-1)
    if not bool(amax.isfinite().all()):
        return None
    mantissa, exponent = torch.frexp(amax)
    power = torch.where(amax > 0, exponent - 3 + (mantissa > 0.75).to(exponent.dtype), -(10**6))
    top = max(int(power.max()), -118)
    stored = torch.exp2((power - top + 8).clamp(-9, 8).double()).float()
    tensor_scale = torch.exp2(torch.tensor(top - 8.0, dtype=torch.float64)).float().to(x.device)
    q = quantize_with_scales(x, scheme, Scales.of(scheme, stored, None, tensor_scale))
    return q if torch.equal(q.dequantize(), x) else None


def quantize_as_one(parts: Sequence[Tensor], scheme: Scheme) -> list[QuantizedTensor]:
    """Quantize weights [rows of each, cols] as rows of one matrix (``quantize_weight``) with one tensor
    scale.

    Engines that multiply query, key and value as one matrix expect this. ``ValueError`` for blocks of several
    rows, which would span two weights.
    """
    height, whole = scheme.block[0], scheme.block == (None, None)
    if scheme.flat or (height != 1 and not whole):
        raise ValueError(f"{scheme} has blocks of several rows: matrices cannot share them")
    q, found, start = quantize_weight(torch.cat([part.detach() for part in parts]), scheme), [], 0
    for part in parts:
        rows = slice(start, start + part.shape[0])
        scales = q.scales if whole else q.scales.map_grids(lambda grid, rows=rows: grid[rows])  # type: ignore[misc]
        shape = (part.shape[0], part.shape[1])
        found.append(QuantizedTensor(q.packed[rows], scales, scheme, shape, q.unchecked))
        start = rows.stop
    return found


def quantize_with_scales(x: Tensor, scheme: Scheme, scales: Scales) -> QuantizedTensor:
    """Encode float32 ``x`` [rows, cols] under given scales: the second half of static quantization."""
    packed, scales = backend_for(x).encode(x, scales, scheme)
    return QuantizedTensor(packed, scales, scheme, (x.shape[0], x.shape[1]))


def dequantize(q: QuantizedTensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """Restore the matrix [rows, cols]: scale · (code's value - zero point) + offset in float32, then
    ``dtype``."""
    return backend_for(q.packed).dequantize(q.packed, q.scales, q.scheme, q.shape, dtype)
