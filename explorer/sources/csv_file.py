"""Text tables: numbers separated by commas, semicolons or tabs, with or without one line of headings."""

from __future__ import annotations

import warnings
from pathlib import Path

import numpy as np
import torch

from explorer.sources.base import InMemory, SourceError, TensorSource, first_line
from explorer.sources.limits import SourceLimits
from explorer.sources.stamped import StampedFile


def open_csv(path: Path, origin: str, limits: SourceLimits) -> TensorSource:
    """The table as one float64 matrix, called by the file's name."""
    file = StampedFile(path, origin)
    if file.size > limits.text_bytes:
        raise SourceError(
            f"{origin} has {file.size:,} bytes; tables of text are read up to {limits.text_bytes:,}: "
            "save larger ones as .npy or .safetensors"
        )
    text = file.read(0, file.size).decode("utf-8-sig", errors="replace")
    lines = [line for line in text.splitlines() if line.strip()]
    if not lines:
        raise SourceError(f"{origin} is empty")
    delimiter = max(",;\t", key=lines[0].count)
    rows = lines if _is_numeric(lines[0], delimiter) else lines[1:]
    return InMemory(origin, {path.stem: torch.from_numpy(_parse(rows, delimiter, origin))})


def _parse(rows: list[str], delimiter: str, origin: str) -> np.ndarray:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", UserWarning)  # of a table without rows: refused later as empty
            return np.loadtxt(rows, np.float64, delimiter=delimiter, ndmin=2)
    except ValueError as error:
        cells = [row.count(delimiter) + 1 for row in rows]
        for index, count in enumerate(cells):
            if count != cells[0]:
                raise SourceError(
                    f"{origin}: row {index + 1} of numbers has {count} cells, row 1 has {cells[0]}"
                ) from error
        raise SourceError(
            f"{origin}: every cell below the header must be a number: {first_line(error)}"
        ) from error


def _is_numeric(line: str, delimiter: str) -> bool:
    try:
        [float(cell) for cell in line.split(delimiter)]
    except ValueError:
        return False
    return True
