"""The place Speed: the tensor's shape, from decode to prefill, and error against speed; recorded on a named
machine or measured here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import plotly.graph_objects as go

from app import limits
from app.parts import html
from app.parts.controls import Switch, TextInput
from app.parts.section import SELECTION, Section, Shown
from app.sections.speed_live import KERNELS, TIMED, USUAL_TOKENS, measure, timed_here
from app.sections.speed_machines import (
    LIVE,
    NEAREST,
    OPENED,
    Place,
    machine_labels,
    open_recording,
    place_of,
    remove_recording,
    schemes_of,
    shape_groups,
    text_of,
)
from app.state.gpu_lock import gpu_lock
from app.state.memo import Memo
from app.state.query import Query
from app.state.record import shape_of
from app.state.selection import matrix_of, tensor_key
from app.state.visits import visit
from explorer import Scheme, words
from explorer.bench.cpu_gemm import DECODE_ON_CPU, PREFILL_ON_CPU
from explorer.core.backend import gpu_device
from explorer.cpu.products import product_of, products_for
from explorer.cpu.sentences import sentences
from explorer.figures.speed import SHOWN_FIRST, SHOWN_ON_CPU, speed_figure, sweep_figure, tradeoff_figure
from explorer.products.advice import (
    ENOUGH_DB,
    MARGIN_DB,
    MEASURED_TOKENS,
    advise,
    at_shape,
    fastest,
    output_errors,
    points,
    tokens_for,
    usual_of,
)
from explorer.products.gemms import GEMMS, Product
from explorer.products.machine_words import machine_words
from explorer.products.shape_times import product_for
from explorer.products.shapes import DECODE, SERVING, SQUARE
from explorer.recordings.gemm import GemmTiming, Shape
from explorer.recordings.times import TimeSpread
from explorer.reports.speed import nearest_words

MACHINE = TextInput(key="machine", label="Times", usual=NEAREST, most=100)
SHAPE = TextInput(
    key="shape",
    label="or another: M×N×K, or a number of tokens",
    hint="e.g. 64x8192x8192",
    about="X has M tokens and K inputs, W has N outputs and K inputs",
    most=40,
)
ALL = Switch(key="products", label="every product")
FOLLOWS = (*SELECTION, "machine", "shape")
GPU = gpu_device() is not None
_ERRORS = Memo[dict[str, float]](1 << 20)


# --- the tensor's shape -----------------------------------------------------------------------------------


def view(query: Query) -> Shown:
    """Show the times of products at one shape, by default one token of the tensor, A's and B's marked beside
    BF16's; and beside the recorded ones what was measured here."""
    place = place_of(query)
    title, bars = _bars(place, query)
    machines = [("", machine_labels())]
    return {
        "pickers": html.select("machine", "Times", machines, place.name, NEAREST)
        + html.select(
            "shape", "Tokens × outputs × inputs", shape_groups(place, query), query.get("shape", "")
        ),
        "said": html.sentence(_said(place, query)),
        "source": html.status(_source(place)),
        "opened": html.render("speed_opened") if place.name.startswith(OPENED) else "",
        "title": title,
        "speed-bars": bars,
        "can": html.note(timed_here(query, not GPU)[1]),
        **_beside(query, place.name),
    }


def _bars(place: Place, query: Query) -> tuple[str, go.Figure]:
    """The heading and the bars of A's, B's and the usual products, or of all."""
    marked, first = place.marked(query), SHOWN_ON_CPU if place.on_cpu else SHOWN_FIRST
    few = [one for one in place.timings if ALL.of(query) or one.gemm in first or one.gemm in marked]
    about = (
        "each product's fastest kernel, the fastest at the top; "
        f"{machine_words(place.timings).quantizing}. Grey: from the least that memory and arithmetic allow, "
        "which is computed"
    )
    whose = "Measured here: time" if place.name == LIVE else "Time"
    title = html.figure_title(f"{whose} on {place.title}", about)
    return title, speed_figure(few or place.timings, place.title, marked)


def _beside(query: Query, shown: str = "") -> Shown:
    """What was measured here at the shape, beside recorded times; empty where nothing was, or it is what is
    ``shown``."""
    here = place_of(query, LIVE)
    if shown == LIVE or not here.timings:
        return {"here-title": "", "speed-here": ""}
    title, bars = _bars(here, query)
    title += html.sentence(_said(here, query)) + html.render("speed_here")
    return {"here-title": title, "speed-here": bars}


def _source(place: Place) -> str:
    """Origin of the numbers, and whether they are of another shape than asked for."""
    if place.name == LIVE:
        if place.at:
            return f"Measured now on {place.recording.machine.chip or 'this machine'}."
        known = ", ".join(dict.fromkeys(timing.shape_text for timing in place.recording.rows))
        choose = f" choose {known}, or" if known else ""
        return f"{text_of(place.asked)} was not measured here yet:{choose} press Measure below."
    mine = next((one for one in visit().opened_recordings if one.name == place.name), None)
    near = nearest_words(place.at, place.asked) if place.at and place.at != place.asked else ""
    other = "At yours the order may differ." if near else ""
    told = [f"{place.recording.sentence}.", near, other]
    if mine:
        told = ["From a file that you opened; only you see it.", mine.left_out, *told]
    return " ".join(filter(None, told))


def _said(place: Place, query: Query) -> str:
    """The answer: times of A, B and BF16, and whether they can be ranked."""
    here = place.timings
    if not here:
        return ""
    best = {timing.gemm: timing for timing in fastest(here)}
    usual, usual_name = usual_of(here)
    base = best[usual].baseline_graph or best[usual].graph if usual in best else None
    said, leaders = list[str](), list[GemmTiming]()
    for side, scheme in schemes_of(query).items():
        rows = [best[name] for name in products_for(scheme, place.on_cpu) if name in best]
        if rows:
            leaders.append(min(rows, key=lambda row: row.total_seconds))
            said.append(f"{side} as {'; as '.join(_time_of(row, base, usual_name) for row in rows)}.")
        else:
            said.append(f"{side}, {html.short_name(scheme.label)}: {_reason(scheme, place.on_cpu)}.")
    if base:
        own = best[usual].seconds
        other = f" ({words.duration(own)} by the fastest kernel here)" if own < base.low_s else ""
        said.append(f"{usual_name[0].upper()}{usual_name[1:]}: {words.duration(base.median_s)}{other}.")
    if usual != "bf16" and "bf16" in best:
        said.append(f"BF16: {words.duration(best['bf16'].seconds)}.")
    if len({leader.gemm for leader in leaders}) == 2 and not _apart(*map(_spread, leaders)):
        said.append("A and B cannot be ranked: their spreads overlap.")
    return " ".join(said)


def _time_of(row: GemmTiming, base: TimeSpread | None, usual: str) -> str:
    x = row.total_seconds - row.seconds
    quantizing = f" and {words.duration(x)} to quantize X" if x else ""
    told = f"{row.label}: {words.duration(row.seconds)}{quantizing}"
    if base is None or row.gemm == usual_of([row])[0]:
        return told
    if not _apart(_spread(row), (base.low_s, base.high_s)):
        return f"{told}, as long as {usual} within the spread"
    return f"{told}, {words.times(base.median_s / row.total_seconds, 2)} as fast as {usual}"


def _spread(row: GemmTiming) -> tuple[float, float]:
    """10th and 90th percentile of a product's time, quantizing X included."""
    x = row.total_seconds - row.seconds
    return row.graph.low_s + x, row.graph.high_s + x


def _apart(one: tuple[float, float], other: tuple[float, float]) -> bool:
    """True if two times can be ranked: their 10th to 90th percentiles do not overlap."""
    return one[1] < other[0] or other[1] < one[0]


def _reason(scheme: Scheme, on_cpu: bool) -> str:
    """Why there is no time of a scheme."""
    if on_cpu:
        return "no kernel of these libraries multiplies weights stored like this, or it was not timed"
    name, reason = product_for(scheme)
    return f"{GEMMS[name].label} was not timed at this shape" if name else reason


# --- from decode to prefill -------------------------------------------------------------------------------


def tokens_view(query: Query) -> Shown:
    """Show time against the number of tokens at the shape's N and K, or at the nearest that were recorded;
    and what was measured here."""
    place = place_of(query)
    title, sweep = _curve(place, query)
    return {"title": title, "speed-sweep": sweep, **_curve_here(query, place.name)}


def _curve(place: Place, query: Query) -> tuple[str, go.Figure]:
    recording, rows = place.curve()
    figure = sweep_figure(rows, f"{place.title} tokens", place.marked(query))
    if not rows:
        return html.figure_title("Time by tokens", "not measured here yet: press the button"), figure
    _, n, k = rows[0].shape
    near = "" if (n, k) == place.asked[1:] else ", the nearest that were timed for several numbers of tokens"
    about = f"at N = {words.count(n)} and K = {words.count(k)}{near}; {machine_words(rows).overtakes}"
    when = ", ".join(filter(None, (recording.machine.chip or "this machine", recording.machine.date)))
    return html.figure_title(f"Time by tokens on {when}", about), figure


def _curve_here(query: Query, shown: str = "") -> Shown:
    here = place_of(query, LIVE)
    if shown == LIVE or not here.curve()[1]:
        return {"here-title": "", "speed-sweep-here": ""}
    title, figure = _curve(here, query)
    return {"here-title": title, "speed-sweep-here": figure}


# --- error against speed ------------------------------------------------------------------------------------


def errors_view(query: Query) -> Shown:
    """Show each product's time and the error of its output at the shape, on random data or, once it was
    computed, on the tensor; and which product to take there, in decode, in serving and in prefill."""
    place = place_of(query)
    here = place.timings
    errors = _ERRORS.peek(_errors_key(query, place))
    every = points(here, errors)
    whose = _whose(query) if errors else "random normal data"
    about = (
        "left is faster, quantizing X included; higher is more exact; larger circles have more bytes of W; "
        "rings: A and B"
    )
    title = f"Error on {whose} against time on {place.title}"
    return {
        "title": html.figure_title(title, about),
        "tradeoff": tradeoff_figure(every, f"{place.title} errors", place.marked(query)),
        "advice": _advice(place, every, whose) if here else "",
    }


def _advice(place: Place, every: Sequence[Any], whose: str) -> str:
    """The choice at the shape shown, and where they were timed those for decode, for serving (a batch that is
    decoded together) and for prefill, as a table."""
    timings, here = place.recording.rows, place.timings
    what = "this shape" if place.at == place.asked else "the nearest shape"
    rows = [advise(every, here, what, text_of(place.at or ()))]
    shapes: Mapping[str, Shape] = {"decode": DECODE, "serving": SERVING, "prefill": SQUARE}
    if place.on_cpu:
        shapes = {"decode": DECODE_ON_CPU, "prefill": PREFILL_ON_CPU}
    for name, usual in shapes.items():
        other = at_shape(timings, usual)
        if other and usual != place.at:
            rows.append(advise(points(other), other, name, other[0].shape_text))
    sides = [timing for timing in timings if timing.shape[1:] == here[0].shape[1:]]
    said = " ".join(sentences(sides, "this CPU" if place.name == LIVE else "that CPU"))
    return (html.status(said) if said else "") + html.advice(
        [row for row in rows if row],
        f"Take the fastest product whose output error is at most a tenth of the signal ({ENOUGH_DB:.0f} dB), "
        f"or misses that by less than {MARGIN_DB:.1f} dB. The error in the first row is that of {whose}.",
        usual_of(here)[1],
    )


def _errors_key(query: Query, place: Place) -> tuple[Any, ...]:
    names = tuple(dict.fromkeys(timing.gemm for timing in place.timings))
    return (*tensor_key(query.record), names, place.on_cpu)


def _whose(query: Query) -> str:
    """The part of the tensor that is taken as W, in words."""
    shape = shape_of(query.record)
    rows, _ = _measured(shape)
    return "this tensor" if rows == shape[0] else f"the first {rows:,} rows of this tensor"


def _measured(shape: tuple[int, ...]) -> tuple[int, int]:
    """Rows of a tensor [rows, cols] that are taken as W, and tokens: none of W, X and Y is large then."""
    most, (rows, columns) = limits.current().product_elements >> 4, shape
    tokens = max(1, min(MEASURED_TOKENS, most // columns))
    return max(1, min(rows, most // max(columns, tokens))), tokens


def _errors(query: Query) -> Iterator[Shown]:
    """Compute each product's error on the tensor as W, with seeded normal tokens as X."""
    place, values = place_of(query), matrix_of(query.record).values
    rows, tokens = _measured(values.shape)
    w = values[:rows].float()
    x = tokens_for(w.shape[1], tokens).to(w.device)
    names = dict.fromkeys(timing.gemm for timing in place.timings)
    gemms: list[Product] = [row for name in names if (row := product_of(name, place.on_cpu))]
    errors: dict[str, float] = {}
    for done, gemm in enumerate(gemms):
        yield {"status": html.status(f"{done} of {len(gemms)} products · now {gemm.label}")}
        with gpu_lock():
            errors |= output_errors(x, w, [gemm])
    if not errors:
        raise ValueError("none of these products can take this tensor: their blocks do not fit it")
    _ERRORS.keep(_errors_key(query, place), errors)
    yield {"status": "", **errors_view(query)}


SECTION = Section(
    name="speed",
    title="Your shape",
    follows=FOLLOWS,
    controls=(MACHINE, SHAPE, ALL, TIMED, KERNELS),
    view=view,
    runs={
        "measure": lambda query: measure(query, (), not GPU, lambda: _beside(query)),
        "measure-cpu": lambda query: measure(query, (), True, lambda: _beside(query)),
    },
    workers=1,
    acts={"open": open_recording, "remove": remove_recording},
    shares={"gpu": GPU},
)
TOKENS = Section(
    name="speed-tokens",
    title="Decode to prefill",
    follows=(*FOLLOWS, "timed", "kernels"),
    view=tokens_view,
    runs={"sweep": lambda query: measure(query, USUAL_TOKENS[not GPU], not GPU, lambda: _curve_here(query))},
    workers=1,
    shares={"gpu": GPU},
)
ERRORS = Section(
    name="speed-errors",
    title="Error against speed",
    follows=FOLLOWS,
    view=errors_view,
    runs={"errors": _errors},
)
