"""Budgets of time: what layers take by recordings, choices against every combination, and what is refused.

If these fail, a recipe is slower than its budget, not the best within it, or says a time without its source.
"""

from __future__ import annotations

import dataclasses
import gc
import json
import random
import weakref
from typing import Any

import numpy as np
import pytest

from explorer.methods.recipe import Recipe
from explorer.products.shape_times import ShapeTime, product_time, scaled
from explorer.progress import StoppedError, stoppable
from explorer.schemes import Scheme
from explorer.survey import Constraints, Frontier, Layer, Survey, frontier, knapsack, recipe_of, times
from explorer.survey.knapsack import HullPath, least_within
from explorer.survey.recipe import ModelRecipe
from explorer.survey.times import (
    UNQUANTIZED,
    CheckedTime,
    PredictedTime,
    StepTimes,
    joined,
    recorded_times,
    seconds_of,
)

FEW = ("int3_group64_asym", "int4_group128_asym", "nvfp4", "int8_row")


def drawn(survey: Survey, seed: int) -> Frontier:
    """Four layers × four schemes with drawn costs and times."""
    draw = random.Random(seed)
    layers, times = list[Layer](), dict[tuple[Scheme, tuple[int, int]], float]()
    for index, layer in enumerate(survey.linear[:4]):
        shape = (64 * (index + 1), 64)
        losses = {s: draw.uniform(0.1, 1) * 4 ** -layer.bits[s] for s in layer.bits}
        layers.append(
            dataclasses.replace(layer, shape=shape, costs={"fisher_diagonal": losses, "weight": losses})
        )
        times |= {(Scheme.parse(name), shape): draw.uniform(1e-6, 5e-6) for name in FEW}

    def product(scheme: Scheme, shape: tuple[int, int], inputs: Scheme | None) -> ShapeTime:
        return ShapeTime((1, *shape), "measured", seconds=times[scheme, shape])

    found = Survey(dataclasses.replace(survey.head, layers=4, kept_bytes=0), tuple(layers))
    return frontier(found, "fisher_diagonal", Constraints(schemes=FEW, times=StepTimes("a GPU", 1, product)))


def test_times_of_many_shapes_are_not_all_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    """Shapes are those of any survey that is opened."""
    monkeypatch.setattr(times, "_MOST_KNOWN", 10)
    found = StepTimes(
        "a GPU", 1, lambda scheme, shape, inputs: ShapeTime((1, *shape), "measured", seconds=1.0)
    )
    for n in range(100):
        assert found.of(UNQUANTIZED, (n, 64)).shape == (1, n, 64)
    assert len(found._known) <= 10


def test_many_layers_have_a_bound() -> None:
    """Where not every choice can be followed, what is given keeps to the budget, and its gap is small."""
    rng = np.random.default_rng(7)
    costs = rng.uniform(0.5, 2, (300, 1)) * 4.0 ** -np.arange(2, 10) * rng.uniform(0.5, 2, (300, 8))
    seconds = rng.uniform(1, 3, (300, 8))
    path = HullPath.of(seconds, costs)
    assert least_within(path, path.least * 0.999) is None and least_within(path, 0.0) is None
    found = [
        (path.least * (1 + more / 8), least_within(path, path.least * (1 + more / 8))) for more in range(9)
    ]
    solved = [(budget, one) for budget, one in found if one is not None]
    for budget, one in solved:
        assert one.cost == pytest.approx(costs[np.arange(300), one.chosen].sum())
        assert seconds[np.arange(300), one.chosen].sum() <= budget * (1 + 1e-9)
        assert one.bound <= one.cost <= 1.001 * one.bound
    losses = [one.cost for _, one in solved]
    assert len(losses) == 9 and losses == sorted(losses, reverse=True)


def test_many_choices_of_many_layers_are_not_all_followed(monkeypatch: pytest.MonkeyPatch) -> None:
    """Layers that save nearly the same for their size have any number of choices, a cell a layer each."""
    draw, units = np.random.default_rng(0), 100
    size, worth = draw.integers(1 << 20, 1 << 30, units), 1 + 1e-9 * draw.random(units)
    path = HullPath.of(np.stack([2.0 * size, 3.0 * size], 1), np.stack([size * worth, 0.0 * size], 1))
    followed, widths = knapsack._followed, list[int]()

    def watched(*asked: Any) -> Any:
        widths.append(asked[-1])
        return followed(*asked)

    monkeypatch.setattr(knapsack, "_followed", watched)
    monkeypatch.setattr(knapsack, "_CELLS", 60 * units)
    budget = path.size_at[units // 2 : units // 2 + 2].mean()
    found = least_within(path, budget)
    assert found is not None and found.bound <= found.cost <= path.cost_at[units // 2]
    assert widths == [30, 60]
    with stoppable(_stop), pytest.raises(StoppedError):
        least_within(path, path.size_at[units // 3 : units // 3 + 2].mean())


def test_what_was_found_ends_with_its_path(monkeypatch: pytest.MonkeyPatch) -> None:
    """A budget that is asked for again is not searched again; what is kept has a bound that can be counted,
    and a path that nobody holds is gone."""
    rng = np.random.default_rng(0)
    path = HullPath.of(np.cumsum(rng.random((40, 6)), 1), -np.cumsum(rng.random((40, 6)), 1))
    followed, searched = knapsack._followed, list[int]()
    monkeypatch.setattr(knapsack, "_followed", lambda *asked: searched.append(1) or followed(*asked))  # type: ignore[func-returns-value]
    monkeypatch.setattr(knapsack, "_KEPT", 1 << 12)
    budget = path.size_at[20:22].mean()
    assert (least_within(path, budget).chosen == least_within(path, budget).chosen).all()  # type: ignore[union-attr]
    once = len(searched)
    assert once
    for other in np.linspace(*path.size_at[[0, -1]], 60):
        least_within(path, other)
    assert 0 < sum(x.nbytes for _, found in path.kept for x in found[:2]) <= path.room
    searched.clear()
    least_within(path, budget)
    assert len(searched) == once
    gone = weakref.ref(path)
    del path
    gc.collect()
    assert gone() is None


def _stop() -> None:
    raise StoppedError("stopped")


def test_the_least_time_that_is_named_can_be_had(made_up: Survey) -> None:
    """An error that rounds it down sends its reader back with a budget that is refused again."""
    front = drawn(made_up, 3)
    with pytest.raises(ValueError, match=r"schemes: (\S+ µs) at least") as error:
        front.at_time(1e-6)
    named = str(error.value).partition("schemes: ")[2].partition(" at least")[0]
    assert front.at_time(seconds_of(named)).time is not None
    with pytest.raises(ValueError, match="times"):
        frontier(made_up).at_time(1.0)


def test_recorded_times_are_those_of_the_products() -> None:
    """Of weights alone without inputs, with X quantized where inputs are; the batch is M."""
    shape = (8192, 8192)
    alone, eight = recorded_times(1), Scheme.parse("int8_row")
    assert alone.machine == "NVIDIA H200"
    assert alone.of(eight, shape) == product_time("w8a16", (1, *shape))
    sixteen = recorded_times(16)
    both = sixteen.of(eight, shape, eight)
    assert both == product_time("int8", (16, *shape), quantize_x=True) and both.quantize_x_s
    assert sixteen.of(UNQUANTIZED, shape, eight) == product_time("bf16", (16, *shape))
    none = alone.of(Scheme.parse("int5_group128_asym"), shape)
    assert none.seconds is None and none.reason
    other = alone.of(Scheme.parse("nvfp4"), shape, eight)
    assert other.seconds is None and "int8_row" in other.reason
    with pytest.raises(ValueError, match="at least 1"):
        recorded_times(0)


def test_layers_of_one_input_are_one_product() -> None:
    """Fused, query, key and value take the time of one product of all their rows; apart, of three."""
    times = recorded_times(16)
    names = {"l.0.q_proj": (4096, 4096), "l.0.k_proj": (1024, 4096), "l.0.v_proj": (1024, 4096)}
    layers = dict.fromkeys(names, Recipe(Scheme.parse("int4_group128")))
    whole = times.of(Scheme.parse("int4_group128"), (6144, 4096))
    fused = times.of_recipe(layers, names, {}, True)
    assert joined(list(names.values())) == [(6144, 4096)] and joined([(8, 16), (8, 32)]) == [(8, 16), (8, 32)]
    assert whole == scaled(product_time("w4a16_group128", (16, 6144, 4096)))
    assert fused.seconds == whole.seconds and fused.how == "scaled"
    assert times.of_recipe(layers, names, {}, False).seconds > fused.seconds
    kept = times.of_recipe(layers, names, {"l.0.o_proj": (4096, 4096)}, True)
    beside = times.of(UNQUANTIZED, (4096, 4096))
    assert kept.seconds == pytest.approx((whole.seconds or 0) + (beside.seconds or 0))
    assert kept.kept == ("l.0.o_proj",)


def test_a_recipe_says_its_time(made_up: Survey) -> None:
    """And from what it was chosen: schemes without a product are not among them. Kept layers count."""
    times = recorded_times(16)
    wide = tuple(
        dataclasses.replace(x, shape=(4096, 4096)) if x.bits and x.name != "lm_head" else x
        for x in made_up.layers
    )
    survey = Survey(made_up.head, wide)
    kept_to = Constraints(times=times, keep=("layers.0.",), fuse=True)
    front = frontier(survey, constraints=kept_to)
    assert front.by_time is not None and front.refused["int2_group64_asym"]
    choice = front.at_time(front.by_time.most)
    recipe = recipe_of(survey, choice, constraints=kept_to)
    time = recipe.predicted_time
    assert time is not None and time.machine == "NVIDIA H200" and time.batch == 16 and time.how == "scaled"
    assert len(time.kept) == 7 and set(time.kept).isdisjoint(recipe.layers)
    assert "int2_group64_asym" not in recipe.schemes and set(choice.schemes.values()) <= set(recipe.schemes)
    again = ModelRecipe.from_json(recipe.to_json())
    assert again == recipe and ModelRecipe.from_json(recipe_of(survey, choice).to_json()) is not None
    for point in front.uniform:
        assert point.seconds is not None and point.seconds >= front.by_time.least * (1 - 1e-9)
    shortest = frontier(survey, constraints=kept_to).at_time(front.by_time.least * (1 + 1e-9)).time
    assert shortest is not None and shortest.seconds == pytest.approx(front.by_time.least)
    expert = dataclasses.replace(made_up.linear[0], name="model.layers.0.mlp.experts.0.up_proj")
    with pytest.raises(ValueError, match="experts"):  # how many tokens one multiplies is not known
        frontier(Survey(made_up.head, (*made_up.layers[:-1], expert)), constraints=kept_to)
    old = json.loads(recipe.to_json())
    old["predicted_time"] |= {"how": "modelled", "error": 0.2}
    before = ModelRecipe.from_json(json.dumps(old)).predicted_time
    assert before is not None and before.seconds == time.seconds, "of an earlier version"
    old = recipe.to_json().replace('"seconds": ', '"seconds": -')
    with pytest.raises(ValueError, match="above 0"):
        ModelRecipe.from_json(old)


def test_times_are_read_with_their_unit() -> None:
    """Milliseconds taken for seconds are a budget that everything keeps to."""
    for text, seconds in (("12ms", 0.012), ("800us", 8e-4), ("1.5 µs", 1.5e-6), (" 2s ", 2.0)):
        assert seconds_of(text) == pytest.approx(seconds)
    for text in ("12", "0ms", "-1ms", "1 min", "nanms", ""):
        with pytest.raises(ValueError, match="12ms or 800us"):
            seconds_of(text)


def test_a_checked_time_stands_beside_the_prediction() -> None:
    """Or says why it was not measured."""
    predicted = PredictedTime(0.012, 16, "NVIDIA H200", "2026-11-23", "scaled")
    assert "nearest recorded shapes" in predicted.described
    only = CheckedTime(predicted, None, "no GPU").described
    assert "12 ms" in only and only.endswith("no GPU")
    measured = dataclasses.replace(predicted, seconds=0.010, machine="NVIDIA H100", how="measured")
    both = CheckedTime(predicted, measured).described
    assert "12 ms" in both and "10 ms" in both and "20 %" in both
