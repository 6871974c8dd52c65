"""The step of a large model, by what its kernels do."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.figures import style
from explorer.figures.products import products_figure, row_axis
from explorer.recordings.steps import StepTiming

PARTS = {
    "linear_s": ("products with weights", style.SERIES[0]),
    "attention_s": ("attention", style.SERIES[1]),
    "rest_s": ("norms and other small kernels", style.SERIES[2]),
    "gaps_s": ("gaps", style.MUTED),
}
"""Parts of a step in the order of their bars -> name and colour."""
ROW_HEIGHT, WIDER = 34, 1.75
"""Pixels; the axis relative to the longest bar, with room for its label."""
FLOOR = {"symbol": "diamond", "size": 9, "color": "#ffffff", "line": {"width": 1.5, "color": "#1d2433"}}
SLOW = 2.0
"""End of the axis, in multiples of the baseline's step; what is slower is cut there, with an arrow."""


def steps_figure(steps: Sequence[StepTiming], name: str) -> go.Figure:
    """Milliseconds of one step by scheme, the fastest first: a bar of its parts, a diamond where its bytes
    would end at the speed of a copy, how many times as fast as bfloat16 it is, and its tokens a second.
    ``steps``: of one shape and one number of texts."""
    rows = sorted((s for s in steps if s.parts is not None), key=lambda s: s.step.median_s)
    if not rows:
        return style.empty("not recorded yet", name)
    fig = products_figure("one step (ms)", "", name, 150 + ROW_HEIGHT * len(rows))
    end = 1e3 * max(min(s.step.median_s, SLOW * s.baseline_s) for s in rows)
    labels = [s.label for s in rows]
    drawn = [0.0] * len(rows)
    for part, (words_of_part, color) in PARTS.items():
        whole = [1e3 * getattr(s.parts, part) for s in rows]
        bars = [min(length, max(0.0, end - before)) for length, before in zip(whole, drawn, strict=True)]
        drawn = [before + bar for before, bar in zip(drawn, bars, strict=True)]
        fig.add_bar(
            x=bars,
            y=labels,
            orientation="h",
            name=words_of_part,
            marker={"color": color},
            customdata=whole,
            hovertemplate=f"%{{y}}<br>{words_of_part}: %{{customdata:.2f}} ms<extra></extra>",
        )
    fig.add_scatter(
        x=[1e3 * s.floor_s for s in rows],
        y=labels,
        mode="markers",
        name="its bytes at the speed of a copy",
        marker=FLOOR,
        hovertemplate="%{y}<br>bytes of weights and cache: %{x:.2f} ms at the speed of a copy<extra></extra>",
    )
    for row in rows:
        fig.add_annotation(
            x=min(1e3 * row.step.median_s, end),
            y=row.label,
            text=_ends_with(row, 1e3 * row.step.median_s > end),
            hovertext=f"{words.duration(row.step.median_s)}, {words.number(row.tokens_per_second)} tokens/s",
            xanchor="left",
            xshift=6,
            showarrow=False,
            font={"size": 11},
        )
    fig.update_layout(barmode="stack", bargap=0.35, margin={"l": 10, "r": 8}, legend={"traceorder": "normal"})
    fig.update_xaxes(range=[0, WIDER * end])
    row_axis(fig, {label: style.wrapped(style.caption(label)) for label in labels})
    return fig


def _ends_with(row: StepTiming, is_cut: bool) -> str:
    ratio = f"<b>{row.speedup:.2f} ×</b>"
    return f"▸ {ratio}" if is_cut else f"{ratio}, {words.number(row.tokens_per_second)}/s"
