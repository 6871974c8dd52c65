"""Report of a model's survey: the sensitive layers, the loss within a budget of bits, and its recipe."""

from __future__ import annotations

import hashlib
import json
import math
import shlex
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from explorer import words
from explorer.checkpoints.inputs import INPUTS, inputs_of
from explorer.figures.style import file_name
from explorer.figures.survey import LossPoint, budget_figure, cost_label, heat_figure, strip_figure
from explorer.methods import RTN, label_of
from explorer.recordings.quality import recorded_quality
from explorer.recordings.recipe_runs import recorded_causal, recorded_recipes
from explorer.reports.content import SURVEY, Content, Part, Table, content
from explorer.schemes.scheme import label_of_text
from explorer.survey import (
    SENSITIVITIES,
    SURVEYS,
    Choice,
    Constraints,
    Frontier,
    ModelRecipe,
    Survey,
    frontier,
    load_survey,
    recipe_of,
)
from explorer.survey.apply import weights_alone
from explorer.survey.carried import target_of
from explorer.survey.check import SAME_SIZE, Check
from explorer.survey.run import SCHEMES
from explorer.survey.sentences import about, kept_words, texts_run, truth, what_it_buys
from explorer.survey.times import recorded_times

RECORDED = "all-MiniLM-L6-v2"
"""Name of the model of recorded runs that name none."""
RUN = "check"
"""Name of the table of models that were run, and prefix of its numbers' names."""
USUAL_BITS = 4.5
BUDGETS = (2.5, 3.0, 3.5, 4.0, 4.5, 5.0, 6.0, 8.0)
"""Bits per weight in the table of budgets, within the frontier."""


@dataclass(frozen=True)
class Asked:
    """Request for a recipe from a survey, with the options of `explorer recipe`.

    ``bits`` are limited to the frontier's ends. With a ``batch`` the budget is ``seconds`` instead, also
    limited (None: the middle of the frontier), by the recorded times of a step of so many tokens. ``method``
    chooses the codes of all layers ("rtn": rounding to nearest; "": the survey's choice by layer).
    """

    bits: float = USUAL_BITS
    target: str = ""
    keep: tuple[str, ...] = ()
    inputs: str = ""
    seconds: float | None = None
    batch: int | None = None
    method: str = ""


@dataclass(frozen=True)
class Bought:
    """Survey, request, frontier, choice, and recipe."""

    survey: Survey
    asked: Asked
    front: Frontier
    choice: Choice
    recipe: ModelRecipe


def bought(found: Survey, asked: Asked, known: Frontier | None = None) -> Bought:
    """Make the recipe for a budget, limited to the frontier's ends. ``known``: the frontier of the same
    request, whatever its budget. ``ValueError`` for names that the survey lacks."""
    constraints = constraints_of(asked, found)
    front = known or frontier(found, constraints=constraints)
    if front.by_time is None:
        choice = front.at(min(max(asked.bits, front.least), front.most))
    else:
        low, high = front.by_time.least, front.by_time.most
        seconds = (low + high) / 2 if asked.seconds is None else asked.seconds
        choice = front.at_time(min(max(seconds, low), high))
    forced = "" if asked.method == RTN.name or asked.method in found.head.methods else asked.method
    recipe = recipe_of(found, choice, front.signal, forced, constraints)
    return Bought(found, asked, front, choice, recipe)


def constraints_of(asked: Asked, found: Survey) -> Constraints:
    """Make the constraints of a request, without its budget."""
    surveyed = (asked.method,) if asked.method in found.head.methods else ()
    return Constraints(
        target=target_of(asked.target),
        keep=asked.keep,
        inputs=inputs_of(asked.inputs) if asked.inputs else None,
        times=recorded_times(asked.batch) if asked.batch is not None else None,
        methods=surveyed if asked.method else None,
    )


def recorded_losses(found: Survey) -> list[LossPoint]:
    """Return the losses that were recorded of a surveyed model: of single schemes and recipes, and of other
    programs' files."""
    name, default = Path(found.head.model).name, found.head.default
    points = []
    for run in (*recorded_recipes().rows, *recorded_causal().rows):
        if (run.model or RECORDED) == name and not run.fused and run.signal in ("", default):
            label = label_of_text(run.scheme) if run.scheme else f"recipe of {run.budget:g} bits"
            by = f" by {label_of(run.method)}" if run.method else ""
            points.append(LossPoint(f"{label}{by}, recorded", run.bits, run.loss, run.low, run.high))
    for row in recorded_quality().rows:
        if row.model == name and row.kl is not None and not row.ours:
            points.append(LossPoint(f"{row.label} by {row.by}", row.bits, row.kl, ours=False))
    return points


def forced_method(one: Bought) -> str:
    """Return the method of all layers that the survey's predictions are not of; "" for none."""
    method = one.asked.method
    return "" if method in one.survey.head.methods else method


def commands(one: Bought, recipe: str) -> list[str]:
    """Return the commands from the survey to the checkpoint by way of the file ``recipe``; other files are
    named after the model. No name in them has a character that a terminal takes for its own."""
    head, asked, choice = one.survey.head, one.asked, one.choice
    stem = file_name(Path(head.model).name)
    found, made = f"{stem}.jsonl", shlex.quote(recipe)
    bound = f"--bits {math.ceil(1e4 * choice.bits - 1e-6) / 1e4:.9g}"
    if choice.time is not None:
        bound = f"--time {math.ceil(1e8 * choice.time.seconds) / 100:.9g}us --batch {choice.time.batch}"
    options = {"for": asked.target, "inputs": asked.inputs, "keep": ",".join(asked.keep)}
    options["method"] = forced_method(one)
    limits_of = "".join(f" --{key} {shlex.quote(value)}" for key, value in options.items() if value)
    by = "" if set(head.schemes) == set(SCHEMES) else f" --schemes {shlex.quote(','.join(head.schemes))}"
    by += f" --methods {','.join(head.methods)}" if head.methods else ""
    lines = [
        f"explorer survey {shlex.quote(words.plain(head.model))}{by} --out {shlex.quote(found)}",
        f"explorer recipe {shlex.quote(found)}{limits_of} {bound} --out {made}",
        f"explorer check {made} --survey {shlex.quote(found)}",
    ]
    if asked.target:
        folder = shlex.quote(f"{stem}-{asked.target}")
        lines.append(f"explorer apply {made} --to {asked.target} --out {folder}")
    return lines


def find_survey(where: str) -> Survey:
    """Load the survey in a file, or the recorded one of that name; ``ValueError`` lists the recorded ones."""
    path, shipped = Path(where), SURVEYS / f"{where}.jsonl"
    if not path.is_file() and shipped.parent == SURVEYS and shipped.is_file():
        return load_survey(shipped)
    if not path.is_file():
        names = ", ".join(sorted(p.stem for p in SURVEYS.glob("*.jsonl")))
        raise ValueError(f"{where} is no survey's file (.jsonl, of `explorer survey`), nor one of {names}")
    return load_survey(path)


def survey_report(place: str, one: Bought, check: Check | None = None, model: str | None = None) -> Content:
    """Make the report of a survey and of the recipe within a budget.

    ``place``: path of the survey for the command; ``check``: measurements of the recipe by `explorer check`,
    with the ``model`` at another place than the survey's.
    """
    found, asked, front, choice = one.survey, one.asked, one.front, one.choice
    numbers = _numbers(one)
    parts = [_sizes(one), _layers(one), _recipe_part(one), _budgets(one)]
    if check is not None:
        parts.append(_checked(check))
        for each in check.rows:
            numbers[f"{RUN}.{each.what}.{each.name}.loss"] = each.loss.value
    digest = _sha256(found)
    head = found.head
    texts = (
        f"{texts_run(head.texts, head.texts_left_out)}, {words.count(head.tokens)} tokens"
        if head.loss
        else "the model was not run"
    )
    return content(
        title=f"{Path(head.model).name}: sensitive layers, recipe for {choice.bits:.3g} bits per weight",
        lead=(
            what_it_buys(front, choice, one.recipe.predicted_interval),
            about(found),
            _how_known(one, check),
        ),
        parts=parts,
        method=_method(one),
        about={
            "model": head.model,
            "its weights' SHA-256": head.weights_sha256 or "not computed",
            "survey's SHA-256 (its content)": digest,
            "surveyed on": texts,
            "surveyed with": ", ".join(f"{name} {version}" for name, version in head.versions.items()),
        },
        numbers=numbers,
        recipe={
            "kind": SURVEY,
            "file": place,
            "bits": asked.bits if asked.batch is None else None,
            "time": None if choice.time is None else f"{1e6 * (asked.seconds or choice.time.seconds):.9g}us",
            "batch": asked.batch,
            "for": asked.target,
            "keep": list(asked.keep),
            "inputs": asked.inputs,
            "method": asked.method,
            "check_model": check is not None,
            "model": model if check is not None else None,
        },
        sha256=digest,
    )


def _how_known(one: Bought, check: Check | None) -> str:
    """State which losses are predicted, and which were measured for this report."""
    if not SENSITIVITIES[one.front.signal].is_loss:
        return "Nothing here is a loss: layers are ranked by what rounding does to each alone."
    text = "Losses are predicted from the survey, by the sum over layers of what rounding each costs"
    return (
        f"{text}; those under Measured are of the model as it runs."
        if check
        else f"{text}; none is measured."
    )


def _numbers(one: Bought) -> dict[str, float]:
    choice, front = one.choice, one.front
    numbers = {
        "choice.bits": choice.bits,
        "choice.bytes": float(choice.bytes),
        "choice.loss": choice.loss,
        "choice.gap": choice.gap,
        "model.bytes": float(front.kept_bytes + choice.bytes),
    }
    if choice.time is not None:
        numbers["choice.seconds"] = choice.time.seconds
    numbers |= {f"single.{u.scheme}.bits": u.bits for u in front.uniform}
    numbers |= {f"single.{u.scheme}.loss": u.loss for u in front.uniform}
    return numbers | {
        f"layer.{name}.cost": one.survey.layer(name).cost(front.signal, scheme, choice.methods.get(name, ""))
        for name, scheme in choice.schemes.items()
    }


_REST = "the rest of the model, as it is stored"
_REST_IN_FILES = "the rest of the files: other tensors, headers and padding"


def _sizes(one: Bought) -> Part:
    """Compare the choice with the single schemes that are as small."""
    choice, front = one.choice, one.front
    loss = cost_label(one.survey, front.signal)
    kept = front.kept_bytes
    smaller = [u for u in front.uniform if u.bits <= choice.bits + SAME_SIZE]
    best = min(smaller, key=lambda u: u.loss, default=None)
    rows: list[tuple[Any, ...]] = [
        ("bits per weight, scales included", choice.bits),
        ("codes and scales", words.bytes_(choice.bytes)),
        (_REST_IN_FILES if front.in_files else _REST, words.bytes_(kept)),
        ("the whole model", words.bytes_(kept + choice.bytes)),
        *([] if choice.time is None else [("linear layers in a step", words.duration(choice.time.seconds))]),
        (loss, choice.loss),
        (f"{loss}: no choice of this size has less than", choice.loss - choice.gap),
    ]
    if best is not None:
        single = f"{label_of_text(best.scheme)} for all layers ({best.bits:.2f} bits)"
        rows.append((f"{single}: {loss}", best.loss))
    return Part("In numbers", (), (Table("numbers", ("quantity", "value"), tuple(rows)),))


def _layers(one: Bought) -> Part:
    """List the sensitivity of layers to schemes, and the choice for each layer, the costliest first."""
    found, choice, signal = one.survey, one.choice, one.front.signal
    rows = []
    for name, scheme in choice.schemes.items():
        layer = found.layer(name)
        cost = layer.cost(signal, scheme, choice.methods.get(name, ""))
        shape = "×".join(map(str, layer.shape))
        share = 100 * cost / max(choice.loss, 1e-300)
        rows.append((name, layer.kind, shape, choice.recipe(name).label, layer.bits[scheme], cost, share))
    rows.sort(key=lambda row: -row[5])
    columns = ("layer", "kind", "shape", "scheme", "bits", "cost", "share (%)")
    reading = (
        "Each row is a layer, each column a scheme, from few bits to many: dark is low cost, bright high. "
        "The scale is logarithmic. A dot marks what was chosen."
    )
    worst = rows[0] if rows else None
    said = (
        (f"Of the choice, {worst[0]} costs most: {worst[6]:.3g} % of the whole at {worst[3]}.",)
        if worst and worst[5] > 0
        else ()
    )
    figures = (("layers", heat_figure(found, signal, choice), reading),)
    return Part("Which layer suffers", said, (Table("layers", columns, tuple(rows)),), figures)


def _recipe_part(one: Bought) -> Part:
    found, choice, asked = one.survey, one.choice, one.asked
    rows = []
    recipes = {name: choice.recipe(name) for name in choice.schemes}
    for each in dict.fromkeys(recipes.values()):
        layers = [found.layer(name) for name, one in recipes.items() if one == each]
        weights = sum(layer.weights for layer in layers)
        taken = sum(layer.bits[choice.schemes[layer.name]] * layer.weights for layer in layers)
        rows.append((each.label, str(each), len(layers), weights, taken / max(weights, 1)))
    rows.sort(key=lambda row: row[4])
    bounds = [
        f"schemes that {asked.target} carries together" if asked.target else "",
        f"layers left as they are: {', '.join(asked.keep)}" if asked.keep else "",
        f"inputs of the layers quantized: {INPUTS[asked.inputs]}" if asked.inputs else "",
        f"codes by {label_of(asked.method)}" if asked.method else "",
    ]
    named = "; ".join(bound for bound in bounds if bound)
    reading = "A block a layer, in the model's order, as wide as it has weights."
    return Part(
        "The recipe",
        (f"Chosen under: {named}.",) if named else (),
        (Table("recipe", ("scheme", "text", "layers", "weights", "bits"), tuple(rows)),),
        (("recipe", strip_figure(found, choice), reading),),
    )


def _budgets(one: Bought) -> Part:
    front = one.front
    loss = cost_label(one.survey, front.signal)
    wanted = [bits for bits in BUDGETS if front.least <= bits <= front.most]
    rows: list[tuple[Any, ...]] = []
    for bits in wanted:
        choice = front.at(bits)
        rows.append((bits, choice.bits, words.bytes_(front.kept_bytes + choice.bytes), choice.loss))
    single = sorted(front.uniform, key=lambda u: u.bits)
    tables = [
        Table(
            "single-schemes",
            ("one scheme for all layers", "text", "bits", "whole model", loss),
            tuple(
                (
                    label_of_text(u.scheme),
                    u.scheme,
                    u.bits,
                    words.bytes_(front.kept_bytes + u.bits * front.weights / 8),
                    u.loss,
                )
                for u in single
            ),
        )
    ]
    if rows:
        columns = ("budget (bits per weight)", "bits taken", "whole model", loss)
        tables.insert(0, Table("budgets", columns, tuple(rows)))
    reading = (
        "The line: the best choice for each size; grey: one scheme for all layers; the ring: this budget. "
        "Left is smaller, down is better."
    )
    refused = tuple(f"Left out: {label_of_text(name)}: {why}." for name, why in front.refused.items())
    figures = (("budgets", budget_figure(one.survey, front, one.choice), reading),)
    left = tuple(f"{line[0].upper()}{line[1:]}." for line in kept_words(front.left))
    return Part("Every budget", (*refused, *left), tuple(tables), figures)


def _checked(check: Check) -> Part:
    """Report the loss of the assembled model, measured on the machine that made the report."""
    loss = check.rows[0].loss
    unit = "nats of KL a token" if loss.kind == "next token" else "mean of 1 − cosine of embeddings"
    which = "the built-in held-out texts" if check.built_in_texts else "custom texts"
    how = (
        f"The model was run on {which}, {texts_run(loss.texts, loss.left_out)}, "
        f"{words.count(loss.tokens)} tokens, on the machine named in the "
        f"appendix. Loss: {unit}; the interval is that of 95 % over texts."
    )
    rows = tuple(
        (
            row.what,
            SENSITIVITIES[row.name].label if row.name in SENSITIVITIES else label_of_text(row.name),
            row.bits,
            "" if row.predicted is None else row.predicted,
            row.loss.value,
            "" if row.loss.low is None else row.loss.low,
            "" if row.loss.high is None else row.loss.high,
        )
        for row in check.rows
    )
    columns = ("model", "scheme or signal", "bits", "predicted loss", "true loss", "from", "to")
    return Part("Measured", (truth(check), how), (Table(RUN, columns, rows),))


def _method(one: Bought) -> Sequence[str]:
    row = SENSITIVITIES[one.front.signal]
    codes = "the codes that each layer's method chooses" if one.choice.methods else "rounding to nearest"
    alone = weights_alone(bool(one.recipe.input_schemes))
    return (
        "Every surveyed layer was rounded to nearest by every scheme of the survey. What that costs the "
        f"model is estimated by one number for each layer and scheme, {row.label}: {row.why}. {row.trust}",
        "Costs of layers add up, so that a budget is a multiple-choice knapsack. A Lagrange multiplier "
        "solves it for every budget at once, and bounds what any other choice of the size could reach.",
        "Bits per weight are of codes, scales and zero points, over the layers that schemes are chosen for; "
        "all else stays as it is stored.",
        f"The predicted loss is of {codes}{alone} and is no measurement.",
    )


def _sha256(found: Survey) -> str:
    """Hash of the survey's content, equal for copies of its file."""
    text = json.dumps([asdict(found.head), [asdict(layer) for layer in found.layers]], sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()
