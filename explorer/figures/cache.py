"""The memory of a cache of keys and values by the length of its context."""

from __future__ import annotations

from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.analysis.cache import CachePlan, CacheShape
from explorer.figures import style

CONTEXTS = tuple(2**power for power in range(10, 18))
"""Tokens of one text: 1,024 to 131,072."""


def cache_figure(shape: CacheShape, plan: CachePlan, label: str, name: str) -> go.Figure:
    """Bytes of one text's cache at ``CONTEXTS`` tokens, and where a window of ``shape`` is full, in 16 bits
    and stored as ``plan``, which is called ``label``. Both axes are logarithmic."""
    at = sorted({*CONTEXTS, *(window for window in shape.windows if window > CONTEXTS[0])})
    series = (("16 bits", CachePlan(), style.ORIGINAL), (label, plan, style.A))
    fig = style.figure("tokens of the text", "GB", name, 300)
    sizes: list[float] = []
    for title, stored, color in series:
        bytes_ = [shape.bytes_of(stored, tokens) for tokens in at]
        sizes += bytes_
        fig.add_scatter(
            x=at,
            y=[size / 1e9 for size in bytes_],
            name=title,
            mode="lines+markers",
            line={"color": color, "width": 2},
            marker={"size": 6},
            customdata=_words(bytes_),
            hovertemplate=f"{title}<br>%{{x:,}} tokens: %{{customdata}}<extra></extra>",
        )
    style.log_axis(fig, "x", at[0] / 1.1, at[-1] * 1.1, base=4)
    style.log_axis(fig, "y", min(sizes) / 1.5e9, max(sizes) * 1.5 / 1e9)
    return style.legend_below(fig)


def _words(sizes: Sequence[float]) -> list[str]:
    return [words.bytes_(size) for size in sizes]
