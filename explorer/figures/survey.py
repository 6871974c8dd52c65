"""Figures of a survey: layers by schemes, the frontier of a budget, and the recipe that it buys."""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np
import plotly.graph_objects as go
from plotly.colors import sample_colorscale

from explorer.figures.style import MAGNITUDE_SCALE, MUTED, TEXT, A, B, caption, empty, figure, legend_below
from explorer.schemes.scheme import label_of_text
from explorer.survey import SENSITIVITIES, Choice, Frontier, Layer, Survey

ROW, MOST_HEIGHT = 15, 2400
"""Pixels of a layer in the heat map, and the most that the map is high."""
BITS_SCALE = "Viridis"
STRIP_HEIGHT = 190


def layer_label(layer: Layer) -> str:
    """A layer in a few words: "3 · value", or its name if it contains neither depth nor kind."""
    if layer.depth is None or layer.kind == "other":
        return layer.name
    return f"{layer.depth} · {layer.kind}"


def cost_label(survey: Survey, signal: str) -> str:
    """Axis label for the cost by ``signal``."""
    if not SENSITIVITIES[signal].is_loss:
        return SENSITIVITIES[signal].label
    unit = {"embedding": "1 − cosine", "next token": "KL, nats"}.get(survey.head.loss, survey.head.loss)
    return f"predicted loss ({unit})"


def by_bits(survey: Survey) -> list[str]:
    """The schemes of a survey, the smallest first."""
    weights = sum(layer.weights for layer in survey.linear)

    def mean(scheme: str) -> float:
        return sum(layer.bits[scheme] * layer.weights for layer in survey.linear) / max(weights, 1)

    return sorted(survey.head.schemes, key=mean)


def heat_figure(survey: Survey, signal: str) -> go.Figure:
    """Layers × schemes, coloured by the logarithm of what each costs. A cell's ``customdata`` is [layer,
    scheme, the cost in words, bits a weight]."""
    name = f"{survey.head.model} survey {signal}"
    layers, schemes = survey.linear, by_bits(survey)
    if not layers:
        return empty("no layer has been surveyed yet", name)
    cost = np.array([[layer.costs[signal][scheme] for scheme in schemes] for layer in layers])
    positive = cost[cost > 0]
    low = float(positive.min()) if positive.size else 1.0
    height = min(MOST_HEIGHT, 150 + ROW * len(layers))
    fig = figure("", "", name, height=height)
    ticks = _decades(low, float(cost.max(initial=low)), min(8, (height - 120) // 25))
    cells = [[[x.name, s, f"{x.costs[signal][s]:.3g}", f"{x.bits[s]:.4g}"] for s in schemes] for x in layers]
    fig.add_heatmap(
        z=np.log10(np.maximum(cost, low)).round(3),
        x=[caption(label_of_text(scheme)) for scheme in schemes],
        y=list(range(len(layers))),
        customdata=cells,
        colorscale=MAGNITUDE_SCALE,
        hovertemplate="%{customdata[0]}<br>%{x}, %{customdata[3]} bits: %{customdata[2]}<extra></extra>",
        colorbar={
            "title": {"text": cost_label(survey, signal), "side": "right", "font": {"size": 12}},
            "thickness": 12,
            "outlinewidth": 0,
            "tickvals": ticks,
            "ticktext": [f"1e{t}" for t in ticks],
        },
    )
    labels = [layer_label(layer) for layer in layers]
    fig.update_yaxes(
        tickvals=list(range(len(layers))),
        ticktext=[caption(label, 22) for label in labels],
        range=[len(layers) - 0.5, -0.5],
        showgrid=False,
        tickfont={"size": 10},
    )
    fig.update_xaxes(showgrid=False, tickangle=-45, side="top", tickfont={"size": 10})
    fig.update_layout(margin={"t": 110, "l": 120, "r": 20, "b": 20})
    return fig


def _decades(low: float, high: float, most: int) -> list[int]:
    """Powers of ten from ``low`` to ``high``, about ``most`` of them."""
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(max(high, low)))
    step = max(1, math.ceil((last - first) / max(most - 1, 1)))
    return list(range(first, last + 1, step))


def budget_figure(survey: Survey, front: Frontier, choice: Choice) -> go.Figure:
    """Bits a weight against predicted loss: the frontier, single schemes for all layers, and the budget."""
    name = f"{survey.head.model} budget {front.signal}"
    fig = legend_below(figure("bits a weight, scales included", cost_label(survey, front.signal), name, 380))
    shown = front.loss > 0
    fig.add_scatter(
        x=front.bits[shown],
        y=front.loss[shown],
        mode="lines",
        name="best scheme for each layer",
        line={"color": A, "width": 2, "shape": "hv"},
        hovertemplate="%{x:.3f} bits: %{y:.3g}<extra></extra>",
    )
    single = [u for u in front.uniform if u.loss > 0]
    fig.add_scatter(
        x=[u.bits for u in single],
        y=[u.loss for u in single],
        mode="markers",
        name="one scheme for all layers",
        marker={"size": 8, "color": MUTED},
        text=[label_of_text(u.scheme) for u in single],
        hovertemplate="%{text}<br>%{x:.3f} bits: %{y:.3g}<extra></extra>",
    )
    if choice.loss > 0:
        fig.add_scatter(
            x=[choice.bits],
            y=[choice.loss],
            mode="markers",
            name="the budget",
            marker={"size": 15, "color": B, "symbol": "circle-open", "line": {"width": 3}},
            hovertemplate="%{x:.3f} bits: %{y:.3g}<extra></extra>",
        )
    fig.update_yaxes(type="log", exponentformat="power", dtick=1)
    return fig


def strip_figure(survey: Survey, choice: Choice) -> go.Figure:
    """The recipe as a strip of coloured blocks, a layer each, as wide as it has weights, in the order of the
    model; a block's ``customdata`` is [layer, scheme]."""
    name = f"{survey.head.model} recipe {choice.bits:.3g} bits"
    layers = [layer for layer in survey.linear if layer.name in choice.schemes]
    schemes = [s for s in by_bits(survey) if s in set(choice.schemes.values())]
    total = sum(layer.weights for layer in layers)
    fig = legend_below(figure("layers, from the first to the last", "", name, STRIP_HEIGHT), 2)
    colours = _colours(schemes)
    starts = np.cumsum([0, *(layer.weights for layer in layers)]) / max(total, 1)
    for scheme in schemes:
        own = [(i, layer) for i, layer in enumerate(layers) if choice.schemes[layer.name] == scheme]
        fig.add_bar(
            x=[starts[i] for i, _ in own],
            y=[1] * len(own),
            width=[layer.weights / total for _, layer in own],
            offset=0,
            name=label_of_text(scheme),
            marker={"color": colours[scheme], "line": {"width": 0.5, "color": "rgba(255,255,255,0.6)"}},
            customdata=[[layer.name, scheme] for _, layer in own],
            hovertemplate="%{customdata[0]}<br>%{fullData.name}<extra></extra>",
        )
    fig.update_xaxes(range=[0, 1], showticklabels=False, showgrid=False, ticks="")
    fig.update_yaxes(range=[0, 1], showticklabels=False, showgrid=False, ticks="", fixedrange=True)
    fig.update_layout(barmode="overlay", legend_font={"size": 11, "color": TEXT}, margin={"t": 8, "l": 16})
    return fig


def _colours(schemes: Sequence[str]) -> dict[str, str]:
    """From few bits to many along one scale."""
    places = [i / max(len(schemes) - 1, 1) for i in range(len(schemes))]
    return dict(zip(schemes, sample_colorscale(BITS_SCALE, places), strict=True))
