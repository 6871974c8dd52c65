"""Surveys of models that are published quantized: their restored weights are surveyed, and what no export can
write is counted.

If these fail, a recipe is chosen by numbers of codes, or most of a model is left out without a word.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from explorer import SourceError, open_source
from explorer.checkpoints import EXPORTS
from explorer.methods.recipe import Recipe
from explorer.models.capture import load_model
from explorer.models.files import itemsize, linear_names
from explorer.survey import Constraints, Role, Survey, frontier, recipe_of
from explorer.survey.run import SurveyPlan, survey_model
from explorer.survey.sentences import about
from tests.checkpoints.architectures import ARCHITECTURES
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled
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


def test_an_fp8_model_is_surveyed_as_its_restored_copy(tiny_llama: Path, tmp_path: Path) -> None:
    """If this fails, layers cost something else than those of the same model in plain floats, or gradients
    are of other weights: transformers spreads the scales of tiles that are cut at an edge over wrong rows."""
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
    network = load_model(str(folder), head=True).network.state_dict()
    assert all(torch.equal(network[name], value) for name, value in values.items())
    want = surveyed(plain, plain / "s", None)
    assert [(x.name, x.role, x.bits, x.costs) for x in found.layers] == [
        (x.name, x.role, x.bits, x.costs) for x in want.layers
    ]
    assert found.head.parameters == want.head.parameters and "expert" not in about(found)
    del stored[next(name for name in stored if name.endswith("_scale_inv"))]
    save_file(stored, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SourceError, match="scales"):
        load_model(str(folder))


OF_GROUPS = "int4~1x32~asymmetric~float16~minmax"
TARGETS = [
    ("gptq", OF_GROUPS), ("awq", OF_GROUPS), ("compressed-tensors", "int4_group32"),
    ("bitsandbytes", "nf4_block64_double"), ("vllm", "nvfp4"),
]  # fmt: skip


@pytest.mark.parametrize(("target", "scheme"), sampled(TARGETS, TARGETS[:1]))
def test_checkpoints_of_codes_are_surveyed_and_written_anew(
    target: str, scheme: str, tiny_llama: Path, tmp_path: Path
) -> None:
    """If this fails, the commonest checkpoints cannot be quantized anew, or codes are surveyed as weights."""
    names = linear_names(open_source(str(tiny_llama)))
    by = dict.fromkeys(names, Recipe.parse(scheme))
    folder = write_checkpoint(target, tiny_llama, by, tmp_path / "coded").folder
    found = surveyed(folder, tmp_path)
    assert {layer.name for layer in found.layers if layer.role is Role.LINEAR} == set(names)
    (name, *_), source = names, open_source(str(folder))
    network = load_model(str(folder), head=True).network.state_dict()
    assert torch.equal(network[f"{name}.weight"], source.read(f"{name}.weight"))
    anew = dict.fromkeys(names, Recipe.parse("int8_row"))
    made = write_checkpoint("compressed-tensors", folder, anew, tmp_path / "again", verified=True)
    assert "holds weights as codes" in (made.folder / "README.md").read_text(encoding="utf-8")


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
    assert f"{share:.0f} %" in about(found)
    front = frontier(found)
    chosen = recipe_of(found, front.at(6), "weight")
    assert len(chosen.layers) == 8 and not any("experts" in name for name in chosen.layers)
    stored = load_file(folder / "model.safetensors")
    rest = sum(t.nbytes for n, t in stored.items() if n.removesuffix(".weight") not in chosen.layers)
    assert abs(front.kept_bytes - rest) <= 4, "coded experts count as they are stored"
    written = frontier(
        found, constraints=Constraints(target=replace(EXPORTS["compressed-tensors"], around=None))
    ).kept_bytes
    assert written - front.kept_bytes == sum(x.growth for x in experts)
    assert sum(x.stored_bytes + x.growth for x in experts) == itemsize(
        experts[0].dtype if not coded else "BF16"
    ) * (sum(x.weights for x in experts))


def test_weights_count_as_stored() -> None:
    """A float32 embedding counts with four bytes; if this fails, a model in FP8 or MXFP4 is said to be up to
    four times as large as it is."""
    sizes = {"F32": 4, "BF16": 2, "float64": 8, "I64": 8, "BOOL": 1, "F8_E4M3": 1, "Q4_K": 2, "MXFP4": 2}
    sizes |= {"FP8 E4M3 · 8.001953 bits": 8.001953 / 8, "MXFP4 · 4.25 bits": 4.25 / 8}
    assert {dtype: itemsize(dtype) for dtype in sizes} == sizes


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
