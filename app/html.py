"""Pieces of HTML, each from a template of ``app/templates``. The templates escape whatever they are given.

Names of tensors, layers and files come from visitors, and ``gr.HTML`` runs what it is given as markup: every
piece of the page that holds such a name goes through here.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from app import glossary
from explorer.analysis.element import Inspection
from explorer.analysis.memory import MemoryEstimate
from explorer.analysis.report import Report
from explorer.bench.quantize import QuantizeTiming, kernel_file
from explorer.formats import FORMATS, BitField, FloatFormat, Format
from explorer.schemes import Scheme


class JoinLines(Extension):
    """Joins a template's lines before it is parsed, so that its indentation does not reach the page."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """``source`` in one line: nothing before a tag or an expression, one blank before anything else."""
        return re.sub(r"\s*\n\s*", " ", re.sub(r"\s*\n\s*(?=[<{]|$)", "", source))


_RAISED = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float) -> str:
    """A number for reading: seven digits, a real minus sign, powers of ten as such."""
    digits, _, power = f"{value:.7g}".partition("e")
    raised = f" × 10{str(int(power)).translate(_RAISED)}" if power else ""
    return digits.replace("-", "−") + raised


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    extensions=[JoinLines],
)
_TEMPLATES.filters |= {"number": number, "linked": glossary.linked}
_TEMPLATES.globals["term"] = glossary.term


def render(name: str, **values: Any) -> str:
    """The template ``name`` of ``app/templates``, filled with ``values``."""
    return _TEMPLATES.get_template(f"{name}.html").render(**values)


def header(badge: str, gpu: bool, native: tuple[str, ...]) -> str:
    """Title and badge; ``native`` are the formats that the GPU's tensor cores multiply themselves."""
    if native:
        badge += f" · native: {', '.join(native)}"
    return render("header", badge=badge, gpu=gpu)


def summary_line(tensor: str, scheme: Scheme) -> str:
    """Which tensor is shown, and the sentence that says which scheme."""
    return render("summary_line", tensor=tensor, scheme=scheme)


@dataclass(frozen=True)
class Tile:
    """One key number with its unit and a remark below it."""

    name: str
    value: str
    unit: str
    note: str


def kpis(report: Report) -> str:
    """The strip of key numbers of one report."""
    bits = report.bits
    row, column = report.max_error_at
    used = f"{report.codes_used} of {report.code_count} codes" if report.codes_used is not None else ""
    entropy = f", {report.entropy_bits:.2f} bits of entropy" if report.entropy_bits is not None else ""
    tiles = (
        Tile("SQNR", _decibels(report.sqnr_db), "dB", f"relative error {report.relative_error:.3g}"),
        Tile("Largest error", f"{report.max_error:.3g}", "", f"at row {row}, column {column}"),
        Tile("Bits per element", f"{bits.total:.4g}", "", _itemised(report)),
        Tile("Size", _bytes(report.nbytes), "", f"{100 * bits.total / 16:.3g} % of FP16"),
        Tile("Rounded to zero", f"{100 * report.zeroed:.3g}", "%", f"clipped {100 * report.clipped:.3g} %"),
        Tile("Cosine", f"{report.cosine:.6f}", "", used + entropy),
    )
    return render("kpis", tiles=tiles)


def _itemised(report: Report) -> str:
    """What the bits of an element are spent on: "4 codes + 0.125 scales"."""
    bits = report.bits
    parts = (
        ("codes", bits.codes),
        ("scales", bits.scales),
        ("zero points", bits.zero_points),
        ("tensor scale", bits.tensor_scale),
        ("padding", bits.padding),
    )
    return " + ".join(f"{value:.3g} {label}" for label, value in parts if value >= 5e-4)


def inspector(seen: Inspection) -> str:
    """An element, its block, its code's bits and the arithmetic between them."""
    return render("inspector", seen=seen, cells=_bit_cells(seen.bits, seen.fields))


def packed(seen: Inspection, scheme: Scheme) -> str:
    """The bytes that hold the inspected block's codes in the inspected row."""
    return render("packed", seen=seen, bits=scheme.format.packed_bits)


def kernel(timing: QuantizeTiming, where: str) -> str:
    """What a kernel cost; ``where`` says on what and how it was measured."""
    time, share, copy = timing.time, 100 * timing.share, timing.copy_gigabytes_per_s
    low, high = 1e6 * time.low_s, 1e6 * time.high_s
    rows = (
        ("kernels", " → ".join(timing.kernels)),
        ("files", ", ".join(dict.fromkeys(f"kernels/{kernel_file(kernel)}" for kernel in timing.kernels))),
        ("input", f"{timing.shape[0]}×{timing.shape[1]} {timing.dtype}"),
        ("time", f"{1e6 * time.median_s:.1f} µs, 10th to 90th percentile {low:.1f} to {high:.1f}"),
        ("memory", f"{timing.bytes_moved / 1e6:.1f} MB moved, {timing.gigabytes_per_s:.0f} GB/s"),
        ("share", f"{share:.0f} % of a device-to-device copy ({copy:.0f} GB/s)"),
        ("resources", f"{timing.registers} registers a thread, {100 * timing.occupancy:.0f} % occupancy"),
    )
    return render("kernel", where=where, rows=rows)


class BitCell(NamedTuple):
    """One bit of a code: "0" or "1", its place (0 is the lowest), and the field that it belongs to."""

    digit: str
    place: int
    field: str


def _bit_cells(text: str, fields: Sequence[BitField]) -> list[BitCell]:
    places = range(len(text) - 1, -1, -1)
    names = [next(f.name for f in fields if f.low <= place <= f.high) for place in places]
    return [BitCell(*cell) for cell in zip(text, places, names, strict=True)]


@dataclass(frozen=True)
class FormatRow:
    """A format with what the table of formats says of it beside its own fields."""

    format: Format
    fields: str
    count: str
    specials: str


def format_table() -> Markup:
    """All formats: fields, range, and the hardware that multiplies them."""
    rows = [
        FormatRow(
            f,
            f"{int(f.signed)}/{f.exponent}/{f.mantissa}" if isinstance(f, FloatFormat) else "–",
            f"{len(f.levels)}" if f.bits <= 8 else "–",
            _specials(f),
        )
        for f in FORMATS.values()
    ]
    return Markup(render("format_table", rows=rows))


def _specials(fmt: Format) -> str:
    if not fmt.has_nan:
        return "none"
    return "Inf, NaN" if isinstance(fmt, FloatFormat) and fmt.has_infinity else "NaN"


def memory(rows: Sequence[MemoryEstimate], chosen: str) -> str:
    """Sizes by scheme; the sidebar's own is marked."""
    return render("memory", rows=rows, chosen=chosen)


def figure_title(title: str, about: str) -> str:
    """A heading and, below it, what to look for."""
    return render("figure_title", title=title, about=about)


def sentence(message: str) -> str:
    """A conclusion in words, set apart from the figures that it is drawn from; nothing for an empty one."""
    return render("sentence", message=message)


def status(message: str) -> str:
    """The state of a run, or why it was refused; a screen reader announces it."""
    return render("status", message=message)


def note(words: str) -> str:
    """A remark in small print. ``words`` are the project's own and may hold markup."""
    return render("note", words=Markup(words))


def _decibels(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.2f}"


def _bytes(count: int) -> str:
    for unit, size in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        if count >= size:
            return f"{count / size:.3g} {unit}"
    return f"{count} B"
