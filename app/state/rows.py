"""The shortlist's rows by what is known of a tensor, and the computation of the rest."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Mapping, Sequence
from functools import lru_cache

from app.state.analyses import analysis_of, known_output, output_of
from app.state.estimates import known_overview, overview_rows
from app.state.gpu_lock import locked_steps
from app.state.known import (
    keep_analyses,
    known_rows,
    refuse,
    refused,
    surveyed,
    whole_errors,
    whole_report,
)
from app.state.record import CODES, Record, goal_now, listed, shape_of
from app.state.selection import matrix_of
from explorer import SCHEMES, ComparisonRow
from explorer.analysis.estimate import Estimate
from explorer.analysis.goals import Goal
from explorer.analysis.schemes import searches
from explorer.analysis.shortlist import Candidate, Pending, Race, storage
from explorer.analysis.survey import SAMPLE_ELEMENTS, survey
from explorer.checkpoints.targets import held_by, why_unheld
from explorer.methods.recipe import Recipe
from explorer.products.shape_times import race

WHOLE = 1 << 24
"""The most elements of which a scheme that searches is measured whole without being A or B."""
INPUTS = ("fp8-inputs", "int8-inputs")
"""Goals whose products have quantized X."""


def known_by_now(chosen: Record, goal: Goal) -> str:
    """How much is known of the record's tensor, as counts: another text once there is more to look at."""
    texts, found = listed(chosen, goal), surveyed(chosen)
    whole = sum(whole_report(chosen, text) is not None for text in {*texts, *found})
    outputs = sum(known_output(chosen, Recipe.parse(text)) is not None for text in texts)
    given_up = sum(bool(refused(chosen, text)) for text in texts)
    return f"{len(known_overview(chosen))}-{len(found)}-{whole}-{outputs}-{given_up}"


def is_complete(chosen: Record, goal: Goal) -> bool:
    """True if every row of the table is of the whole tensor or says why not, and all others are known."""
    texts = listed(chosen, goal)
    done = all(whole_errors(chosen, text) is not None or refused(chosen, text) for text in texts)
    if any(Recipe.parse(text).method for text in texts):
        done = done and all(known_output(chosen, Recipe.parse(t)) or refused(chosen, t) for t in texts)
    return done and len(surveyed(chosen)) >= len(SCHEMES)


def candidates(
    chosen: Record, shape: tuple[int, int], goal: Goal, sampled: Mapping[str, Estimate] | None = None
) -> list[Candidate | Pending]:
    """The rows of the table of a tensor [rows, cols], as far as they are known; ``sampled``: estimates of
    those that are being computed."""
    seen, rows = sampled or {}, known_rows(chosen)
    texts = listed(chosen, goal)
    found = [_candidate(chosen, shape, text, seen.get(text), rows) for text in texts]
    if not any(Recipe.parse(text).method for text in texts):
        return found
    outputs = {text: known_output(chosen, Recipe.parse(text)) for text in texts}
    return [
        dataclasses.replace(one, output_db=outputs[one.text]) if isinstance(one, Candidate) else one
        for one in found
    ]


def _candidate(
    chosen: Record,
    shape: tuple[int, int],
    text: str,
    sampled: Estimate | None,
    rows: Mapping[str, ComparisonRow],
) -> Candidate | Pending:
    recipe = Recipe.parse(text)
    scheme = recipe.scheme
    held, unheld = held_by(scheme, shape), why_unheld(scheme, shape)
    report = whole_report(chosen, text)
    row = None if recipe.method else rows.get(str(scheme))
    if report is not None:
        return Candidate(text, recipe.label, report, held, unheld=unheld)
    note = refused(chosen, text)
    if sampled is not None:
        report, share, half_db = sampled.report, sampled.share, sampled.half_db
        return Candidate(text, recipe.label, report, held, share, half_db, note, unheld=unheld)
    bits, nbytes = storage(scheme, shape)
    if row is not None:
        report = dataclasses.replace(row.report, nbytes=nbytes)
        return Candidate(text, recipe.label, report, held, row.share, row.half_db, note, unheld=unheld)
    return Pending(text, recipe.label, bits, nbytes, held, note, unheld)


def is_weight(chosen: Record) -> bool:
    """False for a built-in tensor that is no weight: no product has it as W."""
    return chosen.source != "builtin" or chosen.sample.removesuffix("_in") == chosen.sample


def race_of(chosen: Record, shape: tuple[int, int], goal: Goal) -> Race | None:
    """Times of products with the table's schemes, by their texts, with quantized X if the goal has it. None
    for a tensor that is no weight."""
    if not is_weight(chosen):
        return None
    return _race(tuple(listed(chosen, goal)), *shape, goal.name in INPUTS)


@lru_cache(maxsize=256)
def _race(texts: tuple[str, ...], rows: int, columns: int, of_inputs: bool) -> Race | None:
    timed = {t: recipe.scheme for t in texts if (recipe := Recipe.parse(t)).method in CODES}
    found = race(list(timed.values()), rows, columns, quantized_inputs=of_inputs)
    times = {text: found.times[str(scheme)] for text, scheme in timed.items()} if found else {}
    return None if found is None else dataclasses.replace(found, times=times)


def filling(chosen: Record) -> Iterator[tuple[int, int]]:
    """Compute every named scheme on a small sample, then the shortlist's rows on all of the tensor, and the
    other schemes on a larger sample; yields how many of the named schemes are known, and how many there are.
    """
    values = matrix_of(chosen).values
    if values.numel() > SAMPLE_ELEMENTS and not known_overview(chosen):
        overview_rows(chosen)
        yield len(known_rows(chosen)), len(SCHEMES)
    yield from fill_listed(chosen, of_searches=False)
    found = surveyed(chosen)
    missing = [scheme for scheme in SCHEMES.values() if scheme.text not in found]
    for row in locked_steps(survey(values, missing)):
        found[row.scheme.text] = row
        yield len(known_rows(chosen)), len(SCHEMES)
    yield from fill_listed(chosen, of_searches=True)
    yield from _filling_outputs(chosen, listed(chosen, goal_now(chosen, shape_of(chosen))))


TOO_SLOW = "of a sample: its search on all {:,} values takes long; make it A to have it of the whole"


def fill_listed(chosen: Record, of_searches: bool) -> Iterator[tuple[int, int]]:
    """Compute the shortlist's rows on all of the tensor: those of schemes that search, or all others."""
    size = matrix_of(chosen).values.numel()
    for text in listed(chosen, goal_now(chosen, shape_of(chosen))):
        recipe = Recipe.parse(text)
        known = whole_errors(chosen, text) is not None or refused(chosen, text)
        if known or searches(recipe.scheme) != of_searches:
            continue
        try:
            if of_searches and size > WHOLE:
                raise ValueError(TOO_SLOW.format(size))
            of_row = dataclasses.replace(chosen, scheme=text, second="")
            keep_analyses(of_row, [(recipe, analysis_of(chosen, recipe))])
        except (ValueError, OSError) as error:  # one row that cannot be computed does not stop the others
            refuse(chosen, text, error)
        yield len(known_rows(chosen)), len(SCHEMES)


def _filling_outputs(chosen: Record, texts: Sequence[str]) -> Iterator[tuple[int, int]]:
    """Where a method chooses codes: the error of the layer's output under every row, on inputs that no method
    saw."""
    if not any(Recipe.parse(text).method for text in texts):
        return
    for text in texts:
        if whole_report(chosen, text) is not None:
            try:
                output_of(dataclasses.replace(chosen, scheme=text, second=""))
            except (ValueError, OSError) as error:
                refuse(chosen, text, error)
            yield len(known_rows(chosen)), len(SCHEMES)
