"""On a GPU: a small Llama whose step is compiled and captured writes what it writes uncompiled, under every
kind of weight, and its logits are those of fake quantization within the rounding of bfloat16.

If these fail, `explorer run` writes the text of another model than the one whose loss was measured.
"""

from __future__ import annotations

import copy
import os
import subprocess
import sys
import threading
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import AutoModelForCausalLM, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen3Config

from explorer import SCHEMES, quantize, quantize_model
from explorer.gpu.attend import StepAttention
from explorer.gpu.gemm.swap_ab import SwapAB
from explorer.products.layer import QuantizedLinear
from explorer.products.weights import TilesForm
from explorer.running.attention import attend_reference, choose
from explorer.running.fused import fuse
from explorer.running.graphed import GraphedNetwork, GraphedPool
from explorer.running.joined_step import against_joining
from explorer.running.placing import CachedDecoder

pytestmark = pytest.mark.gpu


def llama() -> Any:
    torch.manual_seed(0)
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8}
    config = LlamaConfig(vocab_size=256, num_key_value_heads=4, max_position_embeddings=512, **sizes)
    return LlamaForCausalLM(config).cuda().bfloat16().eval()


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    return llama()


@pytest.mark.parametrize("scheme", ["int4_group128", "nvfp4", "int8_row", "q4_k", "bf16"])
@pytest.mark.parametrize("inputs", [None, "int8_row"])
def test_a_captured_step_is_the_step(plain: nn.Module, scheme: str, inputs: str | None) -> None:
    """Twelve tokens of two texts in turn, through one pool: each has a cache of its own."""
    network = copy.deepcopy(plain)
    if scheme != "bf16":
        quantize_model(network, scheme, SCHEMES[inputs] if inputs else None)
    ours = copy.deepcopy(network)
    fuse(ours)
    choose(ours)
    pool = GraphedPool(ours)
    with sdpa_kernel(SDPBackend.MATH):
        for prompt in ([1, 2, 3, 4, 5], [9, 8, 7]):
            decoder, reference, ids = pool.decoder(ours, 40), CachedDecoder(network), prompt
            for _ in range(12):
                got, want = decoder(ids), reference(ids)
                assert float((got - want).norm() / want.norm()) < 0.03
                ids = [int(want.argmax())]
            del decoder


ONE_BY_ONE = """
import copy, hashlib, sys, torch
from tests.gpu.test_steps import llama
from explorer import SCHEMES, quantize_model
from explorer.gpu.attend import StepAttention
from explorer.gpu.gemm.swap_ab import SwapAB
from explorer.products.layer import QuantizedLinear
from explorer.products.weights import TilesForm
from explorer.running.attention import choose
from explorer.running.fused import fuse
from explorer.running.graphed import GraphedNetwork
captured, plain = sys.argv[1] == "captured", llama()
torch.set_grad_enabled(False)
for scheme in ("int4_group128", "nvfp4", "int8_row+int8_row", "nf4_block64_double", ""):
    scheme, _, inputs = scheme.partition("+")
    for batch in (1, 16):
        network = copy.deepcopy(plain)
        if scheme:
            quantize_model(network, scheme, SCHEMES[inputs] if inputs else None)
        fuse(network)
        choose(network)
        graphed = GraphedNetwork(network, 64, batch)
        ids = torch.arange(batch * 9, device="cuda").view(batch, 9) % 256
        logits = [graphed.prefill(ids)]
        for index in range(20):
            one = ids[:, index % 9 : index % 9 + 1]
            logits.append((graphed.step(one) if captured else graphed.run(one)).clone())
        every = torch.stack(logits).float().cpu().numpy().tobytes()
        print(scheme, inputs, batch, hashlib.sha256(every).hexdigest())
        torch._dynamo.reset()
"""


def test_kernels_launched_early_read_what_was_written() -> None:
    """The same kernels in a graph, launched while the one before them ends, and one after another, each
    waited for: the same bits."""
    printed = {}
    for how, blocking in (("captured", "0"), ("one by one", "1")):
        environment = {**os.environ, "CUDA_LAUNCH_BLOCKING": blocking}
        run = subprocess.run(
            [sys.executable, "-c", ONE_BY_ONE, how],
            env=environment,
            capture_output=True,
            text=True,
            timeout=600,
        )
        assert run.returncode == 0, run.stderr[-2000:]
        printed[how] = run.stdout
    assert printed["captured"] == printed["one by one"]
    assert printed["captured"].count("\n") == 10


def test_logits_are_those_of_fake_quantization_within_rounding(plain: nn.Module) -> None:
    fake = copy.deepcopy(plain).float()
    for module in fake.model.layers.modules():
        if type(module) is nn.Linear:
            module.weight.data = quantize(module.weight.data, SCHEMES["int4_group128"]).dequantize()
    ours = quantize_model(copy.deepcopy(plain), "int4_group128")
    ids = torch.arange(40, device="cuda").view(1, 40)
    with torch.no_grad(), sdpa_kernel(SDPBackend.MATH):
        want, got = fake(ids).logits, ours(ids).logits.float()
    assert float((got - want).norm() / want.norm()) < 0.02


CACHES = [
    (1, 32, 8, 128, 768), (1, 4, 4, 64, 64), (3, 6, 2, 64, 100), (2, 16, 2, 128, 1000), (16, 32, 8, 128, 300),
    (64, 8, 8, 128, 96),
]  # fmt: skip


@pytest.mark.parametrize(("texts", "heads", "groups", "size", "room"), CACHES)
def test_attention_is_that_of_the_keys_there_are(
    texts: int, heads: int, groups: int, size: int, room: int
) -> None:
    """From one key to all, against float32 on the same values; what lies behind is never read; the same bits
    each time, in a graph too."""
    draws = torch.Generator(device="cuda").manual_seed(0)
    q = torch.randn(texts, heads, size, generator=draws, device="cuda").bfloat16()
    keys, values = (
        torch.randn(texts, groups, room, size, generator=draws, device="cuda").bfloat16() for _ in range(2)
    )
    before = torch.zeros((), dtype=torch.long, device="cuda")
    attend = torch.ops.explorer.attend
    graph = torch.cuda.CUDAGraph()
    attend(q, keys, values, before, 0.1)
    torch.cuda.synchronize()
    with torch.cuda.graph(graph):
        captured = attend(q, keys, values, before, 0.1)
    for count in sorted({1, 2, 63, 64, 65, room // 2, room - 1, room}):
        if count > room:
            continue
        before.fill_(count - 1)
        known, others = keys.clone(), values.clone()
        known[:, :, count:] = float("nan")
        others[:, :, count:] = float("nan")
        got = attend(q, known, others, before, 0.1)
        want = attend_reference(q.float(), keys[:, :, :count], values[:, :, :count], before, 0.1)
        assert float((got.float() - want).abs().max()) < 0.02
        graph.replay()
        assert torch.equal(captured, got) and torch.equal(attend(q, known, others, before, 0.1), got)


@pytest.mark.parametrize("batch", [1, 16])
def test_texts_side_by_side_are_those_alone(plain: nn.Module, batch: int) -> None:
    network = copy.deepcopy(plain)
    choose(network)
    together = GraphedNetwork(network, 64, batch)
    ids = torch.randint(256, (batch, 9), generator=torch.Generator().manual_seed(1)).cuda()
    first = together.prefill(ids).float()
    second = together.step(ids[:, :1]).float().clone()
    third = together.step(ids[:, 1:2]).float().clone()
    for index in (0, batch - 1):
        alone = CachedDecoder(plain)
        for got, given in ((first, ids[index]), (second, ids[index, :1]), (third, ids[index, 1:2])):
            want = alone(given.tolist())
            assert float((got[index] - want).norm() / want.norm()) < 0.03


def test_two_threads_write_their_own_texts(plain: nn.Module) -> None:
    network = copy.deepcopy(plain)
    pool = GraphedPool(network)
    want = {}
    for seed in range(2):
        want[seed] = _text(CachedDecoder(plain), seed)
    got: dict[int, list[int]] = {}
    _text(pool.decoder(network, 40), 0)  # compiled once before both
    threads = [
        threading.Thread(target=lambda s=seed: got.update({s: _text(pool.decoder(network, 40), s)}))
        for seed in range(2)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    for seed in range(2):
        assert got[seed][:4] == want[seed][:4]


def _text(decoder: Any, seed: int) -> list[int]:
    ids, written = [seed + 1, seed + 2, seed + 3], []
    for _ in range(10):
        ids = [int(decoder(ids).argmax())]
        written += ids
    return written


def networks() -> list[Any]:
    """Small networks of Llama's kind: as it is, with norms of queries and keys, with biases."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3, "num_attention_heads": 8}
    sizes |= {"vocab_size": 256, "num_key_value_heads": 4, "max_position_embeddings": 512, "head_dim": 64}
    torch.manual_seed(0)
    return [
        AutoModelForCausalLM.from_config(kind(**sizes)) for kind in (LlamaConfig, Qwen3Config, Qwen2Config)
    ]


@pytest.mark.parametrize("which", range(3))
@pytest.mark.parametrize("scheme", ["int4_group128", "nvfp4+int8_row", "int8_row+int8_row"])
@pytest.mark.parametrize("batch", [1, 5, 16])
def test_a_step_of_five_launches_a_block_is_the_step(which: int, scheme: str, batch: int) -> None:
    """With and without codes in the head: against the network's own logits; the same bits each time, in a
    graph and without one."""
    scheme, _, head = scheme.partition("+")
    network = quantize_model(networks()[which].cuda().bfloat16().eval(), scheme)
    if head:
        network.lm_head = QuantizedLinear.of(network.lm_head, SCHEMES[head])
    ours = copy.deepcopy(network)
    fuse(ours)
    graphed = GraphedNetwork(ours, 128, batch)
    assert graphed.joined and not against_joining(ours)
    ids = torch.randint(256, (batch, 20), generator=torch.Generator().manual_seed(1)).cuda()
    every = []
    for call in (graphed.step, graphed.step, graphed.run):
        graphed.prefill(ids[:, :9])
        every.append(torch.stack([call(ids[:, at : at + 1]).clone() for at in range(9, 20)]))
    assert torch.equal(every[0], every[1]) and torch.equal(every[0], every[2])
    for index in {0, batch - 1}:
        alone = CachedDecoder(network)
        alone(ids[index, :9].tolist())
        want = torch.stack([alone([int(one)]) for one in ids[index, 9:]])
        assert float((every[0][:, index] - want).norm() / want.norm()) < 0.03


@pytest.mark.parametrize("kind", ["plain", "residual", "gate"])
@pytest.mark.parametrize(
    ("scheme", "n", "k"), [("int4_group128", 1024, 4096), ("nvfp4", 512, 1024), ("int8_row", 256, 768)]
)
@pytest.mark.parametrize("m", [1, 8, 9, 16])
def test_what_is_joined_to_a_product_is_float64s(kind: str, scheme: str, n: int, k: int, m: int) -> None:
    draws = torch.Generator(device="cuda").manual_seed(m)
    state, after, x, gain, w = (
        torch.rand(shape, generator=draws, device="cuda").sub(0.3).bfloat16()
        for shape in ((m, n), (n,), (m, k), (k,), (2, n // 2, k))
    )
    forms = [TilesForm(SCHEMES[scheme], None, (n // 2, k))] * 2
    codes = [quantize(part, SCHEMES[scheme]) for part in w]
    whole = TilesForm(SCHEMES[scheme], None, (n, k))
    held = whole.join([form.load(q) for form, q in zip(forms, codes, strict=True)], forms, kind == "gate")
    squares = x.float().square().view(m, 4, -1).sum(2).contiguous()
    y = (x * gain).double() @ torch.cat([q.dequantize() for q in codes]).double().t()
    if kind != "residual":
        y *= (squares.double().sum(1, keepdim=True) / k + 1e-5).rsqrt()
    launch = SwapAB(m, n, 2 * k, whole.tiles, torch.bfloat16, x.device, early=True, step=True)
    rows, out = (x * gain).contiguous(), torch.full((m, n), float("nan"), device="cuda").bfloat16()
    own, new, column = (
        torch.empty(m, launch.slots, device="cuda"),
        state.clone(),
        held[1] if held[1:] else None,
    )
    epilogue = (out.data_ptr(), 0, 0 if column is None else column.data_ptr(), *[0] * 6)
    epilogue += (0 if column is None or column.numel() == 1 else 1, 1, 0, m, n)
    terms = (new.data_ptr(), after.data_ptr(), own.data_ptr()) if kind == "residual" else (0, 0, 0)
    rest = (held[0].data_ptr(), 0, 0 if kind == "residual" else 4, 1 / k, 1e-5, int(kind == "gate"), 4096, 0)
    launch.start(rows.data_ptr(), held[0].data_ptr(), epilogue, step=(squares.data_ptr(), *terms, *rest))
    found = out.flatten()[: m * n // 2].view(m, -1) if kind == "gate" else out
    if kind == "gate":
        gate, up = y.chunk(2, 1)
        y = gate * gate.sigmoid() * up
    if kind == "residual":
        assert float((new - state.double() - y).norm() / y.norm()) < 5e-3
        assert torch.allclose(own.double().sum(1), new.double().square().sum(1), rtol=1e-4)
        y = new.double() * after.double()
    assert float((found - y).norm() / y.norm()) < 5e-3


@pytest.mark.parametrize("normed", [False, True])
@pytest.mark.parametrize(("texts", "heads", "groups", "size", "room"), CACHES)
def test_a_steps_attention_rotates_and_writes_the_cache(
    texts: int, heads: int, groups: int, size: int, room: int, normed: bool
) -> None:
    """From no earlier key to a full cache, against float32; what lies behind is never read."""
    draws = torch.Generator(device="cuda").manual_seed(0)

    def drawn(*shape: int) -> Tensor:
        return torch.randn(shape, generator=draws, device="cuda").bfloat16()

    qkv, keys, values = (
        drawn(texts, (heads + 2 * groups) * size),
        *(drawn(texts, groups, room, size) for _ in "kv"),
    )
    cosines, sines = drawn(room, size), drawn(room, size)
    norms = [drawn(size), drawn(size)] if normed else [None, None]
    launch = StepAttention(texts, heads, groups, size, room, 0.1, qkv.device)
    for before in sorted({0, 1, 63, 64, 65, room // 2, room - 1} & set(range(room))):
        q, k, v = qkv.float().split([heads * size, groups * size, groups * size], 1)
        turned = []
        for part, norm in zip((q, k), norms, strict=True):
            part = part.view(texts, -1, size)
            if norm is not None:
                part = part * (part.square().mean(-1, keepdim=True) + 1e-6).rsqrt() * norm
            half = torch.cat([-part[..., size // 2 :], part[..., : size // 2]], -1)
            turned.append(part * cosines[before] + half * sines[before])
        own_k, own_v = keys.clone(), values.clone()
        own_k[:, :, before:], own_v[:, :, before:] = float("nan"), float("nan")
        used, out = torch.tensor(before, device="cuda"), drawn(texts, heads * size)
        every = (qkv, cosines, sines, *norms, own_k, own_v, used, out)
        launch.start([0 if one is None else one.data_ptr() for one in every], 1e-6)
        assert float((own_k[:, :, before] - turned[1]).norm() / turned[1].norm()) < 5e-3
        assert torch.equal(own_v[:, :, before], v.view(texts, groups, size).bfloat16())
        known = torch.cat([keys[:, :, :before].float(), turned[1][:, :, None]], 2)
        others = torch.cat([values[:, :, :before].float(), v.view(texts, groups, 1, size)], 2)
        want = attend_reference(turned[0], known, others, used, 0.1).flatten(1)
        assert float((out - want).norm() / want.norm()) < 0.02
        first = out.clone()
        launch.start([0 if one is None else one.data_ptr() for one in every], 1e-6)
        assert torch.equal(first, out)
