"""Pieces of HTML, each from a template of ``app/templates``. The templates escape whatever they are given.

Names of tensors, layers and files come from visitors, and ``gr.HTML`` runs what it is given as markup: every
piece of the page that holds such a name goes through here.
"""

from __future__ import annotations

import dataclasses
import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import quote

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from jinja2.ext import Extension
from markupsafe import Markup

from app import glossary, limits
from app.parts.pictures import Bars
from explorer import words
from explorer.analysis.answer import Answer
from explorer.analysis.element import Inspection
from explorer.analysis.estimate import Estimate
from explorer.analysis.goals import AT_MOST, MOST, Goal
from explorer.analysis.memory import MemoryEstimate, left_on, sizes_that_differ
from explorer.analysis.report import Report
from explorer.analysis.shortlist import TOKENS, Candidate, Pending, Race, RowTime
from explorer.formats import FORMATS, BitField, FloatFormat, Format
from explorer.formats.code import short
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.products.advice import ENOUGH_DB, Advice
from explorer.recordings.quantize import QuantizeTiming, kernel_file
from explorer.schemes import Scheme
from explorer.words import percent


class JoinLines(Extension):
    """Joins a template's lines before it is parsed, so that its indentation does not reach the page."""

    def preprocess(self, source: str, name: str | None, filename: str | None = None) -> str:
        """``source`` in one line: nothing before a tag or an expression, one blank before anything else."""
        return re.sub(r"\s*\n\s*", " ", re.sub(r"\s*\n\s*(?=[<{]|$)", "", source))


_TEMPLATES = Environment(
    loader=FileSystemLoader(Path(__file__).with_name("templates")),
    autoescape=True,
    undefined=StrictUndefined,
    extensions=[JoinLines],
)
_TEMPLATES.filters |= {
    "number": short,
    "linked": glossary.linked,
    "duration": words.duration,
    "kernel_name": words.kernel_name,
}
_TEMPLATES.globals["term"] = glossary.term


def render(name: str, **values: Any) -> Markup:
    """The template ``name`` of ``app/templates``, with ``values``, which it escapes."""
    return Markup(_TEMPLATES.get_template(f"{name}.html").render(**values))


def render_text(text: str, **values: Any) -> str:
    """The template ``text``, with ``values``, which it escapes."""
    return _TEMPLATES.from_string(text).render(**values)


def header(
    badge: str,
    gpu: bool,
    native: tuple[str, ...],
    places: Sequence[tuple[str, str]],
    names: Mapping[str, Any],
    moved: Mapping[str, Any],
) -> str:
    """Title, places and badge; ``native`` are the formats that the GPU's tensor cores multiply themselves,
    ``names`` and ``moved`` those of links."""
    if native:
        badge += f" · native: {', '.join(native)}"
    return render("header", badge=badge, gpu=gpu, places=places, names=names, moved=moved)


def chips(tensor: str, schemes: Sequence[Scheme | Recipe], model: str = "", of_model: bool = False) -> str:
    """The bar's buttons: the tensor, or the model and its layer (``of_model``: the tensor is one), scheme A,
    and scheme B or the offer of one."""
    first, *others = map(_short, schemes)
    second = others[0] if others else ""
    return render("chips", tensor=tensor, first=first, second=second, model=model, of_model=of_model)


def _short(scheme: Scheme | Recipe) -> str:
    """The label, a method before its scheme: long ones are cut at their end."""
    if isinstance(scheme, Recipe) and scheme.method:
        return f"by {label_of(scheme.method)}: {scheme.scheme.label}"
    return scheme.label


def verdict(
    tensor: str, schemes: Sequence[Scheme | Recipe], words: str, why: str = "", waits: bool = False
) -> str:
    """Heading of the Tensor place: the tensor, the schemes, their assessment, and its reason; ``waits``: the
    reason is still computed, and has room where it will stand."""
    marked = list(zip(SIDES, schemes, strict=False))
    return render("verdict", tensor=tensor, schemes=marked, words=words, why=why, waits=waits)


SIDES = ("A", "B")


class Number(NamedTuple):
    """A key number of one scheme: its text, and a remark, which leads to the element that it names:
    ``leads`` are the changes of the address."""

    text: str
    note: str
    leads: str = ""


@dataclass(frozen=True)
class Tile:
    """A key number of each scheme, in a common unit, with what B has more or less than A."""

    name: str
    term: str
    unit: str
    numbers: tuple[tuple[str, Number], ...]
    difference: str


def kpis(
    reports: Sequence[Report], outputs: Sequence[float] = (), sampled: Sequence[Estimate | None] = ()
) -> str:
    """The row of key numbers of one report, or of two with their differences. ``outputs``: where a method
    works for it, the SQNR in dB of the layer's output by each. ``sampled``: for each report the estimate that
    it is of, None where it is of the whole tensor."""
    rows = (
        ("SQNR", "SQNR", "dB", _sqnr, lambda r: r.sqnr_db, "+.2f", " dB"),
        ("Bits per element", "bits per element", "", _bits, lambda r: r.bits.total, "+.3g", " bits"),
        ("Size", "bits per element", "", _size, lambda r: r.nbytes, "%", " %"),
        ("Largest error", "", "", _largest, lambda r: r.max_error, "%", " %"),
        ("Rounded to zero", "", "%", _zeroed, lambda r: 100 * r.zeroed, "+.3g", " points"),
        ("Cosine", "cosine", "", _cosine, lambda r: r.cosine, "+.2g", ""),
    )
    tiles = [
        _tile(name, term, unit, [text(r) for r in reports], [float(value(r)) for r in reports], how, of)
        for name, term, unit, text, value, how, of in rows
    ]
    if any(sampled):
        tiles = [_of_sample(tile, sampled) for tile in tiles]
    else:
        tiles = [_leading(tile, reports) if tile.name == "Largest error" else tile for tile in tiles]
    if outputs:
        numbers = [Number(_decibels(db), "on held-out inputs") for db in outputs]
        tiles.insert(0, _tile("Output SQNR", "SQNR", "dB", numbers, outputs, "+.2f", " dB"))
    return render("kpis", tiles=tiles)


def _leading(tile: Tile, reports: Sequence[Report]) -> Tile:
    """The tile with remarks that lead to the elements of the largest errors."""
    numbers = [
        (mark, number._replace(leads=_leads_to(mark, report.max_error_at)))
        for (mark, number), report in zip(tile.numbers, reports, strict=True)
    ]
    return dataclasses.replace(tile, numbers=tuple(numbers))


def _of_sample(tile: Tile, sampled: Sequence[Estimate | None]) -> Tile:
    """The tile with numbers of a sample marked as estimates or lower bounds; bits and bytes are exact."""
    if tile.name in ("Bits per element", "Size"):
        return tile
    least = tile.name == "Largest error"
    numbers = []
    for (side, number), one in zip(tile.numbers, sampled, strict=True):
        if one is None:
            numbers.append((side, number))
            continue
        part = percent(one.share)
        note = f"of {part} of the tensor"
        if least:
            note = f"at least, of {part}"
        elif one.half_db is not None and tile.name == "SQNR":
            note = f"± {one.half_db:.2g} dB, of {part}"
        elif one.uneven:
            note = f"{part}, most in few rows"
        elif one.own_range:
            note = f"{part}, by its own range"
        numbers.append((side, Number(f"{'≥' if least else '≈'} {number.text}", note)))
    difference = f"≈ {tile.difference}" if tile.difference and tile.difference != "the same" else ""
    return dataclasses.replace(tile, numbers=tuple(numbers), difference="" if least else difference)


def _tile(
    name: str,
    term: str,
    unit: str,
    numbers: Sequence[Number],
    values: Sequence[float],
    how: str,
    of: str,
) -> Tile:
    same = len({number.text for number in numbers}) < len(numbers)
    difference = "the same" if same else _difference(values, how, of)
    return Tile(name, term, unit, tuple(zip(SIDES, numbers, strict=False)), difference)


def _difference(values: Sequence[float], how: str, unit: str) -> str:
    """Difference between the second value and the first: a signed number with its unit, or a share of the
    first."""
    if len(values) < 2 or not all(math.isfinite(v) for v in values):
        return ""
    first, second = values
    if how == "%":
        if first == 0:
            return ""
        first, second, how = 100.0, 100 * second / first, "+.3g"
    return f"{format(second - first, how)}{unit}".replace("-", "−")


def _sqnr(report: Report) -> Number:
    return Number(_decibels(report.sqnr_db), f"relative error {report.relative_error:.3g}")


def _largest(report: Report) -> Number:
    row, column = report.max_error_at
    return Number(words.number(report.max_error), f"at row {row}, column {column}")


def _bits(report: Report) -> Number:
    return Number(f"{report.bits.total:.4g}", _itemised(report))


def _size(report: Report) -> Number:
    return Number(words.bytes_(report.nbytes), f"{100 * report.bits.total / 16:.3g} % of FP16")


def _zeroed(report: Report) -> Number:
    return Number(f"{100 * report.zeroed:.3g}", f"clipped {100 * report.clipped:.3g} %")


def _cosine(report: Report) -> Number:
    used = f"{report.codes_used} of {report.code_count} codes" if report.codes_used is not None else ""
    entropy = f", {report.entropy_bits:.2f} bits of entropy" if report.entropy_bits is not None else ""
    return Number(f"{report.cosine:.6f}", used + entropy)


def _itemised(report: Report) -> str:
    """Breakdown of the bits per element: "4 codes + 0.125 scales"."""
    bits = report.bits
    parts = (
        ("codes", bits.codes),
        ("scales", bits.scales),
        ("zero points", bits.zero_points),
        ("tensor scale", bits.tensor_scale),
        ("of the method", bits.added),
        ("padding", bits.padding),
    )
    return " + ".join(f"{value:.3g} {label}" for label, value in parts if value >= 5e-4)


def inspector(
    seen: Sequence[Inspection],
    labels: Sequence[str],
    worst: Sequence[tuple[int, int]],
    shape: tuple[int, int],
) -> str:
    """An element of a matrix of ``shape`` and, by each scheme, its block, its code's bits and the arithmetic
    between them; ``worst``: where each scheme errs most."""
    sides = [
        (mark, label, one, _bit_cells(one.bits, one.fields), _leads_to(mark, at))
        for mark, label, one, at in zip(SIDES, labels, seen, worst, strict=False)
    ]
    return render("inspector", first=seen[0], sides=sides, shape=shape)


def _leads_to(mark: str, at: tuple[int, int]) -> str:
    """Changes of the address that inspect where a scheme errs most; A is followed from then on."""
    row, column = ("", "") if mark == SIDES[0] else map(str, at)
    return json.dumps({"row": row, "column": column})


def packed(seen: Sequence[Inspection], schemes: Sequence[Scheme]) -> str:
    """The bytes that hold the inspected blocks' codes in the inspected row."""
    sides = [
        (mark, one, scheme.format.packed_bits)
        for mark, scheme, one in zip(SIDES, schemes, seen, strict=False)
    ]
    return render("packed", row=seen[0].row, sides=sides)


def kernel(timing: QuantizeTiming, where: str) -> str:
    """Timing of a kernel; ``where`` describes the machine and the measurement."""
    share, copy = 100 * timing.share, timing.copy_gigabytes_per_s
    median, low, high = map(words.duration, (timing.time.median_s, timing.time.low_s, timing.time.high_s))
    rows = (
        ("kernels", " → ".join(timing.kernels)),
        ("files", ", ".join(dict.fromkeys(f"kernels/{kernel_file(kernel)}" for kernel in timing.kernels))),
        ("input", f"{timing.shape[0]}×{timing.shape[1]} {timing.dtype}"),
        ("time", f"{median}, 10th to 90th percentile {low} to {high}"),
        ("memory", f"{words.bytes_(timing.bytes_moved)} moved, {timing.gigabytes_per_s:,.0f} GB/s"),
        ("share", f"{share:.0f} % of a device-to-device copy ({copy:,.0f} GB/s)"),
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
    """A format, with further columns of the table of formats."""

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
    return render("format_table", rows=rows)


def _specials(fmt: Format) -> str:
    if not fmt.has_nan:
        return "none"
    return "Inf, NaN" if isinstance(fmt, FloatFormat) and fmt.has_infinity else "NaN"


def memory(rows: Sequence[MemoryEstimate], chosen: Sequence[str]) -> str:
    """Sizes by scheme, and what each leaves free on GPUs on which the schemes differ; A and B, which are
    ``chosen``, are marked."""
    by_model = all(row.linears_only is not None for row in rows)
    gpus = sizes_that_differ([row.linears_only or row.everything for row in rows])
    unit, power = ("G", 3) if max(row.everything for row in rows) >= 1e8 else ("M", 2)
    head = [
        "Scheme",
        "Bits per weight",
        *([f"{unit}B, embedding and head kept"] if by_model else []),
        *(f"{unit}{what}, all quantized" if by_model else f"{unit}{what}" for what in ("B", "iB")),
        *(f"Left on {size:g} GB" for size in gpus),
    ]
    lines = []
    for row in rows:
        parts = [row.linears_only] if row.linears_only is not None and by_model else []
        sizes = [*(x / 1000**power for x in (*parts, row.everything)), row.everything / 1024**power]
        left = [left_on(row.linears_only or row.everything, size) for size in gpus]
        lines.append(vars(row) | {"sizes": [*map(words.number, sizes)], "left": left})
    return render(
        "memory", head=head, rows=lines, chosen=dict(zip(chosen, SIDES, strict=False)), by_model=by_model
    )


def figure_title(title: str, about: str) -> str:
    """A heading and, below it, what to look for."""
    return render("figure_title", title=title, about=about)


def sentence(message: str) -> str:
    """A conclusion in words, set apart from the figures that it is drawn from; nothing for an empty one.
    Words in backticks are set as code."""
    return render("sentence", pieces=message.split("`") if message else [])


def advice(rows: Sequence[Advice], title: str, against: str = "torch's BF16") -> str:
    """The product to take at each shape, as a table, and why where its error is larger than the ``title``
    wants; ``against``: what it is compared with. Nothing for no rows."""
    if not rows:
        return ""
    return render("advice", rows=rows, title=title, enough=ENOUGH_DB, against=against.replace("'", "’"))


def status(message: str) -> str:
    """The state of a run, or why it was refused; a screen reader announces it."""
    return render("status", message=message, kind="")


def computing(message: str) -> str:
    """``status`` of what is computed because it is seen: empty figures of its section say so as well, until
    something else stands here."""
    return render("status", message=message, kind="computing")


def refusal(message: str) -> str:
    """``status`` of why a section shows nothing: what it would have filled (``of_result``) takes no room."""
    return render("status", message=message, kind="refusal")


def commands(lines: Sequence[str]) -> str:
    """Commands to copy."""
    return render("commands", lines=lines)


def downloads(files: Sequence[Path]) -> str:
    """Links to files of ``state.files.fresh_folder``, with their sizes, as long as they are kept; nothing for
    none."""
    there = [path for path in files if path.is_file()]
    links = [(quote(str(path)), path.name, words.bytes_(path.stat().st_size)) for path in there]
    return render("downloads", links=links) if links else ""


class Cell(NamedTuple):
    """A cell of ``scheme_table``: its text, the number that it is sorted by, and whether its column holds
    numbers."""

    text: str
    value: float | None = None
    number: bool = False

    @classmethod
    def of(cls, value: str | float | None, mark: str = "") -> Cell:
        """A text, or a number to five digits with a ``mark`` before it; a dash for one that is not finite."""
        if isinstance(value, str):
            return cls(value)
        finite = value is not None and math.isfinite(value)
        return cls(f"{mark}{value:.5g}", value, True) if finite else cls("–", None, True)


def scheme_table(
    name: str,
    heads: Sequence[str],
    rows: Sequence[tuple[str, Sequence[Cell]]],
    pair: tuple[str, str] | None = None,
) -> str:
    """A table that its headings sort. Before the cells of each row stands the text of the scheme or recipe
    that the row makes A or B: ``pair`` are the texts of those now, None where none can be taken."""
    lines = []
    for text, cells in rows:
        keys = zip(SIDES, ("scheme", "second"), pair or (), strict=False)
        buttons = [(side, json.dumps({key: text}), text == own) for side, key, own in keys if text]
        lines.append({"cells": cells, "buttons": buttons, "marks": any(on for *_, on in buttons)})
    return render("scheme_table", table=name, heads=heads, rows=lines, any=pair is not None)


def select(
    key: str,
    label: str,
    groups: Sequence[tuple[str, Mapping[str, str]]],
    holds: str,
    usual: str = "",
) -> str:
    """A list of the values of ``key`` in an address, for options that depend on what is shown: groups of
    labels by value, each with a title or "". The value ``holds`` is chosen."""
    return render("select", key=key, label=label, groups=groups, holds=holds, usual=usual)


def table(head: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    """A table of texts; all columns but the first are of numbers and short words."""
    return render("table", head=head, rows=rows)


def heading(title: str, about: str) -> str:
    """The heading of a section."""
    return render("heading", title=title, about=about)


def note(words: str) -> str:
    """A remark in small print."""
    return render("note", words=words)


def _decibels(value: float) -> str:
    return "∞" if value == float("inf") else f"{value:.2f}"


TIME_HEADS = {1: "1 token", 64: "64", 4096: "4,096"}
"""Heads of the shortlist's times, by the number of tokens."""


def answer(said: Answer, why: str = "numbers") -> str:
    """The sentence above the frontier, A and B in their colours; ``why``: the section that explains it."""
    return render("answer", parts=said.parts, better=said.better, why=why)


def figure_head(goal: Goal, part: str) -> str:
    """The heading of the frontier, with what ``part`` of it is shown: the goal's, "all", or a "table"."""
    low, high = goal.bits
    parts = {"": f"{low:.3g}–{high:.3g} bits", "all": "all", "table": "table"}
    return render("figure_head", parts=parts, shown="" if part == "part" else part)


def footnote(words: str, link: str) -> str:
    """What was measured on another model, in small print, with where to read more."""
    return render("footnote", words=words, link=link)


def notice(message: str) -> str:
    """A line that lies over the page until it is dismissed, or the next answer takes its place."""
    return render("notice", message=message)


def drop(kinds: Sequence[str] = (".safetensors", ".npy", ".npz", ".csv")) -> str:
    """The permanent place to drop or paste a tensor, and the other ways to open one. It also keeps the name
    of a file that was refused."""
    return render("drop", kinds=kinds, accepted=limits.current().sources.suffixes)


class SampleButton(NamedTuple):
    """A built-in tensor's button: its name in links, label, explanation, and picture as a data URI."""

    name: str
    label: str
    title: str
    picture: str


def samples(buttons: Sequence[SampleButton], chosen: str = "") -> str:
    """Buttons with pictures of the built-in tensors; ``chosen`` is pressed."""
    return render("samples", samples=buttons, chosen=chosen)


def picture(
    name: str,
    shape: tuple[int, int],
    dtype: str,
    source: str,
    bars: Bars | None,
    photo: bool = False,
    among: int = 1,
) -> str:
    """The tensor: ``source`` is a data URI of its picture, of a ``photo`` in its proportions; its file holds
    ``among`` tensors. With "" and without ``bars`` it is said that both follow."""
    rows, columns = shape
    size = f"{rows:,} × {columns:,}"
    return render(
        "picture",
        tensor=name,
        shape=size,
        dtype=dtype,
        picture=source,
        bars=bars,
        rows=rows,
        columns=columns,
        photo=photo,
        among=among,
    )


def goals(offered: Sequence[Goal], chosen: Goal) -> str:
    """The one question: good enough for what. ``chosen`` may be a size that is not among those offered."""
    size = chosen.name.removeprefix(AT_MOST) if chosen.most_bits is not None else ""
    return render("goals", goals=offered, chosen=chosen.name, size=size)


NO_TIME = "no product with these weights is timed"


class ShortlistTime(NamedTuple):
    """A time in words, whether it was "measured" or is that of the "nearest" recorded shape, and of what."""

    text: str
    how: str
    note: str


@dataclass(frozen=True)
class ShortlistRow:
    """One row of the shortlist, in words; ``at``: the place of the largest error, None of a sample."""

    text: str
    label: str
    name: str
    letter: str
    bits: str
    size: str
    times: tuple[ShortlistTime, ...]
    held: str
    db: str
    off: str = ""
    output: str = ""
    worst: str = "–"
    at: tuple[int, int] | None = None
    part: str = ""


class Suggestion(NamedTuple):
    """A scheme that may be taken into the shortlist: its text and its short name."""

    text: str
    name: str


def shortlist(
    candidates: Sequence[Candidate | Pending],
    a: str,
    b: str = "",
    race: Race | None = None,
    shape: tuple[int, int] = (0, 0),
    more: Sequence[Suggestion] = (),
    measure: bool = False,
    by_now: str = "",
    codes: str = "",
    codes_words: str = "",
) -> str:
    """The table of up to five schemes of a tensor [rows, cols]. ``a`` and ``b`` are the texts of the chosen
    ones; ``race``: times of their products, and of BF16; ``more`` are suggested; ``measure``: products can be
    timed here; ``by_now``: for the script, what was known when the rows were made; ``codes``: "gptq" where
    that chooses them; ``codes_words``: why it cannot."""
    tokens = [n for n in TOKENS if race and any(time_at(race, c.text, n) for c in candidates)]
    letters = {b: "B"} | {a: "A"}
    rows = [_shortlist_row(c, letters.get(c.text, ""), race, tokens) for c in candidates]
    notes = [f"{short_name(c.label)}: {note}" for c in candidates if (note := _note(c))]
    bf16 = [next((t for t in race.bf16 if t.tokens == n), None) for n in tokens] if race else []
    return render(
        "shortlist",
        rows=rows,
        tokens=[TIME_HEADS[n] for n in tokens],
        bf16=[_shortlist_time(time) for time in bf16],
        outputs=any(row.output for row in rows),
        times=_times_words(race, shape) if race and tokens else "",
        notes=[*notes, *_untimed(candidates, race, tokens)],
        most=MOST,
        more=more,
        measure=measure,
        by_now=by_now,
        codes=codes,
        codes_words=codes_words,
    )


def time_at(race: Race, text: str, tokens: int) -> RowTime | None:
    """The time of the scheme ``text`` with this number of tokens; None where none was recorded."""
    found = next((time for time in race.times.get(text, ()) if time.tokens == tokens), None)
    return found if found and found.seconds else None


def _note(one: Candidate | Pending) -> str:
    """Why a row has no error, or none of the whole tensor; empty if it has, or will have."""
    return one.refused if isinstance(one, Pending) else one.note


def _untimed(
    candidates: Sequence[Candidate | Pending], race: Race | None, tokens: Sequence[int]
) -> list[str]:
    """Why some of the table's times are not there: the reasons, each once."""
    times = [t for c in candidates if race for t in race.times.get(c.text, ()) if t.tokens in tokens]
    return list(dict.fromkeys(f"–: {time.note}" for time in times if not time.seconds))


def _times_words(race: Race, shape: tuple[int, int]) -> str:
    """The shape and the GPU that the table's times are of."""
    at = f"{race.at[0]:,} × {race.at[1]:,}"
    own = race.at == shape
    of = f"this tensor’s {at}" if own else f"{at}, the nearest shape at which these were recorded"
    return f"times of X·Wᵀ for a weight of {of}, on {race.gpu}"


def _shortlist_row(
    one: Candidate | Pending, letter: str, race: Race | None, tokens: Sequence[int]
) -> ShortlistRow:
    times = tuple(_shortlist_time(time_at(race, one.text, n) if race else None) for n in tokens)
    unheld = f"no engine loads it: {one.unheld}" if one.unheld else "no engine loads it"
    held, name = " · ".join(one.held) or unheld, short_name(one.label)
    if isinstance(one, Pending):
        bits, size = f"{one.bits:.2f}", words.bytes_(one.nbytes)
        label = f"{one.label}: {one.refused}" if one.refused else one.label
        return ShortlistRow(
            one.text, label, name, letter, bits, size, times, held, "–" if one.refused else "…"
        )
    report, of_sample = one.report, one.share < 1
    return ShortlistRow(
        one.text,
        one.label,
        name,
        letter,
        f"{report.bits.total:.2f}",
        words.bytes_(report.nbytes),
        times,
        held,
        "∞" if report.sqnr_db == math.inf else f"{report.sqnr_db:.1f}",
        f"± {one.half_db:.2g}" if of_sample and one.half_db is not None else "",
        "" if one.output_db is None else f"{one.output_db:.1f}",
        f"{'≥ ' if of_sample else ''}{_two_digits(report.max_error)}",
        None if of_sample else report.max_error_at,
        percent(one.share) if of_sample else "",
    )


def short_name(label: str) -> str:
    """A scheme's label as tables and suggestions have it."""
    plain = re.sub(r" \([^)]*\)", "", label)
    return plain.replace(", asymmetric", ", asym.").replace(" by GPTQ", ", GPTQ").removeprefix("GGUF ")


def _shortlist_time(time: RowTime | None) -> ShortlistTime:
    if time is None or time.seconds is None:
        return ShortlistTime("–", "", NO_TIME if time is None else time.note or NO_TIME)
    return ShortlistTime(words.duration(time.seconds, 2), time.how, time.note)


def _two_digits(value: float) -> str:
    """``value`` to two significant digits, zeros included: "0.060" below "0.051"."""
    if value >= 1e6 and math.isfinite(value):
        return words.scientific(value, 2)
    return f"{value:#.2g}".rstrip(".") if 1e-4 <= value < 1e4 else words.number(value, 2)
