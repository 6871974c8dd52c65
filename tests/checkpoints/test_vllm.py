"""The target ``vllm``: its rules against what vLLM was seen to open, and vLLM itself where it can be had.

``python -m lab vllm --record`` opens every scheme by vLLM; the recording is the table that rules are held to.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from explorer import SCHEMES
from explorer.checkpoints import EXPORTS
from explorer.checkpoints.to_vllm import VERSION, loaded_layout
from explorer.checkpoints.vllm_reader import VARIABLE, interpreter, read_by_vllm
from explorer.methods.recipe import Recipe
from lab.vllm import INPUTS, NOT_TRIED, recorded_vllm
from tests.checkpoints.reading import uniform
from tests.checkpoints.writing import write_checkpoint

ROWS = recorded_vllm().rows
NO_KERNEL = "its kernels take"
EXACT, WITH_INPUTS = 1e-2, 4e-2
"""Largest differences of outputs in bfloat16: of weights alone, and with inputs of 8 bits."""
needs_vllm = pytest.mark.skipif(not interpreter(), reason=f"{VARIABLE} names no Python with vLLM")


def test_what_is_written_was_opened() -> None:
    """A model that vLLM refuses, or reads otherwise, is of no use; nor is a refusal of what it serves."""
    for row in ROWS:
        assert row.version == VERSION and row.text in ("", SCHEMES[row.scheme].text), "of a former scheme"
        carried = loaded_layout(SCHEMES[row.scheme], bool(row.inputs)) is not None
        assert carried == (not row.refused), f"{row}: record again: python -m lab vllm --record"
        if carried:
            bound = WITH_INPUTS if row.inputs else EXACT
            assert row.opened and row.difference is not None and row.difference < bound, row
        else:
            assert not row.opened or (NO_KERNEL in row.refused and row.kernel == "reference"), row


def test_every_scheme_of_the_layout_was_tried() -> None:
    """A scheme that was added is opened before it is offered."""
    tried = {(row.scheme, row.inputs) for row in ROWS}
    there = EXPORTS["compressed-tensors"]
    carried = [s.name for s in SCHEMES.values() if s.plain_dtype is None and not there.refuses(s, (256, 512))]
    assert {(name, "") for name in carried if name not in NOT_TRIED} <= tried
    assert not {(name, "") for name in NOT_TRIED} & tried, "it has been tried meanwhile"
    assert {(w, x) for w, inputs in INPUTS.items() for x in inputs} <= tried


@pytest.mark.parametrize("scheme", ["nvfp4", "fp8_e4m3_tensor"])
def test_parts_of_one_matrix_share_scales(
    scheme: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """vLLM keeps the largest of their divisors: with others query and key are read as something else."""
    made = write_checkpoint("vllm", llama, uniform(layers, scheme), tmp_path / "out").folder
    written = load_file(made / "model.safetensors")
    ending = "weight_global_scale" if scheme == "nvfp4" else "weight_scale"
    for above, parts in {
        "self_attn": ("q_proj", "k_proj", "v_proj"),
        "mlp": ("gate_proj", "up_proj"),
    }.items():
        found = {float(written[f"model.layers.0.{above}.{part}.{ending}"]) for part in parts}
        assert len(found) == 1
    down = float(written[f"model.layers.0.mlp.down_proj.{ending}"])
    assert down not in found


def test_parts_of_one_matrix_have_one_scheme(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """vLLM stops at a bare assertion after the download."""
    for other in ({}, {"model.layers.0.self_attn.k_proj": Recipe(SCHEMES["int8_row"])}):
        recipes = uniform(layers, "int4_group32") | other
        if not other:
            del recipes["model.layers.0.self_attn.k_proj"]
        with pytest.raises(ValueError, match=r"self_attn.k_proj, q_proj and v_proj"):
            write_checkpoint("vllm", llama, recipes, tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_python_without_vllm_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each way not to have vLLM ends in a line that says so; the first is asked as a process."""
    (tmp_path / "python").write_text("#!/bin/sh\nread job\necho No module named vllm >&2\nexit 1\n")
    (tmp_path / "python").chmod(0o755)
    with pytest.raises(ValueError, match="vllm"):
        list(read_by_vllm([tmp_path], {"x": torch.zeros(4)}, python=str(tmp_path / "python")))
    monkeypatch.delenv(VARIABLE, raising=False)
    with pytest.raises(ValueError, match=VARIABLE):
        list(read_by_vllm([tmp_path], {}))
    monkeypatch.setenv(VARIABLE, str(tmp_path / "none"))
    with pytest.raises(ValueError, match="none"):
        interpreter()


@needs_vllm
def test_vllm_opens_a_mixed_recipe(llama: Path, layers: list[str], tmp_path: Path) -> None:
    """Codes with and without zero points, NVFP4 and FP8 side by side: each layer computes what it should."""
    by_kind = {"q_proj": "nvfp4", "k_proj": "nvfp4", "v_proj": "nvfp4", "o_proj": "int4_group64_asym"}
    by_kind |= {"gate_proj": "int4_group32", "up_proj": "int4_group32", "down_proj": "fp8_e4m3_row"}
    recipes = {name: Recipe(SCHEMES[by_kind[name.rpartition(".")[2]]]) for name in layers}
    made = write_checkpoint("vllm", llama, recipes, tmp_path / "out", verified=True)
    assert made.verified is not None and made.verified.layers == len(layers)
    assert made.verified.difference < EXACT and f"vLLM {VERSION}" in str(made.verified)
    assert str(made.verified) in (made.folder / "README.md").read_text()
