"""What a report says: figures, tables, words and numbers of one tensor and one or two schemes.

Nothing here knows how it is written: ``explorer.reports.page`` makes one HTML file of it,
``explorer.reports.write`` the rest."""

from __future__ import annotations

import hashlib
import math
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import plotly.graph_objects as go
import torch

from explorer import words
from explorer.analysis.calibration import compare_calibrators
from explorer.analysis.calibration import summary as calibration_summary
from explorer.analysis.element import inspect_element
from explorer.analysis.schemes import ComparisonRow, mark_frontier, survey
from explorer.analysis.sliced import analyse_anywhere
from explorer.analysis.tensor import Analysis, Side, block_levels
from explorer.analysis.verdict import judged
from explorer.bench.gemm.advice import ENOUGH_DB, at_shape, fastest, points, products_of, summary
from explorer.bench.gemm.plan import DECODE
from explorer.bench.gemm.timing import recorded_gemms
from explorer.bench.machine import this_machine
from explorer.core.backend import work_device
from explorer.figures.calibration import objectives_figure
from explorer.figures.compare import frontier_figure
from explorer.figures.speed import speed_figure
from explorer.figures.tensor import error_figure, error_map_figures
from explorer.figures.values import values_figure
from explorer.schemes import SCHEMES, Scheme
from explorer.sources.tensors import Matrix
from explorer.version import __version__

LETTERS = "AB"


@dataclass(frozen=True)
class Table:
    """A table of the report: its name (also its file's), columns, and rows of numbers and texts."""

    name: str
    columns: tuple[str, ...]
    rows: tuple[tuple[Any, ...], ...]


@dataclass(frozen=True)
class Part:
    """A section: heading, paragraphs before its tables and figures; a figure comes with its name and how to
    read it."""

    title: str
    paragraphs: tuple[str, ...] = ()
    tables: tuple[Table, ...] = ()
    figures: tuple[tuple[str, go.Figure, str], ...] = ()


@dataclass(frozen=True)
class Content:
    """A whole report. ``numbers``, the finite ones, are what ``explorer report --check`` compares; ``recipe``
    is what builds it again: the arguments of ``build`` and of the tensor's source."""

    title: str
    lead: tuple[str, ...]
    parts: tuple[Part, ...]
    appendix: tuple[Part, ...]
    numbers: dict[str, float]
    recipe: dict[str, Any]
    tensor_sha256: str
    versions: dict[str, str]


def build(
    matrix: Matrix,
    schemes: Sequence[Scheme],
    source: Mapping[str, str | None],
    element: tuple[int, int] | None = None,
) -> Content:
    """The report of ``matrix`` under one or two schemes. ``source`` says where it came from (``file``,
    ``tensor``, ``revision``), for the command that repeats this; ``element``: (row, column) to look into, by
    default A's largest error. ``ValueError`` for other counts of schemes or an element outside."""
    if not 1 <= len(schemes) <= 2:
        raise ValueError(f"a report has one or two schemes, not {len(schemes)}")
    x = matrix.values
    analyses = [analyse_anywhere(x, scheme) for scheme in schemes]
    sides = [Side(_label(s), a) for s, a in zip(schemes, analyses, strict=True)]
    at = element or analyses[0].report.max_error_at
    if not (0 <= at[0] < x.shape[0] and 0 <= at[1] < x.shape[1]):
        raise ValueError(f"no element ({at[0]}, {at[1]}) in {x.shape[0]} × {x.shape[1]}")
    rows = mark_frontier(survey(x, SCHEMES.values()))
    verdict, why = judged(*analyses)
    numbers = {
        **_numbers_of(analyses),
        **{f"frontier.{r.scheme}": r.report.sqnr_db for r in rows},
    }
    names = " and ".join(_label(s) for s in schemes)
    parts = [
        _key_numbers(analyses, schemes),
        _frontier(rows, analyses, schemes),
        _errors(sides, at),
        _element(matrix, sides, at),
        *_calibration(x, schemes[0]),
        *_speed(schemes),
    ]
    recipe = {**source, "schemes": [str(s) for s in schemes], "element": list(at)}
    digest, versions = sha256_of(x), _versions()
    provenance = {
        "tensor": matrix.description,
        "its SHA-256 (float32, row-major, with its shape)": digest,
        "command": command_of(recipe),
        **versions,
    }
    return Content(
        title=f"{matrix.name or 'Tensor'}: {names}",
        lead=(verdict, *([why] if why else [])),
        parts=tuple(parts),
        appendix=(
            _method(schemes),
            Part("Provenance", (), (Table("provenance", ("what", "value"), tuple(provenance.items())),)),
        ),
        numbers={name: value for name, value in numbers.items() if math.isfinite(value)},
        recipe=recipe,
        tensor_sha256=digest,
        versions=versions,
    )


def sha256_of(x: torch.Tensor) -> str:
    """Of the matrix as float32 bytes in row-major order, with its shape before them."""
    digest = hashlib.sha256(repr(tuple(x.shape)).encode())
    digest.update(x.detach().to("cpu", torch.float32).contiguous().numpy().tobytes())
    return digest.hexdigest()


def command_of(recipe: dict[str, Any], out: str = "report.html") -> str:
    """The command that builds the report again."""
    row, column = recipe["element"]
    command = [
        "python",
        "-m",
        "explorer",
        "report",
        str(recipe["file"]),
        "--schemes",
        ",".join(recipe["schemes"]),
    ]
    for option in ("tensor", "revision"):
        if recipe.get(option):
            command += [f"--{option}", str(recipe[option])]
    return shlex.join([*command, "--element", f"{row},{column}", "--out", out])


def _label(scheme: Scheme) -> str:
    return scheme.label or str(scheme)


QUANTITIES = (
    ("SQNR (dB)", "sqnr_db", 1),
    ("relative error ‖x̂ − x‖ / ‖x‖", "relative_error", 1),
    ("largest error", "max_error", 1),
    ("cosine", "cosine", 1),
    ("rounded to zero (%)", "zeroed", 100),
    ("clipped (%)", "clipped", 100),
)
"""Rows of the table of key numbers: in words, a report's attribute, and what it is shown times."""


def _numbers_of(analyses: Sequence[Analysis]) -> dict[str, float]:
    numbers = {}
    for letter, analysis in zip(LETTERS, analyses, strict=False):
        report = analysis.report
        for _, name, _ in QUANTITIES:
            numbers[f"{letter}.{name}"] = float(getattr(report, name))
        numbers |= {f"{letter}.bits": report.bits.total, f"{letter}.nbytes": float(report.nbytes)}
    return numbers


def _key_numbers(analyses: Sequence[Analysis], schemes: Sequence[Scheme]) -> Part:
    reports = [a.report for a in analyses]
    rows: list[tuple[Any, ...]] = [
        (text, *(times * float(getattr(r, name)) for r in reports)) for text, name, times in QUANTITIES
    ]
    rows += [("bits per element, scales included", *(r.bits.total for r in reports))]
    rows += [("bytes", *(r.nbytes for r in reports))]
    headers = ("quantity", *(f"{x}: {_label(s)}" for x, s in zip(LETTERS, schemes, strict=False)))
    sentences = [f"{x}: {s.describe()}" for x, s in zip(LETTERS, schemes, strict=False)]
    return Part("In numbers", tuple(sentences), (Table("numbers", headers, tuple(rows)),))


def _frontier(rows: Sequence[ComparisonRow], analyses: Sequence[Analysis], schemes: Sequence[Scheme]) -> Part:
    chosen = [ComparisonRow(s, a.report) for s, a in zip(schemes, analyses, strict=True)]
    table = tuple(
        (
            _label(r.scheme),
            str(r.scheme),
            r.report.bits.total,
            r.report.sqnr_db,
            "yes" if r.on_frontier else "",
        )
        for r in sorted(rows, key=lambda r: r.report.bits.total)
    )
    reading = (
        "Every named scheme on this tensor: right is larger, up is more accurate. No other scheme is more "
        "accurate at the same bits than those on the dotted line. The rings are A and B."
    )
    return Part(
        "Among all schemes",
        (),
        (Table("schemes", ("scheme", "text", "bits", "SQNR (dB)", "on the frontier"), table),),
        (("frontier", frontier_figure(rows, "report", *chosen), reading),),
    )


def _errors(sides: Sequence[Side], at: tuple[int, int]) -> Part:
    shape = sides[0].analysis.q.shape
    maps = error_map_figures(sides, shape, at, "report")
    reading = "Each cell shows the largest |error| under it; the mark is the element below."
    named = zip(LETTERS, maps, strict=False)
    return Part(
        "Where the error is",
        (),
        (),
        (
            ("errors", error_figure(sides, "report"), "How far each element moved, as shares of all."),
            *((f"error-map-{letter.lower()}", fig, f"{letter}. {reading}") for letter, fig in named),
        ),
    )


def _element(matrix: Matrix, sides: Sequence[Side], at: tuple[int, int]) -> Part:
    seen = [inspect_element(matrix.values, side.analysis.q, *at) for side in sides]
    tables = tuple(
        Table(f"element-{letter.lower()}", ("quantity", f"{letter}: {side.label}"), tuple(e.arithmetic))
        for letter, side, e in zip(LETTERS, sides, seen, strict=False)
    )
    levels = [block_levels(side.analysis.q, *at) for side in sides]
    figure = values_figure(sides[0].analysis.before, sides, levels, "report")
    reading = "Grey: the tensor; coloured: what it became; ticks: what the element's block can represent."
    value = f"{seen[0].value:.9g}"
    place = f"The element in row {at[0]}, column {at[1]} is {value}. Its arithmetic, with the numbers:"
    return Part("One element", (place,), tables, (("values", figure, reading),))


def _calibration(x: torch.Tensor, scheme: Scheme) -> list[Part]:
    """What each calibrator would choose as A's range with one scale; nothing where a scheme has none, or
    there is nothing but zeros."""
    if scheme.scale is None or not bool(x.any()):
        return []
    report = compare_calibrators(x, scheme)
    figure = objectives_figure(report, "report")
    reading = "What each calibrator minimises over the threshold, with the point that it chooses."
    return [Part("The range", (calibration_summary(report),), (), (("calibration", figure, reading),))]


def _speed(schemes: Sequence[Scheme]) -> list[Part]:
    """Recorded products of one token, with those that take A's and B's weights marked."""
    recording = recorded_gemms()
    here = at_shape(recording.rows, DECODE)
    if not here:
        return []
    marked = {n: x for x, s in reversed([*zip(LETTERS, schemes, strict=False)]) for n in products_of(s)}
    shape = " × ".join(map(words.count, DECODE))
    source = f"{recording.sentence}; not on the machine that made this report."
    of_random = (
        "The error in this sentence is that of the product's output on random normal data, not on this "
        f"tensor; {ENOUGH_DB:.0f} dB, a tenth of the signal, is what one layer can usually afford."
    )
    own = [
        f"{letter} as weights: {t.label}, {words.duration(t.seconds)} ({t.variant})."
        for t in fastest(here)
        if (letter := marked.get(t.gemm))
    ]
    said = (source, summary(points(here), here, shape), of_random, *own)
    reading = f"One token, {shape}: each product's fastest kernel, torch, and the chip's modelled limit."
    return [Part("Speed", said, (), (("speed", speed_figure(here, "report", marked), reading),))]


def _method(schemes: Sequence[Scheme]) -> Part:
    return Part(
        "Method",
        (
            "A scheme cuts the matrix into blocks, finds a range for each (here as its name says, by default "
            "the smallest and the largest value), divides by the step, rounds to the nearest code (ties to "
            "even), and stores codes and scales. Restored values are code times step.",
            "SQNR is 10 · log10(Σx² / Σ(x̂ − x)²): 6 dB more is half the error. Bits per element are of "
            "codes, scales and zero points.",
            "The frontier is computed on a sample of rows where the tensor is large; A and B on all of it.",
            *(f"{s}: {s.describe()}" for s in schemes),
        ),
    )


def _versions() -> dict[str, str]:
    machine = this_machine(work_device(), ("numpy", "plotly"))
    chip = machine.chip or "this machine"
    return {
        "quantization-explorer": __version__,
        "commit": machine.commit,
        "machine": chip,
        "torch": machine.torch,
        "python": machine.python,
        "date": machine.date,
        **machine.packages,
    }
