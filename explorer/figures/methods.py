"""Figures of the methods: the remaining error of each, and its course."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from explorer import words
from explorer.figures.products import products_figure, row_axis
from explorer.figures.style import (
    EXTRA,
    GRID,
    MAGNITUDE_SCALE,
    MUTED,
    SERIES,
    Dict,
    add_line,
    add_points,
    axis_look,
    captioned,
    colour_bar,
    empty,
    figure,
    log_axis,
    wrapped,
)
from explorer.methods import METHODS, objective_axis
from explorer.methods.evaluate import Outcome
from explorer.methods.llm_int8 import THRESHOLD
from explorer.schemes.scheme import label_of_text

NOTHING = "nothing run yet"
COLORS = (*SERIES, "#8C564B", "#5B3A8E", "#17BECF", "#BCBD22")
SNAPSHOT_ROWS, SNAPSHOT_COLUMNS, SLIDER_STEPS = 24, 128, 13
MAP_ROWS, MAP_CHANNELS, DARKEST = 64, 192, 256
"""Cells of a heat map, and ratio of the largest magnitude to the darkest."""
PANEL_HEIGHT, DASHES = 190, ("solid", "dot", "dash", "dashdot")
_SCALE = {"colorscale": MAGNITUDE_SCALE, "cmin": 0, "cmax": 255}


def output_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """Draw the SQNR of the layer's output by method, the best under the first scheme at the top, schemes side
    by side."""
    rows = [o for o in outcomes if not o.refused]
    if not rows:
        return empty(NOTHING, f"{name} methods")
    schemes = list(dict.fromkeys(o.scheme for o in rows))
    ranked = sorted(rows, key=lambda o: (schemes.index(o.scheme), -o.output_sqnr_db))
    labels = {o.label: wrapped(o.label) for o in ranked}
    height = 110 + (18 + 16 * len(schemes)) * len(labels)
    fig = products_figure("output SQNR on held-out inputs (dB)", "", f"{name} methods", height)
    for scheme, color in zip(schemes, itertools.cycle(SERIES), strict=False):
        members = [o for o in rows if o.scheme == scheme]
        fig.add_bar(
            x=[o.output_sqnr_db for o in members],
            y=[o.label for o in members],
            orientation="h",
            name=label_of_text(scheme),
            marker={"color": color},
            text=[f"{o.output_sqnr_db:.1f}" for o in members],
            textposition="outside",
            cliponaxis=False,
            customdata=[[_costs(o)] for o in members],
            hovertemplate="%{y}<br>%{x:.2f} dB, %{customdata[0]}" + EXTRA,
        )
    row_axis(fig, labels)
    captioned(fig, "SQNR of the layer's output by method", name, [label_of_text(each) for each in schemes])
    return fig.update_layout(barmode="group", bargap=0.3, margin={"l": 10, "r": 36})


def _costs(o: Outcome) -> str:
    error = f"{words.number(100 * o.output_error)} % of the output"
    return f"{error}<br>{o.bits:.3f} bits per weight, {words.duration(o.seconds)}"


def objective_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """Draw the objective of each method, relative to its start, with the minimum marked: one plot for each
    quantity of the x-axis. A method has one colour, a scheme one dash; a click on the legend hides a method.
    """
    drawn = [o for o in outcomes if objective_axis(o.method) and o.objective and o.objective[0]]
    if not drawn:
        searching = ", ".join(row.label for row in METHODS.values() if row.objective is not None)
        return empty(f"none of these searches; run one of {searching}", f"{name} objectives")
    axes = list(dict.fromkeys(objective_axis(o.method) for o in drawn))
    fig = products_figure("", "", f"{name} objectives", 90 + PANEL_HEIGHT * len(axes))
    fig.set_subplots(rows=len(axes), cols=1, vertical_spacing=0.3 / len(axes) if len(axes) > 1 else 0)
    captioned(fig, "Objectives of the methods", name)
    colors, seen = _colors(outcomes), set[str]()
    schemes = list(dict.fromkeys(o.scheme for o in drawn))
    dashes = dict(zip(schemes, itertools.cycle(DASHES), strict=False))
    for o in drawn:
        row = axes.index(objective_axis(o.method)) + 1
        _add_objective(fig, o, row, colors[o.label], dashes[o.scheme], o.label not in seen)
        seen.add(o.label)
    if len(schemes) > 1:
        for scheme, dash in dashes.items():  # entries of the legend
            add_line(fig, label_of_text(scheme), [None], [None], MUTED, dash=dash, hoverinfo=None)
    for row, axis in enumerate(axes, 1):
        assert axis is not None
        fig.update_xaxes(axis_look(axis.label), row=row, col=1)
        if axis.log:
            fig.update_xaxes(type="log", tickformat=",~r", nticks=3, row=row, col=1)
        fig.update_yaxes({**axis_look("share of its start"), "nticks": 5}, row=row, col=1)
    return fig


def _colors(outcomes: Sequence[Outcome]) -> dict[str, str]:
    """Return a colour for each method's label, the same in every figure of one run."""
    return dict(zip(dict.fromkeys(o.label for o in outcomes), itertools.cycle(COLORS), strict=False))


def _add_objective(fig: go.Figure, outcome: Outcome, row: int, color: str, dash: str, first: bool) -> None:
    """Add one method's curve in the plot ``row``, and its least value."""
    axis, objective = objective_axis(outcome.method), outcome.objective
    assert axis is not None
    xs = axis.values or np.linspace(0, 1, len(objective))
    shares = [v / objective[0] for v in objective]
    best = int(np.argmin(objective))
    what, group = (
        f"{outcome.label}, {outcome.scheme_label}",
        {"legendgroup": outcome.label, "row": row, "col": 1},
    )
    hover = what + "<br>%{x:.3~g}: %{y:.4f}"
    add_line(fig, outcome.label, xs, shares, color, hover, dash=dash, showlegend=first, **group)
    chosen = f"chosen {axis.label}" if axis.values else "least at"
    hover = f"{what}<br>{chosen} %{{x:.3~g}}: %{{y:.4f}}"
    dot = {"color": color, "size": 9}
    add_points(fig, "", [xs[best]], [shares[best]], dot, hover, showlegend=False, **group)


def snapshots_figure(outcome: Outcome | None, weight: Tensor | None, name: str) -> go.Figure:
    """Draw the distance of the first rows' weights from the originals, after each block of columns of GPTQ.

    Left of the front it is their rounding error, right of it the updates that compensate for it.
    """
    snapshots = outcome.layer.snapshots if outcome and outcome.layer else None
    if snapshots is None or weight is None or snapshots.shape[2] != weight.shape[1]:
        return empty("run GPTQ to see it at work", f"{name} film")
    moved = (snapshots - weight[: snapshots.shape[1]].float().cpu()).abs()
    chosen = np.unique(np.linspace(0, len(moved) - 1, min(SLIDER_STEPS, len(moved))).astype(int))
    small = torch.stack([_tiles(moved[step], SNAPSHOT_ROWS, SNAPSHOT_COLUMNS) for step in chosen])
    top, last = float(small.amax()), len(small) - 1
    fig = figure("input channel", "output channel", f"{name} film", height=400)
    captioned(fig, "Distance of the weights from the originals under GPTQ", name)
    steps = []
    for index, (frame, block) in enumerate(zip(small, chosen, strict=True)):
        hover = "input channel %{x}, output channel %{y}" + EXTRA
        codes, shape = 255 * frame.numpy() / (top or 1.0), (moved.shape[1], moved.shape[2])
        _add_map(fig, codes, shape, visible=index == last, hovertemplate=hover)
        shown = [other == index for other in range(len(small))]
        done = f"{round(100 * (int(block) + 1) / len(moved))} %"
        steps.append({"method": "restyle", "label": done, "args": [{"visible": shown}]})
    slider: Dict = {"steps": steps, "active": last, "currentvalue": {"prefix": "columns rounded: "}}
    slider |= {"pad": {"t": 36}, "bordercolor": GRID, "bgcolor": GRID}
    labels = [words.number(share * top, 2) for share in (0, 0.5, 1)]
    colours = {**_SCALE, "colorbar": colour_bar("moved", [0, 127.5, 255], labels, 10)}
    return fig.update_layout(sliders=[slider], margin={"b": 110, "t": 8}, coloraxis=colours)


def _tiles(values: Tensor, rows: int, columns: int) -> Tensor:
    """Return the largest value of each of at most ``rows`` × ``columns`` tiles, so that no outlier
    vanishes."""
    size = (min(rows, values.shape[0]), min(columns, values.shape[1]))
    return torch.nn.functional.adaptive_max_pool2d(values[None], size)[0]


def _add_map(fig: go.Figure, codes: np.ndarray, shape: tuple[int, int], **options: object) -> None:
    """Add a heat map of codes 0 … 255 of the tiles of a matrix of ``shape``."""
    rows, columns = (
        np.linspace(0, whole - 1, cells).round().astype(int)
        for whole, cells in zip(shape, codes.shape, strict=True)
    )
    fig.add_heatmap(z=np.round(codes).astype(np.uint8), x=columns, y=rows, coloraxis="coloraxis", **options)


def channel_error_figure(outcomes: Sequence[Outcome], name: str) -> go.Figure:
    """Draw each output channel's relative error under the first scheme, sorted, a curve a method."""
    rows = [o for o in outcomes if not o.refused and o.scheme == outcomes[0].scheme]
    if not rows:
        return empty(NOTHING, f"{name} channels")
    y_title = f"relative error, {rows[0].scheme_label}"
    fig = products_figure("output channels, least error first (%)", y_title, f"{name} channel error", 460)
    captioned(fig, "Error of each output channel by method", name, [rows[0].scheme_label])
    colors = _colors(outcomes)
    for index, o in enumerate(rows[:12]):
        values = np.sort(np.asarray(o.channel_error))
        at = np.unique(np.linspace(0, len(values) - 1, min(len(values), 200)).astype(int))
        x = np.round(100 * at / max(len(values) - 1, 1), 2)
        dash = "solid" if index < len(COLORS) else "dot"
        add_line(fig, o.label, x, _short(values[at], 4), colors[o.label], "%{y:.3g}", dash=dash)
    return _log_magnitudes(fig, 1.2)


def _short(values: np.ndarray, digits: int) -> list[float]:
    return [float(f"{v:.{digits}g}") for v in values]


def _log_magnitudes(fig: go.Figure, room: float, *more: float) -> go.Figure:
    """Make the vertical axis logarithmic around the positive values drawn and ``more``."""
    drawn = [float(v) for trace in fig.data for v in trace.y if v > 0]
    return log_axis(fig, "y", min(drawn) / room, max([*drawn, *more]) * room) if drawn else fig


def channels_figure(
    x: Tensor | None, w: Tensor | None, x_after: Tensor | None, w_after: Tensor | None, name: str
) -> go.Figure:
    """Draw the largest magnitude of each input channel, of inputs and weights, before and after a transform.

    The line at 6.0 is LLM.int8()'s threshold: columns above it are outliers.
    """
    if x is None or w is None:
        return empty(NOTHING, f"{name} input channels")
    fig = products_figure("input channel", "largest magnitude", f"{name} input channels", 480)
    captioned(fig, "Largest magnitude of each input channel", name)
    for values, label, color, dash in (
        (x, "inputs", SERIES[0], "solid"),
        (w, "weights", SERIES[1], "solid"),
        (x_after, "inputs, changed", SERIES[0], "dot"),
        (w_after, "weights, changed", SERIES[1], "dot"),
    ):
        if values is None:
            continue
        top = values.abs().amax(0).float().cpu().numpy()
        hover = f"channel %{{x}}: %{{y:.3g}}<extra>{label}</extra>"
        add_line(fig, label, np.arange(len(top)), _short(top, 3), color, hover, width=1.2, dash=dash)
    top = x.abs().amax(0).float().cpu().numpy()
    outliers = np.flatnonzero(top >= THRESHOLD)
    if len(outliers):
        ring = {"color": SERIES[3], "size": 9, "symbol": "circle-open", "line": {"width": 2}}
        title = "outlier columns (LLM.int8())"
        add_points(fig, title, outliers, top[outliers], ring, "channel %{x}: %{y:.3g}")
    fig.add_hline(y=THRESHOLD, line={"color": MUTED, "dash": "dash", "width": 1})
    return _log_magnitudes(fig, 1.3, THRESHOLD)


def before_after_figure(
    before: Tensor | None, after: Tensor | None, side: str, label: str, name: str
) -> go.Figure:
    """Draw two heat maps of magnitudes [rows, channels] on one logarithmic scale, ``before`` above ``after``;
    ``label`` names the latter, ``side`` the meaning of a row.

    The largest of each tile is shown, so that no outlier vanishes. Magnitudes below 1/256 of the largest have
    its colour.
    """
    title = f"{name} {side}s before and after"
    if before is None or after is None:
        return empty("run SmoothQuant, AWQ or a rotation to see this before and after", title)
    top = float(max(values.abs().max() for values in (before, after))) or 1.0
    fig = figure("", "", title, height=420)
    captioned(fig, f"Magnitudes of {side}s before and after", f"{name}; after: {label}")
    titles = ("as they come", label)
    fig.set_subplots(rows=2, cols=1, shared_xaxes=True, vertical_spacing=0.14, subplot_titles=titles)
    for row, values in enumerate((before, after), 1):
        at = {"row": row, "col": 1}
        tiles = _tiles(values.abs().float().cpu(), MAP_ROWS, MAP_CHANNELS)
        shares = (tiles / top).clamp(min=1 / DARKEST).log2().numpy()
        hover = "channel %{x}, " + side + " %{y}" + EXTRA
        shape = (values.shape[0], values.shape[1])
        _add_map(fig, 255 * (1 + shares / math.log2(DARKEST)), shape, hovertemplate=hover, **at)
        fig.update_yaxes({**axis_look(side), "nticks": 4, "showgrid": False}, **at)
        fig.update_xaxes({**axis_look("input channel" if row == 2 else ""), "showgrid": False}, **at)
    labels = [words.number(top * DARKEST ** (step / 4) / DARKEST, 2) for step in range(5)]
    colours = {**_SCALE, "colorbar": colour_bar("", [255 * step / 4 for step in range(5)], labels, 10)}
    fig.update_layout(margin={"t": 22, "b": 44, "l": 52}, coloraxis=colours)
    return fig.update_annotations(font={"size": 12})
