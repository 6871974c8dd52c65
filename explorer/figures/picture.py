"""A matrix as a picture before and after quantization: whole, and a cut enlarged with square pixels and
blocks.

    picture_html(original_panel(x, cut), *(panel_of(side, cut) for side in sides))

The result is self-contained HTML for a page, a notebook (``IPython.display.HTML``), or paper. Its text has
the colour of its surroundings.
"""

from __future__ import annotations

import html
import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Self

import jinja2
import numpy as np
from _plotly_utils.data_utils import image_array_to_data_uri
from plotly.colors import sample_colorscale
from torch import Tensor

from explorer.analysis.element import block_index
from explorer.analysis.report import Report
from explorer.analysis.tensor import Side
from explorer.core.quantize import QuantizedTensor

MOST = 5
"""Largest number of schemes beside the original: more would be too small to compare."""
CUT_ROWS, CUT_COLUMNS = 32, 48
_STEP = 16
"""Step of a cut's first row and column, at which most blocks begin too; at most half of a cut."""
_SHADES = 255
_TEMPLATE = Path(__file__).with_name("picture.html.j2")


@dataclass(frozen=True)
class Shades:
    """Colours of values from ``low`` to ``high``; values beyond have the colour of the end. ``colours``: a
    colour scale of plotly, None for grey from black to white."""

    low: float = 0.0
    high: float = 1.0
    colours: str | None = None

    @classmethod
    def of(cls, x: Tensor) -> Self:
        """Return the colours for a matrix: grey if all values lie between 0 and 1, as in pictures; else blue
        and red from minus to plus the largest magnitude, white at zero."""
        if float(x.min()) >= 0 and float(x.max()) <= 1:
            return cls()
        largest = float(x.abs().max())
        return cls(-largest, largest, "RdBu_r")

    def paint(self, values: Tensor) -> np.ndarray:
        """Colour values as uint8 [rows, columns], or [rows, columns, 3] in colours; values k / 255 of a
        picture become k."""
        shares = (values.double().cpu() - self.low) / (self.high - self.low)
        shades = (shares.clamp(0, 1) * _SHADES).round().numpy().astype(np.uint8)
        if self.colours is None:
            return np.asarray(shades)
        stops = np.linspace(0, 1, _SHADES + 1).tolist()
        table = np.array(sample_colorscale(self.colours, stops, colortype="tuple"))
        return np.asarray((table * 255).round().astype(np.uint8)[shades])


GREY = Shades()
"""Shades of pictures: 0 is black, 1 is white."""


@dataclass(frozen=True)
class Cut:
    """Enlarged part: its first row and column, and the number of each."""

    row: int
    column: int
    rows: int = CUT_ROWS
    columns: int = CUT_COLUMNS

    @classmethod
    def around(cls, position: tuple[int, int], shape: tuple[int, int]) -> Self:
        """Return a cut of a matrix of ``shape`` that holds the element at ``position`` (row, column), and
        begins where blocks do if it can. ``ValueError`` for a position outside."""
        if not (0 <= position[0] < shape[0] and 0 <= position[1] < shape[1]):
            where = f"rows 0 to {shape[0] - 1} and columns 0 to {shape[1] - 1}"
            raise ValueError(f"there is no element at row {position[0]}, column {position[1]}: {where}")
        lengths = min(CUT_ROWS, shape[0]), min(CUT_COLUMNS, shape[1])
        row, column = (
            min(max(index - length // 2, 0) // _STEP * _STEP, whole - length)
            for index, length, whole in zip(position, lengths, shape, strict=True)
        )
        return cls(row, column, *lengths)

    def of(self, values: Tensor) -> Tensor:
        """Cut the part out, [rows, columns]."""
        return values[self.row : self.row + self.rows, self.column : self.column + self.columns]

    @property
    def view_box(self) -> str:
        """SVG's view box, in pixels of the whole picture."""
        return f"{self.column} {self.row} {self.columns} {self.rows}"


@dataclass(frozen=True)
class Panel:
    """One column of the figure.

    ``source`` and ``enlarged``: the whole picture and the cut, data URIs; ``shape`` in rows and columns;
    ``outlines``: edges of blocks within the cut as an SVG path in pixels of the picture, empty without any;
    ``block``: outline of one block.
    """

    title: str
    note: str
    source: str
    enlarged: str
    shape: tuple[int, int]
    cut: Cut
    outlines: str = ""
    block: str = ""


def original_panel(x: Tensor, cut: Cut, shades: Shades = GREY) -> Panel:
    """Return the panel of the matrix itself, float32 [rows, columns]."""
    return _panel("Original", f"{x.shape[0]}×{x.shape[1]}", x, cut, shades)


def panel_of(side: Side, cut: Cut, shades: Shades = GREY) -> Panel:
    """Return the panel of a scheme's dequantized values, with its name, bits per element and SQNR."""
    q = side.analysis.q
    edges = outlines(q, cut), one_block(q, cut)
    return _panel(side.label, figures_of(side.analysis.report), q.dequantize(), cut, shades, *edges)


def _panel(
    title: str, note: str, x: Tensor, cut: Cut, shades: Shades, outlines: str = "", block: str = ""
) -> Panel:
    pictures = picture_uri(x, shades), picture_uri(cut.of(x), shades)
    return Panel(title, note, *pictures, (x.shape[0], x.shape[1]), cut, outlines, block)


def figures_of(report: Report) -> str:
    """Describe bits per element and SQNR."""
    return f"{report.bits.total:.4g} bits, {report.sqnr_db:.1f} dB"


def picture_uri(values: Tensor, shades: Shades = GREY) -> str:
    """Return ``values`` [rows, columns] as a PNG in a data URI, a pixel each."""
    return str(image_array_to_data_uri(shades.paint(values), backend="auto", compression=9))


def picture_html(*panels: Panel) -> str:
    """Return the original and up to ``MOST`` others, side by side where there is room; ``ValueError`` for
    more."""
    if len(panels) > MOST + 1:
        raise ValueError(f"{len(panels) - 1} schemes; up to {MOST} are drawn beside the original")
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    return environment.from_string(_TEMPLATE.read_text(encoding="utf-8")).render(panels=panels)


def picture_page(title: str, *panels: Panel) -> str:
    """Return ``picture_html`` as a separate file, light or dark as the browser is."""
    style = "margin: 24px; font-family: Inter, system-ui, sans-serif"
    head = f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{html.escape(title)}</title>'
    screen = (
        '<meta name="viewport" content="width=device-width"><meta name="color-scheme" content="light dark">'
    )
    return f'{head}{screen}<body style="{style}">{picture_html(*panels)}</body></html>'


def outlines(q: QuantizedTensor, cut: Cut) -> str:
    """Return the edges between blocks that lie within the cut, as an SVG path; none without scales."""
    if q.scheme.scale is None:
        return ""
    rows, columns, blocks = _blocks(q, cut)
    path = ""
    for x, there in zip(columns[1:], (blocks[:, 1:] != blocks[:, :-1]).T, strict=True):
        path += "".join(f"M{x} {rows[0] + start}V{rows[0] + stop}" for start, stop in _runs(there))
    for y, there in zip(rows[1:], blocks[1:] != blocks[:-1], strict=True):
        path += "".join(f"M{columns[0] + start} {y}H{columns[0] + stop}" for start, stop in _runs(there))
    return path


def one_block(q: QuantizedTensor, cut: Cut) -> str:
    """Return the outline of the block in the middle of the cut, cropped to the cut, as an SVG path; empty if
    one block covers all of the cut."""
    if not outlines(q, cut):
        return ""
    rows, columns, blocks = _blocks(q, cut)
    inside = blocks == blocks[len(rows) // 2, len(columns) // 2]
    spans = [(row, *span) for row, there in zip(rows, inside, strict=True) for span in _runs(there)]
    path = ""
    for (start, stop), same in itertools.groupby(spans, key=lambda span: span[1:]):
        lines = [row for row, *_ in same]
        path += f"M{columns[0] + start} {lines[0]}H{columns[0] + stop}V{lines[-1] + 1}H{columns[0] + start}Z"
    return path


def _blocks(q: QuantizedTensor, cut: Cut) -> tuple[range, range, np.ndarray]:
    """Return the rows and columns of the cut, and the number of each element's block, [rows, columns]."""
    rows = range(cut.row, min(cut.row + cut.rows, q.shape[0]))
    columns = range(cut.column, min(cut.column + cut.columns, q.shape[1]))
    cells = [[block_index(q, row, column) for column in columns] for row in rows]
    return rows, columns, np.array([[down * q.shape[1] + along for down, along in line] for line in cells])


def _runs(there: np.ndarray) -> Iterator[tuple[int, int]]:
    """Yield [start, stop) of each run of True."""
    edges = np.flatnonzero(np.diff(np.pad(there.astype(np.int8), 1)))
    yield from zip(edges[::2].tolist(), edges[1::2].tolist(), strict=True)
