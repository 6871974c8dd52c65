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
from typing import NamedTuple

from app.parts import html
from app.parts.controls import Select
from app.parts.pictures import bars, is_photograph, photograph, picture, thumbnail
from app.parts.refusals import words_of
from app.parts.section import RECORD, NotComputedError, Section, Shown
from app.sections.all_schemes import all_schemes_table
from app.sections.bar import tensor_name
from app.serving.work import FILLING
from app.state.analyses import Pairs, analyses_of, analysing, at_hand, each, keep_at_hand, output_sqnr
from app.state.estimates import Estimated, estimated
from app.state.known import keep_analyses, keep_whole, known_rows
from app.state.layers import codes_words
from app.state.memo import Memo
from app.state.query import Query
from app.state.record import Record, coded, goal_now, shape_of
from app.state.rows import candidates, filling, is_complete, known_by_now, race_of
from app.state.selection import file_source, tensor_key
from app.state.visits import visit
from app.theme import plot_data
from explorer import SCHEMES, ComparisonRow, mark_frontier
from explorer.analysis.answer import answer, sample_words
from explorer.analysis.estimate import Estimate
from explorer.analysis.goals import DEFAULT, GOALS, Goal
from explorer.analysis.grids import grid_words
from explorer.analysis.report import Report
from explorer.analysis.shortlist import Candidate, Pending
from explorer.core.backend import gpu_device
from explorer.figures.compare import exact_words, frontier_figure
from explorer.methods.recipe import Recipe
from explorer.progress import checkpoint
from explorer.sources.samples import SAMPLES
from explorer.sources.tensors import Matrix
from explorer.words import percent

OFFERED = ("mlp_up", "attention_query", "mlp_down", "portrait", "outlier_channels")
"""Built-in tensors with a picture; the first ``PICTURES`` that there are."""
PICTURES = 4
LOOKED_EVERY_S = 0.7
"""Seconds between two looks at rows that are being computed."""
SUGGESTED = 4
OTHER_MODELS = "?tab=model"

_DRAWN = Memo[str](32 << 20)
_PICTURES = Memo[str](32 << 20)


# --- what is shown --------------------------------------------------------------------------------------


def answered(
    chosen: Record, found: tuple[Matrix, Pairs], outputs: Sequence[float] = (), part: str = "part"
) -> dict[str, str]:
    """The slots that depend on A, B, the goal and the list. ``outputs``: where a method
    works for it, the SQNR of the layer's output by each; ``part``: what is shown of the schemes."""
    matrix, pairs = found
    shape = (matrix.values.shape[0], matrix.values.shape[1])
    keep_analyses(chosen, pairs)
    lost = any(analysis.report.max_error for _, analysis in pairs)
    better = grid_words(matrix.values) if lost else ""
    return _answered(chosen, matrix.name, shape, {}, outputs, better, part)


def sampled(chosen: Record, seen: Estimated, part: str = "part") -> dict[str, str]:
    """The fields of ``answered`` by a sample."""
    for (_, side), text in zip(seen.sides, chosen.schemes, strict=True):
        if isinstance(side, Report):
            keep_whole(chosen, text, side)
    estimates = zip(chosen.schemes, seen.estimates, strict=True)
    by_text = {text: one for text, one in estimates if one is not None}
    return _answered(chosen, seen.name, seen.shape, by_text, (), sample_words(seen.estimates), part)


def _answered(
    chosen: Record,
    name: str,
    shape: tuple[int, int],
    estimates: Mapping[str, Estimate],
    outputs: Sequence[float],
    better: str,
    part: str,
) -> dict[str, str]:
    """The first screen of a tensor [rows, cols]. ``estimates``: of A and B, by text, while they are computed;
    ``better``: what is said below the sentence instead of a better scheme."""
    goal = goal_now(chosen, shape)
    by_now = known_by_now(chosen, goal)  # before the rows: what comes meanwhile is looked at again
    rows = candidates(chosen, shape, goal, estimates)
    race = race_of(chosen, shape, goal)
    by_text = {one.text: one for one in rows if isinstance(one, Candidate)}
    a, *others = (by_text[text] for text in dict.fromkeys(chosen.schemes))
    known = list(known_rows(chosen).values())
    said = answer(a, others[0] if others else None, known, goal, race, outputs)
    drawn = _frontier(chosen, name, goal, rows, part == "all")
    return {
        "goals": html.goals(list(GOALS.values()), goal),
        "said": html.answer(dataclasses.replace(said, better=better or said.better)),
        "head": html.figure_head(goal, part),
        "of-rows": html.render("of_rows", about=drawn.words),
        "frontier": drawn.figure,
        "listed": html.shortlist(
            rows,
            chosen.scheme,
            chosen.second,
            race,
            shape,
            _suggestions(goal, rows, chosen.codes),
            gpu_device() is not None,
            by_now,
            chosen.codes,
            codes_words(chosen),
        ),
        "elsewhere": html.footnote(said.footnote, OTHER_MODELS),
    }


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

    return {"samples": _samples(chosen), "picture": _PICTURES.get(tensor_key(chosen), draw)}


def of_sampled_tensor(chosen: Record, seen: Estimated) -> dict[str, str]:
    """The fields of ``of_tensor`` while only a sample is known: the picture's place is kept, if it was not
    drawn before."""
    known = _PICTURES.peek(tensor_key(chosen))
    card = known or html.picture(
        seen.name, seen.shape, seen.dtype, "", None, _is_photograph(chosen), _among(chosen)
    )
    return {"samples": _samples(chosen), "picture": card}


def _is_photograph(chosen: Record) -> bool:
    of_file = chosen.file if chosen.source == "file" else None
    return chosen.source != "model" and is_photograph(chosen.sample, of_file)


def _among(chosen: Record) -> int:
    """How many tensors there are in the record's file; one where none is open."""
    try:
        return len(file_source(chosen.file).infos) if chosen.source == "file" else 1
    except (ValueError, OSError):
        return 1


def _samples(chosen: Record) -> str:
    names = [name for name in OFFERED if name in SAMPLES][:PICTURES]
    buttons = [
        html.SampleButton(name, SAMPLES[name].label.partition(",")[0], SAMPLES[name].label, thumbnail(name))
        for name in names
    ]
    return html.samples(buttons, chosen.sample if chosen.source == "builtin" else "")


def _suggestions(goal: Goal, rows: Sequence[Candidate | Pending], codes: str) -> list[html.Suggestion]:
    """Schemes that people ask about with this goal and that are not in the table."""
    there = {row.text for row in rows}
    names = [name for name in (*goal.schemes, *goal.asked) if name in SCHEMES]
    texts = {coded(str(Recipe.parse(name)), codes): SCHEMES[name].label for name in names}
    return [html.Suggestion(t, html.short_name(label)) for t, label in texts.items() if t not in there][
        :SUGGESTED
    ]


class DrawnFrontier(NamedTuple):
    """The figure as JSON, and what it is of."""

    figure: str
    words: str


def _frontier(
    chosen: Record, name: str, goal: Goal, rows: Sequence[Candidate | Pending], everything: bool
) -> DrawnFrontier:
    """The frontier of what is known, cropped to the goal, and its caption, both of the same rows."""
    every = known_rows(chosen)
    for one in rows:
        if isinstance(one, Candidate):
            recipe = Recipe.parse(one.text)
            own = (one.text, one.label) if recipe.method else ("", "")
            every[one.text] = ComparisonRow(recipe.scheme, one.report, False, one.share, one.half_db, *own)
    texts = tuple(one.text for one in rows if isinstance(one, Candidate))
    of = tuple((text, row.share) for text, row in every.items())

    def draw() -> str:
        marked = dict(zip(every, mark_frontier(every.values()), strict=True))
        a, b = [*(marked[text] for text in chosen.schemes), None][:2]
        among = [marked[text] for text in texts]
        shown = GOALS["all"] if everything else goal
        return plot_data(frontier_figure(list(marked.values()), name, a, b, shown, among))

    key = (*tensor_key(chosen), goal.name, everything, chosen.schemes, texts, of)
    return DrawnFrontier(_DRAWN.get(key, draw), rows_words(list(every.values())))


def rows_words(rows: Sequence[ComparisonRow]) -> str:
    """How many schemes the rows are, on what part of the tensor they were measured, and those that cannot be
    drawn."""
    count = f"{len(rows)} scheme{'' if len(rows) == 1 else 's'}"
    exact = exact_words(rows)
    parts = sorted(row.share for row in rows if row.share < 1)
    if not parts:
        return f"{count} on all of the tensor. {exact}".strip()
    least, most = percent(parts[0]), percent(parts[-1])
    part = most if least == most else f"{least} to {most}"
    off = sorted(row.half_db for row in rows if row.share < 1 and row.half_db is not None)
    within = f", SQNR ± {off[int(0.9 * (len(off) - 1))]:.2g} dB or less for nine in ten" if off else ""
    rest = len(rows) - len(parts)
    whole = f"; {rest} on all of it" if rest else ""
    return (
        f"{count}, {len(parts)} of them on a sample of {part} of the tensor{within}{whole}. {exact}".strip()
    )


# --- what is computed while it is seen --------------------------------------------------------------------


def fill(query: Query) -> Iterator[Shown]:
    """Compute what the first screen waits for; kept for the next visit."""
    chosen = query.record
    failed = visit().failed
    failed.clear()
    try:
        _, pairs = yield from each(analysing(chosen), lambda said: {"status": html.status(said)})
    except (ValueError, OSError) as error:
        failed[tensor_key(chosen), chosen.schemes] = words_of(error)
        yield {"tick": COMPLETE}
        return
    looked = 0.0
    for done, total in filling(chosen):
        checkpoint()
        keep_at_hand(chosen, pairs)
        if time.monotonic() - looked > LOOKED_EVERY_S:
            yield {"status": html.status(f"{done} of {total} schemes"), "tick": _tick_of(chosen)}
            looked = time.monotonic()
    yield {"status": html.status(""), "tick": _tick_of(chosen)}


COMPLETE = "complete"


def _tick_of(chosen: Record) -> str:
    """How much is known: another text once the view shows more, ``COMPLETE`` when nothing is left."""
    goal = goal_now(chosen, shape_of(chosen))
    if is_complete(chosen, goal):
        return COMPLETE
    return known_by_now(chosen, goal)


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

SHOWN = Select(
    key="frontier",
    label="What is shown of the schemes",
    usual="part",
    options={"part": "the goal's part", "all": "all", "table": "table"},
)


def view(query: Query) -> Shown:
    """Show the tensor, the goals, the sentence, the frontier and the shortlist, by all that is known now."""
    chosen, part = query.record, SHOWN.of(query)
    try:
        seen = estimated(chosen)
        if seen is not None:
            return {**sampled(chosen, seen, part), **of_sampled_tensor(chosen, seen), "tick": "sample"}
        if not at_hand(chosen):
            raise NotComputedError(f"Reading {tensor_name(chosen)} …")
        found = analyses_of(chosen)
    except (ValueError, OSError) as error:
        return {
            **dict.fromkeys(("head", "frontier", "of-rows", "listed", "elsewhere", "picture"), ""),
            "said": html.render(
                "not_read", why=words_of(error), among=_among(chosen), retry=chosen.source != "file"
            ),
            "goals": html.goals(list(GOALS.values()), GOALS[DEFAULT]),
            "samples": _samples(chosen),
            "tick": COMPLETE,
        }
    shown = answered(chosen, found, output_sqnr(chosen, found[1]), part)
    table = all_schemes_table(query) if part == "table" else ""
    return {**shown, **of_tensor(chosen, found), "table": table, "tick": _tick_of(chosen)}


SECTION = Section(
    name="frontier",
    follows=RECORD,
    controls=(SHOWN,),
    view=view,
    runs={FILLING.rpartition(".")[2]: fill},
    script="explorer.answerSection",
    shares={"drop": html.drop()},
    eager=True,
    workers=4,
)
