"""Folders of NF4 and FP4, loaded by transformers and bitsandbytes.

If these fail, they compute with other weights than those that were measured here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from bitsandbytes.functional import dequantize_4bit
from torch import Tensor
from transformers import AutoModelForCausalLM

from tests.checkpoints.reading import Expected, uniform
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled

TARGET = "bitsandbytes"
SMALL = [
    "nf4_block64", "nf4_block64_bnb", "nf4_block64_double", "fp4_block64_bnb", "nf4_block128",
    "nf4~flat64~symmetric~float32~minmax",
]  # fmt: skip


@pytest.mark.parametrize("scheme", sampled(SMALL, ["nf4_block64_double", "fp4_block64_bnb", "nf4_block128"]))
def test_the_readers_weights_are_ours(
    scheme: str, llama: Path, layers: list[str], tokens: Tensor, expected: Expected, tmp_path: Path
) -> None:
    """Bit for bit; its product on the CPU rounds, so that logits are near."""
    recipes = uniform(layers, scheme)
    written = write_checkpoint(TARGET, llama, recipes, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(written.folder).eval()
    ours = expected(recipes, torch.float32)
    for name in layers:
        weight = theirs.get_submodule(name).weight
        read = dequantize_4bit(weight.data, weight.quant_state)
        assert torch.equal(read, ours.get_submodule(name).weight), name
    with torch.no_grad():
        there, here = theirs(tokens).logits, ours(tokens).logits
    assert float((there - here).abs().max() / here.abs().max()) < 0.03


def test_layers_that_are_left_stay_as_they_are(
    llama: Path, layers: list[str], tokens: Tensor, expected: Expected, tmp_path: Path
) -> None:
    """Some layers in 4 bits, the others by their names left alone."""
    recipes = uniform(layers[2:6], "nf4_block64")
    written = write_checkpoint(TARGET, llama, recipes, tmp_path / "out")
    theirs = AutoModelForCausalLM.from_pretrained(written.folder).eval()
    ours = expected(recipes, torch.float32)
    for name in layers:
        weight = theirs.get_submodule(name).weight
        assert (weight.dtype == torch.uint8) == (name in recipes)
        if name not in recipes:
            assert torch.equal(weight, ours.get_submodule(name).weight)
