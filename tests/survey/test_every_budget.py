"""Budgets of bits, bytes and time against every assignment of up to six layers.

If these fail, a recipe is not the best within its budget, exceeds it, or breaks a constraint.
"""

from __future__ import annotations

import dataclasses
import itertools
import math

import numpy as np
import pytest

from explorer.products.shape_times import ShapeTime
from explorer.schemes import Scheme
from explorer.survey import Constraints, Frontier, Layer, Survey, frontier
from explorer.survey.times import StepTimes
from tests.covering import sampled
from tests.survey.conftest import target

NAMES = ("int3_group64_asym", "int4_group128_asym", "nvfp4", "mxfp6_e2m3", "int8_row")
TOGETHER = (0, 0, 0, 1, 2, 2)
"""Query, key and value; output; gate and up."""


def drawn(survey: Survey, seed: int) -> tuple[Frontier, np.ndarray]:
    """Up to six layers, some of them fused, kept or refused a scheme; and bits, seconds and losses of every
    assignment that is allowed."""
    rng = np.random.default_rng(seed)
    names, fuse, kept = NAMES[: rng.integers(2, 6)], bool(rng.random() < 0.6), int(rng.integers(-6, 6))
    layers = list[Layer]()
    for place, layer in enumerate(survey.linear[: rng.integers(1, 7)]):
        shape = (64 * int(rng.integers(1, 9)), 64 if fuse else 64 * (place + 1))
        costs = {s: 4 ** -(layer.bits[s] * rng.uniform(0.6, 1)) * rng.lognormal() for s in layer.bits}
        layers.append(dataclasses.replace(layer, shape=shape, costs={"fisher_diagonal": costs}))
    keep = (layers[kept].name,) if 0 <= kept < len(layers) > 1 else ()
    rate = {(Scheme.parse(s), 64 * k): rng.uniform(1e-8, 3e-8) for s in names for k in range(1, 7)}
    refused = {(Scheme.parse(s), x.shape) for s in names[1:] for x in layers if rng.random() < 0.15}
    times = StepTimes(
        "a GPU", 1, lambda s, x, _: ShapeTime((1, *x), "measured", seconds=rate.get((s, x[1]), 1e-8) * x[0])
    )
    made = Survey(
        dataclasses.replace(survey.head, layers=len(layers), signals=("fisher_diagonal",)), tuple(layers)
    )
    asked = [place for place, layer in enumerate(layers) if layer.name not in keep]
    rows = np.array(list(itertools.product(range(len(names)), repeat=len(asked))))
    sums, allowed = np.zeros((3, len(rows))), np.ones(len(rows), dtype=bool)
    for place, own in zip(asked, rows.T, strict=True):
        x, schemes = layers[place], [Scheme.parse(s) for s in names]
        seconds = [rate[s, x.shape[1]] * x.shape[0] for s in schemes]
        cells = [
            [x.bits[s] * x.weights for s in names],
            seconds,
            [x.costs["fisher_diagonal"][s] for s in names],
        ]
        sums += np.array(cells)[:, own]
        allowed &= np.array([(s, x.shape) not in refused for s in schemes])[own]
        mates = [i for i, other in enumerate(asked) if fuse and TOGETHER[other] == TOGETHER[place]]
        allowed &= (rows[:, mates] == own[:, None]).all(1)
    carried = target(refuses=lambda s, x: "no" if (s, x) in refused else "")
    limits = Constraints(names, carried, keep, fuse=fuse, times=times)
    return frontier(made, "fisher_diagonal", limits), sums[:, allowed]


@pytest.mark.parametrize("seed", sampled(range(1000), range(60)))
def test_no_assignment_within_a_budget_is_better(made_up: Survey, seed: int) -> None:
    """For budgets of bits, bytes and time. A larger one never loses more, and each is
    answered alike when asked again."""
    front, (size, took, loss) = drawn(made_up, seed)
    assert front.by_time is not None
    rng, rest, before = np.random.default_rng(seed), front.by_time.rest, np.inf
    for bits in sorted([*rng.uniform(front.least, front.most, 4), *rng.choice(size, 4) / front.weights]):
        choice, least = front.at(bits), loss[size <= (bits + 1e-6) * front.weights].min()
        assert choice.loss == pytest.approx(least, rel=1e-9) and choice.gap <= 1e-9 * least
        assert choice.loss <= before and choice.bits <= bits + 1e-6 and front.at(bits) == choice
        before, budget = choice.loss, math.ceil(bits * front.weights / 8)
        choice, least = front.at_bytes(front.kept_bytes + budget), loss[size <= 8 * budget + 1e-3].min()
        assert choice.loss == pytest.approx(least, rel=1e-9) and choice.bytes <= budget
    before = np.inf
    for seconds in sorted([*rng.uniform(took.min(), took.max(), 4), *rng.choice(took, 4) * (1 + 1e-9)]):
        choice, least = front.at_time(rest + seconds), loss[took <= seconds].min()
        assert choice.loss == pytest.approx(least, rel=1e-9) and choice.gap <= 1e-9 * least
        assert choice.loss <= before and choice.time and choice.time.seconds <= (rest + seconds) * (1 + 1e-9)
        before = choice.loss
