"""Recipes that say how keys and values are stored: in their file, when they are checked, and in checkpoints.

If these fail, a check measures another cache than the recipe names, or a checkpoint tells an engine another.
"""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from explorer.analysis.cache import KEYS, VALUES, CachePlan
from explorer.checkpoints import EXPORTS, write_checkpoint
from explorer.checkpoints.model import ModelFolder
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, load_model
from explorer.survey import ModelRecipe, cache
from explorer.survey.apply import against_cache, card_of
from explorer.survey.assemble import assemble
from explorer.survey.cache import CachedNetwork, fixed_scales
from explorer.survey.check import RECIPE, WEIGHTS_ALONE, check_recipe
from explorer.survey.loss import reference_for
from tests.survey.conftest import HELD_OUT
from tests.survey.conftest import SEEN as TEXTS

pytestmark = pytest.mark.usefixtures("one_thread")
LAYERS = {f"model.layers.0.mlp.{name}_proj": Recipe.parse("int8_row") for name in ("up", "gate")}
FIXED = CachePlan.parse("fp8_e4m3_tensor/fp8_e4m3_tensor")
SCALES = {f"layers.{i}.{part}": 0.5 for i in range(4) for part in (KEYS, VALUES)}
PLANS = {
    "fixed": FIXED,
    "cast": CachePlan.parse("fp8_e4m3_cast/fp8_e4m3_cast"),
    "by token": CachePlan.parse("int8_row/int4~1x16~asymmetric~float16~minmax", 2, True),
    "values alone": CachePlan.parse("/int8_row"),
}


def recipe(plan: CachePlan, where: str = "m") -> ModelRecipe:
    return ModelRecipe(where, None, "", LAYERS, cache=plan)


def test_a_recipes_file_holds_its_cache() -> None:
    """What is read is what was written; a file without a cache, as older ones are, is read as before."""
    for plan in PLANS.values():
        chosen = recipe(plan)
        assert ModelRecipe.from_json(chosen.to_json()) == chosen
        old = json.loads(chosen.to_json())
        del old["cache"]
        assert ModelRecipe.from_json(json.dumps(old)) == replace(chosen, cache=None)
    old["cache"] = {"keys": "int8_column", "values": "", "recent": 0, "rotated": False}
    with pytest.raises(ValueError, match="int8_column"):
        ModelRecipe.from_json(json.dumps(old))


@pytest.mark.parametrize("name", ["fixed", "values alone"])
def test_a_check_runs_the_cache_of_the_recipe(
    name: str, llama: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is that of the quantized network with the cache; that of weights alone is without it."""
    monkeypatch.setattr(cache, "PIECE", 2)
    plan = PLANS[name]
    check = check_recipe(recipe(plan), llama, HELD_OUT, calibration=TEXTS)
    network = assemble(llama, LAYERS, TEXTS).network
    cached = CachedNetwork(network, plan, fixed_scales(llama, plan, TEXTS))
    reference = reference_for(llama, HELD_OUT)
    assert [row.what for row in check.rows[:2]] == [RECIPE, WEIGHTS_ALONE] and check.cache == plan.described
    assert check.rows[0].loss.value == pytest.approx(reference.measure(cached).value, rel=1e-6)
    assert check.rows[1].loss.value == pytest.approx(reference.measure(network).value, rel=1e-6)
    assert check.rows[0].loss.value > check.rows[1].loss.value


def test_an_encoder_has_no_cache_to_check(tiny_bert: Path) -> None:
    """If this fails, a cache is accepted that nothing reads, or scales are written that no reader looks for."""
    layers = {"encoder.layer.0.output.dense": Recipe.parse("int8_row")}
    with pytest.raises(ValueError, match="no keys and values"):
        check_recipe(ModelRecipe("m", None, "", layers, cache=FIXED), load_model(str(tiny_bert)), TEXTS)
    assert EXPORTS["vllm"].against_cache(ModelFolder(tiny_bert), FIXED)


@pytest.mark.parametrize("target", ["compressed-tensors", "vllm"])
@pytest.mark.parametrize("name", ["fixed", "cast"])
def test_a_checkpoint_says_how_its_cache_is_stored(
    name: str, target: str, llama: Model, tiny_llama: Path, tmp_path: Path
) -> None:
    """config.json describes FP8 by a fixed scale, and the scales lie beside the projections."""
    plan, out = PLANS[name], tmp_path / "out"
    scales = fixed_scales(llama, plan, TEXTS)
    write_checkpoint(target, tiny_llama, LAYERS, out, cache=plan, cache_scales=scales)
    said = json.loads((out / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
    assert said == {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    tensors = load_file(out / "model.safetensors")
    for layer in range(2):
        for part, suffix in ((KEYS, "k_scale"), (VALUES, "v_scale")):
            stored = tensors[f"model.layers.{layer}.self_attn.{suffix}"]
            want = scales.get(f"layers.{layer}.{part}", 1.0)
            assert stored.shape == (1,) and float(stored) == pytest.approx(want, rel=1e-7)


def test_the_reader_of_a_checkpoint_stores_keys_and_values_as_the_check_did(
    llama: Model, tiny_llama: Path, tmp_path: Path
) -> None:
    """Logits of transformers with compressed-tensors are those of the network that a check runs; with scales
    so large that they round what is small to nothing, they are others."""
    from transformers import AutoModelForCausalLM

    ids = llama.tokenizer(TEXTS[0], return_tensors="pt").input_ids
    scales, network = fixed_scales(llama, FIXED, TEXTS), assemble(llama, LAYERS, TEXTS).network
    for name, factor in (("as found", 1.0), ("large", 2.0**12)):
        out, own = tmp_path / name, {key: scale * factor for key, scale in scales.items()}
        options = {"cache": FIXED, "cache_scales": own, "verified": True}
        write_checkpoint("compressed-tensors", tiny_llama, LAYERS, out, **options)
        opened = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        with torch.no_grad():
            want, exact = CachedNetwork(network, FIXED, own)(ids).logits, network(ids).logits
            assert torch.allclose(opened(ids).logits, want, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(want, exact, rtol=1e-3, atol=1e-3)


def test_layers_of_one_scheme_go_with_a_cache(tiny_llama: Path, tmp_path: Path) -> None:
    """transformers leaves out the scales of a cache where it decodes all weights as it loads them
    (``dequantize=True``): packed zero points, which it opens so alone, are refused beside one."""
    layers, target = {name: Recipe.parse("fp8_e4m3_row") for name in LAYERS}, "compressed-tensors"
    options = {"cache": FIXED, "cache_scales": SCALES, "verified": True}
    assert write_checkpoint(target, tiny_llama, layers, tmp_path / "out", **options).verified is not None
    layers = {name: Recipe.parse("int4_group32_asym") for name in LAYERS}
    with pytest.raises(ValueError, match="symmetric"):
        write_checkpoint(target, tiny_llama, layers, tmp_path / "o", **options)


@pytest.mark.parametrize("target", EXPORTS)
def test_a_checkpoint_that_cannot_say_the_cache_is_refused(target: str, tiny_llama: Path) -> None:
    """If this fails, a checkpoint is silent on a cache, or tells an engine one that it does not mean."""
    for name, plan in PLANS.items():
        says = target in ("compressed-tensors", "vllm") and name in ("fixed", "cast")
        chosen = recipe(plan, str(tiny_llama))
        why = against_cache(chosen, target, tiny_llama)
        assert (why == "") is says and plan.described in card_of(chosen, against_cache=why)
        if not says:
            with pytest.raises(ValueError, match="keys and values"):
                write_checkpoint(target, tiny_llama, LAYERS, Path("none"), cache=plan)


def test_commands_take_a_cache(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`recipe --cache` is in the file, `check` measures it or another by its own `--cache`, and `apply`
    writes it with the loss measured so."""
    chosen, out, text = str(tmp_path / "r.json"), tmp_path / "out", files["seen"]
    made = ["recipe", files["survey"], "--bits", "9", "--schemes", "int8_row", "--out", chosen]
    assert main([*made, "--cache", "fp8_e4m3_tensor/fp8_e4m3_tensor"]) == 0
    assert ModelRecipe.load(chosen).cache == FIXED
    other = CachePlan.parse("/int8_row", 3)
    for more, plan in ((["--calibration", text], FIXED), (["--cache", "/int8_row", "--recent", "3"], other)):
        capsys.readouterr()
        assert main(["check", chosen, "--text", text, *more, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["cache"] == plan.described
    to = ["--to", "compressed-tensors", "--out", str(out), "--measure", "--text", text, "--calibration", text]
    assert main(["apply", chosen, *to]) == 0
    assert FIXED.described in (out / "README.md").read_text()
