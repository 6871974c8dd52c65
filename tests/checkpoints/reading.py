"""What tests of all targets ask of a model that another program has read, and who reads it."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np
import onnx
import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from explorer import SCHEMES, Scheme
from explorer.checkpoints import EXPORTS, Plan
from explorer.checkpoints.model import ModelFolder
from explorer.methods.recipe import Recipe
from tests import covering

NAME = "layer"
"""Of the one tensor in the files that readers are given."""
Reader = Callable[[Path, Scheme], Tensor]
"""(file of one tensor, its scheme) -> the weight [N, K] as the target's program restores it."""

Expected = Callable[[Mapping[str, Recipe], torch.dtype], LlamaForCausalLM]


def uniform(layers: list[str], scheme: str) -> dict[str, Recipe]:
    """All ``layers`` by one scheme."""
    return dict.fromkeys(layers, Recipe(Scheme.parse(scheme)))


def compare(theirs: Any, ours: nn.Module, layers: list[str], tokens: Tensor) -> float:
    """Every weight equal in the reader's dtype; the largest difference of logits over their largest."""
    with torch.no_grad():  # compressed-tensors restores a layer when it first runs
        there, here = theirs(tokens).logits.float(), ours(tokens).logits.float()
    for name in layers:
        weight = theirs.get_submodule(name).weight
        assert torch.equal(weight, ours.get_submodule(name).weight.to(weight.dtype)), name
    return float((there - here).abs().max() / here.abs().max())


def continuation(model: Any, tokens: Tensor) -> list[int]:
    """Eight tokens, the most likely each."""
    out = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=1)
    return out[0, tokens.shape[1] :].tolist()


def reader_of(target: str) -> tuple[Reader, Callable[[Scheme], torch.dtype]]:
    """The reader of a target's files, and the dtype that it restores a scheme to: ``read`` and, where that is
    not float32, ``dtype`` of tests/checkpoints/readers/TARGET.py. Where that is missing the test fails."""
    file = f"tests/checkpoints/readers/{target.replace('-', '_')}.py"
    if not Path(__file__).parents[2].joinpath(file).is_file():
        pytest.fail(
            f"nothing reads the target {target!r} back: add {file} with a function "
            "read(path: Path, scheme: Scheme) -> Tensor that gives the weight [N, K] of a file of one tensor "
            "as the target's program restores it, and dtype(scheme) where that is not float32"
        )
    module = importlib.import_module(file.removesuffix(".py").replace("/", "."))
    return module.read, getattr(module, "dtype", lambda scheme: torch.float32)


def fitting(target: str, model: Path, layers: list[str]) -> str:
    """The name of a scheme of few bits that a target carries in all ``layers`` of a model."""
    for scheme in sorted(SCHEMES.values(), key=lambda row: row.format.bits if row.scale else 99):
        plan, row = Plan(ModelFolder(model), uniform(layers, scheme.name)), EXPORTS[target]
        carried = scheme.scale and not any(row.refusal(scheme, plan.shape(name)) for name in layers)
        if carried and not row.together(plan):
            return scheme.name
    pytest.fail(f"the target {target!r} carries no scheme of the table in a small Llama")


def target_parts(target: str, text: str) -> tuple[Any, ...]:
    """The parts of a target's row, whose pairs are covered: itself, the codes' bits, the scheme's kinds."""
    return target, Scheme.parse(text).format.bits, *covering.parts_of(text)


def hard_weight(scale: float) -> Tensor:
    """[128, 512] with a row of zeros, an outlier, a row of positive values only (whose zero point is the
    lowest code) and one of negative ones."""
    x = scale * torch.randn(128, 512)
    x[3], x[5, 7] = 0, 40 * scale
    x[6], x[7] = x[6].abs() + scale, -x[7].abs() - scale
    return x


def finished(writer: gguf.GGUFWriter, path: Path) -> Path:
    """Write the GGUF file of what the writer was given."""
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def parts_of(path: Path, name: str = NAME) -> dict[str, Tensor]:
    """The tensors of one layer by what follows its name."""
    start = f"{name}."
    tensors = {key: value for key, value in load_file(path).items() if key.startswith(start)}
    return {key.removeprefix(start): value for key, value in tensors.items()}


def bytes_in(path: Path) -> int:
    """Bytes of all tensors in a file of one layer, without the file's header."""
    if path.suffix == ".gguf":
        return sum(int(tensor.n_bytes) for tensor in gguf.GGUFReader(path).tensors)
    if path.suffix == ".npz":
        return sum(part.nbytes for part in np.load(path).values())
    if path.suffix == ".onnx":
        stored = onnx.load(path).graph.initializer
        return sum(len(tensor.raw_data) for tensor in stored if len(tensor.dims))
    return sum(tensor.nbytes for tensor in load_file(path).values())
