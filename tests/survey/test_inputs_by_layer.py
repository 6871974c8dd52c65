"""Recipes whose layers have their inputs quantized each in its own way: chosen, run, and in files.

If these fail, a layer that was chosen to keep its inputs has them rounded, or the other way round; or a
budget of time is spent where it costs most.
"""

from __future__ import annotations

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from explorer import SCHEMES, quantize
from explorer.checkpoints import write_checkpoint
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model
from explorer.products.shape_times import ShapeTime
from explorer.schemes import Scheme
from explorer.survey import Constraints, Survey, frontier, recipe_of
from explorer.survey.apply import card_of, constraints_of
from explorer.survey.budget import AS_THEY_ARE, keeping_inputs
from explorer.survey.check import check_recipe
from explorer.survey.loss import reference_for
from explorer.survey.recipe import ModelRecipe
from explorer.survey.times import StepTimes
from explorer.survey.verdict import truth, verdict
from tests.survey.conftest import TEXTS

pytestmark = pytest.mark.usefixtures("one_thread")
EIGHT, FLOAT8 = SCHEMES["int8_row"], SCHEMES["fp8_e4m3_row"]
UP, QUERY, DOWN = (
    "model.layers.0.mlp.up_proj",
    "model.layers.1.self_attn.q_proj",
    "model.layers.0.mlp.down_proj",
)
HELD_OUT = ("she counts the ships", "the lamp was late", "the cat counts water and salt")


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
    chosen = recipe_of(known, front.at_time(low + 0.4 * (high - low)), "fisher", constraints=kept_to)
    assert {name: str(one) for name, one in chosen.input_schemes.items()} == front.at_time(
        low + 0.4 * (high - low)
    ).inputs
    assert "quantized inputs add to it" not in verdict(front, front.at_time(high))
    without = StepTimes("a GPU", 1, lambda scheme, shape, inputs: ShapeTime((1, *shape), "none", reason="x"))
    with pytest.raises(ValueError, match="no time of a step: x"):  # not why INT4 has no product with INT8
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
    with pytest.raises(ValueError, match="does not predict what inputs by fp8_e4m3_row add"):
        frontier(known, "fisher", constraints_of("", known, inputs=(FLOAT8, None)))
    with pytest.raises(ValueError, match="weight predicts none"):
        frontier(known, "weight", constraints_of("", known, inputs=(EIGHT, None)))
    with pytest.raises(ValueError, match="survey the model with --inputs fp8_e4m3_row"):
        keeping_inputs(known, Constraints(inputs=(FLOAT8,)), 1.0)


def test_the_limit_holds_whatever_is_multiplied(known: Survey) -> None:
    """A way of inputs that no surveyed scheme is multiplied with is none, however little it adds; and layers
    of a scheme that only others can have keep their inputs, not their weights."""
    layers = tuple(replace(x, inputs={"int8_row": 1e-6, "fp8_e4m3_row": 0.5}) for x in known.linear)
    head = replace(known.head, inputs=("int8_row", "fp8_e4m3_row"))
    both = Survey(head, layers)
    weights = tuple(text for text in head.schemes if text.startswith("int4"))
    assert weights, "INT4 is not multiplied with INT8 inputs"
    kept_to = constraints_of("", both, inputs=(EIGHT, FLOAT8), schemes=weights)
    limited = keeping_inputs(both, kept_to, 0.001)
    assert set(limited.own_inputs.values()) == {AS_THEY_ARE}
    front = frontier(both, "fisher", limited)
    assert not front.left and not front.at(5).inputs


def recipe(**own: Scheme | None) -> ModelRecipe:
    """Three layers, of which one keeps its inputs and one has others."""
    layers = {UP: Recipe(EIGHT), QUERY: Recipe(FLOAT8), DOWN: Recipe(EIGHT)}
    return ModelRecipe("m", None, "", layers, inputs=EIGHT, own_inputs={QUERY: FLOAT8, DOWN: None, **own})


def test_a_check_rounds_the_inputs_of_each_layer(llama: Model) -> None:
    """A network made by hand has the same loss."""
    check = check_recipe(recipe(), llama, HELD_OUT)
    handles = []
    for name, weights, inputs in ((UP, EIGHT, EIGHT), (QUERY, FLOAT8, FLOAT8), (DOWN, EIGHT, None)):
        linear = llama.network.get_submodule(name)
        before = linear.weight.data
        linear.weight.data = quantize(before, weights).dequantize()
        handles.append((linear, before))
        if inputs is not None:

            def rounded(module: nn.Module, given: tuple[Tensor, ...], scheme: Scheme = inputs) -> Tensor:
                return quantize(given[0][0], scheme).dequantize()[None]

            handles.append((linear.register_forward_pre_hook(rounded), None))
    network = llama.network
    hooks = [handle for handle, before in handles if before is None]
    logits = [network(input_ids=torch.tensor([one.ids])).logits[0] for one in _sequences(llama)]
    for hook in hooks:
        hook.remove()
    for linear, before in handles:
        if before is not None:
            linear.weight.data = before
    total, count = 0.0, 0
    for one, after in zip(_sequences(llama), logits, strict=True):
        p, q = (x.log_softmax(-1) for x in (network(input_ids=torch.tensor([one.ids])).logits[0], after))
        total, count = total + float((p.exp() * (p - q)).sum().detach()), count + len(p)
    assert check.rows[0].loss.value == pytest.approx(total / count, rel=1e-3)
    said = "INT8 per token for 1 layer; FP8 per token for 1 layer; as they are for 1 layer"
    assert f"run with quantized inputs ({said})" in truth(check)


def _sequences(model: Model) -> Any:
    return reference_for(model, HELD_OUT).sequences


def test_recipes_name_layers_that_they_have() -> None:
    """A name that is misspelled would leave the inputs of a layer as they were not meant."""
    with pytest.raises(ValueError, match=r"how inputs of a\.b are quantized, and has no such layer"):
        recipe(**{"a.b": EIGHT})
    assert ModelRecipe.from_json(recipe().to_json()) == recipe()


def test_files_say_the_inputs_of_each_layer(tiny_llama: Path, tmp_path: Path) -> None:
    """Groups by scheme and inputs, opened by the reader; where one engine multiplies without them, words."""
    inputs = {UP: SCHEMES["int8_tensor"], QUERY: EIGHT}
    layers = dict.fromkeys((UP, QUERY, DOWN), Recipe(EIGHT))
    written = write_checkpoint(
        "compressed-tensors",
        tiny_llama,
        layers,
        tmp_path / "c",
        inputs=inputs,
        input_scales={UP: 0.02},
        verified=True,
    )
    assert written.verified is not None and written.verified.layers == 3
    groups = json.loads((tmp_path / "c" / "config.json").read_text())["quantization_config"]["config_groups"]
    found = {group["targets"][0]: group["input_activations"] for group in groups.values()}
    assert found[DOWN] is None and found[QUERY]["dynamic"] and not found[UP]["dynamic"]
    write_checkpoint(
        "vllm",
        tiny_llama,
        {UP: layers[UP], DOWN: layers[DOWN]} | _gate(),
        tmp_path / "v",
        inputs=dict.fromkeys((UP, *_gate()), EIGHT),
    )
    groups = json.loads((tmp_path / "v" / "config.json").read_text())["quantization_config"]["config_groups"]
    formats = {group["targets"][0]: group["format"] for group in groups.values()}
    assert formats == {UP: "int-quantized", DOWN: "pack-quantized"}
    with pytest.raises(ValueError, match="they need one way of quantizing inputs"):
        write_checkpoint("vllm", tiny_llama, {UP: layers[UP]} | _gate(), tmp_path / "w", inputs={UP: EIGHT})


def _gate() -> dict[str, Recipe]:
    """What vLLM multiplies together with ``UP``."""
    return {UP.replace("up_proj", "gate_proj"): Recipe(EIGHT)}


@pytest.fixture(scope="module")
def files(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a survey that predicts what inputs add."""
    folder = tmp_path_factory.mktemp("by-layer")
    (folder / "t.txt").write_text("\n".join(TEXTS))
    command = ["survey", str(tiny_llama), "--text", str(folder / "t.txt"), "--inputs", "int8_row"]
    command += ["--schemes", "int4_group64,int8_row", "--out", str(folder / "m.jsonl"), "--json"]
    assert main(command) == 0
    return folder


def test_one_command_each(files: Path, tmp_path: Path, capsys: Any) -> None:
    """From a survey to a folder in which some layers keep their inputs, checked on the way."""
    made, out, text = str(tmp_path / "r.json"), tmp_path / "out", str(files / "t.txt")
    command = ["recipe", str(files / "m.jsonl"), "--bits", "8.6", "--for", "compressed-tensors"]
    assert main([*command, "--inputs", "int8_row", "--inputs-loss", "0.001", "--out", made]) == 0
    told = " ".join(capsys.readouterr().out.split())
    chosen = ModelRecipe.load(made)
    assert 0 < len(chosen.input_schemes) < len(chosen.layers) and chosen.own_inputs
    assert "of the weights" not in told and "as they are for" in told and "they add" in told
    check = ["check", made, "--text", text, "--survey", str(files / "m.jsonl"), "--json"]
    assert main(check) == 0
    first, alone, *_ = json.loads(capsys.readouterr().out)["rows"]
    assert first["predicted"] == pytest.approx(chosen.predicted_loss)
    assert alone["predicted"] == pytest.approx((chosen.predicted_loss or 0) - (chosen.predicted_inputs or 0))
    assert (
        main(["apply", made, "--to", "compressed-tensors", "--verify", "--text", text, "--out", str(out)])
        == 0
    )
    groups = json.loads((out / "config.json").read_text())["quantization_config"]["config_groups"].values()
    rounded = [name for group in groups if group["input_activations"] for name in group["targets"]]
    assert sorted(rounded) == sorted(chosen.input_schemes)


BAD = [
    ("--bits 9 --inputs int8_row,none", "inputs as they are lose least, and take no more bits"),
    ("--bits 9 --inputs-loss 0.1", "--inputs-loss is of inputs that --inputs quantizes"),
    (
        "--bits 9 --inputs fp8_e4m3_row --inputs-loss 0.1",
        "the survey does not predict what quantized inputs add",
    ),
    ("--time 1ms --inputs fp8_e4m3_row,none", "the survey does not predict what inputs by fp8_e4m3_row add"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[options for options, _ in BAD])
def test_bad_choices_of_inputs_are_one_line(files: Path, options: str, words: str, capsys: Any) -> None:
    """What was wrong, and what to do."""
    assert main(["recipe", str(files / "m.jsonl"), *options.split()]) == 2
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith(f"error: {words}")
