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
from explorer.checkpoints import write_checkpoint
from explorer.methods.recipe import Recipe
from tests.checkpoints.readers import awq_weight, gptq_weight, parts_of
from tests.checkpoints.reading import Expected, uniform


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
    for name in layers:
        parts = parts_of(folder / "model.safetensors", name)
        read = awq_weight(parts) if target == "awq" else gptq_weight(parts, 4, 1)
        assert torch.equal(read, ours.get_submodule(name).weight.half())
    head = load_file(folder / "model.safetensors")["lm_head.weight"]
    assert torch.equal(head, ours.lm_head.weight)


REFUSED = {
    "float32 scales": ("gptq", "int8_row", "scales are float16.*take int8~row~SYMMETRIC~float16~minmax"),
    "five bits": ("gptq", "int5_group128", "INT2, INT3, INT4, INT8 codes"),
    "offsets": ("gptq", "q4_1", "floating-point offsets"),
    "three bits": ("awq", "int3_group64", "INT4 codes"),
    "rows": ("awq", "int4_row", "groups along a row"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_it_cannot_carry_is_refused_by_name(
    case: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """Nothing is written."""
    target, scheme, words = REFUSED[case]
    with pytest.raises(ValueError, match=f"cannot carry {layers[0]} by .*{words}"):
        write_checkpoint(target, llama, uniform(layers, scheme), tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_recipes_that_the_readers_have_no_words_for_are_refused(
    llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """GPTQ has one scheme for all layers of the blocks; AWQ one group size."""
    whole = uniform(layers, "int4_group128")
    mixed = {**whole, layers[0]: Recipe(SCHEMES["int4_group64"])}
    for target, recipes, words in (
        ("gptq", mixed, "one width and one group size"),
        ("gptq", uniform(layers[1:], "int4_group128"), f"{layers[0]} differs"),
        ("gptq", uniform([*layers, "lm_head"], "int4_group128"), "lm_head differs"),
        ("awq", mixed, "one group size"),
    ):
        with pytest.raises(ValueError, match=words):
            write_checkpoint(target, llama, recipes, tmp_path / "out")
    assert not list(tmp_path.iterdir())
