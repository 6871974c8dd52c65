"""A budget in bytes is one of the files: what `explorer recipe --size` promises, `explorer apply` keeps.

If these fail, a model that was asked to fit into some memory or download does not.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest

from explorer.checkpoints import EXPORTS, write_checkpoint
from explorer.checkpoints.export import Plan
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.write import WEIGHT_FILES
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.schemes import Scheme
from explorer.survey import ModelRecipe

SCHEMES = {
    "compressed-tensors": "int4_group128", "gptq": "int4_group128", "awq": "int4_group128_asym",
    "bitsandbytes": "nf4_block64", "gguf": "q5_0", "vllm": "int4_group128",
}  # fmt: skip
PADDING = {"gguf": 31, "bitsandbytes": 48}
"""Bytes of a layer that a bound may be larger than the file: alignment, and texts of settings."""


def weights_in(folder: Path) -> int:
    """Bytes of the files of weights."""
    return sum(path.stat().st_size for path in folder.iterdir() if path.suffix in WEIGHT_FILES)


def test_every_target_with_one_file_says_how_large_it_is() -> None:
    """A target that does not say is asked for here: ONNX's graph has nodes and weights in two files."""
    assert set(SCHEMES) == {name for name, row in EXPORTS.items() if row.around is not None}


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


def test_a_file_keeps_to_its_size(llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """By the commands. Embeddings and head are of the budget, unless they are to stay as they are."""
    survey, schemes = str(tmp_path / "model.jsonl"), "q4_0,q5_0,q8_0,q6_k,q4_k"
    assert main(["survey", str(llama), "--schemes", schemes, "--signal", "weight", "--out", survey]) == 0
    kept = ["--keep", "embed_tokens,lm_head"]
    for kilobytes, more in ((900, []), (1590, kept)):
        recipe, out = str(tmp_path / f"{kilobytes}.json"), tmp_path / str(kilobytes)
        asked = ["recipe", survey, "--for", "gguf", "--size", f"{kilobytes}kB", "--out", recipe, *more]
        assert main(asked) == 0
        assert ("model.embed_tokens" in ModelRecipe.load(recipe).layers) == (not more)
        assert main(["apply", recipe, "--to", "gguf", "--out", str(out), "--no-verify"]) == 0
        size = (out / "model.gguf").stat().st_size
        assert 0.96 * 1000 * kilobytes < size <= 1000 * kilobytes
    assert main([*asked[:5], "500kB"]) == 2
    assert "at least" in capsys.readouterr().err
