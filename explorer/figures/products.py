"""Matrix products as points: a colour by the weights' family of formats, filled where the chip is native,
ringed where they serve scheme A or B."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import plotly.graph_objects as go

from explorer.cpu.products import CPU_PRODUCTS
from explorer.figures import style
from explorer.figures.style import MUTED
from explorer.products.gemms import GEMMS, Product

LEGEND_HEIGHT = 130
"""At most, in pixels; a longer legend scrolls."""
NOTHING = "nothing was timed at this shape"
UNKNOWN = "not in the table any more"
SCHEME_COLORS = {"A": style.A, "B": style.B}
Marked = Mapping[str, str]
"""Names of products that multiply by the weights of a chosen scheme -> "A" or "B"."""


@dataclass(frozen=True)
class Dot:
    """One product in a figure. ``hover``: lines that are shown when the pointer is on it."""

    gemm: str
    label: str
    native: bool
    x: float
    y: float | str
    hover: str
    size: float = 9
    faint: bool = False


def family_of(gemm: str) -> str:
    """The family of the weights' format, a key of ``style.FAMILY_COLORS``, or ``UNKNOWN``."""
    row: Product | None = GEMMS.get(gemm) or CPU_PRODUCTS.get(gemm)
    return style.family(row.w.format) if row else UNKNOWN


def color_of(gemm: str) -> str:
    return style.FAMILY_COLORS.get(family_of(gemm), MUTED)


def products_figure(x_title: str, y_title: str, name: str, height: int) -> go.Figure:
    """An empty figure whose legend stands above the plot, where it covers no axis title on any width."""
    figure = style.figure(x_title, y_title, name, height)
    figure.update_layout(
        margin={"l": 48, "t": 8, "r": 20},
        legend={
            "orientation": "h",
            "x": 0,
            "y": 1.0,
            "yanchor": "bottom",
            "font": {"size": 11},
            "itemsizing": "constant",
            "tracegroupgap": 0,
            "maxheight": LEGEND_HEIGHT,
        },
    )
    return figure


def add_dots(figure: go.Figure, dots: Sequence[Dot], marked: Marked) -> None:
    """A trace for each family and kind, so that one click on the legend hides a family; then A's and B's
    rings."""
    for family in [*style.FAMILY_COLORS, UNKNOWN]:
        of_family = [d for d in dots if family_of(d.gemm) == family]
        for native in (True, False):
            members = [d for d in of_family if d.native is native]
            if members:
                _add_trace(
                    figure, members, family, native, first=native or not any(d.native for d in of_family)
                )
    for native in sorted({d.native for d in dots}, reverse=True):
        _add_key(figure, native)
    for scheme, color in SCHEME_COLORS.items():
        _add_rings(figure, [d for d in dots if marked.get(d.gemm) == scheme], scheme, color)


def _add_trace(figure: go.Figure, dots: Sequence[Dot], family: str, native: bool, first: bool) -> None:
    color = style.FAMILY_COLORS.get(family, MUTED)
    figure.add_scatter(
        x=[d.x for d in dots],
        y=[d.y for d in dots],
        mode="markers",
        name=family,
        legendgroup=family,
        showlegend=first,
        marker={
            "color": color,
            "symbol": "circle" if native else "circle-open",
            "size": [d.size for d in dots],
            "opacity": [0.45 if d.faint else 1.0 for d in dots],
            "line": {"width": 0 if native else 2, "color": color},
        },
        customdata=[[d.hover] for d in dots],
        hovertemplate="%{customdata[0]}<extra></extra>",
        cliponaxis=False,
    )


def _add_key(figure: go.Figure, native: bool) -> None:
    """Add legend entries for filled and open markers."""
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        name=("filled: native" if native else "open: emulated"),
        marker={
            "color": MUTED,
            "symbol": "circle" if native else "circle-open",
            "size": 9,
            "line": {"width": 0 if native else 2, "color": MUTED},
        },
        hoverinfo="skip",
    )


def _add_rings(figure: go.Figure, dots: Sequence[Dot], scheme: str, color: str) -> None:
    if dots:
        figure.add_scatter(
            x=[d.x for d in dots],
            y=[d.y for d in dots],
            mode="markers",
            name=f"scheme {scheme}",
            marker={
                "symbol": "circle-open",
                "color": color,
                "size": [d.size + 9 for d in dots],
                "opacity": 1,
                "line": {"width": 2.5, "color": color},
            },
            hoverinfo="skip",
            cliponaxis=False,
        )


def tagged(gemm: str, label: str, marked: Marked) -> str:
    """``label`` with the letter of the scheme that it serves, in that scheme's colour."""
    scheme = marked.get(gemm)
    if scheme is None:
        return label
    return f'<span style="color:{SCHEME_COLORS[scheme]}"><b>{scheme}</b></span> {label}'


def row_axis(figure: go.Figure, labels: Mapping[str, str]) -> None:
    """A row for each key of ``labels``, the first at the top, named by its value. Names leave the other axis
    little room on a phone, so that its numbers are small."""
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
