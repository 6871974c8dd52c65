"""The figures of methods: order of bars, one plot for each thing that is searched over, pairs on one scale.

If these fail, the best method is not where one looks first, or a pair of maps says what is not so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from explorer import Scheme
from explorer.figures.methods import before_after_figure, objective_figure, output_figure
from explorer.methods import label_of, objective_axis
from explorer.methods.evaluate import Outcome, evaluate_all

NAMES = ["rtn", "gptq", "awq", "hqq", "smoothquant_search", "gptq_order", "awq_clip", "gptq_gar"]


@pytest.fixture(scope="module")
def layer() -> tuple[torch.Tensor, torch.Tensor]:
    chance = torch.Generator().manual_seed(0)
    return torch.randn(16, 128, generator=chance), torch.randn(64, 128, generator=chance)


@pytest.fixture(scope="module")
def outcomes(layer: tuple[torch.Tensor, torch.Tensor]) -> list[Outcome]:
    schemes = [Scheme.parse("int4_group128_asym"), Scheme.parse("int3_group128_asym")]
    return list(evaluate_all(NAMES, schemes, *layer))


def drawn(figure: Any) -> list[dict[str, Any]]:
    return list(figure.to_dict()["data"])


def test_the_best_method_stands_at_the_top(outcomes: list[Outcome]) -> None:
    figure = output_figure(outcomes, "x")
    first = {o.label: o.output_sqnr_db for o in outcomes if o.scheme == outcomes[0].scheme}
    assert list(figure.layout.yaxis.categoryarray) == sorted(first, key=lambda label: -first[label])
    assert figure.layout.xaxis.type != "log", "bars begin at zero"


def test_objectives_have_a_plot_for_each_thing_searched_over(outcomes: list[Outcome]) -> None:
    """Damping, α and iterations have nothing in common: curves over them share no axis."""
    figure = drawn(objective_figure(outcomes, "x"))
    curves = [t for t in figure if t["mode"] == "lines" and "legendgroup" in t]
    panels: dict[str, set[Any]] = {}
    for curve in curves:
        panels.setdefault(curve["xaxis"], set()).add(curve["name"])
    wanted: dict[Any, set[str]] = {}
    for name in NAMES:
        if objective_axis(name) is not None:
            wanted.setdefault(objective_axis(name), set()).add(label_of(name))
    assert sorted(map(sorted, panels.values())) == sorted(map(sorted, wanted.values()))
    colors = {(t["name"], t["line"]["color"]) for t in curves}
    assert len({color for _, color in colors}) == len(colors) == len({name for name, _ in colors})
    assert sum(t["showlegend"] for t in curves) == len(colors), "one entry a method"


def test_a_pair_of_maps_shares_one_scale(layer: tuple[torch.Tensor, torch.Tensor]) -> None:
    """The same magnitude has the same colour in both, and what is a hundred times smaller another."""
    before, after = layer[0], layer[0] / 100
    figure = before_after_figure(before, after, "token", "after", "x")
    top, bottom = (np.asarray(t.z) for t in figure.data)
    assert {t.coloraxis for t in figure.data} == {"coloraxis"} and top.max() == 255
    drop = 255 * np.log2(100) / 8
    clear = bottom > 0
    assert clear.any() and np.abs(top[clear].astype(float) - bottom[clear] - drop).max() <= 1
    for values in (torch.zeros(4, 8), torch.ones(1, 1)):
        assert len(before_after_figure(values, values, "token", "after", "x").data) == 2
