"""Checkpoints of models that are published quantized: written from their restored weights, and opened.

If these fail, an export holds codes that nothing restores, or other weights than the model's.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

from explorer import Scheme, SourceError, quantize
from explorer.checkpoints.model import ModelFolder
from explorer.methods.recipe import Recipe
from explorer.models.skeleton import is_expert
from tests.checkpoints.architectures import ARCHITECTURES
from tests.checkpoints.writing import write_checkpoint
from tests.sources.coded_models import tiles, to_fp8, to_mxfp4

BY = Scheme.parse("int4~1x32~symmetric~bfloat16~minmax")
"""Its scales are exact in the dtype of the models, which the reader rounds scales to."""
TILE = 48
"""No whole number of these makes a row or column of the tiny models."""
MODELS: dict[str, Callable[[Path, Path], Path]] = {
    "llama with biases": lambda model, out: to_fp8(model, out, TILE),
    "deepseek v3": lambda model, out: to_fp8(model, out, TILE),
    "gpt-oss": to_mxfp4,
}
KEPT = ("q_proj", "q_a_proj")
"""Layers that stay as they are: a part of their names."""


@pytest.fixture(scope="module", params=MODELS)
def coded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    return MODELS[request.param](ARCHITECTURES[request.param].save(folder / "plain"), folder / "coded")


@pytest.fixture(scope="module")
def llama_fp8(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The small Llama of the other tests, with its tokenizer, in FP8."""
    folder = to_fp8(llama, tmp_path_factory.mktemp("models") / "fp8")
    for path in llama.glob("tokenizer*"):
        (folder / path.name).write_bytes(path.read_bytes())
    return folder


def restored(folder: Path) -> dict[str, Tensor]:
    """Every tensor of a coded folder in bfloat16, under the names of the network's own checkpoint."""
    from transformers.integrations.mxfp4 import convert_moe_packed_tensors

    stored, found = load_file(folder / "model.safetensors"), {}
    for name, tensor in stored.items():
        if name.endswith("_blocks"):
            whole = name.removesuffix("_blocks")
            found[whole] = convert_moe_packed_tensors(tensor, stored[f"{whole}_scales"])
        elif f"{name}_scale_inv" in stored:
            found[name] = tiles(tensor, stored[f"{name}_scale_inv"], TILE).bfloat16()
        elif not name.endswith(("_scale_inv", "_scales")):
            found[name] = tensor
    return found


def test_the_folder_reads_as_its_restored_copy(coded: Path) -> None:
    """If this fails, an export rounds codes, or experts whose inputs and outputs are exchanged."""
    model, want = ModelFolder(coded), restored(coded)
    assert {i.name: (i.shape, i.dtype) for i in model.infos} == {
        name: (tuple(t.shape), {torch.bfloat16: "BF16", torch.float32: "F32"}[t.dtype])
        for name, t in want.items()
    }
    for name, tensor in want.items():
        read = model.read(name)
        assert read.dtype is tensor.dtype and torch.equal(read, tensor), name
    assert "quantization_config" not in model.config and model.dtype is torch.bfloat16


def test_a_checkpoint_opens_and_agrees(coded: Path, tmp_path: Path) -> None:
    """If this fails, a checkpoint made of a coded model computes something else than its rounded weights."""
    model, want = ModelFolder(coded), restored(coded)
    places = {name: model.place(name) for name in model.matrices}
    layers = {
        name: Recipe(BY)
        for name, place in places.items()
        if (place.module or place.experts) and not name.endswith(KEPT) and name != "lm_head"
    }
    made = write_checkpoint("compressed-tensors", coded, layers, tmp_path / "out", verified=True)
    assert made.verified is not None and made.verified.layers + made.verified.unseen == len(layers)
    card = (made.folder / "README.md").read_text(encoding="utf-8")
    assert ("in MXFP4" if "gpt_oss" in model.type else "in FP8 E4M3") in card
    assert ("bytes more" in card) == bool(
        {name.removesuffix(".weight") for name in model.restored} - set(layers)
    )
    names = load_file(made.folder / "model.safetensors").keys()
    assert not [n for n in names if n.endswith(("_scale_inv", "_blocks", "_scales"))]
    auto = getattr(transformers, model.auto_class)
    theirs, told = auto.from_pretrained(made.folder, output_loading_info=True, dtype=torch.float32)
    assert not any(told[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), told
    for name in layers:
        rounded = quantize(want[f"{name}.weight"].float(), BY).dequantize()
        # The reader restores experts in the dtype of their scales before it stacks them.
        want[f"{name}.weight"] = rounded.bfloat16() if is_expert(name) else rounded
    config = transformers.AutoConfig.from_pretrained(coded)
    del config.quantization_config
    assert model.skeleton is not None
    kind: Any = type(model.skeleton.network)
    ours = kind.from_pretrained(None, config=config, state_dict=want, dtype=torch.float32)
    ids = {"input_ids": torch.arange(8, 32)[None]}
    for parameter in theirs.parameters():  # the experts are left in the dtype of their scales
        parameter.data = parameter.data.float() if parameter.is_floating_point() else parameter.data
    with torch.no_grad():
        there, here = theirs.eval()(**ids).logits, ours.eval()(**ids).logits
    assert float((there - here).abs().max() / here.abs().max()) < 1e-5
    assert any(is_expert(name) for name in layers) == ("deepseek" in model.type)


def test_other_quantized_models_are_refused(llama_fp8: Path, tmp_path: Path) -> None:
    """If this fails, codes of an unknown layout, or without their scales, are exported as weights."""
    folder = copied(llama_fp8, tmp_path / "model")
    tensors = load_file(folder / "model.safetensors")
    scales = next(name for name in tensors if name.endswith("_scale_inv"))
    save_file({**tensors, scales: tensors[scales].int()}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SourceError, match="I32"):
        ModelFolder(folder)
    del tensors[scales]
    save_file(tensors, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(SourceError, match="no scales"):
        ModelFolder(folder)


def copied(folder: Path, to: Path) -> Path:
    to.mkdir()
    for path in folder.iterdir():
        (to / path.name).write_bytes(path.read_bytes())
    return to
