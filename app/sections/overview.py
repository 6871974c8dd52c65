"""The numbers of A and B, and their assessment in words."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from app.parts import html
from app.parts.section import NotComputedError, Section, Shown
from app.state.analyses import Pairs, analyses_of, at_hand, output_sqnr
from app.state.estimates import Estimated, estimated
from app.state.query import Query
from app.state.record import Record
from explorer.analysis.verdict import judged, verdict
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.sources.tensors import Matrix

QUANTIZING = "The whole tensor is being quantized …"


def whole(chosen: Record, meanwhile: Mapping[str, str] | None = None) -> tuple[Matrix, Pairs]:
    """``analyses_of``, or ``NotComputedError`` while the first screen computes them; ``meanwhile``: what is
    shown until then."""
    if not at_hand(chosen):
        raise NotComputedError(QUANTIZING, meanwhile)
    return analyses_of(chosen)


def view(query: Query) -> Shown:
    """Show the key numbers of A and B and their assessment, by a sample until the whole is quantized."""
    chosen = query.record
    seen = None if at_hand(chosen) else estimated(chosen)
    found = whole(chosen, None if seen is None else words_of_sample(seen))
    return words_of(*found, output_sqnr(chosen, found[1]))


def words_of(matrix: Matrix, pairs: Pairs, outputs: Sequence[float] = ()) -> dict[str, str]:
    """Return the assessment and the key numbers. ``outputs``: where a method works for it, the SQNR in dB of
    the layer's output by each."""
    recipes = [recipe for recipe, _ in pairs]
    reports = [analysis.report for _, analysis in pairs]
    if outputs:  # the steps of a repaired weight are not those of its scheme alone
        words, why = f"{output_words(recipes, outputs)} {verdict(*reports)}", ""
    else:
        words, why = judged(*(analysis for _, analysis in pairs))
    words += _shortened(pairs)
    return {
        "verdict": html.verdict(matrix.description, recipes, words, why),
        "kpis": html.kpis(reports, outputs),
    }


def _shortened(pairs: Pairs) -> str:
    """Say whose bits are of rows that no GGUF file holds; empty if nobody's are."""
    notes = [recipe.scheme.shortened(analysis.q.shape) for recipe, analysis in pairs]
    whose = [side for side, words in zip(html.SIDES, notes, strict=False) if words]
    if not whose:
        return ""
    words = next(filter(None, notes))
    return f" {' and '.join(whose)}: {words}." if len(pairs) > 1 else f" {words[0].upper()}{words[1:]}."


def words_of_sample(seen: Estimated) -> dict[str, str]:
    """Return the assessment and the key numbers by a sample of the tensor."""
    words, why = f"By the sample: {verdict(*seen.reports)}", "The reason follows with the whole tensor."
    return {
        "verdict": html.verdict(seen.description, seen.recipes, words, why, waits=True),
        "kpis": html.kpis(seen.reports, sampled=seen.estimates),
    }


def output_words(recipes: Sequence[Recipe], outputs: Sequence[float]) -> str:
    """Describe the layer's output error under a method. Without it the verdict, which rates the weight
    error, would rate down every method that trades weight error for output error."""
    first, *second = (f"{db:.1f} dB" for db in outputs)
    if not second:
        return f"By {label_of(recipes[0].method)} the layer's output has {first} on held-out inputs."
    gain = outputs[1] - outputs[0]
    better = "B" if gain > 0 else "A"
    return (
        f"The layer's output, which a method optimises, has {first} by A and {second[0]} by B on inputs held "
        f"out: {better} is {abs(gain):.1f} dB better. The weight by itself:"
    )


SECTION = Section(name="numbers", title="Numbers", view=view)
