"""Files that others may change while they are used: read, never mapped, and never a mixture of old and new
bytes.

A mapped file that is cut short ends the process that touches the missing pages, and one that is written anew
in place shows old and new bytes together. Here a file is opened for each read, and its stamp is compared
before and after.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO

from explorer.progress import checkpoint
from explorer.sources.base import SourceError

Stamp = tuple[int, int, int, int]
_PIECE = 16 << 20


def stamp_of(path: Path) -> Stamp:
    """A value that changes with a file: device, inode, size, and time of change in ns. Raises ``OSError``."""
    return _stamp(path.stat())


def _stamp(status: os.stat_result) -> Stamp:
    return status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns


class StampedFile:
    """Regular file of ``size`` bytes; ``SourceError`` once it has changed since this object was made."""

    def __init__(self, path: Path, origin: str) -> None:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise SourceError(f"{origin} is no regular file")
        self._path, self._origin, self._stamp = path, origin, _stamp(status)
        self.size = status.st_size

    @contextmanager
    def open(self) -> Iterator[IO[bytes]]:
        """Open the file for reading; the data is valid only if this block ends without an error."""
        with self._path.open("rb") as file:
            self._check(file)
            yield file
            self._check(file)

    def read(self, start: int, size: int) -> bytearray:
        """Read the bytes [start, start + size)."""
        if not 0 <= start <= start + size <= self.size:
            raise SourceError(f"{self._origin} ends at byte {self.size:,}, before {start + size:,}")
        data = bytearray(size)
        with self.open() as file:
            file.seek(start)
            view = memoryview(data)
            while view and (count := file.readinto(view[:_PIECE])):  # type: ignore[attr-defined]
                view = view[count:]
                checkpoint()
        return data

    def all(self, most: int) -> bytearray:
        """Read the whole file; ``SourceError`` if it has more than ``most`` bytes."""
        if self.size > most:
            raise SourceError(f"{self._origin} has {self.size:,} bytes; accepted are up to {most:,}")
        return self.read(0, self.size)

    def read_pieces(self, starts: Sequence[int], size: int) -> bytearray:
        """Read the bytes [start, start + size) of each start, one after another."""
        data = bytearray(size * len(starts))
        view = memoryview(data)
        with self.open() as file:
            for i, start in enumerate(starts):
                file.seek(start)
                if file.readinto(view[i * size : (i + 1) * size]) != size:  # type: ignore[attr-defined]
                    raise SourceError(f"{self._origin} ends at byte {self.size:,}, before {start + size:,}")
        return data

    def _check(self, file: IO[bytes]) -> None:
        if _stamp(os.fstat(file.fileno())) != self._stamp:
            raise SourceError(f"{self._origin} has changed since it was opened; open it again")
