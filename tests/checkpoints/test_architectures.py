"""Checkpoints of today's architectures, opened by transformers: every layer that holds codes computes with
them, and a matrix that cannot hold codes is refused by name before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers

from explorer import SCHEMES, quantize
from explorer.checkpoints import write_checkpoint
from explorer.checkpoints.model import ModelFolder
from explorer.methods.recipe import Recipe
from explorer.models.skeleton import Skeleton
from tests.checkpoints.architectures import ARCHITECTURES, Architecture

SCHEME = SCHEMES["int4_group32"]


@pytest.fixture(scope="module", params=ARCHITECTURES)
def model(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> ModelFolder:
    row = ARCHITECTURES[request.param]
    folder = ModelFolder(row.save(tmp_path_factory.mktemp("model") / "tiny"))
    folder.row = row  # type: ignore[attr-defined]
    return folder


def matrices(model: ModelFolder) -> list[str]:
    """The layers of the files that have two axes."""
    infos = [info for info in model.infos if info.name.endswith(".weight") and len(info.shape) == 2]
    return [info.name.removesuffix(".weight") for info in infos]


def test_each_matrix_has_its_place_or_a_reason(model: ModelFolder) -> None:
    """If a matrix is placed wrongly, a checkpoint opens with random weights."""
    row: Architecture = model.row  # type: ignore[attr-defined]
    assert isinstance(model.skeleton, Skeleton)
    places = {name: model.place(name) for name in matrices(model)}
    placed = [name for name, place in places.items() if place.module]
    assert (len(placed), len(places) - len(placed)) == (row.linear, row.refused)
    assert all(bool(place.module) != bool(place.refusal) for place in places.values())
    assert len({places[name].module for name in placed}) == len(placed), "two tensors in one place"


def test_it_opens_and_agrees(model: ModelFolder, tmp_path: Path) -> None:
    """Nothing is missing, nothing left over, and its outputs are those of the rounded weights."""
    row: Architecture = model.row  # type: ignore[attr-defined]
    layers = {name: Recipe(SCHEME) for name in model.linear if not _is_head(model, name)}
    out = write_checkpoint("compressed-tensors", model.folder, layers, tmp_path / "out").folder
    auto = getattr(transformers, model.auto_class)
    theirs, found = auto.from_pretrained(out, output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    ours = auto.from_pretrained(model.folder).eval()
    with torch.no_grad():
        for name in layers:
            weight = ours.get_submodule(model.place(name).module).weight
            weight.copy_(quantize(weight, SCHEME).dequantize())
        asked = row.asked()
        there, here = theirs.eval()(**asked).logits, ours(**asked).logits
    assert float((there - here).abs().max() / here.abs().max()) < 1e-3


def _is_head(model: ModelFolder, name: str) -> bool:
    """Tied to the embeddings, or read by name."""
    return name == "lm_head" and model.tied


def test_what_cannot_hold_codes_is_refused_by_name(model: ModelFolder, tmp_path: Path) -> None:
    """Before anything is written."""
    refused = [name for name in matrices(model) if not model.place(name).module]
    for name in refused[:3] + refused[-1:]:
        with pytest.raises(ValueError, match=r"cannot"):
            write_checkpoint("compressed-tensors", model.folder, {name: Recipe(SCHEME)}, tmp_path / "out")
        assert not (tmp_path / "out").exists()
