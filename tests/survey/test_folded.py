"""Recipes with AWQ, SmoothQuant or bias correction as checkpoints: factors folded into the layers before, and
corrected biases.

If these fail, a folder holds codes of scaled weights whose inputs nothing divides, or another network than
the one that was checked.
"""

from __future__ import annotations

import copy
import shutil
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, load_model
from explorer.survey import ModelRecipe
from explorer.survey.apply import LayerCodes, codes_of
from explorer.survey.assemble import assemble
from explorer.survey.check import check_recipe
from explorer.survey.folding import fold_factors
from explorer.survey.loss import reference_for
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled
from tests.survey.conftest import SEEN as TEXTS

pytestmark = pytest.mark.usefixtures("one_thread")
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


METHODS = ("awq", "awq_clip", "smoothquant", "smoothquant_search", "smoothquant+gptq_sequential")
QUICK = ("awq", "smoothquant+gptq_sequential")


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
    bound = 1e-5 if llama.dtype is torch.float32 else 3e-2  # scales are rounded too
    assert float((logits(opened, llama) - expected).abs().max()) <= bound * float(expected.abs().max())
    assert "`model.layers.N.input_layernorm.weight`" in card
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
    recipe = recipe_for(folder, dict.fromkeys((UP, UP.replace("up_proj", "gate_proj")), "int4_group32+awq"))
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
    with pytest.raises(ValueError, match=f"{query}: .*embeddings.LayerNorm"):
        codes_of(recipe_for(tiny_bert, {query: "int4_group32+awq"}), lambda: bert, TEXTS, folder=tiny_bert)
    assert codes_of(recipe_for(tiny_bert, {query: "int4_group32+gptq"}), lambda: bert, TEXTS).changed == {}
    two = {f"{BLOCK}.self_attn.q_proj": "int8_row+awq", f"{BLOCK}.self_attn.k_proj": "int8_row+smoothquant"}
    with pytest.raises(ValueError, match=r"q_proj and .*k_proj"):
        codes_of(recipe_for(folder, two), lambda: llama, TEXTS, folder=folder)


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


def correcting(folder: Path, layers: dict[str, str], target: str = "compressed-tensors") -> ModelRecipe:
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
    recipe = correcting(biased, dict.fromkeys(names, f"int4_group32+{method}"))
    assembled = assemble(llama, recipe.layers, TEXTS, folded=True)
    codes = codes_of(recipe, lambda: llama, TEXTS, folder=biased)
    for name in names:
        stored, own = codes.changed[f"{name}.bias"], llama.network.get_parameter(f"{name}.bias")
        assert stored.dtype is llama.dtype and not torch.equal(stored.float(), own)
        assert torch.equal(stored.float(), assembled.network.get_submodule(name).bias)
        assert assembled.layers[name].plain
    written = write_checkpoint(
        "compressed-tensors",
        biased,
        recipe.layers,
        tmp_path / "out",
        quantized=codes,
        changed=codes.changed,
        verified=True,
    )
    card = (written.folder / "README.md").read_text()
    assert all(f"`model.layers.N.mlp.{part}_proj.bias`" in card for part in ("down", "gate", "up"))
    opened = LlamaForCausalLM.from_pretrained(written.folder, dtype=torch.float32)
    ids = llama.tokenizer(TEXTS[0], return_tensors="pt")["input_ids"]
    with torch.no_grad():
        got, expected = (n(input_ids=ids).logits[0].float() for n in (opened, assembled.network))
    bound = 1e-5 if llama.dtype is torch.float32 else 3e-2
    assert float((got - expected).abs().max()) <= bound * float(expected.abs().max())


def test_a_layer_without_a_bias_is_refused_by_name(tiny_llama: Path) -> None:
    """Before anything is computed, for files and for the check of what files hold; without a target the
    correction stands beside the codes and is counted."""
    llama, name = load_model(str(tiny_llama), head=True), "model.layers.0.mlp.up_proj"
    recipe = correcting(tiny_llama, {name: "int4_group32+bias_correction"})
    with pytest.raises(ValueError, match=name):
        codes_of(recipe, lambda: llama, TEXTS, folder=tiny_llama)
    with pytest.raises(ValueError, match=name):
        check_recipe(recipe, llama, TEXTS, calibration=TEXTS)
    beside = correcting(tiny_llama, {name: "int4_group32+bias_correction"}, target="")
    plain = correcting(tiny_llama, {name: "int4_group32"}, target="")
    bits = [check_recipe(one, llama, TEXTS, calibration=TEXTS).rows[0].bits for one in (beside, plain)]
    assert bits[0] == pytest.approx(bits[1] + 32 / 64)
