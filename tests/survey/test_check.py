"""Recipes carried out: the assembled model, its true loss, what stands beside it, and codes for exports.

If these fail, the number that is called measured is not that of the model which the recipe makes.
"""

from __future__ import annotations

import copy
import weakref
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

from explorer import SCHEMES, SourceError, quantize
from explorer.checkpoints import EXPORTS
from explorer.methods import apply as by_method
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, capture, load_model
from explorer.survey import Constraints, ModelRecipe, Survey, check, frontier, recipe_of
from explorer.survey.apply import codes_of
from explorer.survey.assemble import Assembled, assemble
from explorer.survey.check import ONE_SCHEME, RECIPE, Checked, assemble_recipe, check_recipe, other_texts
from explorer.survey.export import Wanted, request_of
from explorer.survey.loss import hash_of, reference_for
from explorer.survey.sentences import truth
from tests.survey.conftest import HELD_OUT, QUERY, UP
from tests.survey.conftest import SEEN as TEXTS

pytestmark = pytest.mark.usefixtures("one_thread")


@pytest.fixture
def survey(tiny_survey: Survey) -> Survey:
    return tiny_survey


def recipe_for(layers: dict[str, str]) -> ModelRecipe:
    return ModelRecipe("m", None, "", {name: Recipe.parse(text) for name, text in layers.items()})


def test_the_loss_of_next_tokens_is_what_it_says(llama: Model) -> None:
    """KL by torch's own function, perplexity from the cross entropy, and zero for the model itself."""
    reference = reference_for(llama, [*HELD_OUT, "  "])
    same = reference.measure(llama.network)
    assert same.value == pytest.approx(0, abs=1e-6) and same.scores["same_top"] == 1
    assert same.scores["perplexity"] == pytest.approx(same.scores["perplexity_original"])
    other = copy.deepcopy(llama.network)
    with torch.no_grad():
        other.get_submodule(UP).weight.mul_(1.5)
    found = reference.measure(other)
    divergence, surprise, tokens, successors = 0.0, 0.0, 0, 0
    for text in HELD_OUT:
        ids = llama.tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            p, q = (net(input_ids=ids).logits[0].double().log_softmax(-1) for net in (llama.network, other))
        divergence += float(torch.nn.functional.kl_div(q, p, reduction="sum", log_target=True))
        surprise += float(torch.nn.functional.nll_loss(q[:-1], ids[0, 1:], reduction="sum"))
        tokens, successors = tokens + ids.shape[1], successors + ids.shape[1] - 1
    assert found.value == pytest.approx(divergence / tokens, rel=1e-4)
    assert found.scores["perplexity"] == pytest.approx(torch.tensor(surprise / successors).exp(), rel=1e-5)
    assert found.low is not None and found.high is not None and found.low < found.value < found.high
    assert found.tokens == tokens and found.texts == 3


def test_the_loss_of_embeddings_is_one_minus_cosine(tiny_bert: Path) -> None:
    bert = load_model(str(tiny_bert), head=True)
    reference = reference_for(bert, HELD_OUT)
    other = copy.deepcopy(bert.network)
    with torch.no_grad():
        other.encoder.layer[0].output.dense.weight.mul_(1.2)
    found = reference.measure(other)
    assert found.kind == "embedding" and found.value == pytest.approx(1 - found.scores["cosine"], abs=1e-6)
    assert reference.measure(bert.network).value == pytest.approx(0, abs=1e-9)


def test_texts_without_two_tokens_are_refused(llama: Model) -> None:
    for texts in ([" "], ["cat"]):
        with pytest.raises(SourceError):
            reference_for(llama, texts)


def test_an_assembled_model_is_the_recipe(llama: Model) -> None:
    """Rounded layers hold the restored weight, others stay; methods see the original's inputs; bits count."""
    recipe = recipe_for({UP: "nvfp4", QUERY: "int4_group64+gptq"})
    before = copy.deepcopy(llama.network.state_dict())
    made = assemble(llama, recipe.layers, TEXTS, 64)
    weight = llama.network.get_submodule(UP).weight
    assert torch.equal(made.network.get_submodule(UP).weight, quantize(weight, SCHEMES["nvfp4"]).dequantize())
    (seen,) = capture(llama, TEXTS, [QUERY], 64)
    want = by_method("gptq", seen.weight, SCHEMES["int4_group64"], seen.activations)
    assert torch.equal(made.layers[QUERY].q.packed, want.q.packed)
    sizes = [weight.numel(), seen.weight.numel()]
    parts = [quantize(weight, SCHEMES["nvfp4"]).bits_per_element.total, want.bits_per_weight]
    assert made.bits == pytest.approx(sum(s * b for s, b in zip(sizes, parts, strict=True)) / sum(sizes))
    after = llama.network.state_dict()
    assert all(torch.equal(after[name], before[name]) for name in before), "the model itself was changed"
    other = "model.layers.1.mlp.up_proj"
    assert torch.equal(made.network.get_submodule(other).weight, llama.network.get_submodule(other).weight)
    with pytest.raises(ValueError, match="'nope'"):
        assemble(llama, recipe_for({"nope": "nvfp4"}).layers, TEXTS)


def test_sequential_methods_see_the_layers_before(llama: Model) -> None:
    """A layer after one of two bits gets other inputs, and so other codes, than from the original."""
    both = {UP: "int2_group64_asym", QUERY: "int3_group64_asym+gptq_sequential"}
    after = assemble(llama, recipe_for(both).layers, TEXTS, 64).layers[QUERY]
    alone = assemble(llama, recipe_for({QUERY: both[QUERY]}).layers, TEXTS, 64).layers[QUERY]
    assert not torch.equal(after.q.packed, alone.q.packed)


@pytest.mark.parametrize("scheme", ["nvfp4", "int8_tensor", "int4_group64"])
def test_fused_layers_share_the_scale_of_the_tensor(llama: Model, tiny_llama: Path, scheme: str) -> None:
    """Engines keep one such scale for query, key and value: with three of them two of the three are restored
    wrongly. Codes for a checkpoint and the network that is checked are the same, those of the matrix as
    one."""
    names = [f"model.layers.0.self_attn.{part}_proj" for part in "qkv"]
    recipe = replace(recipe_for(dict.fromkeys([*names, UP], scheme)), fused=True)
    codes = codes_of(recipe, lambda: llama, folder=tiny_llama)
    weights = {name: llama.network.get_submodule(name).weight.detach() for name in (*names, UP)}
    found = {name: codes(name, weights[name], recipe.layers[name]) for name in weights}
    whole = quantize(torch.cat([weights[name] for name in names]), SCHEMES[scheme]).dequantize()
    assert torch.equal(torch.cat([found[name].dequantize() for name in names]), whole)
    assert torch.equal(found[UP].packed, quantize(weights[UP], SCHEMES[scheme]).packed)
    made = assemble(llama, recipe.layers, TEXTS, fused=True).network
    for name, q in found.items():
        assert torch.equal(made.get_submodule(name).weight, q.dequantize())
    if scheme == "nvfp4":
        assert len({float(found[name].scales.tensor_scale) for name in names}) == 1
        alone = assemble(llama, recipe.layers, TEXTS).network.get_submodule(names[1]).weight
        assert not torch.equal(alone, found[names[1]].dequantize())


def test_a_check_stands_beside_what_the_recipe_could_be(llama: Model, survey: Survey) -> None:
    """Schemes that it was not allowed prove nothing about it. Bits are the recipe's, without a folder too."""
    survey = replace(survey, head=replace(survey.head, model="nowhere"))
    kept_to = Constraints(("int4_group64", "int8_row"), EXPORTS["compressed-tensors"], fuse=True)
    recipe = recipe_of(survey, frontier(survey, "weight", kept_to).at(6), "weight", constraints=kept_to)
    check = check_recipe(recipe, llama, HELD_OUT, survey)
    assert check.rows[0].bits == pytest.approx(recipe.bits, rel=1e-9)
    single = [row.name for row in check.rows if row.what == ONE_SCHEME]
    assert single == ["int4_group64"] and check.single and check.single.name == "int4_group64"
    assert "INT4 group 64 (" in truth(check) and "compressed-tensors" in truth(check) and not check.uniform
    one = recipe_of(survey, frontier(survey, "weight", Constraints(schemes=("nvfp4",))).at(5), "weight")
    assert check_recipe(one, llama, HELD_OUT).uniform, "beside the second best it would seem to save"


def test_a_check_has_one_network_beside_the_original(llama: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one before stayed while the next was made."""
    made: list[weakref.ref[torch.nn.Module]] = []

    def assembled(*args: Any, **options: Any) -> Assembled:
        assert all(one() is None for one in made)
        found = assemble_recipe(*args, **options)
        made.append(weakref.ref(found.network))
        return found

    monkeypatch.setattr(check, "assemble_recipe", assembled)
    check_recipe(recipe_for({QUERY: "int4_group64", UP: "int8_row"}), llama, HELD_OUT)
    assert len(made) > 2


def test_a_check_stands_beside_what_it_must(llama: Model, survey: Survey) -> None:
    """The recipe first, with its prediction; single schemes of no more bits."""
    recipe = recipe_of(survey, frontier(survey).at(4.6))
    steps: list[tuple[int, int]] = []
    check = check_recipe(recipe, llama, HELD_OUT, survey, progress=lambda *done: steps.append(done))
    kinds = [row.what for row in check.rows]
    assert kinds == [RECIPE, *[ONE_SCHEME] * 3] and steps[-1] == (4, 4)
    first, *single = check.rows
    assert first.predicted == recipe.predicted_loss and first.bits == pytest.approx(recipe.bits, rel=1e-6)
    assert all(row.bits <= 4.62 and row.predicted for row in single)
    assert single[0].name == "nvfp4" and 0.2 < first.loss.value / (first.predicted or 0) < 5
    made = assemble(llama, recipe.layers, TEXTS).network
    assert first.loss.value == reference_for(llama, HELD_OUT).measure(made).value
    assert check.better == pytest.approx(1 - first.loss.value / min(row.loss.value for row in single))


def test_a_verdict_names_what_contradicts_it(llama: Model, survey: Survey) -> None:
    """Less KL at more perplexity is no plain gain: whoever reads the verdict alone should know."""
    check = check_recipe(recipe_of(survey, frontier(survey).at(4.6)), llama, HELD_OUT, survey)
    first, best = check.rows[0], check.single
    assert best is not None

    def at(row: Checked, value: float, perplexity: float) -> Checked:
        scores = {**row.loss.scores, "perplexity": perplexity}
        return replace(row, loss=replace(row.loss, value=value, scores=scores))

    for mine, said in ((9.0, True), (7.0, False)):
        rows = (at(first, 0.1, mine), *(at(row, 0.2, 8.0) for row in check.singles))
        words = truth(replace(check, rows=rows))
        assert "50 % less" in words and (": 9 by the recipe, 8 by" in words) == said


def test_bits_of_a_check_are_those_of_the_file(llama: Model, survey: Survey, tiny_llama: Path) -> None:
    """Float16 scales are float32 in the file of a model in float32: a single scheme within the budget by its
    own count is not within it there."""
    kept_to = Constraints(("nvfp4", "int8_row"), EXPORTS["compressed-tensors"])
    recipe = recipe_of(survey, frontier(survey, "", kept_to).at(5.5), constraints=kept_to)
    check = check_recipe(recipe, llama, HELD_OUT, survey)
    assert check.rows[0].bits == pytest.approx(recipe.bits) and check.target == "compressed-tensors"
    (four,) = [row for row in check.rows if row.name == "int4_group64"]
    assert four.bits == pytest.approx(4.53, abs=0.02), "4 bits, a scale in 32 for 64 weights, two of shape"
    assert len(check.singles) == 2, "NVFP4, and the usual one of the target"


def test_a_check_needs_no_survey(llama: Model, survey: Survey, monkeypatch: pytest.MonkeyPatch) -> None:
    """Single schemes are then the largest that are no larger; without texts, built-in ones are run. A survey
    of other weights is refused."""
    monkeypatch.setattr("explorer.survey.check.held_out_texts", lambda causal: HELD_OUT)
    recipe = recipe_for({UP: "int8_row", QUERY: "nvfp4"})
    check = check_recipe(recipe, llama, HELD_OUT)
    assert [row.what for row in check.rows] == [RECIPE, *[ONE_SCHEME] * 3]
    assert all(row.predicted is None for row in check.rows) and not check.built_in_texts
    assert check_recipe(recipe_for({UP: "nvfp4"}), llama).built_in_texts
    with pytest.raises(ValueError, match="other weights"):
        check_recipe(recipe, llama, HELD_OUT, survey)


def test_exports_get_the_codes_of_the_method(llama: Model, tiny_llama: Path) -> None:
    """GPTQ's codes where the recipe says so, else rounded to nearest, without loading a model for those."""
    weight = llama.network.get_submodule(UP).weight.detach()
    plain = recipe_for({UP: "nvfp4"})
    q = codes_of(plain, lambda: pytest.fail("the model was loaded"))(UP, weight, plain.layers[UP])
    assert torch.equal(q.packed, quantize(weight, SCHEMES["nvfp4"]).packed)
    recipe = recipe_for({UP: "int4_group64+gptq"})
    q = codes_of(recipe, lambda: llama, TEXTS)(UP, weight, recipe.layers[UP])
    assert torch.equal(q.packed, assemble(llama, recipe.layers, TEXTS).layers[UP].q.packed)
    seen = replace(recipe, texts_sha256=hash_of(TEXTS))
    assert not other_texts(seen, TEXTS, True) and not other_texts(replace(plain, texts_sha256="x"), (), True)
    assert "built-in" in other_texts(seen, (), True) and "given" in other_texts(seen, HELD_OUT, True)
    for wrong, out in (("gptq", "new"), ("compressed-tensors", "/proc/new")):  # before the model is loaded
        wanted = Wanted(recipe, wrong, Path(out), str(tiny_llama), lambda: pytest.fail("loaded"))
        with pytest.raises((ValueError, OSError), match=r"verified here|cannot be written|cannot carry"):
            request_of(replace(wanted, verified=True))
    for method in ("smoothquant+rotation", "hqq"):
        with pytest.raises(ValueError, match="more than codes"):
            codes_of(recipe_for({UP: f"int4_group64_asym+{method}"}), lambda: llama, TEXTS)
