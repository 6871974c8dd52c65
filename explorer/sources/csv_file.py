"""Text tables: numbers separated by commas, semicolons or tabs, with or without one line of headings."""

from __future__ import annotations

import io
import itertools
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import torch

from explorer.progress import checkpoint
from explorer.sources.base import InMemory, SourceError, TensorSource, first_line
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

ROWS_AT_ONCE = 4096


def open_csv(path: Path, origin: str, limits: SourceLimits) -> TensorSource:
    """The table as one float64 matrix, called by the file's name."""
    file = StampedFile(path, origin)
    if file.size > limits.text_bytes:
        raise SourceError(
            f"{origin} has {file.size:,} bytes; tables of text are read up to {limits.text_bytes:,}: "
            "save larger ones as .npy or .safetensors"
        )
    text = io.StringIO(file.read(0, file.size).decode("utf-8-sig", errors="replace"), newline=None)
    lines = (line for line in text if line.strip())
    first = next(lines, None)
    if first is None:
        raise SourceError(f"{origin} is empty")
    delimiter = max(",;\t", key=first.count)
    rows = itertools.chain([first], lines) if _is_numeric(first, delimiter) else lines
    return InMemory(origin, {plain(path.stem): torch.from_numpy(_parse(rows, delimiter, origin))})


def _parse(rows: Iterator[str], delimiter: str, origin: str) -> np.ndarray:
    """All rows, some at a time: others' work goes on between them, and a stop is noticed."""
    parts: list[np.ndarray] = []
    before = 0
    while some := list(itertools.islice(rows, ROWS_AT_ONCE)):
        checkpoint()
        part = _parse_some(some, delimiter, origin, before)
        if part.size:
            parts.append(part)
        if part.size and part.shape[1] != parts[0].shape[1]:
            raise _ragged(origin, before + 1, part.shape[1], parts[0].shape[1])
        before += len(some)
    return np.concatenate(parts) if parts else np.empty((0, 0))


def _parse_some(rows: list[str], delimiter: str, origin: str, before: int) -> np.ndarray:
    """[rows, cells]; ``before``: how many rows came earlier."""
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of comments alone: refused later as empty
            return np.loadtxt(rows, np.float64, delimiter=delimiter, ndmin=2)
    except ValueError as error:
        cells = [row.count(delimiter) + 1 for row in rows]
        for index, count in enumerate(cells, before + 1):
            if count != cells[0]:
                raise _ragged(origin, index, count, cells[0]) from error
        where = _no_number(rows, delimiter, before) or first_line(error).rstrip(".")
        raise SourceError(f"{origin}: every cell below the header must be a number: {where}") from error


def _no_number(rows: list[str], delimiter: str, before: int) -> str:
    """The first cell that is no number, and where it is, counted from 1; empty if every cell is one."""
    for row, line in enumerate(rows, before + 1):
        for column, cell in enumerate(line.split(delimiter), 1):
            if not _is_numeric(cell, delimiter):
                return f"row {row} of numbers, column {column} has {plain(cell.strip(), 40)!r}"
    return ""


def _ragged(origin: str, row: int, cells: int, first: int) -> SourceError:
    return SourceError(f"{origin}: row {row} of numbers has {cells} cells, row 1 has {first}")


def _is_numeric(line: str, delimiter: str) -> bool:
    try:
        [float(cell) for cell in line.split(delimiter)]
    except ValueError:
        return False
    return True
