"""On two GPUs: every call computes where its tensors lie, whichever GPU is current.

If these fail, a model on the second GPU ends in an illegal memory access, or in other values.
"""

import copy
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.utils._pytree import tree_map_only
from transformers import LlamaConfig, LlamaForCausalLM

from explorer import SCHEMES, QuantizedLinear, Scheme, fake_quantize, linear, quantize, quantize_model
from explorer.analysis.report import compare
from explorer.methods import apply
from explorer.running.attention import choose
from explorer.running.graphed import GraphedNetwork

pytestmark = [pytest.mark.gpu, pytest.mark.skipif(torch.cuda.device_count() < 2, reason="needs two GPUs")]
FIRST, SECOND = "cuda:0", "cuda:1"
NAMES = ("nvfp4", "mxfp4", "mxfp8_e4m3", "int4_group128_asym", "int8_tensor")
DRAW = torch.Generator().manual_seed(0)
X, W = (torch.randn(rows, 512, generator=DRAW) for rows in (1024, 264))
FEW, MANY, INT8, INT4 = X[:1].bfloat16(), X[:300].bfloat16(), SCHEMES["int8_row"], SCHEMES["int4_group128"]


def held(w: Tensor, s: Scheme) -> QuantizedLinear:
    return QuantizedLinear(quantize(w.cpu(), s)).to(w.device)


def gradient_of(tensor: Tensor, called: Callable[[Tensor], Tensor]) -> Tensor:
    leaf = tensor.clone().requires_grad_()
    return torch.autograd.grad(called(leaf).float().square().sum(), leaf)[0]


def apart(got: Tensor, want: Tensor) -> float:
    return float((got.cpu().float() - want.cpu().float()).norm() / want.cpu().float().norm())


DOORS: dict[str, Callable[[Tensor, Scheme], Tensor]] = {
    "quantize": lambda w, s: quantize(w, s).packed,
    "dequantize": lambda w, s: quantize(w.cpu(), s).to(w.device).dequantize(),
    "fake_quantize": fake_quantize,
    "operator": lambda w, s: torch.ops.explorer.quantize(w, s.name)[0],
    "QuantizedLinear.to": lambda w, s: held(w, s).cpu().quantized.packed,
    "compare": lambda w, s: torch.tensor(compare(w, quantize(w, s)).sqnr_db),
    "linear": lambda w, s: linear(FEW.to(w.device), quantize(w, s)),
    "linear, inputs in INT8": lambda w, s: linear(FEW.to(w.device), quantize(w, s), None, INT8),
    "QuantizedLinear": lambda w, s: held(w, s)(MANY.to(w.device)),
    "gradient of inputs": lambda w, s: gradient_of(FEW.to(w.device), held(w, s)),
    "gradient of weights": lambda w, s: gradient_of(w, lambda leaf: fake_quantize(leaf, s)),
    "gptq": lambda w, s: apply("gptq", w, INT4, X.to(w.device)).output(X.to(w.device)),
}
MOST = dict.fromkeys([*DOORS][:5], 0.0) | {"gptq": 0.1}  # GPTQ's sums turn single codes


@pytest.mark.parametrize("current", [0, 1])
@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("door", DOORS)
def test_each_door_is_the_cpus(door: str, name: str, current: int) -> None:
    with torch.cuda.device(current):
        got = DOORS[door](W.to(SECOND), SCHEMES[name])
        assert torch.cuda.current_device() == current and got.get_device() != 0
    assert apart(got, DOORS[door](W, SCHEMES[name])) <= MOST.get(door, 0.02)


def test_threads_on_both() -> None:
    """Each with the other GPU current."""
    scheme, call = SCHEMES["nvfp4"], DOORS["linear"]
    want = [call(W.to(where), scheme) for where in (FIRST, SECOND)]

    def work(index: int) -> bool:
        own = want[index % 2]
        with torch.cuda.device(1 - index % 2):
            return all(torch.equal(call(W.to(own.device), scheme), own) for _ in range(30))

    with ThreadPoolExecutor(8) as pool:
        assert all(pool.map(work, range(8)))


@pytest.mark.parametrize("name", NAMES)
def test_a_graph_of_the_other_gpu(name: str) -> None:
    x, w, graph, stream = FEW.to(SECOND), W.to(SECOND), torch.cuda.CUDAGraph(), torch.cuda.Stream(SECOND)
    layer = held(w, SCHEMES[name])
    layer(x), quantize(w, SCHEMES[name]).dequantize(), torch.cuda.synchronize(SECOND)
    with torch.cuda.graph(graph, stream=stream), torch.cuda.device(FIRST):
        captured = layer(x), quantize(w, SCHEMES[name]).dequantize()
    x.mul_(0.37), w.mul_(0.37)
    graph.replay()
    assert all(map(torch.equal, captured, (layer(x), quantize(w, SCHEMES[name]).dequantize())))


@torch.no_grad()
def test_a_model_on_either_and_on_both() -> None:
    """Its captured step, one after another with the first GPU current; then all but its embeddings and first
    block on the other, as accelerate places them."""
    sizes = {"hidden_size": 512, "intermediate_size": 1024, "num_hidden_layers": 3}
    config = LlamaConfig(vocab_size=256, num_attention_heads=8, num_key_value_heads=4, **sizes)
    network: Any = quantize_model(LlamaForCausalLM(config).bfloat16().eval(), "nvfp4")
    ids, steps = torch.arange(9).view(1, 9), []
    want = network(ids, use_cache=False).logits
    choose(network)
    for where in (FIRST, SECOND):
        graphed = GraphedNetwork(copy.deepcopy(network).to(where), 64)
        graphed.prefill(ids.to(where))
        steps.append(graphed.step(ids[:, :1].to(where)))
    assert apart(*steps) < 0.03
    network.to(FIRST)
    moved = partial(tree_map_only, Tensor, lambda tensor: tensor.to(SECOND))
    for part in (*network.model.layers[1:], network.model.norm, network.lm_head):
        part.to(SECOND).register_forward_pre_hook(lambda _, *given: moved(given), with_kwargs=True)
    assert apart(network(ids.to(FIRST), use_cache=False).logits, want) < 0.05
    with pytest.raises(ValueError, match="several devices"):
        GraphedNetwork(network, 64)
