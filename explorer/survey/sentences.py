"""Describe surveys, choices and checks in a sentence or two."""

from __future__ import annotations

import math
from collections import Counter
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

_SIMILAR = 0.1
"""Largest difference in bits per weight by which a compared single scheme may be smaller."""
_HAIR, _MUCH_LESS = 0.02, 0.2
"""Largest share by which a budget may grow, and least share of the loss that this has to save."""
_AS_FAST = 0.005
"""Largest relative excess of time of a single scheme that counts as equally fast."""
FEW_TEXTS = 4
"""Number of calibration texts below which an expert's predicted loss counts as uncertain."""
_SMALL_SHARE = 0.005
"""Share of a model's bytes below which a part is not named."""
_LARGE_MODEL = 1e9
"""Bytes of a model from which a sentence names a GPU that holds it."""


def about(survey: Survey) -> str:
    """Say what was surveyed, and whether the model was run."""
    head = survey.head
    on = f"run on {texts_run(head.texts, head.texts_left_out)} ({head.tokens:,} tokens)"
    ran = f"{on}{part_run(head.part)}" if head.loss else f"not run: {head.why}"
    by = f"rounded to nearest{''.join(f' and by {label_of(name)}' for name in head.methods)}"
    return (
        f"{head.model}: {_count(survey)} × {len(head.schemes)} schemes, {by}; the model was "
        f"{ran}.{kept(survey)}{rarely_reached(survey)}"
    )


def part_run(part: str) -> str:
    """Say which part of a model was run; empty for the whole model."""
    return f", only its {part}: it was given no images or sound" if part else ""


def texts_run(texts: int, left_out: int) -> str:
    """Count the texts that were run, and all texts if some could not be: "38 of 40 texts"."""
    return f"{texts:,} of {texts + left_out:,} texts" if left_out else _counted(texts, "text")


def _counted(count: int, noun: str) -> str:
    return f"{count:,} {noun}{'' if count == 1 else 's'}"


def rarely_reached(survey: Survey) -> str:
    """Name the experts that few calibration texts reached; empty if there are none."""
    few = [x for x in survey.linear if is_expert(x.name) and x.texts is not None and x.texts < FEW_TEXTS]
    if not few:
        return ""
    every = sum(is_expert(layer.name) for layer in survey.linear)
    least = min(few, key=lambda layer: layer.texts or 0)
    return (
        f" {len(few)} of {every} expert matrices were reached by fewer than {FEW_TEXTS} texts "
        f"({least.name} by {least.texts}): their predicted losses are uncertain; more texts help."
    )


def kept(survey: Survey) -> str:
    """Name the parts of the model that stay as they are, and their share of the bytes; empty if they are
    small."""
    parts = sorted(survey.head.kept_parts.items(), key=lambda part: -part[1])
    whole = survey.head.kept_bytes + sum(layer.stored_bytes for layer in survey.layers if layer.bits)
    large = [f"{what} {100 * size / whole:.0f} %" for what, size in parts if size >= _SMALL_SHARE * whole]
    share = 100 * survey.head.kept_bytes / max(whole, 1)
    said = f" Kept as stored, {share:.0f} % of the bytes: {', '.join(large)}." if large else ""
    idle = [layer.name for layer in survey.layers if layer.bits and not layer.reached]
    if idle:
        said += (
            f" Without effect on the loss, and kept as stored: {_layers(idle)}. A survey with --signal "
            "weight chooses schemes for them too."
        )
    experts = [layer for layer in survey.layers if layer.role is Role.EXPERTS]
    if not experts:
        return said
    of_weights = sum(layer.weights for layer in experts) / max(survey.head.parameters, 1)
    size, growth = (sum(getattr(x, what) for x in experts) for what in ("stored_bytes", "growth"))
    restored = f", {words.bytes_(size + growth)} restored by an export" if growth else ""
    return (
        f"{said} Kept as stored: {len(experts)} tensors of stacked experts, {100 * of_weights:.0f} % of the "
        f"weights ({words.bytes_(size)}{restored}): no checkpoint format here holds them as codes."
    )


def kept_words(left: Mapping[str, str]) -> list[str]:
    """Name the layers that stay as they are, in a sentence for each reason."""
    found, by_reason = [], dict[str, list[str]]()
    for name, why in left.items():
        by_reason.setdefault(why, []).append(name)
    for why, names in by_reason.items():
        parts = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
        which = names[0] if len(names) == 1 else f"{len(names)} layers ({parts}), such as {names[0]}"
        found.append(f"kept as stored: {which}: {why}")
    return found


def _layers(names: Sequence[str]) -> str:
    return f"layer {names[0]}" if len(names) == 1 else f"{len(names)} layers, such as {names[0]}"


def _count(survey: Survey) -> str:
    """Count the layers that schemes can be chosen for."""
    tables = sum(layer.is_table for layer in survey.linear)
    heads = sum(layer.role is Role.HEAD for layer in survey.linear)
    others = [*["embeddings"] * bool(tables), *["the head"] * bool(heads)]
    linear = f"{len(survey.linear) - heads - tables} linear layers"
    return linear if not others else f"{linear}{', ' if len(others) > 1 else ' and '}{' and '.join(others)}"


def methods_words(choice: Choice) -> str:
    """Count the layers of each method; empty where all layers are rounded to nearest."""
    counts = Counter(choice.methods.get(name, "") or RTN.name for name in choice.schemes)
    said = ", ".join(f"{label_of(method)} for {_counted(n, 'layer')}" for method, n in counts.items())
    return f"methods: {said}" if choice.methods else ""


def between_words(interval: Interval | None) -> str:
    """Give the interval of a predicted loss in words; empty without one."""
    return f", {interval[0]:.3g} to {interval[1]:.3g} over the calibration texts" if interval else ""


def what_it_buys(front: Frontier, choice: Choice, interval: Interval | None = None) -> str:
    """Describe the size of a choice, its predicted loss with the ``interval``, and the loss of the best
    single scheme of that size."""
    size, signal = choice.bytes + front.kept_bytes, SENSITIVITIES[front.signal]
    bought = f"{choice.bits:.2f} bits per weight: {words.bytes_(size)} for the whole model"
    if size >= _LARGE_MODEL:
        fits = gpus_that_hold(size)
        bought += f", which fits on one {fits[0]}" if fits else ", which fits on no single GPU"
    if not signal.is_loss:
        return f"{bought}. The {signal.label} predicts no loss. {signal.trust}"
    bought += f"; predicted loss {choice.loss:.3g}{between_words(interval)}"
    bought += f"{weights_alone(front.weights_alone)}."
    if choice.methods:
        bought += f" {_capital(methods_words(choice))}."
    if choice.time is not None:
        fast = _against_as_fast(front, choice, choice.time.seconds)
        return f"{bought}{fast} {_capital(choice.time.described)}."
    single = [u for u in front.uniform if u.bits <= choice.bits + SAME_SIZE]
    if not single:
        return bought
    best, by = min(single, key=lambda u: u.loss), ", each by its best method" if choice.methods else ""
    bought += f" {label_of_text(best.scheme)} for all layers{by}: {best.loss:.3g} at {best.bits:.2f} bits"
    if choice.loss < best.loss and best.bits > choice.bits - _SIMILAR:
        bought += f"; a scheme for each layer loses {words.percent(1 - choice.loss / best.loss)} less"
    return f"{bought}."


def slightly_more(front: Frontier, choice: Choice, budget: float | None, step: float = 1e-4) -> str:
    """Point out a slightly larger budget that saves much loss: larger than ``budget`` (bits per weight; None:
    the choice's bits) by at most ``_HAIR``, in steps of ``step``, with a loss less by at least
    ``_MUCH_LESS``. Empty if there is none."""
    if choice.time is not None or not SENSITIVITIES[front.signal].is_loss:
        return ""
    most = (1 + _HAIR) * max(budget or 0.0, choice.bits)
    able = (front.bits > choice.bits) & (front.loss <= (1 - _MUCH_LESS) * choice.loss)
    bits = math.ceil(front.bits[able.argmax()] / step - 1e-6) * step
    if not able.any() or bits > most:
        return ""
    less = 1 - front.at(bits).loss / choice.loss
    return f"{bits:.7g} bits would lose {words.percent(less)} less."


def _capital(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}"


def _against_as_fast(front: Frontier, choice: Choice, seconds: float) -> str:
    """Name the best single scheme that is as fast as a choice; empty without one."""
    single = [u for u in front.uniform if u.seconds is not None and u.seconds <= seconds * (1 + _AS_FAST)]
    best = min(single, key=lambda u: u.loss, default=None)
    if best is None or best.seconds is None:
        return ""
    return f" {label_of_text(best.scheme)} for all layers: {best.loss:.3g} in {words.duration(best.seconds)}."


def truth(check: Check) -> str:
    """Describe a check's measured loss: against the best single scheme that was run of about the recipe's
    size, and with the part of quantized inputs and a quantized cache."""
    said = _against_singles(check)
    if (alone := check.weights_alone) is not None:
        parts = [f"quantized inputs ({check.inputs})"] if check.inputs else []
        parts += [f"a quantized cache ({check.cache})"] if check.cache else []
        said += (
            f" All of these models run with {' and '.join(parts)}: the recipe loses "
            f"{check.rows[0].loss.value:.3g} with that, and {alone.loss.value:.3g} without, which is what "
            "the prediction is of."
        )
    return f"{said} {_capital(check.time.described)}." if check.time else said


def _against_singles(check: Check) -> str:
    """Compare the recipe with the best single scheme of about its size."""
    measured = "Measured on texts that were not used for calibration"
    if check.calibrated:
        measured = "Measured on the calibration texts themselves, so that the loss looks smaller than it is"
    if check.uniform:
        return f"{measured}: the recipe is one scheme for all layers."
    single, better, mine = check.single, check.better, check.rows[0]
    if single is None or better is None:
        return f"{measured}; no single scheme is as small."
    least = f"{words.percent(abs(better))} {'less' if better >= 0 else 'more'}"
    count, more = len(check.singles), 100 * (mine.bits / single.bits - 1)
    beside = f"the best of {count} single schemes" if count > 1 else "the single scheme"
    where = f" in the files of {check.target}" if check.target else ""
    needs = f", and needs {more:.0f} % more bits" if more >= 0.5 else ""
    return (
        f"{measured}: the recipe of {mine.bits:.2f} bits{where} loses {least} than {beside} of about its "
        f"size that were run, {label_of_text(single.name)} ({single.bits:.2f} bits){needs}."
        f"{_contradiction(mine, single)}"
    )


def _contradiction(recipe: Checked, single: Checked) -> str:
    """Say that perplexity ranks the recipe and the best single scheme in the opposite order; empty if it does
    not, or if there is none."""
    mine, theirs = (row.loss.scores.get("perplexity") for row in (recipe, single))
    if mine is None or theirs is None or mine == theirs:
        return ""
    if (mine < theirs) == (recipe.loss.value < single.loss.value):
        return ""
    original = recipe.loss.scores["perplexity_original"]
    return (
        f" Perplexity contradicts that: {mine:.4g} by the recipe, {theirs:.4g} by the single scheme "
        f"({original:.4g} originally). It measures the likelihood of these texts, KL the distance from the "
        "original model."
    )
