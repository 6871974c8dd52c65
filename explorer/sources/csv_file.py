"""Text tables: numbers separated by commas, semicolons or tabs, with or without one line of headings."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import torch

from explorer.progress import checkpoint
from explorer.sources.base import InMemory, SourceError, TensorSource, first_line
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

ROWS_AT_ONCE = 4096
"""Number of rows parsed between two checks for a request to stop."""
_AT_ONCE = 100_000
"""As many characters of them, or of a longer line: a call of NumPy's parser lets no other thread run."""
_LONGEST = 4 << 20
"""Characters of the longest line that is accepted."""


def open_csv(path: Path, origin: str, limits: SourceLimits) -> TensorSource:
    """Read the table as one float64 matrix, called by the file's name."""
    file = StampedFile(path, origin)
    if file.size > limits.text_bytes:
        raise SourceError(
            f"{origin} has {file.size:,} bytes; tables of text are read up to {limits.text_bytes:,}: "
            "save larger ones as .npy or .safetensors"
        )
    data = io.BytesIO(file.read(0, file.size))
    lines = _lines(io.TextIOWrapper(data, "utf-8-sig", errors="replace"), origin)
    first = next(lines, None)
    if first is None:
        raise SourceError(f"{origin} is empty")
    delimiter = max(",;\t", key=first.count)
    cells = _cells(first.partition("#")[0], delimiter)  # the rest is a comment, in any row
    rows = itertools.chain([first], lines) if all(map(_is_number, cells)) else lines
    parts: list[np.ndarray] = []
    before = 0
    for some in _together(rows):
        try:
            part = _parsed(some, delimiter)
            if part.size and part.shape[1] != (parts or [part])[0].shape[1]:
                raise ValueError("its rows differ in length")
        except ValueError as error:
            columns = parts[0].shape[1] if parts else some[0].count(delimiter) + 1
            raise SourceError(
                f"{origin}: {_fault(some, delimiter, before, columns) or first_line(error)}"
            ) from error
        if part.size:
            parts.append(part)
        before += len(some)
    values = np.concatenate(parts) if parts else np.empty((0, 0))
    return InMemory(origin, plain(path.stem), torch.from_numpy(values))


def _lines(text: Iterable[str], origin: str) -> Iterator[str]:
    """The lines that are not blank."""
    for number, line in enumerate(text):
        if number % ROWS_AT_ONCE == 0:
            checkpoint()
        if len(line) > _LONGEST:
            raise SourceError(
                f"{origin} has a line of more than {_LONGEST:,} characters; save the table as .npy"
            )
        if line.strip():
            yield line


def _together(rows: Iterable[str]) -> Iterator[list[str]]:
    """Rows in lists of up to ``ROWS_AT_ONCE`` and ``_AT_ONCE`` characters; a longer row alone."""
    some, size = list[str](), 0
    for row in rows:
        if len(some) == ROWS_AT_ONCE or (some and size + len(row) > _AT_ONCE):
            yield some
            some, size = [], 0
        some.append(row)
        size += len(row)
    if some:
        yield some


def _parsed(rows: list[str], delimiter: str) -> np.ndarray:
    """The matrix of rows that ``_together`` gives."""
    if len(rows) == 1 and len(rows[0]) > _AT_ONCE:
        calls = [[piece] for piece in _pieces(rows[0].partition("#")[0], delimiter)]
    else:
        calls = [rows]
    parts = list[np.ndarray]()
    for some in calls:
        checkpoint()
        if len(calls) > 1 and not 0 < len(some[0].strip()) <= _AT_ONCE:
            raise ValueError(f"a cell is blank or has more than {_AT_ONCE:,} characters")
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of comments alone: refused later as empty
            parts.append(np.loadtxt(some, np.float64, delimiter=delimiter, ndmin=2))
    return parts[0] if len(parts) == 1 else np.hstack(parts)  # brief copies would starve other threads


def _pieces(row: str, delimiter: str) -> Iterator[str]:
    """The row, cut at delimiters into pieces of ``_AT_ONCE`` characters at most; a longer cell is whole."""
    start = 0
    while len(row) - start > _AT_ONCE:
        end = row.rfind(delimiter, start, start + _AT_ONCE)
        end = end if end >= 0 else row.find(delimiter, start + _AT_ONCE)
        if end < 0:
            break
        yield row[start:end]
        start = end + 1
    yield row[start:]


def _cells(row: str, delimiter: str) -> Iterator[str]:
    for piece in _pieces(row, delimiter):
        checkpoint()
        yield from piece.split(delimiter)


def _fault(rows: list[str], delimiter: str, before: int, columns: int) -> str:
    """Describe the fault of the first bad row, numbered from ``before`` + 1; empty if none is found."""
    for number, row in enumerate(rows, before + 1):
        if (cells := row.count(delimiter) + 1) != columns:
            return f"row {number} of numbers has {cells} cells, row 1 has {columns}"
        for column, cell in enumerate(_cells(row, delimiter), 1):
            if not _is_number(cell):
                shown = plain(cell.strip(), 40)
                return (
                    f"every cell below the header must be a number: row {number} of numbers, column {column} "
                    f"has {shown!r}"
                )
    return ""


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True
