"""Report of matrix products at one shape, recorded on a named GPU or timed on the reader's machine."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from typing import Any

from explorer import words
from explorer.cpu.products import products_for
from explorer.figures.speed import roofline_figure, speed_figure, sweep_figure, tradeoff_figure
from explorer.methods.recipe import Recipe
from explorer.products.advice import ENOUGH_DB, at_shape, by_distance, points, summary, swept
from explorer.products.machine_words import machine_words
from explorer.products.shapes import DECODE
from explorer.recordings.files import NOT_RECORDED, Recording, recording_json
from explorer.recordings.gemm import GemmTiming, Shape, gemms_in, recorded_gemms
from explorer.reports.content import SPEED, Content, Part, Table, content

COLUMNS = (
    "product", "kernel", "on this chip", "µs", "µs, L2 flushed", "TFLOP/s", "of the limit (%)", "× baseline",
    "baseline", "SQNR (dB)", "W (MB)",
)  # fmt: skip
ERRORS = (
    "SQNR is that of the output against the float64 product of the unquantized X and W, on random normal "
    f"data; {ENOUGH_DB:.0f} dB, a tenth of the signal, is what one layer can usually afford."
)


def speed_report(
    timings: Recording[GemmTiming] | None = None,
    shape: Sequence[int] | None = None,
    recipes: Sequence[Recipe] = (),
) -> Content:
    """Return the report of the products at ``shape`` (M, N, K), by ``timings`` or the shipped recordings.

    Products that take the weights of ``recipes`` (A, B) are marked. The default shape is one token, if that
    was recorded, else the first shape. ``ValueError`` for a shape that was not timed; it lists those that
    were.
    """
    if len(recipes) > 2:
        raise ValueError(f"a report marks one or two schemes, A and B, not {len(recipes)}")
    measured = as_measured(timings)
    recording = gemms_in(measured) if measured else recorded_gemms()
    if not recording:
        raise ValueError(f"speed: {NOT_RECORDED}; time products first and name the file by --timings")
    at = _shape(recording, shape, may_be_near=not measured)
    here = at_shape(recording.rows, at)
    marked = {
        name: letter
        for letter, recipe in reversed([*zip("AB", recipes, strict=False)])
        for name in products_for(recipe.scheme, any(t.on_cpu for t in here))
    }
    numbers: dict[str, float] = {}
    for t in here:
        numbers |= {f"{t.gemm}.{t.variant}.us": t.seconds * 1e6, f"{t.gemm}.{t.variant}.sqnr_db": t.sqnr_db}
    record = recording_json(recording.machine, recording.rows)
    digest = hashlib.sha256(json.dumps(record, sort_keys=True).encode()).hexdigest()
    text, said = " × ".join(map(words.count, at)), machine_words(here)
    chip = recording.machine.chip or "an unnamed machine"
    place = f"{text} on {chip}"
    source = f"Measured on one {recording.machine.describe()}, as the file of the timings says."
    return content(
        title=f"Matrix products at {place}",
        lead=(
            summary(points(here), here, text),
            source if measured else f"{recording.sentence}; not on the machine that made this report.",
            *([nearest_words(at, shape)] if shape is not None and at != tuple(shape) else []),
        ),
        parts=(_products(here, marked, recipes, place), *_limits(recording, here, marked, at, place)),
        method=(said.times, said.limits, ERRORS),
        about={"timings": source if measured else recording.source, "their SHA-256": digest},
        numbers=numbers,
        recipe={
            "kind": SPEED,
            "shape": list(at if shape is None else shape),
            "schemes": list(map(str, recipes)),
            **({"measured": measured} if measured else {}),
        },
        sha256=digest,
    )


def as_measured(timings: Recording[GemmTiming] | None) -> dict[str, Any] | None:
    """Return timings as a report stores them, so that it can be checked without their file; None without
    timings."""
    return recording_json(timings.machine, timings.rows) if timings else None


def timing_table(name: str, timings: Sequence[GemmTiming]) -> Table:
    """Make a table with a row for each timing, and the shapes if there are several."""
    rows = [_line(timing) for timing in timings]
    if len({timing.shape for timing in timings}) < 2:
        return Table(name, COLUMNS, tuple(rows))
    shaped = tuple((t.shape_text, *row) for t, row in zip(timings, rows, strict=True))
    return Table(name, ("M×N×K", *COLUMNS), shaped)


def _line(t: GemmTiming) -> tuple[Any, ...]:
    numbers = (
        t.seconds * 1e6,
        t.flush.median_s * 1e6 if t.flush else None,
        t.tflops,
        100 * t.share if t.share else None,
        t.speedup,
    )
    baseline = t.baseline if t.baseline_graph else f"{t.baseline}: did not run"
    short = (float(f"{number:.4g}") if number else "" for number in numbers)
    return (
        t.label,
        words.kernel_name(t.variant),
        t.on_chip,
        *short,
        baseline,
        round(t.sqnr_db, 2),
        float(f"{t.weight_bytes / 1e6:.4g}"),
    )


def nearest_words(shown: Sequence[int], asked: Sequence[int]) -> str:
    """Say that the numbers are of another shape."""
    near, wanted = ("×".join(map(str, shape)) for shape in (shown, asked))
    return f"{wanted} was not recorded: the numbers are of {near}, the nearest shape that was."


def _shape(recording: Recording[GemmTiming], wanted: Sequence[int] | None, may_be_near: bool) -> Shape:
    shapes = list(dict.fromkeys(timing.shape for timing in recording.rows))
    if wanted is None:
        return DECODE if DECODE in shapes else shapes[0]
    m, n, k = wanted
    if (m, n, k) in shapes:
        return m, n, k
    if may_be_near and min(m, n, k) >= 1:
        return by_distance(shapes, (m, n, k))[0]
    named = ", ".join("x".join(map(str, shape)) for shape in shapes[:6])
    more = f" and {len(shapes) - 6} more" if len(shapes) > 6 else ""
    raise ValueError(f"nothing was timed at {'x'.join(map(str, wanted))}; there are {named}{more}")


def _products(
    here: Sequence[GemmTiming], marked: dict[str, str], recipes: Sequence[Recipe], place: str
) -> Part:
    said = [
        f"{letter}: {recipe.label}"
        + ("." if letter in marked.values() else "; no product of this scheme was timed here.")
        for letter, recipe in zip("AB", recipes, strict=False)
    ]
    rings = " The rings are A and B." if marked else ""
    by_error = (
        "Each product by its time, quantizing X included, and its output's error: left is faster, up is more "
        f"accurate; a larger dot has more bytes of W.{rings}"
    )
    by_time = "Each product's fastest kernel, its baseline, the chip's limit (not measured): left is faster."
    figures = (
        ("tradeoff", tradeoff_figure(points(here), place, marked), by_error),
        ("products", speed_figure(here, place, marked), by_time),
    )
    return Part("Products", tuple(said), (timing_table("products", here),), figures)


def _limits(
    recording: Recording[GemmTiming],
    here: Sequence[GemmTiming],
    marked: dict[str, str],
    at: Shape,
    place: str,
) -> list[Part]:
    """Draw time over tokens, and the limits of the chip that were measured."""
    figures = []
    over_m = swept(recording.rows, at)
    if len({timing.shape[0] for timing in over_m}) > 2:
        reading = f"Time against the number of tokens M; {machine_words(over_m).overtakes}."
        figure = sweep_figure(over_m, place, marked)
        figure.data = [trace for trace in figure.data if trace.visible != "legendonly"]  # nobody clicks paper
        figures.append(("sweep", figure, reading))
    if recording.limits:
        reading = f"The limit of each product, not measured: {machine_words(here).bounds}."
        figures.append(("roofline", roofline_figure(here, recording.limits, place, marked), reading))
    return [Part("What bounds them", (), (), tuple(figures))] if figures else []
