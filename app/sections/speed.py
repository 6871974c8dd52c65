"""The Speed section: what a format buys in a matrix product, recorded on a named GPU or measured here."""

from __future__ import annotations

import dataclasses
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
    download_buttons,
    plot_card,
    stop_button,
    table,
)
from app.sections.speed_live import Own, RunView, run
from app.sections.speed_table import COLUMNS, csv_row, facts_of, lines, source_of
from app.state.cache import BoundedCache
from app.state.controls import DEFAULT_PRODUCT
from app.state.files import NOTHING_YET, Downloads, downloads
from app.state.gpu_lock import gpu_lock
from app.state.selection import Selection, matrix_of, tensor_key
from app.theme import plot_data
from explorer import Scheme, words
from explorer.bench.gemm import CPU_ROWS
from explorer.core.backend import gpu_device
from explorer.figures.speed import speed_figure
from explorer.figures.speed_ladder import ladder_figure
from explorer.figures.speed_roofline import roofline_figure
from explorer.figures.speed_sweep import sweep_figure
from explorer.figures.speed_tradeoff import tradeoff_figure
from explorer.products.advice import (
    Point,
    at_shape,
    nearest,
    output_errors,
    points,
    products_of,
    summary,
    swept,
    tokens_for,
)
from explorer.products.grouped import LAYOUTS
from explorer.products.grouped_rows import GROUPED_HEADERS, grouped_rows
from explorer.products.shapes import DECODE, LARGE, LAYERS, SERVING, SQUARE
from explorer.products.table import GEMMS
from explorer.recordings.files import Recording, RecordingError, recording_json
from explorer.recordings.gemm import GemmTiming, Shape, canonical_name, recorded_gemms
from explorer.recordings.grouped import GroupedTiming, recorded_grouped
from explorer.recordings.machine import Machine
from explorer.reports import speed_report

RECORDED, LIVE = "recorded", "live"
RANDOM, LAYER = "random", "layer"
OF_LAYER = {"layer-decode": 1, "layer-prefill": 4096}
"""Entries of the shape picker that stand for N and K of the chosen layer -> M."""
USUAL = ("bf16", "fp8_e4m3_row", "fp8_blockwise", "int8", "w8a16", "w4a16_group128", "w_nvfp4", "w4a8_int",
         "binary")  # fmt: skip
PRESETS = {"Square 4096": SQUARE, "Decode, 8192 × 8192": DECODE} | {
    f"{model}: {n} × {k}": (4096, n, k) for model, blocks in LAYERS.items() for n, k in blocks
}
METHOD = (
    "Kernel and baseline get the same random data and are interleaved. <b>µs</b>: CUDA-graph replay over "
    "buffers that together exceed twice the L2 cache, median; <b>flushed</b>: one launch at a time, L2 "
    "overwritten before. Quantizing X is timed apart and added in <i>Error against speed</i>. Limits: a "
    "copy and loops of tensor-core instructions on random data, measured in the same run; a product's "
    "limit is <i>modelled</i> from them (bytes over copy, or operations over rate). <i>Native</i>: the "
    "tensor cores take both operands as they are; <i>emulated</i>: they are widened first. SQNR: the "
    "output against the float64 product of unquantized X and W."
)
_ERRORS = BoundedCache[dict[str, float]](1 << 20)


@dataclass(frozen=True)
class SpeedView(View):
    """The section at one shape: where the numbers are from, pickers, five figures, advice, table and files;
    ``marks`` is what the figures of A and B depend on (``_marks``)."""

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
) -> SpeedView:
    """Every figure of one shape. After the selection come the view ("recorded", "live"), the shape as text,
    the product whose kernels are shown one by one, whose error is plotted ("random", "layer"), and the
    visitor's own run.

    Returns where the numbers are from, shapes, products, five figures, the advice, table, CSV and JSON.
    """
    recording: Own = recorded_gemms() if view == RECORDED else own or Recording(Machine(), ())
    place = _place(chosen, recording.rows, shape_text)
    here = at_shape(recording.rows, place.shape) if place.shape else []
    names = list(dict.fromkeys(timing.gemm for timing in here))
    product = _product(product, names)
    errors = _layer_errors(chosen, tuple(names)) if errors_of == LAYER and names else None
    every, marked = points(here, errors), _marked(chosen)
    name = f"{recording.machine.gpu or 'here'} {place.text}"
    files = _files(f"gemm {name}", recording.machine, here)
    source = " ".join((_source(view, recording, bool(here)), place.words, _schemes_words(chosen, names)))
    return SpeedView(
        source=html.status(source.strip()),
        shape=gr.update(choices=place.choices, value=place.value),
        product=gr.update(choices=[(GEMMS[n].label, n) for n in names if n in GEMMS], value=product),
        **_marked_figures(recording, place, here, every, marked),
        marks=_marks(view, place, marked),
        ladder=plot_data(ladder_figure([t for t in here if t.gemm == product], f"{name} {product}")),
        sentence=html.sentence(_advice(recording.rows, place.text, here, every, errors is not None)),
        table=lines(here, recording.rows, view == RECORDED),
        csv_file=files.csv,
        json_file=files.json,
    )


@shows(SpeedView)
def follow(
    chosen: Selection,
    view: str,
    shape: str | None,
    product: str | None,
    errors_of: str,
    own: Own | None,
    marks: tuple[Any, ...] | None,
) -> SpeedView:
    """``show`` when the selection changes. What depends on neither scheme nor layer stays as it is, once it
    has been shown: of a shape by its numbers only the marks of A and B change, and only where they differ
    from ``marks``, those that are shown."""
    if marks is None or shape != marks[1] or shape in OF_LAYER or errors_of == LAYER:
        return show(*dataclasses.astuple(chosen), view, shape, product, errors_of, own)
    recording: Own = recorded_gemms() if view == RECORDED else own or Recording(Machine(), ())
    place, marked = _place(chosen, recording.rows, shape), _marked(chosen)
    here = at_shape(recording.rows, place.shape) if place.shape else []
    names = list(dict.fromkeys(timing.gemm for timing in here))
    source = " ".join((_source(view, recording, bool(here)), place.words, _schemes_words(chosen, names)))
    now = _marks(view, place, marked)
    figures = {} if now == marks else _marked_figures(recording, place, here, points(here), marked)
    return SpeedView.unchanged(
        source=html.status(source.strip()),
        shape=gr.update(choices=place.choices, value=place.value),
        marks=now,
        **figures,
    )


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
    name, marks = f"{recording.machine.gpu or 'here'} {place.text}", dict(marked)
    over_m = swept(recording.rows, place.shape) if place.shape else []
    return {
        "tradeoff": plot_data(tradeoff_figure(every, name, marks)),
        "bars": plot_data(speed_figure(here, name, marks)),
        "sweep": plot_data(sweep_figure(over_m, name, marks)),
        "roofline": plot_data(roofline_figure(here, recording.limits, name, marks)),
    }


@dataclass(frozen=True)
class Place:
    """Which shape is shown. ``value`` is the picker's, ``words`` say where the shape shown is not the one
    that was asked for."""

    shape: Shape | None
    value: str | None
    choices: list[tuple[str, str]]
    words: str = ""

    @property
    def text(self) -> str:
        return "×".join(map(str, self.shape)) if self.shape else ""


def _place(chosen: Selection, timings: Sequence[GemmTiming], asked: str | None) -> Place:
    """The shape asked for, or the first; for the layer's own the nearest that was measured, with its name."""
    shapes, layer = _shapes(timings), _sides(chosen)
    choices = [(text, text) for text in shapes]
    if layer is not None:
        choices += [(_layer_label(m, layer), value) for value, m in OF_LAYER.items()]
    if asked in OF_LAYER and layer is not None:
        wanted = (OF_LAYER[asked], *layer)
        shape = nearest(shapes.values(), wanted)
        near = shape not in (None, wanted)
        words = (
            f"{_times(wanted)} was not measured: the nearest shape, {_times(shape)}, is shown."
            if near
            else ""
        )
        return Place(shape, asked, choices, words)
    value = asked if asked in shapes else next(iter(shapes), None)
    return Place(shapes[value] if value else None, value, choices)


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


def _marked(chosen: Selection) -> dict[str, str]:
    """Products that take the weights of A or of B -> "A" or "B"; A where both are stored alike."""
    schemes = _schemes(chosen)
    return {name: letter for letter in reversed(schemes) for name in products_of(schemes[letter])}


def _schemes_words(chosen: Selection, timed: Sequence[str]) -> str:
    """Which products A and B are, among those ``timed`` here, in words."""
    sentences = []
    for letter, scheme in _schemes(chosen).items():
        names = [GEMMS[name].label for name in products_of(scheme) if name in timed]
        label = scheme.label or str(scheme)
        if names:
            sentences.append(f"{letter}, {label}: {', '.join(names)}.")
        else:
            sentences.append(f"{letter}, {label}: no product of this scheme is timed here.")
    return " ".join(sentences) if timed else ""


def _product(wanted: str | None, names: Sequence[str]) -> str | None:
    """The product asked for if it is there, else BF16, else the first."""
    wanted = canonical_name(wanted or "")
    return next((name for name in (wanted, "bf16", *names) if name in names), None)


def _shapes(timings: Sequence[GemmTiming]) -> dict[str, Shape]:
    """Shapes as text, the most telling first."""
    sizes = {timing.shape_text: timing.shape for timing in timings}
    first = [text for text, shape in sizes.items() if shape in (SQUARE, DECODE, LARGE)]
    first.sort(key=lambda text: (SQUARE, DECODE, LARGE).index(sizes[text]))
    return {text: sizes[text] for text in dict.fromkeys([*first, *sizes])}


def _source(view: str, recording: Own, any_here: bool) -> str:
    if view == RECORDED:
        return recording.sentence + "."
    if not any_here:
        return "Nothing measured here yet: choose a shape and products below, then Run."
    return f"Measured now on {recording.machine.chip or 'this machine'}."


def _advice(
    timings: Sequence[GemmTiming],
    shape: str | None,
    here: Sequence[GemmTiming],
    every: Sequence[Point],
    of_layer: bool,
) -> str:
    """The choice at the shape shown, and where they were measured those for decode, for serving (a batch that
    is decoded together) and for prefill."""
    if not here:
        return ""
    whose = "the chosen layer" if of_layer else "random normal data"
    sentences = [summary(every, here, f"{shape} (error on {whose})")]
    for what, usual in (("decode", DECODE), ("serving", SERVING), ("prefill", SQUARE)):
        other = at_shape(timings, usual)
        if other and other[0].shape_text != shape:
            sentences.append(summary(points(other), other, f"{what}, {other[0].shape_text}"))
    return " ".join(sentences)


def _files(name: str, machine: Machine, here: Sequence[GemmTiming]) -> Downloads:
    if not here:
        return NOTHING_YET
    return downloads(name, [csv_row(timing) for timing in here], recording_json(machine, here))


def _layer_errors(chosen: Selection, names: tuple[str, ...]) -> dict[str, float]:
    """SQNR of each product's output on the chosen matrix as W, with seeded normal tokens, computed
    here."""
    matrix = matrix_of(chosen)
    most = limits.current().product_elements >> 4
    rows = max(1, min(matrix.values.shape[0], most // max(matrix.values.shape[1], 1)))

    def compute() -> dict[str, float]:
        w = matrix.values[:rows].float()
        gemms = [GEMMS[name] for name in names if name in GEMMS]
        with gpu_lock():
            return output_errors(tokens_for(w.shape[1]).to(w.device), w, gemms)

    return _ERRORS.get((*tensor_key(chosen), rows, names), compute, lambda _: 1 << 12)


@shows(ShapeView)
def from_layer(chosen: Selection, tokens: float | None) -> ShapeView:
    """M, N, K of the chosen matrix as W with the given number of tokens."""
    n, k = matrix_of(chosen).values.shape
    return ShapeView(m=int(tokens or 1), n=int(n), k=int(k))


@shows(ShapeView)
def of_model(name: str) -> ShapeView:
    """M, N, K of a layer of a known model, by its name among ``PRESETS``."""
    if name not in PRESETS:
        raise ValueError(f"choose a model: {', '.join(PRESETS)}")
    return ShapeView(*PRESETS[name])


@shows(ReportView)
def report(
    chosen: Selection, view: str, shape: str | None, own: Own | None, kinds: list[str]
) -> Iterator[ReportView]:
    """The products at the shape that is shown as a report, A and B marked; ``kinds``: of
    ``report_files.KINDS``."""
    if view != RECORDED and not own:
        raise ValueError("nothing is measured here yet: Run first, or take the recorded numbers")
    recording: Own = own if view != RECORDED and own else recorded_gemms()
    at = _place(chosen, recording.rows, shape).shape
    timed = None if view == RECORDED else recording
    yield from report_steps(lambda progress: speed_report(timed, at, chosen.recipes), kinds)


def _recorded_chip() -> str:
    """The GPU whose numbers ship, for a label; a damaged recording is reported when it is shown."""
    try:
        return recorded_gemms().machine.gpu or "GPU"
    except RecordingError:
        return "GPU"


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
        "W. The limit is <i>modelled</i> from the bytes that must move or the operations. Measure here: "
        "<code>explorer bench grouped</code>."
    )


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
    own = page.gemm_timings
    pickers = _build_pickers()
    source = block(elem_id="speed-source")
    mine = _build_run()
    sentence = block(elem_id="speed-advice")
    figures = _build_figures()
    kernels = _build_kernels()
    rows = table(COLUMNS, "speed-table", pinned_columns=1, max_height=520, buttons=["copy"])
    csv_file, json_file = download_buttons()
    reported_of = [*page.selection, pickers.view, pickers.shape, own]
    build_report(report, reported_of, "report_speed", "Report of this shape")
    block(html.note(METHOD))
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
    )
    extra = [pickers.view, pickers.shape, kernels.product, pickers.errors_of, own]
    _wire_view(page, pickers, extra, outputs, mine.sizes)
    _wire_kernels(kernels)
    _wire_run(page, mine, pickers.view, [*page.selection, *extra], outputs)


def _build_pickers() -> _Pickers:
    with gr.Row():
        view = gr.Radio(
            [(f"Recorded on an {_recorded_chip()}", RECORDED), ("Measured here", LIVE)],
            value=RECORDED,
            label="Numbers",
            elem_id="speed-view",
        )
        # Gradio refuses what is not among the choices of the page as built, from a program too.
        shape = gr.Dropdown(
            [*_shapes(recorded_gemms().rows), *OF_LAYER],
            value=None,
            label="Shape M×N×K (X [M, K] · W [N, K]ᵀ)",
            min_width=260,
            elem_id="speed-shape",
        )
        errors_of = gr.Radio(
            [("random data, as timed", RANDOM), ("the chosen layer", LAYER)],
            value=RANDOM,
            label="Error of",
            elem_id="speed-errors",
        )
    return _Pickers(view, shape, errors_of)


def _build_run() -> _OwnRun:
    with gr.Accordion("Measure on this machine", open=False, elem_id="speed-run"):
        with gr.Row():
            preset = gr.Dropdown(list(PRESETS), value=None, label="Shape of a known model", min_width=200)
            sizes = ShapeView(
                m=gr.Number(DEFAULT_PRODUCT[0], label="M (tokens)", precision=0, minimum=1, min_width=90),
                n=gr.Number(DEFAULT_PRODUCT[1], label="N", precision=0, minimum=1, min_width=90),
                k=gr.Number(DEFAULT_PRODUCT[2], label="K", precision=0, minimum=1, min_width=90),
            )
            of_layer = gr.Button("N and K of the layer", min_width=140)
        names = gr.Dropdown(
            [(g.label, g.name) for g in GEMMS.values()],
            value=list(USUAL if gpu_device() else CPU_ROWS),
            multiselect=True,
            label="Products",
        )
        with gr.Row():
            every = gr.Checkbox(False, label="every kernel, not only the fastest", min_width=200)
            start = gr.Button("Run", variant="primary", min_width=120)
            stop = stop_button()
        status = block(html.status("Not run yet."), elem_id="speed-status")
        stopped = block(elem_id="speed-stopped")
    return _OwnRun(preset, sizes, of_layer, names, every, start, stop, status, stopped)


def _build_figures() -> dict[str, Control]:
    """The four figures in which A and B are marked (``_marked_figures``)."""
    tradeoff = plot_card(
        "Error against speed",
        "every product by its time and its output's error; the larger, the more bytes of W; rings: A and B",
        "tradeoff",
    )
    bars = plot_card(
        "Time",
        "each product's fastest kernel, the fastest at the top: left is faster; X is quantized beforehand",
        "speed-bars",
    )
    sweep = plot_card(
        "From decode to prefill",
        "time against the number of tokens; × where torch's BF16 overtakes",
        "speed-sweep",
    )
    roofline = plot_card("Roofline", "what bounds each product: memory or the tensor cores", "speed-roofline")
    return {"tradeoff": tradeoff, "bars": bars, "sweep": sweep, "roofline": roofline}


def _build_kernels() -> _Kernels:
    with gr.Row():
        products = [(row.label, row.name) for row in GEMMS.values()]
        product = gr.Dropdown(products, value=None, label="Kernels of", elem_id="speed-product")
    facts = block()
    ladder = plot_card(
        "Kernel by kernel",
        "each kernel of the product, from the plainest to the fastest, and the factor it brings",
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


def _wire_view(page: Page, pickers: _Pickers, extra: list[Any], outputs: SpeedView, sizes: ShapeView) -> None:
    """What is shown follows the selection and the pickers, and the address keeps it."""
    page.follow(follow, [*extra, outputs.marks], outputs, api_name="speed")
    page.keep("shape", pickers.shape, pickers.shape.input)
    for key, size in vars(sizes).items():
        page.keep(key, size, size.change, visit=False)
    inputs = [*page.selection, *extra]
    for control, what in (
        (pickers.view, "view"),
        (pickers.shape, "shape"),
        (outputs.product, "product"),
        (pickers.errors_of, "errors"),
    ):
        listen(control.input, show, inputs, outputs, api_name=f"speed_{what}", **_UNLISTED)


def _wire_kernels(kernels: _Kernels) -> None:
    product = kernels.product
    chosen = listen(product.change, source_of, product, kernels.code, api_name="kernel_source", **QUIET)
    # One listener an event: see Page.when_seen.
    listen(chosen.then, facts_of, product, kernels.facts, **PRIVATE)


def _wire_run(page: Page, mine: _OwnRun, view: gr.Radio, inputs: list[Any], outputs: SpeedView) -> None:
    """The shape may be taken from a model or layer; a run shows its numbers when it ends or is stopped."""
    listen(mine.preset.input, of_model, mine.preset, mine.sizes, **PRIVATE)
    of_layer_inputs = [*page.selection, mine.sizes.m]
    listen(mine.of_layer.click, from_layer, of_layer_inputs, mine.sizes, api_name="shape_of_layer", **QUIET)
    buttons = RunButtons((mine.start,), mine.stop, mine.stopped)
    buttons.begin_on(mine.start.click)
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
    live = running.then(lambda: LIVE, None, view, **PRIVATE)
    listen(live.then, show, inputs, outputs, api_name="speed_measured", **_UNLISTED)
    halted = buttons.end_with(running).then(lambda: LIVE, None, view, **PRIVATE)
    listen(halted.then, show, inputs, outputs, **PRIVATE)
