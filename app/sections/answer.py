"""The first screen: a tensor goes in at the left, the answer stands at the right.

``view`` shows what is known of a record's tensor and computes nothing that takes longer than a click may: of
a large tensor that is a sample. ``filling`` computes the rest while the screen is seen, and the view is asked
for again as more becomes known.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any

from markupsafe import Markup

from app import limits
from app.parts import html
from app.parts.controls import Select
from app.parts.pictures import bars, is_photograph, photograph, picture, thumbnail
from app.parts.section import RECORD, NotComputedError, Section, Shown
from app.parts.views import page_words
from app.sections.bar import tensor_name
from app.serving.work import FILLING
from app.state.analyses import Pairs, analyses_of, analysing, at_hand, output_sqnr
from app.state.estimates import Estimated, estimated
from app.state.gpu_lock import locked_steps
from app.state.memo import Memo
from app.state.query import Query
from app.state.record import Record, goal_now, listing, shape_of
from app.state.selection import file_source, matrix_of, tensor_key
from app.state.visits import visit
from app.theme import plot_data
from explorer import SCHEMES, ComparisonRow, Scheme, compare_schemes, mark_frontier
from explorer.analysis.answer import Answer, Phrase, answer, differences, footnote, sample_words, short
from explorer.analysis.estimate import Estimate
from explorer.analysis.goals import DEFAULT, GOALS, Goal
from explorer.analysis.grids import grid_words
from explorer.analysis.report import Report
from explorer.analysis.schemes import searches, survey
from explorer.analysis.shortlist import Candidate, Pending, RowTime, storage
from explorer.analysis.why import percent
from explorer.checkpoints.targets import held_by
from explorer.core.backend import gpu_device
from explorer.figures.compare import exact_words, frontier_figure
from explorer.methods.recipe import Recipe
from explorer.products.shape_times import shape_times
from explorer.progress import checkpoint
from explorer.sources.samples import SAMPLES
from explorer.sources.tensors import Matrix

OFFERED = ("mlp_up", "attention_query", "mlp_down", "portrait", "outlier_channels")
"""Built-in tensors with a picture; the first ``PICTURES`` that there are."""
PICTURES = 4
WHOLE = 1 << 22
"""The most elements of which a scheme that searches is measured whole without being A or B."""
LOOKED_EVERY_S = 0.7
"""Seconds between two looks at rows that are being computed."""
SUGGESTED = 4
INPUTS = ("fp8-inputs", "int8-inputs")
"""Goals whose products have quantized X."""
OTHER_MODELS = "?tab=model&section=whole-model"

_ROWS = Memo[dict[str, ComparisonRow]](256)
"""Each tensor's rows so far, by the text of the named scheme: the next visit continues a run that was cut."""
_WHOLE = Memo[Report](4096)
"""The report of one recipe on all of one tensor."""
_REFUSED = Memo[str](256)
"""Why a recipe cannot be computed on a tensor."""
_DRAWN = Memo[str](256)
_PICTURES = Memo[str](64)


# --- what is known of a tensor ------------------------------------------------------------------------------


def _key(chosen: Record) -> tuple[Any, ...]:
    return (*tensor_key(chosen), limits.current().elements)


def known_rows(chosen: Record) -> dict[str, ComparisonRow]:
    """The rows of the record's tensor so far, by the text of the scheme."""
    return _ROWS.get(_key(chosen), dict, lambda _: 1)


def keep_whole(chosen: Record, text: str, report: Report) -> None:
    """Keep the report of the recipe ``text`` on all of the record's tensor."""
    _WHOLE.get((*_key(chosen), text), lambda: report, lambda _: 1)


def whole_report(chosen: Record, text: str) -> Report | None:
    """The report of the recipe ``text`` on all of the record's tensor, if it was computed."""
    return _WHOLE.peek((*_key(chosen), text))


def _refuse(chosen: Record, text: str, why: str) -> None:
    """Keep why the recipe ``text`` cannot be computed on the record's tensor."""
    _REFUSED.get((*_key(chosen), text), lambda: why, lambda _: 1)


def known_by_now(chosen: Record, goal: Goal) -> str:
    """How much is known of the record's tensor, as counts: another text once there is more to look at."""
    texts, known = listed(chosen, goal), [str(row.scheme) for row in list(known_rows(chosen).values())]
    whole = sum(whole_report(chosen, text) is not None for text in {*texts, *known})
    refused = sum(_REFUSED.peek((*_key(chosen), text)) is not None for text in texts)
    return f"{len(known)}-{whole}-{refused}"


def listed(chosen: Record, goal: Goal) -> tuple[str, ...]:
    """The texts of the table's rows: the record's list, or the goal's, with A and B in it."""
    names = chosen.shortlist or ",".join(str(Recipe.parse(name)) for name in goal.schemes)
    return listing(dataclasses.replace(chosen, shortlist=names)).listed


def candidates(
    chosen: Record, shape: tuple[int, int], goal: Goal, sampled: Mapping[str, Estimate] | None = None
) -> list[Candidate | Pending]:
    """The rows of the table of a tensor [rows, cols], as far as they are known; ``sampled``: estimates of
    those that are being computed."""
    seen = sampled or {}
    return [_candidate(chosen, shape, t, goal.name in INPUTS, seen.get(t)) for t in listed(chosen, goal)]


def _candidate(
    chosen: Record, shape: tuple[int, int], text: str, of_inputs: bool, sampled: Estimate | None
) -> Candidate | Pending:
    recipe = Recipe.parse(text)
    scheme = recipe.scheme
    held = held_by(scheme, shape)
    times = () if recipe.method or not _is_weight(chosen) else times_of(str(scheme), *shape, of_inputs)
    report = whole_report(chosen, text)
    row = None if recipe.method else known_rows(chosen).get(scheme.text)
    if report is not None:
        return Candidate(text, recipe.label, report, held, times)
    if sampled is not None:
        return Candidate(text, recipe.label, sampled.report, held, times, sampled.share)
    bits, nbytes = storage(scheme, shape)
    if row is not None:
        seen = dataclasses.replace(row.report, nbytes=nbytes)
        return Candidate(text, recipe.label, seen, held, times, row.share)
    why = _REFUSED.peek((*_key(chosen), text)) or ""
    return Pending(text, recipe.label, bits, nbytes, held, times, why)


def _is_weight(chosen: Record) -> bool:
    """False for a built-in tensor that is no weight: no product has it as W."""
    return chosen.source != "builtin" or chosen.sample.removesuffix("_in") == chosen.sample


@lru_cache(maxsize=1024)
def times_of(text: str, rows: int, columns: int, of_inputs: bool) -> tuple[RowTime, ...]:
    """Times of products with a weight [rows, columns] by the scheme ``text``, with quantized X if
    ``of_inputs``; none where there is no kernel."""
    found = shape_times(Scheme.parse(text), rows, columns, quantized_inputs=of_inputs)
    return tuple(
        RowTime(
            one.shape[0],
            one.seconds,
            "measured" if one.kind == "measured" else "nearest",
            f"{one.how}; {one.product} on {one.gpu}" if one.gpu else one.how,
        )
        for one in found
    )


@lru_cache(maxsize=256)
def _times_words(texts: tuple[str, ...], rows: int, columns: int, of_inputs: bool) -> str:
    """What the table's times are of."""
    each = (shape_times(Scheme.parse(t), rows, columns, quantized_inputs=of_inputs) for t in texts)
    found = [time for times in each for time in times if time.seconds]
    if not found:
        return ""
    there = dict.fromkeys(time.at[1:] for time in found if time.kind == "nearest" and time.at)
    shapes = ", ".join(f"{n:,} × {k:,}" for n, k in there)
    near = f"; in italics at the nearest recorded shape ({shapes}): compare times of one shape only"
    x = "quantizing X included" if of_inputs else "X in bfloat16"
    about = f"times of X·Wᵀ for {rows:,} × {columns:,}, {x}, on {found[0].gpu}: measured"
    return f"{about}{near if there else ''}"


# --- what is shown --------------------------------------------------------------------------------------


def answered(
    chosen: Record, found: tuple[Matrix, Pairs], outputs: Sequence[float] = (), everything: bool = False
) -> dict[str, str]:
    """The slots that depend on A, B, the goal and the list. ``outputs``: where a method
    works for it, the SQNR of the layer's output by each; ``everything``: the figure is not cropped."""
    matrix, pairs = found
    shape = (matrix.values.shape[0], matrix.values.shape[1])
    for (_, analysis), text in zip(pairs, chosen.schemes, strict=True):
        keep_whole(chosen, text, analysis.report)
    goal = goal_now(chosen, shape)
    by_now = known_by_now(chosen, goal)
    rows = candidates(chosen, shape, goal)
    by_text = {one.text: one for one in rows if isinstance(one, Candidate)}
    own = [_spoken(by_text[text]) for text in dict.fromkeys(chosen.schemes)]
    known = list(known_rows(chosen).values())
    said = _of_outputs(own, outputs) if outputs else answer(own[0], own[1] if own[1:] else None, known, goal)
    if any(one.report.max_error for one in own) and (grid := grid_words(matrix.values)):
        said = dataclasses.replace(said, better=grid)
    return {
        "goals": html.goals(list(GOALS.values()), goal),
        "said": html.answer(said),
        "head": html.figure_head(goal, everything),
        "frontier": _figure(chosen, matrix.name, goal, rows, everything),
        "listed": _table(chosen, shape, goal, rows, by_now),
        "elsewhere": html.footnote(footnote(*(one.report for one in own)), OTHER_MODELS),
    }


def sampled(chosen: Record, seen: Estimated, everything: bool = False) -> dict[str, str]:
    """The fields of ``answered`` by a sample."""
    goal = goal_now(chosen, seen.shape)
    for (_, side), text in zip(seen.sides, chosen.schemes, strict=True):
        if isinstance(side, Report):
            keep_whole(chosen, text, side)
    estimates = zip(chosen.schemes, seen.estimates, strict=True)
    rows = candidates(chosen, seen.shape, goal, {text: one for text, one in estimates if one is not None})
    by_text = {one.text: one for one in rows if isinstance(one, Candidate)}
    own = [_spoken(by_text[text]) for text in dict.fromkeys(chosen.schemes)]
    said = answer(own[0], own[1] if own[1:] else None, list(known_rows(chosen).values()), goal)
    said = dataclasses.replace(said, better=sample_words(seen.estimates))
    return {
        "goals": html.goals(list(GOALS.values()), goal),
        "said": html.answer(said),
        "head": html.figure_head(goal, everything),
        "frontier": _figure(chosen, seen.name, goal, rows, everything),
        "listed": _table(chosen, seen.shape, goal, rows),
        "elsewhere": html.footnote(footnote(*(one.report for one in own)), OTHER_MODELS),
    }


def _table(
    chosen: Record,
    shape: tuple[int, int],
    goal: Goal,
    rows: Sequence[Candidate | Pending],
    by_now: str = "",
) -> str:
    """The shortlist; ``by_now``: what was known when its rows were made."""
    plain = tuple(one.text for one in rows if not Recipe.parse(one.text).method and _is_weight(chosen))
    return html.shortlist(
        rows,
        chosen.scheme,
        chosen.second,
        _times_words(plain, *shape, goal.name in INPUTS),
        _suggestions(goal, rows),
        gpu_device() is not None,
        by_now,
    )


def of_tensor(chosen: Record, found: tuple[Matrix, Pairs]) -> dict[str, str]:
    """The slots that depend on the tensor alone."""
    matrix, pairs = found

    def draw() -> str:
        x = matrix.values
        shape, dtype = (x.shape[0], x.shape[1]), matrix.dtype
        photo = _is_photograph(chosen)
        seen = photograph(x) if photo else picture(x)
        return html.picture(
            matrix.name, shape, dtype, seen, bars(x, pairs[0][1].before), photo, _among(chosen)
        )

    return {"samples": _samples(chosen), "picture": _PICTURES.get(_key(chosen), draw, lambda _: 1)}


def of_sampled_tensor(chosen: Record, seen: Estimated) -> dict[str, str]:
    """The fields of ``of_tensor`` while only a sample is known: the picture's place is kept, if it was not
    drawn before."""
    known = _PICTURES.peek(_key(chosen))
    card = known or html.picture(
        seen.name, seen.shape, seen.dtype, "", None, _is_photograph(chosen), _among(chosen)
    )
    return {"samples": _samples(chosen), "picture": card}


def _is_photograph(chosen: Record) -> bool:
    of_file = chosen.file if chosen.source == "file" else None
    return chosen.source != "model" and is_photograph(chosen.sample, of_file)


def _among(chosen: Record) -> int:
    """How many tensors there are in the record's file."""
    return len(file_source(chosen.file).infos) if chosen.source == "file" else 1


def _samples(chosen: Record) -> str:
    names = [name for name in OFFERED if name in SAMPLES][:PICTURES]
    buttons = [
        html.SampleButton(name, SAMPLES[name].label.partition(",")[0], SAMPLES[name].label, thumbnail(name))
        for name in names
    ]
    return html.samples(buttons, chosen.sample if chosen.source == "builtin" else "")


def _spoken(one: Candidate) -> Candidate:
    """The candidate as the sentence takes it: without times if one is of another shape than the tensor's."""
    near = any(time.how == "nearest" for time in one.times)
    return dataclasses.replace(one, times=()) if near else one


def _of_outputs(own: Sequence[Candidate], outputs: Sequence[float]) -> Answer:
    """The sentence where a method works for the layer's output, not for its weight."""
    first = Phrase(short(own[0].label), "a")
    if len(own) < 2:
        return Answer((first, Phrase(f": {outputs[0]:.1f} dB in the layer's output, on held-out inputs.")))
    gain, more = outputs[1] - outputs[0], own[1].report.bits.total - own[0].report.bits.total
    sqnr, size = differences(gain, more, "output SQNR")
    second = Phrase(short(own[1].label), "b")
    return Answer((second, Phrase(f" has {sqnr} "), first, Phrase(f", {size}.")))


def _suggestions(goal: Goal, rows: Sequence[Candidate | Pending]) -> list[html.Suggestion]:
    """Schemes that people ask about with this goal and that are not in the table."""
    there = {row.text for row in rows}
    names = [name for name in (*goal.schemes, *goal.asked) if name in SCHEMES]
    texts = {str(Recipe.parse(name)): SCHEMES[name].label for name in names}
    return [html.Suggestion(t, html.short_name(label)) for t, label in texts.items() if t not in there][
        :SUGGESTED
    ]


def _figure(
    chosen: Record, name: str, goal: Goal, rows: Sequence[Candidate | Pending], everything: bool
) -> str:
    """The frontier of what is known, cropped to the goal."""
    known = known_rows(chosen)
    texts = tuple(row.text for row in rows if isinstance(row, Candidate))
    parts = tuple(row.share for row in rows if isinstance(row, Candidate))
    key = (*_key(chosen), goal.name, everything, chosen.schemes, texts, parts, len(known))

    def draw() -> str:
        every = {str(row.scheme): _whole_row(chosen, row) for row in list(known.values())}
        for one in rows:
            if isinstance(one, Candidate):
                recipe = Recipe.parse(one.text)
                own = (one.text, one.label) if recipe.method else ("", "")
                every[one.text] = ComparisonRow(recipe.scheme, one.report, False, one.share, *own)
        marked = dict(zip(every, mark_frontier(every.values()), strict=True))
        a, b = [*(marked[text] for text in chosen.schemes), None][:2]
        among = [marked[text] for text in texts]
        shown = GOALS["all"] if everything else goal
        return plot_data(frontier_figure(list(marked.values()), name, a, b, shown, among))

    return _DRAWN.get(key, draw, lambda _: 1)


def _whole_row(chosen: Record, row: ComparisonRow) -> ComparisonRow:
    """The row by the report of the whole tensor, if there is one."""
    report = whole_report(chosen, str(row.scheme))
    return row if report is None else dataclasses.replace(row, report=report, share=1.0)


# --- what is computed while it is seen --------------------------------------------------------------------


def filling(chosen: Record) -> Iterator[tuple[int, int]]:
    """Compute the shortlist's rows on all of the tensor, and every named scheme on a part of it; yields how
    many of the named schemes are known, and how many there are."""
    matrix = matrix_of(chosen)
    known, total = known_rows(chosen), len(SCHEMES)
    goal = goal_now(chosen, (matrix.values.shape[0], matrix.values.shape[1]))
    texts = [t for t in listed(chosen, goal) if whole_report(chosen, t) is None]
    texts = [t for t in texts if _REFUSED.peek((*_key(chosen), t)) is None]
    quick = [t for t in texts if not searches(Recipe.parse(t).scheme)]
    yield from _filling_whole(chosen, matrix, quick, known, total)
    missing = [scheme for scheme in SCHEMES.values() if scheme.text not in known]
    for row in locked_steps(survey(matrix.values, missing)):
        known[row.scheme.text] = row
        yield len(known), total
    if matrix.values.numel() <= WHOLE:
        slow = [t for t in texts if t not in quick]
        yield from _filling_whole(chosen, matrix, slow, known, total)


def _filling_whole(
    chosen: Record, matrix: Matrix, texts: Sequence[str], known: dict[str, ComparisonRow], total: int
) -> Iterator[tuple[int, int]]:
    for text in texts:
        recipe = Recipe.parse(text)
        try:
            if recipe.method:
                _, pairs = analyses_of(dataclasses.replace(chosen, scheme=text, second=""))
                report = pairs[0][1].report
            else:
                report = next(iter(locked_steps(compare_schemes(matrix.values, [recipe.scheme])))).report
            keep_whole(chosen, text, report)
        except (ValueError, OSError) as error:  # one row that cannot be computed does not stop the others
            _refuse(chosen, text, str(error))
        yield len(known), total


def fill(query: Query) -> Iterator[Shown]:
    """Compute what the first screen waits for; kept for the next visit."""
    chosen = query.record
    tried, failed = (tensor_key(chosen), chosen.schemes), visit().failed
    failed.pop(tried, None)
    try:
        for said in analysing(chosen):
            yield {"status": html.status(said)}
    except (ValueError, OSError) as error:
        failed[tried] = page_words(str(error))
        yield {"tick": COMPLETE}
        return
    looked = 0.0
    for done, total in filling(chosen):
        checkpoint()
        if time.monotonic() - looked > LOOKED_EVERY_S:
            yield {"status": html.status(f"{done} of {total} schemes"), "tick": _tick_of(chosen)}
            looked = time.monotonic()
    rows = list(known_rows(chosen).values())
    words = f"{len(rows)} schemes{part_words(rows)}. {exact_words(rows)}"
    yield {"status": html.status(words), "tick": _tick_of(chosen)}


COMPLETE = "complete"


def _tick_of(chosen: Record) -> str:
    """How much is known: another text once the view shows more, ``COMPLETE`` when nothing is left."""
    goal = goal_now(chosen, shape_of(chosen))
    texts = listed(chosen, goal)
    left = [t for t in texts if whole_report(chosen, t) is None and _REFUSED.peek((*_key(chosen), t)) is None]
    if not left and len(known_rows(chosen)) >= len(SCHEMES):
        return COMPLETE
    return known_by_now(chosen, goal)


def part_words(rows: Sequence[ComparisonRow]) -> str:
    """The part of the tensor that the rows were measured on, if it is not all of it."""
    shares = sorted({percent(row.share) for row in rows if row.share < 1})
    if not shares:
        return ""
    least = min(row.share for row in rows)
    most = max(row.share for row in rows if row.share < 1)
    between = percent(most) if percent(least) == percent(most) else f"{percent(least)} to {percent(most)}"
    return f", on {between} of the tensor, the shortlist on all of it"


def prepare() -> None:
    """Compute the answer that a page without a link shows before anybody asks, and rest as long as each step
    took: a thread of a lower priority would hold the interpreter where the machine is busy.
    ``EXPLORER_PREPARE=0`` leaves it to the first visitor."""
    if os.environ.get("EXPLORER_PREPARE") == "0":
        return
    chosen = Record.fresh()
    found = analyses_of(chosen)
    of_tensor(chosen, found)
    began = time.monotonic()
    for _ in filling(chosen):
        time.sleep(time.monotonic() - began)
        began = time.monotonic()
    answered(chosen, found)


# --- the section --------------------------------------------------------------------------------------------

CROP = Select(
    key="crop", label="Part that is shown", usual="goal", options={"goal": "the goal's", "all": "all"}
)


def view(query: Query) -> Shown:
    """Show the tensor, the goals, the sentence, the frontier and the shortlist, by all that is known now."""
    chosen, everything = query.record, CROP.of(query) == "all"
    try:
        seen = estimated(chosen)
        if seen is not None:
            return {**sampled(chosen, seen, everything), **of_sampled_tensor(chosen, seen), "tick": "sample"}
        if not at_hand(chosen):
            raise NotComputedError(f"Reading {tensor_name(chosen)} …")
        found = analyses_of(chosen)
    except (ValueError, OSError) as error:
        return {
            **dict.fromkeys(("head", "frontier", "listed", "elsewhere", "picture"), ""),
            "said": html.render("not_read", why=page_words(str(error))),
            "goals": html.goals(list(GOALS.values()), GOALS[DEFAULT]),
            "samples": _samples(chosen),
            "tick": COMPLETE,
        }
    shown = answered(chosen, found, output_sqnr(chosen, found[1]), everything)
    return {**shown, **of_tensor(chosen, found), "tick": _tick_of(chosen)}


SECTION = Section(
    name="frontier",
    follows=RECORD,
    controls=(CROP,),
    view=view,
    runs={FILLING.rpartition(".")[2]: fill},
    script="explorer.answerSection",
    shares={"drop": Markup(html.drop())},
    eager=True,
)
