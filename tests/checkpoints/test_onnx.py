"""ONNX graphs, run by ONNX Runtime on the CPU.

If these fail, the graph computes with other weights than those that were measured here, or is another model.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from explorer import SCHEMES, quantize
from explorer.checkpoints import write_checkpoint, write_one
from explorer.methods.recipe import Recipe
from tests.checkpoints.readers.onnx import read, session
from tests.checkpoints.reading import NAME, Expected, continuation, uniform

BOUND = 2e-5
"""Of the largest logit: the same weights meet other orders of summation."""


CHECKED = [
    ("onnx", "int8_row"), ("onnx", "int4_group64_asym"), ("onnx", "int2_group64"), ("onnx", "fp8_e4m3_row"),
    ("onnx", "bf16"), ("onnx", "fp16"), ("onnx-nbits", "int4_group32_asym"),
]  # fmt: skip


def test_the_standards_own_checker_agrees(tmp_path: Path) -> None:
    """Types, shapes and versions of operations are those of the standard; casts are restored, too."""
    for target, scheme in CHECKED:
        q = quantize(torch.randn(48, 256), SCHEMES[scheme])
        path = write_one(target, q, tmp_path / f"{target}-{scheme}", NAME)
        onnx.checker.check_model(onnx.load(path), full_check=target == "onnx")
        assert torch.equal(read(path, q.scheme), q.dequantize()), scheme


MIXED = {
    "onnx": ("int8_row", "int4_group64_asym", "int4_group128", "fp8_e4m3_row", "int8_tensor", "bf16"),
    "onnx-nbits": ("int4_group32", "int8_group128", "int2_group64", "int4_group128_asym", "fp16"),
}


@pytest.mark.parametrize("target", MIXED)
def test_a_whole_model_says_the_same(
    target: str, llama: Path, layers: list[str], tokens: Tensor, expected: Expected, tmp_path: Path
) -> None:
    """By a mixed recipe, of two texts, one of them padded in front."""
    schemes = MIXED[target]
    recipes = {
        name: Recipe(SCHEMES[schemes[i % len(schemes)]]) for i, name in enumerate([*layers[2:], "lm_head"])
    }
    written = write_checkpoint(target, llama, recipes, tmp_path / "out")
    ours, run = expected(recipes, torch.float32), session(written.folder / "model.onnx")
    assert difference(run, ours, tokens) < BOUND
    assert generate(run, tokens) == continuation(ours, tokens)
    padded = torch.cat([torch.ones(1, 3, dtype=torch.int64), tokens], 1)
    mask = (torch.arange(padded.shape[1]) >= 3).long()[None]
    (there,) = run.run(None, {"input_ids": padded.numpy(), "attention_mask": mask.numpy()})
    with torch.no_grad():
        here = ours(tokens).logits[0]
    assert float((torch.from_numpy(there[0, 3:]) - here).abs().max() / here.abs().max()) < BOUND


def difference(run: onnxruntime.InferenceSession, ours: nn.Module, tokens: Tensor) -> float:
    """The largest of the logits, over the largest logit."""
    batch = torch.cat([tokens, tokens.flip(1)])
    feed = {"input_ids": batch.numpy(), "attention_mask": np.ones_like(batch)}
    (there,) = run.run(None, feed)
    with torch.no_grad():
        here = ours(batch).logits
    return float((torch.from_numpy(there) - here).abs().max() / here.abs().max())


def generate(run: onnxruntime.InferenceSession, tokens: Tensor) -> list[int]:
    """Eight tokens, the most likely each."""
    ids = tokens.numpy()
    for _ in range(8):
        (logits,) = run.run(None, {"input_ids": ids, "attention_mask": np.ones_like(ids)})
        ids = np.concatenate([ids, logits[:, -1:].argmax(2)], 1)
    return ids[0, tokens.shape[1] :].tolist()


def test_an_encoder_gives_our_embeddings(minilm: Path, tmp_path: Path) -> None:
    """all-MiniLM-L6-v2 in INT8 a row: hidden states of two sentences, one of them padded."""
    network = AutoModel.from_pretrained(minilm).eval()
    parts = ("attention.self.query", "attention.self.value", "intermediate.dense", "output.dense")
    layers = [f"encoder.layer.{i}.{part}" for i in range(6) for part in parts]
    recipes = uniform(layers, "int8_row")
    written = write_checkpoint("onnx", minilm, recipes, tmp_path / "out")
    for name in layers:
        weight = network.get_submodule(name).weight
        weight.data = quantize(weight.data, recipes[name].scheme).dequantize()
    texts = AutoTokenizer.from_pretrained(minilm)(
        ["A short one.", "One that is a little longer."], padding=True
    )
    feed = {key: np.array(value) for key, value in texts.items()}
    (there,) = session(written.folder / "model.onnx").run(None, feed)
    with torch.no_grad():
        here = network(**{key: torch.from_numpy(value) for key, value in feed.items()}).last_hidden_state
    seen = torch.from_numpy(feed["attention_mask"]).bool()
    assert float((torch.from_numpy(there) - here)[seen].abs().max()) < 1e-4


def test_other_models_are_refused(llama: Path, layers: list[str], minilm: Path, tmp_path: Path) -> None:
    """A graph that is built of another kind of model would compute something else; BERT's pooler never
    reaches the hidden state that embeddings are made of."""
    model = Path(shutil.copytree(llama, tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    for settings, fact in (
        ({"model_type": "gpt_neox"}, "llama, mistral, .*, bert"),
        ({"hidden_act": "relu"}, "'relu'"),
        ({"rope_parameters": {"rope_type": "yarn"}}, "'llama'"),
    ):
        (model / "config.json").write_text(json.dumps(config | settings))
        with pytest.raises(ValueError, match=fact):
            write_checkpoint("onnx", model, uniform(layers, "int8_row"), tmp_path / "out")
    with pytest.raises(ValueError, match=r"pooler\.dense"):
        write_checkpoint("onnx", minilm, {"pooler.dense": Recipe(SCHEMES["int8_row"])}, tmp_path / "out")
