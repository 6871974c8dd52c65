"""Recipes that quantize the inputs of layers, all alike or each in its own way: what that costs as a survey
predicts it, chosen, run, and in files.

If these fail, the loss that is called that of W8A8 is that of its weights alone, or a checkpoint has other
scales than the model that was measured.
"""

from __future__ import annotations

import copy
import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from explorer import SCHEMES, quantize
from explorer.checkpoints.inputs import inputs_of, product_refusal
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, capture, load_model
from explorer.models.inputs import find_input_scales, quantized_inputs
from explorer.products.shape_times import ShapeTime
from explorer.schemes import Scheme
from explorer.survey import Constraints, ModelRecipe, Survey, frontier, recipe_of
from explorer.survey.apply import card_of, constraints_of, input_scales_of, targets_with
from explorer.survey.assemble import assemble
from explorer.survey.budget import keeping_inputs
from explorer.survey.check import RECIPE, WEIGHTS_ALONE, check_recipe
from explorer.survey.evidence import gather, weights_of
from explorer.survey.loss import LossReference, each_objective, reference_for
from explorer.survey.sentences import what_it_buys
from explorer.survey.times import StepTimes
from tests.checkpoints.writing import write_checkpoint
from tests.survey.conftest import DOWN, HELD_OUT, QUERY, UP
from tests.survey.conftest import SEEN as TEXTS
from tests.survey.conftest import TEXTS as SENTENCES

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
    kept_to = constraints_of(target, tiny_survey, inputs=SCHEMES["fp8_e4m3_row"])
    front = frontier(tiny_survey, "", kept_to)
    chosen = recipe_of(tiny_survey, front.at(9), constraints=kept_to)
    assert "quantized inputs add to it" in what_it_buys(front, front.at(9))
    assert set(map(str, chosen.layers.values())) == {"fp8_e4m3_row"} and kept_to.inputs == (chosen.inputs,)
    assert "INT8 per row" in front.refused["int8_row"] and "FP8 per token" in card_of(chosen)
    with pytest.raises(ValueError, match=r"gguf.*compressed-tensors or vllm"):
        constraints_of("gguf", tiny_survey, inputs=SCHEMES["int8_row"])
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


@pytest.fixture
def known(made_up: Survey) -> Survey:
    """The made-up survey of four layers with what quantized inputs add: a tenth of INT4's loss, and more."""
    shares = (0.1, 0.5, 0.02, 2.0)
    layers = [
        replace(x, inputs={"int8_row": share * x.costs["fisher"]["int4_group128_asym"]})
        for x, share in zip(made_up.linear[:4], shares, strict=True)
    ]
    return Survey(replace(made_up.head, layers=4, inputs=("int8_row",)), tuple(layers))


def seconds(scheme: Scheme, shape: tuple[int, int], inputs: Scheme | None) -> ShapeTime:
    """By bits of the weights, half of that where both are codes."""
    taken = 1e-9 * shape[0] * shape[1] * scheme.format.bits * (0.5 if inputs else 1)
    return ShapeTime((1, *shape), "measured", seconds=taken)


def test_budgets_of_time_choose_inputs_too(known: Survey) -> None:
    """The choice is the best of all pairs of schemes by layer, found by trying them all."""
    names, times = ("int4_group128_asym", "int8_row", "mxfp6_e2m3"), StepTimes("a GPU", 1, seconds)
    kept_to = constraints_of("", schemes=names, inputs=(EIGHT, None), times=times)
    front = frontier(known, "fisher", kept_to)
    pairs = [(name, "") for name in names] + [("int8_row", "int8_row")]
    every = []
    for chosen in itertools.product(pairs, repeat=4):
        taken = loss = 0.0
        for layer, (name, inputs) in zip(known.linear, chosen, strict=True):
            taken += seconds(SCHEMES[name], layer.shape, EIGHT if inputs else None).seconds or 0
            loss += layer.cost("fisher", name) + layer.inputs.get(inputs, 0.0)
        every.append((taken, loss))
    low, high = min(t for t, _ in every), max(t for t, _ in every)
    seen = set()
    for share in (0.0, 0.2, 0.4, 0.7, 1.0):
        budget = low + share * (high - low) + 1e-15
        choice = front.at_time(budget)
        assert choice.loss == pytest.approx(min(loss for t, loss in every if t <= budget))
        assert choice.time is not None and choice.time.seconds <= budget
        assert all(choice.schemes[name] == "int8_row" for name in choice.inputs)
        seen.add(len(choice.inputs))
    assert len(seen) > 2, "never the inputs of all layers or none alone"
    at = front.at_time(low + 0.4 * (high - low))
    chosen = recipe_of(known, at, "fisher", constraints=kept_to)
    assert {name: str(one) for name, one in chosen.input_schemes.items()} == at.inputs
    without = StepTimes("a GPU", 1, lambda scheme, shape, inputs: ShapeTime((1, *shape), "none", reason="x"))
    with pytest.raises(ValueError, match="x"):  # not why INT4 has no product with INT8
        frontier(known, "fisher", replace(kept_to, times=without))


def test_inputs_of_the_least_sensitive_layers_are_quantized(known: Survey) -> None:
    """Within the limit, by what they add for their weights; others keep theirs and any scheme."""
    kept_to = constraints_of("", known, inputs=EIGHT)
    each = {x.name: x.inputs["int8_row"] for x in known.linear}
    order = sorted(known.linear, key=lambda x: each[x.name] / x.weights)
    for count in range(5):
        names = {x.name for x in order[:count]}
        limited = keeping_inputs(known, kept_to, sum(each[name] for name in names) * (1 + 1e-9))
        choice = frontier(known, "fisher", limited).at(8.1)
        assert set(choice.inputs) == names
        chosen = recipe_of(known, choice, "fisher", constraints=limited)
        assert chosen.predicted_inputs == pytest.approx(sum(each[name] for name in names))
        weights = sum(x.cost("fisher", choice.schemes[x.name]) for x in known.linear)
        assert chosen.predicted_loss == pytest.approx(weights + (chosen.predicted_inputs or 0))
        assert ModelRecipe.from_json(chosen.to_json()) == chosen
        assert set(chosen.input_schemes) == names and "to which" not in card_of(chosen)
    with pytest.raises(ValueError, match="fp8_e4m3_row"):
        frontier(known, "fisher", constraints_of("", known, inputs=(FLOAT8, None)))
    with pytest.raises(ValueError, match="weight"):
        frontier(known, "weight", constraints_of("", known, inputs=(EIGHT, None)))
    with pytest.raises(ValueError, match="--inputs fp8_e4m3_row"):
        keeping_inputs(known, Constraints(inputs=(FLOAT8,)), 1.0)


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


NAMES = ("int8_row", "fp8_e4m3_row", "int8_tensor", "nvfp4")
OF_LLAMA = tuple(
    f"model.layers.{block}.{part}"
    for block in (0, 1)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
)
OF_BERT = ("encoder.layer.0.attention.self.query", "encoder.layer.0.output.dense")


def predicted(model: Model, layers: tuple[str, ...], reference: LossReference) -> dict[str, dict[str, float]]:
    """Layer -> scheme -> the loss that its quantized inputs add."""
    weights = weights_of(model.network, dict.fromkeys(layers))
    schemes = {name: SCHEMES[name] for name in NAMES}
    found = gather(model, reference, weights, ("weight", "fisher"), inputs=schemes)
    return {name: dict(evidence.quantized_inputs) for name, evidence in found.items()}


def fixed_scales(model: Model, layers: tuple[str, ...], scheme: str) -> dict[str, float]:
    """Of each layer, for schemes that have any."""
    if scheme.endswith("_row"):
        return {}
    return find_input_scales(model, {x: x for x in layers}, dict.fromkeys(layers, SCHEMES[scheme]), TEXTS)


@pytest.mark.parametrize(("model", "layers"), [("tiny_llama", OF_LLAMA[:5]), ("tiny_bert", OF_BERT)])
def test_losses_are_sums_over_gradients(model: str, layers: tuple[str, ...], request: Any) -> None:
    """½ Σ (g · Δ)² over tokens and objectives, a sample each, of gradients that autograd gives by zeros that
    are added to the inputs of one layer alone."""
    loaded = load_model(str(request.getfixturevalue(model)), head=True)
    reference = reference_for(loaded, TEXTS)
    found = predicted(loaded, layers, reference)
    for layer in layers:
        zeros: list[Tensor] = []
        seen: list[Tensor] = []

        def add(module: nn.Module, given: tuple[Tensor, ...], zeros: Any = zeros, seen: Any = seen) -> Any:
            zeros[:] = [torch.zeros_like(given[0], requires_grad=True)]
            seen[:] = [given[0].detach()]
            return given[0] + zeros[0]

        hook = loaded.network.get_submodule(layer).register_forward_pre_hook(add)
        sums, samples = dict.fromkeys(NAMES, 0.0), 0
        scales = {name: fixed_scales(loaded, (layer,), name).get(layer) for name in NAMES}
        for one in each_objective(reference):
            (gradient,) = torch.autograd.grad(one.scalar, zeros, retain_graph=one.again)
            samples += one.samples
            for name in NAMES:
                error = quantized_inputs(seen[0], SCHEMES[name], scales[name]) - seen[0]
                sums[name] += float((gradient * error).sum(-1).square().sum()) / 2
        hook.remove()
        assert found[layer] == pytest.approx(
            {name: total / samples for name, total in sums.items()}, rel=1e-4
        )


@pytest.mark.thorough
def test_losses_are_those_of_single_layers(llama: Model) -> None:
    """Predicted beside measured, with the inputs of one layer quantized: in order, and of the right size."""
    reference = reference_for(llama, SENTENCES * 8)
    found = predicted(llama, OF_LLAMA, reference)
    pairs = []
    for scheme in NAMES:
        for layer, scale in (fixed_scales(llama, OF_LLAMA, scheme) or dict.fromkeys(OF_LLAMA)).items():

            def rounded(module: nn.Module, given: tuple[Tensor, ...], of: Any = (scheme, scale)) -> Tensor:
                return quantized_inputs(given[0], SCHEMES[of[0]], of[1])

            hook = llama.network.get_submodule(layer).register_forward_pre_hook(rounded)
            pairs.append((found[layer][scheme], reference.measure(llama.network).value))
            hook.remove()
    told, true = map(torch.tensor, zip(*pairs, strict=True))
    assert spearmanr(told, true)[0] > 0.9
    assert float((told / true).median()) == pytest.approx(1, abs=0.25)
