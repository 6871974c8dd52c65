"""Methods inside a recipe: what one leaves of a layer's loss, the choice by layer, and its codes in files.

If these fail, a recipe takes a method where rounding loses less, or its checkpoint has other codes than the
survey predicted and the check ran.
"""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import nn

from explorer.methods import METHODS, apply, has_factor
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, capture
from explorer.models.files import Role
from explorer.schemes import SCHEMES, Scheme
from explorer.sources.base import SourceError
from explorer.survey import Constraints, Survey, frontier, load_survey, recipe_of
from explorer.survey import run as running
from explorer.survey.apply import codes_of
from explorer.survey.check import (
    ONE_SCHEME,
    RECIPE,
    assemble_recipe,
    check_recipe,
)
from explorer.survey.methods import (
    FEW_TOKENS,
    FEWEST,
    TOKENS,
    HeldOutRows,
    MethodEvidence,
    check_method,
    rows_of,
    shares_of,
    tokens_for,
)
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import line_of
from explorer.survey.run import SurveyPlan, survey_model
from tests.survey.conftest import TEXTS as SENTENCES

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("int3_group64_asym", "nvfp4", "int8_tensor")
TEXTS = tuple(f"{a} {b}" for a in SENTENCES for b in SENTENCES)
UP, QUERY = "model.layers.0.mlp.up_proj", "model.layers.1.self_attn.q_proj"
VALUE = "model.layers.1.self_attn.v_proj"
NVFP4 = Recipe(Scheme.parse("nvfp4"))


def test_the_loss_of_an_error_is_that_of_its_definition() -> None:
    """½ Σ s_o ΔW_o H ΔW_oᵀ by hand: H = ½ (4 · [1, 0]ᵀ[1, 0] + [1, 2]ᵀ[1, 2]) = [[2.5, 1], [1, 2]], of
    which the rows [1, 1] and [0, 2] make 6.5 and 8, weighed ¾ and ¼."""
    inputs, held_out = torch.zeros(1, 2), torch.tensor([[1.0, 0.0], [1.0, 2.0]])
    evidence = MethodEvidence(inputs, held_out, torch.tensor([4.0, 1.0]), torch.tensor([3.0, 1.0]))
    assert evidence.loss(torch.tensor([[1.0, 1.0], [0.0, 2.0]])) == 0.5 * (0.75 * 6.5 + 0.25 * 8)


def test_rows_and_gradients_of_a_layer_are_gathered() -> None:
    """Behind the rows that methods see every second one, with the squared gradients of its outputs, of all
    backward passes together; a share from the method's own rows would flatter it."""
    linear, hook = nn.Linear(3, 2, bias=False), HeldOutRows(2, 2)
    linear.register_forward_hook(hook)
    first, second = torch.arange(9.0).view(1, 3, 3), 10 + torch.arange(12.0).view(4, 3)
    slopes = torch.tensor([1.0, -2.0])
    (linear(first) * slopes).sum().backward()
    of_second = (linear(second) * torch.arange(4.0)[:, None] * slopes).sum()
    of_second.backward(retain_graph=True)
    of_second.backward()
    found = MethodEvidence(first[0], torch.cat(hook.inputs), torch.cat(hook.tokens), hook.outputs)
    # Rows 2, 4 and 6 of the seven: the last of the first text, and the second and fourth of the other.
    assert torch.equal(found.held_out, torch.stack([first[0, 2], second[1], second[3]]))
    assert found.tokens.tolist() == [5.0, 2 * 5.0, 2 * 9 * 5.0]
    assert found.outputs.tolist() == [1 + 2 + 18.0, 4 * (1 + 2 + 18.0)]
    assert hook.evidence(first[0]) is None and FEWEST > 3, "three rows tell no share"


def test_methods_see_the_first_tokens() -> None:
    """Of few texts half, so that others are left to judge by; as many as fit into the room for the inputs of
    all layers, which would take more memory than the weights of a large model."""
    seen = {0: (0, 1), 100: (50, 1), 1983: (512, 1), 9000: (512, 8)}
    assert {tokens: rows_of(tokens, 512) for tokens in seen} == seen
    room = {0: TOKENS, 32: TOKENS, 64: 2048, 1000: FEW_TOKENS}
    assert {layers: tokens_for([4096] * layers) for layers in room} == room


def test_methods_of_codes_alone_are_surveyed() -> None:
    """Others are refused: their factors are in norms that layers share, or they store what no checkpoint has
    a place for. All of them change a predicted loss alone."""
    for name in (*METHODS, "rotation+gptq", "gptq+lqer", "gptq+bias_correction"):
        parts = [METHODS[part] for part in name.split("+")]
        if not any(part.transform or part.residue for part in parts):
            assert check_method(f" {name.upper()} ") == ("" if name == "rtn" else name)
            continue
        fact = f"--method {name}" if has_factor(name) else "more than the codes"
        with pytest.raises(ValueError, match=re.escape(fact)):
            SurveyPlan("m", methods=("gptq", name))
    with pytest.raises(ValueError, match="predicted loss"):
        SurveyPlan("m", signals=("weight",), methods=("gptq",))


@pytest.fixture(scope="module")
def survey(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    out = tmp_path_factory.mktemp("surveys") / "s.jsonl"
    plan = SurveyPlan(str(tiny_llama), schemes=NAMES, texts=TEXTS, methods=("gptq", "rtn"))
    return survey_model(plan, out)


def test_a_survey_has_a_share_of_each_method(survey: Survey, tiny_llama: Path, tmp_path: Path) -> None:
    """Of each scheme that it serves, below rounding by GPTQ in the mean; none of the table of embeddings. The
    costs of rounding are those of a survey without methods."""
    assert survey.head.methods == ("gptq",)
    plain = survey_model(SurveyPlan(str(tiny_llama), schemes=NAMES, texts=TEXTS), tmp_path / "plain.jsonl")
    for layer in survey.linear:
        assert layer.costs == plain.layer(layer.name).costs and not plain.layer(layer.name).methods
        if layer.is_table:
            assert not layer.methods
            continue
        assert set(layer.methods) == {"gptq"}
        for shares in layer.methods.values():
            assert set(shares) == set(NAMES) - {"int8_tensor"}, "GPTQ rounds rows or groups along them"
            assert all(0 < share < 1.5 for share in shares.values())
    mean = sum(x.methods["gptq"]["int3_group64_asym"] for x in survey.linear if x.methods)
    assert mean / sum(bool(x.methods) for x in survey.linear) < 0.9


def test_the_share_of_rounding_is_one() -> None:
    """So that the cost with a method that rounds to nearest is Fisher's value; exactly."""
    draw = torch.Generator().manual_seed(0)
    x, w = torch.randn(80, 64, generator=draw), torch.randn(8, 64, generator=draw)
    evidence = MethodEvidence(x[:40], x[40:], torch.rand(40, generator=draw), torch.rand(8, generator=draw))
    schemes = {name: SCHEMES[name] for name in NAMES}
    assert shares_of(w, schemes, evidence, ("rtn",)) == {"rtn": dict.fromkeys(NAMES, 1.0)}
    left = shares_of(w, schemes, evidence, ("gptq",))["gptq"]
    assert set(left) == set(NAMES) - {"int8_tensor"}
    rounded, codes = (apply(m, w, schemes[NAMES[0]], evidence.inputs).q.dequantize() for m in ("rtn", "gptq"))
    assert left[NAMES[0]] == evidence.loss(w - codes) / evidence.loss(w - rounded)


@pytest.fixture
def by_hand(made_up: Survey) -> Survey:
    """``made_up``, with GPTQ at half of every layer's loss by INT3; of one layer a tenth by act-order; of
    another more than rounding; and, as if it served it, a tenth of NVFP4."""
    shares = {
        UP: {"gptq": {"int3_group64_asym": 0.5}, "gptq_order": {"int3_group64_asym": 0.1}},
        QUERY: {"gptq": {"int3_group64_asym": 1.25}},
    }
    usual = {"gptq": {"int3_group64_asym": 0.5, "nvfp4": 0.1}}
    layers = (replace(x, methods=shares.get(x.name, usual) if x.bits else {}) for x in made_up.layers)
    return Survey(replace(made_up.head, methods=("gptq", "gptq_order")), tuple(layers))


def test_a_recipe_takes_the_method_that_loses_least(by_hand: Survey, made_up: Survey) -> None:
    """By layer and scheme; its loss is the sum of the costs with them, and lower than by rounding. The
    recipe's file has them."""
    front, rounded = frontier(by_hand), frontier(made_up)
    alone = Constraints(schemes=("int3_group64_asym",))
    choice = frontier(by_hand, constraints=alone).at(4.0)
    assert set(choice.methods.values()) == {"gptq", "gptq_order"}
    assert choice.methods[UP] == "gptq_order" and QUERY not in choice.methods
    costs = {
        name: made_up.layer(name).costs["fisher_diagonal"]["int3_group64_asym"] for name in choice.schemes
    }
    share = {UP: 0.1, QUERY: 1.0}
    assert choice.loss == pytest.approx(sum(cost * share.get(name, 0.5) for name, cost in costs.items()))
    recipe = ModelRecipe.from_json(recipe_of(by_hand, choice, constraints=alone).to_json())
    assert str(recipe.layers[UP]) == "int3_group64_asym+gptq_order" and not recipe.layers[QUERY].method
    for bits in (2.5, 3.3, 4.5):
        assert front.at(bits).loss < rounded.at(bits).loss


def test_without_methods_the_recipe_is_that_of_rounding(by_hand: Survey, made_up: Survey) -> None:
    """Where they are not allowed, and by a signal that predicts no loss, of which they leave no share."""
    for signal, methods, bits in (
        ("fisher_diagonal", (), 2.5),
        ("fisher_diagonal", (), 3.7),
        ("weight", None, 5.0),
    ):
        choice = frontier(by_hand, signal, Constraints(methods=methods)).at(bits)
        assert choice == frontier(made_up, signal).at(bits) and not choice.methods


def test_methods_that_are_asked_for(by_hand: Survey) -> None:
    """Only these; of what the survey has not it says so. One method for all layers overrides the choice."""
    only = Constraints(schemes=("int3_group64_asym",), methods=("gptq",))
    choice = frontier(by_hand, constraints=only).at(4.0)
    assert set(choice.methods.values()) == {"gptq"} and choice.methods[UP] == "gptq"
    forced = recipe_of(by_hand, choice, method="autoround")
    assert {one.method for one in forced.layers.values()} == {"autoround"}
    with pytest.raises(ValueError, match=r"'awq'.*gptq, gptq_order"):
        frontier(by_hand, constraints=Constraints(methods=("awq",)))


def test_layers_that_share_a_tensor_scale_are_rounded(by_hand: Survey) -> None:
    """In a fused recipe query, key and value have one tensor scale of NVFP4; a method finds one by layer."""
    fused = frontier(by_hand, constraints=Constraints(schemes=("nvfp4",), fuse=True)).at(5.0)
    assert VALUE not in fused.methods and fused.methods["model.layers.1.mlp.down_proj"] == "gptq"
    assert VALUE in frontier(by_hand, constraints=Constraints(schemes=("nvfp4",))).at(5.0).methods


def test_files_of_earlier_versions_load(by_hand: Survey, tmp_path: Path) -> None:
    """They know no methods. A file that names one which its first line does not, or no number, is refused."""
    old = line_of(by_hand.head).replace(',"methods":["gptq","gptq_order"]', "")
    lines = [line_of(replace(x, methods={})).replace(',"methods":{}', "") for x in by_hand.layers]
    assert not any("methods" in line for line in (old, *lines))
    path = tmp_path / "s.jsonl"
    path.write_text("".join([old, *lines]))
    assert load_survey(path).head.methods == () and load_survey(path).complete
    path.write_text("".join([line_of(by_hand.head), *map(line_of, by_hand.layers)]))
    assert [x.methods for x in load_survey(path).layers] == [x.methods for x in by_hand.layers]
    for wrong, words in (({"awq": {"nvfp4": 0.5}}, "method"), ({"gptq": {"nvfp4": -0.5}}, "from 0")):
        first = next(x for x in by_hand.layers if x.bits)
        rows = [replace(x, methods=wrong) if x is first else x for x in by_hand.layers]
        path.write_text("".join([line_of(by_hand.head), *map(line_of, rows)]))
        with pytest.raises(ValueError, match=words):
            load_survey(path)


def test_apply_writes_the_codes_of_the_method(survey: Survey, llama: Model, tiny_llama: Path) -> None:
    """Each layer's own, equal to those of the method called with the layer's inputs on the same texts."""
    choice = frontier(survey, constraints=Constraints(schemes=NAMES[:1])).at(4.0)
    assert choice.methods
    recipe = recipe_of(survey, choice)
    codes = codes_of(recipe, lambda: llama, TEXTS, folder=tiny_llama)
    assert set(codes.chosen) == set(choice.methods)
    captured = capture(llama, TEXTS, sorted(choice.methods))
    for layer in captured:
        one = recipe.layers[layer.name]
        want = apply(choice.methods[layer.name], layer.weight, one.scheme, layer.activations).q
        assert torch.equal(codes(layer.name, layer.weight, one).packed, want.packed)


def test_a_check_runs_the_methods(survey: Survey, llama: Model) -> None:
    """The recipe has a prediction and a loss; single schemes beside it are by the recipe's methods too, where
    they serve them, so that none of the survey's is refused."""
    choice = frontier(survey).at(5.0)
    assert choice.methods
    found = check_recipe(recipe_of(survey, choice), llama, SENTENCES, survey, TEXTS)
    assert found.rows[0].predicted == choice.loss and found.rows[0].loss.value > 0
    singles = {row.name: row for row in found.rows if row.what == ONE_SCHEME}
    assert singles and not found.refused
    front = {u.scheme: u.loss for u in frontier(survey).uniform}
    assert {name: row.predicted for name, row in singles.items()} == pytest.approx(
        {name: front[name] for name in singles}
    )


def test_a_single_scheme_that_the_method_refuses_is_left_out(survey: Survey, llama: Model) -> None:
    """INT8 with one scale of the tensor by GPTQ: else nothing is checked."""
    layers = {x.name: Recipe(Scheme.parse("nvfp4"), "gptq") for x in survey.linear if x.role is Role.LINEAR}
    head = survey.head
    recipe = ModelRecipe(head.model, None, head.weights_sha256, layers, bits=9.0, signal=head.default)
    found = check_recipe(recipe, llama, SENTENCES, survey, TEXTS)
    assert found.rows[0].what == RECIPE and "GPTQ quantizes rows" in found.refused["int8_tensor"]


def test_the_rows_that_methods_keep_have_to_fit(
    survey: Survey, tiny_llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a network that fits alone: else main memory runs out while the model is run."""
    room = (12 * survey.head.parameters + 1000) / 0.7
    monkeypatch.setattr(running, "work_device", lambda: torch.device("cpu"))
    monkeypatch.setattr(running, "memory_bytes", lambda: room)
    plan = SurveyPlan(str(tiny_llama), None, NAMES[:1], texts=TEXTS)
    assert survey_model(plan, tmp_path / "a.jsonl").head.signals[-1] == "fisher_diagonal"
    with pytest.raises(SourceError, match="for methods"):
        survey_model(replace(plan, methods=("gptq",)), tmp_path / "b.jsonl")


def test_apply_writes_what_a_check_runs(survey: Survey, llama: Model, tiny_llama: Path) -> None:
    """Of a fused recipe, where a sequential method sees rounded layers that share a scale of the tensor."""
    by = {True: Recipe(Scheme.parse(NAMES[0]), "gptq_sequential"), False: Recipe(Scheme.parse("nvfp4"))}
    layers = {x.name: by["down_proj" in x.name] for x in survey.linear if x.role is Role.LINEAR}
    recipe = ModelRecipe(survey.head.model, None, survey.head.weights_sha256, layers, fused=True)
    ran = assemble_recipe(recipe, llama, TEXTS, layers, {}).layers
    written = codes_of(recipe, lambda: llama, TEXTS, folder=tiny_llama, fused=True).chosen
    assert written and all(torch.equal(q.packed, ran[name].q.packed) for name, q in written.items())
