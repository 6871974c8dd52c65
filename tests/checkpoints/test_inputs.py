"""Quantized inputs: which weights they are multiplied with, and that readers round as we do.

If these fail, a recipe is offered that no engine runs, or `apply --verify` passes a model that computes
something else.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from explorer import SCHEMES
from explorer.checkpoints import EXPORTS
from explorer.checkpoints.inputs import INPUTS, check_scheme, inputs_of, is_fixed, product_refusal
from tests.checkpoints.reading import uniform
from tests.checkpoints.writing import write_checkpoint
from tests.covering import by_pairs, sampled

W4A8 = {"int4_group128", "int4_group128_full", "int4_group128_vllm"}
NVFP4 = {"nvfp4", "nvfp4_four_over_six", "nvfp4_vllm"}
NOT_TRIED = W4A8 | NVFP4
"""Weights that are not multiplied with quantized inputs in any checkpoint that vLLM opened."""
PRODUCTS = {
    "int8_row": {"int8_row", "int8_tensor", "int8_row_full", "int8_row_vllm"},
    "int8_tensor": {"int8_row", "int8_tensor", "int8_row_full", "int8_row_vllm"},
    "fp8_e4m3_row": {"fp8_e4m3_row", "fp8_e4m3_tensor", *W4A8},
    "fp8_e4m3_tensor": {"fp8_e4m3_row", "fp8_e4m3_tensor"},
    "fp8_e4m3_1x128": {"fp8_e4m3_128x128"},
    "nvfp4": NVFP4,
}
"""Schemes of inputs -> the named schemes of weights that vLLM 0.32 multiplies them with."""


@pytest.mark.parametrize("inputs", INPUTS)
def test_codes_are_multiplied_with_codes_alike(inputs: str) -> None:
    """A pair too many is a folder that engines refuse, one too few a model that nobody is offered."""
    found = {s.name for s in SCHEMES.values() if s.scale and not product_refusal(SCHEMES[inputs], s)}
    assert found == PRODUCTS[inputs]
    for target, row in EXPORTS.items():
        known = {"compressed-tensors": PRODUCTS[inputs], "vllm": PRODUCTS[inputs] - NOT_TRIED}
        carried = {s for s in PRODUCTS[inputs] if not row.multiplies(SCHEMES[inputs], SCHEMES[s])}
        assert carried == known.get(target, set())


PAIRS = [(inputs, weights) for inputs, found in PRODUCTS.items() for weights in sorted(found)]


FP8_INPUTS = ["fp8_e4m3_row", "fp8_e4m3_tensor", "int4_group128"]


@pytest.mark.parametrize("weights", sampled(FP8_INPUTS, ["int4_group128"]))
def test_fp8_inputs_of_a_bfloat16_model(weights: str, llama: Path, layers: list[str], tmp_path: Path) -> None:
    """The reader rounds their scales, and x / scale, to bfloat16: outputs are compared with such."""
    folder = tmp_path / "model"
    AutoModelForCausalLM.from_pretrained(llama, dtype=torch.bfloat16).save_pretrained(folder)
    asked = {"inputs": SCHEMES["fp8_e4m3_row"], "verified": True}
    made = write_checkpoint("compressed-tensors", folder, uniform(layers, weights), tmp_path / "out", **asked)
    assert made.verified is not None and made.verified.inputs and made.verified.difference < 0.01


@pytest.mark.parametrize(
    ("inputs", "weights"), by_pairs(PAIRS, lambda x, w: (x, type(SCHEMES[w].format).__name__))
)
def test_readers_round_inputs_so(
    inputs: str, weights: str, llama: Path, layers: list[str], tmp_path: Path
) -> None:
    """transformers opens the folder, and every layer's own product is that of rounded weights and inputs."""
    scales = dict.fromkeys(layers, 0.02 if inputs.endswith("_tensor") else 0.002)
    scales = scales if is_fixed(SCHEMES[inputs]) else None
    asked = {"inputs": SCHEMES[inputs], "input_scales": scales, "verified": True}
    written = write_checkpoint(
        "compressed-tensors", llama, uniform(layers, weights), tmp_path / "out", **asked
    )
    seen = written.verified
    assert seen is not None and seen.layers == len(layers) and seen.inputs
    bound = 2**-7 if inputs == "nvfp4" else 1e-5  # which its reader restores in bfloat16
    assert seen.difference < bound
    if weights not in NOT_TRIED:
        assert write_checkpoint(
            "vllm", llama, uniform(layers, weights), tmp_path / "v", **asked | {"verified": False}
        )


def test_other_scales_are_a_difference(
    llama: Path, layers: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Else a wrong scale in the file would be noticed by nobody: weights are as they were."""
    from explorer.checkpoints import verify

    right = verify.quantized_inputs
    monkeypatch.setattr(verify, "quantized_inputs", lambda x, s, scale: right(x, s, scale and 2 * scale))
    asked = {"inputs": SCHEMES["int8_tensor"], "input_scales": dict.fromkeys(layers, 0.01), "verified": True}
    with pytest.raises(ValueError, match="computes something else"):
        write_checkpoint("compressed-tensors", llama, uniform(layers, "int8_row"), tmp_path / "out", **asked)
    assert not list(tmp_path.iterdir())


def test_other_inputs_are_refused() -> None:
    """In one line that says what is accepted."""
    for name, span, words in (
        ("int4_row", "", "int8_row, .*'int4_row'"),
        ("int8_row", "max", "int8_tensor and fp8_e4m3_tensor"),
        ("int8_tensor", "half", "'half' .*max, percentile"),
    ):
        with pytest.raises(ValueError, match=words):
            inputs_of(name, span)
    check_scheme(inputs_of("fp8_e4m3_tensor", "percentile"))
    for text, words in (("int8~row~symmetric~float32~mse", "minmax, not mse"), ("mxfp4", "'mxfp4'")):
        with pytest.raises(ValueError, match=words):
            check_scheme(SCHEMES["int8_row"].parse(text))
