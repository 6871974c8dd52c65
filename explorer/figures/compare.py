"""Figures of the Compare tab: bits per element against SQNR."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer.analysis.schemes import ComparisonRow
from explorer.figures.style import FAMILY_COLORS, MUTED, empty, family, figure


def frontier_figure(rows: Sequence[ComparisonRow], name: str) -> go.Figure:
    """Bits per element against SQNR, one point a scheme, with a line through those on the frontier.

    Exact schemes (infinite SQNR) cannot be drawn and are left out.
    """
    drawn = [r for r in rows if math.isfinite(r.report.sqnr_db)]
    if not drawn:
        return empty("run a comparison to see bits against error", f"{name} frontier")
    fig = figure("bits per element, scales included", "SQNR (dB)", f"{name} frontier", height=420)
    edge = sorted((r for r in drawn if r.on_frontier), key=lambda r: r.report.bits.total)
    fig.add_scatter(
        x=[r.report.bits.total for r in edge],
        y=[r.report.sqnr_db for r in edge],
        mode="lines",
        name="frontier",
        line={"shape": "hv", "width": 1.5, "color": MUTED, "dash": "dot"},
        hoverinfo="skip",
    )
    for index, group in enumerate(FAMILY_COLORS):
        members = [r for r in drawn if family(r.scheme.format) == group]
        if not members:
            continue
        fig.add_scatter(
            x=[r.report.bits.total for r in members],
            y=[r.report.sqnr_db for r in members],
            mode="markers",
            name=group,
            customdata=[[r.scheme.label, r.scheme.name] for r in members],
            marker={
                "color": FAMILY_COLORS[group],
                "size": [11 if r.on_frontier else 7 for r in members],
                "symbol": ["circle", "diamond", "square", "cross"][index],
                "opacity": [1.0 if r.on_frontier else 0.55 for r in members],
            },
            hovertemplate="%{customdata[0]}<br>%{x:.3f} bits, %{y:.2f} dB<extra></extra>",
        )
    ticks = [1, 1.5, 2, 3, 4, 6, 8, 16, 32]
    fig.update_xaxes(type="log", tickvals=ticks, ticktext=[f"{t:g}" for t in ticks])
    return fig
