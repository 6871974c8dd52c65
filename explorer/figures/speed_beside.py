"""Two machines beside each other: the time of each product on both."""

from __future__ import annotations

import html

import plotly.graph_objects as go

from explorer import words
from explorer.bench.two_machines import OnBoth, TwoMachines
from explorer.figures import style
from explorer.figures.products import Marked, color_of, products_figure, row_axis, tagged
from explorer.figures.style import MUTED, wrapped
from explorer.recordings.gemm import GemmTiming

ROW_HEIGHT = 29
SYMBOLS = ("circle", "diamond")
"""Of the first machine, and of the second."""
LONGEST_NAME = 40


def beside_figure(two: TwoMachines, name: str, marked: Marked | None = None) -> go.Figure:
    """A row for each product that both machines timed, the first machine's fastest at the top: its time on
    both, on one logarithmic axis, joined by a line, with how many times as fast as the slower the faster is.
    ``marked``: whose weights A or B has."""
    title, marked = f"{name} beside", marked or {}
    if not two.pairs:
        return style.empty("no product was timed on both at this shape", title)
    figure = products_figure("time (µs), logarithmic", "", title, 130 + ROW_HEIGHT * len(two.pairs))
    rows = [f"{number} {pair.label}" for number, pair in enumerate(two.pairs)]
    times = [(1e6 * pair.first.seconds, 1e6 * pair.second.seconds) for pair in two.pairs]
    _add_ways(figure, rows, times)
    for side, machine in enumerate(two.names):
        _add_machine(figure, two, side, machine, rows)
    figure.add_scatter(
        x=[max(both) for both in times],
        y=rows,
        mode="text",
        text=[f"   {words.times(max(pair.ratio, 1 / pair.ratio))}" for pair in two.pairs],
        textposition="middle right",
        textfont={"size": 11},
        hoverinfo="skip",
        showlegend=False,
        cliponaxis=False,
    )
    labels = zip(rows, two.pairs, strict=True)
    row_axis(figure, {row: tagged(pair.first.gemm, wrapped(pair.label), marked) for row, pair in labels})
    every = [time for both in times for time in both]
    low, high = min(every), max(every)
    # Room at the right for the words beside the last point, on a phone too.
    return style.log_axis(figure, "x", low / 1.15, high * max((high / low) ** 0.35, 1.4))


def _add_ways(figure: go.Figure, rows: list[str], times: list[tuple[float, float]]) -> None:
    figure.add_scatter(
        x=[x for one, other in times for x in (one, other, None)],
        y=[y for row in rows for y in (row, row, None)],
        mode="lines",
        line={"color": style.GRID, "width": 5},
        hoverinfo="skip",
        showlegend=False,
    )


def _add_machine(figure: go.Figure, two: TwoMachines, side: int, machine: str, rows: list[str]) -> None:
    timings = [(pair.first, pair.second)[side] for pair in two.pairs]
    name = html.escape(words.plain(machine, LONGEST_NAME), quote=False)
    figure.add_scatter(
        x=[1e6 * timing.seconds for timing in timings],
        y=rows,
        mode="markers",
        name=name,
        legendgroup=name,
        showlegend=False,
        marker={
            "symbol": SYMBOLS[side],
            "size": 10,
            "color": [color_of(timing.gemm) for timing in timings],
        },
        customdata=[[_hover(pair, two)] for pair in two.pairs],
        hovertemplate="%{customdata[0]}<extra></extra>",
        cliponaxis=False,
    )
    figure.add_scatter(
        x=[None],
        y=[None],
        mode="markers",
        name=name,
        legendgroup=name,
        marker={"symbol": SYMBOLS[side], "size": 10, "color": MUTED},
        hoverinfo="skip",
    )


def _hover(pair: OnBoth, two: TwoMachines) -> str:
    lines = [
        f"{_plain(name)}: {_said(t)}" for name, t in zip(two.names, (pair.first, pair.second), strict=True)
    ]
    faster, factor = (0, pair.ratio) if pair.ratio >= 1 else (1, 1 / pair.ratio)
    ahead = f"{_plain(two.names[faster])} is {words.times(factor)} as fast"
    return "<br>".join((_plain(pair.label), *lines, ahead))


def _said(timing: GemmTiming) -> str:
    own = "" if not timing.on_cpu else f"{timing.label}, "
    kernel = _plain(words.kernel_name(timing.variant))
    return f"{_plain(own)}{words.duration(timing.seconds)}, {kernel}, {timing.on_chip}"


def _plain(text: str) -> str:
    return html.escape(text, quote=False)
