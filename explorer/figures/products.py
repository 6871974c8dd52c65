"""Matrix products as points: coloured by the family of the weights' format, filled if the chip computes in
it, open if it is emulated, ringed if they serve scheme A or B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from explorer.cpu.products import CPU_PRODUCTS
from explorer.figures import style
from explorer.figures.style import MUTED, add_points, marker_look
from explorer.products.gemms import GEMMS, Product

LEGEND_HEIGHT = 130
"""Largest height of the legend in pixels; a longer legend scrolls."""
NOTHING = "nothing was timed at this shape"
UNKNOWN = "not in the table any more"
SCHEME_COLORS = {"A": style.A, "B": style.B}
Marked = Mapping[str, str]
"""Names of products that multiply by the weights of a chosen scheme -> "A" or "B"."""


@dataclass(frozen=True)
class Dot:
    """One product in a figure. ``hover``: lines of the hover text."""

    gemm: str
    label: str
    native: bool
    x: float
    y: float | str
    hover: str
    size: float = 9
    faint: bool = False


def family_of(gemm: str) -> str:
    """Return the family of the weights' format, a key of ``style.FAMILY_COLORS``, or ``UNKNOWN``."""
    row: Product | None = GEMMS.get(gemm) or CPU_PRODUCTS.get(gemm)
    return style.family(row.w.format) if row else UNKNOWN


def color_of(gemm: str) -> str:
    """Return the colour of a product's family."""
    return style.FAMILY_COLORS.get(family_of(gemm), MUTED)


def products_figure(
    x_title: str, y_title: str, name: str, height: int, legend_height: int = LEGEND_HEIGHT
) -> go.Figure:
    """Return an empty figure with its legend above the plot, where it covers no axis title at any width."""
    figure = style.figure(x_title, y_title, name, height)
    legend = {"orientation": "h", "x": 0, "y": 1.0, "yanchor": "bottom", "font": {"size": 11}}
    legend |= {"itemsizing": "constant", "tracegroupgap": 0, "maxheight": legend_height}
    return figure.update_layout(margin={"l": 48, "t": 8, "r": 20}, legend=legend)


def add_dots(figure: go.Figure, dots: Sequence[Dot], marked: Marked) -> None:
    """Add a trace for each family and kind, so that one click on the legend hides a family; then the legend's
    entries for filled and open markers, and A's and B's rings."""
    for family in [*style.FAMILY_COLORS, UNKNOWN]:
        of_family = [d for d in dots if family_of(d.gemm) == family]
        for native in (True, False):
            members = [d for d in of_family if d.native is native]
            if members:
                look = _look(style.FAMILY_COLORS.get(family, MUTED), native)
                look |= {"size": [d.size for d in members]}
                look |= {"opacity": [0.45 if d.faint else 1.0 for d in members]}
                first = native or not any(d.native for d in of_family)
                group = {"legendgroup": family, "showlegend": first, "cliponaxis": False}
                x, y, hover = [d.x for d in members], [d.y for d in members], [[d.hover] for d in members]
                add_points(figure, family, x, y, look, "%{customdata[0]}", customdata=hover, **group)
    for native in sorted({d.native for d in dots}, reverse=True):
        add_points(
            figure, "filled: native" if native else "open: emulated", [None], [None], _look(MUTED, native)
        )
    for scheme, color in SCHEME_COLORS.items():
        ringed = [d for d in dots if marked.get(d.gemm) == scheme]
        if ringed:
            ring = marker_look(color, 0, "circle-open", 2.5) | {"opacity": 1}
            ring["size"] = [d.size + 9 for d in ringed]
            at = [d.x for d in ringed], [d.y for d in ringed]
            add_points(figure, f"scheme {scheme}", *at, ring, cliponaxis=False)


def _look(color: str, native: bool) -> style.Dict:
    return marker_look(color, 9, "circle" if native else "circle-open", 0 if native else 2)


def tagged(gemm: str, label: str, marked: Marked) -> str:
    """Return ``label`` preceded by the letter of the scheme that the product serves, in that scheme's
    colour."""
    scheme = marked.get(gemm)
    if scheme is None:
        return label
    return f'<span style="color:{SCHEME_COLORS[scheme]}"><b>{scheme}</b></span> {label}'


def row_axis(figure: go.Figure, labels: Mapping[str, str]) -> None:
    """Make a row for each key of ``labels``, the first at the top, with its value as the name. Names leave
    the other axis little room on a phone, so that its numbers are small."""
    figure.update_xaxes(tickfont={"size": 10})
    figure.update_yaxes(
        type="category",
        categoryorder="array",
        categoryarray=list(labels),
        range=[len(labels) - 0.4, -0.6],
        tickvals=list(labels),
        ticktext=list(labels.values()),
        tickfont={"size": 11},
        ticklabelstandoff=5,
        showgrid=False,
        ticks="",
    )
