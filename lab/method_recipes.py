"""Recipes that choose a method for each layer, predicted and measured, beside recipes of rounding to nearest
and those whose codes one method chooses afterwards: docs/models.md, "With methods"."""

from __future__ import annotations

import copy
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from torch import Tensor, nn

from explorer.core.backend import work_device
from explorer.core.quantize import quantize
from explorer.methods import apply, label_of
from explorer.models.capture import Model, capture, load_model
from explorer.models.evaluate import calibration_sentences, sentences
from explorer.models.skeleton import HeldWeight
from explorer.models.texts import AnyTexts
from explorer.recordings.files import NOT_RECORDED, Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import Scheme
from explorer.survey import Choice, Survey, frontier
from explorer.survey.assemble import assemble
from explorer.survey.evidence import weights_of
from explorer.survey.loss import EMBEDDING, LossReference, reference_for
from explorer.survey.methods import tokens_for, widths_of
from explorer.survey.run import SurveyPlan, survey_model
from lab.intervals import spearman, spearman_interval
from lab.recipes import CAUSAL_SCHEMES, PACKAGES, SHIPPED, passages
from lab.tables import markdown

NAME = "method_recipes"
BUDGETS = (4.16, 4.5)
CAUSAL_BUDGETS = (4.5,)
METHODS = ("gptq", "gptq_order", "gptq_sequential")
"""Each is surveyed alone, so that its recipe is of rounding and of it."""
ALONE = ("int3_group128_asym", "int4_group128_asym", "int4_group32_asym")
"""Schemes by which single layers are quantized alone, of ``SAMPLED`` layers."""
SAMPLED = 5
"""One layer of so many is quantized alone."""


@dataclass(frozen=True)
class MethodRun:
    """One model that was run, of ``budget`` bits. ``method``: "" for rounding to nearest; ``by_layer``: the
    survey chose it or rounding for each layer, and schemes by what that loses; else schemes are those of the
    recipe of rounding. ``predicted`` is None where nothing predicts the loss. ``layers`` are by the method.
    """

    budget: float
    method: str
    by_layer: bool
    layers: int
    bits: float
    predicted: float | None
    loss: float
    low: float
    high: float


@dataclass(frozen=True)
class AloneRun:
    """One layer quantized alone: the loss that the survey predicts, and the measured one."""

    layer: str
    scheme: str
    method: str
    predicted: float
    loss: float


@dataclass(frozen=True)
class ModelRuns:
    """A model's runs on held-out texts. ``seconds``: of its survey by "" (rounding) and with each method."""

    model: str
    kind: str
    texts: int
    tokens: int
    layers: int
    schemes: int
    seconds: Mapping[str, float]
    runs: tuple[MethodRun, ...]
    alone: tuple[AloneRun, ...] = ()


def recorded_methods() -> Recording[ModelRuns]:
    """The recorded runs; empty if there are none."""
    return recorded(NAME, ModelRuns)


def record_methods(encoder: str, causal: str | None = None) -> Path:
    """Write ``assets/measurements/method_recipes.json``: ``measure_methods``."""
    rows = measure_methods(encoder, causal)
    return record(NAME, Recording(this_machine(work_device(), PACKAGES), rows))


def measure_methods(encoder: str, causal: str | None = None) -> tuple[ModelRuns, ...]:
    """Survey MiniLM, and a causal model if given, with and without methods, and run their recipes
    (minutes)."""
    loaded = load_model(encoder, device=work_device(), head=True)
    own = run_methods(loaded, SurveyPlan(encoder), sentences(), BUDGETS, ALONE)
    rows = [replace(own, model=SHIPPED.stem)]  # its package calls the folder "model"
    if causal is not None:
        loaded = load_model(causal, device=work_device(), head=True)
        plan = SurveyPlan(causal, schemes=CAUSAL_SCHEMES, texts=passages(calibration_sentences()))
        rows.append(run_methods(loaded, plan, passages(sentences()), CAUSAL_BUDGETS))
    return tuple(rows)


def run_methods(
    model: Model, plan: SurveyPlan, texts: Sequence[str], budgets: Sequence[float], alone: Sequence[str] = ()
) -> ModelRuns:
    """The runs of one model; single layers by the schemes ``alone``."""
    seconds, surveys = {}, {}
    with tempfile.TemporaryDirectory() as room:
        for method in ("", "gptq", "gptq_order"):
            begun = time.perf_counter()
            own = replace(plan, methods=(method,) if method else ())
            surveys[method] = survey_model(own, Path(room) / f"{method}.jsonl")
            seconds[method] = time.perf_counter() - begun
    surveys["gptq_sequential"] = _renamed(surveys["gptq_order"], "gptq_sequential")
    reference, seen = reference_for(model, texts), plan.calibration(model.causal)
    runs = [run for bits in budgets for run in _runs(model, reference, seen, surveys, bits)]
    singles = [
        run for m in ("gptq", "gptq_order") for run in _alone(model, reference, seen, surveys[m], m, alone)
    ]
    head = surveys[""].head
    return ModelRuns(
        model.name,
        reference.kind,
        len(reference.sequences),
        reference.tokens,
        len(frontier(surveys[""]).at(budgets[0]).schemes),
        len(head.schemes),
        seconds,
        tuple(runs),
        tuple(singles),
    )


def _renamed(survey: Survey, method: str) -> Survey:
    """A survey whose only method is ``method`` instead: a sequential one has the shares of its like that sees
    the original model's inputs."""
    (before,) = survey.head.methods
    layers = (replace(x, methods={method: x.methods[before]} if x.methods else {}) for x in survey.layers)
    return Survey(replace(survey.head, methods=(method,)), tuple(layers))


def _runs(
    model: Model, reference: LossReference, seen: AnyTexts, surveys: Mapping[str, Survey], bits: float
) -> Iterator[MethodRun]:
    """Rounding; each method for all layers of that recipe; and by layer."""
    rounded = frontier(surveys[""]).at(bits)
    yield _run(model, reference, seen, rounded, bits, "", False, rounded.loss)
    for method in METHODS:
        every = replace(rounded, methods=dict.fromkeys(rounded.schemes, method))
        served = {
            n: method for n, s in every.schemes.items() if s in surveys[method].layer(n).methods[method]
        }
        yield _run(model, reference, seen, replace(every, methods=served), bits, method, False)
        choice = frontier(surveys[method]).at(bits)
        yield _run(model, reference, seen, choice, bits, method, True, choice.loss)


def _run(
    model: Model,
    reference: LossReference,
    seen: AnyTexts,
    choice: Choice,
    budget: float,
    method: str,
    by_layer: bool,
    predicted: float | None = None,
) -> MethodRun:
    """One model, quantized and run."""
    made = assemble(model, {name: choice.recipe(name) for name in choice.schemes}, seen)
    loss = reference.measure(made.network)
    low, high = (loss.value if end is None else end for end in (loss.low, loss.high))
    by = len(choice.methods)
    return MethodRun(budget, method, by_layer, by, made.bits, predicted, loss.value, low, high)


def _alone(
    model: Model,
    reference: LossReference,
    seen: AnyTexts,
    survey: Survey,
    method: str,
    schemes: Sequence[str],
) -> Iterator[AloneRun]:
    """Every so many layers of the survey quantized alone, by ``method``, and once by rounding."""
    names = [layer.name for layer in survey.linear if layer.methods][::SAMPLED] if schemes else []
    held = weights_of(model.network, dict.fromkeys(names))
    layers = {held[name].module: name for name in names}
    tokens = tokens_for(widths_of(model.network, layers))
    for captured in capture(model, seen, list(layers), tokens) if layers else ():
        name, signal = layers[captured.name], survey.head.default
        for text in schemes:
            scheme = Scheme.parse(text)
            codes = {method: apply(method, captured.weight, scheme, captured.activations).q}
            if method == "gptq":
                codes = {"": quantize(captured.weight, scheme), **codes}
            for by, q in codes.items():
                loss = reference.measure(_with_weight(model.network, held[name], q.dequantize())).value
                yield AloneRun(name, text, by, survey.layer(name).cost(signal, text, by), loss)


def _with_weight(network: nn.Module, held: HeldWeight, weight: Tensor) -> nn.Module:
    """Copy ``network`` with another ``weight`` in one layer; all other tensors are shared with the
    original."""
    own = network.get_parameter(held.parameter)
    other = nn.Parameter(own.detach().clone(), requires_grad=False)
    held.of(other.data).copy_(weight)
    shared: dict[int, object] = {id(t): t for t in (*network.parameters(), *network.buffers())}
    return copy.deepcopy(network, {**shared, id(own): other})


def runs_table(rows: Sequence[ModelRuns]) -> str:
    """For each model and budget: rounding, one method for all layers of that recipe, and the method or
    rounding by layer."""
    lines = [
        [
            one.model,
            f"{run.budget:g}",
            _name(run, one),
            "–" if run.predicted is None else _loss(one, run.predicted),
            f"{_loss(one, run.loss)} ± {_loss(one, (run.high - run.low) / 2)}",
            _less(run, one),
        ]
        for one in rows
        for run in one.runs
    ]
    titles = ["model", "bits", "codes by", "predicted", "measured", "less than by rounding"]
    return markdown(titles, lines) if lines else f"({NOT_RECORDED})"


def ranks_sentence(rows: Sequence[ModelRuns]) -> str:
    """Rank correlation of the predicted and measured losses of layers quantized alone, and how far the shares
    that methods leave are predicted."""
    alone = [run for one in rows for run in one.alone if run.method]
    if not alone:
        return f"({NOT_RECORDED})"
    rounded = {(run.layer, run.scheme): run for one in rows for run in one.alone if not run.method}
    pairs = [run.predicted for run in alone], [run.loss for run in alone]
    low, high = spearman_interval(*pairs, [run.layer for run in alone])
    plain = [rounded[run.layer, run.scheme].predicted for run in alone]
    off = [
        (run.predicted / base.predicted) / (run.loss / base.loss)
        for run in alone
        for base in (rounded[run.layer, run.scheme],)
    ]
    off.sort()
    layers = len({run.layer for run in alone})
    return (
        f"Over {layers} layers × {len({run.scheme for run in alone})} schemes × "
        f"{len({run.method for run in alone})} methods, each layer quantized alone, the rank correlation of "
        f"the predicted with the measured loss is {spearman(*pairs):.3f} ({low:.3f} to {high:.3f} by the "
        f"bootstrap over layers), and {spearman(plain, pairs[1]):.3f} by the prediction of rounding "
        "alone: layers and schemes differ more than methods. The share that a method leaves is predicted "
        f"{off[len(off) // 2]:.2f} times the measured one in the median, and {off[len(off) // 20]:.2f} to "
        f"{off[-1 - len(off) // 20]:.2f} times in nine of ten"
    )


def seconds_sentence(rows: Sequence[ModelRuns]) -> str:
    """State the duration of surveys with and without a method."""
    said = [
        f"{one.model} ({one.layers} layers × {one.schemes} schemes): {one.seconds['']:.0f} s, with "
        f"{label_of('gptq')} {one.seconds['gptq']:.0f} s"
        for one in rows
        if one.seconds
    ]
    return "; ".join(said) or f"({NOT_RECORDED})"


def _name(run: MethodRun, one: ModelRuns) -> str:
    if not run.method:
        return "round to nearest"
    where = (
        f"chosen by layer ({run.layers} of {one.layers})" if run.by_layer else "for all layers of that recipe"
    )
    return f"{label_of(run.method)}, {where}"


def _less(run: MethodRun, one: ModelRuns) -> str:
    base = next(x for x in one.runs if not x.method and x.budget == run.budget)
    return "–" if run is base else f"{100 * (1 - run.loss / base.loss):.0f} %"


def _loss(one: ModelRuns, loss: float) -> str:
    return f"{loss:.5f}" if one.kind == EMBEDDING else f"{loss:.4f}"
