"""Where the error is: maps of one or two schemes' errors and of their difference, with their edges."""

from __future__ import annotations

import base64
import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np
import plotly.graph_objects as go
import torch
from torch import Tensor

from explorer.analysis.error_map import ErrorMap, error_maps
from explorer.analysis.tensor import MAP_LIMIT, Side
from explorer.analysis.tiles import tile_maximum, tile_size
from explorer.figures.maps import CODES, ColourScale, map_axes
from explorer.figures.style import (
    GRID,
    A,
    B,
    Switch,
    add_switches,
    axis_look,
    caption,
    figure,
    legend_below,
)

COLORS = (A, B)
LEAST_SHARE = 0.01
"""The share of the cells whose errors may lie below a logarithmic scale: the scale is for the others."""
SMALLEST = 1e-5
"""The least value that a logarithmic scale of errors shows, in parts of the largest."""
STEPS = 255
"""Colours of the maps that are not read back under the mouse: one byte a cell."""
EQUAL = 127
"""The code of the difference at which both schemes err alike, of 0 … 254."""
MOST_TIMES = 64.0
"""Beyond this ratio of two errors the difference's colour is the strongest."""
DECADES = 7
"""Values under the mouse: signed 16-bit codes over so many powers of ten below the largest."""
POINTS = 512
"""The most points of an edge; each is the largest RMS of its run of rows or columns."""
NARROW = 760
"""Pixels of width below which the panels stand below one another."""
MODES = ("logarithmic", "in scales of the block")
HEIGHT, STRIP, TITLE = 330, 34, 24
"""Pixels of a map, of the strip of the columns' errors above it, and of a panel's title."""

ONE = ((0.0, 0.93, 0.98),)
THREE = ((0.0, 0.265, 0.298), (0.328, 0.593, 0.626), (0.72, 0.985, 0.99))
"""Left and right of each map, and where its rows' strip ends, in parts of the plot."""


@dataclass(frozen=True)
class _Place:
    """Parts of the plot: a map's left, right, bottom and top, and the ends of its strips: above and right."""

    x: tuple[float, float]
    y: tuple[float, float]
    above: tuple[float, float]
    right: tuple[float, float]


@dataclass(frozen=True)
class _Plan:
    """What becomes a figure in one piece: plotly checks a layout anew at every update, which takes longer
    than all the rest."""

    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, **trace: object) -> None:
        """Add a trace."""
        self.data.append({"type": kind, **trace})

    def lay(self, changes: Mapping[str, Any]) -> None:
        """Add to entries of the layout, one level deep."""
        for key, value in changes.items():
            old = self.layout.get(key)
            self.layout[key] = {**old, **value} if isinstance(old, dict) else value


def error_map_figure(x: Tensor, sides: Sequence[Side], picked: tuple[int, int], name: str) -> go.Figure:
    """|error| over the matrix ``x``: a map for each of one or two ``sides`` on one colour scale, and of two
    also the map of A - B.

    A cell shows its largest error; the strips along a map's edges the root mean squared error of each column
    and row. ``picked`` (row, column) is circled, and each side's largest error marked on all maps. A switch
    shows errors in scales of their blocks, if all sides have such. The page draws the panels below one
    another where ``meta["narrow"]`` says so, writes what lies under the mouse, and sends what part was zoomed
    to.
    """
    maps = error_maps(x, [side.analysis for side in sides])
    shape = (x.shape[0], x.shape[1])
    fig, panels = _Plan(), len(sides) + (len(sides) > 1)
    scale, places = _scale([each.error for each in maps]), _places(panels, False)
    for index, each in enumerate(maps):
        _axes(fig, index, shape, places[index], edges=True)
        _side(fig, index, each, scale, shape)
        _edges(fig, index, each, COLORS[index])
    _magnitudes(fig, "coloraxis", scale, "|error|")
    if len(sides) > 1:
        _axes(fig, 2, shape, places[2], edges=False)
        _difference(fig, maps, shape)
    switch = _scaled(fig, maps, shape)
    _marks(fig, maps, picked, panels)
    _titles(fig, [caption(side.label, 34) for side in sides])
    return _finished(fig, f"{name} error map", shape, len(sides), switch)


def _scale(errors: Sequence[Tensor]) -> ColourScale:
    """Logarithmic, from the error that all but a few cells exceed to the largest."""
    largest = max((float(each.max()) for each in errors), default=0.0)
    positive = torch.cat([each[each > 0] for each in errors])
    least = float(positive.quantile(LEAST_SHARE)) if len(positive) else 0.0
    share = max(least / largest, SMALLEST) if largest > 0 else 0.0
    return ColourScale.of(errors, True, share)


def _places(panels: int, narrow: bool) -> list[_Place]:
    """Where the panels lie, in parts of the plot."""
    if narrow:
        total = _height(panels, True)
        tops = [1 - (i * (HEIGHT * 0.7 + STRIP + TITLE + 44) + TITLE) / total for i in range(panels)]
        strip, tall = STRIP / total, HEIGHT * 0.7 / total
        return [
            _Place((0, 0.82), (top - strip - tall, top - strip), (top - strip * 0.85, top), (0.835, 0.95))
            for top in tops
        ]
    total = _height(panels, False)
    top = (1 - TITLE / total, 1 - (TITLE + STRIP) / total)
    spans = ONE if panels == 1 else THREE
    return [
        _Place((left, right), (0, top[1]), (top[1] + 4 / total, top[0]), (right + 0.003, end))
        for left, right, end in spans
    ]


def _height(panels: int, narrow: bool) -> float:
    """Pixels of the plot without its margins."""
    return panels * (HEIGHT * 0.7 + STRIP + TITLE + 44) - 44 if narrow else HEIGHT + STRIP + TITLE


def _key(axis: str, number: int) -> str:
    """plotly's name of an axis: the first has no number."""
    return axis if number == 1 else f"{axis}{number}"


def _of_map(index: int) -> tuple[str, str]:
    """A map's two axes as traces name them."""
    return _key("x", index + 1), _key("y", index + 1)


def _axes(fig: _Plan, index: int, shape: tuple[int, int], place: _Place, *, edges: bool) -> None:
    """The axes of a map, which all zoom together, and of its strips."""
    x, y = map_axes(shape)
    across, down = _key("xaxis", index + 1), _key("yaxis", index + 1)
    together = {} if index == 0 else {"matches": "x"}
    below = {} if index == 0 else {"matches": "y", "showticklabels": False, "title": None}
    left, bottom = _of_map(index)
    fig.lay(
        {
            across: {**axis_look("column"), **x, **together, "domain": place.x, "anchor": bottom},
            down: {**axis_look("row"), **y, **below, "domain": place.y, "anchor": left},
        }
    )
    if edges:
        quiet = {"showgrid": False, "zeroline": False, "fixedrange": True, "nticks": 2, "rangemode": "tozero"}
        quiet |= {"tickfont": {"size": 9}, "ticks": "", "showticklabels": False}
        number = 4 + index
        fig.lay(
            {
                f"yaxis{number}": {**quiet, "domain": place.above, "anchor": left},
                f"xaxis{number}": {**quiet, "domain": place.right, "anchor": bottom},
            }
        )


def _heatmap(
    fig: _Plan, index: int, shape: tuple[int, int], z: np.ndarray, coloraxis: str, **options: object
) -> None:
    """A map of codes in panel ``index``; the page writes what lies under the mouse."""
    tall, wide = tile_size(shape, MAP_LIMIT)
    x, y = _of_map(index)
    fig.add(
        "heatmap",
        z=z,
        x0=(wide - 1) / 2,
        dx=wide,
        y0=(tall - 1) / 2,
        dy=tall,
        xaxis=x,
        yaxis=y,
        coloraxis=coloraxis,
        hovertemplate="row %{y}, column %{x}<extra></extra>",
        **options,
    )


def _side(fig: _Plan, index: int, each: ErrorMap, scale: ColourScale, shape: tuple[int, int]) -> None:
    """The map of one side's errors, with what the page says under the mouse in its ``meta``."""
    tall, wide = tile_size(shape, MAP_LIMIT)
    others = [i for i in range(len(each.restored)) if i != index]
    values = torch.stack([each.value, *(each.restored[i] for i in others)])
    meta: dict[str, object] = {"label": "|error|", "unit": "", "tall": tall, "wide": wide, **asdict(scale)}
    meta |= {
        "side": index,
        "values": signed_codes(values),
        "above": _typed(np.packbits((each.restored[index] > each.value).numpy().reshape(-1))),
    }
    place = _smallest_type(each.place) if tall * wide > 1 else None
    _heatmap(fig, index, shape, scale.codes_of(each.error), "coloraxis", customdata=place, meta=meta)


def signed_codes(values: Tensor) -> dict[str, object]:
    """Float values in 16 bits each: 0, or the sign and the place on ``DECADES`` powers of ten below the
    ``largest``, which all have 32,766 steps: a value is known to 0.03 %. Smaller ones have the code 1."""
    finite = values.double().nan_to_num(0.0, 0.0, 0.0)
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    if not largest:
        codes = torch.zeros_like(finite)
    else:
        places = 1 + 32766 * (1 + (finite.abs() / largest).clamp_min(1e-300).log10() / DECADES)
        codes = torch.where(finite == 0, 0.0, finite.sign() * places.round().clamp(1, 32767))
    return {"largest": largest, "decades": DECADES, **_typed(codes.numpy().astype(np.int16))}


def _typed(values: np.ndarray) -> dict[str, str]:
    """An array as plotly writes it, for ``meta``, which plotly writes as a list."""
    kind = values.dtype.str[1:]
    text = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {"dtype": kind, "bdata": text, "shape": ", ".join(map(str, values.shape))}


def _smallest_type(offsets: Tensor) -> np.ndarray:
    """Non-negative integers in the fewest bytes that plotly sends."""
    values = offsets.numpy()
    return np.asarray(values.astype(np.min_scalar_type(int(values.max()))))


def _edges(fig: _Plan, index: int, each: ErrorMap, color: str) -> None:
    """The errors of the columns above a map, and of the rows at its right."""
    x, y = _of_map(index)
    look: dict[str, object] = {"mode": "lines", "showlegend": False, "line": {"width": 1, "color": color}}
    columns, wide = _runs(each.columns)
    fig.add(
        "scatter",
        x0=(wide - 1) / 2,
        dx=wide,
        y=columns,
        xaxis=x,
        yaxis=f"y{4 + index}",
        fill="tozeroy",
        hovertemplate="column %{x}: RMS error %{y:.3g}<extra></extra>",
        **look,
    )
    rows, tall = _runs(each.rows)
    fig.add(
        "scatter",
        x=rows,
        y0=(tall - 1) / 2,
        dy=tall,
        xaxis=f"x{4 + index}",
        yaxis=y,
        fill="tozerox",
        hovertemplate="row %{y}: RMS error %{x:.3g}<extra></extra>",
        **look,
    )


def _runs(errors: Tensor) -> tuple[np.ndarray, int]:
    """At most ``POINTS`` values, the largest of each run, and how many one stands for."""
    return tile_maximum(errors[None, :], POINTS)[0].numpy(), math.ceil(len(errors) / POINTS)


def _difference(fig: _Plan, maps: Sequence[ErrorMap], shape: tuple[int, int]) -> None:
    """A - B: the ratio of the largest errors, logarithmic, in A's colour where A errs more."""
    first, second = (each.error.double() for each in maps)
    ratio = (first / second).log2().nan_to_num(0.0, math.inf, -math.inf)
    finite = ratio[ratio.isfinite()].abs()
    largest = float(finite.quantile(0.99)) if len(finite) else 1.0
    reach = min(max(largest, 1.0), math.log2(MOST_TIMES))
    codes = (EQUAL + EQUAL * (ratio / reach).clamp(-1, 1)).round()
    both = [i for i, trace in enumerate(fig.data) if trace["type"] == "heatmap"]
    meta = {"difference": both, "unit": ""}
    _heatmap(fig, 2, shape, codes.numpy().astype(np.uint8), "coloraxis2", meta=meta)
    ends = 2**reach
    fig.lay(
        {
            "coloraxis2": {
                "cmin": 0,
                "cmax": 2 * EQUAL,
                "colorscale": [[0, B], [0.5, GRID], [1, A]],
                "colorbar": {
                    **_bar("larger error"),
                    "tickvals": [0, EQUAL / 2, EQUAL, 1.5 * EQUAL, 2 * EQUAL],
                    "ticktext": [
                        f"B {ends:.3g}×",
                        f"B {ends**0.5:.2g}×",
                        "equal",
                        f"A {ends**0.5:.2g}×",
                        f"A {ends:.3g}×",
                    ],
                },
            }
        }
    )


def _bar(title: str) -> dict[str, object]:
    return {
        "title": {"text": title, "side": "right", "font": {"size": 12}},
        "thickness": 12,
        "outlinewidth": 0,
        "tickfont": {"size": 11},
        "yanchor": "bottom",
        "xanchor": "left",
    }


def _scaled(fig: _Plan, maps: Sequence[ErrorMap], shape: tuple[int, int]) -> list[Switch]:
    """Add the maps in scales of the blocks, hidden; returns the options of the switch to them, none if a side
    has no scales."""
    scaled = [each.in_scales for each in maps if each.in_scales is not None]
    if len(scaled) < len(maps):
        return []
    scale = ColourScale.of(scaled, False)
    if scale.high > 8 * float(torch.cat([each.reshape(-1) for each in scaled]).quantile(0.99)):
        scale = _scale(scaled)
    first = [i for i, trace in enumerate(fig.data) if trace.get("coloraxis") == "coloraxis"]
    second = [*range(len(fig.data), len(fig.data) + len(scaled))]
    words = {**asdict(scale), "codes": STEPS, "first": scale.first * STEPS // CODES}
    for index, each in enumerate(scaled):
        codes = (scale.codes_of(each).astype(np.int64) * STEPS // CODES).astype(np.uint8)
        meta = {"like": first[index], "unit": "", "scale": words}
        _heatmap(fig, index, shape, codes, "coloraxis3", visible=False, meta=meta)
    _magnitudes(fig, "coloraxis3", scale, "|error| / scale", STEPS)
    both = [*first, *second]
    return [
        (mode, {"visible": [trace in shown for trace in both]}, both, {})
        for mode, shown in zip(MODES, (first, second), strict=True)
    ]


def _magnitudes(fig: _Plan, axis: str, scale: ColourScale, title: str, codes: int = CODES) -> None:
    """A colour axis of magnitudes, whose codes go up to ``codes``."""
    ticks, labels = scale.ticks
    fig.lay(
        {
            axis: {
                "cmin": 0,
                "cmax": codes,
                "colorscale": scale.colours,
                "colorbar": {
                    **_bar(title),
                    "tickvals": [tick * codes / CODES for tick in ticks],
                    "ticktext": labels,
                },
            }
        }
    )


def _marks(fig: _Plan, maps: Sequence[ErrorMap], picked: tuple[int, int], panels: int) -> None:
    """Both largest errors, and a circle with a white rim around what is inspected, on every map."""
    rim = {"width": 2, "color": "#ffffff"}
    for side, each in enumerate(maps):
        words = f"{'AB'[side]}'s largest error" if len(maps) > 1 else "largest error"
        symbol = ("diamond", "square")[side]
        for panel in range(panels):
            look = {"symbol": symbol, "size": 9, "color": COLORS[side], "line": rim}
            _mark(fig, panel, each.worst, look, words, showlegend=panel == 0, legendgroup=words)
    for panel in range(panels):
        for color, width in (("#ffffff", 5), ("#d92d20", 2.5)):
            look = {"symbol": "circle-open", "size": 16, "color": color, "line": {"width": width}}
            shown = panel == 0 and width < 5
            _mark(fig, panel, picked, look, "inspected", showlegend=shown, meta={"picked": True})


def _mark(
    fig: _Plan, panel: int, at: tuple[int, int], look: Mapping[str, object], name: str, **options: object
) -> None:
    x, y = _of_map(panel)
    fig.add(
        "scatter",
        x=[at[1]],
        y=[at[0]],
        xaxis=x,
        yaxis=y,
        mode="markers",
        hoverinfo="skip",
        marker=look,
        name=name,
        **options,
    )


def _titles(fig: _Plan, texts: list[str]) -> None:
    if len(texts) > 1:
        texts = [f"<b>{letter}</b>  {text}" for letter, text in zip("AB", texts, strict=True)]
        texts.append("<b>A − B</b>  which errs more")
    look = {"showarrow": False, "font": {"size": 12}, "xanchor": "left", "yanchor": "bottom"}
    titles = []
    for index, text in enumerate(texts):
        x, y = _of_map(index)
        place = {"x": 0, "xref": f"{x} domain", "y": 1, "yref": f"{y} domain", "yshift": STRIP + 2}
        titles.append({"text": text, **place, **look})
    fig.lay({"annotations": titles})


def _finished(
    fig: _Plan, name: str, shape: tuple[int, int], sides: int, switch: Sequence[Switch]
) -> go.Figure:
    """The figure, with its height, legend and switch, and how the page lays it out where it is narrow."""
    base = legend_below(figure("column", "row", name))
    if switch:
        add_switches(base, {"mode": switch})
    panels = sides + (sides > 1)
    margin = base.layout.margin
    around = margin.t + margin.b
    strips = [trace for trace in fig.data if "fill" in trace]
    top = max(float(np.max(trace["y" if trace["fill"] == "tozeroy" else "x"])) for trace in strips)
    ends = {"range": [0, 1.05 * top or 1.0]}
    fig.lay({f"{axis}axis{4 + index}": ends for index in range(sides) for axis in "xy"})
    for axis, place in _bars_at(panels, False).items():
        if axis in fig.layout:
            fig.layout[axis]["colorbar"] |= place
    meta = {**base.layout.meta, "brush": True, "narrow": _narrow(fig, panels, sides, around)}
    layout = {
        **base.layout.to_plotly_json(),
        **fig.layout,
        "height": _height(panels, False) + around,
        "uirevision": f"map {shape[0]} {shape[1]} {sides}",
        "meta": meta,
    }
    return go.Figure(fig.data, layout)


def _narrow(fig: _Plan, panels: int, sides: int, around: float) -> dict[str, object]:
    """The changes of the layout below ``NARROW`` pixels of width: the panels stand below one another."""
    changes: dict[str, object] = {"height": _height(panels, True) + around, "legend.font.size": 10}
    for index, at in enumerate(_places(panels, True)):
        across, down = _key("xaxis", index + 1), _key("yaxis", index + 1)
        changes |= {f"{across}.domain": at.x, f"{down}.domain": at.y, f"{down}.showticklabels": True}
        if index < sides:
            changes |= {f"yaxis{4 + index}.domain": at.above, f"xaxis{4 + index}.domain": at.right}
    for axis, place in _bars_at(panels, True).items():
        if axis in fig.layout:
            changes |= {f"{axis}.colorbar.{key}": value for key, value in place.items()}
    return {"below": NARROW, "changes": changes}


def _bars_at(panels: int, narrow: bool) -> dict[str, dict[str, float]]:
    """Where the colour bars lie: of the errors beside the last side's map, of the difference by its own."""
    places = _places(panels, narrow)
    of_errors = places[-2] if panels > 1 and not narrow else places[0]
    errors = {
        "x": (of_errors.right[1] if not narrow else 0.96) + 0.005,
        "y": of_errors.y[0],
        "len": of_errors.y[1] - of_errors.y[0],
    }
    found = {"coloraxis": errors, "coloraxis3": dict(errors)}
    if panels > 1:
        last = places[-1]
        right = last.x[1] + 0.008
        found["coloraxis2"] = {"x": right, "y": last.y[0], "len": last.y[1] - last.y[0]}
    return found
