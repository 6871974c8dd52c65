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
from torch import nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from transformers import LlamaConfig, LlamaForCausalLM

from explorer import SCHEMES, quantize, quantize_model
from explorer.running.attention import attend_reference, choose
from explorer.running.fused import fuse
from explorer.running.graphed import GraphedNetwork, GraphedPool
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
