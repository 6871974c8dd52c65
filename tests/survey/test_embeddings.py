"""Embeddings and heads as layers of a survey: what they cost by each signal, and the file that holds them.

If these fail, a third of a small model's bytes is left out of the budget, or its loss is of another table.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from explorer import SCHEMES, quantize
from explorer.checkpoints import EXPORTS
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, load_model
from explorer.sources import open_source
from explorer.survey import Role, Survey, frontier
from explorer.survey.assemble import assemble
from explorer.survey.budget import Constraints, recipe_of
from explorer.survey.carried import target_of
from explorer.survey.evidence import gather, weights_of
from explorer.survey.loss import each_objective, reference_for
from explorer.survey.run import SurveyPlan, survey_model
from explorer.survey.sentences import kept_words
from tests.survey.conftest import TEXTS, random_llama
from tests.survey.conftest import target as carrying

pytestmark = pytest.mark.usefixtures("one_thread")
TABLE, BERTS = "model.embed_tokens", "embeddings.word_embeddings"
COARSE = "int3_group64_asym"


@pytest.fixture(scope="module")
def tied(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a random Llama of one block whose head shares the embeddings."""
    return random_llama(
        tmp_path_factory.mktemp("models") / "tied-llama",
        seed=3,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        tie_word_embeddings=True,
    )


@pytest.fixture(scope="module")
def with_a_head(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tied`` whose file has the table as a head, too, as some do."""
    return _with_head(tied, tmp_path_factory.mktemp("models") / "with-a-head", torch.clone)


@pytest.fixture(scope="module")
def with_another_head(tied: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``tied`` whose file has a head of other values: transformers does not tie it."""
    return _with_head(tied, tmp_path_factory.mktemp("models") / "with-another-head", lambda table: -table)


def _with_head(tied: Path, folder: Path, head_of: Callable[[Tensor], Tensor]) -> Path:
    folder.mkdir()
    for path in tied.iterdir():
        (folder / path.name).write_bytes(path.read_bytes())
    tensors = load_file(tied / "model.safetensors")
    extra = {"lm_head.weight": head_of(tensors[f"{TABLE}.weight"])}
    save_file({**tensors, **extra}, folder / "model.safetensors", {"format": "pt"})
    return folder


ROLES = {
    "tiny_llama": {TABLE: Role.EMBEDDING, "lm_head": Role.HEAD},
    "tied": {TABLE: Role.EMBEDDING},
    "with_a_head": {TABLE: Role.EMBEDDING},
    "with_another_head": {TABLE: Role.EMBEDDING, "lm_head": Role.HEAD},
    "tiny_bert": {
        BERTS: Role.EMBEDDING,
        "embeddings.position_embeddings": Role.OTHER_EMBEDDING,
        "embeddings.token_type_embeddings": Role.OTHER_EMBEDDING,
    },
}
"""Of each model all layers that are not linear."""


@pytest.mark.parametrize("model", ROLES)
def test_one_table_is_that_of_the_tokens(model: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    """Positions and kinds of tokens are listed; a head that the embeddings stand for is no second layer, and
    one of other values is."""
    folder = request.getfixturevalue(model)
    survey = survey_model(SurveyPlan(str(folder), None, (COARSE,), ("weight",)), tmp_path / "s.jsonl")
    assert {x.name: x.role for x in survey.layers if x.role is not Role.LINEAR} == ROLES[model]
    assert {x.name for x in survey.layers if not x.bits} == {
        name for name, role in ROLES[model].items() if role is Role.OTHER_EMBEDDING
    }
    without = replace(SurveyPlan(str(folder), None, (COARSE,), ("weight",)), embeddings=False)
    listed = survey_model(without, tmp_path / "listed.jsonl")
    assert not any(x.bits for x in listed.layers if x.is_table)
    table = next(x for x in survey.layers if x.is_table)
    assert listed.head.kept_bytes - survey.head.kept_bytes == table.stored_bytes
    with pytest.raises(ValueError, match="whether embeddings are surveyed"):
        survey_model(without, tmp_path / "s.jsonl")


def squared_gradients(model: Model, parameter: str) -> Tensor:
    """float64 [N, K]: the mean over samples of the squared gradient of a parameter, the plain way."""
    weight, total, samples = model.network.get_parameter(parameter), 0.0, 0
    for one in each_objective(reference_for(model, TEXTS)):
        model.network.zero_grad(set_to_none=True)
        one.scalar.backward(retain_graph=one.again)
        assert weight.grad is not None
        total, samples = total + weight.grad.double().square(), samples + one.samples
    model.network.zero_grad(set_to_none=True)
    return torch.as_tensor(total) / samples


@pytest.mark.parametrize("model", ["tiny_llama", "tiny_bert", "tied"])
def test_the_diagonal_is_that_of_the_rows_that_texts_look_up(
    model: str, request: pytest.FixtureRequest
) -> None:
    """Other rows cost nothing, except in a tied table, where every row has the head's gradient too."""
    loaded = load_model(str(request.getfixturevalue(model)), head=True)
    name = BERTS if model == "tiny_bert" else TABLE
    held = weights_of(loaded.network, {name: None})
    assert held[name].table and not held[name].module
    found = gather(loaded, reference_for(loaded, TEXTS), held)[name]
    exact = squared_gradients(loaded, held[name].parameter)
    assert found.fisher == pytest.approx(float(exact.mean()), rel=1e-5)
    torch.testing.assert_close(found.fisher_diagonal.double(), exact, rtol=1e-4, atol=1e-12)
    assert bool(exact.any(1).all()) == (model == "tied")
    assert not loaded.network.get_submodule(held[name].parameter.removesuffix(".weight")).sparse


@pytest.mark.parametrize("model", ["tiny_llama", "tied"])
def test_a_tied_table_is_the_head_too(model: str, request: pytest.FixtureRequest) -> None:
    """Its codes are in both places."""
    folder = request.getfixturevalue(model)
    weight = open_source(str(folder)).matrix(f"{TABLE}.weight").values.float()
    made = assemble(load_model(str(folder), head=True), {TABLE: Recipe(SCHEMES[COARSE])}, TEXTS).network
    assert made.get_parameter(f"{TABLE}.weight").equal(quantize(weight, SCHEMES[COARSE]).dequantize())
    assert (made.lm_head.weight is made.model.embed_tokens.weight) == (model == "tied")


def test_a_method_leaves_the_table_to_rounding(tiny_llama: Path, tmp_path: Path) -> None:
    """A lookup has no inputs that codes could be chosen by; one that asks for it anyway is told so."""
    plan = SurveyPlan(str(tiny_llama), None, (COARSE, "int8_row"), ("weight",))
    survey = survey_model(plan, tmp_path / "s.jsonl")
    constraints = Constraints(target=carrying(tables=True))
    choice = frontier(survey, "", constraints).at(8.5)
    assert {TABLE, "lm_head"} < set(choice.schemes)
    recipe = recipe_of(survey, choice, method="gptq", constraints=constraints)
    assert recipe.layers[TABLE].method == "" and recipe.layers["lm_head"].method == "gptq"
    with pytest.raises(ValueError, match="its rows are looked up"):
        assemble(load_model(str(tiny_llama), head=True), {TABLE: Recipe(SCHEMES[COARSE], "gptq")}, TEXTS)


@pytest.fixture(scope="module")
def by_weight(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """A survey with schemes of which every target carries some."""
    schemes = ("int4_group32", "int4_group64", "int4_group64_asym", "nf4_block64", "q8_0", "int8_row")
    out = tmp_path_factory.mktemp("surveys") / "s.jsonl"
    return survey_model(SurveyPlan(str(tiny_llama), None, schemes, ("weight",)), out)


@pytest.mark.parametrize("target", ["", *EXPORTS])
def test_a_recipe_says_what_becomes_of_the_table(target: str, by_weight: Survey) -> None:
    """Chosen where the target holds its codes, and kept with the reason elsewhere."""
    holds = bool(target) and EXPORTS[target].tables
    front = frontier(by_weight, "", Constraints(target=target_of(target)))
    assert (TABLE in front.at(front.most).schemes) == holds
    assert (TABLE in front.left) == (bool(target) and not holds)
    kept = [line for line in kept_words(front.left) if TABLE in line]
    assert all(line.endswith("has codes of linear layers alone") for line in kept)
    assert front.weights == sum(x.weights for x in by_weight.linear if holds or x.role is Role.LINEAR)
    asked = Constraints(target=target_of(target), keep=(TABLE,))
    assert TABLE not in frontier(by_weight, "", asked).left
