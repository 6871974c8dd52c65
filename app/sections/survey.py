"""Survey a model, buy the best recipe of a budget, check it, and write its checkpoint."""

from __future__ import annotations

import dataclasses
import json
import math
import shlex
import shutil
import time
from collections.abc import Callable, Generator, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, ClassVar, TypeVar

import gradio as gr

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.report_files import ReportView, build_report, report_steps
from app.parts.slider import FreeSlider
from app.parts.views import Event, Shown, StatusView, View, listen, shows
from app.parts.widgets import (
    LATEST,
    QUIET,
    RunButtons,
    block,
    heading,
    plot_card,
    results_column,
    stop_button,
    table,
)
from app.state.analyses import each, reported
from app.state.choices import MOST_PATTERNS
from app.state.files import fresh_folder
from app.state.forms import Form
from app.state.memo import Memo
from app.state.models import runnable_model
from app.state.selection import Selection
from app.theme import plot_data
from explorer import SourceError, words
from explorer.bench.layers import checked_time
from explorer.checkpoints import EXPORTS, Written
from explorer.checkpoints.inputs import INPUTS, inputs_of
from explorer.figures.style import empty, file_name
from explorer.figures.survey import budget_figure, heat_figure, strip_figure
from explorer.models.capture import Model
from explorer.progress import Progress
from explorer.reports import survey_report
from explorer.reports.survey import USUAL_BITS, Asked, Bought, bought
from explorer.schemes.scheme import label_of_text
from explorer.sources.stamped import stamp_of
from explorer.survey import (
    SENSITIVITIES,
    SURVEYS,
    Choice,
    Head,
    Survey,
    load_survey,
)
from explorer.survey.budget import budget_of, check_complete
from explorer.survey.carried import targets_with
from explorer.survey.check import Check, Checked, check_recipe
from explorer.survey.export import Wanted
from explorer.survey.export import export as write_recipe
from explorer.survey.run import SCHEMES, SurveyPlan, survey_model
from explorer.survey.sentences import about, slightly_more, truth, what_it_buys
from explorer.survey.times import seconds_of

TITLE, NAME = "Which layer suffers", "survey"
ANY = "any"
ANY_WORDS = "any: schemes mixed, cannot be written"
OWN = "own"
USUAL_TARGET = "compressed-tensors"
"""The checkpoint format of a fresh page, which can be written: "any" mixes schemes that none carries."""
NOT_QUANTIZED = "none"
"""Of the picker of inputs."""
MOST_BITS = 32
STEP = 0.01
"""Bits per weight: of the slider."""
BITS, TIME = "bits", "time"
"""What the budget is of."""
BUDGETS = {BITS: "bits per weight", TIME: "time of a step"}
BATCHES = (1, 8, 16, 32, 64)
"""Tokens of a step, of a budget of time: one of each text that is decoded at once."""
LABELS = {BITS: "Budget, bits per weight", TIME: "Budget, µs of all linear layers in a step"}
NO_TIMES = "No times of a step for these layers and schemes"
MOST_TYPED = 40
"""Characters of a budget that is typed."""
_POINTS = 200
"""Steps of the slider of time, at least."""
UNFINISHED = "Stopped. Layers that were done are kept: Survey runs the model again and goes on with them."
OWN_SURVEY, MODEL_FIELD = "Survey another model, or open a survey's file", "Model: folder or Hub id"
NOT_CHECKED = "Not checked yet: the loss above is a prediction."
COLUMNS = {
    "model": "str",
    "scheme or signal": "str",
    "bits": "number",
    "predicted loss": "number",
    "true loss": "number",
    "from": "number",
    "to": "number",
}
MINILM = "sentence-transformers/all-MiniLM-L6-v2"
SHIPPED = {
    (MINILM, "encoder.layer.0.attention.self.query"): "attention_query",
    (MINILM, "encoder.layer.3.intermediate.dense"): "mlp_up",
    (MINILM, "encoder.layer.3.output.dense"): "mlp_down",
}
"""Layers of the recorded survey that are built-in tensors, too, and open without a network."""
Result = TypeVar("Result")
_SURVEYS = Memo[Survey](32)


@dataclass(frozen=True)
class SurveyView(StatusView):
    """A survey in words, and its map of layers and schemes."""

    heat: Shown


@dataclass(frozen=True)
class BudgetView(View):
    """A recipe within a budget: the slider's ends, the verdict, the map with the choices, curve and strip,
    and the recipe as a file. Another budget clears the budget as it was typed, and what is said of it."""

    bits: Shown
    heat: Shown
    sentence: Shown
    curve: Shown
    strip: Shown
    recipe: Shown
    command: Shown
    checked: Shown
    truth: Shown
    table: Shown
    exported: Shown
    archive: Shown
    result: Shown
    typed: Shown = ""
    told: Shown = ""

    @classmethod
    def refused(cls, message: str) -> BudgetView:
        nothing = plot_data(empty("no recipe", "no recipe"))
        return cls.of_another_recipe(
            bits=gr.skip(),
            heat=gr.skip(),
            sentence=html.status(message),
            curve=nothing,
            strip=nothing,
            recipe=gr.update(value=None, interactive=False),
            command="",
        )

    @classmethod
    def untimed(cls, message: str) -> BudgetView:
        """The view of a model whose products have no times: the slider loses its ends."""
        return dataclasses.replace(
            cls.refused(message),
            bits=gr.update(minimum=0, maximum=1, value=0, label=NO_TIMES, interactive=False),
            curve=plot_data(empty(NO_TIMES, "no times")),
        )

    @classmethod
    def of_another_recipe(cls, **shown: Shown) -> BudgetView:
        """The view of another recipe: what was measured and written of the one before is gone."""
        return cls(
            checked=html.status(NOT_CHECKED),
            truth="",
            table=[],
            exported="",
            archive=gr.update(value=None, interactive=False),
            result=None,
            **shown,
        )


@dataclass(frozen=True)
class SurveyRunView(StatusView):
    """A survey that is being made, or was: its file."""

    own: Shown
    which: Shown
    file: Shown
    unfinished: Shown


@dataclass(frozen=True)
class OpenedSurveyView(SurveyRunView):
    """A survey's file that was opened, and the control that it was dropped on: empty where it was refused."""

    upload: Shown

    @classmethod
    def refused(cls, message: str) -> OpenedSurveyView:
        return cls.unchanged(status=html.status(message), upload=None)


@dataclass(frozen=True)
class CheckView(StatusView):
    """A check: its progress, and the measured losses in words, as a table, and for the report (``Run``)."""

    sentence: Shown
    table: Shown
    result: Shown


@dataclass(frozen=True)
class Run:
    """The result of a check, with the recipe (its JSON) and the place of the model."""

    recipe: str
    check: Check
    place: str


@dataclass(frozen=True)
class ExportView(StatusView):
    """The checkpoint, as one archive."""

    archive: Shown


def recorded() -> dict[str, Path]:
    """The surveys that ship with the explorer, by their names."""
    return {path.stem: path for path in sorted(SURVEYS.glob("*.jsonl"))}


def _survey(which: str, own: str | None) -> Survey:
    """The recorded survey called ``which``, or the visitor's own file; ``ValueError`` if there is none."""
    path = Path(own) if which == OWN and own else recorded().get(which)
    if path is None:
        raise ValueError("open a survey's file (.jsonl, of `explorer survey`), or survey a model here")
    return _SURVEYS.get((str(path), stamp_of(path)), lambda: load_survey(path), lambda _: 1)


@dataclass(frozen=True)
class Budget(Form):
    """A budget asked of a survey.

    which, own  "own" and the visitor's file, or the name of a recorded survey
    target      the checkpoint format that has to carry the schemes ("any": all schemes)
    keep        patterns of layers that stay as they are
    bits        per weight, or of a budget of time µs of all linear layers in a step, 0 for the middle
    inputs      the scheme of the layers' inputs ("none": not quantized)
    by          "bits" or "time": of a step of ``batch`` tokens on the recorded GPU
    """

    which: str
    own: str | None
    target: str
    keep: str
    bits: float | None
    inputs: str
    by: str = BITS
    batch: int | None = None

    def bought(self) -> Bought:
        """Buy the best recipe of the budget; one beyond the frontier's ends is its end."""
        found, timed = _survey(self.which, self.own), self.by == TIME
        asked = Asked(
            bits=USUAL_BITS if timed else self.bits or USUAL_BITS,
            target="" if self.target == ANY else self.target,
            keep=tuple(part.strip() for part in self.keep.split(",") if part.strip()),
            inputs="" if self.inputs in ("", NOT_QUANTIZED) else self.inputs,
            seconds=1e-6 * self.bits if timed and self.bits else None,
            batch=tokens(self.batch) if timed else None,
        )
        return bought(found, asked)


def tokens(batch: Any) -> int:
    """A batch as it was sent; ``ValueError`` for what is none of those that are offered."""
    if batch is None:
        return BATCHES[0]
    if batch not in BATCHES:
        raise ValueError(f"the batch is one of {', '.join(map(str, BATCHES))}, not {str(batch)[:40]}")
    return int(batch)


def _ends(one: Bought) -> tuple[float, float]:
    """The ends of the slider, of bits or of µs."""
    front, step = one.front, _step(one)
    low, high = (front.least, front.most)
    if front.by_time is not None:
        low, high = 1e6 * front.by_time.least, 1e6 * front.by_time.most
    digits = max(0, -math.floor(math.log10(step)))
    return round(math.floor(low / step) * step, digits), round(math.ceil(high / step) * step, digits)


def _step(one: Bought) -> float:
    """The slider's step: of time a power of ten with which it has enough points."""
    timed = one.front.by_time
    if timed is None:
        return STEP
    wide = 1e6 * (timed.most - timed.least) / _POINTS
    return 10.0 ** math.floor(math.log10(wide)) if wide > 0 else STEP


def ends_of_link(query: Mapping[str, str]) -> tuple[float, float]:
    """The ends of the slider of bits for the survey and the constraints that an address's ``query`` names;
    ``ValueError`` for a survey that is not recorded, and for constraints that leave no recipe."""
    which = query.get("survey", "")
    named = which if which in (*recorded(), OWN) else next(iter(recorded()), OWN)
    inputs = query.get("inputs", "") if query.get("inputs") in INPUTS else NOT_QUANTIZED
    target = str(targets_for(inputs, query.get("for", USUAL_TARGET))["value"])
    return _ends(Budget(named, None, target, query.get("keep", ""), None, inputs, *of_link(query)).bought())


def of_link(query: Mapping[str, str]) -> tuple[str, int]:
    """Read the unit of an address's budget, and the tokens of a step; the usual ones for other values."""
    batch = query.get("batch", "")
    known = int(batch) if batch in map(str, BATCHES) else BATCHES[0]
    return (TIME if query.get("by") == TIME else BITS), known


@shows(SurveyView)
def show(which: str, own: str | None) -> SurveyView:
    """Describe a survey, "own" and the file or the name of a recorded one, and map its layers × schemes."""
    found = _survey(which, own)
    row = SENSITIVITIES[found.head.default]
    what = f"the loss predicted by {row.label}" if row.is_loss else row.label
    return SurveyView(
        status=html.status(f"{about(found)} Shown: {what}. {row.trust}"),
        heat=plot_data(heat_figure(found, row.name)),
    )


@shows(SurveyView)
def first(chosen: Selection, which: str, own: str | None) -> SurveyView:
    """``show`` when the section is seen; the selection has no part in it."""
    return show(which, own)


@shows(BudgetView)
def budget(asked: Budget) -> BudgetView:
    """Show the recipe within a budget: the slider, the verdict, the curve, the recipe as a strip and as a
    file, and the commands."""
    try:
        one = asked.bought()
    except ValueError as error:
        if asked.by != TIME:
            raise
        tokens(asked.batch)
        dataclasses.replace(asked, by=BITS, bits=None).bought()  # its error is not of the times
        return BudgetView.untimed(
            f"{NO_TIMES} ({error}). Choose a budget of bits per weight; or measure its layers on a machine "
            f"with a GPU: explorer recipe SURVEY.jsonl --time 500us --batch {tokens(asked.batch)}"
        )
    found, front, choice = one.survey, one.front, one.choice
    path = fresh_folder() / f"{file_name(f'{found.head.model} {choice.bits:.3g} bits')}.json"
    one.recipe.save(path)
    low, high = _ends(one)
    timed, step, single = one.choice.time is not None, _step(one), low == high
    usual = round((low + high) / 2, 2) if timed else USUAL_BITS
    value = min(max(asked.bits or usual, low), high)
    said = what_it_buys(front, choice, one.recipe.predicted_interval)
    more = slightly_more(front, choice, value, STEP)
    return BudgetView.of_another_recipe(
        bits=gr.update(
            minimum=low,
            maximum=high + step * single,
            value=value,
            step=step,
            label=LABELS[TIME if timed else BITS],
            interactive=not single,
        ),
        heat=plot_data(heat_figure(found, front.signal, choice)),
        sentence=html.sentence(" ".join(part for part in (said, more) if part)),
        curve=plot_data(budget_figure(found, front, choice)),
        strip=plot_data(strip_figure(found, choice)),
        recipe=gr.update(value=str(path), interactive=True),
        command=html.commands(_commands(path.name, asked, found.head, one.choice)),
    )


@shows(BudgetView)
def switched(asked: Budget) -> BudgetView:
    """``budget`` of bits after one of time, or the other way round: the usual one."""
    return budget(*dataclasses.astuple(dataclasses.replace(asked, bits=None)))


@shows(BudgetView)
def dragged(asked: Budget) -> BudgetView:
    """``budget`` while the slider is dragged: the slider itself stays under the hand."""
    return dataclasses.replace(budget(*dataclasses.astuple(asked)), bits=gr.skip())


@shows(BudgetView)
def typed(asked: Budget, text: str) -> BudgetView:
    """``budget`` of a ``text``: "4.5 bits", or the whole model's size, "90 MB", which it keeps to; of a
    budget of time "500us". An empty one leaves the slider's, and so does one that cannot be had, which is
    said below the field. What is beyond the largest budget is that one, and is said too."""
    if not text.strip():
        return BudgetView.unchanged(told="")
    try:
        number, told = _number_of(asked, text)
    except ValueError as error:
        return BudgetView.unchanged(told=html.status(f"Not taken: {error}. Still shown: the budget before."))
    shown = budget(*dataclasses.astuple(dataclasses.replace(asked, bits=number)))
    return dataclasses.replace(shown, typed=gr.skip(), told=html.status(told) if told else "")


def _number_of(asked: Budget, text: str) -> tuple[float, str]:
    """Bits per weight, or µs, of a budget that is typed, and words where it is more than can be used.
    ``ValueError`` for what is no budget, and for less than the least."""
    one = asked.bought()
    low, high = _ends(one)
    if asked.by == TIME:
        number = round(1e6 * seconds_of(text), 2)
        least, most = (words.duration(1e-6 * end) for end in (low, high))
    else:
        number = round(math.floor(budget_of(text, one.front) / STEP + 1e-6) * STEP, 2)
        least, most = (f"{end:.2f} bits per weight" for end in (low, high))
    if number < low:
        raise ValueError(f"{text.strip()} is less than these schemes can do: {least}")
    return number, f"Nothing is gained beyond {most}, which are shown." if number > high else ""


@shows()
def targets_for(inputs: str, target: str) -> Any:
    """The picker of checkpoint formats, with those that quantize ``inputs`` so; the usual one in place
    of a ``target`` that does not."""
    scheme = inputs_of(inputs) if inputs in INPUTS else None
    names = targets_with(scheme)
    choices = [*((EXPORTS[name].label, name) for name in names), (ANY_WORDS, ANY)]
    usual = USUAL_TARGET if USUAL_TARGET in names else ANY
    return gr.update(choices=choices, value=target if target in (*names, ANY) else usual)


def _commands(recipe: str, asked: Budget, head: Head, choice: Choice) -> list[str]:
    """The commands from the survey to the checkpoint; files are named after the model."""
    model, schemes, methods = head.model, head.schemes, head.methods
    stem = file_name(Path(model).name)
    found, made = f"{stem}.jsonl", shlex.quote(recipe)
    bound = f"--bits {math.ceil(1e4 * choice.bits - 1e-6) / 1e4:.9g}"
    if choice.time is not None:
        microseconds = math.ceil(1e8 * choice.time.seconds) / 100
        bound = f"--time {microseconds:.9g}us --batch {choice.time.batch}"
    words = ["explorer recipe", shlex.quote(found), bound, f"--out {made}"]
    if asked.target != ANY:
        words.insert(3, f"--for {asked.target}")
    if asked.inputs not in ("", NOT_QUANTIZED):
        words.insert(3, f"--inputs {asked.inputs}")
    if asked.keep.strip():
        words.insert(3, f"--keep {shlex.quote(asked.keep.strip())}")
    by = "" if set(schemes) == set(SCHEMES) else f" --schemes {shlex.quote(','.join(schemes))}"
    if methods:
        by += f" --methods {','.join(methods)}"
    lines = [
        f"explorer survey {shlex.quote(model)}{by} --out {shlex.quote(found)}",
        " ".join(words),
        f"explorer check {made} --survey {shlex.quote(found)}",
    ]
    if asked.target != ANY:
        folder = shlex.quote(f"{stem}-{asked.target}")
        lines.append(f"explorer apply {made} --to {asked.target} --out {folder}")
    return lines


class CellClicked(Event):
    """A click on the map: ``data`` begins with the cell's layer and scheme."""

    FIELDS: ClassVar = {"data": {"type": "array", "minItems": 2}}
    OPTIONAL: ClassVar = frozenset({"data"})


@shows()
def link_to(which: str, own: str | None, where: str, event: CellClicked) -> str:
    """The acts that open a clicked cell's layer and scheme in the Tensor place."""
    if not event.data:
        return ""
    found, (layer, scheme, *_) = _survey(which, own), map(str, event.data)
    name, model = found.layer(layer).name, where.strip() or found.head.model
    sample = SHIPPED.get((model, name))
    layer_act = {"do": "layer", "model": model, "revision": "", "layer": f"{name}.weight"}
    tensor = layer_act if sample is None else {"do": "sample", "name": sample}
    return json.dumps([tensor, {"do": "scheme", "side": "a", "text": scheme, "place": "tensor"}])


@shows(SurveyRunView)
def run(where: str, unfinished: list[str] | None) -> Iterator[SurveyRunView]:
    """Survey a model (a folder or Hub id) with the built-in texts and schemes; yields how far it is, and at
    the end the file, which is open then. ``unfinished``: [model, file] of a survey that was stopped; of the
    same model it goes on in that file."""
    if not where.strip():
        raise ValueError("name a model: a folder on this machine, or a Hub id such as owner/name")
    bounds = limits.current().sources
    runnable_model(where)  # refuses what is too large here before anything else is done
    where = where.strip()
    out = fresh_folder() / f"{file_name(where.rstrip('/').rpartition('/')[2])}.jsonl"
    if unfinished and unfinished[0] == where and Path(unfinished[1]).exists():
        out = Path(unfinished[1])
    going_on = out.exists()
    begun = [where, str(out)]
    yield SurveyRunView.unchanged(status=html.status(f"Opening {where} …"), unfinished=begun)
    plan, what = SurveyPlan(where), ["layers"]

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
            if not going_on:
                raise
            begun[1] = str(fresh_folder() / out.name)  # the model is another one now
            return survey_model(plan, begun[1], bounds, layers, ran)

    found = yield from _told(reported(compute), lambda: what[0], SurveyRunView)
    yield SurveyRunView(
        status=html.status(f"Surveyed: {about(found)}"),
        own=begun[1],
        which=gr.update(choices=_choices(own=True), value=OWN),
        file=gr.update(value=begun[1], interactive=True),
        unfinished=None,
    )


def _choices(own: bool = False) -> list[tuple[str, str]]:
    listed = [(f"{name} (recorded)", name) for name in recorded()]
    return [*listed, ("a survey of my own", OWN)] if own else listed


@shows(OpenedSurveyView)
def opened(path: str | None) -> OpenedSurveyView:
    """A survey's file of the visitor's own; ``ValueError`` says what is wrong with it."""
    if not path:
        return OpenedSurveyView.unchanged()
    found = load_survey(path)
    check_complete(found)
    return OpenedSurveyView.unchanged(
        status=html.status(f"Opened: {about(found)}"),
        own=path,
        which=gr.update(choices=_choices(own=True), value=OWN),
    )


def _model_of(where: str, found: Survey, head: bool = False) -> Model:
    """The model of a survey: at ``where``, or else where the survey found it. ``SourceError`` with the field
    that names it, where that is empty."""
    place = where.strip()
    if place:
        return runnable_model(place, head)
    try:
        return runnable_model(found.head.model, head)
    except SourceError as error:
        raise SourceError(f'{error}. Name its folder under "{OWN_SURVEY}", "{MODEL_FIELD}"') from error


@shows(CheckView)
def check(asked: Budget, where: str) -> Iterator[CheckView]:
    """Run the model that the recipe makes on held-out texts, beside single schemes of its size. ``where``:
    the model, if it is not where the survey found it."""
    one = asked.bought()
    found, recipe = one.survey, one.recipe
    place = where.strip() or found.head.model
    yield CheckView.unchanged(status=html.status(f"Loading {place} …"))
    model = _model_of(where, found, head=True)
    steps = reported(lambda progress: check_recipe(recipe, model, survey=found, progress=progress))
    result = yield from _told(steps, lambda: "models run", CheckView)
    result = dataclasses.replace(result, time=checked_time(recipe, model))
    yield CheckView(
        status=html.status(f"The recipe of {recipe.bits:.2f} bits, run on held-out texts:"),
        sentence=html.sentence(truth(result)),
        table=[_line(row) for row in result.rows],
        result=Run(recipe.to_json(), result, where.strip()),
    )


@shows(ExportView)
def export(asked: Budget, where: str, run: Run | None = None) -> Iterator[ExportView]:
    """The model by the recipe as a checkpoint of ``target``, in one archive; its card says what a
    check of this recipe has measured."""
    target = asked.target
    if target == ANY:
        raise ValueError("choose a checkpoint format first: its schemes are not all of the survey's")
    one = asked.bought()
    found, recipe = one.survey, one.recipe
    place = where.strip() or found.head.model
    _model_of(where, found)
    folder, name = fresh_folder(), file_name(f"{Path(found.head.model).name} {recipe.bits:.3g} bits {target}")
    load = partial(runnable_model, place, head=True)
    here = run is not None and run.recipe == recipe.to_json()
    measured = truth(run.check) if run is not None and here else ""
    verified = False if limits.current().hosted else None
    wanted = Wanted(recipe, target, folder / name, place, load, verified=verified, card=measured)
    counted = "texts"

    def written_now(progress: Progress) -> Written:
        def phases(what: str) -> Progress:
            nonlocal counted
            counted = what
            return progress

        return write_recipe(wanted, phases)

    written = yield from _told(reported(written_now), lambda: counted, ExportView)
    archive = shutil.make_archive(str(folder / name), "zip", folder, name)
    shutil.rmtree(folder / name)
    size = words.bytes_(written.bytes)
    said = f"{EXPORTS[target].label}: {written.layers} layers, {size}. Read by: {EXPORTS[target].reader}."
    said = " ".join((said, *(f"{note}." for note in written.notes), str(written.verified or "")))
    yield ExportView(
        status=html.status(said),
        archive=gr.update(value=archive, interactive=True),
    )


@shows(ReportView)
def report(asked: Budget, run: Run | None, kinds: list[str]) -> Iterator[ReportView]:
    """The survey and what the budget buys as a report, with what a check of this recipe has measured;
    ``kinds``: of ``report_files.KINDS``."""
    one = asked.bought()
    here = run if run and run.recipe == one.recipe.to_json() else None
    place = "YOUR_SURVEY.jsonl" if asked.which == OWN else asked.which
    check, model = (here.check, here.place or None) if here else (None, None)
    yield from report_steps(lambda progress: survey_report(place, one, check, model), kinds)


def _told(
    steps: Generator[tuple[int, int], None, Result], what: Callable[[], str], view: type[StatusView]
) -> Generator[Any, None, Result]:
    """Yields how far ``steps`` are, in words, with their rate and the time left, and returns their result.
    ``what`` is counted: another one has a rate of its own."""
    named, first, start = "", 0, 0.0

    def say(step: tuple[int, int]) -> Any:
        nonlocal named, first, start
        done, total = step
        if what() != named:
            named, first, start = what(), done, time.monotonic()
        rate = (done - first) / max(time.monotonic() - start, 1e-3)
        left = f", {rate:.2g} a second, {words.duration((total - done) / rate, 2)} left" if rate else ""
        return view.unchanged(status=html.status(f"{done} of {total} {named}{left}"))

    result = yield from each(steps, say)
    return result


def _line(row: Checked) -> list[Any]:
    """One line of the table, in the order of ``COLUMNS``."""
    numbers = (row.bits, row.predicted, row.loss.value, row.loss.low, row.loss.high)
    short = [None if n is None else float(f"{n:.4g}") for n in numbers]
    name = SENSITIVITIES[row.name].label if row.name in SENSITIVITIES else label_of_text(row.name)
    return [row.what, name, *short]


@dataclass(frozen=True)
class _Asked:
    """The controls that say which survey is shown and what is asked of it, in the order of ``Budget``."""

    which: gr.Dropdown
    own: gr.State
    target: gr.Dropdown
    keep: gr.Textbox
    bits: FreeSlider
    inputs: gr.Dropdown
    by: gr.Radio
    batch: gr.Dropdown

    @property
    def survey(self) -> list[Any]:
        return [self.which, self.own]

    def in_order(self) -> list[Any]:
        return [*self.survey, self.target, self.keep, self.bits, self.inputs, self.by, self.batch]


@dataclass(frozen=True)
class _OwnSurvey:
    """The controls of a survey made here, or opened."""

    where: gr.Textbox
    start: gr.Button
    stop: gr.Button
    made: gr.DownloadButton
    status: gr.HTML
    stopped: gr.HTML
    file: gr.File


@dataclass(frozen=True)
class _RecipeRuns:
    """The buttons that run a recipe or write its checkpoint, and what they show."""

    check_button: gr.Button
    export_button: gr.Button
    halt: gr.Button
    halted: gr.HTML
    checked: CheckView
    exported: ExportView


def build(page: Page) -> list[Any]:
    """Lay the section out; it shows the recorded survey when it is seen. Returns the box of the model, and
    the controls of what is asked of the survey, in the order of ``Budget``."""
    heading("Which layer suffers, and what a budget buys", "one survey, every budget at once")
    own = gr.State(None)
    names = list(recorded())
    which = gr.Dropdown(
        _choices(own=True), value=names[0] if names else OWN, label="Survey", elem_id="survey-which"
    )
    mine = _build_own()
    status = block(elem_id="survey-status")
    heat = plot_card(
        "What each scheme costs each layer",
        "dark costs little, bright much; a dot marks the recipe's choice; a click opens that layer and "
        "scheme under Tensor",
        "survey-heat",
        height=690,
    )
    target, keep, inputs = _build_constraints()
    with gr.Row(elem_classes="stacked"):
        kinds = [(label, name) for name, label in BUDGETS.items()]
        by = gr.Radio(kinds, value=BITS, label="Budget of", elem_id="survey-by")
        batch = gr.Dropdown(
            list(BATCHES), value=BATCHES[0], label="Batch (time): tokens of a step", elem_id="survey-batch"
        )
        text = gr.Textbox(
            "",
            label="Budget, typed",
            placeholder="4.5 bits, or 90 MB for the model",
            max_lines=1,
            max_length=MOST_TYPED,
            min_width=160,
            elem_id="survey-typed",
        )
    told = block(elem_id="survey-told")
    bits = FreeSlider(2.0, 9.0, value=USUAL_BITS, step=STEP, label=LABELS[BITS], elem_id="survey-bits")
    asked = _Asked(which, own, target, keep, bits, inputs, by, batch)
    budget_view, recipe_runs = _build_budget(bits, text, told, heat)
    shown = SurveyView(status=status, heat=heat)
    reported_of = [*asked.in_order(), recipe_runs.checked.result]
    build_report(report, reported_of, "report_survey", "Report of the survey and this budget")
    bought, taken_in = _wire_budget(page, asked, shown, budget_view)
    for event, what in _wire_own(mine, asked):
        _wire_survey(event, what, asked, shown, budget_view)
    _keep_in_address(page, asked, bought, taken_in)
    _wire_recipe_runs(recipe_runs, [*asked.in_order(), mine.where])
    _wire_click(page, heat, which, own, mine.where)
    return [mine.where, *asked.in_order()]


def _build_own() -> _OwnSurvey:
    with gr.Accordion(OWN_SURVEY, open=False, elem_id="survey-own"):
        with gr.Row():
            where = gr.Textbox("", label=MODEL_FIELD, max_lines=1, elem_id="survey-model")
            start = gr.Button("Survey", variant="primary", min_width=120)
            stop = stop_button()
            made = gr.DownloadButton("Download survey", interactive=False, min_width=140)
        status = block(html.status(f"Every linear layer by {len(SCHEMES)} schemes, on the built-in texts."))
        stopped = block()
        file = gr.File(
            label="A survey's file (.jsonl)", file_types=[".jsonl"], height=150, elem_classes="upload"
        )
    return _OwnSurvey(where, start, stop, made, status, stopped, file)


def _build_constraints() -> tuple[gr.Dropdown, gr.Textbox, gr.Dropdown]:
    """The checkpoint format, the layers that stay as they are, and how inputs are quantized."""
    with gr.Row(elem_classes="stacked"):
        kinds = [("not quantized", NOT_QUANTIZED), *((words, name) for name, words in INPUTS.items())]
        inputs = gr.Dropdown(
            kinds, value=NOT_QUANTIZED, label="Inputs of the layers", elem_id="survey-inputs"
        )
        targets = [*((row.label, row.name) for row in EXPORTS.values()), (ANY_WORDS, ANY)]
        target = gr.Dropdown(targets, value=USUAL_TARGET, label="Checkpoint format", elem_id="survey-target")
        keep = gr.Textbox(
            "",
            label="Layers left as they are",
            placeholder="encoder.layer.0.*",
            max_lines=1,
            max_length=MOST_PATTERNS,
            min_width=160,
        )
    return target, keep, inputs


def _build_budget(
    bits: FreeSlider, text: gr.Textbox, told: gr.HTML, heat: Any
) -> tuple[BudgetView, _RecipeRuns]:
    """Lay out the recipe within the budget of the slider ``bits`` or the ``text``, and its runs."""
    sentence = block(elem_id="survey-sentence")
    strip = plot_card(
        "The recipe",
        "one block per layer: its width is the number of weights, its colour the scheme",
        "survey-strip",
        height=190,
    )
    curve = plot_card(
        "Every budget",
        "the loss of the best choice for each size or time, and of one scheme for all layers",
        "survey-curve",
        height=380,
    )
    recipe = gr.DownloadButton(
        "Download recipe", interactive=False, min_width=140, elem_id="recipe-file", render=False
    )
    command = block()
    runs = _build_recipe_runs(recipe)
    view = BudgetView(
        bits=bits,
        heat=heat,
        sentence=sentence,
        strip=strip,
        curve=curve,
        recipe=recipe,
        command=command,
        checked=runs.checked.status,
        truth=runs.checked.sentence,
        table=runs.checked.table,
        exported=runs.exported.status,
        archive=runs.exported.archive,
        result=runs.checked.result,
        typed=text,
        told=told,
    )
    return view, runs


def _build_recipe_runs(recipe: gr.DownloadButton) -> _RecipeRuns:
    with gr.Row():
        check_button = gr.Button("Check: run it", min_width=120, elem_id="survey-check")
        export_button = gr.Button("Export", min_width=120, elem_id="survey-export")
        recipe.render()
        archive = gr.DownloadButton("Download checkpoint", interactive=False, min_width=140)
        halt = stop_button()
    halted = block()
    check_status = block(html.status(NOT_CHECKED), elem_id="survey-checked")
    with results_column():
        checked = CheckView(
            status=check_status,
            sentence=block(elem_id="survey-truth"),
            table=table(COLUMNS, "survey-table", buttons=["copy"]),
            result=gr.State(None),
        )
    exported = ExportView(status=block(elem_id="survey-exported"), archive=archive)
    return _RecipeRuns(check_button, export_button, halt, halted, checked, exported)


_UNLISTED: dict[str, Any] = {**LATEST, "api_visibility": "undocumented"}


def _wire_budget(
    page: Page, asked: _Asked, shown: SurveyView, view: BudgetView
) -> tuple[list[Any], list[Any]]:
    """Survey and budget follow their controls; returns the events after which a budget was taken in, and
    those after which constraints were."""
    inputs = asked.in_order()
    page.follow(first, asked.survey, shown, api_name="survey")
    page.when_seen(budget, inputs, view, api_name="survey_budget_first", api_visibility="undocumented")
    listen(asked.bits.input, dragged, inputs, view, api_name="survey_budget", **LATEST)
    _wire_survey(asked.which.input, "which", asked, shown, view)
    narrowed = listen(
        asked.inputs.input,
        targets_for,
        [asked.inputs, asked.target],
        asked.target,
        api_name="survey_inputs_targets",
        **_UNLISTED,
    )
    event = listen(asked.bits.release, budget, inputs, view, api_name="survey_bits_taken_in", **_UNLISTED)
    bought, taken_in = [event.then], []
    for changed, what in (
        (asked.target.input, "target"),
        (asked.keep.blur, "keep"),
        (asked.keep.submit, "keep_now"),
        (narrowed.then, "inputs"),
        (asked.batch.input, "batch"),
    ):
        event = listen(changed, budget, inputs, view, api_name=f"survey_{what}", **_UNLISTED)
        taken_in.append(event.then)
    event = listen(asked.by.input, switched, inputs, view, api_name="survey_by", **_UNLISTED)
    taken_in.append(event.then)
    for entered, what in ((view.typed.submit, "typed"), (view.typed.blur, "typed_and_left")):
        event = listen(entered, typed, [*inputs, view.typed], view, api_name=f"survey_{what}", **_UNLISTED)
        bought.append(event.then)
    return bought, taken_in


def _wire_survey(event: Any, what: str, asked: _Asked, shown: SurveyView, view: BudgetView) -> None:
    """After ``event`` another survey is shown, and what the budget buys of it."""
    shows_it = listen(event, show, asked.survey, shown, api_name=f"survey_{what}", **_UNLISTED)
    listen(shows_it.then, budget, asked.in_order(), view, api_name=f"survey_{what}_budget", **_UNLISTED)


def _keep_in_address(page: Page, asked: _Asked, bought: list[Any], taken_in: list[Any]) -> None:
    """Keep the controls in the address: a visitor's choice is a step of Back, its consequences are not."""
    for key, control, chosen, followed in (
        ("survey", asked.which, [asked.which.input], [asked.which.change]),
        ("for", asked.target, [asked.target.input], taken_in),
        ("keep", asked.keep, [asked.keep.blur, asked.keep.submit], []),
        ("inputs", asked.inputs, [asked.inputs.input], []),
        ("by", asked.by, [asked.by.input], []),
        ("batch", asked.batch, [asked.batch.input], []),
        ("budget", asked.bits, bought, taken_in),
    ):
        page.keep(key, control, *chosen)
        if followed:
            page.keep(key, control, *followed, visit=False)


def _wire_recipe_runs(made: _RecipeRuns, inputs: list[Any]) -> None:
    """Check and Export, of which one runs at a time."""
    buttons = RunButtons((made.check_button, made.export_button), made.halt, made.halted)
    buttons.begin_on(made.check_button.click, made.export_button.click)
    runs = [
        listen(b.click, handler, given, view, api_name=name, concurrency_id="compute", **QUIET)
        for b, handler, given, view, name in (
            (made.check_button, check, inputs, made.checked, "check_recipe"),
            (made.export_button, export, [*inputs, made.checked.result], made.exported, "export_recipe"),
        )
    ]
    buttons.end_with(*runs)


def _wire_own(mine: _OwnSurvey, asked: _Asked) -> list[tuple[Any, str]]:
    """A survey made here, or opened; returns the events after which it is the one to be shown. The change of
    its file's name is none of them: that is told before the picker of surveys has changed, too."""
    outputs = SurveyRunView(
        status=mine.status, own=asked.own, which=asked.which, file=mine.made, unfinished=gr.State(None)
    )
    buttons = RunButtons((mine.start,), mine.stop, mine.stopped)
    buttons.begin_on(mine.start.click, mine.where.submit)
    inputs = [mine.where, outputs.unfinished]
    runs = [
        listen(event, run, inputs, outputs, api_name=name, concurrency_id="compute", **QUIET)
        for event, name in (
            (mine.start.click, "survey_model"),
            (mine.where.submit, "survey_model_by_key"),
        )
    ]
    buttons.end_with(*runs, message=UNFINISHED)
    view = OpenedSurveyView(**vars(outputs), upload=mine.file)
    read = listen(mine.file.upload, opened, [mine.file], view, api_name="open_survey", **QUIET)
    return [(runs[0].then, "made"), (runs[1].then, "made_by_key"), (read.then, "opened")]


def _wire_click(page: Page, heat: Any, which: Any, own: Any, where: Any) -> None:
    """A click on the map opens that layer and scheme under Tensor, as a link would."""
    page.act_of(heat.point, link_to, [which, own, where], api_name="survey_link")
