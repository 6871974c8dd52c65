"""Time of a step of a large model, split by kind of kernel."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.figures import style
from explorer.figures.products import products_figure, row_axis
from explorer.figures.style import EXTRA, add_points, marker_look, note
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
SLOW = 2.0
"""End of the axis, in multiples of the baseline's step; slower steps are cut there, with an arrow."""


def steps_figure(steps: Sequence[StepTiming], name: str) -> go.Figure:
    """Draw the milliseconds of one step by scheme, the fastest first, for ``steps`` of one shape and one
    number of texts.

    A bar shows its parts, a diamond the time of its bytes at the speed of a copy; labels give the speedup
    over bfloat16 and the tokens a second.
    """
    rows = sorted((s for s in steps if s.parts is not None), key=lambda s: s.step.median_s)
    if not rows:
        return style.empty("not recorded yet", name)
    fig = products_figure("one step (ms)", "", name, 150 + ROW_HEIGHT * len(rows))
    end = 1e3 * max(min(s.step.median_s, SLOW * s.baseline_s) for s in rows)
    labels = [s.label for s in rows]
    drawn = [0.0] * len(rows)
    for part, (title, color) in PARTS.items():
        whole = [1e3 * getattr(s.parts, part) for s in rows]
        bars = [min(length, max(0.0, end - before)) for length, before in zip(whole, drawn, strict=True)]
        drawn = [before + bar for before, bar in zip(drawn, bars, strict=True)]
        look = {"orientation": "h", "name": title, "marker": {"color": color}, "customdata": whole}
        hover = f"%{{y}}<br>{title}: %{{customdata:.2f}} ms" + EXTRA
        fig.add_bar(x=bars, y=labels, hovertemplate=hover, **look)
    hover = "%{y}<br>bytes of weights and cache: %{x:.2f} ms at the speed of a copy"
    diamond = marker_look("#ffffff", 9, "diamond", 1.5, "#1d2433")
    floors = [1e3 * s.floor_s for s in rows]
    add_points(fig, "its bytes at the speed of a copy", floors, labels, diamond, hover)
    for row in rows:
        time, ratio = 1e3 * row.step.median_s, f"<b>{row.speedup:.2f} ×</b>"
        rate = words.number(row.tokens_per_second)
        text = f"▸ {ratio}" if time > end else f"{ratio}, {rate}/s"
        told = f"{words.duration(row.step.median_s)}, {rate} tokens/s"
        at = {"x": min(time, end), "y": row.label, "xanchor": "left", "xshift": 6}
        fig.add_annotation(note(text, 11, **at, hovertext=told))
    fig.update_layout(barmode="stack", bargap=0.35, margin={"l": 10, "r": 8}, legend={"traceorder": "normal"})
    fig.update_xaxes(range=[0, WIDER * end])
    style.captioned(fig, "Time of one step by kind of kernel", name)
    row_axis(fig, {label: style.wrapped(style.caption(label)) for label in labels})
    return fig
