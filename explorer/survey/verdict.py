"""What a survey is of, and what a budget buys, in a sentence or two."""

from __future__ import annotations

from explorer import words
from explorer.analysis.memory import gpus_that_hold
from explorer.schemes.text import label_of_text
from explorer.survey.budget import Choice, Frontier
from explorer.survey.check import SAME_SIZE, Check
from explorer.survey.rows import Survey
from explorer.survey.sensitivities import SENSITIVITIES

_TOLD_FROM = 1e9
"""Bytes from which on it is said which GPU holds a model: smaller ones fit every one."""


def about(survey: Survey) -> str:
    """What was surveyed, and whether the model was run."""
    head = survey.head
    ran = f"run on {head.texts} texts ({head.tokens:,} tokens)" if head.loss else f"not run: {head.why}"
    return (
        f"{head.model}: {len(survey.linear)} linear layers × {len(head.schemes)} schemes, rounded to "
        f"nearest; the model was {ran}."
    )


def verdict(front: Frontier, choice: Choice) -> str:
    """The size of a choice, its predicted loss, and what the best single scheme of that size would lose."""
    size, signal = choice.bytes + front.kept_bytes, SENSITIVITIES[front.signal]
    bought = f"{choice.bits:.2f} bits a weight: {words.bytes_(size)} for the whole model"
    if size >= _TOLD_FROM:
        fits = gpus_that_hold(size)
        bought += f", which {fits[0]} holds" if fits else ", more than any one GPU holds"
    if not signal.is_loss:
        return f"{bought}. This signal predicts no loss: {signal.trust}"
    bought += f"; predicted loss {choice.loss:.3g}."
    single = [u for u in front.uniform if u.bits <= choice.bits + SAME_SIZE]
    if not single:
        return bought
    best = min(single, key=lambda u: u.loss)
    bought += f" {label_of_text(best.scheme)} for all layers: {best.loss:.3g} at {best.bits:.2f} bits"
    if choice.loss < best.loss:
        bought += f", so that choosing saves {100 * (1 - choice.loss / best.loss):.0f} % of it"
    return f"{bought}."


def truth(check: Check) -> str:
    """What a check measured, against the best single scheme of the recipe's size."""
    if check.better is None:
        return "Measured on sentences that the survey did not see; there is no single scheme of this size."
    least = f"{abs(100 * check.better):.0f} % {'less' if check.better >= 0 else 'more'}"
    return f"Measured: the recipe loses {least} than the best single scheme of its size."
