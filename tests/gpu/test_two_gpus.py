"""On two GPUs: every call computes where its tensors lie, whichever GPU is current.

If these fail, a model on the second GPU ends in an illegal memory access, or in other values.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import LlamaConfig, LlamaForCausalLM

import explorer
from explorer import SCHEMES, QuantizedLinear, Scheme, quantize, quantize_model
from explorer.methods import apply
from explorer.running.attention import choose
from explorer.running.graphed import GraphedNetwork

few = torch.cuda.device_count() < 2
pytestmark = [pytest.mark.gpu, pytest.mark.skipif(few, reason="needs two GPUs")]
FIRST, SECOND = "cuda:0", "cuda:1"
NAMES = ("nvfp4", "mxfp4", "mxfp8_e4m3", "int4_group128_asym", "int8_tensor")
INT8 = SCHEMES["int8_row"]


def drawn() -> tuple[Tensor, Tensor]:
    return torch.randn(3, 512).bfloat16(), torch.randn(264, 512)


def gradient_of(tensor: Tensor, called: Callable[[Tensor], Tensor]) -> Tensor:
    leaf = tensor.clone().requires_grad_()
    return torch.autograd.grad(called(leaf).float().square().sum(), leaf)[0]


def gptq(x: Tensor, w: Tensor, s: Scheme) -> Tensor:
    inputs = torch.randn(1024, 512, generator=torch.Generator().manual_seed(1)).to(w.device)
    return apply("gptq", w, SCHEMES["int4_group128_asym"], inputs).output(inputs)


def apart(got: Tensor, want: Tensor) -> float:
    return float((got.cpu().float() - want.cpu().float()).norm() / want.float().norm())


def held(w: Tensor, s: Scheme) -> QuantizedLinear:
    return QuantizedLinear(quantize(w.cpu(), s)).to(w.device)


EXACT: dict[str, Callable[[Tensor, Tensor, Scheme], Tensor]] = {
    "quantize": lambda x, w, s: quantize(w, s).packed,
    "dequantize": lambda x, w, s: quantize(w.cpu(), s).to(w.device).dequantize(),
    "fake_quantize": lambda x, w, s: explorer.fake_quantize(w, s),
    "operator": lambda x, w, s: torch.ops.explorer.quantize(w, s.name)[0],
    "QuantizedLinear.to": lambda x, w, s: held(w, s).cpu().quantized.packed,
}
NEAR: dict[str, Callable[[Tensor, Tensor, Scheme], Tensor]] = {
    "compare": lambda x, w, s: torch.tensor(explorer.compare(w, quantize(w, s)).sqnr_db),
    "linear": lambda x, w, s: explorer.linear(x, quantize(w, s)),
    "linear, inputs in INT8": lambda x, w, s: explorer.linear(x, quantize(w, s), None, INT8),
    "QuantizedLinear": lambda x, w, s: held(w, s)(x),
    "gradient of inputs": lambda x, w, s: gradient_of(x, held(w, s)),
    "gradient of weights": lambda x, w, s: gradient_of(w, lambda leaf: explorer.fake_quantize(leaf, s)),
    "gptq": gptq,
}


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("door", [*EXACT, *NEAR])
def test_each_door_is_the_cpus(door: str, name: str, current: int) -> None:
    x, w = drawn()
    call = (EXACT | NEAR)[door]
    want = call(x, w, SCHEMES[name])
    with torch.cuda.device(current):
        got = call(x.to(SECOND), w.to(SECOND), SCHEMES[name])
        assert torch.cuda.current_device() == current and got.get_device() != 0
    exact, most = door in EXACT, 0.1 if door == "gptq" else 0.02
    assert torch.equal(got.cpu(), want) if exact else apart(got, want) < most


def test_threads_on_both() -> None:
    """Each with the other GPU current."""
    scheme, (x, w) = SCHEMES["nvfp4"], drawn()
    pairs = [(x.to(where), quantize(w, scheme).to(where)) for where in (FIRST, SECOND)]
    want = [explorer.linear(*pair) for pair in pairs]

    def work(index: int) -> bool:
        given, q = pairs[index % 2]
        with torch.cuda.device(1 - index % 2):
            every = [explorer.linear(given, quantize(w.to(q.device), scheme)) for _ in range(30)]
            return all(torch.equal(one, want[index % 2]) for one in every)

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_the_other_gpu(name: str) -> None:
    x, w = (t.to(SECOND) for t in drawn())
    scheme, graph, stream = SCHEMES[name], torch.cuda.CUDAGraph(), torch.cuda.Stream(SECOND)
    layer = held(w, scheme)

    def calls() -> list[Tensor]:
        return [layer(x), quantize(w, scheme).dequantize()]

    calls()
    torch.cuda.synchronize(SECOND)
    with torch.cuda.graph(graph, stream=stream), torch.cuda.device(FIRST):
        captured = calls()
    x.mul_(0.37), w.mul_(0.37)
    graph.replay()
    assert all(map(torch.equal, captured, calls()))


def llama() -> Any:
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3}
    config = LlamaConfig(vocab_size=256, num_attention_heads=8, num_key_value_heads=4, **sizes)
    return quantize_model(LlamaForCausalLM(config).bfloat16().eval(), "nvfp4")


@torch.no_grad()
def test_a_model_that_is_spread_over_both() -> None:
    """Its first block and its embeddings on one, all else on the other, as accelerate places them."""
    network, ids = llama(), torch.arange(9).view(1, 9)
    want = network(input_ids=ids, use_cache=False).logits
    network.to(FIRST)
    for part in (*network.model.layers[1:], network.model.norm, network.lm_head):
        part.to(SECOND)
    for block in network.model.layers[1:]:
        block.register_forward_pre_hook(lambda _, *given: to_second(given), with_kwargs=True)
    got = network(input_ids=ids.to(FIRST), use_cache=False).logits
    assert got.device == torch.device(SECOND) and apart(got, want) < 0.05
    with pytest.raises(ValueError, match="several devices"):
        GraphedNetwork(network, 64)


def to_second(given: Any) -> Any:
    return tree_map_only(Tensor, lambda tensor: tensor.to(SECOND), given)


def test_a_captured_step_on_either() -> None:
    """One after another, the first GPU current: the graph lies where its network does."""
    network, ids, steps = llama(), torch.arange(9).view(1, 9), []
    choose(network)
    for where in (FIRST, SECOND):
        graphed = GraphedNetwork(copy.deepcopy(network).to(where), 64)
        graphed.prefill(ids.to(where))
        steps.append(graphed.step(ids[:, :1].to(where)))
    assert apart(*steps) < 0.03
