"""The Speed section: what a format buys in a matrix product, recorded on a named GPU or measured here."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.report_files import ReportView, build_report, report_steps
from app.parts.views import Control, Shown, View, listen, shows
from app.parts.widgets import (
    PRIVATE,
    QUIET,
    RunButtons,
    block,
    card,
    download_buttons,
    plot,
    plot_card,
    stop_button,
    table,
)
from app.sections.speed_live import Own, RunView, run, run_on_cpu
from app.sections.speed_machines import (
    LIVE,
    RECORDED,
    OpenedRecordings,
    OpenedView,
    choices,
    is_of_cpu,
    is_opened,
    machine_of,
    open_recording,
    opened_choices,
    remove_recording,
    shapes_of,
    why_two,
)
from app.sections.speed_table import COLUMNS, csv_row, facts_of, lines, source_of
from app.state.controls import DEFAULT_PRODUCT
from app.state.files import NONE_NOW, Downloads, downloads
from app.state.gpu_lock import gpu_lock
from app.state.memo import Memo
from app.state.selection import Selection, matrix_of, tensor_key
from app.theme import plot_data
from explorer import Scheme, words
from explorer.bench.cpu_gemm import DECODE_ON_CPU, PREFILL_ON_CPU
from explorer.core.backend import gpu_device
from explorer.cpu.products import CPU_PRODUCTS, FIRST, product_of, products_for
from explorer.cpu.sentences import sentences
from explorer.figures.speed import ladder_figure, roofline_figure, speed_figure, sweep_figure, tradeoff_figure
from explorer.products.advice import (
    ENOUGH_DB,
    MARGIN_DB,
    Point,
    advise,
    at_shape,
    fastest,
    nearest,
    output_errors,
    points,
    swept,
    tokens_for,
    usual_of,
)
from explorer.products.gemms import GEMMS
from explorer.products.grouped import GROUPED_HEADERS, LAYOUTS, grouped_rows
from explorer.products.machine_words import ON_CPU, ON_GPU
from explorer.products.shape_times import product_for
from explorer.products.shapes import DECODE, LAYERS, SERVING, SQUARE
from explorer.recordings.files import Recording, RecordingError, recording_json
from explorer.recordings.gemm import GemmTiming, Shape, recorded_gemms
from explorer.recordings.grouped import GroupedTiming, recorded_grouped
from explorer.recordings.machine import Machine
from explorer.reports import speed_report
from explorer.reports.speed import nearest_words

RANDOM, LAYER = "random", "layer"
OF_LAYER = {"layer-decode": 1, "layer-prefill": 4096}
"""Entries of the shape picker that stand for N and K of the chosen layer -> M."""
USUAL = ("bf16", "fp8_e4m3_row", "fp8_blockwise", "int8", "w8a16", "w4a16_group128", "w_nvfp4", "w4a8_int",
         "binary")  # fmt: skip
LAYER_NAMES = ("query, key, value", "attention output", "gate, up", "down")
"""Of the pairs in ``LAYERS``."""
PRESETS = {"Square 4096": SQUARE, "Decode, 8192 × 8192": DECODE} | {
    f"{model}, {layer}: {n} × {k}": (4096, n, k)
    for model, blocks in LAYERS.items()
    for layer, (n, k) in zip(LAYER_NAMES, blocks, strict=True)
}
CPU_WORDS = (
    "What do low bits buy on the CPU that runs this page? Products by torch, ONNX Runtime and llama.cpp are "
    "measured in turns with float32: a first answer within seconds, the rest in minutes."
)
ERRORS_WORDS = "SQNR: the output against the float64 product of unquantized X and W."
RECORDING_WORDS = (
    "<code>explorer bench gemm --record-to mine.json</code> measures any GPU or CPU and writes the file; "
    "<i>Download JSON</i> below writes what is shown. Its machine is then one more choice above, for you "
    "alone."
)
_ERRORS = Memo[dict[str, float]](1 << 20)


@dataclass(frozen=True)
class MachineTextsView(View):
    """What is said of the numbers of the machine shown: headings of three figures, and how it was timed."""

    bars: Shown
    sweep: Shown
    roofline: Shown
    method: Shown


@dataclass(frozen=True)
class SpeedView(View):
    """The section at one shape: where the numbers are from, pickers, five figures, advice, table and files;
    ``marks`` is what the figures of A and B depend on (``_marks``), ``texts`` depend on the machine."""

    source: Shown
    shape: Shown
    product: Shown
    tradeoff: Shown
    bars: Shown
    sweep: Shown
    roofline: Shown
    ladder: Shown
    sentence: Shown
    table: Shown
    csv_file: Shown
    json_file: Shown
    marks: Shown
    texts: MachineTextsView


@dataclass(frozen=True)
class ShapeView(View):
    """The shape of the product to be timed."""

    m: Shown
    n: Shown
    k: Shown


@shows(SpeedView)
def show(
    chosen: Selection,
    view: str,
    shape_text: str | None,
    product: str | None,
    errors_of: str,
    own: Own | None,
    opened: OpenedRecordings = (),
) -> SpeedView:
    """Every figure of one shape. After the selection come the view ("recorded", "live"), the shape as text,
    the product whose kernels are shown one by one, whose error is plotted ("random", "layer"), and the
    visitor's own run.

    Returns where the numbers are from, shapes, products, five figures, the advice, table, CSV and JSON.
    """
    recording = machine_of(view, own, opened)
    place = _place(chosen, recording.rows, shape_text, view)
    here = _timings_at(recording, place)
    names = list(dict.fromkeys(timing.gemm for timing in here))
    product = _product(product, names)
    errors = _layer_errors(chosen, tuple(names), _on_cpu(here)) if errors_of == LAYER and names else None
    every, marked = points(here, errors), _marked(chosen, _on_cpu(here))
    name = f"{recording.machine.chip or 'here'} {place.text}"
    files = _files(f"gemm {name}", recording.machine, here)
    return SpeedView(
        source=_source_words(chosen, view, recording, place, here),
        shape=_shape_picker(place, view),
        product=_product_picker(names, product, _on_cpu(here)),
        **_marked_figures(recording, place, here, every, marked),
        marks=_marks(view, place, marked),
        ladder=plot_data(ladder_figure([t for t in here if t.gemm == product], f"{name} {product}")),
        sentence=_advice(recording.rows, place, here, every, errors is not None, view),
        table=lines(here, recording.rows, view != LIVE),
        csv_file=files.csv,
        json_file=files.json,
        texts=_texts(is_of_cpu(view, own, opened)),
    )


@shows(SpeedView)
def follow(
    chosen: Selection,
    view: str,
    shape: str | None,
    product: str | None,
    errors_of: str,
    own: Own | None,
    opened: OpenedRecordings,
    marks: tuple[Any, ...] | None,
) -> SpeedView:
    """``show`` when the selection changes. What depends on neither scheme nor layer stays as it is, once it
    has been shown: of a shape by its numbers only the marks of A and B change, and only where they differ
    from ``marks``, those that are shown."""
    if marks is None or (view, shape) != marks[:2] or shape in OF_LAYER or errors_of == LAYER:
        return show(*dataclasses.astuple(chosen), view, shape, product, errors_of, own, opened)
    recording = machine_of(view, own, opened)
    place = _place(chosen, recording.rows, shape, view)
    here = _timings_at(recording, place)
    marked = _marked(chosen, _on_cpu(here))
    now = _marks(view, place, marked)
    figures = {} if now == marks else _marked_figures(recording, place, here, points(here), marked)
    return SpeedView.unchanged(
        source=_source_words(chosen, view, recording, place, here),
        shape=_shape_picker(place, view),
        marks=now,
        **figures,
    )


def _headings(of_cpu: bool) -> dict[str, tuple[str, str]]:
    """Titles of the figures whose words depend on the machine, and what to look for."""
    said = ON_CPU if of_cpu else ON_GPU
    best = "each product's fastest kernel, the fastest at the top: left is faster"
    return {
        "bars": ("Time", f"{best}; {said.quantizing}"),
        "sweep": ("From decode to prefill", f"time against the number of tokens; {said.overtakes}"),
        "roofline": ("Roofline", f"what bounds each product: {said.bounds}"),
    }


def _method(of_cpu: bool) -> str:
    said = ON_CPU if of_cpu else ON_GPU
    return html.note(f"{said.times} {said.limits} {ERRORS_WORDS}")


def _texts(of_cpu: bool) -> MachineTextsView:
    """The words for a CPU's numbers or a GPU's."""
    headings = {name: html.figure_title(*words) for name, words in _headings(of_cpu).items()}
    return MachineTextsView(**headings, method=_method(of_cpu))


def _product_picker(names: Sequence[str], product: str | None, on_cpu: bool) -> Any:
    """The products timed, with ``product`` chosen. Where there are none the choices stay: a browser goes on
    sending the value that it has, which would be refused as no choice."""
    if not names:
        return gr.update(value=None)
    choices = [(row.label, name) for name in names if (row := product_of(name, on_cpu))]
    return gr.update(choices=choices, value=product)


def _shape_picker(place: Place, view: str) -> Any:
    return gr.update(choices=place.choices, value=place.value, info=_shape_words(view))


def _shape_words(view: str) -> str:
    if view != LIVE:
        return "recorded shapes, or another as 64x8192x8192: the nearest recorded one is shown"
    return "shapes that were timed on this machine"


def _on_cpu(timings: Sequence[GemmTiming]) -> bool:
    return any(timing.on_cpu for timing in timings)


def _marks(view: str, place: Place, marked: Mapping[str, str]) -> tuple[Any, ...]:
    """What the marked figures show: whose numbers, of which shape, with which products marked."""
    return view, place.text, tuple(sorted(marked.items()))


def _marked_figures(
    recording: Own,
    place: Place,
    here: Sequence[GemmTiming],
    every: Sequence[Point],
    marked: Mapping[str, str],
) -> dict[str, str]:
    """The four figures in which the products of A and B are marked."""
    name, marks = f"{recording.machine.chip or 'here'} {place.text}", dict(marked)
    over_m = swept(recording.rows, place.at) if place.at else []
    return {
        "tradeoff": plot_data(tradeoff_figure(every, name, marks)),
        "bars": plot_data(speed_figure(here, name, marks)),
        "sweep": plot_data(sweep_figure(over_m, name, marks)),
        "roofline": plot_data(roofline_figure(here, recording.limits, name, marks)),
    }


@dataclass(frozen=True)
class Place:
    """The shape asked for. ``value`` is the picker's; ``at`` the recorded shape that is shown for it: that
    shape or the nearest; None where nothing is."""

    shape: Shape | None
    value: str | None
    choices: list[tuple[str, str]]
    at: Shape | None

    @property
    def text(self) -> str:
        return "×".join(map(str, self.at or self.shape or ()))


def _place(chosen: Selection, timings: Sequence[GemmTiming], asked: str | None, view: str) -> Place:
    """The shape asked for: a recorded one, the layer's own, or any other M×N×K; else the first recorded.
    ``ValueError`` for a text that is no shape."""
    shapes, layer = shapes_of(timings), _sides(chosen)
    choices = [(_named(shape), text) for text, shape in shapes.items()]
    if layer is not None:
        choices += [(_layer_label(m, layer), value) for value, m in OF_LAYER.items()]
    if asked in OF_LAYER:
        asked_shape, value = ((OF_LAYER[asked], *layer), asked) if layer is not None else (None, None)
    else:
        asked_shape = shape_in(asked) if asked else None
        value = "×".join(map(str, asked_shape)) if asked_shape else None
    if asked_shape is None:
        value = next(iter(shapes), None)
        asked_shape = shapes[value] if value else None
    elif value not in shapes and value not in OF_LAYER:
        choices.append((_named(asked_shape), str(value)))
    near = nearest(shapes.values(), asked_shape) if asked_shape else None
    return Place(asked_shape, value, choices, near if view != LIVE or near == asked_shape else None)


def shape_in(text: str) -> Shape:
    """(64, 8192, 8192) of "64x8192x8192", "64×8192×8192" or "64 * 8192 * 8192"; ``ValueError`` for others."""
    parts = re.split(r"\s*[x×*]\s*", text.strip().lower())
    numbers = tuple(int(part) for part in parts if re.fullmatch(r"[1-9]\d{0,8}", part))
    if len(parts) != 3 or len(numbers) != 3:
        raise ValueError(f"{text[:60]!r} is no shape: write M, N and K as in 64x8192x8192")
    return numbers[0], numbers[1], numbers[2]


def _named(shape: Shape) -> str:
    """A shape as text, with the layers of models that have its N and K."""
    text = "×".join(map(str, shape))
    owners = [
        f"{model} {layer}"
        for model, blocks in LAYERS.items()
        for layer, sides in zip(LAYER_NAMES, blocks, strict=True)
        if sides == shape[1:]
    ]
    return f"{text} · {'; '.join(owners)}" if owners else text


def _timings_at(recording: Own, place: Place) -> Sequence[GemmTiming]:
    return at_shape(recording.rows, place.at) if place.at else []


def _sides(chosen: Selection) -> tuple[int, int] | None:
    """N and K of the chosen layer; None where none is chosen, or it cannot be read."""
    try:
        n, k = matrix_of(chosen).values.shape
    except (ValueError, OSError):
        return None
    return int(n), int(k)


def _layer_label(m: int, layer: tuple[int, int]) -> str:
    return f"this layer, {'decode' if m == 1 else 'prefill'}: {_times((m, *layer))}"


def _times(shape: Shape | None) -> str:
    return " × ".join(map(words.count, shape)) if shape else ""


def _schemes(chosen: Selection) -> dict[str, Scheme]:
    """A and, where there is one, B."""
    return {letter: recipe.scheme for letter, recipe in zip("AB", chosen.recipes, strict=False)}


def _marked(chosen: Selection, on_cpu: bool = False) -> dict[str, str]:
    """Products that take the weights of A or of B -> "A" or "B"; A where both are stored alike."""
    schemes = _schemes(chosen)
    return {name: letter for letter in reversed(schemes) for name in products_for(schemes[letter], on_cpu)}


def _schemes_words(chosen: Selection, here: Sequence[GemmTiming]) -> str:
    """The products of A and B among those timed at the shape shown, in words; else the reason."""
    sentences, best = [], {timing.gemm: timing for timing in fastest(here)}
    for letter, scheme in _schemes(chosen).items():
        names = [name for name in products_for(scheme, _on_cpu(here)) if name in best]
        label = scheme.label or str(scheme)
        if names:
            times = ", ".join(f"{best[name].label} in {words.duration(best[name].seconds)}" for name in names)
            sentences.append(f"{letter}, {label}: {times}.")
        else:
            sentences.append(f"{letter}, {label}: {_reason(scheme, here)}.")
    return " ".join(sentences) if here else ""


def _reason(scheme: Scheme, here: Sequence[GemmTiming]) -> str:
    """Why there is no time of a scheme."""
    if _on_cpu(here):
        return "no kernel of these libraries multiplies weights stored like this, or it was not timed"
    name, reason = product_for(scheme)
    return f"{GEMMS[name].label} was not timed at this shape" if name else reason


def _product(wanted: str | None, names: Sequence[str]) -> str | None:
    """The product asked for if it is there, else BF16, else the first."""
    return next((name for name in (wanted, "bf16", *names) if name in names), None)


def _source_words(
    chosen: Selection, view: str, recording: Own, place: Place, here: Sequence[GemmTiming]
) -> str:
    """Source of the numbers, whether they are of another shape than asked for, and the products of A and
    B."""
    every = (
        _source(view, recording, place),
        nearest_words(place.at, place.shape) if place.at and place.shape and place.at != place.shape else "",
        why_two(view) if here else "",
        _schemes_words(chosen, here),
    )
    return html.status(" ".join(filter(None, every)))


def _source(view: str, recording: Own, place: Place) -> str:
    if view != LIVE:
        return f"{'From a file that you opened. ' if is_opened(view) else ''}{recording.sentence}."
    if not recording:
        return "Nothing measured here yet: Measure this CPU, or choose a shape and products below, then Run."
    if place.at is None:
        known = ", ".join(dict.fromkeys(timing.shape_text for timing in recording.rows))
        return f"{place.text} was not measured here: choose {known}, or Run it below."
    return f"Measured now on {recording.machine.chip or 'this machine'}."


def _advice(
    timings: Sequence[GemmTiming],
    place: Place,
    here: Sequence[GemmTiming],
    every: Sequence[Point],
    of_layer: bool,
    view: str,
) -> str:
    """The choice at the shape shown, and where they were measured those for decode, for serving (a batch that
    is decoded together) and for prefill, as a table."""
    if not here:
        return ""
    whose = "the chosen layer" if of_layer else "random normal data"
    what = "this shape" if place.at == place.shape else "the nearest shape"
    rows = [advise(every, here, what, place.text)]
    shapes = {"decode": DECODE, "serving": SERVING, "prefill": SQUARE}
    if _on_cpu(here):
        shapes = {"decode": DECODE_ON_CPU, "prefill": PREFILL_ON_CPU}
    for what, usual in shapes.items():
        other = at_shape(timings, usual)
        if other and usual != place.at:
            rows.append(advise(points(other), other, what, other[0].shape_text))
    sides = [timing for timing in timings if timing.shape[1:] == here[0].shape[1:]]
    said = " ".join(sentences(sides, "that CPU" if view != LIVE else "this CPU"))
    return (html.status(said) if said else "") + html.advice(
        [row for row in rows if row],
        f"Take the fastest product whose output error is at most a tenth of the signal ({ENOUGH_DB:.0f} dB), "
        f"or misses that by less than {MARGIN_DB:.1f} dB. Times include quantizing X. The error in the first "
        f"row is on {whose}.",
        usual_of(here)[1],
    )


def _files(name: str, machine: Machine, here: Sequence[GemmTiming]) -> Downloads:
    if not here:
        return NONE_NOW
    return downloads(name, [csv_row(timing) for timing in here], recording_json(machine, here))


def _layer_errors(chosen: Selection, names: tuple[str, ...], on_cpu: bool = False) -> dict[str, float]:
    """SQNR of each product's output on the chosen matrix as W, with seeded normal tokens, computed
    here."""
    matrix = matrix_of(chosen)
    most = limits.current().product_elements >> 4
    rows = max(1, min(matrix.values.shape[0], most // max(matrix.values.shape[1], 1)))

    def compute() -> dict[str, float]:
        w = matrix.values[:rows].float()
        gemms = [row for name in names if (row := product_of(name, on_cpu))]
        with gpu_lock():
            return output_errors(tokens_for(w.shape[1]).to(w.device), w, gemms)

    return _ERRORS.get((*tensor_key(chosen), rows, names, on_cpu), compute, lambda _: 1 << 12)


@shows(ShapeView)
def from_layer(chosen: Selection, tokens: float | None) -> ShapeView:
    """M, N, K of the chosen matrix as W with the given number of tokens."""
    n, k = matrix_of(chosen).values.shape
    return ShapeView(m=int(tokens or 1), n=int(n), k=int(k))


@shows(ShapeView)
def of_model(name: str) -> ShapeView:
    """M, N, K of a known model's layer by its name among ``PRESETS``, or of a text such as 64x8192x8192."""
    return ShapeView(*(PRESETS[name] if name in PRESETS else shape_in(name or "")))


@shows(ReportView)
def report(
    chosen: Selection,
    view: str,
    shape: str | None,
    own: Own | None,
    opened: OpenedRecordings,
    kinds: list[str],
) -> Iterator[ReportView]:
    """The products at the shape that is shown as a report, A and B marked; ``kinds``: of
    ``report_files.KINDS``."""
    recording = machine_of(view, own, opened)
    if view == LIVE and not recording:
        raise ValueError("nothing is measured here yet: Run first, or take the recorded numbers")
    place = _place(chosen, recording.rows, shape, view)
    timed, at = (None, place.shape) if view == RECORDED else (recording, place.at or place.shape)
    yield from report_steps(lambda progress: speed_report(timed, at, chosen.recipes), kinds)


def _grouped_recording() -> Recording[GroupedTiming]:
    """What ships; a damaged recording is reported when the docs are written, and empty here."""
    try:
        return recorded_grouped()
    except RecordingError:
        return Recording(Machine(), ())


def _grouped_words() -> str:
    """What the table of grouped products shows, and where its numbers are from."""
    layouts = "; ".join(f"<i>{name}</i>: {what}" for name, what in LAYOUTS.items())
    return (
        f"{_grouped_recording().sentence}. Each row of X is multiplied by the W of its expert (N = K = "
        f"4096), all in one launch. {layouts}. <i>× one dense product</i>: against as many rows with one "
        "W. The limit is not measured: bytes over bandwidth or operations over peak. Measure here: "
        "<code>explorer bench grouped</code>."
    )


def _after_run(m: float, n: float, k: float, own: Own | None) -> tuple[Any, Any]:
    """The view and the shape once a run has ended: its own, if it timed anything there."""
    shape = (int(m or 0), int(n or 0), int(k or 0))
    if not own or all(timing.shape != shape for timing in own.rows):
        return gr.skip(), gr.skip()
    text = "×".join(map(str, shape))
    return LIVE, gr.update(choices=[text], value=text)


def _after_cpu(own: Own | None) -> tuple[Any, Any]:
    """The view and the shape once this CPU was measured: one token, if it was timed."""
    if not own or not _on_cpu(own.rows):
        return gr.skip(), gr.skip()
    return LIVE, gr.update(choices=[own.rows[0].shape_text], value=own.rows[0].shape_text)


def _after_stop(m: float, n: float, k: float, own: Own | None) -> tuple[Any, Any]:
    """The same after Stop, whichever of the two ran."""
    shown = _after_run(m, n, k, own)
    return _after_cpu(own) if shown[0] != LIVE else shown


@dataclass(frozen=True)
class _Pickers:
    """Whose numbers are shown, of which shape, and with which error."""

    view: gr.Radio
    shape: gr.Dropdown
    errors_of: gr.Radio


@dataclass(frozen=True)
class _OwnRun:
    """What the visitor measures: a shape, products, and the buttons of the run."""

    preset: gr.Dropdown
    sizes: ShapeView
    of_layer: gr.Button
    names: gr.Dropdown
    every: gr.Checkbox
    start: gr.Button
    cpu: gr.Button
    stop: gr.Button
    status: gr.HTML
    stopped: gr.HTML


@dataclass(frozen=True)
class _Kernels:
    """One product kernel by kernel: which, what is known of it, its source."""

    product: gr.Dropdown
    facts: gr.HTML
    ladder: Control
    code: gr.Code


def build(page: Page) -> None:
    """Lay the section out and wire it to the selection."""
    own, opened = page.gemm_timings, page.opened_recordings
    pickers = _build_pickers()
    source = block(elem_id="speed-source")
    with gr.Row():
        cpu = gr.Button("Measure this CPU", min_width=160, scale=0, elem_id="speed-cpu")
        stop = stop_button()
    status = block(html.status(CPU_WORDS), elem_id="speed-status")
    stopped = block(elem_id="speed-stopped")
    mine = _build_run(cpu, stop, status, stopped)
    opening = _build_opening(pickers, opened)
    sentence = block(elem_id="speed-advice")
    figures, texts = _build_figures()
    kernels = _build_kernels()
    rows = table(COLUMNS, "speed-table", pinned_columns=1, max_height=520, buttons=["copy"])
    csv_file, json_file = download_buttons()
    reported_of = [*page.selection, pickers.view, pickers.shape, own, opened]
    build_report(report, reported_of, "report_speed", "Report of this shape")
    method = block(_method(False))
    _build_grouped()
    outputs = SpeedView(
        source=source,
        shape=pickers.shape,
        product=kernels.product,
        **figures,
        ladder=kernels.ladder,
        sentence=sentence,
        table=rows,
        csv_file=csv_file,
        json_file=json_file,
        marks=gr.State(None),
        texts=MachineTextsView(**texts, method=method),
    )
    extra = [pickers.view, pickers.shape, kernels.product, pickers.errors_of, own, opened]
    show_all = _ShowAll(page, [*page.selection, *extra], outputs)
    _wire_view(page, pickers, extra, show_all, mine.sizes)
    _wire_kernels(kernels, [pickers.view, own, opened], pickers.view)
    _wire_run(page, mine, pickers, show_all)
    _wire_opening(page, opening, pickers, show_all)


def _build_pickers() -> _Pickers:
    with gr.Row():
        view = gr.Radio(
            choices(),
            value=RECORDED,
            label="Numbers",
            scale=2,
            elem_id="speed-view",
        )
        shape = gr.Dropdown(
            [(_named(shape), text) for text, shape in shapes_of(recorded_gemms().rows).items()],
            value=None,
            allow_custom_value=True,
            info=_shape_words(RECORDED),
            label="Shape M×N×K (X [M, K] · W [N, K]ᵀ)",
            min_width=260,
            scale=2,
            elem_id="speed-shape",
        )
        errors_of = gr.Radio(
            [("random data, as timed", RANDOM), ("the chosen layer", LAYER)],
            value=RANDOM,
            label="Error of",
            scale=1,
            elem_id="speed-errors",
        )
    return _Pickers(view, shape, errors_of)


def _build_opening(pickers: _Pickers, opened: gr.State) -> OpenedView:
    with gr.Accordion("Open a recording of another machine", open=False, elem_id="speed-open"):
        block(html.note(RECORDING_WORDS))
        status = block(elem_id="speed-opened")
        # Files of every kind: Gradio's own refusal of one would stay beside what follows it.
        file = gr.File(
            label="A recording (.json)", height=150, elem_id="speed-recording", elem_classes="upload"
        )
        with gr.Row():
            listed = gr.Dropdown(
                opened_choices(()),
                value=None,
                label="Recordings that are open",
                min_width=260,
                visible=False,
                elem_id="speed-listed",
            )
            remove = gr.Button("Remove", min_width=120, scale=0, visible=False, elem_id="speed-remove")
    return OpenedView(
        status=status,
        opened=opened,
        view=pickers.view,
        shape=pickers.shape,
        listed=listed,
        remove=remove,
        file=file,
    )


def _build_run(cpu: gr.Button, stop: gr.Button, status: gr.HTML, stopped: gr.HTML) -> _OwnRun:
    on_gpu = gpu_device() is not None
    with gr.Accordion("Measure on this machine", open=False, elem_id="speed-run"):
        with gr.Row():
            preset = gr.Dropdown(
                list(PRESETS),
                value=None,
                label="Shape of a known model, or 64x8192x8192",
                allow_custom_value=True,
                min_width=200,
                elem_id="speed-preset",
            )
            sizes = ShapeView(
                # No minimum: Gradio's refusal comes before our own, and leaves Run disabled.
                m=gr.Number(DEFAULT_PRODUCT[0], label="M (tokens)", precision=0, min_width=90),
                n=gr.Number(DEFAULT_PRODUCT[1], label="N", precision=0, min_width=90),
                k=gr.Number(DEFAULT_PRODUCT[2], label="K", precision=0, min_width=90),
            )
            of_layer = gr.Button("N and K of the layer", min_width=140)
        names = gr.Dropdown(
            [(row.label, row.name) for row in (GEMMS if on_gpu else CPU_PRODUCTS).values()],
            value=list(USUAL if on_gpu else FIRST),
            multiselect=True,
            label="Products",
        )
        with gr.Row():
            every = gr.Checkbox(
                False, label="every kernel, not only the fastest", min_width=200, visible=on_gpu
            )
            start = gr.Button("Run", variant="primary", min_width=120)
    return _OwnRun(preset, sizes, of_layer, names, every, start, cpu, stop, status, stopped)


def _build_figures() -> tuple[dict[str, Control], dict[str, Control]]:
    """The four figures in which A and B are marked (``_marked_figures``), and the headings that depend on the
    machine."""
    tradeoff = plot_card(
        "Error against speed",
        "one circle per product: left is faster, higher is more exact; larger circles have more bytes of W; "
        "rings: A and B",
        "tradeoff",
    )
    figures, headings = {"tradeoff": tradeoff}, dict[str, Control]()
    for name, words_of in _headings(False).items():
        with card(*words_of) as headings[name]:
            figures[name] = plot(f"speed-{name}")
    return figures, headings


def _build_kernels() -> _Kernels:
    with gr.Row():
        products = [(row.label, row.name) for row in GEMMS.values()]
        product = gr.Dropdown(products, value=None, label="Kernels of", elem_id="speed-product")
    facts = block()
    ladder = plot_card(
        "Kernel by kernel",
        "each kernel of the product, the fastest at the bottom, with the factor to the one above it",
        "speed-ladder",
    )
    with gr.Accordion("Source of these kernels", open=False):
        code = gr.Code(language="cpp", interactive=False, show_label=False, max_lines=40)
    return _Kernels(product, facts, ladder, code)


def _build_grouped() -> None:
    with gr.Accordion("Mixtures of experts: products in groups", open=False, elem_id="speed-grouped"):
        block(html.note(_grouped_words()))
        table(
            dict.fromkeys(GROUPED_HEADERS, "str"),
            "speed-grouped-table",
            value=grouped_rows(_grouped_recording().rows),
            pinned_columns=1,
            max_height=520,
            buttons=["copy"],
        )


_UNLISTED: dict[str, Any] = {**QUIET, "api_visibility": "undocumented"}


@dataclass(frozen=True)
class _ShowAll:
    """What every change of the pickers runs: ``show``."""

    page: Page
    inputs: list[Any]
    outputs: SpeedView

    def on(self, event: Any, **options: Any) -> Any:
        """Show the section after ``event``, and return the event that follows."""
        return listen(event, show, self.inputs, self.outputs, **options)

    def on_another(self, event: Any, **options: Any) -> None:
        """The same after the machine has changed, by a hand or with what it shows: the address keeps it, as
        part of the step before."""
        shown = self.on(event, **options)
        for key in ("machine", "shape"):
            self.page.keep(key, self.page.kept[key], shown.then, visit=False)


def _wire_view(page: Page, pickers: _Pickers, extra: list[Any], show_all: _ShowAll, sizes: ShapeView) -> None:
    """What is shown follows the selection and the pickers, and the address keeps it."""
    outputs = show_all.outputs
    page.follow(follow, [*extra, outputs.marks], outputs, api_name="speed")
    page.keep("machine", pickers.view, pickers.view.input)
    page.keep("shape", pickers.shape, pickers.shape.input)
    for key, size in vars(sizes).items():
        page.keep(key, size, size.change, visit=False)
    show_all.on(pickers.view.input, api_name="speed_view", **_UNLISTED)
    for control, what in (
        (pickers.shape, "shape"),
        (outputs.product, "product"),
        (pickers.errors_of, "errors"),
    ):
        show_all.on(control.input, api_name=f"speed_{what}", **_UNLISTED)


def _wire_opening(page: Page, view: OpenedView, pickers: _Pickers, show_all: _ShowAll) -> None:
    """A recording is shown once it is opened, and another machine once it is removed."""
    shown = listen(
        view.file.upload,
        open_recording,
        [view.file, pickers.shape, view.opened],
        view,
        api_name="open_recording",
        **_UNLISTED,
    )
    show_all.on_another(shown.then, **PRIVATE)
    removed = listen(
        view.remove.click,
        remove_recording,
        [view.listed, pickers.view, view.opened],
        view,
        api_name="remove_recording",
        **_UNLISTED,
    )
    show_all.on_another(removed.then, **PRIVATE)
    pickers.view.input(None, None, view.status, js="() => ''", **PRIVATE)  # it spoke of what was shown


def _wire_kernels(kernels: _Kernels, inputs: list[Any], view: gr.Radio) -> None:
    """Facts and sources are of the product, and of the machine: a CPU has products of the same names."""
    chosen = [kernels.product, *inputs]
    for event, name in ((kernels.product.change, "kernel_source"), (view.change, "kernel_source_of_machine")):
        unlisted = {} if name == "kernel_source" else {"api_visibility": "undocumented"}
        shown = listen(event, source_of, chosen, kernels.code, api_name=name, **QUIET, **unlisted)
        # One listener an event: see Page.when_seen.
        listen(shown.then, facts_of, chosen, kernels.facts, **PRIVATE)


def _wire_run(page: Page, mine: _OwnRun, pickers: _Pickers, show_all: _ShowAll) -> None:
    """The shape may be taken from a model or layer; a run shows its numbers when it ends or is stopped."""
    listen(mine.preset.input, of_model, mine.preset, mine.sizes, **PRIVATE)
    of_layer_inputs = [*page.selection, mine.sizes.m]
    listen(mine.of_layer.click, from_layer, of_layer_inputs, mine.sizes, api_name="shape_of_layer", **QUIET)
    buttons = RunButtons((mine.start, mine.cpu), mine.stop, mine.stopped)
    buttons.begin_on(mine.start.click, mine.cpu.click)
    running = listen(
        mine.start.click,
        run,
        [*mine.sizes.in_order(), mine.names, mine.every],
        RunView(status=mine.status, own=page.gemm_timings),
        api_name="time_products",
        show_progress="minimal",
        concurrency_id="timing",
        concurrency_limit=1,
    )
    of_cpu = listen(
        mine.cpu.click,
        run_on_cpu,
        None,
        RunView(status=mine.status, own=page.gemm_timings),
        api_name="time_cpu",
        show_progress="minimal",
        concurrency_id="timing",
        concurrency_limit=1,
    )
    shown, sizes = [pickers.view, pickers.shape], list(mine.sizes.in_order())
    live = running.then(_after_run, [*sizes, page.gemm_timings], shown, **PRIVATE)
    show_all.on_another(live.then, api_name="speed_measured", **_UNLISTED)
    cpu_live = of_cpu.then(_after_cpu, page.gemm_timings, shown, **PRIVATE)
    show_all.on_another(cpu_live.then, **PRIVATE)
    halted = buttons.end_with(running, of_cpu).then(
        _after_stop, [*sizes, page.gemm_timings], shown, **PRIVATE
    )
    show_all.on_another(halted.then, **PRIVATE)
