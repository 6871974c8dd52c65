"""Memory of a cache of keys and values by the length of its context."""

from __future__ import annotations

import plotly.graph_objects as go

from explorer import words
from explorer.analysis.cache import CachePlan, CacheShape
from explorer.figures import style

CONTEXTS = tuple(2**power for power in range(10, 18))
"""Numbers of tokens of one text: 1,024 to 131,072."""


def cache_figure(shape: CacheShape, plan: CachePlan, label: str, name: str) -> go.Figure:
    """Draw the bytes of one text's cache at ``CONTEXTS`` tokens, in 16 bits and stored as ``plan``, which is
    labelled ``label``; and the length at which a window of ``shape`` is full. Both axes are logarithmic."""
    at = sorted({*CONTEXTS, *(window for window in shape.windows if window > CONTEXTS[0])})
    fig = style.figure("tokens of the text", "GB", name, 300)
    sizes: list[float] = []
    for title, stored, color in (("16 bits", CachePlan(), style.ORIGINAL), (label, plan, style.A)):
        taken = [shape.bytes_of(stored, tokens) for tokens in at]
        sizes += taken
        hover, told = f"{title}<br>%{{x:,}} tokens: %{{customdata}}", [words.bytes_(size) for size in taken]
        style.add_line(fig, title, at, [size / 1e9 for size in taken], color, hover, size=6, customdata=told)
    style.log_axis(fig, "x", at[0] / 1.1, at[-1] * 1.1, base=4)
    style.log_axis(fig, "y", min(sizes) / 1.5e9, max(sizes) * 1.5 / 1e9)
    return style.captioned(style.legend_below(fig), "Memory of the cache of one text", name)
