"""GPTQ's and AWQ's layouts, decoded as their readers do.

gptqmodel, which transformers needs for both, asks for another torch and compiles an extension when it first
loads; where it is installed, its own modules decode, else the readers' arithmetic written out here.
If these fail, such an engine computes with other weights than those that were measured here.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.checkpoints import write_checkpoint, write_one
from explorer.methods.recipe import Recipe
from tests.checkpoints.reading import Expected, uniform

GPTQ = [
    "int4_group128", "int4_group32_asym", "int4_row", "int4_row_asym", "int3_group64", "int3_group128_asym",
    "int2_group64", "int2_group32_asym", "int8_group128", "int8~1x64~ASYMMETRIC~float16~minmax", "q4_0",
]  # fmt: skip
AWQ = ["int4_group128", "int4_group64_asym", "int4_group32_asym"]


def gptq_weight(parts: dict[str, Tensor], bits: int, version: int) -> Tensor:
    """float16 [N, K], bit by bit: code k of column n is at bit k · b of the column's words."""
    words, zeros = parts["qweight"], parts["qzeros"]
    codes = _stream(words.t(), bits)  # [N, K]
    points = _stream(zeros, bits) + (1 if version == 1 else 0)  # [groups, N]
    group = parts["g_idx"].long()
    return (parts["scales"][group] * (codes.t() - points[group]).half()).t()


def _stream(words: Tensor, bits: int) -> Tensor:
    """int64 [rows, codes] of int32 [rows, words]."""
    unsigned = words.long() & 0xFFFFFFFF
    each = (unsigned[:, :, None] >> torch.arange(32)) & 1
    stream = each.flatten(1).unflatten(1, (-1, bits))
    return (stream << torch.arange(bits)).sum(2)


def awq_weight(parts: dict[str, Tensor]) -> Tensor:
    """float16 [N, K]: eight outputs a word, taken out in the order 0 4 1 5 2 6 3 7."""
    shifts = 4 * torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])

    def unpacked(words: Tensor) -> Tensor:
        return ((words[:, :, None] >> shifts) & 15).flatten(1)

    codes, zeros = unpacked(parts["qweight"]), unpacked(parts["qzeros"])
    group = len(codes) // len(zeros)
    points, scales = (x.repeat_interleave(group, 0) for x in (zeros, parts["scales"]))
    return ((codes - points).half() * scales).t()


def parts_of(path: Path, name: str) -> dict[str, Tensor]:
    """The tensors of one layer by what follows its name."""
    tensors = load_file(path)
    return {
        key.removeprefix(f"{name}."): value for key, value in tensors.items() if key.startswith(f"{name}.")
    }


@pytest.mark.parametrize(("target", "text"), [("gptq", s) for s in GPTQ] + [("awq", s) for s in AWQ])
def test_the_decoded_weight_is_ours(target: str, text: str, tmp_path: Path) -> None:
    """Bit for bit in float16, rows of positive values included, whose zero point is the lowest code."""
    scheme = Scheme.parse(text)
    weight = torch.randn(64, 256)
    weight[3], weight[4] = 0, weight[4].abs() + 1
    q = quantize(weight, scheme)
    parts = parts_of(write_one(target, q, tmp_path / "one", "layer"), "layer")
    version = 2 if scheme.asymmetric else 1
    read = awq_weight(parts) if target == "awq" else gptq_weight(parts, scheme.format.bits, version)
    assert torch.equal(read, q.dequantize(torch.float16))


def test_gptqmodels_own_modules_agree(tmp_path: Path) -> None:
    """The package's linear layers, where it is installed."""
    pytest.importorskip("gptqmodel")
    from gptqmodel.quantization.awq.utils.packing_utils import dequantize_gemm

    q = quantize(torch.randn(64, 256), SCHEMES["int4_group64_asym"])
    parts = parts_of(write_one("awq", q, tmp_path / "one", "layer"), "layer")
    read = dequantize_gemm(parts["qweight"], parts["qzeros"], parts["scales"], 4, 64)
    assert torch.equal(read.t(), q.dequantize(torch.float16))


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
