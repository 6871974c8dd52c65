"""Heat maps of a matrix's cells in 16-bit codes, which keep the page small; the browser writes the hover
texts."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Self

import numpy as np
import plotly.graph_objects as go
import torch
from plotly.colors import get_colorscale
from torch import Tensor

from explorer import words
from explorer.analysis.tensor import MAP_LIMIT
from explorer.analysis.tiles import tile_size
from explorer.figures.style import FEW_TICKS, GRID, MAGNITUDE_SCALE, Dict, colour_bar, figure

HEIGHT = 380
CODES = 65535
"""The largest code of a cell."""
ZERO_BAND = 3276
"""First code of nonzero values on a logarithmic scale, whose zeros have the code 0: 1/20 of the colours."""


@dataclass(frozen=True)
class ColourScale:
    """Values of a map's codes: ``first`` for ``low``, ``CODES`` for ``high``, in equal or ``logarithmic``
    steps. With ``zero``, the code 0 is reserved for zero.

    ``cut``: some cells with less than ``low`` are shown as ``low``.
    """

    low: float
    high: float
    logarithmic: bool
    first: int
    zero: bool
    cut: bool
    codes: int = CODES

    @classmethod
    def of(cls, maps: Sequence[Tensor], logarithmic: bool, smallest: float = 0.0) -> Self:
        """Return one scale for several maps of values ≥ 0; a logarithmic one begins at the least positive
        value, or at the share ``smallest`` of the largest."""
        positive = [reduced[(reduced > 0) & reduced.isfinite()] for reduced in maps]
        least = min((float(values.min()) for values in positive if len(values)), default=0.0)
        high = max((float(reduced.nan_to_num(0.0, 0.0, 0.0).max()) for reduced in maps), default=0.0)
        if not logarithmic or not least:
            return cls(0.0, high, False, 0, True, False)
        low = max(least, high * smallest)
        zero = any(bool((reduced == 0).any()) for reduced in maps)
        return cls(low, high, True, ZERO_BAND if zero else 0, zero, low > least)

    def codes_of(self, values: Tensor) -> np.ndarray:
        """Return the nearest codes as uint16; nonzero values never get the code of zero."""
        codes = self._places(values.double()).round().nan_to_num(CODES, CODES, 0.0)
        codes = codes.clamp(max(self.first, int(self.zero)), CODES)
        return np.asarray(torch.where(values == 0, 0.0, codes).numpy().astype(np.uint16))

    def _places(self, values: Tensor) -> Tensor:
        """Return the codes of values before rounding."""
        low, high = torch.tensor([self.low, self.high], dtype=torch.float64)
        if self.logarithmic:
            values, low, high = values.log10(), low.log10(), high.log10()
        return self.first + (values - low) / (high - low if high > low else 1.0) * (CODES - self.first)

    @property
    def ticks(self) -> tuple[list[float], list[str]]:
        """Codes at the labels of the colours, and the labels."""
        steps = (_decade_steps if self.logarithmic else _round_steps)(self.low, self.high)
        codes = self._places(torch.tensor(steps, dtype=torch.float64)).tolist()
        labels = [words.number(value) for value in steps]
        return ([self.first / 2, *codes], ["0", *labels]) if self.first else (codes, labels)

    @property
    def colours(self) -> list[list[object]]:
        """Colour scale of the codes for plotly: zero has a colour of its own."""
        start = self.first / CODES
        rest = [[start + at * (1 - start), colour] for at, colour in get_colorscale(MAGNITUDE_SCALE)]
        return [[0, GRID], [start, GRID], *rest] if self.first else rest


def scale_map_figure(reduced: Tensor, shape: tuple[int, int], name: str, scale: ColourScale) -> go.Figure:
    """Draw a heat map of the scales of ``shape`` blocks by their tiles' values ``reduced``, at most
    MAP_LIMIT² cells.

    The map's ``meta`` has ``label`` and ``unit``, a cell's rows and columns ``tall`` and ``wide``, and the
    fields of ``scale``: `assets/error_map.js` writes the hover text from them.
    """
    fig = figure("block column", "block row", name, height=HEIGHT)
    fig.add_heatmap(
        z=scale.codes_of(reduced),
        **cells(shape),
        zmin=0,
        zmax=CODES,
        colorscale=scale.colours,
        colorbar=colour_bar("scale", *scale.ticks),
        meta=map_meta("scale", shape, scale) | {"unit": "block "},
    )
    x, y = map_axes(shape)
    fig.update_layout(uirevision=f"map {shape[0]} {shape[1]}")
    fig.update_yaxes(**y)
    return fig.update_xaxes(**x)


def cells(shape: tuple[int, int]) -> Dict:
    """Return the places of the cells of a map of ``shape``, at the middles of their rows and columns."""
    tall, wide = tile_size(shape, MAP_LIMIT)
    return {"x0": (wide - 1) / 2, "dx": wide, "y0": (tall - 1) / 2, "dy": tall}


def map_meta(label: str, shape: tuple[int, int], scale: ColourScale) -> Dict:
    """Return the data from which the page describes a cell."""
    tall, wide = tile_size(shape, MAP_LIMIT)
    return {"label": label, "unit": "", "tall": tall, "wide": wide, **asdict(scale)}


def map_axes(shape: tuple[int, int]) -> tuple[Dict, Dict]:
    """Return the options of a map's two axes: whole numbers, the first row at the top."""
    rows, columns = shape
    whole: Dict = {"showgrid": False, "tick0": 0, "tickformat": ",d"}
    few = {"dtick": 1} if columns <= 8 else FEW_TICKS
    across = {**whole, **few, "range": [-0.5, columns - 0.5]}
    return across, {**whole, "range": [rows - 0.5, -0.5], "dtick": 1 if rows <= 8 else None}


def _round_steps(low: float, high: float) -> list[float]:
    """Return four to six round numbers between two values."""
    if high <= low:
        return [low]
    rough = (high - low) / 5
    power = 10.0 ** math.floor(math.log10(rough))
    step = next(power * m for m in (1, 2, 2.5, 5, 10) if power * m >= 0.999 * rough)
    first, last = math.ceil(low / step - 1e-9), math.floor(high / step + 1e-9)
    return [step * i for i in range(first, last + 1)]


def _decade_steps(low: float, high: float) -> list[float]:
    """Return two to eight round numbers between two positive values for a logarithmic scale: digits 1, 2 and
    5, or powers of ten over more decades."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    digits = (1, 2, 5) if last - first <= 3 else (1,)
    every = max(1, math.ceil((last - first) / 7))
    found = [digit * 10.0**power for power in range(first, last + 1, every) for digit in digits]
    inside = [value for value in found if low * (1 - 1e-9) <= value <= high * (1 + 1e-9)]
    return inside if len(inside) > 1 else [low, high] if high > low else [low]
