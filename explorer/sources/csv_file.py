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
_AT_ONCE = 4 << 20
"""As many characters of them, and of the longest line that is accepted."""


def open_csv(path: Path, origin: str, limits: SourceLimits) -> TensorSource:
    """Read the table as one float64 matrix, called by the file's name."""
    file = StampedFile(path, origin)
    if file.size > limits.text_bytes:
        raise SourceError(
            f"{origin} has {file.size:,} bytes; tables of text are read up to {limits.text_bytes:,}: "
            "save larger ones as .npy or .safetensors"
        )
    text = io.StringIO(file.read(0, file.size).decode("utf-8-sig", errors="replace"), newline=None)
    lines = _lines(text, origin)
    first = next(lines, None)
    if first is None:
        raise SourceError(f"{origin} is empty")
    delimiter = max(",;\t", key=first.count)
    rows = itertools.chain([first], lines) if all(map(_is_number, first.split(delimiter))) else lines
    parts: list[np.ndarray] = []
    before = 0
    for some in _together(rows):
        checkpoint()
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", UserWarning)  # of comments alone: refused later as empty
                part = np.loadtxt(some, np.float64, delimiter=delimiter, ndmin=2)
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
        if len(line) > _AT_ONCE:
            raise SourceError(
                f"{origin} has a line of more than {_AT_ONCE:,} characters; save the table as .npy"
            )
        if line.strip():
            yield line


def _together(rows: Iterable[str]) -> Iterator[list[str]]:
    """Rows in lists, each of ``ROWS_AT_ONCE`` or up to the row that makes ``_AT_ONCE`` characters full."""
    some, size = list[str](), 0
    for row in rows:
        some.append(row)
        size += len(row)
        if len(some) == ROWS_AT_ONCE or size >= _AT_ONCE:
            yield some
            some, size = [], 0
    if some:
        yield some


def _fault(rows: list[str], delimiter: str, before: int, columns: int) -> str:
    """Describe the fault of the first bad row, numbered from ``before`` + 1; empty if none is found."""
    for number, row in enumerate(rows, before + 1):
        cells = row.split(delimiter)
        if len(cells) != columns:
            return f"row {number} of numbers has {len(cells)} cells, row 1 has {columns}"
        for column, cell in enumerate(cells, 1):
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
