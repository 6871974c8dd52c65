"""Figures of a survey: cost of each layer by each scheme, the frontier of a budget, and the recipe."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from explorer.figures.labels import Canvas, Spot, annotation, place
from explorer.figures.style import (
    EXTRA,
    MAGNITUDE_SCALE,
    MARGIN,
    MUTED,
    ORIGINAL,
    SWITCH_HEIGHT,
    TEXT,
    A,
    B,
    Dict,
    Switch,
    add_line,
    add_points,
    add_switches,
    axis_look,
    caption,
    captioned,
    colour_bar,
    empty,
    figure,
    legend_below,
    marker_look,
    note,
    numbered,
    panel_title,
    shown_text,
    stacked,
)
from explorer.schemes.scheme import label_of_text
from explorer.survey import SENSITIVITIES, Choice, Frontier, Layer, Survey

ROW, MOST_ROWS = 15, 96
"""Pixels of a layer in the map, and the largest number of layers with a row each: more are drawn along
depth."""
LINE, BETWEEN = 11, 30
"""Pixels of a scheme in a panel along depth, and between two panels."""
BESIDE = "beside the blocks"
"""Title of the panel of layers that have no depth."""
NARROW, PHONE_TOP = 560, 216
"""Pixels of width below which labels are upright, and then over the map, for them and the buttons."""
LOWEST = PHONE_TOP // 2
"""Pixels of the map of few layers: plotly places buttons at most three times a map's height above its lower
edge."""
SHADES = 254
"""The largest code of a colour."""
ORDERS = ("in order", "by loss")
COLOURS = ("one scale", "each scheme")
"""Labels of the buttons."""
BITS_SCALE = "Viridis"
RECIPE = "#0b8a55"
"""Colour of recipes."""
STRIP_HEIGHT = 190
HATCHES = ("", "/", "x", ".", "-")
"""Hatches of the blocks by each method of a recipe."""


def layer_label(layer: Layer) -> str:
    """Return a layer in a few words: "3 · value", or its name if it contains neither depth nor kind. Of a
    survey's file, it may be markup, which plotly would show: ``shown_text``."""
    if layer.depth is None or layer.kind == "other":
        return layer.name
    return f"{layer.depth} · {layer.kind}"


def cost_label(survey: Survey, signal: str) -> str:
    """Return the axis label for the cost by ``signal``."""
    if not SENSITIVITIES[signal].is_loss:
        return SENSITIVITIES[signal].label
    unit = {"embedding": "1 − cosine", "next token": "KL, nats"}.get(survey.head.loss, survey.head.loss)
    return f"predicted loss ({unit})"


def by_bits(survey: Survey) -> list[str]:
    """Return the schemes of a survey, the smallest first."""
    weights = _weights(survey)

    def mean(scheme: str) -> float:
        return sum(layer.bits[scheme] * layer.weights for layer in survey.linear) / max(weights, 1)

    return sorted(survey.head.schemes, key=mean)


def heat_figure(survey: Survey, signal: str, choice: Choice | None = None) -> go.Figure:
    """Draw layers × schemes, coloured by the logarithm of the cost; ``choice`` is marked in each row.

    Buttons order the layers as in the model or by their cost, and colour all on one scale or each scheme by
    itself. More than ``MOST_ROWS`` layers are drawn along depth, a panel for each kind. A map's ``meta`` has
    the ``names`` of the layers and the ``schemes`` of its cells, with the bits of each.
    """
    name = f"{survey.head.model} survey {signal}"
    if not survey.linear:
        return empty("no layer has been surveyed yet", name)
    costs = _Costs.of(survey, signal)
    chosen = choice.schemes if choice else {}
    if len(costs.layers) > MOST_ROWS and len({x.depth for x in costs.layers}) > 1:
        fig = _along_depth(costs, chosen, name, cost_label(survey, signal))
    else:
        fig = _rows_of_layers(costs, chosen, name, cost_label(survey, signal))
    return captioned(fig, "Cost of each layer by scheme", survey.head.model, elements=_weights(survey))


def _weights(survey: Survey) -> int:
    return sum(layer.weights for layer in survey.linear)


@dataclass(frozen=True, eq=False)
class _Costs:
    """Costs of each of ``layers`` by each of ``schemes``.

    ``cost`` [layers, schemes]; its colours on one scale (``whole``) and scheme by scheme (``column``): uint8
    codes 0 … ``SHADES``, logarithmic. ``ends`` of the one scale are logarithms. ``bits``: the mean of each
    scheme.
    """

    layers: tuple[Layer, ...]
    schemes: tuple[str, ...]
    bits: tuple[float, ...]
    cost: np.ndarray
    ends: tuple[float, float]

    @classmethod
    def of(cls, survey: Survey, signal: str) -> Self:
        layers, schemes = survey.linear, by_bits(survey)
        cost = np.array([[layer.costs[signal][scheme] for scheme in schemes] for layer in layers])
        positive = cost[cost > 0]
        low = float(positive.min()) if positive.size else 1.0
        weights = np.array([float(layer.weights) for layer in layers])
        bits = np.array([[layer.bits[scheme] for scheme in schemes] for layer in layers])
        mean = tuple(float(f"{one:.4g}") for one in weights @ bits / weights.sum())
        ends = math.log10(low), math.log10(max(float(cost.max(initial=low)), low))
        return cls(tuple(layers), tuple(schemes), mean, cost, ends)

    @property
    def logs(self) -> np.ndarray:
        """log10 of the costs; a cost of 0 takes that of the least cost."""
        return np.asarray(np.log10(np.maximum(self.cost, 10 ** self.ends[0])))

    @property
    def whole(self) -> np.ndarray:
        return _shades(self.logs, *map(np.array, self.ends))

    @property
    def column(self) -> np.ndarray:
        return _shades(self.logs, self.logs.min(0), self.logs.max(0))

    @property
    def captions(self) -> list[str]:
        return [caption(label_of_text(scheme)) for scheme in self.schemes]


def _shades(logs: np.ndarray, low: np.ndarray, high: np.ndarray) -> np.ndarray:
    """uint8: 0 at ``low``, ``SHADES`` at ``high``."""
    shares = (logs - low) / np.where(high > low, high - low, 1.0)
    return np.asarray((SHADES * shares).round().clip(0, SHADES).astype(np.uint8))


def _rows_of_layers(costs: _Costs, chosen: Mapping[str, str], name: str, label: str) -> go.Figure:
    """Draw one map, a row for each layer."""
    count = len(costs.layers)
    inside, top = max(ROW * count, LOWEST), 130 + SWITCH_HEIGHT
    fig = figure("", "", name, height=inside + top + 20)
    natural, by_loss = list(range(count)), np.argsort(-costs.logs.mean(1), kind="stable").tolist()
    orders = (natural, by_loss)
    for number, order in enumerate(orders):
        names, visible = [costs.layers[row].name for row in order], number == 0
        for relative, codes in enumerate((costs.whole, costs.column)):
            _cost_map(fig, codes[order], costs.cost[order], names, costs, bool(relative), visible)
        at = [(costs.schemes.index(chosen[n]), y) for y, n in enumerate(names) if n in chosen]
        _choices(fig, at, visible=visible)
    labels = [[shown_text(caption(layer_label(costs.layers[row]), 22)) for row in order] for order in orders]
    small = {"showgrid": False, "tickfont": {"size": 10}}
    fig.update_yaxes(tickvals=natural, ticktext=labels[0], range=[count - 0.5, -0.5], **small)
    places, ends = list(range(len(costs.schemes))), [-0.5, len(costs.schemes) - 0.5]
    fig.update_xaxes(tickvals=places, ticktext=costs.captions, range=ends, tickangle=-45, side="top", **small)
    every, each = list(range(len(fig.data))), len(fig.data) // 2
    order_switch: list[Switch] = [
        (words, {"visible": [i // each == n for i in every]}, every, {"yaxis.ticktext": labels[n]})
        for n, words in enumerate(ORDERS)
    ]
    _add_colours(fig, costs, label, int(inside // 25), {"order": order_switch}, top / inside)
    meta = {**fig.layout.meta, "narrow": {"below": NARROW, "changes": _narrow_rows(inside)}}
    margin = {"t": top, "l": 120, "r": 20, "b": 20}
    return fig.update_layout(margin=margin, uirevision=f"{name} {count}", meta=meta)


def _narrow_rows(inside: float) -> Dict:
    """Return the changes of the layout on a phone: upright labels, and one row of buttons below the other."""
    changes: Dict = {"height": inside + PHONE_TOP + 20, "margin.t": PHONE_TOP}
    changes |= {"xaxis.tickangle": -90, "margin.r": 4, "margin.l": 100}
    for menu in (0, 1):
        top = 1 + (PHONE_TOP - 34 * menu) / inside
        changes |= {f"updatemenus.{menu}.y": top, f"updatemenus.{menu}.pad.l": 0}
    return changes | {f"{axis}.colorbar.title.text": "" for axis in ("coloraxis", "coloraxis2")}


def _cost_map(
    fig: go.Figure,
    codes: np.ndarray,
    cost: np.ndarray,
    names: list[str],
    costs: _Costs,
    relative: bool,
    visible: bool,
    **where: object,
) -> None:
    """Add a map of ``codes``, with the costs that the page writes under the mouse; along depth it is upright:
    schemes are its rows."""
    about = {"names": names, "schemes": list(costs.schemes), "labels": costs.captions}
    fig.add_heatmap(
        z=codes,
        customdata=cost.astype(np.float32),
        coloraxis="coloraxis2" if relative else "coloraxis",
        opacity=0.0 if relative else 1.0,
        visible=visible,
        hovertemplate="%{customdata:.3g}" + EXTRA,
        meta={**about, "bits": list(costs.bits), "upright": bool(where)},
        **where,
    )


def _choices(fig: go.Figure, at: Sequence[tuple[int, int]], **options: Any) -> None:
    """Mark the cells that a recipe has chosen."""
    look = marker_look(B, 7, edge=1.5, rim="#ffffff")
    add_points(fig, "the recipe", [x for x, _ in at], [y for _, y in at], look, showlegend=False, **options)


def _add_colours(
    fig: go.Figure,
    costs: _Costs,
    label: str,
    most: int,
    switches: Mapping[str, Sequence[Switch]],
    above: float,
) -> None:
    """Add the colours on one scale for all schemes and on one for each.

    Buttons switch between them, beside ``switches`` at the figure's upper edge, ``above`` the plot in parts
    of its height. The colours have at most about ``most`` labels. Of two maps on top of each other, the
    hidden one is transparent.
    """
    low, high = costs.ends
    ticks = [t for t in _decades(10**low, 10**high, min(8, most)) if low - 0.05 <= t <= high + 0.05]
    at = [SHADES * (t - low) / (high - low or 1.0) for t in ticks]
    whole = colour_bar(label, at, [f"1e{t}" for t in ticks])
    column = colour_bar("of this scheme", [0, SHADES], ["least", "most"])
    scale = {"cmin": 0, "cmax": SHADES, "colorscale": MAGNITUDE_SCALE}
    maps = [i for i, trace in enumerate(fig.data) if trace.type == "heatmap"]
    by_column = [fig.data[i].coloraxis == "coloraxis2" for i in maps]
    colours: list[Switch] = []
    for words, relative in zip(COLOURS, (False, True), strict=True):
        shown = {"coloraxis.showscale": not relative, "coloraxis2.showscale": relative}
        colours.append((words, {"opacity": [float(each == relative) for each in by_column]}, maps, shown))
    add_switches(fig, {**switches, "mode": colours})
    for menu in fig.layout.updatemenus:
        menu.update(yanchor="top", y=1 + above)
    fig.update_layout(
        coloraxis={**scale, "colorbar": whole},
        coloraxis2={**scale, "colorbar": column, "showscale": False},
    )


def _along_depth(costs: _Costs, chosen: Mapping[str, str], name: str, label: str) -> go.Figure:
    """Draw a panel for each kind of layer, depths across and schemes down."""
    panels = _panels(costs)
    count, above = len(panels), 34 + SWITCH_HEIGHT
    tall = max(LINE * len(costs.schemes), above // 2 // count)  # as for ``LOWEST``
    inside = count * tall + (count - 1) * BETWEEN
    fig = figure("depth: number of the block", "", name, height=inside + above + MARGIN["b"])
    layout: Dict = {}
    titles = []
    small = {"tickfont": {"size": 9}, "showgrid": False, "range": [len(costs.schemes) - 0.5, -0.5]}
    ticks = {"tickvals": list(range(len(costs.schemes))), "ticktext": costs.captions}
    for index, (kind, rows) in enumerate(panels.items()):
        axis, domain = numbered("y", index), stacked(count, tall, BETWEEN)[index]
        layout[numbered("yaxis", index)] = {**axis_look(""), **ticks, **small, "domain": domain}
        places, order = list(rows), list(rows.values())
        names, cost = [costs.layers[row].name for row in order], costs.cost[order].T
        for relative, codes in enumerate((costs.whole, costs.column)):
            _cost_map(fig, codes[order].T, cost, names, costs, bool(relative), True, x=places, yaxis=axis)
        at = [(p, costs.schemes.index(chosen[n])) for p, n in zip(places, names, strict=True) if n in chosen]
        _choices(fig, at, yaxis=axis, visible=True)
        titles.append(panel_title(f"<b>{kind}</b>", "x", axis, 2))
    deepest = max(max(rows) for rows in panels.values())
    fig.update_layout(layout)
    ends = [-0.5, deepest + 0.5]
    fig.update_xaxes(range=ends, showgrid=False, anchor=numbered("y", count - 1), tickformat="d")
    _add_colours(fig, costs, label, 8, {}, above / inside)
    margin = {"t": above, "l": 120}
    return fig.update_layout(annotations=titles, margin=margin, uirevision=f"{name} {count} panels")


def _panels(costs: _Costs) -> dict[str, dict[int, int]]:
    """Return kind -> depth -> the row of ``costs``. Of several layers of a kind at one depth, such as
    experts, it is the costliest; layers outside of blocks are numbered."""
    panels: dict[str, dict[int, int]] = {}
    worst = costs.logs.mean(1)
    for row, layer in enumerate(costs.layers):
        seen = panels.setdefault(layer.kind if layer.depth is not None else BESIDE, {})
        place = len(seen) if layer.depth is None else layer.depth
        if place not in seen or worst[row] > worst[seen[place]]:
            seen[place] = row
    return {kind: dict(sorted(rows.items())) for kind, rows in panels.items()}


def _decades(low: float, high: float, most: int) -> list[int]:
    """Return about ``most`` powers of ten from ``low`` to ``high``, as exponents."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(max(high, low)))
    step = max(1, math.ceil((last - first) / max(most - 1, 1)))
    return list(range(first, last + 1, step))


@dataclass(frozen=True)
class LossPoint:
    """A model that was run, in the figure of budgets: its mean ``bits`` per weight over the layers, and its
    loss with the 95 % interval, if that is known. ``ours``: False for the file of another program."""

    name: str
    bits: float
    loss: float
    low: float | None = None
    high: float | None = None
    ours: bool = True


PER_WEIGHT, PER_SIZE = "bits per weight, scales included", "MB of the whole model"
"""Titles of the axis of budgets."""
_HEIGHT, _WIDTHS = 380, (300.0, 620.0, 960.0)
"""Pixels of the figure of budgets, and widths of its plot at which names have room."""
_NAME_SIZE = 12
MOST_POINTS = 1_000
"""Columns of the axis in which a frontier of more points is drawn, one point each."""


def budget_figure(
    survey: Survey,
    front: Frontier,
    choice: Choice,
    in_bytes: bool = False,
    compared: Sequence[str] = (),
    measured: Sequence[LossPoint] = (),
) -> go.Figure:
    """Draw bits per weight, with ``in_bytes`` the size of the whole model, or of a frontier with times the
    time of a step, against loss: the frontier, of which about ``MOST_POINTS`` points are drawn, single
    schemes for all layers, of which those ``compared`` are A and B, the budget, and models that were
    ``measured``.

    A click on the line sets its point's budget in the page's address, one on a scheme sets A.
    """
    timed = front.by_time
    name = f"{survey.head.model} budget {front.signal}{' time' if timed else ' size' if in_bytes else ''}"
    title, unit = (PER_SIZE, "MB") if in_bytes else (PER_WEIGHT, "bits")

    def across(bits: Any) -> Any:
        return 1e-6 * (front.kept_bytes + bits * front.weights / 8) if in_bytes else bits

    at, losses, own = across(front.bits), front.loss, across(choice.bits)
    singles = {u.scheme: (across(u.bits), u.loss) for u in front.uniform}
    if timed is not None and choice.time is not None:
        title, unit = f"µs of all linear layers, batch {choice.time.batch:,} ({choice.time.source})", "µs"
        at, losses, own = 1e6 * timed.seconds, timed.loss, 1e6 * choice.time.seconds
        singles = {u.scheme: (1e6 * (u.seconds or 0.0), u.loss) for u in front.uniform}
        measured = ()  # their times were not taken
    singles = {name: point for name, point in singles.items() if point[1] > 0}
    drawn = _drawn(at, losses, [own, *(singles[name][0] for name in compared if name in singles)])
    at, losses = at[drawn], losses[drawn]
    fig = figure(title, "", name, _HEIGHT)
    captioned(fig, "Loss against size of the model", survey.head.model, elements=_weights(survey))
    hover = f"%{{x:.4g}} {unit}: %{{y:.3g}}"
    shown = losses > 0
    budgets = [{"set": {"budget": f"{x:.4g}"}} for x in at[shown]]
    add_line(fig, "recipes", at[shown], losses[shown], RECIPE, hover, shape="hv", customdata=budgets)
    others = [(one.name, (across(one.bits), one.loss)) for one in measured if not one.ours]
    points = [*singles.items(), *others]
    _add_singles(fig, singles, compared, hover)
    _add_measured(fig, [one for one in measured if one.ours], across, "circle-open", hover)
    _add_measured(fig, [one for one in measured if not one.ours], across, "square", hover)
    if choice.loss > 0:
        ring = {"size": 15, "color": RECIPE, "symbol": "circle-open", "line": {"width": 3}}
        add_points(fig, "this budget", [own], [choice.loss], ring, hover)
        points.append(("recipe", (own, choice.loss)))
    colours = {"recipe": RECIPE, **dict(zip(compared, (A, B), strict=False))}
    label = note(cost_label(survey, front.signal), 12, x=0, y=1, xref="paper", yref="paper", xanchor="left",
                 yanchor="bottom")  # fmt: skip
    labels = {name: label_of_text(name) for name in singles}
    mine = [(across(one.bits), one.loss) for one in measured if one.ours]
    names, (x_range, y_range) = _names(points, labels, colours, (at, losses), mine)
    return fig.update_layout(
        showlegend=False,
        margin={"l": 62, "t": 30, "b": 44},
        annotations=[label, *names],
        xaxis_range=x_range,
        yaxis={"type": "log", "exponentformat": "power", "dtick": 1, "range": y_range},
    )


def _drawn(at: np.ndarray, losses: np.ndarray, marked: Sequence[float]) -> np.ndarray:
    """bool [points]: of many points the last one in each column of the axis, the ends, and the points of the
    budgets ``marked``."""
    if len(at) <= MOST_POINTS:
        return np.ones(len(at), dtype=bool)
    column = np.floor((at - at[0]) / (at[-1] - at[0] or 1.0) * MOST_POINTS)
    drawn = np.append(column[1:] > column[:-1], True)
    drawn[np.maximum(np.searchsorted(at, marked, "right") - 1, 0)] = True
    drawn[[0, *np.flatnonzero(losses > 0)[-1:]]] = True
    return drawn


def _add_singles(
    fig: go.Figure, singles: Mapping[str, tuple[float, float]], compared: Sequence[str], hover: str
) -> None:
    """Add the single schemes, A and B in their colours; a click on one makes it A."""
    b = "".join(compared[1:2])
    colours = dict(zip(compared, (A, B), strict=False))
    look = {"size": [11 if name in colours else 8 for name in singles]}
    fill = [colours.get(name, MUTED) for name in singles]
    add_points(
        fig,
        "one scheme for all layers",
        [x for x, _ in singles.values()],
        [y for _, y in singles.values()],
        look | {"color": fill},
        f"%{{text}}, all layers<br>{hover}",
        text=[label_of_text(name) for name in singles],
        customdata=[
            {"set": {"scheme": name, "second": "" if name in compared[1:] else b}} for name in singles
        ],
    )


def _add_measured(fig: go.Figure, points: Sequence[LossPoint], across: Any, symbol: str, hover: str) -> None:
    if not points:
        return
    colour = TEXT if symbol == "square" else ORIGINAL
    add_points(
        fig,
        "measured" if symbol != "square" else "files of other programs",
        [across(one.bits) for one in points],
        [one.loss for one in points],
        marker_look(colour, 8, symbol, 1.5),
        f"%{{text}}<br>{hover}",
        text=[shown_text(one.name) for one in points],
        error_y={
            "array": [(one.high or one.loss) - one.loss for one in points],
            "arrayminus": [one.loss - (one.low or one.loss) for one in points],
            "thickness": 1,
            "width": 2,
            "color": colour,
        },
    )


def _names(
    points: Sequence[tuple[str, tuple[float, float]]],
    labels: Mapping[str, str],
    bold: Mapping[str, str],
    line: tuple[np.ndarray, np.ndarray],
    unnamed: Sequence[tuple[float, float]],
) -> tuple[list[Dict], tuple[list[float], list[float]]]:
    """Return the names of points that have room, those that are ``bold`` first and none over the ``line``,
    and the ranges of the axes."""
    every = [*(at for _, at in points), *unnamed]
    xs = np.r_[line[0], [x for x, _ in every]]
    above = [*line[1][line[1] > 0], *(y for _, y in every if y > 0)] or [1.0]  # a survey may lose nothing
    ys = np.log10(above)
    wide, tall = float(np.ptp(xs)) or 1.0, float(np.ptp(ys)) or 1.0
    low_x, low_y = float(xs.min()) - 0.05 * wide, float(ys.min()) - 0.08 * tall
    wide, tall = 1.1 * wide, 1.16 * tall

    def share(x: float, y: float) -> tuple[float, float]:
        return (x - low_x) / wide, (math.log10(max(y, 1e-30)) - low_y) / tall

    ordered = sorted(points, key=lambda point: point[0] not in bold)
    spots = []
    for name, (x, y) in ordered:
        label = caption(labels.get(name, name))
        spots.append(Spot(*share(x, y), 6, label, name in bold, name in bold, name not in bold))
    spots += [Spot(*share(x, y), 5, faint=True) for x, y in unnamed]
    corners = [share(x, y) for x, y in zip(*line, strict=True) if y > 0]
    steps = [step for (x0, y0), (x1, y1) in itertools.pairwise(corners)
             for step in ((x0, y0, x1, y0), (x1, y0, x1, y1))]  # fmt: skip
    canvas = Canvas.of(_WIDTHS, [_HEIGHT - 74.0], _NAME_SIZE)
    found = [
        annotation(spot, label, (x, math.log10(y)), bold.get(name, TEXT), _NAME_SIZE)
        for (name, (x, y)), spot, label in zip(ordered, spots, place(spots, canvas, steps), strict=False)
        if label is not None
    ]
    return found, ([low_x, low_x + wide], [low_y, low_y + tall])


def scheme_shades(survey: Survey, choice: Choice) -> dict[str, str]:
    """Return the colour of each scheme of a choice, from the fewest bits to the most."""
    schemes = [s for s in by_bits(survey) if s in set(choice.schemes.values())]
    shades = sample_colorscale(BITS_SCALE, [i / max(len(schemes) - 1, 1) for i in range(len(schemes))])
    return dict(zip(schemes, shades, strict=True))


def strip_figure(survey: Survey, choice: Choice) -> go.Figure:
    """Draw the recipe as a strip of coloured blocks, a layer each, as wide as it has weights, in the order of
    the model; a block's ``customdata`` is [layer, scheme]. Layers of one scheme by different methods are
    hatched differently."""
    name = f"{survey.head.model} recipe {choice.bits:.3g} bits"
    layers = [layer for layer in survey.linear if layer.name in choice.schemes]
    total = sum(layer.weights for layer in layers)
    fig = legend_below(figure("layers, from the first to the last", "", name, STRIP_HEIGHT), 2)
    captioned(fig, f"Recipe of {choice.bits:.3g} bits per weight", survey.head.model, elements=total)
    starts = np.cumsum([0, *(layer.weights for layer in layers)]) / max(total, 1)
    methods = list(dict.fromkeys(choice.methods.get(layer.name, "") for layer in layers))
    pairs = itertools.product(scheme_shades(survey, choice).items(), sorted(methods, key=bool, reverse=True))
    for (scheme, colour), method in pairs:
        own = [
            (start, layer)
            for start, layer in zip(starts, layers, strict=False)
            if choice.schemes[layer.name] == scheme and choice.methods.get(layer.name, "") == method
        ]
        if not own:
            continue
        fig.add_bar(
            x=[start for start, _ in own],
            y=[1] * len(own),
            width=[layer.weights / total for _, layer in own],
            offset=0,
            name=choice.recipe(own[0][1].name).label,
            marker={
                "color": colour,
                "line": {"width": 0.5, "color": "rgba(255,255,255,0.6)"},
                "pattern": {"shape": HATCHES[methods.index(method) % len(HATCHES)]},
            },
            customdata=[[layer.name, scheme] for _, layer in own],
            text=[shown_text(layer_label(layer)) for _, layer in own],
            textangle=-90,
            insidetextanchor="middle",
            hovertemplate="%{customdata[0]}<br>%{fullData.name}" + EXTRA,
        )
    bare = {"range": [0, 1], "showticklabels": False, "showgrid": False, "ticks": ""}
    fig.update_xaxes(**bare)
    fig.update_yaxes(**bare, fixedrange=True)
    fig.update_layout(uniformtext={"minsize": 9, "mode": "hide"}, barmode="overlay")
    return fig.update_layout(legend_font={"size": 11, "color": TEXT}, margin={"t": 8, "l": 16})
