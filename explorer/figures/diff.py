"""Errors of a checkpoint's layers against their original, along the depth of the model."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.checkpoints.diff import LayerDiff
from explorer.figures.style import (
    RED,
    SERIES,
    add_line,
    add_points,
    captioned,
    empty,
    figure,
    legend_below,
    marker_look,
    note,
    shown_text,
)
from explorer.models.kinds import kind_of

_SYMBOLS = ("circle", "diamond", "square", "triangle-up", "cross")
_HOVER = "%{customdata[0]}<br>%{customdata[1]}: %{y:.2f} dB<br>%{customdata[2]}"


def depth_figure(layers: Sequence[LayerDiff], name: str) -> go.Figure:
    """Draw the SQNR in dB of each changed layer by its block: a colour and symbol for each kind of layer.

    Layers outside of blocks, such as the head, stand right of the last block. Outliers are ringed.
    ``customdata`` of a point is [name, stored form, a remark].
    """
    changed = [layer for layer in layers if layer.changed and math.isfinite(layer.sqnr_db)]
    if not changed:
        return empty("no layer with an error", f"{name} depth")
    beyond = 1 + max((layer.depth for layer in changed if layer.depth is not None), default=-1)
    places = {layer.name: beyond if layer.depth is None else layer.depth for layer in changed}
    roles = {layer.name: kind_of(layer.name.removesuffix(".weight")) for layer in changed}
    fig = legend_below(figure("block of the model", "SQNR (dB)", f"{name} depth"))
    for number, role in enumerate(dict.fromkeys(roles.values())):
        members = [layer for layer in changed if roles[layer.name] == role]
        at = [places[layer.name] for layer in members], [layer.sqnr_db for layer in members]
        look = {
            "mode": "lines+markers" if len(members) > 1 else "markers",
            "marker": {"size": 7, "symbol": _SYMBOLS[number // len(SERIES) % len(_SYMBOLS)]},
        }
        told = [[layer.name, layer.kind, layer.outlier or layer.note] for layer in members]
        color = SERIES[number % len(SERIES)]
        add_line(fig, shown_text(role), *at, color, _HOVER, width=1, customdata=told, **look)
    outliers = [layer for layer in changed if layer.outlier]
    if outliers:
        at = [places[layer.name] for layer in outliers], [layer.sqnr_db for layer in outliers]
        title = f"stands out ({words.count(len(outliers))})"
        add_points(fig, title, *at, marker_look(RED, 16, "circle-open", 2.5))
    outside = any(layer.depth is None for layer in changed)
    last = beyond if outside else beyond - 1
    fig.update_xaxes(dtick=1 if last <= 12 else None, tickformat="d", range=[-0.5, last + 0.5])
    if outside:
        fig.add_annotation(note("in no block", x=beyond, y=0, yref="paper", yshift=8))
    return captioned(fig, "Error of the layers along the depth of the model", name)
