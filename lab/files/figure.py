"""Quality of files against their size: KL of the next token by bytes, of this project and of others."""

from __future__ import annotations

import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer.figures.labels import Canvas, Label, Spot, annotation, place, segments_of
from explorer.figures.style import MUTED, A, B, empty, figure, legend_below, log_axis
from explorer.recordings.files import NOT_RECORDED
from explorer.recordings.quality import QualityRow

HEIGHT, FONT_SIZE = 460, 11
PLOTS = (660.0, 700.0)
"""Pixels of the plot's width in two columns of a paper, without and with labels of its axis."""
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
    x_ends, y_ends = _ends([_mb(row) for row in shown], 0.06), _ends([_log(row) for row in shown], 0.08)
    for row, spot, label in _names(shown, best, x_ends, y_ends):
        fig.add_annotation(annotation(spot, label, (_mb(row), _log(row)), B, FONT_SIZE))
    log_axis(fig, "y", 10 ** y_ends[0], 10 ** y_ends[1])
    return legend_below(fig.update_xaxes(range=x_ends), 3)


def _ends(values: Sequence[float], room: float) -> tuple[float, float]:
    """Return the ends of an axis with ``room``, a share of the range, at both."""
    low, high = min(values), max(values)
    return low - room * (high - low or 1.0), high + room * (high - low or 1.0)


def _names(
    shown: Sequence[QualityRow],
    best: Sequence[QualityRow],
    x_ends: tuple[float, float],
    y_ends: tuple[float, float],
) -> list[tuple[QualityRow, Spot, Label]]:
    """Return the names of other programs' files that have room, beside their points."""

    def at(row: QualityRow) -> tuple[float, float]:
        return _share(_mb(row), x_ends), _share(_log(row), y_ends)

    spots = [
        Spot(*at(row), 5, "" if row.ours or _is_plain(row) else row.label.partition(",")[0], essential=True)
        for row in shown
    ]
    labels = place(spots, Canvas.of(PLOTS, [HEIGHT - 180], FONT_SIZE), segments_of([at(row) for row in best]))
    return [(row, s, label) for row, s, label in zip(shown, spots, labels, strict=True) if label]


def _share(value: float, ends: tuple[float, float]) -> float:
    return (value - ends[0]) / (ends[1] - ends[0])


def _is_plain(row: QualityRow) -> bool:
    """True for a GGUF file that another program made without importances; its hover text names it."""
    return not row.importances and row.format == "GGUF"


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
    """Return the position of an annotation on a logarithmic axis."""
    return math.log10(row.kl or 1.0)
