"""ONNX graphs, run by ONNX Runtime on the CPU.

If these fail, the graph computes with other weights than those that were measured here, or is another model.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
import torch
from torch import Tensor, nn
from transformers import AutoModel, AutoTokenizer

from explorer import SCHEMES, quantize
from explorer.checkpoints import write_one
from explorer.methods.recipe import Recipe
from tests.checkpoints.readers.onnx import read, session
from tests.checkpoints.reading import NAME, Expected, uniform
from tests.checkpoints.writing import write_checkpoint

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
    """By a mixed recipe, of two texts."""
    schemes = MIXED[target]
    recipes = {
        name: Recipe(SCHEMES[schemes[i % len(schemes)]]) for i, name in enumerate([*layers[2:], "lm_head"])
    }
    written = write_checkpoint(target, llama, recipes, tmp_path / "out")
    ours, run = expected(recipes, torch.float32), session(written.folder / "model.onnx")
    assert difference(run, ours, tokens) < BOUND


def difference(run: onnxruntime.InferenceSession, ours: nn.Module, tokens: Tensor) -> float:
    """The largest of the logits, over the largest logit."""
    batch = torch.cat([tokens, tokens.flip(1)])
    feed = {"input_ids": batch.numpy(), "attention_mask": np.ones_like(batch)}
    (there,) = run.run(None, feed)
    with torch.no_grad():
        here = ours(batch).logits
    return float((torch.from_numpy(there) - here).abs().max() / here.abs().max())


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


def test_what_never_reaches_the_embeddings_is_refused(minilm: Path, tmp_path: Path) -> None:
    """BERT's pooler is no part of the graph."""
    with pytest.raises(ValueError, match=r"pooler\.dense"):
        write_checkpoint("onnx", minilm, {"pooler.dense": Recipe(SCHEMES["int8_row"])}, tmp_path / "out")
