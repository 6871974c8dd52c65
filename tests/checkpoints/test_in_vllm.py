"""The program that runs in vLLM's Python, here with modules in the place of vLLM's.

If these fail, a wrong checkpoint is called right, or a right one wrong: what vLLM computes is held against
other weights than those of the file. That vLLM itself opens a folder is asked where it is installed
(test_vllm.py).
"""

from __future__ import annotations

import io
import json
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
from explorer.checkpoints import EXPORTS, in_vllm, write_one
from explorer.checkpoints.in_vllm import ReferenceKernel
from explorer.checkpoints.to_vllm import layout_of
from tests.checkpoints.reading import NAME
from tests.checkpoints.test_every_row import hard_weight

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


def as_stored(t: Tensors) -> dict[str, Any]:
    return t


def tiles(t: Tensors) -> dict[str, Any]:
    return {**t, "weight_block_size": [128, 128]}


def inverse(t: Tensors) -> dict[str, Any]:
    """Where no kernel was chosen, the scales of tiles have DeepSeek's name."""
    return {"weight": t["weight"], "weight_scale_inv": t["weight_scale"]}


LAYERS: list[tuple[str, Callable[[Tensors], dict[str, Any]]]] = [
    ("int4_group128", words),
    ("int4_group32_asym", words),
    ("int4_row", words),
    ("int8_group32", words),
    ("int8_row_vllm", words),
    ("nvfp4", e2m1),
    ("nvfp4_vllm", e2m1),
    ("mxfp4", e2m1),
    ("mxfp8_e4m3", as_stored),
    ("fp8_e4m3_tensor", turned),
    ("fp8_e4m3_row", turned),
    ("int8_tensor", turned),
    ("fp8_e4m3_128x128", tiles),
    ("fp8_e4m3_128x128", inverse),
    ("fp8_e4m3_128x128", as_stored),
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


def test_every_way_to_store_a_layer_is_restored() -> None:
    """A layout that is added has a row here."""
    here = {
        EXPORTS["vllm"].bits(SCHEMES[name], (128, 512), torch.float32) and _layout(name) for name, _ in LAYERS
    }
    carried = [s.name for s in SCHEMES.values() if s.scale and not EXPORTS["vllm"].refusal(s, (128, 512))]
    assert {_layout(name) for name in carried} == here


def _layout(name: str) -> str:
    found = layout_of(SCHEMES[name]) or layout_of(SCHEMES[name], inputs=True)
    assert found is not None
    return found.format


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

    static = SimpleNamespace(scale=SimpleNamespace(static=True))
    dynamic = SimpleNamespace(scale=SimpleNamespace(static=False))
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
        self.linear = nn.Module()
        self.linear.scheme = OwnScheme()

    def compute_logits(self, hidden: Tensor) -> Tensor:
        return hidden * 2


LINEAR = ("model.attn.q_proj", "model.attn.v_proj", "model.attn.o_proj")
"""Layers by the names of the checkpoint."""


class OwnScheme:
    """A scheme of vLLM whose own kernel serves."""

    kernel, linear_kernel = None, SimpleNamespace()


class Engine:
    """What ``vllm.LLM`` gives: it runs a text in two parts, of which the longer one is the text's."""

    def __init__(self, folder: str, **named: Any) -> None:
        if folder == "broken":
            raise RuntimeError("no such layout")
        self.named, self.network = named, Network()
        worker = SimpleNamespace(worker=SimpleNamespace(get_model=lambda: self.network))
        executor = SimpleNamespace(driver_worker=worker)
        self.llm_engine = SimpleNamespace(model_executor=executor)

    def generate(self, prompt: Any, asked: Any, use_tqdm: bool) -> None:
        ids = prompt.prompt_token_ids
        assert self.named["max_model_len"] == max(len(ids) + 2, 16) and asked.prompt_logprobs == 0
        for count in (1, len(ids)):
            self.network.compute_logits(torch.tensor(ids[:count])[:, None].half())


class Flushed(io.StringIO):
    """Standard output that counts how often it was flushed."""

    flushes = 0

    def flush(self) -> None:
        self.flushes += 1


@pytest.fixture
def cleaned(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Modules with the names that the program imports of vLLM; how often the last of them was called."""
    calls = list[int]()
    package = "vllm.model_executor.layers.quantization.compressed_tensors.schemes"
    kernels = {f"{package}.{module}": {name: None} for module, name in in_vllm._FACTORIES.items()}
    modules: dict[str, dict[str, Any]] = {
        "vllm": {"LLM": Engine, "SamplingParams": SimpleNamespace},
        "vllm.inputs": {"TokensPrompt": SimpleNamespace},
        "vllm.distributed": {"cleanup_dist_env_and_memory": lambda: calls.append(1)},
        "vllm._custom_ops": {},
        **kernels,
    }
    for path in list(modules):
        for depth in range(1, path.count(".") + 1):
            modules.setdefault(path.rsplit(".", depth)[0], {})
    for path, names in modules.items():
        module = ModuleType(path)
        vars(module).update(names, __path__=[])
        monkeypatch.setitem(sys.modules, path, module)
    return calls


def test_every_job_is_answered(cleaned: list[int], monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """One line for each, at once, for the caller waits for it; a folder that fails leaves the next one."""
    x = torch.arange(4.0)
    inputs = {name: x.clone() for name in LINEAR}
    save_file({**inputs, "ids": torch.arange(20)}, tmp_path / "in")
    save_file({LINEAR[1]: x}, tmp_path / "few")
    job = {"dtype": "auto", "outputs": str(tmp_path / "out"), "package": "torch"}
    jobs = [
        {**job, "folder": "broken", "inputs": str(tmp_path / "in")},
        {**job, "folder": "whole", "inputs": str(tmp_path / "in")},
        {**job, "folder": "whole", "inputs": str(tmp_path / "few"), "outputs": str(tmp_path / "less")},
    ]
    said = Flushed()
    monkeypatch.setattr(sys, "stdin", io.StringIO("".join(json.dumps(one) + "\n" for one in jobs)))
    monkeypatch.setattr(sys, "stdout", said)
    in_vllm.main()
    lines = said.getvalue().splitlines()
    assert all(line.startswith(in_vllm.ANSWER) for line in lines) and said.flushes == len(jobs)
    first, second, third = (json.loads(line.removeprefix(in_vllm.ANSWER)) for line in lines)
    version = torch.__version__
    assert first == {"opened": False, "why": "RuntimeError: no such layout", "version": version}
    kernels = {"SimpleNamespace": "reference", "OwnScheme": "SimpleNamespace"}
    assert second == third == {"opened": True, "kernels": kernels, "version": version}
    outputs, network = load_file(tmp_path / "out"), Network()
    joined = network.attn.qv_proj.matrix @ x
    wanted = zip(LINEAR, (joined[:2], joined[2:], network.attn.o_proj.matrix @ x), strict=True)
    assert all(torch.equal(outputs[name], value) for name, value in wanted)
    assert torch.equal(outputs["logits"], torch.arange(20.0)[:, None] * 2)
    assert set(load_file(tmp_path / "less")) == {LINEAR[1]} and len(cleaned) == len(jobs)
    wrapped = sys.modules["vllm._custom_ops"]
    assert wrapped.scaled_fp8_quant is in_vllm._plain_fp8
