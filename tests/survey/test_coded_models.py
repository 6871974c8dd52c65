"""Surveys of models that are published quantized: their restored weights are surveyed, and what no export can
write is counted.

If these fail, a recipe is chosen by numbers of codes, or most of a model is left out without a word.
"""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from explorer import SourceError
from explorer.cli import main
from explorer.models.capture import load_model
from explorer.survey import Constraints, Role, Survey, frontier, recipe_of
from explorer.survey.kinds import itemsize
from explorer.survey.run import SurveyPlan, survey_model
from explorer.survey.verdict import about
from tests.checkpoints.architectures import ARCHITECTURES
from tests.sources.coded_models import tiles, to_fp8, to_mxfp4

SCHEMES = ("int4_group32", "fp8_e4m3_row")
TEXTS = ("the cat sleeps on the warm roof", "the train was late again")
TILE = 48
"""No whole number of these makes a row or column of the tiny models."""


def surveyed(folder: Path, out: Path, signals: tuple[str, ...] | None = ("weight",)) -> Survey:
    return survey_model(SurveyPlan(str(folder), None, SCHEMES, signals, TEXTS), out / "s.jsonl")


@pytest.fixture(scope="module")
def gpt_oss(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tiny gpt-oss with experts in MXFP4."""
    folder = tmp_path_factory.mktemp("models")
    return to_mxfp4(ARCHITECTURES["gpt-oss"].save(folder / "plain"), folder / "mxfp4")


def test_an_fp8_model_is_run_as_it_was_restored(tiny_llama: Path, tmp_path: Path) -> None:
    """If this fails, gradients are of other weights than the model's: transformers spreads the scales of
    tiles that are cut at an edge over the wrong rows."""
    folder = to_fp8(tiny_llama, tmp_path / "fp8", TILE)
    model = load_model(str(folder), head=True)
    stored = load_file(folder / "model.safetensors")
    restored = 0
    for name, weight in model.network.state_dict().items():
        scales = stored.get(f"{name}_scale_inv")
        want = stored[name].float() if scales is None else tiles(stored[name], scales, TILE)
        assert weight.dtype is torch.float32 and torch.equal(weight, want)
        restored += scales is not None
    assert restored == 14


def test_an_fp8_model_is_surveyed_as_its_restored_copy(tiny_llama: Path, tmp_path: Path) -> None:
    """If this fails, layers cost something else than those of the same model in plain floats."""
    folder = to_fp8(tiny_llama, tmp_path / "fp8", TILE)
    found = surveyed(folder, tmp_path, None)
    assert found.head.loss == "next token" and not found.head.why
    stored = load_file(folder / "model.safetensors")
    plain = tmp_path / "plain"
    plain.mkdir()
    (plain / "s").mkdir()
    for path in tiny_llama.glob("*.json"):
        (plain / path.name).write_bytes(path.read_bytes())
    values = {
        n: tiles(t, stored[f"{n}_scale_inv"], TILE) if f"{n}_scale_inv" in stored else t.float()
        for n, t in stored.items()
        if not n.endswith("_scale_inv")
    }
    save_file(values, plain / "model.safetensors", {"format": "pt"})
    want = surveyed(plain, plain / "s", None)
    assert [(x.name, x.role, x.bits, x.costs) for x in found.layers] == [
        (x.name, x.role, x.bits, x.costs) for x in want.layers
    ]
    assert found.head.parameters == want.head.parameters


def test_fp8_experts_are_surveyed_by_weight(tmp_path: Path) -> None:
    """If this fails, a DeepSeek model is surveyed without its experts, or stops at its scales."""
    plain = ARCHITECTURES["deepseek v3"].save(tmp_path / "plain")
    folder = to_fp8(plain, tmp_path / "fp8", TILE)
    (tmp_path / "s").mkdir()
    one, other = surveyed(folder, tmp_path), surveyed(plain, tmp_path / "s")
    assert [(x.name, x.role, x.shape) for x in one.layers] == [
        (x.name, x.role, x.shape) for x in other.layers
    ]
    assert {x.dtype for x in one.linear if x.role is Role.LINEAR} == {f"F8_E4M3 {TILE}×{TILE}"}


@pytest.mark.parametrize("coded", [True, False])
def test_experts_that_no_export_writes_are_counted(coded: bool, gpt_oss: Path, tmp_path: Path) -> None:
    """If this fails, a survey of gpt-oss is silent on most of its weights, or a recipe names them."""
    folder = gpt_oss if coded else gpt_oss.parent / "plain"
    found = surveyed(folder, tmp_path)
    roles = Counter(layer.role for layer in found.layers)
    assert roles == {Role.LINEAR: 8, Role.HEAD: 1, Role.EMBEDDING: 1, Role.EXPERTS: 4}
    experts = [layer for layer in found.layers if layer.role is Role.EXPERTS]
    assert experts[0].name == "model.layers.0.mlp.experts.down_proj" and not experts[0].bits
    assert {layer.shape for layer in experts} == {(4 * 256, 64), (4 * 64, 128)} or not coded
    share = 100 * sum(layer.weights for layer in experts) / found.head.parameters
    assert f"{share:.0f} % of the weights" in about(found)
    assert "no target carries" in about(found)
    front = frontier(found)
    chosen = recipe_of(found, front.at(6), "weight")
    assert len(chosen.layers) == 8 and not any("experts" in name for name in chosen.layers)
    stored = load_file(folder / "model.safetensors")
    rest = sum(t.nbytes for n, t in stored.items() if n.removesuffix(".weight") not in chosen.layers)
    assert abs(front.kept_bytes - rest) <= 4, "coded experts count as they are stored"
    written = frontier(found, constraints=Constraints(target="compressed-tensors")).kept_bytes
    assert written - front.kept_bytes == sum(x.growth for x in experts)
    assert sum(x.stored_bytes + x.growth for x in experts) == itemsize(
        experts[0].dtype if not coded else "BF16"
    ) * (sum(x.weights for x in experts))


def test_a_model_of_plain_layers_says_nothing_of_experts(tiny_llama: Path, tmp_path: Path) -> None:
    """If this fails, every survey's summary gets longer by a sentence about nothing."""
    assert "expert" not in about(surveyed(tiny_llama, tmp_path))


def test_the_commands_say_what_is_kept(
    gpt_oss: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, a reader of the commands takes a recipe of a quarter of the weights for one of all."""
    out = str(tmp_path / "s.jsonl")
    assert main(["survey", str(gpt_oss), "--schemes", "int8_row", "--signal", "weight", "--out", out]) == 0
    assert "74 % of the weights (104 kB as stored, 393 kB restored by an export)" in capsys.readouterr().err
    assert main(["recipe", out, "--bits", "9"]) == 0
    stored = capsys.readouterr().out
    assert main(["recipe", out, "--bits", "9", "--for", "compressed-tensors"]) == 0
    restored = capsys.readouterr().out
    assert "the rest of it as it is stored" in stored and "its codes restored to 16 bits" in restored


@pytest.mark.parametrize(
    ("dtype", "size"),
    [("F8_E4M3 128×128", 1 + 4 / 128**2), ("F4_E2M1 1×32", 4.25 / 8), ("MXFP4", 2), ("F8_E4M3", 1)],
)
def test_restored_weights_count_as_stored(dtype: str, size: float) -> None:
    """If this fails, a model in FP8 or MXFP4 is said to be up to four times as large as it is."""
    assert itemsize(dtype) == size


def test_a_damaged_model_is_not_run(tiny_llama: Path, tmp_path: Path) -> None:
    """If this fails, a network runs with layers whose scales are missing."""
    folder = to_fp8(tiny_llama, tmp_path / "fp8", TILE)
    stored = load_file(folder / "model.safetensors")
    lost = next(name for name in stored if name.endswith("_scale_inv"))
    del stored[lost]
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SourceError, match="has no scales"):
        load_model(str(folder))


def test_gpt_oss_runs_with_its_restored_experts(gpt_oss: Path, tiny_llama: Path, tmp_path: Path) -> None:
    """If this fails, experts are run with inputs and outputs exchanged, or not at all."""
    from transformers import AutoModelForCausalLM, Mxfp4Config

    folder = tmp_path / "model"
    folder.mkdir()
    for path in [*gpt_oss.iterdir(), *tiny_llama.glob("tokenizer*")]:
        (folder / path.name).write_bytes(path.read_bytes())
    ours = load_model(str(folder), head=True).network
    theirs = AutoModelForCausalLM.from_pretrained(
        folder, quantization_config=Mxfp4Config(dequantize=True), dtype=torch.float32
    )
    for name, weight in theirs.state_dict().items():
        assert torch.equal(ours.state_dict()[name], weight.float()), name
