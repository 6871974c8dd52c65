"""Report of one tensor under one or two schemes: the content of the page's place Tensor."""

from __future__ import annotations

import dataclasses
import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from explorer import words
from explorer.analysis.calibration import ChosenRange, calibrated_rows, compare_calibrators
from explorer.analysis.calibration import summary as calibration_summary
from explorer.analysis.schemes import ComparisonRow, mark_frontier
from explorer.analysis.sliced import analyse_anywhere
from explorer.analysis.survey import survey
from explorer.analysis.tensor import Analysis, Side
from explorer.analysis.verdict import judged
from explorer.core.backend import work_device
from explorer.figures.calibration import objectives_figure, range_figure
from explorer.figures.compare import frontier_figure
from explorer.figures.error_map import error_map_figure
from explorer.figures.errors import error_figure
from explorer.figures.methods import channel_error_figure, objective_figure, output_figure
from explorer.figures.speed import speed_figure
from explorer.figures.values import values_figure
from explorer.methods import apply, label_of, names_in
from explorer.methods.evaluate import MOST_TOKENS, Outcome, evaluate_all, halves
from explorer.methods.evaluate import summary as methods_summary
from explorer.methods.recipe import Recipe
from explorer.methods.repaired import analyse_layer, inspect, levels_of
from explorer.products.advice import ENOUGH_DB, at_shape, fastest, points, products_of, summary
from explorer.products.shapes import DECODE
from explorer.progress import Progress, checkpoint
from explorer.recordings.files import Recording
from explorer.recordings.gemm import GemmTiming, gemms_in, recorded_gemms
from explorer.reports.content import TENSOR, Content, Part, Table, content
from explorer.reports.speed import as_measured, timing_table
from explorer.schemes import SCHEMES, Scheme
from explorer.sources.tensors import Matrix

LETTERS = "AB"
METHODS = "methods"
"""Name of the table of the methods' results, and prefix of its numbers' names."""


@dataclass(frozen=True)
class Methods:
    """Methods on the layer: their names, the schemes, and the scheme of the inputs ("" for none).
    ``outcomes``: their results, if they were run already; else the report runs them."""

    names: tuple[str, ...]
    schemes: tuple[str, ...]
    activations: str = ""
    outcomes: tuple[Outcome, ...] = ()


@dataclass(frozen=True)
class More:
    """Optional content of a tensor's report.

    element     (row, column) to inspect; None: the element of A's largest error
    own         a custom range, as a share (0 ... 1) of min-max, compared with the calibrators'
    inputs      [tokens, K] of the layer whose weight the tensor is: for methods; the first ``MOST_TOKENS``
    methods     methods to compare on those
    timings     products that were timed on the reader's machine
    analyses    the tensor's analyses under the schemes, if known already
    """

    element: tuple[int, int] | None = None
    own: float | None = None
    inputs: Tensor | None = None
    methods: Methods | None = None
    timings: Recording[GemmTiming] | None = None
    analyses: tuple[Analysis, ...] | None = None


def tensor_report(
    matrix: Matrix,
    recipes: Sequence[Recipe],
    source: Mapping[str, str | None],
    more: More | None = None,
    progress: Progress | None = None,
) -> Content:
    """Make the report of ``matrix`` under one or two recipes.

    ``source``: origin of the matrix (``file``, ``tensor``, ``revision``, ``inputs``, ``inputs_tensor``), for
    the command that rebuilds the report. ``ValueError`` for other counts of recipes, an element outside, and
    methods without inputs.
    """
    more = more or More()
    if more.inputs is not None:
        more = dataclasses.replace(more, inputs=more.inputs[:MOST_TOKENS])
    if not 1 <= len(recipes) <= 2:
        raise ValueError(f"a report has one or two schemes, not {len(recipes)}")
    if more.own is not None and not 0 < more.own <= 1:
        raise ValueError(f"a custom range is a share of min-max, above 0 and at most 1, not {more.own}")
    analyses = more.analyses or tuple(_analysis(matrix, recipe, more.inputs) for recipe in recipes)
    sides = [Side(r.label, a) for r, a in zip(recipes, analyses, strict=True)]
    at = more.element or analyses[0].report.max_error_at
    rows, columns = matrix.values.shape
    if not (0 <= at[0] < rows and 0 <= at[1] < columns):
        raise ValueError(f"no element ({at[0]}, {at[1]}) in {rows} × {columns}")
    measured = as_measured(more.timings)
    numbers = _numbers_of(analyses)
    parts: list[Part] = []
    makers: tuple[Callable[[], list[Part]], ...] = (
        lambda: _key_numbers(analyses, recipes),
        lambda: _frontier(matrix, sides, numbers),
        lambda: _errors(matrix, sides, at),
        lambda: _element(matrix, sides, at),
        lambda: _range(matrix, recipes[0].scheme, more.own, numbers),
        lambda: _methods(matrix, more, numbers),
        lambda: _speed([r.scheme for r in recipes], measured),
    )
    for index, make in enumerate(makers):
        checkpoint()
        if progress is not None:
            progress(index, len(makers))
        parts += make()
    digest = sha256_of(matrix.values)
    about = {"tensor": matrix.description, "its SHA-256 (float32, row-major, with its shape)": digest}
    if more.inputs is not None:
        about[f"SHA-256 of the inputs ({len(more.inputs):,} tokens)"] = sha256_of(more.inputs)
    return content(
        title=f"{matrix.name or 'Tensor'}: {' and '.join(r.label for r in recipes)}",
        lead=judged(*analyses),
        parts=parts,
        method=_method(recipes),
        about=about,
        numbers=numbers,
        recipe=_recipe(source, recipes, at, more, measured),
        sha256=digest,
    )


def _recipe(
    source: Mapping[str, str | None],
    recipes: Sequence[Recipe],
    at: tuple[int, int],
    more: More,
    measured: Mapping[str, Any] | None,
) -> dict[str, Any]:
    """Return the options that rebuild the report; the source's inputs only if they were needed."""
    needed = more.methods is not None or any(recipe.method for recipe in recipes)
    kept = ("file", "tensor", "revision", *(("inputs", "inputs_tensor") if needed else ()))
    recipe: dict[str, Any] = {"kind": TENSOR, **{key: source.get(key) for key in kept}}
    recipe |= {"schemes": list(map(str, recipes)), "element": list(at), "own": more.own}
    if more.methods:
        tried = more.methods
        recipe |= {"methods": list(tried.names), "method_schemes": list(tried.schemes)}
        recipe["activations"] = tried.activations
    return recipe | ({"measured": measured} if measured else {})


def _analysis(matrix: Matrix, recipe: Recipe, inputs: Tensor | None) -> Analysis:
    """Analyse the tensor under a recipe; a method gets the first half of the layer's inputs."""
    if not recipe.method:
        return analyse_anywhere(matrix.values, recipe.scheme)
    w, x = _layer(matrix.values, inputs, label_of(recipe.method))
    return analyse_layer(w, apply(recipe.method, w, recipe.scheme, halves(x)[0]), recipe.method)


def _layer(values: Tensor, inputs: Tensor | None, what: str) -> tuple[Tensor, Tensor]:
    """Return the layer's weight and inputs on the device; ``ValueError`` without inputs that fit."""
    if inputs is None:
        raise ValueError(f"{what} needs the layer's inputs: name them by --inputs")
    if inputs.shape[1] != values.shape[1]:
        raise ValueError(
            f"the weight has {values.shape[1]} columns, the inputs {inputs.shape[1]}: both must be the "
            "layer's input channels K of weight [N, K] and inputs [tokens, K]"
        )
    device = work_device()
    return values.float().to(device), inputs.float().to(device)


def sha256_of(x: torch.Tensor) -> str:
    """Return the SHA-256 of the matrix: its shape, then float32 bytes in row-major order."""
    digest = hashlib.sha256(repr(tuple(x.shape)).encode())
    digest.update(x.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


QUANTITIES = (
    ("SQNR (dB)", "sqnr_db", 1),
    ("relative error ‖x̂ − x‖ / ‖x‖", "relative_error", 1),
    ("largest error", "max_error", 1),
    ("cosine", "cosine", 1),
    ("rounded to zero (%)", "zeroed", 100),
    ("clipped: beyond the codes (%)", "clipped", 100),
    ("blocks that became zero", "zero_blocks", 1),
)
"""Rows of the table of key numbers: label, attribute of a report, factor of the unit."""


def _numbers_of(analyses: Sequence[Analysis]) -> dict[str, float]:
    numbers = {}
    for letter, analysis in zip(LETTERS, analyses, strict=False):
        report = analysis.report
        for _, name, _ in QUANTITIES:
            numbers[f"{letter}.{name}"] = float(getattr(report, name))
        numbers |= {f"{letter}.bits": report.bits.total, f"{letter}.nbytes": float(report.nbytes)}
    return numbers


def _key_numbers(analyses: Sequence[Analysis], recipes: Sequence[Recipe]) -> list[Part]:
    reports = [a.report for a in analyses]
    rows: list[tuple[Any, ...]] = [
        (text, *(times * float(getattr(r, name)) for r in reports)) for text, name, times in QUANTITIES
    ]
    rows.append(("bits per element, scales included", *(r.bits.total for r in reports)))
    rows.append(("bytes", *(r.nbytes for r in reports)))
    headers = ("quantity", *(f"{x}: {r.label}" for x, r in zip(LETTERS, recipes, strict=False)))
    sentences = [f"{x}: {r.describe()}" for x, r in zip(LETTERS, recipes, strict=False)]
    return [Part("In numbers", tuple(sentences), (Table("numbers", headers, tuple(rows)),))]


def _frontier(matrix: Matrix, sides: Sequence[Side], numbers: dict[str, float]) -> list[Part]:
    """Compare every named scheme on the tensor; puts their SQNRs into ``numbers``."""
    rows = mark_frontier(survey(matrix.values, SCHEMES.values()))
    numbers |= {f"frontier.{r.scheme}": r.report.sqnr_db for r in rows}
    columns = ("scheme", "text", "bits", "SQNR (dB)", "on the frontier")
    table = tuple(
        (r.label, r.text, r.report.bits.total, r.report.sqnr_db, "yes" if r.on_frontier else "")
        for r in sorted(rows, key=lambda r: r.report.bits.total)
    )
    reading = (
        "Every named scheme on this tensor: right is larger, up is more accurate. No other scheme is more "
        "accurate at the same bits than those on the dotted line. The rings are A and B."
    )
    chosen = [ComparisonRow(side.analysis.q.scheme, side.analysis.report) for side in sides]
    figure = frontier_figure(rows, matrix.name, chosen[0], chosen[1] if len(chosen) > 1 else None)
    return [
        Part("Among all schemes", (), (Table("schemes", columns, table),), (("frontier", figure, reading),))
    ]


def _errors(matrix: Matrix, sides: Sequence[Side], at: tuple[int, int]) -> list[Part]:
    histogram = "Distribution of the errors, as shares of all elements."
    reading = (
        "Each cell shows the largest |error| in it, the strips along the edges the RMS error of each column "
        "and row. The circle is the element below."
    )
    figures = (
        ("errors", error_figure(sides, matrix.name), histogram),
        ("error-map", error_map_figure(matrix.values, sides, at, matrix.name), reading),
    )
    return [Part("Where the error is", figures=figures)]


def _element(matrix: Matrix, sides: Sequence[Side], at: tuple[int, int]) -> list[Part]:
    seen = [inspect(matrix.values, side.analysis, *at) for side in sides]
    tables = tuple(
        Table(f"element-{letter.lower()}", ("quantity", f"{letter}: {side.label}"), tuple(e.arithmetic))
        for letter, side, e in zip(LETTERS, sides, seen, strict=False)
    )
    levels = [levels_of(side.analysis, *at) for side in sides]
    figure = values_figure(sides[0].analysis.before, sides, levels, matrix.name)
    reading = "Grey: the tensor; coloured: dequantized values; ticks: the levels of the element's block."
    value = f"{seen[0].value:.9g}"
    said = f"The element in row {at[0]}, column {at[1]} is {value}. Its arithmetic, with the numbers:"
    return [Part("One element", (said,), tables, (("values", figure, reading),))]


RANGE_COLUMNS = ("calibrator", "from", "to", "SQNR (dB)", "clipped: beyond the codes (%)", "largest error")


def _range(matrix: Matrix, scheme: Scheme, own: float | None, numbers: dict[str, float]) -> list[Part]:
    """Compare the calibrators' ranges for A with one scale, and the custom range ``own``; empty if the scheme
    has no range, or if all values are zero."""
    x = matrix.values
    if scheme.scale is None or not bool(x.any()):
        return []
    part, all_rows = calibrated_rows(x), x.shape[0]
    report = compare_calibrators(part, scheme, own)
    best = max(report.choices, key=lambda choice: choice.report.sqnr_db)
    drawn = next((choice for choice in report.choices if choice.method == "own"), best)
    rows = []
    for choice in report.choices:
        name, found = f"range.{choice.method}", choice.report
        ends = {f"{name}.low": choice.low, f"{name}.high": choice.high}
        numbers |= {**ends, f"{name}.sqnr_db": found.sqnr_db}
        measured = (found.sqnr_db, 100 * found.clipped, found.max_error)
        rows.append((choice.label, choice.low, choice.high, *measured))
    said = [calibration_summary(report)]
    if own is not None:
        said.append(_own_words(own, drawn, best))
    if part.shape[0] < all_rows:
        said.append(f"The first {words.count(part.shape[0])} of {words.count(all_rows)} rows were used.")
    what = "your range" if own is not None else f"the range with the highest SQNR, by {drawn.label}"
    shaded = (
        f"The range of each calibrator above a histogram of the values. The vertical lines mark {what}; "
        "values outside it are shaded."
    )
    curves = (
        "The quantity that each calibrator minimises, over the threshold, and the share of values with a "
        "magnitude above it. Dots mark the chosen thresholds."
    )
    figures = (
        ("ranges", range_figure(report, drawn.low, drawn.high, matrix.name), shaded),
        ("calibration", objectives_figure(report, matrix.name), curves),
    )
    return [Part("The range", tuple(said), (Table("ranges", RANGE_COLUMNS, tuple(rows)),), figures)]


def _own_words(own: float, drawn: ChosenRange, best: ChosenRange) -> str:
    text = (
        f"Your range, {100 * own:.3g} % of min-max, leaves {drawn.report.sqnr_db:.2f} dB and clips "
        f"{100 * drawn.report.clipped:.3g} % of the values"
    )
    if drawn is best:
        return f"{text}: no calibrator's leaves more."
    return f"{text}; {best.label} leaves {best.report.sqnr_db:.2f} dB."


METHOD_COLUMNS = (
    "method", "scheme", "output SQNR (dB)", "output error (%)", "weight SQNR (dB)", "bits", "what it does",
)  # fmt: skip


def _methods(matrix: Matrix, more: More, numbers: dict[str, float]) -> list[Part]:
    """Compare the output error of the layer under each method; empty if no method was requested."""
    tried = more.methods
    if tried is None:
        return []
    w, x = _layer(matrix.values, more.inputs, "comparing methods")
    of_inputs = Scheme.parse(tried.activations) if tried.activations else None
    schemes = [Scheme.parse(text) for text in tried.schemes]
    outcomes = tried.outcomes or tuple(_run(tried.names, schemes, w, x, of_inputs))
    for o in outcomes:
        if not o.refused:
            name = f"{METHODS}.{o.scheme}+{o.method}"
            numbers[f"{name}.output_sqnr_db"] = o.output_sqnr_db
            numbers[f"{name}.weight_sqnr_db"] = o.weight_sqnr_db
    seen, held = halves(x)
    quantized = f", its inputs quantized by {of_inputs.label or of_inputs}" if of_inputs else ""
    how = (
        f"The output is computed on {words.count(held.shape[0])} held-out tokens{quantized}; "
        f"the {words.count(seen.shape[0])} others calibrate."
    )
    rows = tuple(_method_row(o) for o in outcomes)
    figures = [("methods", output_figure(outcomes, matrix.name), "The layer's output: longer is better.")]
    if any(o.objective and o.objective[0] for o in outcomes):
        reading = "Objective of the searching methods, relative to its start; dots mark the minima."
        figures.append(("objectives", objective_figure(outcomes, matrix.name), reading))
    if any(o.channel_error for o in outcomes):
        reading = "Each method's output channels under the first scheme, sorted by their error."
        figures.append(("channel-error", channel_error_figure(outcomes, matrix.name), reading))
    said = (methods_summary(outcomes, x), how)
    table = Table(METHODS, METHOD_COLUMNS, rows)
    return [Part("Methods that use the layer's inputs", said, (table,), tuple(figures))]


def _run(
    names: Sequence[str], schemes: Sequence[Scheme], w: Tensor, x: Tensor, of_inputs: Scheme | None
) -> Iterator[Outcome]:
    """Run every method under every scheme; each quantized layer is freed at once."""
    for outcome in evaluate_all(names, schemes, w, x, of_inputs):
        checkpoint()
        yield dataclasses.replace(outcome, layer=None)


def _method_row(o: Outcome) -> tuple[Any, ...]:
    why = f"refused: {o.refused}" if o.refused else " and ".join(row.why for row in names_in(o.method))
    numbers = (o.output_sqnr_db, 100 * o.output_error, o.weight_sqnr_db, o.bits)
    return (o.label, o.scheme_label, *(("",) * 4 if o.refused else numbers), why)


def _speed(schemes: Sequence[Scheme], measured: Mapping[str, Any] | None) -> list[Part]:
    """Draw recorded products of one token, with those that take A's and B's weights marked; and the products
    measured on the reader's machine."""
    marked = {n: x for x, s in reversed([*zip(LETTERS, schemes, strict=False)]) for n in products_of(s)}
    parts = []
    recording = recorded_gemms()
    if here := at_shape(recording.rows, DECODE):
        shape = " × ".join(map(words.count, DECODE))
        of_random = (
            "The error in this sentence is that of the product's output on random normal data, not on this "
            f"tensor; {ENOUGH_DB:.0f} dB, a tenth of the signal, is what one layer can usually afford."
        )
        source = f"{recording.sentence}; not on the machine that made this report."
        said = (source, summary(points(here), here, shape), of_random, *_marked_words(here, marked))
        reading = (
            f"One token, {shape}: each product's fastest kernel, torch, and the chip's limit (not measured)."
        )
        figures = (("speed", speed_figure(here, f"{recording.machine.chip}, {shape}", marked), reading),)
        parts.append(Part("Speed", said, (), figures))
    if measured is not None:
        recording = gemms_in(measured)
        here = at_shape(recording.rows, recording.rows[0].shape)
        shape = " × ".join(map(words.count, recording.rows[0].shape))
        source = f"Measured on one {recording.machine.describe()}, as the file of the timings says."
        said = (source, summary(points(here), here, shape), *_marked_words(here, marked))
        reading = (
            f"{shape}: each product's fastest kernel that was timed, its baseline, and the chip's limit."
        )
        table = timing_table("speed-measured", recording.rows)
        figures = (
            ("speed-measured", speed_figure(here, f"{recording.machine.chip}, {shape}", marked), reading),
        )
        parts.append(Part("Speed, measured", said, (table,), figures))
    return parts


def _marked_words(here: Sequence[GemmTiming], marked: Mapping[str, str]) -> list[str]:
    return [
        f"{letter} as weights: {t.label}, {words.duration(t.seconds)} ({words.kernel_name(t.variant)})."
        for t in fastest(here)
        if (letter := marked.get(t.gemm))
    ]


def _method(recipes: Sequence[Recipe]) -> tuple[str, ...]:
    return (
        "A scheme cuts the matrix into blocks, finds a range for each (by its calibrator; by default the "
        "smallest and the largest value), divides by the step, rounds to the nearest code (ties to even), "
        "and stores codes and scales. Dequantized values are code times step.",
        "SQNR is 10 · log10(Σx² / Σ(x̂ − x)²): 6 dB more is half the error. Bits per element are of "
        "codes, scales and zero points.",
        "The frontier is computed on a sample of rows where the tensor is large; A and B on all of it.",
        *(f"{r}: {r.describe()}" for r in recipes),
    )
