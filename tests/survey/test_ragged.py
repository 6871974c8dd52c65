"""Models whose rows are no whole number of groups, as those of SmolLM2 (576) and Gemma 3 (640, 1152).

If these fail, one such layer leaves a whole model without a recipe, or a recipe that cannot be applied.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explorer.checkpoints import EXPORTS
from explorer.cli import main
from explorer.schemes import Scheme
from explorer.survey import Constraints, ModelRecipe, frontier, load_survey
from tests.survey.conftest import random_llama

pytestmark = pytest.mark.usefixtures("one_thread")
SCHEMES = "int4_group64,int4_group64_asym,int4~1x32~symmetric~float16~minmax,nf4_block64"


@pytest.fixture(scope="module")
def survey(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of a Llama of one block: rows of 80 values but those of down_proj, which have 128."""
    folder = tmp_path_factory.mktemp("ragged")
    sizes = {"hidden_size": 80, "intermediate_size": 128, "num_hidden_layers": 1, "num_attention_heads": 2}
    random_llama(folder / "model", 0, **sizes, num_key_value_heads=1, tie_word_embeddings=True)
    out = folder / "s.jsonl"
    command = ["survey", str(folder / "model"), "--schemes", SCHEMES, "--signal", "weight"]
    assert main([*command, "--out", str(out)]) == 0
    return out


@pytest.mark.parametrize("target", EXPORTS)
def test_ragged_layers_are_left_for_every_target(target: str, survey: Path) -> None:
    """Of each scheme that a target carries only in whole groups: all layers but that of whole groups."""
    found, tried = load_survey(survey), 0
    for text in found.head.schemes:
        scheme = Scheme.parse(text)
        why = {x.name: EXPORTS[target].refusal(scheme, x.shape) for x in found.linear}
        refused = {name for name, reason in why.items() if reason}
        if not 0 < len(refused) < len(why):
            continue
        front = frontier(found, constraints=Constraints((text,), EXPORTS[target]))
        assert set(front.left) >= refused and all(front.left.values())
        assert set(front.at(20).schemes) == set(why) - set(front.left)
        tried += 1
    if target != "bitsandbytes":  # its blocks run on over the ends of rows
        assert tried


def test_a_recipe_of_the_others_is_written(
    survey: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The command says which layers are kept and why; a recipe that names one of them is refused by name."""
    recipe, out, target = tmp_path / "r.json", tmp_path / "out", "compressed-tensors"
    command = ["recipe", str(survey), "--bits", "5", "--schemes", "int4_group64", "--for", target]
    assert main([*command, "--out", str(recipe)]) == 0
    said = capsys.readouterr().err
    assert "6 layers" in said and "80 values" in said and "groups of 64" in said
    assert main([*command, "--json"]) == 0
    left = json.loads(capsys.readouterr().out)["left"]
    assert len(left) == 7
    assert set(ModelRecipe.load(recipe).layers) == {"model.layers.0.mlp.down_proj"}
    assert main(["apply", str(recipe), "--to", target, "--out", str(out), "--no-verify"]) == 0
    recipe.write_text(recipe.read_text().replace("mlp.down_proj", "mlp.up_proj"))
    capsys.readouterr()
    assert main(["apply", str(recipe), "--to", target, "--out", f"{out}2"]) == 2
    assert "model.layers.0.mlp.up_proj by int4_group64: a row of 80" in capsys.readouterr().err
