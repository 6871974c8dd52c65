"""What a budget buys: the frontier and its choices against an integer program, and constraints.

If these fail, the slider's recipe is not the best of its size, or breaks what a target needs.
"""

from __future__ import annotations

import dataclasses
import fnmatch
from collections.abc import ItemsView

import numpy as np
import pytest
from scipy.optimize import Bounds, LinearConstraint, milp

from explorer.figures.survey import budget_figure, heat_figure, strip_figure
from explorer.models import files
from explorer.models.files import matches
from explorer.progress import stoppable
from explorer.schemes import MappingType, Scheme
from explorer.survey import Constraints, Survey, budget, frontier, recipe_of
from explorer.survey.budget import _left_by
from explorer.survey.recipe import ModelRecipe
from explorer.survey.sentences import kept_words, slightly_more, what_it_buys
from explorer.words import bytes_ as byte_words
from tests.survey.conftest import SCHEMES, target

BUDGETS = (2.28, 2.5, 3.7, 4.5, 6.0, 8.04, 20.0)


def solved_exactly(survey: Survey, signal: str, bits: float) -> float:
    """The least cost within the budget, by HiGHS."""
    layers = [layer for layer in survey.linear if layer.name != "lm_head"]
    schemes = survey.head.schemes
    cost = np.array([[layer.costs[signal][s] for s in schemes] for layer in layers])
    size = np.array([[layer.bits[s] * layer.weights for s in schemes] for layer in layers])
    one_each = np.kron(np.eye(len(layers)), np.ones(len(schemes)))
    weights = sum(layer.weights for layer in layers)
    limits = [
        LinearConstraint(one_each, 1, 1),
        LinearConstraint(size.reshape(1, -1), 0, bits * weights + 1e-6),
    ]
    every = np.ones(cost.size)
    unit = cost.max()  # HiGHS stops at an absolute gap
    options = {"mip_rel_gap": 0.0}
    found = milp(
        cost.ravel() / unit * 1e4, constraints=limits, integrality=every, bounds=Bounds(0, 1), options=options
    )
    return float(found.fun) * unit / 1e4


@pytest.mark.parametrize("bits", BUDGETS)
@pytest.mark.parametrize("signal", ["weight", "fisher_diagonal"])
def test_choices_are_the_best_up_to_their_gap(made_up: Survey, signal: str, bits: float) -> None:
    """Within the budget; no cheaper choice than loss - gap exists, and the best one is near."""
    choice = frontier(made_up, signal).at(bits)
    best = solved_exactly(made_up, signal, bits)
    assert choice.bits <= bits + 1e-6
    assert choice.loss - choice.gap <= best * (1 + 1e-6) and best <= choice.loss * (1 + 1e-6)
    assert choice.loss <= 1.05 * best
    assert choice.loss == pytest.approx(
        sum(made_up.layer(name).costs[signal][s] for name, s in choice.schemes.items())
    )


def test_the_frontier_is_convex_and_its_points_are_choices(made_up: Survey) -> None:
    """The curve that is drawn is what the slider gives; single schemes lie on or above it."""
    front = frontier(made_up)
    slopes = np.diff(front.loss) / np.diff(front.bits)
    assert (np.diff(front.bits) > 0).all() and (slopes < 0).all() and (np.diff(slopes) > -1e-12).all()
    for bits, loss in zip(front.bits, front.loss, strict=True):
        choice = front.at(float(bits))
        assert choice.loss == pytest.approx(loss) and choice.gap <= 1e-4 * front.loss[0]
    for point in front.uniform:
        assert point.loss >= np.interp(point.bits, front.bits, front.loss) * (1 - 1e-9)
    assert [point.scheme for point in front.uniform] == list(made_up.head.schemes)


def test_a_choice_costs_what_its_layers_cost(made_up: Survey) -> None:
    """To the last digit: sums along the frontier left -4e-14 of a loss of 0, which a recipe refuses."""
    exact = [
        dataclasses.replace(x, costs={s: {**c, "int8_row": 0.0} for s, c in x.costs.items()})
        for x in made_up.layers
    ]
    survey = Survey(made_up.head, tuple(exact))
    choice = frontier(survey).at(9)
    assert choice.loss == 0 and recipe_of(survey, choice).predicted_loss == 0


def test_constraints_hold(made_up: Survey) -> None:
    """Fused layers share a scheme, kept ones are left out, refused schemes are not taken and say why."""
    fused = frontier(made_up, constraints=Constraints(fuse=True, keep=("layers.0.", "*.2.mlp.*"))).at(4.3)
    assert (
        not any("layers.0." in n or ".2.mlp" in n for n in fused.schemes) and "lm_head" not in fused.schemes
    )
    for kinds in (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj")):
        for block in "12":
            same = {s for n, s in fused.schemes.items() if n.endswith(kinds) and f".{block}." in n}
            assert len(same) <= 1
    few = Constraints(
        target=target(refuses=lambda scheme, shape: "no scales of E8M0" if "mxfp" in scheme.name else ""),
        schemes=("int3_group64_asym", "mxfp6_e2m3", "int8_row"),
    )
    front = frontier(made_up, constraints=few)
    assert set(front.at(6.0).schemes.values()) == {"int3_group64_asym", "int8_row"}
    assert front.refused == {"mxfp6_e2m3": "no scales of E8M0"} and len(front.uniform) == 2
    with_head = Constraints(target=target(tables=True))
    assert "lm_head" in frontier(made_up, constraints=with_head).at(4).schemes


WIDE = ("int4_group128_asym",)
RAGGED = "a row of 64 values is no whole number of groups of 128"


def _short_rows(scheme: Scheme, shape: tuple[int, int]) -> str:
    """As every target of groups has it; ``made_up`` has rows of 64, and some of 128 rows."""
    width = scheme.block[1]
    return RAGGED if width == 128 and shape[0] == 64 else ""


def test_layers_that_no_scheme_serves_are_kept_by_themselves(made_up: Survey) -> None:
    """Else one layer of 576 values in a row leaves a whole model without a recipe. They count as stored."""
    short = [x for x in made_up.linear if x.shape[0] == 64]
    front = frontier(made_up, constraints=Constraints(schemes=WIDE, target=target(refuses=_short_rows)))
    assert front.left == dict.fromkeys((x.name for x in short), f"int4_group128_asym: {RAGGED}")
    chosen = front.at(4.16).schemes
    assert {made_up.layer(name).shape[0] for name in chosen} == {128} and not set(chosen) & set(front.left)
    every = frontier(made_up, constraints=Constraints(schemes=WIDE))
    assert front.kept_bytes - every.kept_bytes == sum(x.stored_bytes for x in short)
    assert front.refused == {} and not every.left
    some = frontier(
        made_up, constraints=Constraints(schemes=(*WIDE, "int8_row"), target=target(refuses=_short_rows))
    )
    few, all_of = len(short), len(made_up.linear) - 1  # without the head
    assert not some.left and f"{few} of {all_of}" in some.refused["int4_group128_asym"]


def test_fused_layers_are_kept_together(made_up: Survey) -> None:
    """An engine multiplies them as one: a part that cannot have codes keeps the others."""

    def no_value(scheme: Scheme, shape: tuple[int, int]) -> str:
        return "no such shape" if shape == made_up.layer("model.layers.1.self_attn.v_proj").shape else ""

    front = frontier(made_up, constraints=Constraints(target=target(refuses=no_value), fuse=True))
    together = {f"model.layers.1.self_attn.{part}_proj" for part in "qkv"}
    assert together <= set(front.left)
    beside = [x for x in together if made_up.layer(x).shape != made_up.layer(max(together)).shape]
    assert all(front.left[name] for name in beside)


def test_fused_layers_have_what_each_of_them_can(made_up: Survey) -> None:
    """A scheme that one of them is refused is taken by none."""
    together = [f"model.layers.1.self_attn.{part}_proj" for part in "qkv"]
    layers = [dataclasses.replace(x, shape=(96, 64)) if x.name in together[2:] else x for x in made_up.layers]
    refused = ("int3_group64_asym", "nvfp4", "int8_row")

    def refusal(scheme: Scheme, shape: tuple[int, int]) -> str:
        return "no such scale" if shape == (96, 64) and scheme.name in refused else ""

    constraints = Constraints(target=target(refuses=refusal, fused=True))
    front = frontier(Survey(made_up.head, tuple(layers)), constraints=constraints)
    for bits in BUDGETS:
        [scheme] = {front.at(bits).schemes[name] for name in together}
        assert scheme not in refused


def test_a_family_that_serves_more_layers_is_taken(made_up: Survey) -> None:
    """Where each kind of schemes leaves out some layers, the one that leaves fewer weights."""

    def family(scheme: Scheme) -> str:
        return "a" if scheme.mapping is MappingType.ASYMMETRIC else "s"

    def refusal(scheme: Scheme, shape: tuple[int, int]) -> str:
        return "rows" if shape[0] == (64 if family(scheme) == "a" else 128) else ""

    front = frontier(made_up, constraints=Constraints(target=target(refuses=refusal, family=family)))
    left = {made_up.layer(name).shape[0] for name in front.left}
    sizes = {rows: sum(x.weights for x in made_up.linear if x.shape[0] == rows) for rows in (64, 128)}
    assert left == {min(sizes, key=sizes.__getitem__)}


def test_a_large_group_is_gone_through_once_for_all_its_layers() -> None:
    """A visitor's survey may have 20,000 experts, which share a scheme."""

    class Refusals(dict[str, dict[str, str]]):
        looked = 0

        def __getitem__(self, layer: str) -> dict[str, str]:
            self.looked += 1
            return super().__getitem__(layer)

    refusals = Refusals({str(n): {"ab"[n % 2]: "not here"} for n in range(400)})
    left = _left_by("ab", [tuple(refusals)], refusals)
    assert len(left) == 400 and left["0"].endswith("such as 1") and left["7"].endswith("such as 0")
    assert refusals.looked < 20 * 400


def test_reasons_are_gathered_in_one_pass() -> None:
    """Each layer of a visitor's survey may have a reason of its own."""

    class Left(dict[str, str]):
        def items(self) -> ItemsView[str, str]:
            passes.append(len(self))
            return super().items()

    passes = list[int]()
    assert kept_words(Left(a="too small", b="odd", c="too small")) == [
        "kept as stored: 2 layers (a, c), such as a: too small",
        "kept as stored: b: odd",
    ]
    assert passes == [3]


def test_the_frontier_of_many_layers_can_be_stopped(made_up: Survey) -> None:
    """At each layer, in each of its passes; patterns of layers that are kept at each layer too."""
    for keep, least in ((), 3 * len(made_up.linear)), (("lm_head",), 5 * len(made_up.linear)):
        passed = list[None]()
        with stoppable(lambda: passed.append(None)):  # noqa: B023
            frontier(made_up, constraints=Constraints(keep=keep))
        assert len(passed) >= least


def test_few_patterns_of_layers_are_remembered() -> None:
    """Python keeps 32,768 of fnmatch's, and one of 1,000 letters of many scripts takes 80 kB."""
    before = fnmatch._compile_pattern.cache_info().currsize  # type: ignore[attr-defined]
    for number in range(200):
        assert matches(f"layer.{number}.w", f"*.{number}[.]w")
    assert fnmatch._compile_pattern.cache_info().currsize == before  # type: ignore[attr-defined]
    assert files._compiled.cache_info().currsize <= 64


def test_patterns_are_compared_once(made_up: Survey, monkeypatch: pytest.MonkeyPatch) -> None:
    """With each name: many patterns times many layers take long."""
    compared = list[tuple[str, str]]()
    monkeypatch.setattr(budget, "matches", lambda *pair: compared.append(pair) or matches(*pair))  # type: ignore[func-returns-value]
    front = frontier(made_up, constraints=Constraints(keep=("layers.0.", "q_proj", "embed")))
    assert len(compared) == 3 * len(made_up.layers) == len(set(compared))
    assert set(front.at(4.5).schemes) == {
        x.name
        for x in made_up.linear
        if not any(part in x.name for part in ("layers.0.", "q_proj", "lm_head"))
    }


def test_a_long_frontier_is_drawn_at_the_points_of_a_plot(made_up: Survey) -> None:
    """A visitor's survey may have half a million points: ends and the budgets' own points are among those
    that are drawn, each as it is, and none is further from the line than a column of the axis."""
    front = frontier(made_up)
    bits = np.sort(np.random.default_rng(0).uniform(2.3, 8, 50_000))
    long = dataclasses.replace(front, bits=bits, loss=np.append(40.0 * 4 ** -bits[:-1], 0))
    passed = list[None]()
    with stoppable(lambda: passed.append(None)):
        drawn = budget_figure(made_up, long, front.at(4.5), False, SCHEMES[:1])
    line = drawn.data[0]
    at = np.searchsorted(bits, line.x)
    assert 900 < len(line.x) < 1100 and len(line.customdata) == len(line.x)
    assert (bits[at] == line.x).all() and (long.loss[at] == line.y).all()
    assert np.diff(line.x).max() < 2 * 5.7 / 1000 and {0, len(bits) - 2} <= set(at)
    own = [front.at(4.5).bits, *(one.bits for one in front.uniform if one.scheme == SCHEMES[0])]
    assert {int(np.searchsorted(bits, one, "right")) - 1 for one in own if one > bits[0]} <= set(at)
    assert len(passed) > len(front.uniform), "placing names can be stopped"
    few = budget_figure(made_up, front, front.at(4.5)).data[0]
    assert len(few.x) == (front.loss > 0).sum()


def test_a_survey_that_loses_nothing_has_a_figure(made_up: Survey) -> None:
    """Its words were NumPy's: a reduction of no elements."""
    free = [
        dataclasses.replace(
            one, costs={signal: dict.fromkeys(costs, 0.0) for signal, costs in one.costs.items()}
        )
        for one in made_up.layers
    ]
    front = frontier(dataclasses.replace(made_up, layers=tuple(free)))
    assert budget_figure(made_up, front, front.at(4.5)).layout.yaxis.type == "log"


@pytest.mark.parametrize("kinds", [1, 2, 3])
@pytest.mark.parametrize("schemes", [1, 4])
@pytest.mark.parametrize("count", [1, 96, 300])
def test_a_map_of_layers_is_drawn_whatever_their_number(
    made_up: Survey, count: int, schemes: int, kinds: int
) -> None:
    """Of one kind and one scheme along depth it was so low that plotly refused its buttons' place."""
    first, kept = made_up.linear[0], SCHEMES[:schemes]
    costs = {"weight": {scheme: first.costs["weight"][scheme] for scheme in kept}}
    bits = {scheme: first.bits[scheme] for scheme in kept}
    one = dataclasses.replace(first, bits=bits, costs=costs)
    layers = [dataclasses.replace(one, name=f"{i}", depth=i, kind=f"kind {i % kinds}") for i in range(count)]
    head = dataclasses.replace(made_up.head, schemes=kept, signals=("weight",))
    drawn = heat_figure(Survey(head, tuple(layers)), "weight")
    assert sum(len(trace.z) * len(trace.z[0]) for trace in drawn.data if trace.type == "heatmap") >= count


@pytest.mark.parametrize("depth", [None, 0])
def test_names_of_layers_are_no_markup(made_up: Survey, depth: int | None) -> None:
    """plotly takes some tags: a survey's file put links to other sites into the page."""
    marked = [
        dataclasses.replace(layer, name=f'<a href="//{i}.yz">A</a>', depth=depth, kind=f"<b>{i % 2}</b>")
        for i, layer in enumerate(made_up.layers)
    ]
    survey = Survey(made_up.head, tuple(marked))
    choice = frontier(survey).at(4.5)
    signal = made_up.head.signals[0]
    for drawn in (heat_figure(survey, signal, choice), strip_figure(survey, choice)):
        for trace in drawn.data:
            trace.customdata = trace.meta = None  # what a click tells, and hovering shows
        text = drawn.to_json()
        assert (
            "&lt;" in text.replace("\\u003c", "<")
            and "\\u003ca " not in text
            and "\\u003cb\\u003e" not in text
        )


def test_families_do_not_mix(made_up: Survey) -> None:
    """Of schemes that a checkpoint carries apart only, every budget gets the better kind, as if each were
    asked for by itself."""

    def family(scheme: Scheme) -> str:
        return "asymmetric" if scheme.mapping is MappingType.ASYMMETRIC else ""

    front = frontier(made_up, constraints=Constraints(target=target(family=family)))
    names = made_up.head.schemes
    kinds = [tuple(n for n in names if (family(Scheme.parse(n)) != "") is a) for a in (True, False)]
    alone = [frontier(made_up, constraints=Constraints(schemes=kind)) for kind in kinds]
    for bits in (2.5, 3.7, 4.16, 4.5, 5.0, 6.5, 9.0):
        choice = front.at(bits)
        own = [one.at(bits) for one in alone if one.least <= bits]
        assert len({family(Scheme.parse(name)) for name in choice.schemes.values()}) == 1
        assert choice.loss == min(one.loss for one in own)
        assert choice.loss - choice.gap <= min(one.loss - one.gap for one in own) * (1 + 1e-9)
    assert (np.diff(front.bits) > 0).all() and (np.diff(front.loss) < 0).all()
    assert {point.scheme for point in front.uniform} == set(names)


def test_a_budget_may_be_bytes(made_up: Survey) -> None:
    """Bytes count what is kept as it is."""
    front = frontier(made_up)
    size = front.kept_bytes + 4.5 * front.weights / 8
    assert front.kept_bytes == 128_000 + 2 * 64_000
    assert front.at_bytes(size).schemes == front.at(4.5).schemes


def test_what_cannot_be_chosen_is_said(made_up: Survey) -> None:
    """With the first reasons, where no layer can have codes."""

    def too_small(scheme: Scheme, shape: tuple[int, int]) -> str:
        return "too small"

    for signal, constraints, ask, fact in (
        ("nope", Constraints(), 4.0, "'nope'"),
        ("", Constraints(schemes=("mxfp4",)), 4.0, "'mxfp4'"),
        ("", Constraints(keep=("layers",)), 4.0, "no layer of made/up"),
        ("", Constraints(keep=("block.*",)), 4.0, r"'block\.\*'"),
        (
            "",
            Constraints(schemes=("mxfp6_e2m3", "nvfp4"), target=target(refuses=too_small)),
            4.0,
            "mxfp6_e2m3: too small; nvfp4",
        ),
        ("", Constraints(), 1.0, "2.28"),
        ("", Constraints(), float("nan"), "nan"),
    ):
        with pytest.raises(ValueError, match=fact):
            frontier(made_up, signal, constraints).at(ask)


def test_a_hair_more_that_loses_much_less_is_told(made_up: Survey) -> None:
    """One layer goes from INT4 (4.16 bits) to NVFP4 (4.5 bits). If this fails, a budget just below 4.5 bits
    buys INT4 without a word, or a step is told that is far, that gains little, or that is taken already."""
    fisher = {"int4_group128_asym": 1.0, "nvfp4": 0.6, "int8_row": 0.55}
    one = next(x for x in made_up.linear if x.shape[0] == 128)
    schemes = tuple(fisher)
    layer = dataclasses.replace(one, bits={**one.bits, "nvfp4": 4.50015}, costs={"fisher_diagonal": fisher})
    head = dataclasses.replace(made_up.head, schemes=schemes, signals=("fisher_diagonal",), layers=1)
    front = frontier(Survey(head, (layer,)))

    def told(budget: float, step: float = 1e-4) -> str:
        return slightly_more(front, front.at(budget), budget, step)

    assert told(4.5) == "4.5002 bits would lose 40 % less."
    assert told(4.5, 0.01) == "4.51 bits would lose 40 % less."
    assert [told(budget) for budget in (4.16, 4.4, 4.5002, 8.0)] == [""] * 4
    assert slightly_more(front, front.at(4.5), None) == "", "by the choice's own size the step is far"


def test_a_recipe_says_what_it_was_chosen_by(made_up: Survey) -> None:
    """A predicted loss only from signals that predict one; methods on every layer."""
    choice = frontier(made_up).at(4.5)
    recipe = recipe_of(made_up, choice, method="gptq")
    assert (
        recipe.predicted_loss == choice.loss
        and recipe.signal == "fisher_diagonal"
        and recipe.bits == choice.bits
    )
    assert {str(r) for r in recipe.layers.values()} == {f"{s}+gptq" for s in choice.schemes.values()}
    assert recipe.schemes == made_up.head.schemes and not recipe.fused and not recipe.target
    kept_to = Constraints(schemes=("nvfp4", "int8_row"), fuse=True, target=target(name="compressed-tensors"))
    kept = recipe_of(made_up, frontier(made_up, constraints=kept_to).at(5), constraints=kept_to)
    assert (kept.schemes, kept.fused, kept.target) == (kept_to.schemes, True, "compressed-tensors")
    assert ModelRecipe.from_json(kept.to_json()) == kept
    by_weight = recipe_of(made_up, frontier(made_up, "weight").at(4.5), "weight")
    assert by_weight.predicted_loss is None and by_weight.signal == "weight"


def test_a_verdict_has_the_numbers_of_the_choice(made_up: Survey) -> None:
    """Its size with what is kept, its loss and interval, and what it saves of the best single scheme's."""
    front = frontier(made_up)
    single = min((one for one in front.uniform if one.bits < 4.6), key=lambda one: one.loss)
    choice = front.at(single.bits + 0.05)
    said = what_it_buys(front, choice, (0.0123, 0.0456))
    size = byte_words(choice.bytes + front.kept_bytes)
    losses = (f"{choice.loss:.3g}", "0.0123 to 0.0456", f"{single.loss:.3g} at {single.bits:.2f} bits")
    saved = f"{100 * (1 - choice.loss / single.loss):.0f} %"
    for fact in (f"{choice.bits:.2f} bits", size, *losses, saved):
        assert fact in said
    assert saved not in what_it_buys(front, front.at(single.bits + 0.3))
    assert losses[0] not in what_it_buys(frontier(made_up, "weight"), choice), "that signal predicts no loss"
