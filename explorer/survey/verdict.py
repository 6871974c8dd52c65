"""What a survey is of, and what a budget buys, in a sentence or two."""

from __future__ import annotations

from explorer import words
from explorer.analysis.memory import gpus_that_hold
from explorer.schemes.scheme import label_of_text
from explorer.survey.budget import Choice, Frontier
from explorer.survey.check import SAME_SIZE, Check
from explorer.survey.kinds import Role
from explorer.survey.rows import Survey
from explorer.survey.sensitivities import SENSITIVITIES

_SIMILAR = 0.1
"""Bits a weight that a single scheme may be smaller and still say what choosing saves."""
_TOLD_FROM = 1e9
"""Bytes from which on it is said which GPU holds a model: smaller ones fit every one."""


def about(survey: Survey) -> str:
    """What was surveyed, and whether the model was run."""
    head = survey.head
    ran = f"run on {head.texts} texts ({head.tokens:,} tokens)" if head.loss else f"not run: {head.why}"
    return (
        f"{head.model}: {_count(survey)} × {len(head.schemes)} schemes, rounded to nearest; the model was "
        f"{ran}.{kept(survey)}"
    )


def kept(survey: Survey) -> str:
    """The share of experts that are listed and stay as they are, as a sentence; empty without any."""
    experts = [layer for layer in survey.layers if layer.role is Role.EXPERTS]
    if not experts:
        return ""
    share = sum(layer.weights for layer in experts) / max(survey.head.parameters, 1)
    size, growth = (sum(getattr(x, what) for x in experts) for what in ("stored_bytes", "growth"))
    restored = f", {words.bytes_(size + growth)} restored by an export" if growth else ""
    return (
        f" Kept as they are: {len(experts)} tensors of stacked experts, {100 * share:.0f} % of the weights "
        f"({words.bytes_(size)} as stored{restored}): no target carries them as codes."
    )


def _count(survey: Survey) -> str:
    """Of the layers that schemes can be chosen for."""
    heads = sum(layer.role is Role.HEAD for layer in survey.linear)
    return f"{len(survey.linear) - heads} linear layers" + (" and the head" if heads else "")


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
    if choice.loss < best.loss and best.bits > choice.bits - _SIMILAR:
        bought += f", so that choosing saves {100 * (1 - choice.loss / best.loss):.0f} % of it"
    return f"{bought}."


def truth(check: Check) -> str:
    """What a check measured, against the best single scheme of about the recipe's size."""
    if check.uniform:
        return "Measured on texts that the survey did not see: the recipe is one scheme for all layers."
    single, better = check.single, check.better
    if single is None or better is None:
        return "Measured on texts that the survey did not see; no single scheme is as small."
    least = f"{abs(100 * better):.0f} % {'less' if better >= 0 else 'more'}"
    return (
        f"Measured: the recipe of {check.rows[0].bits:.2f} bits loses {least} than the best single scheme "
        f"of about its size, {label_of_text(single.name)} ({single.bits:.2f} bits)."
    )
