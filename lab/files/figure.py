"""Quality of files against their size: KL of the next token by bytes, of this project and of others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer.figures.style import MUTED, A, B, empty, figure, legend_below, log_axis
from explorer.recordings.files import NOT_RECORDED
from lab.files.rows import QualityRow

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
    named = sorted(
        (row for row in shown if not row.ours and (row.importances or row.format != "GGUF")),
        key=lambda row: row.bytes,
    )
    for row, (x, y, anchor) in zip(named, _places(named, shown), strict=True):
        fig.add_annotation(
            x=_mb(row),
            y=_log(row),
            text=row.label.partition(",")[0],
            showarrow=False,
            xshift=x,
            yshift=y,
            xanchor=anchor,
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


_AROUND = ((-8, 0, "right"), (0, 13, "center"), (0, -13, "center"), (8, 0, "left"))
"""Places of a label beside its marker: pixels to the right and up, and the side that stands there."""
_NEAR = (9.0, 0.15)
"""Megabytes and decades within which two labels at the same side would touch."""


def _places(named: Sequence[QualityRow], shown: Sequence[QualityRow]) -> list[tuple[int, int, str]]:
    """For each row of ``named`` the first place of ``_AROUND`` that no near row before it has; on the left
    only where none of ``shown`` is."""
    found: list[tuple[int, int, str]] = []
    for row in named:
        taken = [place for other, place in zip(named, found, strict=False) if _near(other, row)]
        if any(_near(other, row) and other.bytes < row.bytes for other in shown):
            taken.append(_AROUND[0])
        found.append(next((place for place in _AROUND if place not in taken), _AROUND[1]))
    return found


def _near(row: QualityRow, other: QualityRow) -> bool:
    return abs(_mb(other) - _mb(row)) < _NEAR[0] and abs(_log(other) - _log(row)) < _NEAR[1]


def _mb(row: QualityRow) -> float:
    return row.bytes / 1e6


def _log(row: QualityRow) -> float:
    """Return the position of an annotation on a logarithmic axis."""
    return math.log10(row.kl or 1.0)
