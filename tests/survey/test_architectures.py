"""Survey, recipe and checkpoint of today's architectures: the network says what a linear layer is."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest
import transformers

from explorer.checkpoints import write_checkpoint
from explorer.checkpoints.model import ModelFolder
from explorer.survey.apply import constraints_of, unplaced
from explorer.survey.budget import frontier, recipe_of
from explorer.survey.kinds import Role
from explorer.survey.run import SurveyPlan, survey_model
from tests.checkpoints.architectures import ARCHITECTURES
from tests.sampled import sampled

SCHEMES = ("int4_group32", "nvfp4", "fp8_e4m3_row")
ROLES = {
    "gemma 3 with vision": {Role.LINEAR: 14, Role.EMBEDDING: 2},  # of the vision part nothing
    "mixtral": {Role.LINEAR: 32, Role.HEAD: 1, Role.EMBEDDING: 1},  # 24 of experts, no router
    "lfm2": {Role.LINEAR: 12, Role.EMBEDDING: 1},  # the projections around a convolution are linear
    "nemotron-h": {Role.LINEAR: 8, Role.HEAD: 1, Role.EMBEDDING: 1},
    "t5": {Role.LINEAR: 32, Role.EMBEDDING: 3},  # its shared table is no linear layer
    "qwen3 next": {Role.LINEAR: 73, Role.HEAD: 1, Role.EMBEDDING: 1},
}


@pytest.mark.parametrize("name", sampled(ROLES, ["gemma 3 with vision", "mixtral", "lfm2", "t5"]))
def test_a_recipe_of_each_opens(name: str, tmp_path: Path) -> None:
    """5 bits of three schemes, for compressed-tensors: written, and opened with nothing missing or left.
    Layers that cannot hold codes are known before a recipe is made."""
    folder = ARCHITECTURES[name].save(tmp_path / "model")
    found = survey_model(SurveyPlan(str(folder), None, SCHEMES, ("weight",)), tmp_path / "s.jsonl")
    assert Counter(layer.role for layer in found.layers) == Counter(ROLES[name])
    left = unplaced("compressed-tensors", found)
    if name == "t5":
        assert set(left) == {layer.name for layer in found.linear}
        assert all("T5" in why for why in left.values())
        return
    constraints = constraints_of("compressed-tensors", fuse=True, keep=tuple(left))
    recipe = recipe_of(found, frontier(found, constraints=constraints).at(5), constraints=constraints)
    model = ModelFolder(folder)
    out = write_checkpoint("compressed-tensors", folder, recipe.layers, tmp_path / "out").folder
    _, info = getattr(transformers, model.auto_class).from_pretrained(out, output_loading_info=True)
    assert not any(info[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), info
