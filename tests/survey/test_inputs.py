"""Recipes that quantize the inputs of layers, all alike or each in its own way: what that costs as a survey
predicts it, chosen, run, and in files.

If these fail, the loss that is called that of W8A8 is that of its weights alone, or a checkpoint has other
scales than the model that was measured.
"""

from __future__ import annotations

import copy
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, quantize
from explorer.checkpoints.inputs import inputs_of, product_refusal
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, capture
from explorer.models.inputs import quantized_inputs
from explorer.survey import Constraints, ModelRecipe, Survey, frontier, recipe_of
from explorer.survey.apply import card_of, input_scales_of
from explorer.survey.assemble import assemble
from explorer.survey.carried import target_of, targets_with
from explorer.survey.check import RECIPE, WEIGHTS_ALONE, check_recipe
from explorer.survey.loss import reference_for
from explorer.survey.sentences import what_it_buys
from tests.checkpoints.writing import write_checkpoint
from tests.survey.conftest import DOWN, HELD_OUT, QUERY, UP
from tests.survey.conftest import SEEN as TEXTS

pytestmark = pytest.mark.usefixtures("one_thread")


def recipe(inputs: str, weights: str = "int8_row", span: str = "") -> ModelRecipe:
    layers = {UP: weights, QUERY: weights, DOWN: "bf16"}
    parsed = {name: Recipe.parse(text) for name, text in layers.items()}
    return ModelRecipe("m", None, "", parsed, inputs=inputs_of(inputs, span))


EIGHT, FLOAT8 = SCHEMES["int8_row"], SCHEMES["fp8_e4m3_row"]
BY_LAYER = ModelRecipe(
    "m",
    None,
    "",
    {UP: Recipe(EIGHT), QUERY: Recipe(FLOAT8), DOWN: Recipe(EIGHT)},
    inputs=EIGHT,
    own_inputs={QUERY: FLOAT8, DOWN: None},
)
"""One layer keeps its inputs, and one has others."""
CASES = {
    "W8A8": recipe("int8_row"),
    "W8A8, static": recipe("int8_tensor"),
    "FP8": recipe("fp8_e4m3_row", "fp8_e4m3_row"),
    "FP8, static": recipe("fp8_e4m3_tensor", "fp8_e4m3_row"),
    "by layer": BY_LAYER,
}


@pytest.mark.parametrize("case", CASES)
def test_the_loss_of_a_check_is_that_of_rounded_inputs(case: str, llama: Model) -> None:
    """A network made by hand has the same loss; the row of weights alone is the recipe without inputs; casts
    see their inputs as they are."""
    chosen, by_hand = CASES[case], copy.deepcopy(llama.network)
    assert set(chosen.input_schemes) == {UP, QUERY}
    for captured in capture(llama, TEXTS, [UP, QUERY, DOWN]):
        linear, amax = by_hand.get_submodule(captured.name), float(captured.activations.abs().max())
        linear.weight.data = quantize(linear.weight.data, chosen.layers[captured.name].scheme).dequantize()
        scheme = chosen.input_schemes.get(captured.name)

        def rounded(module: Any, given: tuple[Tensor], amax: float = amax, by: Any = scheme) -> Tensor:
            (x,) = given
            if by.block[0] == 1:
                return quantize(x[0], by).dequantize()[None]
            scale = torch.tensor(amax) / by.format.max
            codes = (x / scale).clamp(-by.format.max, by.format.max)
            whole = codes.round() if by.format.name == "int8" else codes.to(torch.float8_e4m3fn).float()
            return whole * scale

        if scheme is not None:
            linear.register_forward_pre_hook(rounded)
    check = check_recipe(chosen, llama, HELD_OUT, calibration=TEXTS)
    want = reference_for(llama, HELD_OUT).measure(by_hand).value
    assert check.rows[0].loss.value == pytest.approx(want, rel=1e-4)
    assert [row.what for row in check.rows[:2]] == [RECIPE, WEIGHTS_ALONE]
    alone = check_recipe(replace(chosen, inputs=None, own_inputs={}), llama, HELD_OUT)
    assert check.rows[1].loss.value == alone.rows[0].loss.value != check.rows[0].loss.value
    assert check.inputs and not alone.inputs
    beside = [SCHEMES[row.name] for row in check.rows[2:]]
    asked = set(chosen.input_schemes.values())
    assert not any(product_refusal(one, other) for one in asked for other in beside), "not multiplied"


def test_fixed_scales_are_of_all_tokens(llama: Model) -> None:
    """The largest |x| of the original model's inputs over 127; a percentile is at most that."""
    found = input_scales_of(recipe("int8_tensor"), lambda: llama, TEXTS)
    want = {c.name: float(c.activations.abs().max()) / 127 for c in capture(llama, TEXTS, [UP, QUERY])}
    assert found == pytest.approx(want) and DOWN not in found
    less = input_scales_of(recipe("int8_tensor", span="percentile"), lambda: llama, TEXTS)
    assert all(0 < less[name] <= found[name] for name in found)
    none = input_scales_of(recipe("int8_row"), lambda: pytest.fail("the model was loaded"))
    assert none == {}


def test_nvfp4_has_a_fixed_scale_of_its_scales() -> None:
    """A batch is rounded as if it had the largest value that was seen, and saturates beyond that: whatever
    else comes with it, a token is rounded alike."""
    torch.manual_seed(0)
    x, scheme = torch.randn(6, 64), SCHEMES["nvfp4"]
    scale = float(x.abs().max()) / (6 * 448)
    seen = quantized_inputs(x, scheme, scale)
    assert torch.equal(seen, quantize(x, scheme).dequantize())
    few = quantized_inputs(x[None, 2:4], scheme, scale)
    assert torch.equal(few[0], seen[2:4]) and not torch.equal(few[0], quantize(x[2:4], scheme).dequantize())
    assert float(quantized_inputs(100 * x, scheme, scale).abs().max()) == pytest.approx(2688 * scale)


def test_methods_keep_their_codes(llama: Model) -> None:
    """Codes are those without quantized inputs; a method that changes inputs has no fixed scale of them."""
    plain = recipe("int8_row", "int8_row+gptq")
    made = assemble(llama, plain.layers, TEXTS, of_inputs=plain.input_schemes)
    alone = assemble(llama, plain.layers, TEXTS)
    assert torch.equal(made.layers[UP].q.packed, alone.layers[UP].q.packed)
    with pytest.raises(ValueError, match="per token"):
        check_recipe(recipe("int8_tensor", "int8_row+smoothquant"), llama, HELD_OUT, calibration=TEXTS)
    assert check_recipe(recipe("int8_row", "int8_row+smoothquant"), llama, HELD_OUT).rows[0].loss.value > 0


@pytest.mark.parametrize("target", ["", "vllm", "compressed-tensors"])
def test_only_schemes_that_are_multiplied_are_chosen(tiny_survey: Survey, target: str) -> None:
    """With FP8 inputs that is FP8, whatever else would fit the budget."""
    kept_to = Constraints(target=target_of(target), inputs=SCHEMES["fp8_e4m3_row"])
    front = frontier(tiny_survey, "", kept_to)
    chosen = recipe_of(tiny_survey, front.at(9), constraints=kept_to)
    assert "quantized inputs add to it" in what_it_buys(front, front.at(9))
    assert set(map(str, chosen.layers.values())) == {"fp8_e4m3_row"} and kept_to.inputs == chosen.inputs
    assert "INT8 per row" in front.refused["int8_row"] and "FP8 per token" in card_of(chosen)
    with pytest.raises(ValueError, match=r"gguf.*compressed-tensors or vllm"):
        frontier(tiny_survey, "", Constraints(target=target_of("gguf"), inputs=SCHEMES["int8_row"]))
    assert targets_with(SCHEMES["int8_row"]) == ("compressed-tensors", "vllm")


def test_files_keep_the_inputs() -> None:
    """Old files have none; what is no scheme of inputs, or no layer, is refused."""
    chosen = recipe("int8_tensor", span="percentile")
    again = ModelRecipe.from_json(chosen.to_json())
    assert again == chosen and again.inputs is not None and again.inputs.calibrator.name == "percentile"
    about = json.loads(chosen.to_json())
    old = {key: value for key, value in about.items() if key != "inputs"}
    assert ModelRecipe.from_json(json.dumps(old)).inputs is None
    with pytest.raises(ValueError, match="'mxfp4'"):
        ModelRecipe.from_json(json.dumps(about | {"inputs": "mxfp4"}))
    with pytest.raises(ValueError, match=r"a\.b"):
        replace(BY_LAYER, own_inputs={"a.b": EIGHT})
    assert ModelRecipe.from_json(BY_LAYER.to_json()) == BY_LAYER


def test_layers_that_keep_their_inputs_may_have_any_scheme(made_up: Survey) -> None:
    """Layers that are multiplied as one matrix keep them together."""
    kept_to = Constraints(
        ("int4_group128_asym", "int8_row"), fuse=True, inputs=EIGHT, keep_inputs=("q_proj",)
    )
    choice = frontier(made_up, constraints=kept_to).at(7.5)
    kept = {name for name in choice.schemes if name.rpartition(".")[2] in ("q_proj", "k_proj", "v_proj")}
    assert {choice.schemes[name] for name in set(choice.schemes) - kept} == {"int8_row"}
    assert "int4_group128_asym" in {choice.schemes[name] for name in kept}
    chosen = recipe_of(made_up, choice, constraints=kept_to)
    assert set(chosen.own_inputs) == kept and set(chosen.input_schemes) == set(choice.schemes) - kept
    with pytest.raises(ValueError, match="'nope'"):
        frontier(made_up, constraints=replace(kept_to, keep_inputs=("nope",)))


def test_a_prediction_of_an_earlier_file_is_of_the_weights() -> None:
    """Earlier versions added what quantized inputs lose."""
    about = json.loads(replace(BY_LAYER, predicted_loss=0.5, predicted_interval=(0.4, 0.6)).to_json())
    old = ModelRecipe.from_json(json.dumps(about | {"predicted_inputs": 0.125}))
    assert (old.predicted_loss, old.predicted_interval) == (0.375, None)
    assert ModelRecipe.from_json(json.dumps(about)).predicted_loss == 0.5


def groups_of(folder: Path) -> list[dict[str, Any]]:
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    return [*config["config_groups"].values()]


def test_files_say_the_inputs_of_each_layer(tiny_llama: Path, tmp_path: Path) -> None:
    """Groups by scheme and inputs, opened by the reader; where one engine multiplies without them, words."""
    inputs = {UP: SCHEMES["int8_tensor"], QUERY: EIGHT}
    layers = dict.fromkeys((UP, QUERY, DOWN), Recipe(EIGHT))
    options = {"inputs": inputs, "input_scales": {UP: 0.02}, "verified": True}
    written = write_checkpoint("compressed-tensors", tiny_llama, layers, tmp_path / "c", **options)
    assert written.verified is not None and written.verified.layers == 3
    found = {group["targets"][0]: group["input_activations"] for group in groups_of(tmp_path / "c")}
    assert found[DOWN] is None and found[QUERY]["dynamic"] and not found[UP]["dynamic"]
    gate = {UP.replace("up_proj", "gate_proj"): Recipe(EIGHT)}  # vLLM multiplies it together with UP
    both = {UP: layers[UP], **gate}
    seen = dict.fromkeys(both, EIGHT)
    write_checkpoint("vllm", tiny_llama, {**both, DOWN: layers[DOWN]}, tmp_path / "v", inputs=seen)
    formats = {group["targets"][0]: group["format"] for group in groups_of(tmp_path / "v")}
    assert formats == {UP: "int-quantized", DOWN: "pack-quantized"}
    with pytest.raises(ValueError, match="inputs"):
        write_checkpoint("vllm", tiny_llama, both, tmp_path / "w", inputs={UP: EIGHT})


def test_one_command_each(files: dict[str, str], tmp_path: Path, capsys: Any) -> None:
    """From a survey to a folder in which some layers keep their inputs, checked on the way."""
    made, out, text = str(tmp_path / "r.json"), tmp_path / "out", files["held-out"]
    command = ["recipe", files["survey"], "--bits", "8.6", "--schemes", "int4_group64,int8_row"]
    command += ["--for", "compressed-tensors", "--inputs", "int8_row", "--keep-inputs", "down_proj"]
    assert main([*command, "--out", made]) == 0
    chosen = ModelRecipe.load(made)
    assert 0 < len(chosen.input_schemes) < len(chosen.layers) and chosen.own_inputs
    capsys.readouterr()
    assert main(["check", made, "--text", text, "--survey", files["survey"], "--json"]) == 0
    first, alone, *_ = json.loads(capsys.readouterr().out)["rows"]
    assert first["predicted"] == pytest.approx(chosen.predicted_loss)
    assert alone["predicted"] == first["predicted"]
    apply = ["apply", made, "--to", "compressed-tensors", "--verify", "--text", text]
    assert main([*apply, "--out", str(out)]) == 0
    rounded = [name for group in groups_of(out) if group["input_activations"] for name in group["targets"]]
    assert sorted(rounded) == sorted(chosen.input_schemes)
