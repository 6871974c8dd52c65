"""Maps of the errors of one or two schemes over the matrix, of their difference, and errors along the
edges."""

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
from explorer.analysis.tensor import Side
from explorer.analysis.tiles import tile_maximum
from explorer.figures.maps import CODES, ColourScale, cells, map_axes, map_meta
from explorer.figures.style import (
    EXTRA,
    GRID,
    RED,
    A,
    B,
    Dict,
    Switch,
    add_switches,
    axis_look,
    caption,
    captioned,
    colour_bar,
    figure,
    legend_below,
    marker_look,
    numbered,
    panel_title,
)

COLORS = (A, B)
LEAST_SHARE = 0.01
"""Share of the cells whose errors may lie below a logarithmic scale."""
SMALLEST = 1e-5
"""Least value that a logarithmic scale of errors shows, relative to the largest."""
STEPS = 255
"""Number of colours of maps without a hover text: one byte a cell."""
EQUAL = 127
"""Code of the difference for equal errors of both schemes, of 0 … 254."""
MOST_TIMES = 64.0
"""Ratio of two errors from which the difference's colour is the strongest."""
DECADES = 7
"""Number of powers of ten below the largest value that the signed 16-bit codes of hover texts span."""
POINTS = 512
"""Largest number of points of an edge; each is the largest RMS of its run of rows or columns."""
NARROW = 739
"""Pixels of width below which the panels stand below one another."""
MODES = ("logarithmic", "in scales of the block")
HEIGHT, STRIP, TITLE = 330, 34, 24
"""Pixels of a map, of the strip of the columns' errors above it, and of a panel's title."""

BAR = {"tickfont": {"size": 11}, "yanchor": "bottom", "xanchor": "left"}
ONE = ((0.0, 0.93, 0.98),)
THREE = ((0.0, 0.255, 0.288), (0.32, 0.575, 0.608), (0.725, 0.98, 0.985))
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
    """Traces and layout that become a figure in one step: plotly validates a layout anew at every update,
    which takes longer than everything else."""

    data: list[dict[str, Any]] = field(default_factory=list)
    layout: dict[str, Any] = field(default_factory=dict)

    def add(self, kind: str, **trace: object) -> None:
        """Add a trace."""
        self.data.append({"type": kind, **trace})

    def lay(self, changes: Mapping[str, Any]) -> None:
        """Merge entries into the layout, one level deep."""
        for key, value in changes.items():
            old = self.layout.get(key)
            self.layout[key] = {**old, **value} if isinstance(old, dict) else value


def error_map_figure(x: Tensor, sides: Sequence[Side], picked: tuple[int, int], name: str) -> go.Figure:
    """Draw |error| over the matrix ``x``: a map for each of one or two ``sides`` on one colour scale, and for
    two also the map of A - B.

    A cell shows its largest error; the strips along a map's edges show the root mean squared error of each
    column and row. ``picked`` (row, column) is circled, and each side's largest error marked on all maps. A
    switch shows errors in scales of their blocks, if all sides have scales. The page stacks the panels by
    ``meta["narrow"]``, writes the hover texts, and reports the part that was zoomed to.
    """
    maps = error_maps(x, [side.analysis for side in sides])
    shape = (x.shape[0], x.shape[1])
    fig, panels = _Plan(), len(sides) + (len(sides) > 1)
    scale, places = _scale([each.error for each in maps]), _places(panels, False)
    for index, each in enumerate(maps):
        _axes(fig, index, shape, places[index], edges=True)
        _side(fig, index, each, scale, shape)
        _edges(fig, index, each)
    _magnitudes(fig, "coloraxis", scale, "|error|")
    if len(sides) > 1:
        _axes(fig, 2, shape, places[2], edges=False)
        _difference(fig, maps, shape)
    switch = _scaled(fig, maps, shape)
    _marks(fig, maps, picked, panels)
    texts = [caption(side.label) for side in sides]
    if len(texts) > 1:
        texts = [f"<b>{letter}</b>  {text}" for letter, text in zip("AB", texts, strict=True)]
        texts.append("<b>A − B</b>  which errs more")
    fig.lay({"annotations": [panel_title(text, *_of_map(i), STRIP + 2) for i, text in enumerate(texts)]})
    return _finished(fig, name, shape, sides, switch)


def _scale(errors: Sequence[Tensor]) -> ColourScale:
    """Return a logarithmic scale up to the largest error, from the error that all but a few cells exceed."""
    largest = max((float(each.max()) for each in errors), default=0.0)
    positive = torch.cat([each[each > 0] for each in errors])
    least = float(positive.quantile(LEAST_SHARE)) if len(positive) else 0.0
    share = max(least / largest, SMALLEST) if largest > 0 else 0.0
    return ColourScale.of(errors, True, share)


def _places(panels: int, narrow: bool) -> list[_Place]:
    """Return where the panels lie, in parts of the plot."""
    total = _height(panels, narrow)
    if narrow:
        tops = [1 - (i * (HEIGHT * 0.7 + STRIP + TITLE + 44) + TITLE) / total for i in range(panels)]
        strip, tall = STRIP / total, HEIGHT * 0.7 / total
        return [
            _Place((0, 0.82), (top - strip - tall, top - strip), (top - strip * 0.85, top), (0.835, 0.95))
            for top in tops
        ]
    top, bottom = 1 - TITLE / total, 1 - (TITLE + STRIP) / total
    return [
        _Place((left, right), (0, bottom), (bottom + 4 / total, top), (right + 0.003, end))
        for left, right, end in (ONE if panels == 1 else THREE)
    ]


def _height(panels: int, narrow: bool) -> float:
    """Return the pixels of the plot without its margins."""
    return panels * (HEIGHT * 0.7 + STRIP + TITLE + 44) - 44 if narrow else HEIGHT + STRIP + TITLE


def _of_map(index: int) -> tuple[str, str]:
    """Return a map's two axes as traces name them."""
    return numbered("x", index), numbered("y", index)


def _axes(fig: _Plan, index: int, shape: tuple[int, int], place: _Place, *, edges: bool) -> None:
    """Add the axes of a map, which all zoom together, and of its strips."""
    x, y = map_axes(shape)
    left, bottom = _of_map(index)
    if index:
        x["matches"] = "x"
        y |= {"matches": "y", "showticklabels": False, "title": None}
    fig.layout[numbered("xaxis", index)] = {**axis_look("column"), **x, "domain": place.x, "anchor": bottom}
    fig.layout[numbered("yaxis", index)] = {**axis_look("row"), **y, "domain": place.y, "anchor": left}
    if edges:
        quiet = {"showgrid": False, "zeroline": False, "fixedrange": True, "nticks": 2, "rangemode": "tozero"}
        quiet |= {"tickfont": {"size": 9}, "ticks": "", "showticklabels": False}
        fig.layout[f"yaxis{4 + index}"] = {**quiet, "domain": place.above, "anchor": left}
        fig.layout[f"xaxis{4 + index}"] = {**quiet, "domain": place.right, "anchor": bottom}


def _heatmap(
    fig: _Plan, index: int, shape: tuple[int, int], z: np.ndarray, coloraxis: str, **options: object
) -> None:
    """Add a map of codes in panel ``index``; the page writes the hover text."""
    x, y = _of_map(index)
    place = {**cells(shape), "xaxis": x, "yaxis": y, "coloraxis": coloraxis}
    fig.add("heatmap", z=z, **place, hovertemplate="row %{y}, column %{x}" + EXTRA, **options)


def _side(fig: _Plan, index: int, each: ErrorMap, scale: ColourScale, shape: tuple[int, int]) -> None:
    """Add the map of one side's errors; its ``meta`` has the values for the page's hover text."""
    meta = map_meta("|error|", shape, scale)
    others = [restored for i, restored in enumerate(each.restored) if i != index]
    meta |= {
        "side": index,
        "values": signed_codes(torch.stack([each.value, *others])),
        "above": _typed(np.packbits((each.restored[index] > each.value).numpy().reshape(-1))),
    }
    place = None
    if meta["tall"] * meta["wide"] > 1:  # in the fewest bytes that plotly sends
        place = each.place.numpy().astype(np.min_scalar_type(int(each.place.max())))
    _heatmap(fig, index, shape, scale.codes_of(each.error), "coloraxis", customdata=place, meta=meta)


def signed_codes(values: Tensor) -> Dict:
    """Encode float values in 16 bits each: 0, or the sign and the place on ``DECADES`` powers of ten below
    the ``largest``, which together have 32,766 steps: a value is known to 0.03 %. Smaller values have the
    code 1."""
    finite = values.double().nan_to_num(0.0, 0.0, 0.0)
    largest = float(finite.abs().max()) if finite.numel() else 0.0
    if not largest:
        codes = torch.zeros_like(finite)
    else:
        places = 1 + 32766 * (1 + (finite.abs() / largest).clamp_min(1e-300).log10() / DECADES)
        codes = torch.where(finite == 0, 0.0, finite.sign() * places.round().clamp(1, 32767))
    return {"largest": largest, "decades": DECADES, **_typed(codes.numpy().astype(np.int16))}


def _typed(values: np.ndarray) -> dict[str, str]:
    """Return an array as plotly writes it, for ``meta``, which plotly would write as a list."""
    text = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {"dtype": values.dtype.str[1:], "bdata": text, "shape": ", ".join(map(str, values.shape))}


def _edges(fig: _Plan, index: int, each: ErrorMap) -> None:
    """Add the errors of the columns above a map, and of the rows at its right: at most ``POINTS``, each the
    largest of its run."""
    x, y = _of_map(index)
    look: Dict = {"mode": "lines", "showlegend": False, "line": {"width": 1, "color": COLORS[index]}}
    for errors, across, down, axes, hover in (
        (each.columns, "x", "y", (x, f"y{4 + index}"), "column %{x}: RMS error %{y:.3g}"),
        (each.rows, "y", "x", (f"x{4 + index}", y), "row %{y}: RMS error %{x:.3g}"),
    ):
        run = math.ceil(len(errors) / POINTS)
        largest = {down: tile_maximum(errors[None, :], POINTS)[0].numpy()}
        place = {f"{across}0": (run - 1) / 2, f"d{across}": run, "xaxis": axes[0], "yaxis": axes[1]}
        fig.add("scatter", **largest, **place, fill=f"tozero{down}", hovertemplate=hover + EXTRA, **look)


def _difference(fig: _Plan, maps: Sequence[ErrorMap], shape: tuple[int, int]) -> None:
    """Add A - B: the ratio of the largest errors, logarithmic, in A's colour if A's is larger."""
    first, second = (each.error.double() for each in maps)
    ratio = (first / second).log2().nan_to_num(0.0, math.inf, -math.inf)
    finite = ratio[ratio.isfinite()].abs()
    largest = float(finite.quantile(0.99)) if len(finite) else 1.0
    reach = min(max(largest, 1.0), math.log2(MOST_TIMES))
    codes = (EQUAL + EQUAL * (ratio / reach).clamp(-1, 1)).round()
    both = [i for i, trace in enumerate(fig.data) if trace["type"] == "heatmap"]
    meta = {"difference": both, "unit": ""}
    _heatmap(fig, 2, shape, codes.numpy().astype(np.uint8), "coloraxis2", meta=meta)
    most, half = 2**reach, 2 ** (reach / 2)
    ticks = [0, EQUAL / 2, EQUAL, 1.5 * EQUAL, 2 * EQUAL]
    labels = [f"B {most:.3g}×", f"B {half:.2g}×", "equal", f"A {half:.2g}×", f"A {most:.3g}×"]
    scale = {"cmin": 0, "cmax": 2 * EQUAL, "colorscale": [[0, B], [0.5, GRID], [1, A]]}
    fig.layout["coloraxis2"] = {**scale, "colorbar": {**colour_bar("larger error", ticks, labels), **BAR}}


def _scaled(fig: _Plan, maps: Sequence[ErrorMap], shape: tuple[int, int]) -> list[Switch]:
    """Add the maps in scales of the blocks, hidden; return the options of the switch to them, none if a side
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
    """Add a colour axis of magnitudes, whose codes go up to ``codes``."""
    ticks, labels = scale.ticks
    bar = {**colour_bar(title, [tick * codes / CODES for tick in ticks], labels), **BAR}
    fig.layout[axis] = {"cmin": 0, "cmax": codes, "colorscale": scale.colours, "colorbar": bar}


def _marks(fig: _Plan, maps: Sequence[ErrorMap], picked: tuple[int, int], panels: int) -> None:
    """Add both largest errors, and a circle with a white rim around the inspected element, on every map."""
    found: list[tuple[tuple[int, int], Dict, Dict]] = []
    for side, each in enumerate(maps):
        words = f"{'AB'[side]}'s largest error" if len(maps) > 1 else "largest error"
        look = marker_look(COLORS[side], 9, ("diamond", "square")[side], 2, "#ffffff")
        found.append((each.worst, look, {"name": words, "legendgroup": words, "showlegend": True}))
    for color, width in (("#ffffff", 5.0), (RED, 2.5)):
        look = {"symbol": "circle-open", "size": 16, "color": color, "line": {"width": width}}
        entry = {"name": "inspected", "meta": {"picked": True}, "showlegend": width < 5}
        found.append((picked, look, entry))
    for at, look, entry in found:
        for panel in range(panels):
            x, y = _of_map(panel)
            entry = {**entry, "showlegend": entry["showlegend"] and panel == 0}
            place = {"x": [at[1]], "y": [at[0]], "xaxis": x, "yaxis": y}
            fig.add("scatter", **place, mode="markers", hoverinfo="skip", marker=look, **entry)


def _finished(
    fig: _Plan, name: str, shape: tuple[int, int], sides: Sequence[Side], switch: Sequence[Switch]
) -> go.Figure:
    """Return the figure, with its height, legend and switch, and the changes for a narrow page."""
    base = legend_below(figure("column", "row", f"{name} error map"))
    labels = [side.label for side in sides]
    captioned(base, "Largest error in each cell of the matrix", name, labels, math.prod(shape))
    if switch:
        add_switches(base, {"mode": switch})
    count = len(sides)
    panels = count + (count > 1)
    margin = base.layout.margin
    around = margin.t + margin.b
    strips = [trace for trace in fig.data if "fill" in trace]
    top = max(float(np.max(trace[trace["fill"].removeprefix("tozero")])) for trace in strips)
    ends = {"range": [0, 1.05 * top or 1.0]}
    fig.lay({f"{axis}axis{4 + index}": ends for index in range(count) for axis in "xy"})
    for axis, place in _bars_at(panels, False).items():
        if axis in fig.layout:
            fig.layout[axis]["colorbar"] |= place
    meta = {**base.layout.meta, "brush": True, "narrow": _narrow(fig, panels, count, around)}
    layout = {
        **base.layout.to_plotly_json(),
        **fig.layout,
        "height": _height(panels, False) + around,
        "uirevision": f"map {shape[0]} {shape[1]} {count}",
        "meta": meta,
    }
    return go.Figure(fig.data, layout)


def _narrow(fig: _Plan, panels: int, sides: int, around: float) -> Dict:
    """Return the changes of the layout below ``NARROW`` pixels of width: panels below one another."""
    changes: Dict = {"height": _height(panels, True) + around, "legend.font.size": 10}
    for index, at in enumerate(_places(panels, True)):
        across, down = numbered("xaxis", index), numbered("yaxis", index)
        changes |= {f"{across}.domain": at.x, f"{down}.domain": at.y, f"{down}.showticklabels": True}
        if index < sides:
            changes |= {f"yaxis{4 + index}.domain": at.above, f"xaxis{4 + index}.domain": at.right}
    for axis, place in _bars_at(panels, True).items():
        if axis in fig.layout:
            changes |= {f"{axis}.colorbar.{key}": value for key, value in place.items()}
    return {"below": NARROW, "changes": changes}


def _bars_at(panels: int, narrow: bool) -> dict[str, dict[str, float]]:
    """Return the places of the colour bars: that of the errors beside the last side's map, that of the
    difference by its own map."""
    places = _places(panels, narrow)
    beside = places[-2] if panels > 1 and not narrow else places[0]
    errors = {"x": (0.96 if narrow else beside.right[1]) + 0.005, "y": beside.y[0]}
    errors["len"] = beside.y[1] - beside.y[0]
    found = {"coloraxis": errors, "coloraxis3": dict(errors)}
    if panels > 1:
        last = places[-1]
        found["coloraxis2"] = {"x": last.x[1] + 0.008, "y": last.y[0], "len": last.y[1] - last.y[0]}
    return found
