"""A budget in bytes is one of the files: what `explorer recipe --size` promises, `explorer apply` keeps.

If these fail, a model that was asked to fit into some memory or download does not.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from explorer.checkpoints import EXPORTS
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Plan
from explorer.checkpoints.write import WEIGHT_FILES
from explorer.methods.recipe import Recipe
from explorer.schemes import Scheme
from tests.checkpoints.writing import write_checkpoint

SCHEMES = {
    "compressed-tensors": "int4_group128", "gptq": "int4_group128", "awq": "int4_group128_asym",
    "bitsandbytes": "nf4_block64", "gguf": "q5_0", "vllm": "int4_group128",
}  # fmt: skip
PADDING = {"gguf": 31, "bitsandbytes": 48}
"""Bytes of a layer that a bound may be larger than the file: alignment, and texts of settings."""


def weights_in(folder: Path) -> int:
    """Bytes of the files of weights."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHT_FILES)


@pytest.mark.parametrize("target", SCHEMES)
def test_codes_and_their_frame_are_the_file(
    target: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """To the byte, but for padding: other tensors in the dtypes that they are written in, and headers."""
    export, model = EXPORTS[target], ModelFolder(llama)
    recipes = {name: Recipe(Scheme.parse(SCHEMES[target])) for name in layers}
    plan = Plan(model, recipes)
    codes = sum(
        export.stored_bits(one.scheme, plan.shape(name), model.dtype) * math.prod(plan.shape(name)) / 8
        for name, one in recipes.items()
    )
    assert export.around is not None
    bound = export.around(plan) + codes
    size = weights_in(write_checkpoint(target, llama, recipes, tmp_path / "out").folder)
    assert 0 <= bound - size <= PADDING.get(target, 0) * len(recipes)
