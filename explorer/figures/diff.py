"""The figure of two checkpoints: the error of each layer along the depth of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.checkpoints.diff import LayerDiff
from explorer.figures.style import SERIES, empty, figure, legend_below
from explorer.models.kinds import kind_of

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross")
_HEIGHT = 340
_HOVER = "%{customdata[0]}<br>%{customdata[1]}: %{y:.2f} dB<br>%{customdata[2]}<extra></extra>"


def depth_figure(layers: Sequence[LayerDiff], name: str) -> go.Figure:
    """SQNR in dB of each changed layer by its block: a colour and symbol for each kind of layer. What is in
    no block, such as the head, stands right of the last one. Outliers are ringed. ``customdata`` of a point
    is [name, what is stored, a remark]."""
    changed = [layer for layer in layers if layer.changed and math.isfinite(layer.sqnr_db)]
    if not changed:
        return empty("no layer with an error", f"{name} depth")
    beyond = 1 + max((layer.depth for layer in changed if layer.depth is not None), default=-1)
    fig = legend_below(figure("block of the model", "SQNR (dB)", f"{name} depth", height=_HEIGHT))
    roles = dict.fromkeys(_role(layer) for layer in changed)
    for number, role in enumerate(roles):
        of_role = [layer for layer in changed if _role(layer) == role]
        fig.add_scatter(
            x=[_place(layer, beyond) for layer in of_role],
            y=[layer.sqnr_db for layer in of_role],
            mode="lines+markers" if len(of_role) > 1 else "markers",
            name=role,
            line={"width": 1, "color": SERIES[number % len(SERIES)]},
            marker={"size": 7, "symbol": _SYMBOLS[number // len(SERIES) % len(_SYMBOLS)]},
            customdata=[[layer.name, layer.kind, layer.outlier or layer.note] for layer in of_role],
            hovertemplate=_HOVER,
        )
    _ring(fig, [layer for layer in changed if layer.outlier], beyond)
    outside = any(layer.depth is None for layer in changed)
    last = beyond if outside else beyond - 1
    fig.update_xaxes(dtick=1 if last <= 12 else None, tickformat="d", range=[-0.5, last + 0.5])
    if outside:
        fig.add_annotation(x=beyond, y=0, yref="paper", yshift=8, text="in no block", showarrow=False)
    return fig


def _role(layer: LayerDiff) -> str:
    return kind_of(layer.name.removesuffix(".weight"))


def _place(layer: LayerDiff, beyond: int) -> int:
    return beyond if layer.depth is None else layer.depth


def _ring(fig: go.Figure, layers: Sequence[LayerDiff], beyond: int) -> None:
    """A red ring around each of ``layers``."""
    if layers:
        fig.add_scatter(
            x=[_place(layer, beyond) for layer in layers],
            y=[layer.sqnr_db for layer in layers],
            mode="markers",
            name=f"stands out ({words.count(len(layers))})",
            marker={"symbol": "circle-open", "size": 16, "color": "#d92d20", "line": {"width": 2.5}},
            hoverinfo="skip",
        )
