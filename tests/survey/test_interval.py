"""The interval of a predicted loss over calibration texts.

If these fail, a prediction looks surer, or less sure, than the texts that it comes from allow.
"""

from __future__ import annotations

import statistics
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from explorer.models.capture import load_model
from explorer.survey import ModelRecipe, Survey, frontier, load_survey, recipe_of
from explorer.survey.evidence import gather, weights_of
from explorer.survey.interval import fold_count, predicted_interval, standard_errors
from explorer.survey.loss import _mean, reference_for
from explorer.survey.rows import line_of
from lab.intervals import interval

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ("the cat sleeps on the warm roof", "the train was late again", "salt lowers the roof")


def with_folds(survey: Survey, *shares: float) -> Survey:
    """Every layer's fisher in folds of these shares of it."""
    layers = (replace(x, folds=tuple((x.fisher or 0) * s for s in shares)) for x in survey.layers)
    return replace(survey, layers=tuple(layers))


def test_the_interval_is_that_of_the_formula(made_up: Survey) -> None:
    """Three folds that predict .5, 1 and 1.5 of the loss: L ± 4.303 × .5 L / √3, not below 0."""
    choice = frontier(made_up).at(4.5)
    low, high = predicted_interval(with_folds(made_up, 0.5, 1.0, 1.5), "fisher", choice.schemes) or (0, 0)
    assert low == 0 and high == pytest.approx(choice.loss * (1 + 4.302653 * 0.5 / 3**0.5), rel=1e-6)
    low, high = predicted_interval(with_folds(made_up, 0.98, 1.02), "fisher", choice.schemes) or (0, 0)
    half = 12.706205 * 0.04 / 2**0.5 / 2**0.5
    assert (low, high) == pytest.approx((choice.loss * (1 - half), choice.loss * (1 + half)), rel=1e-6)
    same = predicted_interval(with_folds(made_up, 1.0, 1.0, 1.0), "fisher", choice.schemes)
    assert same == pytest.approx((choice.loss, choice.loss))


def test_layers_that_differ_in_opposite_ways_cancel(made_up: Survey) -> None:
    """Folds are those of texts: what one text says of all layers is summed before it is compared."""
    names = [layer.name for layer in made_up.linear[:2]]
    schemes = dict.fromkeys(names, "nvfp4")
    costs = [made_up.layer(name).costs["fisher"]["nvfp4"] for name in names]
    move = (0.3 / costs[0], -0.3 / costs[1])
    layers = tuple(
        replace(x, folds=tuple((x.fisher or 0) * (1 + sign * move[names.index(x.name)]) for sign in (-1, 1)))
        if x.name in names
        else x
        for x in made_up.layers
    )
    found = predicted_interval(replace(made_up, layers=layers), "fisher", schemes)
    assert found == pytest.approx((sum(costs), sum(costs)), rel=1e-6)


def test_there_is_none_where_nothing_gives_it(made_up: Survey, tmp_path: Path) -> None:
    """Files of earlier versions have no folds; other signals are no squared gradients; one text is no
    sample."""
    choice = frontier(made_up).at(4.5)
    for survey, signal in (
        (made_up, "fisher"),
        (with_folds(made_up, 1.0, 1.1), "weight"),
        (with_folds(made_up, 1.0), "fisher"),
    ):
        assert predicted_interval(survey, signal, choice.schemes) is None
    lines = [line_of(made_up.head), *(line_of(x).replace('"folds":[],', "") for x in made_up.layers)]
    (tmp_path / "old.jsonl").write_text("".join(lines))
    assert recipe_of(load_survey(tmp_path / "old.jsonl"), choice).predicted_interval is None


@pytest.mark.parametrize("kind", ["tiny_llama", "tiny_bert"])
def test_folds_are_shares_of_the_whole(kind: str, request: pytest.FixtureRequest) -> None:
    """The mean over folds, by samples, is the layer's own; every gradient is in one of them."""
    model = load_model(str(request.getfixturevalue(kind)), head=True)
    reference = reference_for(model, TEXTS)
    modules = weights_of(
        model.network, dict.fromkeys(n for n, m in model.network.named_modules() if hasattr(m, "in_features"))
    )
    tokens = [len(one.ids) if model.causal else 1 for one in reference.sequences]
    for signals in (["fisher_diagonal"], ["fisher"]):
        for found in gather(model, reference, modules, signals).values():
            mean = sum(n * f for n, f in zip(tokens, found.folds, strict=True)) / sum(tokens)
            assert found.fisher == pytest.approx(mean, rel=1e-5) and len(set(found.folds)) == 3
    assert [fold_count(n) for n in (1, 3, 8, 100)] == [1, 3, 8, 8]


def test_a_recipe_keeps_its_interval(made_up: Survey, tmp_path: Path) -> None:
    survey = with_folds(made_up, 0.9, 1.1, 1.0)
    recipe = recipe_of(survey, frontier(survey).at(4.5))
    recipe.save(tmp_path / "r.json")
    assert recipe.predicted_interval and ModelRecipe.load(tmp_path / "r.json") == recipe
    with pytest.raises(ValueError, match="numbers from 0"):
        replace(recipe, predicted_interval=(-1.0, 1.0))


def test_intervals_of_few_texts_are_by_students_t() -> None:
    """Those of a measured loss as those of a prediction: of four numbers a normal one is too narrow."""
    numbers = [1.0, 2.0, 3.0, 6.0]
    mean, low, high = _mean(torch.tensor(numbers), torch.ones(4))
    assert standard_errors(4) == pytest.approx(3.1824, abs=1e-4) and standard_errors(240) < 1.98
    assert low is not None and high is not None
    half = standard_errors(4) * statistics.stdev(numbers) / 2
    assert (mean, low, high) == pytest.approx((3.0, max(3.0 - half, 0.0), 3.0 + half))
    assert half == pytest.approx(interval(numbers)[1])
