"""Headers of safetensors files, from a disk or from the Hub, validated before use.

A file is the header's length in 8 bytes (little endian), the header as JSON, and the tensors' bytes
(https://huggingface.co/docs/safetensors: "Format").
"""

from __future__ import annotations

import json
import math
import struct
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from explorer.progress import checkpoint
from explorer.sources.base import MOST_AXES, SourceError, TensorInfo, check_claims
from explorer.sources.source_limits import SourceLimits
from explorer.words import plain

PREFIX = 8
"""Number of bytes before the header, which hold its length."""

_DTYPES: dict[str, tuple[int, torch.dtype | None]] = {
    "F64": (64, torch.float64),
    "F32": (32, torch.float32),
    "F16": (16, torch.float16),
    "BF16": (16, torch.bfloat16),
    "F8_E4M3": (8, torch.float8_e4m3fn),
    "F8_E4M3FNUZ": (8, torch.float8_e4m3fnuz),
    "F8_E5M2": (8, torch.float8_e5m2),
    "F8_E5M2FNUZ": (8, torch.float8_e5m2fnuz),
    "F8_E8M0": (8, getattr(torch, "float8_e8m0fnu", None)),
    "F6_E2M3": (6, None),
    "F6_E3M2": (6, None),
    "F4": (4, getattr(torch, "float4_e2m1fn_x2", None)),
    "C64": (64, torch.complex64),
    "I64": (64, torch.int64),
    "I32": (32, torch.int32),
    "I16": (16, torch.int16),
    "I8": (8, torch.int8),
    "U64": (64, torch.uint64),
    "U32": (32, torch.uint32),
    "U16": (16, torch.uint16),
    "U8": (8, torch.uint8),
    "BOOL": (8, torch.bool),
}
"""For each safetensors dtype: bits per element, and torch's dtype, or None."""
NAMES: dict[torch.dtype, str] = {dtype: name for name, (_, dtype) in _DTYPES.items() if dtype is not None}
"""Header names of torch's dtypes."""


def bytes_of(info: TensorInfo) -> int:
    """Bytes of a tensor in a safetensors file, by its shape and dtype; 0 for an unknown dtype."""
    return math.prod(info.shape) * _DTYPES.get(info.dtype, (0, None))[0] // 8


@dataclass(frozen=True)
class Entry:
    """Tensor and the place of its bytes: [start, stop) of the file."""

    info: TensorInfo
    start: int
    stop: int

    def first(self, rows: int | None) -> tuple[int, tuple[int, ...]]:
        """Return bytes and shape of the first ``rows`` rows, all if None; FP4 rows end with a byte."""
        shape = self.info.shape
        if rows is None:
            return self.stop - self.start, shape
        bits = _DTYPES[self.info.dtype][0]
        row_bits = math.prod(shape[1:]) * bits
        while rows * row_bits % 8:
            rows -= 1
        return rows * row_bits // 8, (rows, *shape[1:])


def header_length(prefix: bytes | bytearray, origin: str, limits: SourceLimits) -> int:
    """Read the header's length from the file's first eight bytes."""
    if len(prefix) < PREFIX:
        raise SourceError(f"{origin} ended after {len(prefix)} of {PREFIX} bytes")
    (length,) = struct.unpack("<Q", prefix)
    if length > limits.header_bytes:
        raise SourceError(
            f"{origin} claims a header of {length:,} bytes; accepted are up to {limits.header_bytes:,}"
        )
    return int(length)


def parse_json(raw: bytes | bytearray, origin: str, what: str, limits: SourceLimits) -> Any:
    """Parse untrusted JSON; ``SourceError`` if it is invalid, or has more parts than its tensors need."""
    parts, most = raw.count(b"{") + raw.count(b"["), 4 * limits.tensors + 1000
    most_commas = 8 * parts + limits.tensors + 1000  # one flat object is parsed in one go
    if parts > most or raw.count(b",") > most_commas:
        raise SourceError(f"{origin} has no valid {what}: more parts than {limits.tensors:,} tensors have")

    def once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        checkpoint()
        found = dict(pairs)
        if len(found) < len(pairs):
            twice = Counter(key for key, _ in pairs).most_common(1)[0][0]
            raise SourceError(f"{origin} says {plain(twice, 80)} twice in its {what}")
        return found

    try:
        return json.loads(raw, object_pairs_hook=once)
    except (ValueError, RecursionError) as error:
        if isinstance(error, SourceError):
            raise
        raise SourceError(f"{origin} has no valid {what}") from error


def entries(
    header: bytes | bytearray, data_bytes: int | None, origin: str, limits: SourceLimits
) -> tuple[Entry, ...]:
    """List the tensors of a header; their bytes must lie within ``data_bytes``, if that is known."""
    listed = parse_json(header, origin, "safetensors header", limits)
    if not isinstance(listed, dict):
        raise SourceError(f"{origin} has no valid safetensors header")
    offset = PREFIX + len(header)
    found = tuple(
        _entry(name, claim, offset, data_bytes, origin)
        for name, claim in listed.items()
        if name != "__metadata__"
    )
    check_claims([entry.info for entry in found], origin, limits)
    in_order = sorted(found, key=lambda entry: (entry.start, entry.stop))
    for one, next_one in pairwise(in_order):
        names = f"{plain(one.info.name, 80)} and of {plain(next_one.info.name, 80)}"
        if next_one.start < one.stop:
            raise SourceError(f"{origin} uses bytes twice: those of {names} overlap")
        if next_one.start > one.stop:
            raise SourceError(f"{origin} has bytes that no tensor holds, between those of {names}")
    first, last = (in_order[0].start, in_order[-1].stop) if in_order else (offset, offset)
    if first > offset or (data_bytes is not None and last < offset + data_bytes):
        raise SourceError(f"{origin} has bytes before or after its tensors that none of them holds")
    return found


def _entry(name: str, claim: Any, offset: int, data_bytes: int | None, origin: str) -> Entry:
    """Parse one entry, and check that its span, relative to the header's end, agrees with its shape and
    dtype."""
    checkpoint()
    shown = plain(name, 80)
    try:
        start, stop = claim["data_offsets"]
        dtype = claim["dtype"]
        shape = tuple(claim["shape"])
        # A product of many or long numbers would take minutes, and a message with long offsets kilobytes.
        if len(shape) > MOST_AXES or any(type(n) is not int or not 0 <= n < 1 << 63 for n in shape):
            raise ValueError("a shape is a few whole numbers")
        if any(type(n) is not int or abs(n) >= 1 << 63 for n in (start, stop)):
            raise ValueError("offsets are whole numbers")
        bits = _DTYPES[dtype][0] * math.prod(shape)
    except (KeyError, TypeError, ValueError) as error:
        raise SourceError(f"{origin} describes {shown} in a way this reader does not know") from error
    if not 0 <= start <= stop or 8 * (stop - start) != bits:
        takes = plain(f"{bits // 8:,}", 40)
        raise SourceError(f"{origin} says {shown} takes {stop - start:,} bytes, its shape {takes}")
    if data_bytes is not None and stop > data_bytes:
        raise SourceError(
            f"{origin} is cut short: {shown} ends at byte {stop:,} of the data, {data_bytes:,} are there"
        )
    return Entry(TensorInfo(name, shape, dtype), offset + start, offset + stop)


def decode(info: TensorInfo, shape: tuple[int, ...], data: bytearray, origin: str) -> Tensor:
    """View ``data`` as a tensor of ``shape`` in the dtype of ``info``, in the same memory."""
    dtype = _DTYPES[info.dtype][1]
    if dtype is None:
        raise SourceError(f"{origin}: {info.name} is {info.dtype}, which torch cannot hold")
    if info.dtype == "F4":
        if not shape or shape[-1] % 2:
            raise SourceError(f"{origin}: {info.name} is packed FP4 with an odd last axis")
        shape = (*shape[:-1], shape[-1] // 2)
    if not data:
        return torch.empty(shape, dtype=dtype)
    codes = torch.frombuffer(data, dtype=torch.uint8)
    flat = codes != 0 if dtype is torch.bool else codes.view(dtype)
    return flat.reshape(shape)
