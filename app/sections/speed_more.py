"""The folded rest of the place Speed: the table, kernels and their source, the roofline, the kernel that
quantizes, a step of a large model, products in groups, and how all of it was timed."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

from markupsafe import Markup

from app.parts import html
from app.parts.controls import TextInput
from app.parts.report_files import REPORT_KINDS, report_slots
from app.parts.section import Section, Shown
from app.sections.speed import FOLLOWS
from app.sections.speed_machines import LIVE, Place, place_of
from app.state.files import write_table
from app.state.gpu_lock import gpu_lock
from app.state.query import Query
from app.state.selection import matrix_of
from explorer import words
from explorer.bench.cpu_gemm import not_installed
from explorer.bench.quantize import time_one
from explorer.core.backend import gpu_device, gpu_status
from explorer.cpu.products import CPU_PRODUCTS, product_of
from explorer.figures.speed import ladder_figure, roofline_figure
from explorer.figures.steps import steps_figure
from explorer.paths import KERNELS
from explorer.products.advice import fastest
from explorer.products.gemms import GEMMS, Product
from explorer.products.grouped import GROUPED_HEADERS, LAYOUTS, grouped_rows
from explorer.products.machine_words import machine_words
from explorer.products.variants import Variant
from explorer.recordings.files import NOT_RECORDED, RecordingError, recording_json
from explorer.recordings.gemm import recorded_gemms
from explorer.recordings.grouped import recorded_grouped
from explorer.recordings.quantize import recorded_kernel
from explorer.recordings.steps import recorded_steps
from explorer.reports import speed_report
from explorer.reports.speed import COLUMNS, timing_table

ERRORS_WORDS = "SQNR: the output against the float64 product of unquantized X and W."
TIMED_ROWS = 4096
"""Rows of a tensor too large for the GPU that the kernel is timed on."""
PRODUCT = TextInput(key="product", label="Kernels of", most=60)
FILE = TextInput(key="kernel_file", label="Source", most=100)


STEP = TextInput(key="step_shape", label="Model", most=60)
TEXTS = TextInput(key="texts", label="Texts", most=6)


def view(query: Query) -> Shown:
    """Show, at the shape of the place: all products as a table, one product kernel by kernel, the roofline,
    the kernel that quantizes with A, and steps of large models."""
    place = place_of(query)
    here, marked = place.timings, place.marked(query)
    names = {timing.gemm: timing.label for timing in here}
    usual = next((name for name in (*marked, "bf16", *names) if name in names), "")
    product = query.one_of("product", names, usual) if names else ""
    said = machine_words(here)
    return {
        "table": _table(place) if here else "",
        "product": html.select("product", "Kernels of", [("", names)], product, usual),
        "facts": html.note(_facts(product, place.on_cpu)),
        "speed-ladder": ladder_figure([t for t in here if t.gemm == product], f"{place.title} {product}"),
        **_source(query, product, place.on_cpu),
        "speed-roofline": roofline_figure(here, place.recording.limits, f"{place.title} roofline", marked),
        "roofline-title": html.figure_title("Roofline", f"what bounds each product: {said.bounds}"),
        "quantize": _recorded_kernel(query),
        "method": html.note(f"{said.times} {said.limits} {ERRORS_WORDS}"),
        **_steps(query),
    }


def _table(place: Place) -> str:
    """A line for each product at the shape, by its fastest kernel; of what is recorded also one for each
    product that has no timing at all, and of a CPU measured here one for each kernel whose library is not
    installed."""
    found = [list(map(_cell, row)) for row in timing_table("", fastest(place.timings)).rows]
    table: dict[str, Product] = {**CPU_PRODUCTS} if place.on_cpu else {**GEMMS}
    known = {timing.gemm for one in place.machine for timing in one.rows}
    missing = [(one.label, NOT_RECORDED) for one in table.values() if one.name not in known]
    if place.name == LIVE:
        missing = [(one.label, f"{one.kernel}: {one.reason}") for one in not_installed() if place.on_cpu]
    return html.table(COLUMNS, found + [[*one, *[""] * (len(COLUMNS) - 2)] for one in missing])


def _cell(value: Any) -> str:
    return words.number(value, 4) if isinstance(value, float) else str(value)


def _facts(product: str, on_cpu: bool) -> str:
    """Operands of the product, where scales apply, type of the sums, and its kernels, on a GPU with the chips
    that run them."""
    known = product_of(product, on_cpu)
    if known is None:
        return ""
    said = f"X: {known.x.label}. W: {known.w.label}. Scales {known.scales}; sums in {known.accumulator}. "
    if on_cpu:
        kernels = CPU_PRODUCTS[product].kernels
        packages = ", ".join(dict.fromkeys(kernel.library.label for kernel in kernels))
        names = ", ".join(kernel.name for kernel in kernels)
        return f"{said}Kernels: {names}, computed by {packages}: their sources are theirs."
    gemm = GEMMS[product]
    return f"{said}Kernels: {', '.join(map(_kernel, gemm.variants))}. Baseline: {gemm.baseline.label}."


def _kernel(variant: Variant) -> str:
    run = "" if variant.tested else ", compiled, not run"
    return f"{words.kernel_name(variant.name)} ({variant.chips}{run})"


def _source(query: Query, product: str, on_cpu: bool) -> Shown:
    """The picker of the CUDA files behind a product's kernels, and the text of the chosen one."""
    if on_cpu or product not in GEMMS:
        return {"files": "", "code": ""}
    names = dict.fromkeys(variant.file for variant in GEMMS[product].variants)
    files = {"": "not shown", **{name: f"kernels/{name}" for name in names}}
    file = query.get("kernel_file", "")
    text = (KERNELS / file).read_text(encoding="utf-8") if file in names else ""
    return {
        "files": html.select("kernel_file", "Source", [("", files)], file if text else ""),
        "code": html.render("code", text=text) if text else "",
    }


def _recorded_kernel(query: Query) -> str:
    """The kernel that quantizes with A, as it was recorded."""
    timing, source = recorded_kernel(str(query.record.recipes[0].scheme))
    if timing is None:
        return html.note("No recording for this scheme: on a machine with a GPU its kernel is timed here.")
    return html.kernel(timing, source)


def _quantize(query: Query) -> Iterator[Shown]:
    """Time the kernel that quantizes with A on this GPU."""
    device = gpu_device()
    if device is None:
        raise ValueError(f"there is no GPU here: {gpu_status().reason}")
    x = matrix_of(query.record).values
    whole = x.device == device
    with gpu_lock():
        timing = time_one(x if whole else x[:TIMED_ROWS].to(device), query.record.recipes[0].scheme)
    part = "the tensor as it is" if whole else f"its first {TIMED_ROWS} rows"
    yield {"quantize": html.kernel(timing, f"measured now on {gpu_status().reason}, {part}")}


def _steps(query: Query) -> Shown:
    """Recorded steps of a model's shape; for another number of texts than were recorded, the nearest."""
    every = recorded_steps().rows
    shapes = {one.shape: one.shape for one in every}
    if not shapes:
        return {"steps": "", "steps-said": html.note(NOT_RECORDED), "step-pickers": ""}
    shape = query.one_of("step_shape", shapes, next(iter(shapes)))
    counts = {str(one.batch): words.count(one.batch) for one in every if one.shape == shape}
    count = int(query.one_of("texts", counts, next(iter(counts))))
    rows = [one for one in every if (one.shape, one.batch) == (shape, count)]
    best = max(rows, key=lambda one: one.speedup)
    fast = (
        f"The fastest here is {best.label}, {best.speedup:.2f} times as fast as BF16 with weights "
        f"{best.smaller:.1f} times smaller. "
        if best.speedup > 1
        else ""
    )
    said = (
        f"{fast}{words.count(count)} text{'' if count == 1 else 's'}, random weights in the shape of {shape}"
        f", {rows[0].context} tokens before the step, one CUDA graph, {recorded_steps().source}."
    )
    pickers = html.select("step_shape", "Model", [("", shapes)], shape, next(iter(shapes)))
    pickers += html.select("texts", "Texts", [("", counts)], str(count), next(iter(counts)))
    figure = steps_figure(rows, f"{shape} step")
    return {"steps": figure, "steps-said": html.sentence(said), "step-pickers": pickers}


@functools.cache
def _grouped() -> str:
    """Products in groups, as they were recorded; a damaged recording says what is wrong with it."""
    try:
        recording = recorded_grouped()
    except RecordingError as error:
        return html.note(str(error))
    layouts = "; ".join(f"<i>{name}</i>: {what}" for name, what in LAYOUTS.items())
    about = (
        f"{recording.sentence}. Each row of X is multiplied by the W of its expert (N = K = 4096), all in "
        f"one launch. {layouts}. <i>× one dense product</i>: against as many rows with one W. The limit is "
        "not measured: bytes over bandwidth or operations over peak. Measure here: <code>explorer bench "
        "grouped</code>."
    )
    return html.note(Markup(about)) + html.table(GROUPED_HEADERS, grouped_rows(recording.rows))


def _files(query: Query) -> Iterator[Shown]:
    """Every kernel's time at the shape as CSV and JSON."""
    place = place_of(query)
    table = timing_table("", place.timings)
    rows = [{"M×N×K": place.text, **dict(zip(table.columns, row, strict=True))} for row in table.rows]
    files = write_table(f"gemm {place.title}", rows, recording_json(place.recording.machine, place.timings))
    yield {"files-made": html.downloads(files)}


def _report(query: Query) -> Iterator[Shown]:
    """The products at the shape as a report, A and B marked."""
    place = place_of(query)
    if not place.at:
        raise ValueError("nothing is measured here yet: measure first, or take recorded times")
    shipped = place.recording == recorded_gemms()
    timed, at, recipes = None if shipped else place.recording, place.at, query.record.recipes
    yield from report_slots(query, lambda progress: speed_report(timed, at, recipes))


SECTION = Section(
    name="speed-more",
    follows=FOLLOWS,
    controls=(PRODUCT, FILE, STEP, TEXTS, REPORT_KINDS),
    view=view,
    runs={"files": _files, "report": _report, "quantize": _quantize},
    shares={"grouped": _grouped, "gpu": gpu_device() is not None},
)
