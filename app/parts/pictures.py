"""Small pictures of a tensor: the size of its values by block of rows and columns, and their histogram.

A picture is a PNG of one colour whose opacity is the value, so that it is right on a light and a dark page; a
photograph is one in grey.
"""

from __future__ import annotations

import base64
import io
import math
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path

import numpy as np
from PIL import Image
from torch import Tensor

from explorer import words
from explorer.analysis.spread import Spread, frame_of, spread
from explorer.sources import load_sample
from explorer.sources.picture_file import PICTURES

BLUE = (0, 114, 178)
LEVELS = 15
"""Steps of opacity: four bits a cell."""
PICTURE, THUMBNAIL = (72, 200), (32, 52)
"""The most cells, rows and columns."""
PHOTOGRAPH, PHOTO_THUMBNAIL = (224, 400), (64, 104)
"""The most pixels of a photograph, rows and columns."""
PORTRAIT = "portrait"
FAINTEST, STRONGEST = 0.02, 0.995
"""Shares of the cells that are drawn without and with all of the colour."""
BARS = 60


@dataclass(frozen=True)
class Bars:
    """A histogram: heights 0 … 1 of equal bins, and a sentence on the largest value."""

    heights: tuple[float, ...]
    words: str


def picture(x: Tensor, most: tuple[int, int] = PICTURE) -> str:
    """A data URI of |x| of the float32 matrix ``x`` [rows, cols], each cell the RMS of a block."""
    cells = _cells(x, most)
    low, high = (float(np.quantile(cells, q)) for q in (FAINTEST, STRONGEST)) if cells.size else (0.0, 1.0)
    if not high > low:
        low, high = 0.0, high or 1.0
    codes = np.rint(np.clip((cells - low) / (high - low), 0, 1) * LEVELS).astype(np.uint8)
    image = Image.fromarray(codes).convert("P")
    image.putpalette(BLUE * (LEVELS + 1))
    out = io.BytesIO()
    opacity = bytes(round(255 * i / LEVELS) for i in range(LEVELS + 1))
    image.save(out, "PNG", transparency=opacity, bits=4, optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def photograph(x: Tensor, most: tuple[int, int] = PHOTOGRAPH) -> str:
    """A data URI of the grey values ``x`` [rows, cols] from 0 (black) to 1, in the proportions of the picture
    and at most ``most`` pixels."""
    grey = Image.fromarray((x.float().clamp(0, 1).cpu().numpy() * 255).round().astype(np.uint8))
    grey.thumbnail(most[::-1])
    out = io.BytesIO()
    grey.save(out, "PNG", optimize=True)
    return f"data:image/png;base64,{base64.b64encode(out.getvalue()).decode()}"


def is_photograph(sample: str, file: str | None) -> bool:
    """Whether a built-in tensor, or else a file, holds a picture's grey values."""
    return Path(file).suffix.lower() in PICTURES if file else sample == PORTRAIT


@lru_cache(maxsize=64)
def thumbnail(sample: str) -> str:
    """The picture of a built-in tensor, drawn once."""
    values = load_sample(sample).values
    return photograph(values, PHOTO_THUMBNAIL) if sample == PORTRAIT else picture(values, THUMBNAIL)


def bars(x: Tensor, before: Spread | None = None) -> Bars:
    """The histogram of the central range of ``x``; ``before`` is its ``spread`` where there is one."""
    found = before or spread(x, frame_of(x))
    counts = found.middle.counts
    each = math.ceil(len(counts) / BARS)
    padded = np.pad(counts, (0, -len(counts) % each)).reshape(-1, each).sum(1)
    heights = padded / max(int(padded.max()), 1)
    return Bars(tuple(round(float(h), 3) for h in heights), largest_words(x))


def largest_words(x: Tensor) -> str:
    """How many times the RMS the largest |x| is."""
    rms = float(x.double().square().mean().sqrt()) if x.numel() else 0.0
    if not math.isfinite(rms):
        return "there are values that are not finite"
    if rms == 0:
        return "all elements are 0"
    return f"largest |x| {words.number(float(x.abs().max()) / rms, 2)} × RMS"


def _cells(x: Tensor, most: tuple[int, int]) -> np.ndarray:
    """float64 [at most most]: the RMS of each block of rows and columns, the finite values of it."""
    tall, wide = (max(1, math.ceil(n / limit)) for n, limit in zip(x.shape, most, strict=True))
    rows = x[:: max(1, tall // 4)] if tall > 4 else x
    tall = max(1, math.ceil(tall / max(1, tall // 4))) if tall > 4 else tall
    squares = rows.float().nan_to_num(0, 0, 0).double().square().cpu().numpy()
    squares = np.pad(squares, ((0, -squares.shape[0] % tall), (0, -squares.shape[1] % wide)), "edge")
    shape = squares.shape[0] // tall, tall, squares.shape[1] // wide, wide
    return np.asarray(np.sqrt(squares.reshape(shape).mean((1, 3))))
