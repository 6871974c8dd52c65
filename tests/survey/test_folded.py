"""Recipes with AWQ and SmoothQuant as checkpoints: factors folded into the layers before.

If these fail, a folder holds codes of scaled weights whose inputs nothing divides, or another network than
the one that was checked.
"""

from __future__ import annotations

import copy
import json
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from explorer.checkpoints import write_checkpoint
from explorer.checkpoints.model import ModelFolder
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, load_model
from explorer.survey import ModelRecipe
from explorer.survey.apply import LayerCodes, codes_of
from explorer.survey.assemble import assemble
from explorer.survey.check import check_recipe
from explorer.survey.folding import fold_factors
from explorer.survey.loss import reference_for
from tests.covering import sampled

pytestmark = pytest.mark.usefixtures("one_thread")
TEXTS = ("the cat sleeps on the warm roof", "the train was late again", "salt lowers the freezing point")
BLOCK = "model.layers.0"
VALUE, OUT, UP, DOWN = (
    f"{BLOCK}.{part}" for part in ("self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
)


@pytest.fixture(scope="module", params=[torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def folder(
    request: pytest.FixtureRequest, tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory
) -> Path:
    """A Llama whose norms have outlier channels, in a dtype. Its weights are small, so that errors add up."""
    from transformers import LlamaForCausalLM

    made = tmp_path_factory.mktemp("models") / "uneven-llama"
    shutil.copytree(tiny_llama, made)
    torch.manual_seed(3)
    network = LlamaForCausalLM.from_pretrained(tiny_llama)
    for name, parameter in network.named_parameters():
        if "layernorm" in name:
            parameter.data *= torch.randn_like(parameter).mul(1.2).exp()
        elif "proj" in name:
            parameter.data *= 0.3
    network.to(request.param).save_pretrained(made)
    return made


@pytest.fixture(scope="module")
def llama(folder: Path) -> Model:
    return load_model(str(folder), head=True)


def layers_of(model: Model) -> list[str]:
    return [n for n, m in model.network.named_modules() if isinstance(m, nn.Linear) and n != "lm_head"]


def recipe_for(folder: Path, layers: dict[str, str], target: str = "compressed-tensors") -> ModelRecipe:
    recipes = {name: Recipe.parse(text) for name, text in layers.items()}
    return ModelRecipe(str(folder), None, "", recipes, target=target)


def logits(network: nn.Module, model: Model) -> Tensor:
    ids = model.tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        return network(input_ids=ids).logits[0].float()


def write(recipe: ModelRecipe, model: Model, folder: Path, out: Path, target: str) -> tuple[LayerCodes, str]:
    codes = codes_of(recipe, lambda: model, TEXTS, folder=folder)
    written = write_checkpoint(
        target, folder, recipe.layers, out, quantized=codes, changed=codes.changed, verified=None
    )
    assert written.verified is not None or target != "compressed-tensors"
    return codes, (out / "README.md").read_text()


METHODS = (
    "awq",
    "awq_clip",
    "smoothquant",
    "smoothquant_search",
    "smoothquant+gptq",
    "smoothquant+gptq_sequential",
)
QUICK = ("awq", "awq_clip", "smoothquant", "smoothquant+gptq_sequential")


@pytest.mark.parametrize("method", sampled(METHODS, QUICK))
def test_the_folder_is_the_network_that_was_checked(
    folder: Path, llama: Model, tmp_path: Path, method: str
) -> None:
    """transformers opens the folder, and its logits are those of the assembled network; a norm is stored in
    the model's dtype, and is rounded so in the check too."""
    from transformers import LlamaForCausalLM

    recipe = recipe_for(folder, dict.fromkeys(layers_of(llama), f"int8_row+{method}"))
    assembled = assemble(llama, recipe.layers, TEXTS, folded=True)
    codes, card = write(recipe, llama, folder, tmp_path / "out", "compressed-tensors")
    assert all(torch.equal(codes.chosen[n].packed, layer.q.packed) for n, layer in assembled.layers.items())
    assert set(codes.changed) == {
        f"model.layers.{i}.{part}.weight"
        for i in (0, 1)
        for part in ("input_layernorm", "post_attention_layernorm")
    }
    opened = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    expected = logits(assembled.network, llama)
    bound = 1e-5 if llama.dtype is torch.float32 else 2e-2
    assert float((logits(opened, llama) - expected).abs().max()) <= bound * float(expected.abs().max())
    assert "factors of " in card and "were folded into `model.layers.N.input_layernorm.weight`" in card
    for name, tensor in codes.changed.items():
        assert tensor.dtype is llama.dtype
        assert torch.equal(assembled.network.get_parameter(name), tensor.float())


def test_folding_alone_changes_nothing(llama: Model) -> None:
    """All layers named, none rounded: the logits are the original's. Original and network are two."""
    recipes = {name: Recipe.parse("int4_group32+awq") for name in layers_of(llama)}
    network, before = copy.deepcopy(llama.network), copy.deepcopy(llama.network.state_dict())
    folding = fold_factors(llama, network, recipes, TEXTS, 64)
    expected = logits(llama.network, llama)
    assert float((logits(network, llama) - expected).abs().max()) <= 1e-5 * float(expected.abs().max())
    assert set(folding.divisors) == set(recipes)
    assert all(torch.equal(value, before[name]) for name, value in llama.network.state_dict().items())
    query, key = (folding.divisors[f"{BLOCK}.self_attn.{part}_proj"] for part in "qk")
    assert torch.equal(query, key) and len(query.unique()) > 32
    shared = folding.divisors[OUT].view(2, 2, 16)
    assert torch.equal(shared[:, 0], shared[:, 1]), "query heads of one value head"


@pytest.mark.parametrize("method", ["awq", "awq_clip", "smoothquant_search+gptq"])
def test_a_folded_method_is_better_than_rounding(llama: Model, method: str) -> None:
    """Of the checkpoint's network, which has one factor for query, key and value."""
    reference = reference_for(llama, TEXTS)

    def loss(recipe: str) -> float:
        recipes = {name: Recipe.parse(recipe) for name in layers_of(llama)}
        made = assemble(llama, recipes, TEXTS, folded=True)
        assert all(layer.plain for layer in made.layers.values())
        return reference.measure(made.network).value

    assert loss(f"int4_group32+{method}") < 0.8 * loss("int4_group32")


def test_layers_that_are_not_quantized_are_scaled_too(folder: Path, llama: Model, tmp_path: Path) -> None:
    """Value is kept and up is rounded to nearest: both read a norm that took in a factor, and both take in
    one themselves."""
    from transformers import LlamaForCausalLM

    named = {f"{BLOCK}.self_attn.q_proj": "int8_row+awq", OUT: "int8_row+awq", DOWN: "int8_row+awq"}
    named |= {f"{BLOCK}.mlp.gate_proj": "int8_row+awq", UP: "int8_row"}
    recipe = recipe_for(folder, named)
    codes, _ = write(recipe, llama, folder, tmp_path / "out", "compressed-tensors")
    assert codes.changed[f"{VALUE}.weight"].dtype is llama.dtype
    assert codes.changed[f"{UP}.weight"].dtype is torch.float32
    opened = LlamaForCausalLM.from_pretrained(tmp_path / "out", dtype=torch.float32)
    for network in (opened, assemble(llama, recipe.layers, TEXTS, folded=True).network):
        expected = logits(llama.network, llama)
        assert float((logits(network, llama) - expected).abs().max()) < 0.05 * float(expected.abs().max())
    assert torch.equal(opened.get_submodule(VALUE).weight, codes.changed[f"{VALUE}.weight"].float())


def test_a_check_runs_what_the_target_gets(folder: Path, llama: Model) -> None:
    """For a target the factors are folded; without one they stand beside the codes, as before."""
    recipe = recipe_for(folder, dict.fromkeys(layers_of(llama), "int4_group32+awq"))
    reference = reference_for(llama, TEXTS)
    for one, folded in ((recipe, True), (replace(recipe, target=""), False)):
        found = check_recipe(one, llama, TEXTS, calibration=TEXTS).rows[0].loss.value
        made = assemble(llama, recipe.layers, TEXTS, folded=folded)
        assert found == reference.measure(made.network).value
        assert all(layer.plain is folded for layer in made.layers.values())


def test_what_cannot_be_folded_is_refused(tiny_bert: Path, folder: Path, llama: Model) -> None:
    """By name and reason; and factors of two methods for layers that read one norm."""
    bert = load_model(str(tiny_bert), head=True)
    query = "encoder.layer.0.attention.self.query"
    with pytest.raises(ValueError, match=f"{query}: .*AWQ.*embeddings.LayerNorm gives its inputs"):
        codes_of(recipe_for(tiny_bert, {query: "int4_group32+awq"}), lambda: bert, TEXTS, folder=tiny_bert)
    assert codes_of(recipe_for(tiny_bert, {query: "int4_group32+gptq"}), lambda: bert, TEXTS).changed == {}
    two = {f"{BLOCK}.self_attn.q_proj": "int8_row+awq", f"{BLOCK}.self_attn.k_proj": "int8_row+smoothquant"}
    with pytest.raises(ValueError, match=r"q_proj and .*k_proj read the same inputs"):
        codes_of(recipe_for(folder, two), lambda: llama, TEXTS, folder=folder)


@pytest.mark.parametrize("target", ["onnx", "awq", "gptq"])
def test_every_target_gets_the_changed_tensors(
    folder: Path, llama: Model, tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """All writers read the model by ``ModelFolder.read``, which gives what took in a factor."""
    asked = set()
    read = ModelFolder.read

    def seen(self: ModelFolder, name: str) -> Tensor:
        asked.add(name)
        got = read(self, name)
        assert name not in self.changed or got is self.changed[name]
        return got

    monkeypatch.setattr(ModelFolder, "read", seen)
    scheme = "int4_group32_asym" if target == "awq" else "int4_group32"
    recipe = recipe_for(folder, dict.fromkeys(layers_of(llama), f"{scheme}+awq"), target)
    codes, _ = write(recipe, llama, folder, tmp_path / "out", target)
    assert codes.changed and set(codes.changed) <= asked


def test_commands_write_a_folded_checkpoint(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """``survey``, ``recipe --method awq --for``, ``check``, ``apply --verify``."""
    from explorer.cli import main

    survey, recipe, out = (str(tmp_path / name) for name in ("s.jsonl", "r.json", "out"))
    text = tmp_path / "text.txt"
    text.write_text("\n".join(TEXTS))
    seen = ["--calibration", str(text)]
    for command in (
        ["survey", str(folder), "--schemes", "int8_row,int4_group32", "--signal", "weight", "--out", survey],
        ["recipe", survey, "--bits", "9", "--for", "compressed-tensors", "--method", "awq", "--out", recipe],
        ["check", recipe, "--text", str(text), *seen, "--json"],
        ["apply", recipe, "--to", "compressed-tensors", "--out", out, *seen, "--verify"],
    ):
        assert main(command) in (None, 0)
    assert "the other 7 tensors are equal" in capsys.readouterr().out
    assert "factors of AWQ were folded into" in Path(out, "README.md").read_text()
    assert json.loads(Path(out, "recipe.json").read_text())["target"] == "compressed-tensors"
