"""Folders in compressed-tensors' formats, loaded by transformers and compressed-tensors.

If these fail, other programs load other weights than those that were measured here.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor
from transformers import AutoModelForCausalLM, CompressedTensorsConfig, LlamaForCausalLM

from explorer import SCHEMES, quantize
from explorer.checkpoints import EXPORTS, ModelFolder
from explorer.methods.recipe import Recipe
from explorer.sources import open_source
from tests.checkpoints.reading import Expected, compare, continuation, uniform
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled

TARGET = "compressed-tensors"
FLOAT32 = [
    "int8_row", "int8_row_asym", "int8_tensor", "int8_tensor_asym", "int8_group128", "int6_group128_asym",
    "int5_group128", "int4_row", "int4_row_asym", "int4_group128", "int4_group32_asym", "int4_group128_full",
    "int3_group64", "int3_group128_asym", "int2_group64", "int2_group32_asym", "int4_group128_vllm",
    "q4_0", "fp8_e4m3_tensor", "fp8_e4m3_row", "fp8_e4m3_128x128",
]  # fmt: skip
BFLOAT16 = ["nvfp4", "nvfp4_vllm", "mxfp4", "mxfp4_rceil", "mxfp6_e2m3", "mxfp8_e4m3"]
"""Restored to bfloat16 by the reader."""
WHOLE = ("int8_row_asym", "int4_group32_asym", "int3_group64", "fp8_e4m3_tensor", "nvfp4", "mxfp8_e4m3")
"""One of each layout as a whole model in ``make test``; of single tensors ``test_every_row`` has more."""
ALMOST = {torch.float32: 1e-5, torch.bfloat16: 0.0}
"""Of the largest logit: the reader's weights and ours meet the same operations."""


def packed_zeros(scheme: str) -> bool:
    """transformers 5.23 loads packed zero points with ``dequantize=True`` only."""
    return scheme.endswith("_asym") and not scheme.startswith(("int8_row", "int8_tensor"))


def read(folder: Path, dequantize: bool = False, **arguments: Any) -> LlamaForCausalLM:
    """The folder as transformers opens it."""
    if dequantize:
        arguments["quantization_config"] = CompressedTensorsConfig(dequantize=True)
    return AutoModelForCausalLM.from_pretrained(folder, **arguments).eval()


@pytest.mark.parametrize("scheme", sampled([*FLOAT32, *BFLOAT16], WHOLE))
def test_the_readers_weights_are_ours(
    scheme: str, llama: Path, layers: list[str], tokens: Tensor, expected: Expected, tmp_path: Path
) -> None:
    """Bit for bit in the dtype that the reader restores to; the model then says the same."""
    recipes = uniform(layers, scheme)
    written = write_checkpoint(TARGET, llama, recipes, tmp_path / "out")
    dtype = torch.bfloat16 if scheme in BFLOAT16 else torch.float32
    theirs, ours = read(written.folder, packed_zeros(scheme)), expected(recipes, dtype, True)
    assert theirs.dtype == dtype and written.layers == len(layers)
    assert compare(theirs, ours, layers, tokens) <= ALMOST[dtype]
    assert continuation(theirs, tokens) == continuation(ours, tokens)


def test_layers_that_engines_join_share_a_tensor_scale(llama: Path, tmp_path: Path) -> None:
    """If this fails, an engine that multiplies gate and up as one matrix is up to 2.1 times wrong in one of
    them (vLLM issue 54974)."""
    names, largest = [f"model.layers.0.mlp.{part}_proj" for part in ("gate", "up")], [1.0, 2.14]
    changed = {f"{n}.weight": ModelFolder(llama).read(f"{n}.weight").clamp(-0.9, 0.9) for n in names}
    for name, most in zip(names, largest, strict=True):
        changed[f"{name}.weight"][0, 0] = most
    made = write_checkpoint(TARGET, llama, uniform(names, "nvfp4"), tmp_path / "out", changed=changed)
    parts = load_file(made.folder / "model.safetensors")
    scales = [float(parts[f"{name}.weight_global_scale"]) for name in names]
    assert scales == pytest.approx([2688 / 2.14] * 2, rel=1e-6) and not made.notes
    own = uniform(names[:1], "nvfp4") | uniform(names[1:], "nvfp4_vllm")
    (note,) = write_checkpoint(TARGET, llama, own, tmp_path / "own", changed=changed).notes
    assert names[0] in note and "one scale for all" in note


def test_scales_have_the_dtype_that_the_reader_restores_to(
    llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """bfloat16 beside NVFP4 in a model in float32. In float16 too small a scale moves, and is said."""
    recipes = uniform(layers, "nvfp4") | uniform(layers[:1], "int4_group32")
    made = write_checkpoint(TARGET, llama, recipes, tmp_path / "mixed", verified=True)
    scale = open_source(str(made.folder)).stored  # type: ignore[attr-defined]
    (dtype,) = (info.dtype for info in scale if info.name == f"{layers[0]}.weight_scale")
    assert dtype == "BF16" and made.verified.forward.difference == 0
    small = tmp_path / "model"
    network = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float16)
    network.get_submodule(layers[0]).weight.data[3] *= 1e-4
    network.save_pretrained(small)
    made = write_checkpoint(TARGET, small, uniform(layers, "int8_row"), tmp_path / "half", verified=True)
    assert layers[0] in made.notes[0] and "float16" in made.notes[0]
    assert made.notes[0] in (made.folder / "README.md").read_text()


MIXED = {
    torch.float32: ("int8_row", "int4_group64", "fp8_e4m3_row", "bf16", "int8_row_asym", "fp8_e4m3_128x128"),
    torch.bfloat16: ("nvfp4", "mxfp4", "int4_group128_vllm", "mxfp8_e4m3", "int8_row_vllm"),
}
"""The second have scales in bfloat16 or smaller ones, which a reader in bfloat16 keeps."""


@pytest.mark.parametrize("dtype", MIXED)
def test_a_mixed_recipe_is_several_groups(
    dtype: torch.dtype, llama: Path, layers: list[str], tokens: Tensor, expected: Expected, tmp_path: Path
) -> None:
    """Each layer by its own scheme, two left as they are, on the reader's default path."""
    schemes = MIXED[dtype]
    recipes = {name: Recipe(SCHEMES[schemes[i % len(schemes)]]) for i, name in enumerate(layers[:-2])}
    written = write_checkpoint(TARGET, llama, recipes, tmp_path / "out")
    theirs, ours = read(written.folder), expected(recipes, dtype)
    assert compare(theirs, ours, layers, tokens) <= ALMOST[dtype]
    groups = theirs.config.quantization_config.quantization_config.config_groups
    assert len(groups) == len([name for name in schemes if name != "bf16"])


def test_the_format_of_the_folder(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """That of all groups where they have one: engines look there first."""
    for said, second in (("pack-quantized", "int8_group128"), ("mixed-precision", "int8_row")):
        recipes = {**uniform(layers, "int4_group128"), layers[0]: Recipe(SCHEMES[second])}
        written = write_checkpoint(TARGET, llama, recipes, tmp_path / said)
        config = json.loads((written.folder / "config.json").read_text())["quantization_config"]
        assert config["format"] == said and len(config["config_groups"]) == 2


SMALL = ["int4_group128", "int4_group64_asym", "int4_group128_vllm", "int8_row"]
IN_16_BITS = [(dtype, scheme) for dtype in ("bfloat16", "float16") for scheme in SMALL]


@pytest.mark.parametrize(("dtype", "scheme"), sampled(IN_16_BITS, IN_16_BITS[::3]))
def test_models_in_16_bits_get_our_weights_rounded_once(
    dtype: str, scheme: str, llama: Path, layers: list[str], tokens: Tensor, tmp_path: Path
) -> None:
    """Scales have the model's dtype, and the reader's default path changes nothing."""
    small = getattr(torch, dtype)
    AutoModelForCausalLM.from_pretrained(llama, dtype=small).save_pretrained(tmp_path / "model")
    ours = AutoModelForCausalLM.from_pretrained(tmp_path / "model")
    recipes = uniform(layers, scheme)
    written = write_checkpoint(TARGET, tmp_path / "model", recipes, tmp_path / "out")
    for name in layers:
        weight = ours.get_submodule(name).weight
        q = quantize(weight.data, recipes[name].scheme)
        weight.data = EXPORTS[TARGET].stored(q, small).dequantize(small)
    theirs = read(written.folder, packed_zeros(scheme))
    assert theirs.dtype == small and compare(theirs, ours, layers, tokens) == 0
