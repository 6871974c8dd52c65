"""Quality of files against their size: KL of the next token by bytes, of this project and of others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer.figures.style import MUTED, A, B, empty, figure, legend_below, log_axis
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.quality import QualityRow

HEIGHT = 460
NAME = "quality"


def quality_figure(rows: Sequence[QualityRow]) -> go.Figure:
    """KL in nats a token, on a logarithmic axis, by megabytes: this project's files and those of others, with
    importances (filled) and without, and the frontier: files that no smaller one is as good as."""
    shown = [row for row in rows if row.kl]
    if not shown:
        return empty(NOT_RECORDED, NAME)
    fig = figure("MB of the file", "KL, nats a token", NAME, HEIGHT)
    best = frontier_of(shown)
    fig.add_scatter(
        x=[_mb(row) for row in best],
        y=[row.kl for row in best],
        name="frontier",
        mode="lines",
        line={"color": MUTED, "width": 1.5, "dash": "dot"},
        hoverinfo="skip",
    )
    for ours, who, color, symbol in (
        (True, "Quantization Explorer", A, "circle"),
        (False, "other programs", B, "diamond"),
    ):
        for weighed in (True, False):
            mine = [row for row in shown if (row.ours, row.importances) == (ours, weighed)]
            if not mine:
                continue
            fig.add_scatter(
                x=[_mb(row) for row in mine],
                y=[row.kl for row in mine],
                name=f"{who}, {'with' if weighed else 'without'} importances",
                mode="markers",
                marker={"color": color, "size": 9, "symbol": symbol if weighed else f"{symbol}-open"},
                text=[f"{row.label} ({row.format})" for row in mine],
                hovertemplate="%{text}<br>%{x:.1f} MB, %{y:.4f} nats<extra></extra>",
            )
    for row in shown:
        if not row.ours and (row.importances or row.format != "GGUF"):
            fig.add_annotation(
                x=_mb(row),
                y=_log(row),
                text=row.label.partition(",")[0],
                showarrow=False,
                yshift=13,
                font={"size": 10, "color": B},
            )
    losses = [row.kl for row in shown if row.kl]
    log_axis(fig, "y", min(losses) / 1.5, max(losses) * 1.7)
    return legend_below(fig, 3)


def frontier_of(rows: Sequence[QualityRow]) -> list[QualityRow]:
    """The measured files that no file of at most their size is as good as, the smallest first."""
    found: list[QualityRow] = []
    for row in sorted((row for row in rows if row.kl is not None), key=lambda row: (row.bytes, row.kl)):
        if not found or (row.kl or 0.0) < (found[-1].kl or 0.0):
            found.append(row)
    return found


def _mb(row: QualityRow) -> float:
    return row.bytes / 1e6


def _log(row: QualityRow) -> float:
    """Where an annotation stands on a logarithmic axis."""
    return math.log10(row.kl or 1.0)
