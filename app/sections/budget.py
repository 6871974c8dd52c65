"""Budget: what a model loses within a budget, which layer gets what, and the file that holds it."""

from __future__ import annotations

import base64
import dataclasses
import math
import shutil
import time
from collections import Counter
from collections.abc import Callable, Generator, Hashable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any, TypeVar

from app import limits
from app.parts import html
from app.parts.controls import NumberInput, Select, TextInput
from app.parts.refusals import words_of
from app.parts.report_files import REPORT_KINDS, report_slots
from app.parts.section import RECORD, Section, Shown, run_buttons
from app.sections.subject import ACTS, KEYS, ModelSubject, panel, recorded, subject, surveyed_here
from app.state.analyses import each, loading, reported
from app.state.choices import MOST_PATTERNS
from app.state.files import fresh_folder
from app.state.gpu_lock import WAITS, Room, in_room
from app.state.memo import Memo, size_of
from app.state.models import COPIES, bytes_of_work, check_runnable, runnable_model
from app.state.query import Query
from app.state.selection import model_source
from app.state.visits import visit
from explorer import words
from explorer.analysis.cache import USUAL, CachePlan
from explorer.bench.layers import checked_time
from explorer.checkpoints import EXPORTS, Written
from explorer.checkpoints.inputs import INPUTS, inputs_of
from explorer.figures.style import file_name
from explorer.figures.survey import LossPoint, budget_figure, cost_label, layer_label, scheme_shades
from explorer.methods import RTN, label_of
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model
from explorer.progress import Progress, checkpoint
from explorer.recordings.recipe_runs import recorded_recipes
from explorer.reports import survey_report
from explorer.reports.survey import (
    USUAL_BITS,
    Asked,
    Bought,
    bought,
    commands,
    constraints_of,
    forced_method,
    recorded_losses,
)
from explorer.schemes.scheme import label_of_text
from explorer.survey import SENSITIVITIES, Frontier, Survey, frontier
from explorer.survey.apply import weights_alone
from explorer.survey.budget import budget_of
from explorer.survey.carried import carriers, targets_with
from explorer.survey.check import SAME_SIZE, Check, Checked, check_recipe
from explorer.survey.export import Wanted
from explorer.survey.export import export as write_recipe
from explorer.survey.recipe import ModelRecipe
from explorer.survey.run import SCHEMES, SurveyPlan, survey_model
from explorer.survey.sentences import about as about_survey
from explorer.survey.sentences import slightly_more, truth
from explorer.survey.times import StepTimes, recorded_times, seconds_of

Result = TypeVar("Result")
ANY, NONE = "any", "none"
BITS, SIZE, TIME = "bits", "size", "time"
BATCHES = (1, 8, 16, 32, 64)
"""Tokens of a step: one of each text that is decoded at once."""
STEP = 0.01
"""Bits per weight, of the slider."""
_POINTS = 200
"""Steps of the slider of sizes or times, at least."""
_ALIKE = 0.005
"""Largest share by which losses differ that count as the same."""
MOST_KEPT = 50
"""Patterns of layers that stay as they are: each is compared with each layer's name."""
MOST_SINGLES = 5
"""Files of one scheme in the table."""
UNITS = {BITS: "bits per weight", SIZE: "MB of the whole model", TIME: "µs of all linear layers in a step"}
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SHIPPED = {
    (MINILM, "encoder.layer.0.attention.self.query"): "attention_query",
    (MINILM, "encoder.layer.3.intermediate.dense"): "mlp_up",
    (MINILM, "encoder.layer.3.output.dense"): "mlp_down",
}
"""Layers of the recorded survey that are built-in tensors, too, and open without a network."""

BY = Select(key="by", label="Budget of", usual=BITS, options={BITS: "bits", SIZE: "size", TIME: "time"})
BUDGET = NumberInput(key="budget", label="Budget", usual="4.5", low=0, high=1e9)
TARGET = Select(
    key="for", label="Written for", usual="compressed-tensors", chips=True,
    options={**{name: row.label for name, row in EXPORTS.items()}, ANY: "any"},
    about="The schemes that this format carries together; any: all of the survey's, which no engine opens",
)  # fmt: skip
CODES = Select(
    key="codes", label="Codes chosen by", chips=True,
    options={"": "the survey", RTN.name: "rounding", "gptq": "GPTQ"},
)  # fmt: skip
CODED_INPUTS = Select(key="inputs", label="Inputs", usual=NONE, options={NONE: "as they are", **INPUTS})
CACHE = Select(
    key="cache", label="Keys and values", usual=NONE,
    options={NONE: "as they are", **{plan: label for label, plan in USUAL.items()}},
)  # fmt: skip
KEEP = TextInput(
    key="keep", label="Layers left as they are", most=MOST_PATTERNS, hint="e.g. encoder.layer.0.*"
)
BATCH = Select(key="batch", label="Tokens of a step", usual="1", options={str(n): str(n) for n in BATCHES})
CONTROLS = (BY, BUDGET, TARGET, CODES, CODED_INPUTS, CACHE, KEEP, BATCH)
_FRONTIERS = Memo[Frontier](128 << 20)
_STEPS = Memo[tuple[float, str]](64 << 20)


@dataclass(frozen=True)
class BudgetPlan:
    """What is asked of a model, and what it buys: the recipe, with the storage of keys and values."""

    one: ModelSubject
    got: Bought
    recipe: ModelRecipe
    by: str
    low: float
    high: float
    at: float
    """The budget in the unit of ``by``, and the ends that it may have."""
    unmet: str
    """What is said of a budget that was asked for and is beyond the ends; empty within them."""

    @property
    def bytes(self) -> int:
        return self.got.front.kept_bytes + self.got.choice.bytes


def plan_of(query: Query) -> BudgetPlan:
    """Make the recipe of an address. ``ValueError``, in words, for a model that cannot be opened or has no
    survey, and for a request that leaves no recipe."""
    one = subject(query)
    if one.survey is None:
        raise ValueError(f"{one.name} was not surveyed yet: survey it first, or open its survey's file")
    by, asked = BY.of(query), _asked(query, one.survey)
    front = _frontier(one, asked)
    low, high = _ends(front, by)
    wanted = _budget(query, by, front, low, high)
    at = min(max(wanted, low), high)
    if by == TIME:
        asked = dataclasses.replace(asked, seconds=1e-6 * at)
    else:
        asked = dataclasses.replace(
            asked, bits=at if by == BITS else front.bits_of(max(1e6 * at, _least(front)))
        )
    got, cache = bought(one.survey, asked, front), CACHE.of(query)
    recipe = got.recipe if cache == NONE else dataclasses.replace(got.recipe, cache=CachePlan.parse(cache))
    unmet = "" if at == wanted else "cannot be met" if at > wanted else "gains nothing more"
    ends = f"{low:g}" if low == high else f"{low:g} to {high:g}"
    said = f" A budget of {wanted:.12g} {UNITS[by]} {unmet}: these schemes take {ends}." if unmet else ""
    return BudgetPlan(one, got, recipe, by, low, high, at, said)


def _asked(query: Query, found: Survey) -> Asked:
    inputs, target = CODED_INPUTS.of(query), TARGET.of(query)
    scheme = None if inputs == NONE else inputs_of(inputs)
    able = targets_with(scheme)
    if target != ANY and target not in able:
        target = TARGET.usual if TARGET.usual in able else ANY
        said = f"{EXPORTS[query['for']].label} does not quantize inputs so" if "for" in query else ""
        query.problems["for"] = f"{said}: shown for {TARGET.offered()[target]}" if said else ""
    by = BY.of(query)
    return Asked(
        target="" if target == ANY else target,
        keep=_kept(KEEP.of(query)),
        inputs="" if inputs == NONE else inputs,
        batch=int(BATCH.of(query)) if by == TIME else None,
        method=CODES.of(query),
    )


def _kept(text: str) -> tuple[str, ...]:
    """The patterns of layers that are kept; ``ValueError`` for more than ``MOST_KEPT``."""
    patterns = tuple(dict.fromkeys(part.strip() for part in text.split(",") if part.strip()))
    if len(patterns) > MOST_KEPT:
        raise ValueError(f"{len(patterns)} patterns of layers; at most {MOST_KEPT} are taken")
    return patterns


def _frontier(one: ModelSubject, asked: Asked) -> Frontier:
    """The frontier of a request, whatever its budget; computed once."""
    assert one.survey is not None
    found, key = one.survey, (one.stamp, asked)

    def computed() -> Frontier:
        return frontier(found, constraints=constraints_of(asked, found))

    return _FRONTIERS.get(key, computed, lambda front: size_of(front) + front.room)


def _least(front: Frontier) -> float:
    return front.kept_bytes + front.least * front.weights / 8


def _ends(front: Frontier, by: str) -> tuple[float, float]:
    """The ends of the slider, rounded outwards to its steps."""
    if by == TIME and front.by_time is not None:
        low, high = 1e6 * front.by_time.least, 1e6 * front.by_time.most
    elif by == SIZE:
        low, high = 1e-6 * _least(front), 1e-6 * (front.kept_bytes + front.most * front.weights / 8)
    else:
        low, high = front.least, front.most
    step = _step(by, low, high)
    digits = max(0, -math.floor(math.log10(step)))
    return round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)


def _step(by: str, low: float, high: float) -> float:
    """The slider's step: of sizes and times a power of ten with which it has enough points."""
    wide = (high - low) / _POINTS
    return STEP if by == BITS or wide <= 0 else 10.0 ** math.floor(math.log10(wide))


def _usual(by: str, front: Frontier, low: float, high: float) -> float:
    """The budget of an address without one."""
    if by == TIME:
        return round((low + high) / 2, 2)
    usual = USUAL_BITS if by == BITS else 1e-6 * (front.kept_bytes + USUAL_BITS * front.weights / 8)
    return min(max(round(usual, 2), low), high)


def _budget(query: Query, by: str, front: Frontier, low: float, high: float) -> float:
    """The budget of an address, or the usual one where it has none."""
    usual = _usual(by, front, low, high)
    if not query.get("budget"):
        return usual
    ends = f"{low:g} {UNITS[by]}" if low == high else f"{low:g} to {high:g} {UNITS[by]}"
    try:
        return BUDGET.read(query["budget"])
    except ValueError:
        query.wrong("budget", ends)
        return usual


# --- what is shown -----------------------------------------------------------------------------------------


def view(query: Query) -> Shown:
    """Describe the recipe within a budget: what it loses, predicted and measured, against the frontier,
    single schemes and other programs' files; the scheme of each layer; the files of about this size."""
    shown = {
        "subject": panel(query),
        **dict.fromkeys(("headline", "map", "table", "truth", "command", "do"), ""),
    }
    try:
        plan = _shown_plan(query)
    except (ValueError, OSError) as error:
        return {
            **shown,
            "headline": html.refusal(words_of(error)) + _way_on(query),
            "controls": _controls(query, None),
            "budget-curve": "",
        }
    found, front = plan.got.survey, plan.got.front
    check = visit().checks.get(plan.recipe.to_json())
    compared = query.record.schemes
    return {
        **shown,
        "controls": _controls(query, plan),
        "headline": html.render("budget_headline", parts=_headline(query, plan, check)),
        "budget-curve": budget_figure(
            found, front, plan.got.choice, plan.by == SIZE, compared, _measured(plan, check)
        ),
        "map": html.render("budget_map", **_map(plan)),
        "table": html.render("budget_table", **_files(query, plan, check)),
        "truth": html.sentence(truth(check))
        if check
        else html.status("Not measured yet: the loss is predicted."),
        "command": html.commands(commands(plan.got, f"{_name(plan)}.json")),
        "do": html.render("budget_do", file=f"{_name(plan)}.json", recipe=_encoded(plan.recipe)),
    }


def _shown_plan(query: Query) -> BudgetPlan:
    """``plan_of``; kept layers that leave no recipe are said, and shown is the recipe without them."""
    try:
        return plan_of(query)
    except ValueError as error:
        if not query.get("keep"):
            raise
        plan = plan_of(Query({**query, "keep": ""}))
        query.problems["keep"] = words_of(error)
        return plan


def _way_on(query: Query) -> str:
    """The button that surveys a model without a survey."""
    try:
        one = subject(query)
    except (ValueError, OSError):
        return ""
    if one.survey is not None:
        return ""
    said = f"Every linear layer of {one.name} by {len(SCHEMES)} schemes, on the built-in texts."
    return html.sentence(said) + run_buttons("survey", "Survey this model")


def _controls(query: Query, plan: BudgetPlan | None) -> str:
    """The budget and what it is for; nothing in it holds a value, which the page sets by the address."""
    able = targets_with(None if CODED_INPUTS.of(query) == NONE else inputs_of(CODED_INPUTS.of(query)))
    offered = {name: label for name, label in TARGET.offered().items() if name in (*able, ANY)}
    methods = plan.got.survey.head.methods if plan else ()
    codes = dict(CODES.offered())
    codes = codes if methods else {"": "rounding", "gptq": "GPTQ"}
    slider = None
    if plan is not None:
        usual = _usual(plan.by, plan.got.front, plan.low, plan.high)
        slider = {"low": plan.low, "high": plan.high, "usual": f"{usual:g}", "unit": UNITS[plan.by],
                  "step": _step(plan.by, plan.low, plan.high)}  # fmt: skip
    causal = plan is None or plan.got.survey.head.loss != "embedding"
    return html.render(
        "budget_controls",
        by=BY.of(query),
        offered=BY.offered(),
        slider=slider,
        target=TARGET.markup(options=offered),
        codes=CODES.markup(options=codes),
        more=[CODED_INPUTS.markup(), *([CACHE.markup()] if causal else []), BATCH.markup(), KEEP.markup()],
    )


def _loss(value: float, low: float | None, high: float | None) -> str:
    """A loss with the half of its 95 % interval."""
    between = "" if low is None or high is None else f" ± {(high - low) / 2:.2g}"
    return f"{value:.3g}{between}"


def _headline(query: Query, plan: BudgetPlan, check: Check | None) -> list[tuple[str, str]]:
    """The sentence above the figure, in parts with their classes: what the recipe loses against A and B for
    all layers, by measured losses where it was measured."""
    front, choice = plan.got.front, plan.got.choice
    if not SENSITIVITIES[front.signal].is_loss:
        signal = SENSITIVITIES[front.signal]
        said = f"At {choice.bits:.2f} bits no loss is predicted, but the {signal.label}. {signal.trust}"
        return [(said + plan.unmet, "")]
    mine, how = choice.loss, f"predicted{weights_alone(front.weights_alone)}"
    if (by := forced_method(plan.got)) not in ("", RTN.name):
        how = f"predicted for rounding, before {label_of(by)}"
    interval: tuple[float | None, float | None] = plan.recipe.predicted_interval or (None, None)
    if check is not None:
        mine, interval, how = (
            check.rows[0].loss.value,
            (check.rows[0].loss.low, check.rows[0].loss.high),
            "measured",
        )
    known = (
        {row.name: row.loss.value for row in check.rows[1:]}
        if check
        else {u.scheme: u.loss for u in front.uniform}
    )
    at = f"At {choice.bits:.2f} bits the " if plan.by != TIME else f"Within {plan.at:g} µs the "
    parts = [(at, ""), ("recipe", "name-recipe"), (" loses ", "")]
    sides = [(x, f"name-{'ab'[i]}") for i, x in enumerate(query.record.schemes) if x in known]
    if not sides and (best := _best(front, choice.bits)):
        sides = [(best, "")] if best in known else []
    for index, (scheme, kind) in enumerate(sides):
        much, word = _against(mine, known[scheme])
        parts += [(" and " if index else "", ""), (much, "name-recipe"), (word, "")]
        parts += [(html.short_name(label_of_text(scheme)), kind), (" everywhere" if not index else "", "")]
    colon = ": " if sides else ""
    parts += [(f"{colon}{_loss(mine, *interval)}, {how}. {words.bytes_(plan.bytes)}, {_opened(plan)}.", "")]
    budget = plan.at if plan.by == BITS else None
    more = slightly_more(front, choice, budget, STEP)
    return [*parts, *([(f" {more}", "")] if more else []), (plan.unmet, "")]


def _against(mine: float, other: float) -> tuple[str, str]:
    """The loss of the recipe against another one's: how much, and the word before the other's name."""
    if abs(mine - other) <= _ALIKE * other:
        return "as much", " as "
    if mine < other:
        return f"{words.percent(1 - mine / other)} less", " than "
    return (f"{mine / other:.2g} times as much" if other > 0 else "more"), (" as " if other > 0 else " than ")


def _opened(plan: BudgetPlan) -> str:
    target = plan.recipe.target
    return f"opened by {EXPORTS[target].label}" if target else "no engine opens these schemes together"


def _best(front: Frontier, bits: float) -> str:
    """The single scheme of at most about ``bits`` with the least loss; "" without one."""
    fit = [u for u in front.uniform if u.bits <= bits + SAME_SIZE]
    return min(fit, key=lambda u: u.loss).scheme if fit else ""


def _measured(plan: BudgetPlan, check: Check | None) -> list[LossPoint]:
    """Models of the figure that were run: now, or for the recording."""
    found = recorded_losses(plan.got.survey)
    for row in check.rows if check else ():
        label = "the recipe" if row is check.rows[0] else label_of_text(row.name)  # type: ignore[union-attr]
        if row is check.rows[0] or row.name in plan.got.survey.head.schemes:  # type: ignore[union-attr]
            found.append(
                LossPoint(f"{label}, measured", row.bits, row.loss.value, row.loss.low, row.loss.high)
            )
    return found


def _map(plan: BudgetPlan) -> dict[str, Any]:
    """The layers by kind and depth, each in the colour of its scheme; of several in one place, such as
    experts, the costliest."""
    found, choice, front = plan.got.survey, plan.got.choice, plan.got.front
    shades = scheme_shades(found, choice)
    rows: dict[str, dict[int, dict[str, Any]]] = {}
    worst: dict[tuple[str, int], float] = {}
    for layer in found.linear:
        checkpoint()
        text = choice.schemes.get(layer.name)
        row = layer.kind if layer.depth is not None else "beside the blocks"
        at = layer.depth if layer.depth is not None else len(rows.get(row, {}))
        recipe = plan.recipe.layers.get(layer.name)
        cost = 0.0 if text is None else layer.cost(front.signal, text, choice.methods.get(layer.name, ""))
        if cost < worst.get((row, at), -1.0):
            continue
        worst[row, at] = cost
        share = f", {100 * cost / choice.loss:.2g} % of the loss" if choice.loss and text else ""
        rows.setdefault(row, {})[at] = {
            "title": f"{layer.name}: {recipe.label if recipe else 'as it is stored'}{share}",
            "colour": shades.get(text or "", "transparent"),
            "layer": layer.name,
            "scheme": str(recipe or found.head.schemes[0]),
        }
    columns = range(max(max(row) for row in rows.values()) + 1) if rows else range(0)
    counts = Counter(str(recipe) for recipe in plan.recipe.layers.values())
    legend = [
        (shades.get(str(Recipe.parse(text).scheme), "transparent"), Recipe.parse(text).label, count)
        for text, count in counts.most_common()
    ]
    return {"rows": rows, "columns": columns, "legend": legend}


@dataclass(frozen=True)
class BudgetFile:
    """A file of the table, in words; ``kind``: its class."""

    name: str
    kind: str
    loss: str
    predicted: str
    worst: str
    size: str
    step: str
    opens: str
    note: str = ""


def _files(query: Query, plan: BudgetPlan, check: Check | None) -> dict[str, Any]:
    """Files of about the recipe's size: the recipe's, and those of one scheme for all layers."""
    front, choice, found = plan.got.front, plan.got.choice, plan.got.survey
    sides = dict(zip(query.record.schemes, ("name-a", "name-b"), strict=False))
    fit = sorted((u for u in front.uniform if u.bits <= choice.bits + SAME_SIZE), key=lambda u: u.loss)
    names = [u.scheme for u in front.uniform if u.scheme in sides] + [u.scheme for u in fit]
    singles = {u.scheme: u for u in front.uniform}
    measured = {row.name: row for row in check.rows[1:]} if check else {}
    plain = plan.recipe.inputs is None and plan.recipe.cache is None
    known = {one.name: one for one in recorded_losses(plan.got.survey)} if plain else {}
    batch = int(BATCH.of(query))
    rows = [_file_row(plan, "recipe", "name-recipe", plan.recipe.layers, choice.loss, plan.bytes, batch,
                      check.rows[0] if check else None)]  # fmt: skip
    for name in list(dict.fromkeys(names))[:MOST_SINGLES]:
        one, label = singles[name], label_of_text(name)
        by = {x: front.methods.get(x, {}).get(name, "") for x in choice.schemes}
        layers = {x: Recipe.parse(f"{name}+{by[x]}" if by[x] else name) for x in choice.schemes}
        size = round(front.kept_bytes + one.bits * front.weights / 8)
        run = measured.get(name) or known.get(f"{label}, recorded")
        title = f"{html.short_name(label)} everywhere"
        rows.append(_file_row(plan, title, sides.get(name, ""), layers, one.loss, size, batch, run))
    missing = [x for x in sides if x not in singles]
    why = [f"{label_of_text(x)}: {front.refused.get(x, 'not surveyed')}" for x in missing]
    return {
        "rows": rows,
        "head": ("file", "loss", "predicted", "worst layer", "size", _step_head(batch), "opens in"),
        "loss": cost_label(found, front.signal),
        "why": why,
    }


@cache
def _times(batch: int) -> StepTimes:
    """``recorded_times``, which keep what they have looked up."""
    return recorded_times(batch)


def _step_head(batch: int) -> str:
    gpu = _times(batch).machine.removeprefix("NVIDIA ")
    return f"step, {gpu}" + (f", {batch} tokens" if batch > 1 else "")


def _file_row(
    plan: BudgetPlan, name: str, kind: str, layers: Mapping[str, Recipe], loss: float, size: int, batch: int,
    run: Checked | LossPoint | None,
) -> BudgetFile:  # fmt: skip
    found, front = plan.got.survey, plan.got.front

    def cost(layer: str) -> float:
        checkpoint()
        row, one = found.layer(layer), layers[layer]
        method = one.method if one.method in row.methods else ""
        return row.cost(front.signal, str(one.scheme), method)

    worst = found.layer(max(layers, key=cost))
    step, why = _step_of(plan, layers, batch)
    measured, note = "–", ""
    if isinstance(run, Checked):
        measured, note = _loss(run.loss.value, run.loss.low, run.loss.high), "measured here"
    elif run is not None:
        measured, note = _loss(run.loss, run.low, run.high), recorded_recipes().source
    return BudgetFile(
        name, kind, measured, f"{loss:.3g}", layer_label(worst), words.bytes_(size), step,
        ", ".join(_opens_in(plan, layers)) or "no engine", ". ".join(filter(None, (note, why))),
    )  # fmt: skip


def _step_of(plan: BudgetPlan, layers: Mapping[str, Recipe], batch: int) -> tuple[str, str]:
    """The recorded time of all linear layers in a step; "–" and why, where a product has none."""
    found, inputs = plan.got.survey, plan.recipe.input_schemes
    linear = {x.name: x.shape for x in found.linear if not x.is_table}
    own = {name: one for name, one in layers.items() if name in linear}
    key: Hashable = (plan.one.stamp, tuple(own.items()), tuple(inputs.items()), batch)

    def computed() -> tuple[float, str]:
        kept = {name: shape for name, shape in linear.items() if name not in own}
        try:
            taken = _times(batch).of_recipe(own, linear, kept, plan.recipe.fused, inputs)
        except ValueError as error:
            return math.nan, str(error)
        return taken.seconds, taken.source

    seconds, why = _STEPS.get(key, computed)
    return ("–", f"No time: {why}") if math.isnan(seconds) else (words.duration(seconds, 2), why)


def _opens_in(plan: BudgetPlan, layers: Mapping[str, Recipe]) -> list[str]:
    """The formats that carry these schemes together, the chosen one first."""
    coded = ((one.scheme, plan.got.survey.layer(name).shape) for name, one in layers.items())
    able = carriers(coded, plan.recipe.input_schemes.values())
    labels = [
        row.label.partition(",")[0].removesuffix("'s layout")
        for row in able
        if row.name != plan.recipe.target
    ]
    own = [EXPORTS[plan.recipe.target].label] if any(x.name == plan.recipe.target for x in able) else []
    return list(dict.fromkeys([*own, *labels]))


def _name(plan: BudgetPlan) -> str:
    return file_name(f"{plan.one.name} {plan.got.choice.bits:.3g} bits")


def _encoded(recipe: ModelRecipe) -> str:
    """A recipe's file as a link's address."""
    return f"data:application/json;base64,{base64.b64encode(recipe.to_json().encode()).decode()}"


# --- acts --------------------------------------------------------------------------------------------------


def change_unit(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Take the budget in another unit: bits and sizes are those of the recipe that is shown."""
    by = str(what.get("value", ""))
    if by not in BY.offered():
        raise ValueError(f"a budget is of {', '.join(BY.offered())}")
    held = {"by": "" if by == BY.usual else by, "budget": ""}
    if TIME in (by, BY.of(query)) or not query.get("budget"):
        return held
    plan = plan_of(query)
    number = plan.got.choice.bits if by == BITS else 1e-6 * plan.bytes
    return {**held, "budget": f"{math.ceil(100 * number) / 100:g}"}


def typed(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Take a budget in words, in its unit: "4.5 bits"; the whole model's size, "90 MB"; or a time of a step,
    "500us". ``ValueError`` for what is no budget, and for less than the least."""
    text = str(what.get("value", ""))[:200].strip()
    if not text:
        return {}
    plan = plan_of(query)
    if plan.by == TIME:
        number, by = round(1e6 * seconds_of(text), 2), TIME
    else:
        number, of_size = budget_of(text, plan.got.front)
        number, by = (1e-6 * number, SIZE) if of_size else (number, BITS)
    low, _ = (plan.low, plan.high) if by == TIME else _ends(plan.got.front, by)
    if number < low:
        raise ValueError(f"{text} is less than these schemes can do: {low:g} {UNITS[by]}")
    return {"by": "" if by == BY.usual else by, "budget": f"{number:.12g}"}


def open_layer(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Open a layer of the model in the place Tensor, its scheme as A; one that is not here is refused."""
    one, layer, scheme = (
        subject(query),
        str(what.get("layer", "")),
        str(Recipe.parse(str(what.get("scheme", "")))),
    )
    if one.survey is None:
        raise ValueError("this model was not surveyed yet")
    name, second = one.survey.layer(layer).name, query.record.second
    place = {"tab": "", "section": "", "row": "", "column": "", "scheme": scheme}
    place["second"] = second if second != scheme else ""
    sample = None if one.named else SHIPPED.get((one.survey.head.model, name))
    if sample is not None:
        return {**place, "source": "", "sample": sample, "layer": ""}
    tensor = f"{name}.weight"
    model_source(one.place, one.revision).info(tensor)
    return {**place, "source": "model", "model": one.place, "revision": one.revision, "layer": tensor}


# --- runs --------------------------------------------------------------------------------------------------


def survey_it(query: Query) -> Iterator[Shown]:
    """Survey the model with the built-in texts and schemes; what was stopped goes on in its file."""
    one, bounds, data = subject(query), limits.current().sources, visit()
    weights = check_runnable(one.place, one.revision)
    key = (one.place, one.revision)
    begun = data.unfinished.get(key)
    out = begun if begun and begun.exists() else fresh_folder() / f"{file_name(one.name)}.jsonl"
    data.unfinished[key] = out
    yield {"status": html.computing(f"Opening {one.name} …")}
    plan, what = SurveyPlan(one.place, one.revision or None), ["layers"]

    def compute(progress: Progress) -> Survey:
        def ran(done: int, total: int) -> None:
            what[0] = "steps of running the model"
            progress(done, total)

        def layers(done: int, total: int) -> None:
            what[0] = "layers"
            progress(done, total)

        try:
            return survey_model(plan, out, bounds, layers, ran)
        except ValueError:
            if begun is None:
                raise
            data.unfinished[key] = fresh_folder() / out.name  # the model is another one now
            return survey_model(plan, data.unfinished[key], bounds, layers, ran)

    found = yield from _told(compute, lambda: what[0], 4 * COPIES * weights)
    made = surveyed_here(one.place, one.revision)["file"] = data.unfinished.pop(key)
    file = html.downloads([made])
    yield {**view(query), "survey-file": file, "status": html.status(f"Surveyed: {about_survey(found)}")}


def measure(query: Query) -> Iterator[Shown]:
    """Run the model that the recipe makes on held-out texts, beside single schemes of its size."""
    plan = plan_of(query)
    load = partial(runnable_model, plan.one.place, head=True, revision=plan.one.revision)
    model = yield from _loaded(plan.one, load)
    recipe, found = plan.recipe, plan.got.survey
    needed = bytes_of_work(plan.one.place, plan.one.revision, recipe)

    def check(progress: Progress) -> Check:
        return check_recipe(recipe, model, survey=found, progress=progress)

    result = yield from _told(check, lambda: "models run", needed)
    mine, result = visit(), dataclasses.replace(result, time=checked_time(recipe, model))
    mine.checks = {**mine.checks, recipe.to_json(): result}
    yield {**view(query), "status": ""}


def write(query: Query) -> Iterator[Shown]:
    """Write the model by the recipe as a checkpoint, in one archive; its card says what was measured."""
    plan = plan_of(query)
    target, recipe, one = plan.recipe.target, plan.recipe, plan.one
    if not target:
        raise ValueError("choose what it is written for first: all schemes together are opened by no engine")
    yield {"status": html.computing(f"Opening {one.name} …"), "written": ""}
    load = partial(runnable_model, one.place, head=True, revision=one.revision)
    by_methods = any(layer.method for layer in recipe.layers.values())
    needed = bytes_of_work(one.place, one.revision, recipe) if by_methods else 0
    model = (yield from _loaded(one, load)) if needed else None  # not inside of the room for the rest
    given = load if model is None else lambda: model
    folder, name = fresh_folder(), f"{_name(plan)}-{target}"
    check = visit().checks.get(recipe.to_json())
    verified = False if limits.current().hosted else None
    wanted = Wanted(
        recipe, target, folder / name, one.place, given, verified=verified, card=truth(check) if check else ""
    )
    counted = "texts"

    def written_now(progress: Progress) -> Written:
        def phases(what: str) -> Progress:
            nonlocal counted
            counted = what
            return progress

        return write_recipe(wanted, phases)

    made = yield from _told(written_now, lambda: counted, needed)
    archive = shutil.make_archive(str(folder / name), "zip", folder, name)
    shutil.rmtree(folder / name)
    said = f"{EXPORTS[target].label}: {made.layers} layers, {words.bytes_(made.bytes)}. Read by: "
    said += " ".join(
        (f"{EXPORTS[target].reader}.", *(f"{note}." for note in made.notes), str(made.verified or ""))
    )
    yield {"status": "", "written": html.status(said) + html.downloads([Path(archive)])}


def report(query: Query) -> Iterator[Shown]:
    """Make the report of the survey and the recipe, with what was measured of it."""
    plan = plan_of(query)
    check = visit().checks.get(plan.recipe.to_json()) if plan.recipe is plan.got.recipe else None
    place = plan.one.which if plan.one.which in recorded() else "YOUR_SURVEY.jsonl"
    model = plan.one.place if check and plan.one.named else None
    yield from report_slots(query, lambda progress: survey_report(place, plan.got, check, model))


def _loaded(one: ModelSubject, load: Callable[[], Model]) -> Generator[Shown, None, Model]:
    """The model; yields in words how far its loading is."""
    steps = loading(f"Loading {one.name}", lambda _: load())
    return (yield from each(steps, lambda said: {"status": html.computing(said)}))


def _told(
    compute: Callable[[Progress], Result], what: Callable[[], str], needed: int
) -> Generator[Shown, None, Result]:
    """Yield how far ``compute`` is, in words, with its rate and the time left, and return its result.
    ``what`` is counted: another one has a rate of its own. ``needed``: bytes of memory that it takes."""
    named, first, start = "", 0, 0.0

    def say(step: tuple[int, int]) -> Shown:
        nonlocal named, first, start
        done, total = step
        if what() != named:
            named, first, start = what(), done, time.monotonic()
        rate = (done - first) / max(time.monotonic() - start, 1e-3)
        left = f", {rate:.2g} a second, {words.duration((total - done) / rate, 2)} left" if rate else ""
        return {"status": html.computing(f"{done} of {total} {named}{left}")}

    def work(room: Room) -> Generator[Shown, None, Result]:
        return (yield from each(reported(compute, room=room), say))

    waits: Shown = {"status": html.computing(WAITS)}
    return (yield from in_room(needed, work, waits))


SECTION = Section(
    name="budget",
    title="Budget",
    follows=(*KEYS, *RECORD),
    controls=(*CONTROLS, REPORT_KINDS),
    view=view,
    says=("survey",),
    runs={"survey": survey_it, "measure": measure, "write": write, "report": report},
    workers=1,
    acts={**ACTS, "unit": change_unit, "typed": typed, "layer": open_layer},
)
