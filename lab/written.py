"""The savings of recipes that can be written: for a named target, fused where its engine is, in bits of its
files.

Beside each stands the best single scheme that the target carries within the budget, as ``explorer check``
finds it, and the bound: the recipe of all surveyed schemes for the same bits, which no one target carries.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from explorer.checkpoints import EXPORTS
from explorer.core.backend import work_device
from explorer.models.capture import Model, load_model
from explorer.models.evaluate import calibration_sentences, sentences
from explorer.recordings.files import NOT_RECORDED, Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes.scheme import label_of_text
from explorer.survey import Constraints, Survey, frontier, load_survey, recipe_of
from explorer.survey.check import check_recipe
from explorer.survey.loss import EMBEDDING
from explorer.survey.run import SurveyPlan, survey_model
from lab.exports import SCHEMES
from lab.recipes import PACKAGES, SHIPPED, passages
from lab.tables import markdown

NAME = "written"
TARGETS = ("compressed-tensors", "vllm")
BUDGETS = (4.5, 5.0)
CAUSAL_BUDGETS = (4.5,)
IN_README = 4.5


@dataclass(frozen=True)
class WrittenRun:
    """A recipe for ``target`` within ``budget`` bits per weight of its files, and what it stands beside.

    bits, loss      of the recipe, with the 95 % interval of the loss over texts; ``predicted`` by the survey
    single, single_bits, single_loss  the best of ``singles`` single schemes that were run, "" if none fits
                    (that the recipe is one scheme itself: also "")
    bound           the loss of the recipe of all schemes, its bits counted as codes and scales
    kind            of the loss: "embedding" or "next token"
    """

    model: str
    target: str
    fused: bool
    budget: float
    bits: float
    predicted: float
    loss: float
    low: float
    high: float
    singles: int
    single: str
    single_bits: float
    single_loss: float
    bound: float
    kind: str
    texts: int
    tokens: int


def recorded_written() -> Recording[WrittenRun]:
    """The recorded runs; empty if there are none."""
    return recorded(NAME, WrittenRun)


def record_written(encoder: str, causal: str | None = None) -> Path:
    """Run recipes of MiniLM by its shipped survey, and of a causal model (minutes); write
    ``assets/measurements/written.json``."""
    loaded = load_model(encoder, device=work_device(), head=True)
    rows = list(run_written(load_survey(SHIPPED), loaded, sentences(), BUDGETS))
    if causal is not None:
        model = load_model(causal, device=work_device(), head=True)
        with tempfile.TemporaryDirectory() as room:
            plan = SurveyPlan(causal, schemes=SCHEMES, texts=passages(calibration_sentences()))
            survey = survey_model(plan, Path(room) / "causal.jsonl")
        rows += run_written(survey, model, passages(sentences()), CAUSAL_BUDGETS)
    return record(NAME, Recording(this_machine(work_device(), PACKAGES), tuple(rows)))


def run_written(
    survey: Survey, model: Model, texts: Sequence[str], budgets: Sequence[float]
) -> Iterator[WrittenRun]:
    """A row a target and budget."""
    for budget in budgets:
        alone = recipe_of(survey, frontier(survey).at(budget))
        bound = check_recipe(replace(alone, schemes=("bf16",)), model, texts).rows[0].loss.value
        for target in TARGETS:
            kept_to = Constraints(target=EXPORTS[target])
            recipe = recipe_of(survey, frontier(survey, "", kept_to).at(budget), constraints=kept_to)
            check = check_recipe(recipe, model, texts, survey)
            mine, single = check.rows[0], None if check.uniform else check.single
            loss = mine.loss
            yield WrittenRun(
                model=model.name,
                target=target,
                fused=recipe.fused,
                budget=budget,
                bits=mine.bits,
                predicted=mine.predicted or 0.0,
                loss=loss.value,
                low=loss.value if loss.low is None else loss.low,
                high=loss.value if loss.high is None else loss.high,
                singles=len(check.singles),
                single=single.name if single else "",
                single_bits=single.bits if single else 0.0,
                single_loss=single.loss.value if single else 0.0,
                bound=bound,
                kind=loss.kind,
                texts=loss.texts,
                tokens=loss.tokens,
            )


def written_table(runs: Sequence[WrittenRun]) -> str:
    """For each model, target and budget: the best single scheme, the recipe, by how much it is less, and the
    bound."""
    rows = [
        [
            SHIPPED.stem if run.kind == EMBEDDING else run.model,  # its package calls the folder "model"
            f"{run.target}{', fused' if run.fused else ''}",
            f"{run.budget:g}",
            f"{label_of_text(run.single)} ({run.single_bits:.2f}): {_loss(run, run.single_loss)}"
            if run.single
            else "–",
            _loss(run, run.loss),
            f"{100 * (1 - run.loss / run.single_loss):.1f} %" if run.single else "–",
            _loss(run, run.bound),
        ]
        for run in runs
    ]
    titles = ["model", "target", "bits", "best single scheme within them", "recipe", "less by", "bound"]
    return markdown(titles, rows)


def readme_table(recording: Recording[WrittenRun]) -> str:
    """``written_table`` of the encoder at one budget, after the machine that it was recorded on."""
    rows = [run for run in recording.rows if run.kind == EMBEDDING and run.budget == IN_README]
    return f"{recording.sentence}.\n\n{written_table(rows)}" if rows else f"({NOT_RECORDED})"


def _loss(run: WrittenRun, loss: float) -> str:
    return f"{loss:.5f}" if run.kind == EMBEDDING else f"{loss:.4f}"
