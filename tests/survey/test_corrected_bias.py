"""Recipes with bias correction as checkpoints: the corrected biases stand in the files.

If these fail, a folder holds the biases of the unquantized model, or a correction is lost without a word.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch

from explorer.checkpoints import write_checkpoint
from explorer.methods.recipe import Recipe
from explorer.models.capture import load_model
from explorer.survey import ModelRecipe
from explorer.survey.apply import codes_of
from explorer.survey.assemble import assemble
from explorer.survey.check import check_recipe

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ("the cat sleeps on the warm roof", "the train was late again", "salt lowers the freezing point")
TARGET = "compressed-tensors"


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def biased(
    request: pytest.FixtureRequest, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A Llama whose linear layers have biases, in a dtype."""
    from transformers import LlamaConfig, LlamaForCausalLM

    folder = tmp_path_factory.mktemp("models") / "biased-llama"
    shutil.copytree(tiny_llama, folder)
    torch.manual_seed(4)
    config = LlamaConfig.from_pretrained(tiny_llama, attention_bias=True, mlp_bias=True)
    network = LlamaForCausalLM(config)
    for name, parameter in network.named_parameters():
        if name.endswith(".bias"):
            parameter.data.normal_()
    network.to(request.param).save_pretrained(folder)
    return folder


def recipe_for(folder: Path, layers: dict[str, str], target: str = TARGET) -> ModelRecipe:
    return ModelRecipe(
        str(folder), None, "", {name: Recipe.parse(text) for name, text in layers.items()}, target=target
    )


@pytest.mark.parametrize("method", ["bias_correction", "awq+bias_correction"])
def test_files_hold_corrected_biases(biased: Path, tmp_path: Path, method: str) -> None:
    """Those of the network that is checked, in the model's dtype; the card names them, the reader has them.
    AWQ folds a factor into the up rows, and so into a bias that is corrected after that."""
    from transformers import LlamaForCausalLM

    llama = load_model(str(biased), head=True)
    names = [f"model.layers.0.mlp.{part}_proj" for part in ("up", "gate", "down")]
    recipe = recipe_for(biased, dict.fromkeys(names, f"int4_group32+{method}"))
    assembled = assemble(llama, recipe.layers, TEXTS, folded=True)
    codes = codes_of(recipe, lambda: llama, TEXTS, folder=biased)
    for name in names:
        stored, own = codes.changed[f"{name}.bias"], llama.network.get_parameter(f"{name}.bias")
        assert stored.dtype is llama.dtype and not torch.equal(stored.float(), own)
        assert torch.equal(stored.float(), assembled.network.get_submodule(name).bias)
        assert assembled.layers[name].plain
    written = write_checkpoint(
        TARGET, biased, recipe.layers, tmp_path / "out", quantized=codes, changed=codes.changed, verified=True
    )
    card = (written.folder / "README.md").read_text()
    biases = ", ".join(f"`model.layers.N.mlp.{part}_proj.bias`" for part in ("down", "gate", "up"))
    assert f"the mean errors of layers were subtracted from {biases}" in card
    assert ("factors of AWQ were folded into" in card) is method.startswith("awq")
    opened = LlamaForCausalLM.from_pretrained(written.folder, dtype=torch.float32)
    ids = llama.tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        got, expected = (n(input_ids=ids).logits[0].float() for n in (opened, assembled.network))
    bound = 1e-5 if llama.dtype is torch.float32 else 2e-2
    assert float((got - expected).abs().max()) <= bound * float(expected.abs().max())


def test_a_layer_without_a_bias_is_refused_by_name(tiny_llama: Path) -> None:
    """Before anything is computed, for files and for the check of what files hold; without a target the
    correction stands beside the codes and is counted."""
    llama, name = load_model(str(tiny_llama), head=True), "model.layers.0.mlp.up_proj"
    recipe = recipe_for(tiny_llama, {name: "int4_group32+bias_correction"})
    with pytest.raises(ValueError, match=rf"{name} has no bias, and a file has no place for the correction"):
        codes_of(recipe, lambda: llama, TEXTS, folder=tiny_llama)
    with pytest.raises(ValueError, match=f"{name} has no bias"):
        check_recipe(recipe, llama, TEXTS, calibration=TEXTS)
    beside = recipe_for(tiny_llama, {name: "int4_group32+bias_correction"}, target="")
    plain = recipe_for(tiny_llama, {name: "int4_group32"}, target="")
    bits = [check_recipe(one, llama, TEXTS, calibration=TEXTS).rows[0].bits for one in (beside, plain)]
    assert bits[0] == pytest.approx(bits[1] + 32 / 64)
