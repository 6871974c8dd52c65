"""Recipes that quantize the inputs of layers: chosen, run, written, and in files.

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
from safetensors.torch import load_file
from torch import Tensor

from explorer import SCHEMES, quantize
from explorer.checkpoints.inputs import inputs_of, product_refusal
from explorer.cli import main
from explorer.formats import FORMATS
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, capture
from explorer.models.inputs import quantized_inputs
from explorer.survey import ModelRecipe, Survey, frontier, recipe_of
from explorer.survey.apply import card_of, constraints_of, input_scales_of, targets_with
from explorer.survey.assemble import assemble
from explorer.survey.check import RECIPE, WEIGHTS_ALONE, check_recipe
from explorer.survey.loss import reference_for
from explorer.survey.run import SurveyPlan, survey_model
from explorer.survey.verdict import truth, verdict

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("int4_group64", "int8_row", "fp8_e4m3_row")
TEXTS = ("the cat sleeps on the warm roof", "the train was late again", "salt lowers the roof")
HELD_OUT = ("she counts the ships", "the lamp was late", "the cat counts water and salt")
UP, QUERY, KEPT = (
    "model.layers.0.mlp.up_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.0.mlp.down_proj",
)


@pytest.fixture(scope="module")
def survey(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    out = tmp_path_factory.mktemp("surveys") / "s.jsonl"
    return survey_model(SurveyPlan(str(tiny_llama), None, NAMES, None, TEXTS), out)


def recipe(inputs: str, weights: str = "int8_row", span: str = "") -> ModelRecipe:
    layers = {UP: weights, QUERY: weights, KEPT: "bf16"}
    parsed = {name: Recipe.parse(text) for name, text in layers.items()}
    return ModelRecipe("m", None, "", parsed, inputs=inputs_of(inputs, span))


CASES = {
    "W8A8": ("int8_row", "int8_row"),
    "W8A8, static": ("int8_tensor", "int8_row"),
    "FP8": ("fp8_e4m3_row", "fp8_e4m3_row"),
    "FP8, static": ("fp8_e4m3_tensor", "fp8_e4m3_row"),
}


@pytest.mark.parametrize("case", CASES)
def test_the_loss_of_a_check_is_that_of_rounded_inputs(case: str, llama: Model) -> None:
    """A network made by hand has the same loss; the row of weights alone is the recipe without inputs; casts
    see their inputs as they are."""
    inputs, weights = CASES[case]
    chosen = recipe(inputs, weights)
    by_hand, largest = copy.deepcopy(llama.network), {UP: 127.0, QUERY: 127.0}
    scheme = SCHEMES[inputs]
    for captured in capture(llama, TEXTS, [UP, QUERY]):
        linear, amax = by_hand.get_submodule(captured.name), float(captured.activations.abs().max())
        linear.weight.data = quantize(linear.weight.data, SCHEMES[weights]).dequantize()
        scale = torch.tensor(amax) / scheme.format.max

        def rounded(module: Any, given: tuple[Tensor], scale: Tensor = scale) -> Tensor:
            (x,) = given
            if inputs.endswith("_row"):
                return quantize(x[0], scheme).dequantize()[None]
            codes = (x / scale).clamp(-scheme.format.max, scheme.format.max)
            whole = codes.round() if inputs.startswith("int8") else codes.to(torch.float8_e4m3fn).float()
            return whole * scale

        linear.register_forward_pre_hook(rounded)
    kept = by_hand.get_submodule(KEPT).weight
    kept.data = kept.data.bfloat16().float()
    check = check_recipe(chosen, llama, HELD_OUT, calibration=TEXTS)
    want = reference_for(llama, HELD_OUT).measure(by_hand).value
    assert check.rows[0].loss.value == pytest.approx(want, rel=1e-4) and largest
    assert [row.what for row in check.rows[:2]] == [RECIPE, WEIGHTS_ALONE]
    alone = check_recipe(replace(chosen, inputs=None), llama, HELD_OUT)
    assert check.rows[1].loss.value == alone.rows[0].loss.value != check.rows[0].loss.value
    assert "run with quantized inputs" in truth(check) and "quantized inputs" not in truth(alone)
    beside = [SCHEMES[row.name] for row in check.rows[2:]]
    assert not any(product_refusal(scheme, other) for other in beside), "it is not multiplied with these"


def test_fixed_scales_are_of_all_tokens(llama: Model) -> None:
    """The largest |x| of the original model's inputs over 127; a percentile is at most that."""
    found = input_scales_of(recipe("int8_tensor"), lambda: llama, TEXTS)
    want = {c.name: float(c.activations.abs().max()) / 127 for c in capture(llama, TEXTS, [UP, QUERY])}
    assert found == pytest.approx(want) and KEPT not in found
    less = input_scales_of(recipe("int8_tensor", span="percentile"), lambda: llama, TEXTS)
    assert all(0 < less[name] <= found[name] for name in found)
    none = input_scales_of(recipe("int8_row"), lambda: pytest.fail("the model was loaded"))
    assert none == {}


def test_inputs_beyond_a_fixed_scale_saturate() -> None:
    """As readers do: int8 has one step more below zero."""
    x = torch.tensor([[-3.0, -0.01, 0.0, 0.26, 3.0]])
    seen = quantized_inputs(x, SCHEMES["int8_tensor"], 0.01)
    assert torch.allclose(seen, torch.tensor([[-1.28, -0.01, 0.0, 0.26, 1.27]]))
    assert FORMATS["int8"].qmin == -128


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
    with pytest.raises(ValueError, match="quantize inputs per token"):
        check_recipe(recipe("int8_tensor", "int8_row+smoothquant"), llama, HELD_OUT, calibration=TEXTS)
    assert check_recipe(recipe("int8_row", "int8_row+smoothquant"), llama, HELD_OUT).rows[0].loss.value > 0


@pytest.mark.parametrize("target", ["", "vllm", "compressed-tensors"])
def test_only_schemes_that_are_multiplied_are_chosen(survey: Survey, target: str) -> None:
    """With FP8 inputs that is FP8, whatever else would fit the budget; the prediction says what it is of."""
    kept_to = constraints_of(target, survey, inputs=SCHEMES["fp8_e4m3_row"])
    front = frontier(survey, "", kept_to)
    choice = front.at(9)
    chosen = recipe_of(survey, choice, constraints=kept_to)
    assert set(map(str, chosen.layers.values())) == {"fp8_e4m3_row"} and kept_to.inputs == (chosen.inputs,)
    assert "INT8 per row" in front.refused["int8_row"]
    assert "of the weights; quantized inputs add to it" in verdict(front, choice)
    assert "Inputs of these layers are quantized too: FP8 per token" in card_of(chosen)
    with pytest.raises(ValueError, match=r"gguf: its reader decides.* is for compressed-tensors or vllm"):
        constraints_of("gguf", survey, inputs=SCHEMES["int8_row"])
    assert targets_with(SCHEMES["int8_row"]) == ("compressed-tensors", "vllm")


def test_files_keep_the_inputs() -> None:
    """Old files have none; what is no scheme of inputs is refused."""
    chosen = recipe("int8_tensor", span="percentile")
    again = ModelRecipe.from_json(chosen.to_json())
    assert again == chosen and again.inputs is not None and again.inputs.calibrator.name == "percentile"
    about = json.loads(chosen.to_json())
    old = {key: value for key, value in about.items() if key != "inputs"}
    assert ModelRecipe.from_json(json.dumps(old)).inputs is None
    with pytest.raises(ValueError, match="not by 'mxfp4'"):
        ModelRecipe.from_json(json.dumps(about | {"inputs": "mxfp4"}))


@pytest.fixture(scope="module")
def files(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a survey of a tiny model."""
    folder = tmp_path_factory.mktemp("inputs")
    (folder / "t.txt").write_text("\n".join(TEXTS))
    command = ["survey", str(tiny_llama), "--text", str(folder / "t.txt"), "--schemes", ",".join(NAMES)]
    assert main([*command, "--out", str(folder / "m.jsonl"), "--json"]) == 0
    return folder


@pytest.mark.parametrize("inputs", ["int8_row", "int8_tensor", "fp8_e4m3_row"])
def test_one_command_each(inputs: str, files: Path, tmp_path: Path, capsys: Any) -> None:
    """From a survey to a folder whose layers' inputs are quantized, opened and compared."""
    chosen, out = str(tmp_path / "r.json"), tmp_path / "made"
    command = ["recipe", str(files / "m.jsonl"), "--bits", "8.6", "--for", "compressed-tensors"]
    assert main([*command, "--inputs", inputs, "--out", chosen]) == 0
    assert "of the weights; quantized inputs add to it" in " ".join(capsys.readouterr().out.split())
    apply = ["apply", chosen, "--calibration", str(files / "t.txt"), "--verify", "--out", str(out)]
    assert main([*apply, "--to", "compressed-tensors"]) == 0
    groups = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"]
    fixed = inputs.endswith("_tensor")
    assert {group["input_activations"]["dynamic"] for group in groups.values()} == {not fixed}
    scales = [name for name in load_file(out / "model.safetensors") if name.endswith(".input_scale")]
    assert bool(scales) == fixed and "weights and inputs" in (out / "README.md").read_text()
    check = ["check", chosen, "--text", str(files / "t.txt"), "--calibration", str(files / "t.txt")]
    capsys.readouterr()
    assert main(check) == 0
    told = capsys.readouterr().out
    assert "weights alone" in told and "predicted, weights" in told


BAD = [
    ("--bits 9 --inputs int4_row", "not by 'int4_row'"),
    ("--bits 9 --input-range max", "--input-range is of the fixed scales that --inputs asks for"),
    ("--bits 9 --inputs int8_row --input-range max", "scales of int8_row are found as inputs come"),
    ("--bits 9 --inputs int8_row --for awq", "INT8 per token is for compressed-tensors or vllm"),
    ("--bits 9 --inputs int8_row --schemes int4_group64", "with symmetric INT8 weights by row or tensor"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[options for options, _ in BAD])
def test_bad_inputs_are_one_line(files: Path, options: str, words: str, capsys: Any) -> None:
    """What was wrong, and which targets and schemes there are."""
    assert main(["recipe", str(files / "m.jsonl"), *options.split()]) == 2
    last = capsys.readouterr().err.strip().splitlines()[-1]
    assert last.startswith("error: ") and words in last
