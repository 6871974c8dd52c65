"""``quantize_model``: a model whose layers multiply by codes is the one whose loss ``check`` measures."""

from __future__ import annotations

import copy
import warnings
import weakref
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import nn
from torch.nn.utils import prune
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
)

import explorer
from explorer import SCHEMES, QuantizedLinear
from explorer.core.quantize import quantize_as_one
from explorer.methods.recipe import Recipe
from explorer.models.serve import linear_but_head
from explorer.survey.recipe import ModelRecipe

INT8, NVFP4 = SCHEMES["int8_row"], SCHEMES["nvfp4"]


@pytest.fixture(scope="module")
def llama() -> nn.Module:
    torch.manual_seed(0)
    sizes = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4}
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=64, **sizes)
    return LlamaForCausalLM(config).eval()


def logits(model: nn.Module) -> torch.Tensor:
    with torch.no_grad():
        return model(torch.arange(24).view(2, 12)).logits


WAYS = [(scheme, i) for scheme in ("nvfp4", "int4_group32_asym", "int8_row") for i in (None, INT8)]


@pytest.mark.parametrize(("scheme", "inputs"), WAYS)
def test_logits_are_fake_quantizations(llama: nn.Module, scheme: str, inputs: explorer.Scheme | None) -> None:
    ours = explorer.quantize_model(copy.deepcopy(llama), scheme, inputs)
    fake = copy.deepcopy(llama)
    for name in linear_but_head(fake):
        linear = fake.get_submodule(name)
        linear.weight.data = explorer.quantize(linear.weight.data, SCHEMES[scheme]).dequantize()
        if inputs is not None:
            linear.register_forward_pre_hook(lambda _, args: (explorer.fake_quantize(args[0], inputs),))
    assert torch.equal(logits(ours), logits(fake)) and not torch.equal(logits(ours), logits(llama))
    assert type(ours.lm_head) is nn.Linear
    assert all(isinstance(ours.get_submodule(name), QuantizedLinear) for name in linear_but_head(llama))


def test_a_recipe_is_followed_layer_by_layer(llama: nn.Module) -> None:
    """Layers that share a scale of the whole tensor, others alone, and those not named as they were."""
    block = "model.layers.0.self_attn"
    names = [f"{block}.{part}_proj" for part in "qkv"]
    recipe = ModelRecipe(
        "x", None, "", {**dict.fromkeys(names, Recipe(NVFP4)), f"{block}.o_proj": Recipe(INT8)}, fused=True
    )
    ours = explorer.quantize_model(copy.deepcopy(llama), recipe)
    parts = quantize_as_one([llama.get_submodule(name).weight for name in names], NVFP4)
    for name, part in zip(names, parts, strict=True):
        assert torch.equal(ours.get_submodule(name).quantized.dequantize(), part.dequantize())
    assert ours.get_submodule(f"{block}.o_proj").scheme == INT8
    assert type(ours.get_submodule("model.layers.1.self_attn.q_proj")) is nn.Linear
    by_name = explorer.quantize_model(copy.deepcopy(llama), {names[0]: INT8})
    assert by_name.get_submodule(names[0]).scheme == INT8


def test_a_wrong_recipe_changes_nothing(llama: nn.Module) -> None:
    model = copy.deepcopy(llama)
    gptq = Recipe.parse("int4_group128+gptq")
    for recipe, words in (
        ({"model.layers.9.mlp.up_proj": INT8}, r"'model.layers.9.mlp.up_proj'"),
        ({"model.layers.0.mlp.up_proj": INT8, "model.layers.1.mlp.up_proj": gptq}, "by GPTQ"),
        ({}, "no linear layer"),
        ("int5_group7_foo", "int5_group7_foo"),
    ):
        with pytest.raises(ValueError, match=words):
            explorer.quantize_model(model, recipe)
        assert not any(isinstance(module, QuantizedLinear) for module in model.modules())


def test_weights_are_freed_as_layers_are_made(llama: nn.Module) -> None:
    """If this fails, quantizing takes the memory of the original and the codes together."""
    model, alive = copy.deepcopy(llama), []
    weights = [weakref.ref(model.get_submodule(name).weight) for name in linear_but_head(model)]
    explorer.quantize_model(
        model, "int8_row", progress=lambda *_: alive.append(sum(one() is not None for one in weights))
    )
    assert alive == list(range(len(weights) - 1, -1, -1))


def test_layers_rounded_as_one_are_saved_and_read_by_modules(llama: nn.Module, tmp_path: Path) -> None:
    """Into a safetensors file; and modules that ask for ``weight``, as T5's do, get the restored one."""
    block = "model.layers.0.self_attn"
    layers = {f"{block}.{part}_proj": Recipe(NVFP4) for part in "qkv"}
    model = explorer.quantize_model(copy.deepcopy(llama), ModelRecipe("x", None, "", layers, fused=True))
    save_file({k: v for k, v in model.state_dict().items() if block in k}, tmp_path / "block.safetensors")
    layer = model.get_submodule(f"{block}.q_proj")
    assert torch.equal(layer.weight, layer.quantized.dequantize())
    assert model.to(torch.bfloat16).get_submodule(f"{block}.q_proj").weight.dtype == torch.bfloat16


def test_a_layer_is_quantized_once_by_text_or_object(llama: nn.Module) -> None:
    """A second time there is no linear layer left, which said that the model was a GPT-2."""
    name, model = linear_but_head(llama)[0], copy.deepcopy(llama)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        explorer.quantize_model(model, {name: "int8_row"})
        with pytest.raises(ValueError, match=f"{name} .*already"):
            explorer.quantize_model(model, {name: SCHEMES["int8_row"]})
        explorer.quantize_model(model, "int4_group32")


@pytest.mark.parametrize("names", [("one",), ("other",), ("one", "other")])
def test_a_shared_layer_is_quantized_once_by_any_of_its_names(names: tuple[str, ...]) -> None:
    """In the place of all of them, in the mode that it had."""
    model = nn.ModuleDict({"one": nn.Linear(32, 8).eval(), "more": nn.Linear(32, 8)})
    model["other"] = model["one"]
    explorer.quantize_model(model, dict.fromkeys(names, INT8))
    assert isinstance(model["one"], QuantizedLinear) and model["other"] is model["one"]
    assert not model["one"].training and type(model["more"]) is nn.Linear
    model["one"] = model["other"] = nn.Linear(32, 8)
    with pytest.raises(ValueError, match=r"one and other are one layer.*int8_row.*int4_group32"):
        explorer.quantize_model(model, {"one": INT8, "other": "int4_group32"})


def test_a_weight_that_is_computed_is_quantized_as_it_is() -> None:
    """Of a layer with a normalized or pruned weight, which is no parameter."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.utils.parametrizations.weight_norm(nn.Linear(32, 16)),
        prune.l1_unstructured(nn.Linear(16, 8), "weight", 0.5),
    )
    weights = [layer.weight.detach() for layer in model]
    explorer.quantize_model(model, {"0": INT8, "1": INT8})
    for layer, weight in zip(model, weights, strict=True):
        assert torch.equal(layer.weight, explorer.quantize(weight, INT8).dequantize())


def test_a_nan_names_its_layer(llama: nn.Module) -> None:
    model = copy.deepcopy(llama)
    last = linear_but_head(model)[-1]
    with torch.no_grad():
        model.get_submodule(last).weight[0, 0] = float("nan")
    with pytest.raises(ValueError, match=f"{last}: .*NaN"):
        explorer.quantize_model(model, "int8_row")
