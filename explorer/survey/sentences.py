"""What a survey is of, and what a budget buys, in a sentence or two."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from explorer import words
from explorer.analysis.memory import gpus_that_hold
from explorer.methods import RTN, label_of
from explorer.models.files import Role
from explorer.models.skeleton import is_expert
from explorer.schemes.scheme import label_of_text
from explorer.survey.apply import weights_alone
from explorer.survey.budget import Choice, Frontier
from explorer.survey.check import SAME_SIZE, Check, Checked
from explorer.survey.interval import Interval
from explorer.survey.rows import Survey
from explorer.survey.sensitivities import SENSITIVITIES
from explorer.survey.times import PredictedTime

_SIMILAR = 0.1
"""Bits per weight that a single scheme may be smaller and still say what choosing saves."""
_HAIR, _MUCH_LESS = 0.02, 0.2
"""Share that a budget may be larger, and share of the loss that it must save to be told."""
_AS_FAST = 0.005
"""Share of a time that a single scheme may take more and still be as fast."""
FEW_TEXTS = 4
"""An expert that fewer calibration texts reached has an uncertain loss."""
TOLD_SHARE = 0.005
"""Of the bytes: parts below it are not told."""
_TOLD_FROM = 1e9
"""Bytes from which on it is said which GPU holds a model: smaller ones fit every one."""


def about(survey: Survey) -> str:
    """What was surveyed, and whether the model was run."""
    head = survey.head
    on = f"run on {texts_run(head.texts, head.texts_left_out)} ({head.tokens:,} tokens)"
    ran = f"{on}{part_run(head.part)}" if head.loss else f"not run: {head.why}"
    by = f"rounded to nearest{''.join(f' and by {label_of(name)}' for name in head.methods)}"
    return (
        f"{head.model}: {_count(survey)} × {len(head.schemes)} schemes, {by}; the model was "
        f"{ran}.{kept(survey)}{rarely_reached(survey)}"
    )


def part_run(part: str) -> str:
    """What of a model was run, where texts do not run all of it."""
    return f", its {part} alone: images and sound were not given to it" if part else ""


def texts_run(texts: int, left_out: int) -> str:
    """How many texts were run, and of how many where some could not be: "38 of 40 texts"."""
    plural = "" if texts == 1 else "s"
    return f"{texts:,} of {texts + left_out:,} texts" if left_out else f"{texts:,} text{plural}"


def rarely_reached(survey: Survey) -> str:
    """The experts that few calibration texts reached, as a sentence; empty if there are none."""
    few = [x for x in survey.linear if is_expert(x.name) and x.texts is not None and x.texts < FEW_TEXTS]
    if not few:
        return ""
    every = sum(is_expert(layer.name) for layer in survey.linear)
    least = min(few, key=lambda layer: layer.texts or 0)
    return (
        f" {len(few)} of {every} matrices of experts were reached by fewer than {FEW_TEXTS} texts, such as "
        f"{least.name} by {least.texts}: their losses are uncertain; more texts help."
    )


def kept(survey: Survey) -> str:
    """What stays as it is and its share of the bytes, as sentences; empty where little does."""
    parts = sorted(survey.head.kept_parts.items(), key=lambda part: -part[1])
    whole = survey.head.kept_bytes + sum(layer.stored_bytes for layer in survey.layers if layer.bits)
    told = [f"{what} {100 * size / whole:.0f} %" for what, size in parts if size >= TOLD_SHARE * whole]
    share = 100 * survey.head.kept_bytes / max(whole, 1)
    said = f" Kept as stored, {share:.0f} % of the bytes: {', '.join(told)}." if told else ""
    idle = [layer.name for layer in survey.layers if layer.bits and not layer.reached]
    if idle:
        said += (
            f" Without effect on the loss, and kept unchanged: {_layers(idle)}. A survey with --signal "
            "weight chooses for them too."
        )
    return said + _experts_kept(survey)


def kept_words(left: Mapping[str, str]) -> list[str]:
    """Sentences on layers that stay as they are, one a reason: how many, which parts of blocks, why."""
    found = []
    for why in dict.fromkeys(left.values()):
        names = [name for name, one in left.items() if one == why]
        parts = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
        which = names[0] if len(names) == 1 else f"{len(names)} layers ({parts}), such as {names[0]}"
        found.append(f"kept as stored: {which}: {why}")
    return found


def _layers(names: Sequence[str]) -> str:
    """ "layer X", or how many they are, and one of them."""
    return f"layer {names[0]}" if len(names) == 1 else f"{len(names)} layers, such as {names[0]}"


def _experts_kept(survey: Survey) -> str:
    """What becomes of stacked experts that no target carries; empty without any."""
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
    tables = sum(layer.is_table for layer in survey.linear)
    heads = sum(layer.role is Role.HEAD for layer in survey.linear)
    others = [*["embeddings"] * bool(tables), *["the head"] * bool(heads)]
    linear = f"{len(survey.linear) - heads - tables} linear layers"
    return linear if not others else f"{linear}{', ' if len(others) > 1 else ' and '}{' and '.join(others)}"


def methods_words(choice: Choice) -> str:
    """How many layers of a choice have which method; empty where all are rounded to nearest."""
    counts: dict[str, int] = {}
    for name in choice.schemes:
        method = choice.methods.get(name, "") or RTN.name
        counts[method] = counts.get(method, 0) + 1
    said = ", ".join(
        f"{label_of(method)} for {count} layer{'' if count == 1 else 's'}" for method, count in counts.items()
    )
    return f"methods: {said}" if choice.methods else ""


def between_words(interval: Interval | None) -> str:
    """An interval of a predicted loss, to stand behind it; empty without one."""
    return f", {interval[0]:.3g} to {interval[1]:.3g} by the calibration texts" if interval else ""


def what_it_buys(front: Frontier, choice: Choice, interval: Interval | None = None) -> str:
    """The size of a choice, its predicted loss with the ``interval``, and what the best single scheme of that
    size would lose."""
    size, signal = choice.bytes + front.kept_bytes, SENSITIVITIES[front.signal]
    bought = f"{choice.bits:.2f} bits per weight: {words.bytes_(size)} for the whole model"
    if size >= _TOLD_FROM:
        fits = gpus_that_hold(size)
        bought += f", which {fits[0]} holds" if fits else ", more than any one GPU holds"
    if not signal.is_loss:
        return f"{bought}. This signal predicts no loss: {signal.trust}"
    bought += f"; predicted loss {choice.loss:.3g}{between_words(interval)}"
    bought += f"{weights_alone(front.weights_alone)}."
    by = ""
    if choice.methods:
        said, by = methods_words(choice), ", each by its best method"
        bought += f" {said[:1].upper()}{said[1:]}."
    if choice.time is not None:
        fast = _against_as_fast(front, choice, choice.time.seconds)
        return f"{bought}{fast} {_sentence(choice.time)}"
    single = [u for u in front.uniform if u.bits <= choice.bits + SAME_SIZE]
    if not single:
        return bought
    best = min(single, key=lambda u: u.loss)
    bought += f" {label_of_text(best.scheme)} for all layers{by}: {best.loss:.3g} at {best.bits:.2f} bits"
    if choice.loss < best.loss and best.bits > choice.bits - _SIMILAR:
        bought += f"; choosing per layer saves {100 * (1 - choice.loss / best.loss):.0f} % of that"
    return f"{bought}."


def slightly_more(front: Frontier, choice: Choice, budget: float | None, step: float = 1e-4) -> str:
    """A sentence where a ``budget`` (bits per weight; None: those of the choice) that is at most ``_HAIR``
    larger lets the choice lose at least ``_MUCH_LESS`` of its loss less; else empty. The larger one is a
    multiple of ``step``."""
    if choice.time is not None or not SENSITIVITIES[front.signal].is_loss:
        return ""
    most = (1 + _HAIR) * max(budget or 0.0, choice.bits)
    for point, loss in zip(front.bits.tolist(), front.loss.tolist(), strict=True):
        bits = math.ceil(point / step - 1e-6) * step
        if choice.bits < point and bits <= most and loss <= (1 - _MUCH_LESS) * choice.loss:
            less = 1 - front.at(bits).loss / choice.loss
            return f"{bits:.7g} bits would lose {100 * less:.0f} % less."
    return ""


def _sentence(time: PredictedTime) -> str:
    return f"{time.described[:1].upper()}{time.described[1:]}."


def _against_as_fast(front: Frontier, choice: Choice, seconds: float) -> str:
    """The best single scheme that is as fast as a choice, as a sentence; empty without one."""
    single = [u for u in front.uniform if u.seconds is not None and u.seconds <= seconds * (1 + _AS_FAST)]
    best = min(single, key=lambda u: u.loss, default=None)
    if best is None or best.seconds is None:
        return ""
    return f" {label_of_text(best.scheme)} for all layers: {best.loss:.3g} in {words.duration(best.seconds)}."


def truth(check: Check) -> str:
    """What a check measured, against the best of the single schemes of about the recipe's size that were
    run, and what quantized inputs add."""
    time = "" if check.time is None else f" {check.time.described[:1].upper()}{check.time.described[1:]}."
    return f"{_against_singles(check)}{_of_inputs(check)}{time}"


def _of_inputs(check: Check) -> str:
    """A sentence on the loss with quantized inputs or cache; empty where neither is quantized."""
    alone = check.weights_alone
    if alone is None:
        return ""
    both = check.rows[0].loss.value
    parts = [f"quantized inputs ({check.inputs})"] if check.inputs else []
    parts += [f"a quantized cache ({check.cache})"] if check.cache else []
    return (
        f" All of these models run with {' and '.join(parts)}: the recipe loses {both:.3g} with that, and "
        f"{alone.loss.value:.3g} without, as the prediction is."
    )


def _measured_on(check: Check) -> str:
    if check.calibrated:
        return "Measured on the calibration texts themselves, so that the loss is flattered"
    return "Measured on texts that were not calibrated by"


def _against_singles(check: Check) -> str:
    """The recipe against the best single scheme of about its size."""
    if check.uniform:
        return f"{_measured_on(check)}: the recipe is one scheme for all layers."
    single, better = check.single, check.better
    if single is None or better is None:
        return f"{_measured_on(check)}; no single scheme is as small."
    least = f"{abs(100 * better):.0f} % {'less' if better >= 0 else 'more'}"
    count = len(check.singles)
    beside = f"the best of {count} single schemes" if count > 1 else "the single scheme"
    where = f" in the files of {check.target}" if check.target else ""
    return (
        f"{_measured_on(check)}: the recipe of {check.rows[0].bits:.2f} bits{where} loses {least} than "
        f"{beside} of about its size that were run, {label_of_text(single.name)} "
        f"({single.bits:.2f} bits){_more_bits(check.rows[0].bits, single.bits)}."
        f"{_contradiction(check, single)}"
    )


def _more_bits(mine: float, theirs: float) -> str:
    """How many more bits a recipe needs than the single scheme beside it; empty for no more."""
    more = 100 * (mine / theirs - 1)
    return f", and needs {more:.0f} % more" if more >= 0.5 else ""


def _contradiction(check: Check, single: Checked) -> str:
    """A sentence where perplexity ranks the recipe and the best single scheme the other way round; empty if
    it does not, or there is none."""
    mine, theirs = (row.loss.scores.get("perplexity") for row in (check.rows[0], single))
    if mine is None or theirs is None:
        return ""
    less_loss = check.rows[0].loss.value < single.loss.value
    if (mine < theirs) == less_loss or mine == theirs:
        return ""
    original = check.rows[0].loss.scores["perplexity_original"]
    return (
        f" Perplexity contradicts that: {mine:.4g} by the recipe, {theirs:.4g} by the single scheme "
        f"({original:.4g} originally). It measures the likelihood of these texts, KL the distance from the "
        "original model."
    )
