"""Figures of measured matrix products: their times, kernels, time over tokens, roofline, and error."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import plotly.graph_objects as go

from explorer import words
from explorer.figures import style
from explorer.figures.labels import WIDTHS, Canvas, Segment, Spot, annotation, place, segments_of
from explorer.figures.products import (
    NOTHING,
    SCHEME_COLORS,
    Dot,
    Marked,
    add_dots,
    color_of,
    family_of,
    products_figure,
    row_axis,
    tagged,
)
from explorer.figures.style import MUTED, TEXT, add_line, add_points, log_axis, marker_look, note, wrapped
from explorer.products.advice import Point, fastest, usual_of
from explorer.recordings.gemm import GemmTiming
from explorer.recordings.machine import MachineLimits

TIME_TITLE = "time (µs), logarithmic"
SMALL_M = 64
"""Maximum number of tokens at which a product is memory-bound, so that its rate is given in bytes per
second."""
TOP, ROW_HEIGHT, SLOW, LEGEND_HEIGHT = 230, 29, 4, 240
"""Pixels of legend and axis, enough for a phone; pixels of a row; end of the axis in multiples of the usual
product's time, where slower ones are drawn with an arrow; most pixels of the legend."""
RUNG, RUNG_WIDTHS = 40, (170.0, 260.0, 480.0, 880.0, 1250.0)
"""Pixels of a row of kernels, and widths of their plot beside the kernels' names."""

SHOWN_FIRST = ("bf16", "fp8_e4m3_row", "int8", "w8a16", "w4a16_group128", "w2a16", "w_nvfp4", "w4a8_int")
SHOWN_ON_CPU = (
    "fp32", "bf16", "int8_dynamic", "w8_group32", "w4_group32", "w2_group128", "ternary_weights", "q4_k",
)  # fmt: skip
"""Curves over M that are drawn before a visitor asks for more, on a GPU and on a CPU."""
MORE, SWEEP_HEIGHT = "more", 560
SYMBOLS, DASHES = ("circle", "square", "diamond", "triangle-up", "x"), ("solid", "dash", "dot", "dashdot")
"""Symbols and dashes of curves. Their numbers have no common factor, so that 20 curves of a family differ."""

CORES_DRAWN = {"f32": "float32", "tf32": "TF32", "bf16": "BF16", "e4m3": "FP8", "s8": "INT8"}
CORES_DRAWN |= {"b1": "1 bit", "dp4a": "dp4a"}
"""Core types -> how their ceilings are labelled."""
ROOFLINE_HEIGHT, ALIKE = 490, 1.15
"""Height in pixels; difference of rates below which they are labelled together."""

TOO_SLOW, TRADEOFF_HEIGHT, TRADEOFF_FONT = 6, 480, 10
"""Products slower than this multiple of BF16's time are named next to the plot instead of stretching it."""
TRADEOFF_PLOTS = (300, 350, 400)
"""Pixels of the plot's height under a legend of many lines, of three and of one."""

Curve = list[tuple[int, GemmTiming]]
"""Points of a curve: M and the fastest timing there, by rising M."""


def speed_figure(timings: Sequence[GemmTiming], name: str, marked: Marked | None = None) -> go.Figure:
    """Draw the time of each product's fastest kernel, the fastest product first, on one logarithmic axis with
    torch's baseline and the chip's limit: further left is faster. ``marked``: products that take A's or B's
    weights."""
    best, marked = sorted(fastest(timings), key=lambda t: t.seconds), marked or {}
    if not best:
        return style.empty(NOTHING, f"{name} speed")
    height = TOP + ROW_HEIGHT * len(best)
    figure = products_figure(TIME_TITLE, "", f"{name} speed", height, LEGEND_HEIGHT)
    style.captioned(figure, "Time of each product's fastest kernel", name)
    low, high = _ends(best)
    gaps = [(1e6 * t.floor_s, 1e6 * t.seconds, t.label) for t in best if t.floor_s]
    x = [x for floor, time, _ in gaps for x in (max(floor, low), min(time, high), None)]
    y = [y for *_, label in gaps for y in (label, label, None)]
    add_line(figure, "", x, y, style.GRID, width=5, showlegend=False)
    floors = [(1e6 * t.floor_s, t.label, f"limit {words.duration(t.floor_s)}") for t in best if t.floor_s]
    _add_marks(figure, "limit of the chip, not measured", "line-ns", floors, (low, high))
    timed = [(t, t.baseline_graph.median_s) for t in best if t.baseline_graph]
    baselines = [(1e6 * s, t.label, f"{t.baseline}<br>{words.duration(s)}") for t, s in timed]
    _add_marks(figure, "torch", "x-thin", baselines, (low, high))
    inside = [t for t in best if 1e6 * t.seconds <= high]
    add_dots(figure, [_time_dot(t) for t in inside], marked)
    for t in best[len(inside) :]:
        text, at = f"{words.duration(t.seconds)} ▸", {"x": math.log10(high), "y": t.label, "xanchor": "right"}
        figure.add_annotation(note(text, 11, color_of(t.gemm), **at, hovertext=_time_dot(t).hover))
    row_axis(figure, {t.label: tagged(t.gemm, wrapped(t.label), marked) for t in best})
    return log_axis(figure, "x", low / 1.1, high * 1.1)


def _ends(best: Sequence[GemmTiming]) -> tuple[float, float]:
    """Return the axis' ends in µs: a little before the fastest product, and at most ``SLOW`` times the usual
    product's time."""
    usual = next((t.seconds for t in best if t.gemm == usual_of(best)[0]), best[-1].seconds)
    slowest = max(s for t in best for s in (t.seconds, t.baseline_graph.median_s if t.baseline_graph else 0))
    return 1e6 * best[0].seconds / 1.4, 1e6 * max(min(1.2 * slowest, SLOW * usual), 1.2 * best[0].seconds)


def _time_dot(t: GemmTiming) -> Dot:
    low, high = words.duration(t.graph.low_s), words.duration(t.graph.high_s)
    times = f"{words.duration(t.seconds)} (10th to 90th percentile {low} to {high})"
    ahead = f"<br>{words.times(t.speedup)} as fast as {t.baseline}" if t.speedup else ""
    if t.shape[0] <= SMALL_M:
        rate = f"{words.number(t.bytes_moved / t.seconds / 1e9)} GB/s of X, W and Y"
    else:
        rate = f"{words.number(t.tflops)} {'TOP/s' if t.gemm == 'binary' else 'TFLOP/s'}"
    hover = f"{t.label}<br>{times}<br>{rate}{ahead}<br>{words.kernel_name(t.variant)}, {t.on_chip}"
    return Dot(t.gemm, t.label, t.native, 1e6 * t.seconds, t.label, hover)


def _add_marks(
    figure: go.Figure,
    name: str,
    symbol: str,
    marks: Sequence[tuple[float, str, str]],
    ends: tuple[float, float],
) -> None:
    """Add marks (µs, row, hover text) of one kind; a mark beyond an end of the axis becomes a triangle
    there."""
    low, high = ends
    by_symbol = {
        symbol: [mark for mark in marks if low <= mark[0] <= high],
        "triangle-left": [mark for mark in marks if mark[0] < low],
        "triangle-right": [mark for mark in marks if mark[0] > high],
    }
    for shape, members in by_symbol.items():
        at = [min(max(time, low), high) for time, *_ in members], [row for _, row, _ in members]
        told = {"customdata": [[hover] for *_, hover in members], "cliponaxis": False}
        entry = {"legendgroup": name, "showlegend": shape == symbol}
        add_points(figure, name, *at, marker_look(MUTED, 9, shape, 2), "%{customdata[0]}", **told, **entry)


def ladder_figure(timings: Sequence[GemmTiming], name: str) -> go.Figure:
    """Draw one product's kernels, the slowest first, as points on a logarithmic axis of time, each
    with its time and the factor between it and the one above."""
    timings = sorted(timings, key=lambda t: -t.seconds)
    if not timings:
        return style.empty("its kernels were measured at another shape", f"{name} ladder")
    figure = products_figure(TIME_TITLE, "", f"{name} ladder", 110 + RUNG * len(timings))
    style.captioned(figure, f"Kernels of {timings[0].label}", name)
    times, kernels = [t.seconds * 1e6 for t in timings], [words.kernel_name(t.variant) for t in timings]
    factors = ["", *(f", {words.times(before / after)}" for before, after in itertools.pairwise(times))]
    texts = [words.duration(t.seconds) + factor for t, factor in zip(timings, factors, strict=True)]
    files = [t.file if t.on_cpu else f"kernels/{t.file}" for t in timings]
    told = [
        [x, f"{words.number(t.tflops)} TFLOP/s", f] for x, t, f in zip(texts, timings, files, strict=True)
    ]
    look = {
        "marker": {"color": color_of(timings[0].gemm), "size": 11},
        "customdata": told,
        "cliponaxis": False,
    }
    hover = "%{y}: %{customdata[0]}, %{customdata[1]}<br>%{customdata[2]}"
    add_line(figure, "kernels", times, kernels, style.GRID, hover, size=11, **look)
    ends = list(times)
    baselines = [t.baseline_graph.median_s for t in timings if t.baseline_graph]
    if baselines:
        ends.append(1e6 * baselines[-1])
        label = f"{timings[-1].baseline}: {words.duration(baselines[-1])}"
        add_line(figure, label, ends[-1:] * 2, [kernels[0], kernels[-1]], MUTED, label, dash="dot")
    row_axis(figure, {kernel: wrapped(kernel, 16) for kernel in kernels})
    figure.update_yaxes(range=[len(timings) - 0.5, -0.8])
    low, high = min(ends) / 2, max(ends) * 2
    across = [math.log(end / low) / math.log(high / low) for end in ends]
    down = [1 - (row + 0.8) / (len(timings) + 0.3) for row in range(len(timings))]
    spots = [Spot(x, y, 5.5, text, essential=True) for x, y, text in zip(across, down, texts, strict=False)]
    lines = segments_of(list(zip(across, down, strict=False)))
    lines += [(across[-1], 0.0, across[-1], 1.0)] if baselines else []
    labels = place(spots, Canvas.of(RUNG_WIDTHS, [RUNG * (len(timings) + 0.3)], 11), lines)
    for time, kernel, spot, named in zip(times, kernels, spots, labels, strict=True):
        if named:
            figure.add_annotation(annotation(spot, named, (math.log10(time), kernel), TEXT, 11))
    return log_axis(figure, "x", low, high)


def sweep_figure(timings: Sequence[GemmTiming], name: str, marked: Marked | None = None) -> go.Figure:
    """Draw time against the number of tokens at one N and K, from decode to prefill; a ring where another
    kernel takes over, × where torch's own product becomes faster. Curves of one family share its colour and
    differ by dash and symbol."""
    curves, marked = _curves(timings), marked or {}
    if not curves:
        return style.empty("no run over M here: choose one that was recorded", f"{name} over M")
    _, n, k = next(iter(curves.values()))[0][1].shape
    x_title = f"tokens (M), at N = {words.count(n)} and K = {words.count(k)}"
    figure = products_figure(x_title, "µs", f"{name} over M", SWEEP_HEIGHT)
    style.captioned(figure, "Time of products over the number of tokens", name)
    usual, named = usual_of(timings)
    of_torch = {m: t.baseline_graph.median_s for m, t in curves.get(usual, []) if t.baseline_graph}
    times = [1e6 * s for s in of_torch.values()]
    if of_torch:
        torch_name, told = named.replace("'s", ""), [[words.duration(s)] for s in of_torch.values()]
        hover, look = torch_name + "<br>M = %{x}: %{customdata[0]}", {"dash": "dot", "customdata": told}
        add_line(figure, torch_name, list(of_torch), times, MUTED, hover, width=3, **look)
    first = SHOWN_ON_CPU if any(t.on_cpu for t in timings) else SHOWN_FIRST
    shown = {gemm for gemm in curves if gemm in first or gemm in marked}
    for gemm, curve in curves.items():
        alike = [other for other in curves if family_of(other) == family_of(gemm)].index(gemm)
        _add_curve(figure, curve, alike, marked.get(gemm, ""), gemm in shown)
        slower = _first_slower(curve, of_torch) if gemm in shown else None
        if slower is not None:
            m, at = slower.shape[0], math.log10(slower.seconds * 1e6)
            why = f"{slower.label} is no longer faster than {named} from about M = {words.count(m)}"
            figure.add_annotation(note("×", 16, color_of(gemm), x=math.log10(m), y=at, hovertext=why))
    if len(curves) > len(shown):
        entry = {"legendgroup": MORE, "visible": "legendonly"}
        more = f"{len(curves) - len(shown)} more (click)"  # one entry of the legend for all of them
        add_line(figure, more, [None], [None], MUTED, width=1.6, **entry)
    tokens = [m for curve in curves.values() for m, _ in curve]
    times += [1e6 * t.seconds for curve in curves.values() for _, t in curve]
    log_axis(figure, "x", min(tokens) / 1.3, max(tokens) * 1.3, base=4)
    return log_axis(figure, "y", min(times) / 1.3, max(times) * 1.3)


def _curves(timings: Sequence[GemmTiming]) -> dict[str, Curve]:
    """Return the fastest timing at each M by product, of those timed at three and more."""
    by_gemm: dict[str, dict[int, GemmTiming]] = {}
    for timing in timings:
        at, m = by_gemm.setdefault(timing.gemm, {}), timing.shape[0]
        if m not in at or timing.seconds < at[m].seconds:
            at[m] = timing
    return {gemm: sorted(at.items()) for gemm, at in by_gemm.items() if len(at) > 2}


def _add_curve(figure: go.Figure, curve: Curve, place_in_family: int, scheme: str, shown: bool) -> None:
    """Add a product's curve in its family's colour, with dash and symbol by its place in the family; A's and
    B's are thick and in their own colour."""
    kernels = [words.kernel_name(t.variant) for _, t in curve]
    takes_over = [False, *(before != after for before, after in itertools.pairwise(kernels))]
    symbol = SYMBOLS[place_in_family % len(SYMBOLS)]
    marker = {
        "size": [10 if new else 5 for new in takes_over],
        "symbol": [f"{symbol}-open" if new else symbol for new in takes_over],
    }
    timing = curve[0][1]
    add_line(
        figure,
        f"{scheme} · {timing.label}" if scheme else timing.label,
        [m for m, _ in curve],
        [t.seconds * 1e6 for _, t in curve],
        SCHEME_COLORS[scheme] if scheme else color_of(timing.gemm),
        "%{fullData.name}<br>M = %{x}: %{customdata[0]}, %{customdata[1]}",
        width=3.5 if scheme else 1.6,
        dash=DASHES[place_in_family % len(DASHES)],
        size=5,
        marker=marker,
        customdata=[
            [words.duration(t.seconds), kernel] for (_, t), kernel in zip(curve, kernels, strict=True)
        ],
        visible=True if shown else "legendonly",
        showlegend=shown,
        legendgroup=None if shown else MORE,
    )


def _first_slower(curve: Curve, of_torch: dict[int, float]) -> GemmTiming | None:
    """Return the first point above torch's own product, of a curve that began below it."""
    below = False
    for m, timing in curve:
        if m in of_torch:
            if below and timing.seconds > of_torch[m]:
                return timing
            below = below or timing.seconds < of_torch[m]
    return None


def roofline_figure(
    timings: Sequence[GemmTiming], limits: MachineLimits | None, name: str, marked: Marked | None = None
) -> go.Figure:
    """Draw each product by operations a byte against operations a second, under the roofs of memory and of
    each core type. Slope and ceiling meet at the operations a byte at which memory and cores take equally
    long."""
    best = fastest(timings)
    if not best or limits is None:
        return style.empty("its roofs were not measured" if best else NOTHING, f"{name} roofline")
    figure = products_figure("operations per byte moved", "TFLOP/s", f"{name} roofline", ROOFLINE_HEIGHT)
    style.captioned(figure, "Roofline of the products", name)
    dots = [_rate_dot(t) for t in best]
    roofs = {core: limits.rates[core] for core in CORES_DRAWN if core in limits.rates}
    ridges = [rate / limits.copy for rate in roofs.values()]
    low, high = min([d.x for d in dots] + ridges) / 2, max([d.x for d in dots] + ridges) * 2
    rates = [float(d.y) for d in dots] + [rate / 1e12 for rate in roofs.values()]
    xs = [low, *(sorted(ridges) or [high])]
    memory = f"memory, {words.bytes_(limits.copy)}/s"
    add_line(figure, memory, xs, [x * limits.copy / 1e12 for x in xs], MUTED)
    for (core, rate), ridge in zip(roofs.items(), ridges, strict=True):
        label, look = CORES_DRAWN[core], {"dash": "dash", "showlegend": False}
        hover = f"{label}: {words.number(rate / 1e12)} TFLOP/s"
        add_line(figure, label, [ridge, high], [rate / 1e12] * 2, MUTED, hover, width=1.5, **look)
    _name_roofs(figure, roofs)
    add_dots(figure, dots, marked or {})
    log_axis(figure, "x", low, high)
    log_axis(figure, "y", min(rates) / 2, max(rates) * 1.6)
    return figure.update_layout(margin={"r": 44})


def _rate_dot(t: GemmTiming) -> Dot:
    share = f", {100 * t.share:.0f} % of its limit" if t.share else ""
    hover = f"{t.label}<br>{words.number(t.tflops)} TFLOP/s{share}<br>{words.kernel_name(t.variant)}"
    return Dot(t.gemm, t.label, t.native, t.operations / t.bytes_moved, t.tflops, hover)


def _name_roofs(figure: go.Figure, roofs: dict[str, float]) -> None:
    """Write each ceiling's name right of the plot; ceilings that lie together share a line."""
    groups: list[list[str]] = []
    for core in sorted(roofs, key=lambda core: roofs[core]):
        if groups and roofs[core] < ALIKE * roofs[groups[-1][-1]]:
            groups[-1].append(core)
        else:
            groups.append([core])
    for cores in groups:
        text, y = "<br>".join(CORES_DRAWN[core] for core in cores), math.log10(roofs[cores[-1]] / 1e12)
        at = {"x": 1.0, "y": y, "xref": "paper", "xanchor": "left", "yanchor": "middle"}
        figure.add_annotation(note(text, 10, **at))


def tradeoff_figure(points: Sequence[Point], name: str, marked: Marked | None = None) -> go.Figure:
    """Draw time against the output's error, a point a product sized by W's bytes; the dotted line joins the
    Pareto frontier. Products many times slower than BF16 are named below the legend."""
    title, marked = f"{name} error against speed", marked or {}
    if not points:
        return style.empty(NOTHING, title)
    usual = next((p.seconds for p in points if p.gemm == "bf16"), max(p.seconds for p in points))
    inside = [p for p in points if p.seconds <= TOO_SLOW * usual] or list(points)
    x_title, y_title = "time (µs), quantizing X included, logarithmic", "SQNR of the output (dB)"
    figure = products_figure(x_title, y_title, title, TRADEOFF_HEIGHT)
    style.captioned(figure, "Error of the output against time", name)
    times, errors = [1e6 * p.seconds for p in inside], [p.sqnr_db for p in inside]
    x_ends, y_ends = (min(times) / 1.25, max(times) * 1.25), (min(errors) - 6, max(errors) + 8)
    edge = sorted((p for p in inside if p.on_frontier), key=lambda p: p.seconds)
    at = [p.seconds * 1e6 for p in edge], [p.sqnr_db for p in edge]
    add_line(figure, "frontier", *at, MUTED, width=1.5, dash="dot", shape="hv")
    heaviest = max(p.weight_bytes for p in points)
    dots = [_error_dot(p, heaviest) for p in inside]
    add_dots(figure, dots, marked)
    taken: list[Segment] = []
    slow = [p for p in points if p not in inside]
    if slow:
        named = ", ".join(f"{p.label} {words.duration(p.seconds)} at {p.sqnr_db:.0f} dB" for p in slow[:2])
        more = f" and {len(slow) - 2} more" if len(slow) > 2 else ""
        corner = {"x": 0, "y": 1, "xref": "paper", "yref": "paper", "xanchor": "left", "yanchor": "top"}
        text = f"slower, not drawn:<br>{named}{more}"
        figure.add_annotation(note(text, TRADEOFF_FONT, **corner, align="left"))
        taken = [(0, 0.9, 0.8, 1)]
    _name_products(figure, inside, dots, x_ends, y_ends, marked, taken)
    log_axis(figure, "x", *x_ends)
    return figure.update_yaxes(range=list(y_ends))


def _error_dot(p: Point, heaviest: int) -> Dot:
    measured = f"{words.duration(p.seconds)}, {p.sqnr_db:.1f} dB"
    hover = f"{p.label} ({words.kernel_name(p.variant)})<br>{measured}<br>W {words.bytes_(p.weight_bytes)}"
    size = 6 + 14 * (p.weight_bytes / heaviest) ** 0.5
    return Dot(p.gemm, p.label, p.native, 1e6 * p.seconds, p.sqnr_db, hover, size, not p.on_frontier)


def _name_products(
    figure: go.Figure,
    points: Sequence[Point],
    dots: Sequence[Dot],
    x_ends: tuple[float, float],
    y_ends: tuple[float, float],
    marked: Marked,
    taken: Sequence[Segment],
) -> None:
    """Name A's and B's fastest product, and as space allows their others and the frontier's. Another product
    of A or B without room for its name gets its letter; all names are in the hover texts."""

    def turn(point: Point) -> tuple[int, bool]:
        """Order of names: A's and B's products in turns, the fastest of each first; then the frontier."""
        scheme = marked.get(point.gemm)
        if scheme is None:
            return len(points), not point.on_frontier
        rivals = [p for p in points if marked.get(p.gemm) == scheme and p.seconds < point.seconds]
        return len(rivals), scheme == "B"

    span, tall = math.log(x_ends[1] / x_ends[0]), y_ends[1] - y_ends[0]
    rows = sorted(zip(points, dots, strict=True), key=lambda row: turn(row[0]))
    spots = []
    for point, dot in rows:
        letter = marked.get(point.gemm, "")
        text = f"{letter} · {point.label}" if letter else point.label if point.on_frontier else ""
        at = math.log(dot.x / x_ends[0]) / span, (point.sqnr_db - y_ends[0]) / tall
        first = bool(letter) and turn(point)[0] == 0
        spot = Spot(
            *at, dot.size / 2 + (5 if letter else 0), text, short=letter, essential=first, faint=not text
        )
        spots.append(spot)
    at_edge = sorted((s.x, s.y) for s, (point, _) in zip(spots, rows, strict=True) if point.on_frontier)
    steps = [
        corner
        for (x0, y0), (x1, y1) in itertools.pairwise(at_edge)
        for corner in ((x0, y0), (x1, y0), (x1, y1))
    ]
    lines = [*segments_of(steps), *taken]
    labels = place(spots, Canvas.of(WIDTHS, TRADEOFF_PLOTS, TRADEOFF_FONT, 3), lines)
    for (point, dot), spot, label in zip(rows, spots, labels, strict=True):
        if label:
            color = SCHEME_COLORS.get(marked.get(point.gemm, ""), TEXT)
            at = math.log10(dot.x), point.sqnr_db
            figure.add_annotation(annotation(spot, label, at, color, TRADEOFF_FONT))
