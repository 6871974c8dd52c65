"""The runs behind docs/models.md: losses of recipes on a whole model, by each signal, on held-out text.

Layers are surveyed on the built-in calibration texts; recipes and single schemes are run on other sentences.
The survey itself ships with the explorer (``assets/surveys``), so that the page has one to show.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path

from explorer.core.backend import work_device
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, load_model
from explorer.models.evaluate import MODEL, built_in_texts, calibration_sentences, sentences
from explorer.paths import checkout
from explorer.recordings.files import Recording, record
from explorer.recordings.machine import this_machine
from explorer.recordings.recipe_runs import CAUSAL, NAME, RecipeRun
from explorer.schemes import Scheme
from explorer.survey import SENSITIVITIES, SURVEYS, Constraints, Survey, frontier, load_survey
from explorer.survey.assemble import assemble
from explorer.survey.loss import LossReference, reference_for
from explorer.survey.rows import line_of
from explorer.survey.run import SurveyPlan, survey_model

SHIPPED = SURVEYS / f"{MODEL.rpartition('/')[2]}.jsonl"
BUDGETS = (3.2, 4.16, 4.5, 5.0, 6.0)
BY_METHODS = (4.16, "int4_group128_asym", ("gptq", "gptq_sequential"))
"""A budget and a single scheme of its size that are also run by methods."""
CAUSAL_BUDGETS = (4.0, 4.5, 5.0, 6.0)
CAUSAL_SCHEMES = (
    "int2_group64_asym", "int3_group64", "int3_group64_asym", "int4_group64", "int4_group64_asym", "mxfp4",
    "nvfp4", "int5_group64_asym", "int6_group64_asym", "mxfp6_e2m3", "fp8_e4m3_row", "int8_row",
)  # fmt: skip
"""In groups of 64: the rows of small models are often no multiple of 128."""
PASSAGE = 6
"""Sentences of a text that a causal model is run on."""
SIGNAL = "fisher_diagonal"
"""Signal for the shipped survey's recipes, and for recipes that are run fused and with methods."""
PACKAGES = ("transformers",)


def record_recipes(model: str | Path = MODEL) -> list[Path]:
    """Survey ``model`` by every signal and run recipes of it, in float32 (some ten minutes on one core);
    write ``assets/surveys`` and ``assets/measurements/recipes.json``."""
    shipped = ship_survey(str(model))
    loaded = load_model(str(model), device=work_device(), head=True)
    rows = tuple(run_recipes(load_survey(shipped), loaded, sentences()))
    return [shipped, record(NAME, Recording(this_machine(work_device(), PACKAGES), rows))]


def record_causal(model: str) -> Path:
    """The same for a causal language model, in some minutes; write ``assets/measurements/causal.json``.

    Its texts are passages of the built-in sentences.
    """
    loaded = load_model(model, device=work_device(), head=True)
    seen, held_out = passages(calibration_sentences()), passages(sentences())
    with tempfile.TemporaryDirectory() as folder:
        plan = SurveyPlan(model, schemes=CAUSAL_SCHEMES, texts=seen)
        survey = survey_model(plan, Path(folder) / "causal.jsonl")
    runs = run_recipes(survey, loaded, held_out, CAUSAL_BUDGETS, methods=())
    rows = tuple(replace(run, model=loaded.name) for run in runs)
    return record(CAUSAL, Recording(this_machine(work_device(), PACKAGES), rows))


def passages(texts: Sequence[str]) -> tuple[str, ...]:
    """``texts`` in passages of ``PASSAGE``."""
    return tuple(" ".join(texts[i : i + PASSAGE]) for i in range(0, len(texts), PASSAGE))


def ship_survey(model: str) -> Path:
    """Survey ``model`` by every signal, into ``assets/surveys`` under the name that anybody can load it
    by."""
    checkout()
    out = SHIPPED
    with tempfile.TemporaryDirectory() as folder:
        plan = SurveyPlan(model, signals=tuple(SENSITIVITIES))
        found = survey_model(plan, Path(folder) / out.name)
    head = replace(found.head, model=MODEL, default=SIGNAL)
    out.parent.mkdir(parents=True, exist_ok=True)
    lines = [line_of(head), *map(line_of, found.layers)]
    out.write_text("".join(lines), encoding="utf-8")
    return out


def run_recipes(
    survey: Survey,
    model: Model,
    texts: Sequence[str],
    budgets: Sequence[float] = BUDGETS,
    methods: Sequence[str] = BY_METHODS[2],
) -> Iterator[RecipeRun]:
    """Every single scheme of the survey, and recipes of every budget by every signal, one after another."""
    reference = reference_for(model, texts)
    budget, same_size, _ = BY_METHODS
    front = frontier(survey, SIGNAL)
    names = front.at(front.most).schemes
    for point in front.uniform:
        yield _run(
            model, reference, dict.fromkeys(names, point.scheme), scheme=point.scheme, predicted=point.loss
        )
    for bits in budgets:
        for signal in survey.head.signals:
            yield _recipe(survey, model, reference, bits, signal)
        yield _recipe(survey, model, reference, bits, SIGNAL, fused=True)
    for method in methods:
        yield _run(model, reference, dict.fromkeys(names, same_size), scheme=same_size, method=method)
        yield _recipe(survey, model, reference, budget, SIGNAL, method=method)


def _recipe(
    survey: Survey,
    model: Model,
    reference: LossReference,
    budget: float,
    signal: str,
    fused: bool = False,
    method: str = "",
) -> RecipeRun:
    choice = frontier(survey, signal, Constraints(fuse=fused)).at(budget)
    predicted = choice.loss if SENSITIVITIES[signal].is_loss and not method else None
    run = _run(model, reference, choice.schemes, method=method, predicted=predicted, fused=fused)
    return replace(run, budget=budget, signal=signal)


def _run(
    model: Model,
    reference: LossReference,
    schemes: Mapping[str, str],
    scheme: str = "",
    method: str = "",
    predicted: float | None = None,
    fused: bool = False,
) -> RecipeRun:
    """One model, quantized and run."""
    recipes = {name: Recipe(Scheme.parse(text), method) for name, text in schemes.items()}
    made = assemble(model, recipes, built_in_texts(model.causal), fused=fused)
    loss = reference.measure(made.network)
    low, high = (loss.value if end is None else end for end in (loss.low, loss.high))
    return RecipeRun(
        budget=made.bits,
        signal="",
        scheme=scheme,
        method=method,
        fused=fused,
        bits=made.bits,
        predicted=predicted,
        loss=loss.value,
        low=low,
        high=high,
        texts=loss.texts,
        tokens=loss.tokens,
        perplexity=loss.scores.get("perplexity"),
        same_top=loss.scores.get("same_top"),
        losses=loss.each,
    )
