"""Pictures as tensors: a PNG or JPEG as rows x columns of grey values from 0 (black) to 1 (white).

A value is the stored one divided by the largest possible, 255 or, for 16-bit grey, 65,535: linear in what the
file stores, which is not linear in light. Colours become grey by the weights of ITU-R BT.601, .299 red + .587
green + .114 blue, in 8 bits. Transparent pixels lie on white. The orientation of EXIF is applied.

Pillow gets only the parts of a file that make pixels. It would read the rest without a bound: an EXIF of
130 kB can list 8,000 values that are the same 130 kB each.
"""

from __future__ import annotations

import io
import re
import struct
import warnings
from bisect import bisect_right
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from explorer.progress import Progress, StoppedError, checkpoint
from explorer.sources.base import SourceError, TensorInfo, TensorSource, first_line
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

if TYPE_CHECKING:
    from PIL import Image

PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Suffix -> Pillow's name of the kind of file."""
_WIDE = "I;16"
"""Pillow's mode of 16-bit grey."""
_ACCEPTED = ("1", "L", "LA", "P", "RGB", "RGBA", _WIDE)
_MODES = "grey, colours (RGB) or a palette, transparent or not"
_SPARE = 1 << 20
"""Bytes of a file beyond the four for each pixel that it may have."""
_LONGEST = 65_535
"""Largest accepted side, JPEG's own. Pillow keeps up to 16 bytes for each row beside its pixels, in each of
its copies."""
_MOST_PARTS = 200_000
"""Largest accepted number of chunks or markers: writers cut a PNG's data into chunks of some kilobytes."""
_MOST_SCANS = 100
"""Largest accepted number of scans of a JPEG, each of which may go through all pixels; cameras write up to
ten or so."""
_MARKER = re.compile(rb"\xff[^\x00\x01\xff\xd0-\xd8]")
"""Start of a segment of a JPEG: not a stuffed 255, a restart or a start."""
_FILL = re.compile(rb"\xff+(?=\xff)")
"""A run of 255s but for the last one."""
_PIECE = 1 << 20
"""Bytes that are looked through at once."""
_SCAN, _END = b"\xda", b"\xd9"
_OF_PIXELS = {
    "PNG": {b"IHDR", b"PLTE", b"tRNS", b"IDAT", b"IEND", b"acTL", b"fcTL", b"fdAT"},
    "JPEG": {bytes([n]) for n in range(0xC0, 0x100) if n not in (*range(0xE1, 0xEE), 0xEF, 0xFE)},
}
"""Parts that Pillow gets. The segments of a JPEG are all but those of applications, of which the first and
the one of Adobe tell its colours, and comments."""
_TIFF = {b"II*\0": "<", b"MM\0*": ">"}
_ORIENTATION = 0x0112


class PictureFile(TensorSource):
    """One picture as a matrix [rows, columns], called by the file's name; decoded as it is opened."""

    def __init__(self, path: Path, origin: str, limits: SourceLimits) -> None:
        self.origin = origin
        data = StampedFile(path, origin).all(4 * limits.pixels + _SPARE)
        self._grey, bits = _decoded(data, PICTURES[path.suffix.lower()], origin, limits)
        self._largest = float(2**bits - 1)
        self.infos = (TensorInfo(plain(path.stem), tuple(self._grey.shape), f"{bits}-bit grey"),)

    @property
    def kept_bytes(self) -> int:
        return super().kept_bytes + int(self._grey.nbytes)

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        """Return float32 [rows, columns], each value the nearest to stored / largest."""
        values = torch.from_numpy(self._grey[:rows].astype(np.float32))
        return values.div_(self._largest)


class _Fed(io.BytesIO):
    """Bytes for Pillow: each of its reads is a checkpoint, and ends where the next scan begins."""

    def __init__(self, data: bytes, scans: list[int]) -> None:
        super().__init__(data)
        self._scans = scans

    def read(self, size: int | None = -1, /) -> bytes:
        checkpoint()
        at = self.tell()
        scan = bisect_right(self._scans, at)
        if size is not None and size >= 0 and scan < len(self._scans):
            size = min(size, self._scans[scan] - at)
        return super().read(size)


def _chunks(data: bytearray) -> Iterator[tuple[bytes, int, int, int]]:
    """The chunks of a PNG (its specification, 5.3): the name, its start, that of its content, the end."""
    at = 8
    while at + 8 <= len(data):
        length, name = struct.unpack_from(">I4s", data, at)
        yield name, at, at + 8, (at := at + 12 + length)


def _segments(data: bytearray) -> Iterator[tuple[bytes, int, int, int]]:
    """The segments of a JPEG (ITU-T T.81, B.1), its end the last: the second byte of the marker, and as for
    ``_chunks``."""
    at, name = 0, b""
    while name != _END and (found := _next_marker(data, at)):
        name, at = found[0][1:], found.end()
        if name != _END:
            at += int.from_bytes(data[at : at + 2])
        yield name, found.start(), min(found.end() + 2, at), at


def _next_marker(data: bytearray, at: int) -> re.Match[bytes] | None:
    for start in range(at, len(data), _PIECE):
        checkpoint()
        if found := _MARKER.search(data, start, start + _PIECE + 1):
            return found
    return None


def _unfilled(data: bytearray) -> bytearray:
    """A JPEG up to its end, without the 255s that may fill it between segments and within what is coded. Of
    a run of them Pillow copies all that it has read of the rest, for each 64 kB again."""
    kept, at = bytearray(), 0
    for name, start, _, stop in _segments(data):
        _add_between(kept, data, at, start)
        kept += data[start:stop]
        at = stop
        if name == _END:
            return kept
    _add_between(kept, data, at, len(data))
    return kept


def _add_between(kept: bytearray, data: bytearray, start: int, stop: int) -> None:
    """Add what lies between two segments; a run of 255s at its end is of the second one's marker."""
    waits = False
    for place in range(start, stop, _PIECE):
        checkpoint()
        piece = data[place : min(place + _PIECE, stop)]
        if waits and not piece.startswith(b"\xff"):
            kept += b"\xff"
        bare = piece.rstrip(b"\xff")
        waits = len(bare) < len(piece)
        kept += _FILL.sub(b"", bare)


def _parted(data: bytearray, kind: str, origin: str) -> tuple[_Fed, int]:
    """Take the parts that make pixels; second, the orientation of EXIF, 0 if it says none."""
    kept, scans, size, last, turned = list[memoryview](), list[int](), 0, 0, 0
    parts = _chunks(data) if kind == "PNG" else _segments(data)
    for number, (name, start, content, stop) in enumerate(parts, 1):
        checkpoint()
        if name == _SCAN:
            scans.append(size + start - last)
        if number > _MOST_PARTS or len(scans) > _MOST_SCANS:
            what = f"{_MOST_SCANS:,} scans" if len(scans) > _MOST_SCANS else f"{_MOST_PARTS:,} parts"
            raise SourceError(f"{origin} has more than {what}, the limit here; save the picture anew")
        if name not in _OF_PIXELS[kind]:
            if start > last:
                kept.append(memoryview(data)[last:start])
            size, last = size + start - last, stop
            if name in (b"eXIf", b"\xe1"):
                turned = turned or _orientation(data[content:stop].removeprefix(b"Exif\0\0"))
    return _Fed(b"".join([*kept, memoryview(data)[last:]]), scans), turned


def _orientation(exif: bytearray) -> int:
    """The orientation in the first directory of a TIFF (6.0, 2: "TIFF Structure"); 0 if there is none."""
    order = _TIFF.get(bytes(exif[:4]))
    if order is None or len(exif) < 8:
        return 0
    (at,) = struct.unpack_from(f"{order}I", exif, 4)
    entries = exif[
        at + 2 : at + 2 + 12 * int.from_bytes(exif[at : at + 2], "little" if order == "<" else "big")
    ]
    every = struct.iter_unpack(f"{order}HHIH2x", entries[: len(entries) // 12 * 12])
    return next((value for tag, _, _, value in every if tag == _ORIENTATION), 0)


def _decoded(data: bytearray, kind: str, origin: str, limits: SourceLimits) -> tuple[np.ndarray, int]:
    """Decode to uint8 or uint16 [rows, columns]; second, the bits of a value."""
    file, turned = _parted(_unfilled(data) if kind == "JPEG" else data, kind, origin)
    image = _opened(file, kind, origin, limits)
    if len(file.getbuffer()) > 4 * image.width * image.height + _SPARE:
        raise SourceError(f"{origin} has more bytes than its {image.width:,} × {image.height:,} pixels need")
    from PIL import ImageOps

    try:
        image.load()
        grey = _grey(image)
        grey.getexif()[_ORIENTATION] = turned
        grey = ImageOps.exif_transpose(grey)
    except StoppedError:
        raise
    except Exception as error:  # as in ``_opened``
        raise SourceError(f"{origin} is cut short or damaged: {first_line(error)}") from error
    checkpoint()
    if image.mode == _WIDE:
        return np.asarray(grey).astype(np.uint16), 16
    return np.asarray(grey), 8


def _opened(file: _Fed, kind: str, origin: str, limits: SourceLimits) -> Image.Image:
    """Open the picture and read its header; ``SourceError`` for a picture that must not be decoded."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise SourceError(f"{origin}: reading pictures needs Pillow: pip install pillow") from error
    too_many = SourceError(
        f"{origin} has more than {limits.pixels:,} pixels, the limit here; make the picture smaller"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our own limit is below the one that Pillow warns of
            image = Image.open(file, formats=(kind,))
    except Image.DecompressionBombError:
        raise too_many from None
    except UnidentifiedImageError:
        raise SourceError(f"{origin} is not a {kind} file, whatever its name says") from None
    except StoppedError:
        raise
    except Exception as error:  # decoders raise what they like for malformed data
        raise SourceError(f"{origin} is not a readable {kind} file: {first_line(error)}") from error
    if image.width * image.height > limits.pixels:
        raise too_many
    if max(image.size) > _LONGEST:
        raise SourceError(
            f"{origin} has {image.width:,} × {image.height:,} pixels; a side has at most {_LONGEST:,}"
        )
    if image.format == "PNG" and getattr(image, "is_animated", False):
        raise SourceError(f"{origin} is animated; accepted are still pictures: save one of its frames")
    if image.mode not in _ACCEPTED:
        what = "the four inks of print (CMYK)" if image.mode == "CMYK" else f"pixels of the kind {image.mode}"
        raise SourceError(f"{origin} holds {what}; accepted are {_MODES}: save it as one of these")
    if image.mode == _WIDE and image.has_transparency_data:
        raise SourceError(f"{origin} has 16 bits and one of its greys transparent; save it without")
    return image


def _grey(image: Image.Image) -> Image.Image:
    """Convert to one value a pixel: mode L, or the mode of 16-bit grey."""
    if image.mode == _WIDE:
        return image
    if not image.has_transparency_data:
        return (image.convert("RGB") if image.mode == "P" else image).convert("L")
    clear = image if image.mode in ("LA", "RGBA") else image.convert("RGBA")
    grey = clear.convert("L")
    grey.paste(255, mask=clear.getchannel("A").point([255 - alpha for alpha in range(256)]))
    grey.info = image.info
    return grey
