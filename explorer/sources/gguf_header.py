"""Headers of GGUF files, validated before use.

A file is the magic, a version, the numbers of tensors and pairs, the pairs (a key and a typed value), the
name and offset of each tensor, and after padding the tensors' bytes
(https://github.com/ggml-org/ggml/blob/master/docs/gguf.md). Of the pairs only the alignment is kept: the
others are passed over, and no object is made of an item. ``gguf.GGUFReader`` maps the file, and makes an
array of every item of as many lists as a file claims.
"""

from __future__ import annotations

import math
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import IO, NoReturn

from explorer.progress import checkpoint
from explorer.sources.base import LONGEST_NAME, MOST_AXES, SourceError, TensorInfo, check_claims
from explorer.sources.source_limits import SourceLimits
from explorer.words import plain

MAGIC = b"GGUF"
VERSIONS = (2, 3)
"""Accepted versions, which have this header; version 1 had counts of 32 bits."""
_ALIGNMENT = 32
"""Default alignment of tensor data."""
_ALIGNMENT_KEY = b"general.alignment"
_UINT32, _STRING, _ARRAY = 4, 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
"""Bytes of a value by its type: integers, floats, a boolean."""
_LEAST = {**_SIZES, _STRING: 8, _ARRAY: 12}
"""Bytes of the shortest value by its type."""
_LEAST_PAIR = 8 + 4 + 1
_LEAST_TENSOR = 8 + 4 + 4 + 8
_LONGEST_KEY = (1 << 16) - 1
"""Largest size of a key in bytes, by the specification."""
_DEEPEST = 8
"""Largest accepted depth of lists within lists."""
_AT_ONCE = 4096
"""Number of parts read between two checks for a request to stop."""


@dataclass(frozen=True)
class Kind:
    """Type of tensors: ``block`` elements along the last axis are stored in ``size`` bytes."""

    name: str
    block: int
    size: int


@dataclass(frozen=True)
class GgufEntry:
    """Tensor and its bytes [start, stop) in the file. Its shape is torch's: the last axis is contiguous."""

    info: TensorInfo
    kind: Kind
    start: int
    stop: int

    def first(self, rows: int | None) -> tuple[int, tuple[int, ...]]:
        """Return bytes and shape of the first ``rows`` rows, of all if None."""
        shape = self.info.shape if rows is None else (rows, *self.info.shape[1:])
        return math.prod(shape) // self.kind.block * self.kind.size, shape


class GgufHeader:
    """The header of a GGUF file of ``size`` bytes, read from the start of ``file``.

    ``order`` is the byte order of numbers, "<" or ">". ``kinds`` are the types of tensors by their number.
    Every length and count is compared with the bytes that are left.
    """

    def __init__(
        self, file: IO[bytes], size: int, origin: str, limits: SourceLimits, kinds: Mapping[int, Kind]
    ) -> None:
        self._file, self._size, self._origin, self._limits = file, size, origin, limits
        self._at, self._end, self.order = 0, min(size, limits.header_bytes), "<"
        self._parts, self._most_parts = 0, 4 * limits.tensors + 1000
        if self._take(len(MAGIC), "its magic") != MAGIC:
            self._refuse("it does not begin with GGUF")
        (little, big) = struct.unpack("<I", raw := self._take(4, "its version")) + struct.unpack(">I", raw)
        if little not in VERSIONS and big not in VERSIONS:
            self._refuse(f"it is of version {little}; versions {' and '.join(map(str, VERSIONS))} are read")
        self.order = "<" if little in VERSIONS else ">"
        tensors, pairs = self._number("Q", "its counts"), self._number("Q", "its counts")
        for count, least, what in ((pairs, _LEAST_PAIR, "keys"), (tensors, _LEAST_TENSOR, "tensors")):
            if count * least > size - self._at:
                self._refuse(f"it claims {count:,} {what}; {size - self._at:,} bytes are left for them")
            if count > limits.tensors:
                raise SourceError(f"{origin} lists {count:,} {what}; accepted are up to {limits.tensors:,}")
        alignment = self._alignment(pairs)
        claims = [self._tensor(kinds) for _ in range(tensors)]
        check_claims([info for info, _, _ in claims], origin, limits)
        start = -(-self._at // alignment) * alignment
        self.entries: dict[str, GgufEntry] = {}
        for info, kind, offset in claims:
            if info.name in self.entries:  # gguf refuses them too
                self._refuse(f"it has two tensors called {plain(info.name, 80)}")
            self.entries[info.name] = self._entry(info, kind, offset, start, alignment)
        filled = sorted((e for e in self.entries.values() if e.stop > e.start), key=lambda e: e.start)
        for one, other in pairwise(filled):
            if other.start < one.stop:
                self._refuse(f"{plain(one.info.name, 80)} and {plain(other.info.name, 80)} overlap")

    def _alignment(self, pairs: int) -> int:
        """Read all pairs, and return the alignment that they specify."""
        alignment, seen = _ALIGNMENT, set()
        for _ in range(pairs):
            self._count(1)
            key = self._text(_LONGEST_KEY, "a key")
            if key in seen:
                self._refuse(f"it has the key {plain(key.decode(errors='replace'), 80)} twice")
            seen.add(key)
            kind = self._number("I", "a value's type")
            if key != _ALIGNMENT_KEY:
                self._skip_value(kind, 0)
                continue
            if kind != _UINT32:
                self._refuse("its alignment is no 32-bit number")
            alignment = self._number("I", "its alignment")
            if alignment == 0 or alignment & (alignment - 1):
                self._refuse(f"its alignment is {alignment}; accepted are powers of two")
        return alignment

    def _skip_value(self, kind: int, depth: int) -> None:
        if kind == _STRING:
            self._skip(self._number("Q", "a text's length"), "a text")
        elif kind == _ARRAY:
            self._skip_items(depth)
        elif kind in _SIZES:
            self._skip(_SIZES[kind], "a value")
        else:
            self._refuse(f"it has a value of the unknown type {kind}")

    def _skip_items(self, depth: int) -> None:
        """Skip a list: one of numbers at once, one of texts or lists item by item."""
        kind, count = self._number("I", "a list's type"), self._number("Q", "a list's length")
        if kind not in _LEAST:
            self._refuse(f"it has a list of the unknown type {kind}")
        if depth >= _DEEPEST:
            self._refuse(f"it has lists within lists, more than {_DEEPEST} deep")
        if count * _LEAST[kind] > self._size - self._at:
            self._refuse(f"it claims a list of {count:,} items; {self._size - self._at:,} bytes are left")
        if kind in _SIZES:
            self._skip(count * _SIZES[kind], "a list")
            return
        self._count(count)
        if kind == _STRING:
            self._skip_texts(count)
            return
        for done in range(count):
            if done % _AT_ONCE == 0:
                checkpoint()
            self._skip_items(depth + 1)

    def _skip_texts(self, count: int) -> None:
        """Skip ``count`` texts. A vocabulary has hundreds of thousands: no calls in the loop."""
        read, seek, length_of = self._file.read, self._file.seek, struct.Struct(f"{self.order}Q").unpack
        at, last = self._at, self._end - 8
        for done in range(count):
            if done % _AT_ONCE == 0:
                checkpoint()
            if at > last:
                self._ended("a list of texts")
            (length,) = length_of(read(8))
            at += 8 + length
            if at > self._end:
                self._ended("a list of texts")
            if length:
                seek(length, 1)
        self._at = at

    def _count(self, parts: int) -> None:
        """Count keys, texts and lists against a limit: few bytes can claim many."""
        self._parts += parts
        if self._parts > self._most_parts:
            self._refuse(f"it has more than {self._most_parts:,} keys and items of lists")
        if self._parts % _AT_ONCE == 0:
            checkpoint()

    def _tensor(self, kinds: Mapping[int, Kind]) -> tuple[TensorInfo, Kind, int]:
        """Read the header entry of one tensor: its name, shape and type, and its offset."""
        self._count(1)
        raw = self._text(4 * LONGEST_NAME, "a tensor's name")
        try:
            name = raw.decode()
        except UnicodeDecodeError:
            self._refuse(f"the name of a tensor, {ascii(raw[:40])[1:]}, is no UTF-8")
        shown = plain(name, 80)
        axes = self._number("I", "a tensor's shape")
        if axes > MOST_AXES:
            self._refuse(f"{shown} claims {axes:,} axes; accepted are up to {MOST_AXES}")
        shape = struct.unpack(f"{self.order}{axes}Q", self._take(8 * axes, "a tensor's shape"))[::-1]
        number = self._number("I", "a tensor's type")
        if number not in kinds:
            self._refuse(f"{shown} has the unknown type {number}")
        kind, row = kinds[number], shape[-1] if shape else 1
        if row % kind.block:
            self._refuse(
                f"{shown} is {kind.name}, in blocks of {kind.block}, and has rows of {row:,} elements"
            )
        return TensorInfo(name, shape, kind.name), kind, self._number("Q", "a tensor's offset")

    def _entry(self, info: TensorInfo, kind: Kind, offset: int, data: int, alignment: int) -> GgufEntry:
        stop = data + offset + math.prod(info.shape) // kind.block * kind.size
        shown = plain(info.name, 80)
        if offset % alignment:
            self._refuse(
                f"{shown} begins at byte {offset:,} of the data, which is no multiple of {alignment}"
            )
        if stop > self._size:
            raise SourceError(
                f"{self._origin} is cut short: {shown} ends at byte {stop:,}, {self._size:,} are there"
            )
        return GgufEntry(info, kind, data + offset, stop)

    def _text(self, longest: int, what: str) -> bytes:
        length = self._number("Q", what)
        if length > self._end - self._at:
            self._ended(what)
        if length > longest:
            self._refuse(f"{what} has {length:,} bytes; accepted are up to {longest:,}")
        return self._take(length, what)

    def _number(self, code: str, what: str) -> int:
        layout = f"{self.order}{code}"
        (number,) = struct.unpack(layout, self._take(struct.calcsize(layout), what))
        return int(number)

    def _take(self, size: int, what: str) -> bytes:
        """Read the next ``size`` bytes."""
        if size > self._end - self._at:
            self._ended(what)
        self._at += size
        return self._file.read(size)

    def _skip(self, size: int, what: str) -> None:
        if size > self._end - self._at:
            self._ended(what)
        self._at = self._file.seek(size, 1)

    def _ended(self, what: str) -> NoReturn:
        if self._end < self._size:
            raise SourceError(
                f"{self._origin} has a header of more than {self._limits.header_bytes:,} bytes, the limit"
            )
        self._refuse(f"{what} goes beyond its end at byte {self._size:,}")

    def _refuse(self, why: str) -> NoReturn:
        raise SourceError(f"{self._origin} is not a readable GGUF file: {why}")
