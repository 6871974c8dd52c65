"""GPTQ's and AWQ's layouts, as whole models; ``test_every_row`` has one tensor by every scheme.

If these fail, such an engine computes with other weights than those that were measured here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from explorer import SCHEMES
from explorer.methods.recipe import Recipe
from tests.checkpoints.readers.awq import awq_weight
from tests.checkpoints.readers.gptq import gptq_weight
from tests.checkpoints.reading import Expected, parts_of, uniform
from tests.checkpoints.writing import write_checkpoint


@pytest.mark.parametrize(("target", "scheme"), [("gptq", "int4_group128"), ("awq", "int4_group64_asym")])
def test_a_whole_model(
    target: str, scheme: str, llama: Path, layers: list[str], expected: Expected, tmp_path: Path
) -> None:
    """Every layer of the folder, its configuration, and the head as it was."""
    recipes = uniform(layers, scheme)
    folder = write_checkpoint(target, llama, recipes, tmp_path / "out").folder
    ours = expected(recipes, torch.float32)
    config = json.loads((folder / "config.json").read_text())["quantization_config"]
    assert (config["bits"], config["group_size"]) == (4, recipes[layers[0]].scheme.block[1])
    if target == "gptq":
        assert config["sym"] is True and config["checkpoint_format"] == "gptq"
    for name in layers:
        parts = parts_of(folder / "model.safetensors", name)
        read = awq_weight(parts) if target == "awq" else gptq_weight(parts, 4, 1)
        assert torch.equal(read, ours.get_submodule(name).weight.half())
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(head, ours.lm_head.weight)


def test_recipes_that_readers_cannot_state(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """GPTQ has one scheme for all layers of the blocks; AWQ one group size, and no codes in the head;
    bitsandbytes one type. compressed-tensors mixes schemes, but transformers loads packed zero points by
    neither of its paths then."""
    whole = uniform(layers, "int4_group128")
    mixed, first = {**whole, layers[0]: Recipe(SCHEMES["int4_group64"])}, layers[0]
    two_types = {**uniform(layers, "nf4_block64"), first: Recipe(SCHEMES["fp4_block64_bnb"])}
    packed = {**uniform(layers, "int8_row"), first: Recipe(SCHEMES["int4_group128_asym"])}
    for target, recipes, words in (
        ("gptq", mixed, "one width and one group size"),
        ("gptq", uniform(layers[1:], "int4_group128"), layers[0]),
        ("gptq", uniform([*layers, "lm_head"], "int4_group128"), "lm_head"),
        ("awq", mixed, "one group size"),
        ("awq", uniform([*layers, "lm_head"], "int4_group64"), "lm_head"),
        ("bitsandbytes", two_types, "one type"),
        ("compressed-tensors", packed, "zero points"),
    ):
        with pytest.raises(ValueError, match=words):
            write_checkpoint(target, llama, recipes, tmp_path / "out")
    assert not list(tmp_path.iterdir())
