"""The program that runs in vLLM's Python, here with modules in the place of vLLM's.

If these fail, a wrong checkpoint is called right, or a right one wrong: what vLLM computes is held against
other weights than those of the file. That vLLM itself opens a folder is asked where it is installed
(test_vllm.py).
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from explorer import SCHEMES, quantize
from explorer.checkpoints import in_vllm, write_one
from explorer.checkpoints.in_vllm import ReferenceKernel
from tests.checkpoints.reading import NAME, hard_weight

Tensors = dict[str, nn.Parameter]


def words(t: Tensors) -> dict[str, Any]:
    """Packed integers, which vLLM keeps as they are stored."""
    return {**t, "input_size_per_partition": 512}


def e2m1(t: Tensors) -> dict[str, Any]:
    """FP4: vLLM keeps the packed codes as ``weight``, and the inverse of the scale over the tensor."""
    over = {"weight_global_scale": 1 / t["weight_global_scale"]} if "weight_global_scale" in t else {}
    return {"weight": t["weight_packed"], "weight_scale": t["weight_scale"], **over}


def turned(t: Tensors) -> dict[str, Any]:
    """8 bits by row or tensor: vLLM keeps the weight as [K, N]."""
    return {"weight": t["weight"].t(), "weight_scale": t["weight_scale"]}


def inverse(t: Tensors) -> dict[str, Any]:
    """Where no kernel was chosen, the scales of tiles have DeepSeek's name."""
    return {"weight": t["weight"], "weight_scale_inv": t["weight_scale"]}


WORDS = ("int4_group128", "int4_group32_asym", "int4_row", "int8_group32", "int8_row_vllm")
LAYERS: list[tuple[str, Callable[[Tensors], dict[str, Any]]]] = [
    *((name, words) for name in WORDS),
    *((name, e2m1) for name in ("nvfp4", "nvfp4_vllm", "mxfp4")),
    *((name, turned) for name in ("fp8_e4m3_tensor", "fp8_e4m3_row", "int8_tensor")),
    *((name, dict) for name in ("mxfp8_e4m3", "fp8_e4m3_128x128")),  # as they are stored
    ("fp8_e4m3_128x128", lambda t: {**t, "weight_block_size": [128, 128]}),
    ("fp8_e4m3_128x128", inverse),
]


@pytest.mark.parametrize(("name", "loaded"), LAYERS)
def test_the_reference_restores_what_the_file_holds(
    name: str, loaded: Callable[[Tensors], dict[str, Any]], tmp_path: Path
) -> None:
    """Every kind of scheme, from the tensors as vLLM has them; a scale over the tensor to one part in 10⁶."""
    q = quantize(hard_weight(0.1), SCHEMES[name])
    path = write_one("vllm", q, tmp_path / "one", NAME)
    stored = {key.removeprefix(f"{NAME}."): tensor for key, tensor in load_file(path).items()}
    layer = SimpleNamespace(**loaded({key: nn.Parameter(part, False) for key, part in stored.items()}))
    scheme = q.scheme
    kind = SimpleNamespace(size_bits=scheme.format.bits)
    group = scheme.block[1] or -1
    config = SimpleNamespace(weight_type=kind, group_size=group, zero_points=scheme.asymmetric)
    kernel = ReferenceKernel(config if loaded is words else SimpleNamespace())
    assert kernel.input_quant_key() is None
    kernel.process_weights_after_loading(layer)
    assert torch.allclose(layer.restored, q.dequantize(), rtol=1e-6, atol=0)
    x, bias = torch.randn(3, 512), torch.randn(128)
    wanted = x @ q.dequantize().t() + bias
    assert torch.allclose(
        kernel.apply_weights(layer, x, bias), wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max()
    )
    assert kernel.apply_weights(layer, x.bfloat16()).dtype is torch.bfloat16


def test_inputs_are_rounded_as_the_kernels_round_them() -> None:
    """By a fixed scale, or by that of each 128 values of a token, to FP8 E4M3; or not at all."""
    x = torch.randn(5, 256, generator=torch.Generator().manual_seed(1))
    layer = SimpleNamespace(restored=torch.eye(256))
    inputs = SimpleNamespace(scale=SimpleNamespace(static=False))
    by_block = ReferenceKernel(activation_quant_key=inputs, module_name="q_proj")
    wanted = quantize(x, SCHEMES["fp8_e4m3_1x128"]).dequantize()
    assert torch.allclose(by_block.apply_weights(layer, x), wanted, rtol=1e-6)
    layer.input_scale = torch.tensor(0.001)  # 448 of them are less than the largest value
    fixed = by_block.apply_weights(layer, x)
    assert float(fixed.abs().max()) == pytest.approx(0.448)
    small = x.abs() < 0.4
    assert torch.allclose(fixed[small], x[small], rtol=2**-4, atol=0.001 * 2**-10)
    plain = ReferenceKernel(activation_quant_key=inputs)
    assert torch.equal(plain.apply_weights(layer, x), x)
    codes, scale = in_vllm._plain_fp8(x)
    assert codes.float().abs().max() == 448 and float(scale) == pytest.approx(float(x.abs().max()) / 448)
    again, same = in_vllm._plain_fp8(x, scale * 2)
    assert again.float().abs().max() == 224 and torch.equal(same, scale * 2)


def test_the_reference_takes_the_place_of_a_missing_kernel_alone() -> None:
    """Of an error that says that no kernel fits; every other error is vLLM's answer."""

    def failing(words: str) -> Callable[..., Any]:
        def own(*_: Any, **__: Any) -> Any:
            raise ValueError(words)

        return own

    static, dynamic = (SimpleNamespace(scale=SimpleNamespace(static=one)) for one in (True, False))
    missing = failing("Failed to find a Kernel")
    assert in_vllm._or_reference(missing, gives_class=True)() is ReferenceKernel
    assert isinstance(in_vllm._or_reference(missing, gives_class=False)(), ReferenceKernel)
    with pytest.raises(ValueError, match="shapes"):
        in_vllm._or_reference(failing("shapes differ"), gives_class=True)()
    kept = in_vllm._or_reference(lambda **_: "own", gives_class=False)
    assert kept() == kept(activation_quant_key=static) == "own"
    assert kept(activation_quant_key=dynamic, module_name="m") == "own"
    assert isinstance(kept(activation_quant_key=static, module_name="m"), ReferenceKernel)


class Matrix(nn.Module):
    """A layer as vLLM has it: joined of parts with so many rows."""

    def __init__(self, weight: Tensor, *sizes: int, scheme: Any = None) -> None:
        super().__init__()
        self.matrix, self.output_partition_sizes, self.scheme = weight, list(sizes), scheme
        self.norm = nn.Parameter(torch.ones(2))
        self.quant_method = SimpleNamespace(apply=lambda layer, x, bias: x @ layer.matrix.t())


class Network(nn.Module):
    """Query and value joined, an output alone, and logits."""

    packed_modules_mapping = {"qv_proj": ["q_proj", "v_proj"]}  # noqa: RUF012
    hf_to_vllm_mapper = SimpleNamespace(_map_name=lambda name: name.replace("model.", "", 1))

    def __init__(self) -> None:
        super().__init__()
        made = torch.Generator().manual_seed(2)
        self.attn = nn.Module()
        self.attn.qv_proj = Matrix(
            torch.randn(6, 4, generator=made), 2, 4, scheme=SimpleNamespace(kernel=ReferenceKernel())
        )
        self.attn.o_proj = Matrix(torch.randn(3, 4, generator=made), 3)


LINEAR = ("model.attn.q_proj", "model.attn.v_proj", "model.attn.o_proj")
"""Layers by the names of the checkpoint."""


def test_a_job_is_run(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Outputs of layers, logits of the text, which the engine runs in two parts, and the kernels."""
    network, x = Network(), torch.arange(4.0)
    joined = network.attn.qv_proj.matrix @ x
    wanted = dict(zip(LINEAR, (joined[:2], joined[2:], network.attn.o_proj.matrix @ x), strict=True))
    network.compute_logits = lambda hidden: hidden * 2
    network.linear = nn.Module()
    network.linear.scheme = type("OwnScheme", (), {"kernel": None, "linear_kernel": SimpleNamespace()})()

    class Engine:
        def __init__(self, folder: str, **named: Any) -> None:
            assert (folder, named["dtype"], named["max_model_len"]) == ("whole", "auto", 22)
            worker = SimpleNamespace(worker=SimpleNamespace(get_model=lambda: network))
            self.llm_engine = SimpleNamespace(model_executor=SimpleNamespace(driver_worker=worker))

        def generate(self, prompt: Any, asked: Any, use_tqdm: bool) -> None:
            for ids in (prompt.prompt_token_ids[:1], prompt.prompt_token_ids):
                network.compute_logits(torch.tensor(ids)[:, None].half())

    for name, names in {
        "vllm": {"LLM": Engine, "SamplingParams": SimpleNamespace},
        "vllm.inputs": {"TokensPrompt": SimpleNamespace},
    }.items():
        vars(made := ModuleType(name)).update(names)
        monkeypatch.setitem(sys.modules, name, made)
    save_file({**{name: x.clone() for name in LINEAR}, "ids": torch.arange(20)}, tmp_path / "in")
    job = {"folder": "whole", "dtype": "auto", "inputs": tmp_path / "in", "outputs": tmp_path / "out"}
    kernels = {"SimpleNamespace": "reference", "OwnScheme": "SimpleNamespace"}
    assert in_vllm.run(job) == {"kernels": kernels}
    outputs = load_file(tmp_path / "out")
    assert set(outputs) == {*LINEAR, "logits"}
    assert all(torch.equal(outputs[name], wanted[name]) for name in LINEAR)
    assert torch.equal(outputs["logits"], torch.arange(20.0)[:, None] * 2)
