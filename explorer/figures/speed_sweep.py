"""Time over the number of tokens, from decode to prefill."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.figures import style
from explorer.figures.products import SCHEME_COLORS, Marked, color_of, family_of, products_figure
from explorer.figures.style import MUTED
from explorer.products.advice import usual_of
from explorer.recordings.gemm import GemmTiming

SHOWN_FIRST = ("bf16", "fp8_e4m3_row", "int8", "w8a16", "w4a16_group128", "w2a16", "w_nvfp4", "w4a8_int")
SHOWN_ON_CPU = (
    "fp32",
    "bf16",
    "int8_dynamic",
    "w8_group32",
    "w4_group32",
    "w2_group128",
    "ternary_weights",
    "q4_k",
)
"""Curves over M that are drawn before a visitor asks for more, of a GPU and of a CPU."""
MORE = "more"
HEIGHT, PLOT_HEIGHT, FONT_SIZE = 560, 330, 10
SYMBOLS, DASHES = ("circle", "square", "diamond", "triangle-up", "x"), ("solid", "dash", "dot", "dashdot")
"""As many of the one as are no multiple of the other, so that 20 curves of a family differ."""
Curve = list[tuple[int, GemmTiming]]
"""M and the fastest timing there, by rising M."""


def sweep_figure(timings: Sequence[GemmTiming], name: str, marked: Marked | None = None) -> go.Figure:
    """Time against the number of tokens at one N and K, from decode to prefill; a ring where another kernel
    takes over, × where torch's own product becomes faster. Curves of one family share its colour and differ
    by dash and symbol."""
    curves, marked = _curves(timings), marked or {}
    if not curves:
        return style.empty("no run over M here: choose one that was recorded", f"{name} over M")
    _, n, k = next(iter(curves.values()))[0][1].shape
    x_title = f"tokens (M), at N = {words.count(n)} and K = {words.count(k)}"
    figure = products_figure(x_title, "µs", f"{name} over M", HEIGHT)
    usual, named = usual_of(timings)
    of_torch = {m: t.baseline_graph.median_s for m, t in curves.get(usual, []) if t.baseline_graph}
    if of_torch:
        _add_usual(figure, of_torch, named.replace("'s", ""))
    first = SHOWN_ON_CPU if any(t.on_cpu for t in timings) else SHOWN_FIRST
    shown = {gemm for gemm in curves if gemm in first or gemm in marked}
    for gemm, curve in curves.items():
        _add_curve(figure, curve, _look(gemm, list(curves), marked), gemm in shown)
        if gemm in shown:
            _add_crossing(figure, curve, of_torch, named)
    if len(curves) > len(shown):
        _add_more(figure, len(curves) - len(shown))
    tokens = [m for curve in curves.values() for m, _ in curve]
    times = [1e6 * t.seconds for curve in curves.values() for _, t in curve]
    times += [1e6 * s for s in of_torch.values()]
    style.log_axis(figure, "x", min(tokens) / 1.3, max(tokens) * 1.3, base=4)
    style.log_axis(figure, "y", min(times) / 1.3, max(times) * 1.3)
    return figure


def _curves(timings: Sequence[GemmTiming]) -> dict[str, Curve]:
    """The fastest timing at each M by product, of those timed at three and more."""
    by_gemm: dict[str, dict[int, GemmTiming]] = {}
    for timing in timings:
        at, m = by_gemm.setdefault(timing.gemm, {}), timing.shape[0]
        if m not in at or timing.seconds < at[m].seconds:
            at[m] = timing
    return {gemm: sorted(at.items()) for gemm, at in by_gemm.items() if len(at) > 2}


def _look(gemm: str, every: Sequence[str], marked: Marked) -> dict[str, object]:
    """Colour by family; dash and symbol by the place among the family's curves; A and B thick and in their
    own colour."""
    place = [g for g in every if family_of(g) == family_of(gemm)].index(gemm)
    scheme = marked.get(gemm)
    return {
        "name": f"{scheme} · " if scheme else "",
        "color": SCHEME_COLORS[scheme] if scheme else color_of(gemm),
        "width": 3.5 if scheme else 1.6,
        "dash": DASHES[place % len(DASHES)],
        "symbol": SYMBOLS[place % len(SYMBOLS)],
    }


def _add_usual(figure: go.Figure, seconds: dict[int, float], name: str) -> None:
    figure.add_scatter(
        x=list(seconds),
        y=[s * 1e6 for s in seconds.values()],
        mode="lines",
        name=name,
        line={"color": MUTED, "width": 3, "dash": "dot"},
        customdata=[[words.duration(s)] for s in seconds.values()],
        hovertemplate=name + "<br>M = %{x}: %{customdata[0]}<extra></extra>",
    )


def _add_curve(figure: go.Figure, curve: Curve, look: dict[str, object], shown: bool) -> None:
    kernels = [words.kernel_name(t.variant) for _, t in curve]
    takes_over = [False, *(before != after for before, after in itertools.pairwise(kernels))]
    figure.add_scatter(
        x=[m for m, _ in curve],
        y=[t.seconds * 1e6 for _, t in curve],
        mode="lines+markers",
        name=f"{look['name']}{curve[0][1].label}",
        line={"color": look["color"], "width": look["width"], "dash": look["dash"]},
        marker={
            "size": [10 if new else 5 for new in takes_over],
            "symbol": [f"{look['symbol']}-open" if new else look["symbol"] for new in takes_over],
        },
        customdata=[[words.duration(t.seconds), words.kernel_name(t.variant)] for _, t in curve],
        visible=True if shown else "legendonly",
        showlegend=shown,
        legendgroup=None if shown else MORE,
        hovertemplate="%{fullData.name}<br>M = %{x}: %{customdata[0]}, %{customdata[1]}<extra></extra>",
    )


def _add_more(figure: go.Figure, count: int) -> None:
    """One entry of the legend for all curves that are not drawn at first: a click draws them."""
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="lines",
        line={"color": MUTED, "width": 1.6},
        name=f"{count} more (click)",
        legendgroup=MORE,
        visible="legendonly",
        hoverinfo="skip",
    )


def _add_crossing(figure: go.Figure, curve: Curve, of_torch: dict[int, float], named: str) -> None:
    timing = _first_slower(curve, of_torch)
    if timing is None:
        return
    m, label = timing.shape[0], timing.label
    figure.add_annotation(
        x=math.log10(m),
        y=math.log10(timing.seconds * 1e6),
        text="×",
        showarrow=False,
        font={"size": 16, "color": color_of(timing.gemm)},
        hovertext=f"{label} is no longer faster than {named} from about M = {words.count(m)}",
    )


def _first_slower(curve: Curve, of_torch: dict[int, float]) -> GemmTiming | None:
    """First point above torch's own product of a curve that began below it."""
    below = False
    for m, timing in curve:
        if m in of_torch:
            if below and timing.seconds > of_torch[m]:
                return timing
            below = below or timing.seconds < of_torch[m]
    return None
