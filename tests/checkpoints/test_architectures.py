"""Checkpoints of today's architectures, opened by transformers: every layer that holds codes computes with
them, and a matrix that cannot hold codes is refused by name before anything is written."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
import transformers
from torch import Tensor, nn

from explorer import SCHEMES, quantize
from explorer.checkpoints import EXPORTS
from explorer.checkpoints.card import CARD
from explorer.checkpoints.model import ModelFolder
from explorer.methods.recipe import Recipe
from explorer.models.skeleton import Skeleton
from tests.checkpoints.architectures import ARCHITECTURES
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled

SCHEME = SCHEMES["int4_group32"]
PLACE = EXPORTS["compressed-tensors"].place
QUICK = [name for name, row in ARCHITECTURES.items() if not row.thorough]


def matrices(model: ModelFolder) -> list[str]:
    """The layers of the files that have two axes."""
    infos = [info for info in model.infos if info.name.endswith(".weight") and len(info.shape) == 2]
    return [info.name.removesuffix(".weight") for info in infos]


@pytest.mark.parametrize("architecture", sampled(ARCHITECTURES, QUICK))
def test_it_opens_and_agrees(architecture: str, tmp_path: Path) -> None:
    """Every matrix has its place or is refused by name. Nothing is missing or left over; outputs are those
    of the rounded weights: INT4 and FP8 in turn."""
    row, out = ARCHITECTURES[architecture], tmp_path / "out"
    model = ModelFolder(row.save(tmp_path / "tiny"))
    assert isinstance(model.skeleton, Skeleton)
    places = {name: PLACE(model, name, SCHEME) for name in matrices(model)}
    placed = [name for name, place in places.items() if place.module]
    assert (len(placed), len(places) - len(placed)) == (row.linear, row.refused)
    assert all(bool(place.module) != bool(place.refusal) for place in places.values())
    assert len({places[name].module for name in placed}) == len(placed), "two tensors in one place"
    for name in [name for name in places if name not in placed][-1:]:
        with pytest.raises(ValueError, match="cannot"):
            write_checkpoint("compressed-tensors", model.folder, {name: Recipe(SCHEME)}, out)
        assert not out.exists()
    if placed:
        check_outputs(architecture, model, placed, out)


def check_outputs(architecture: str, model: ModelFolder, placed: list[str], out: Path) -> None:
    """Write the layers that are placed, and compare what the opened folder computes."""
    of_one_scheme = {name: "experts" if ".experts." in name else name for name in placed}
    turns, by = list(dict.fromkeys(of_one_scheme.values())), (SCHEME, SCHEMES["fp8_e4m3_row"])
    recipes = {name: Recipe(by[turns.index(one) % 2]) for name, one in of_one_scheme.items()}
    layers = {name: recipes[name] for name in placed if not (model.tied and model.is_head(name))}
    assert len({recipe.scheme.name for recipe in layers.values()}) == min(2, len(turns))
    told = write_checkpoint("compressed-tensors", model.folder, layers, out, verified=True).verified
    assert told is not None and told.layers + told.unseen == len(layers)
    assert str(told) in (out / CARD).read_text()
    auto = getattr(transformers, model.auto_class)
    theirs, found = auto.from_pretrained(out, output_loading_info=True)
    assert not any(found[key] for key in ("missing_keys", "unexpected_keys", "mismatched_keys")), found
    ours = auto.from_pretrained(model.folder).eval()
    with torch.no_grad():
        for name, recipe in layers.items():
            weight = weight_of(ours, model, name)
            weight.copy_(quantize(weight, recipe.scheme).dequantize())
        asked = ARCHITECTURES[architecture].asked()
        there, here = theirs.eval()(**asked).logits, ours(**asked).logits
    assert float((there - here).abs().max() / here.abs().max()) < 1e-3


def weight_of(network: nn.Module, model: ModelFolder, layer: str) -> Tensor:
    """The weight [N, K] of a layer in a network that was opened: of an expert a part of the stacked one."""
    if layer not in model.experts:
        return network.get_submodule(model.place(layer).module).weight.data
    stacked = network.get_parameter(model.place(layer).experts).data
    expert, _, kind = layer.rpartition(".experts.")[2].partition(".")
    half = stacked[int(expert)].chunk(2)
    return {"gate_proj": half[0], "w1": half[0], "up_proj": half[-1], "w3": half[-1]}.get(
        kind, stacked[int(expert)]
    )
