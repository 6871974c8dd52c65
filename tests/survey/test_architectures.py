"""Survey, recipe and checkpoint of today's architectures: the network says what a linear layer is."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers

from explorer import SCHEMES as SCHEMES_BY_NAME
from explorer.checkpoints import EXPORTS
from explorer.checkpoints.model import ModelFolder
from explorer.methods.recipe import Recipe
from explorer.models.capture import load_model
from explorer.models.files import Role
from explorer.models.skeleton import is_expert
from explorer.survey.assemble import assemble
from explorer.survey.budget import Constraints, frontier, recipe_of
from explorer.survey.carried import unplaced
from explorer.survey.check import check_recipe
from explorer.survey.evidence import weights_of
from explorer.survey.loss import reference_for
from explorer.survey.recipe import ModelRecipe
from explorer.survey.run import SurveyPlan, survey_model
from explorer.survey.sentences import FEW_TEXTS, about
from tests.checkpoints.architectures import ARCHITECTURES
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled
from tests.survey.conftest import TEXTS, tokenizer_of

SCHEMES = ("int4_group32", "nvfp4", "fp8_e4m3_row")
STACKED = ("qwen3 moe", "mixtral", "deepseek v3", "qwen3 next")
ROLES = {  # of a vision part nothing
    "gemma 3 with vision": {Role.LINEAR: 14, Role.EMBEDDING: 1, Role.OTHER_EMBEDDING: 1},
    "mixtral": {Role.LINEAR: 32, Role.HEAD: 1, Role.EMBEDDING: 1},  # 24 of experts, no router
    "lfm2": {Role.LINEAR: 12, Role.EMBEDDING: 1},  # the projections around a convolution are linear
    "nemotron-h": {Role.LINEAR: 8, Role.HEAD: 1, Role.EMBEDDING: 1},
    "t5": {Role.LINEAR: 32, Role.EMBEDDING: 1, Role.OTHER_EMBEDDING: 2},  # of positions, one a side
    "qwen3 next": {Role.LINEAR: 73, Role.HEAD: 1, Role.EMBEDDING: 1},
}


@pytest.mark.parametrize("name", sampled(ROLES, ["mixtral", "lfm2"]))
def test_a_recipe_of_each_opens(name: str, tmp_path: Path) -> None:
    """5 bits of three schemes, for compressed-tensors: written, and opened with nothing missing or left.
    Layers that cannot hold codes are known before a recipe is made."""
    folder = ARCHITECTURES[name].save(tmp_path / "model")
    found = survey_model(SurveyPlan(str(folder), None, SCHEMES, ("weight",)), tmp_path / "s.jsonl")
    assert Counter(layer.role for layer in found.layers) == Counter(ROLES[name])
    left = unplaced("compressed-tensors", found)
    if name == "t5":
        assert set(left) == {layer.name for layer in found.linear if not layer.is_table}
        assert all("T5" in why for why in left.values())
        return
    constraints = Constraints(target=EXPORTS["compressed-tensors"], fuse=True, keep=tuple(left))
    recipe = recipe_of(found, frontier(found, constraints=constraints).at(5), constraints=constraints)
    model = ModelFolder(folder)
    out = write_checkpoint("compressed-tensors", folder, recipe.layers, tmp_path / "out").folder
    _, info = getattr(transformers, model.auto_class).from_pretrained(out, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info


@pytest.mark.parametrize("name", sampled(STACKED, ["qwen3 moe"]))
def test_an_expert_is_surveyed_in_the_stack(name: str, tmp_path: Path) -> None:
    """transformers stacks experts: each layer's part of the stack holds its weight of the files, and its cost
    comes from that part's gradient. Experts that few texts reach are told."""
    folder = with_tokenizer(name, tmp_path)
    model, files = load_model(str(folder), head=True), ModelFolder(folder)
    shapes = {n: files.info(f"{n}.weight").shape for n in files.matrices if is_expert(n)}
    weights = weights_of(model.network, shapes)
    assert len(weights) == len(shapes) >= 24 and not any(held.module for held in weights.values())
    for layer, held in weights.items():
        part = held.of(model.network.get_parameter(held.parameter).data)
        assert torch.equal(part, files.read(f"{layer}.weight").float()), layer
    found = survey_model(SurveyPlan(str(folder), None, SCHEMES, None, TEXTS), tmp_path / "s.jsonl")
    experts = [layer for layer in found.linear if is_expert(layer.name)]
    assert found.head.loss == "next token" and len(experts) == len(shapes)
    assert all((layer.texts or 0) <= len(TEXTS) for layer in experts)
    assert any(layer.costs["fisher_diagonal"]["nvfp4"] > 0 for layer in experts)
    few = sum((layer.texts or 0) < FEW_TEXTS for layer in experts)
    assert not few or f"{few} of {len(experts)}" in about(found)


def with_tokenizer(name: str, place: Path) -> Path:
    """A tiny model of an architecture with a tokenizer of the words of ``TEXTS``."""
    folder = ARCHITECTURES[name].save(place / "model")
    tokenizer_of(folder)
    return folder


def test_patterns_include_and_exclude(tmp_path: Path) -> None:
    """Vision stays as it is unless it is asked for, and is given nothing as the model is run. What is kept is
    told with its share of the bytes, and a pattern that means nothing is an error."""
    folder = str(with_tokenizer("gemma 3 with vision", tmp_path))
    ran = survey_model(SurveyPlan(folder, None, SCHEMES, None, TEXTS), tmp_path / "ran.jsonl")
    assert (ran.head.loss, ran.head.part) == ("next token", "language part") and len(ran.linear) == 15
    assert all(layer.reached for layer in ran.linear) and "language part" in about(ran)
    plan = SurveyPlan(folder, None, SCHEMES, ("weight",))
    plain = survey_model(plan, tmp_path / "plain.jsonl")
    more = replace(plan, include=("vision_tower",), exclude=("*.0.mlp.down_proj",))
    other = survey_model(more, tmp_path / "other.jsonl")
    names, others = ({layer.name for layer in found.linear} for found in (plain, other))
    assert all("vision_tower" in name for name in others - names) and len(others - names) == 15
    assert names - others == {name for name in names if ".0.mlp.down_proj" in name}
    total = sum(plain.head.kept_parts.values())
    assert total == plain.head.kept_bytes > other.head.kept_bytes
    assert survey_model(more, tmp_path / "other.jsonl") == other, "the same command goes on"
    with pytest.raises(ValueError, match="the included layers"):
        survey_model(plan, tmp_path / "other.jsonl")
    for wrong in (replace(plan, include=("nope",)), replace(plan, exclude=("vision_tower",))):
        with pytest.raises(ValueError, match=r"no l.* matches '(nope|vision_tower)'"):
            survey_model(wrong, tmp_path / "wrong.jsonl")


def test_a_mixture_is_checked(tmp_path: Path) -> None:
    """The model that is run has the rounded experts in the stack: its loss is that of the checkpoint as
    transformers opens it. Methods and quantized inputs, which stacked experts do not have, are refused."""
    folder = with_tokenizer("qwen3 moe", tmp_path)
    model, files = load_model(str(folder), head=True), ModelFolder(folder)
    names = [name for name in files.matrices if is_expert(name)]
    recipes = {name: Recipe(SCHEMES_BY_NAME["int4_group32"]) for name in names}
    recipe = ModelRecipe(str(folder), None, "", recipes)
    found = check_recipe(recipe, model, TEXTS).rows[0]
    out = write_checkpoint("compressed-tensors", folder, recipes, tmp_path / "out").folder
    theirs = transformers.AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32).eval()
    reference = reference_for(model, TEXTS)
    assert found.loss.value == pytest.approx(reference.measure(theirs).value, rel=1e-3, abs=1e-7)
    by_method = {names[0]: Recipe(SCHEMES_BY_NAME["int4_group32"], "gptq")}
    with pytest.raises(ValueError, match="stacked"):
        assemble(model, by_method, TEXTS)
    rows = {name: Recipe(SCHEMES_BY_NAME["int8_row"]) for name in names}
    with pytest.raises(ValueError, match="stacked"):
        assemble(model, rows, TEXTS, of_inputs=dict.fromkeys(rows, SCHEMES_BY_NAME["int8_row"]))
