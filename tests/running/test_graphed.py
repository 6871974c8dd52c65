"""Steps of a network by compiled blocks and a cache of fixed room, where nothing is captured: the text is
that of the network as it is. The graph's own tests are in tests/gpu/test_steps.py."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from transformers import (
    AutoModelForCausalLM,
    FalconConfig,
    GPT2Config,
    GPTNeoConfig,
    LlamaConfig,
    LlamaForCausalLM,
    MistralConfig,
    MistralForCausalLM,
    OPTConfig,
    Phi3Config,
    PreTrainedConfig,
    Qwen3Config,
)

from explorer.running import attention
from explorer.running.fused import JoinedLayer, fuse
from explorer.running.graphed import GraphedNetwork, GraphedPool, blocks_of
from explorer.running.joined_step import against_joining
from explorer.running.placing import CachedDecoder, against_graphs, serve_compiled
from tests.covering import sampled

NEO = [[["global", "local"], 1]]
CONFIGS = (GPT2Config, Phi3Config, Qwen3Config, OPTConfig)
SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 5, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=64, **SIZES)
    return LlamaForCausalLM(config).eval()


def test_all_blocks_share_one_compilation_and_write_the_same_text(plain: nn.Module) -> None:
    """Else a large model takes minutes before its first token. Two texts in turn from one pool."""
    network = copy.deepcopy(plain)
    assert fuse(network) == 10 and sum(isinstance(m, JoinedLayer) for m in network.modules()) == 25
    assert attention.choose(network)
    graphs: list[object] = []

    def backend(graph: torch.fx.GraphModule, _: object) -> object:
        graphs.append(graph)
        return graph.forward

    pool = GraphedPool(network, backend=backend)
    for prompt in ([1, 2, 3, 4, 5], [9, 8, 7]):
        decoder, reference, ids = pool.decoder(network, 40), CachedDecoder(plain), prompt
        for _ in range(4):
            got, want = decoder(ids), reference(ids)
            torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
            ids = [int(want.argmax())]
        assert not pool._free
        del decoder
        gc.collect()
        assert len(pool._free) == 1
    assert len(graphs) <= 3  # numbers of 0 and 1 are compiled in, all others are not
    with torch.no_grad():
        ids = torch.tensor([[3, 1, 4]])
        whole = network(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(whole, plain(input_ids=ids).logits, atol=1e-4, rtol=1e-4)


def test_a_cache_without_room_says_so(plain: nn.Module) -> None:
    graphed = GraphedNetwork(copy.deepcopy(plain), 4)
    graphed.prefill(torch.tensor([[1, 2, 3, 4]]))
    for call in (lambda: graphed.step(torch.tensor([[1]])), lambda: graphed.prefill(torch.ones(1, 5).long())):
        with pytest.raises(ValueError, match="room for 4 tokens"):
            call()


def test_what_others_run_is_not_changed(plain: nn.Module) -> None:
    """transformers' own generation and calls without a cache, between texts; after ``remove``, all."""
    network = copy.deepcopy(plain)
    pool, ids = GraphedPool(network, backend="eager"), torch.tensor([[5, 4, 3]])
    with torch.no_grad():
        want = plain(ids).logits, plain.generate(ids, max_new_tokens=5, do_sample=False)
        pool.decoder(network, 40)([1, 2, 3])
        assert torch.equal(network(ids).logits, want[0])
        assert torch.equal(network.generate(ids, max_new_tokens=5, do_sample=False), want[1])
    with pytest.raises(ValueError, match="replaced before"):
        GraphedPool(network)
    pool.compiled.remove()
    assert GraphedPool(network) and torch.equal(network(ids).logits, want[0])


@pytest.mark.parametrize("config", sampled(CONFIGS, CONFIGS[:2]))
def test_networks_run_by_a_graph_or_say_why_not(config: type[PreTrainedConfig]) -> None:
    """Blocks that are given their cache by position, have other projections or positions."""
    torch.manual_seed(0)
    settings = {**SIZES, "num_hidden_layers": 3, "ffn_dim": 128, "head_dim": 16, "word_embed_proj_dim": 64}
    settings["num_key_value_heads"] = 2
    network = AutoModelForCausalLM.from_config(config(vocab_size=64, pad_token_id=0, **settings)).eval()
    same = copy.deepcopy(network)
    decoder, ids = GraphedPool(network, backend="eager").decoder(network, 16), [5]
    reference = CachedDecoder(same)
    for _ in range(3):
        got, want = decoder(ids), reference(ids)
        torch.testing.assert_close(got, want, atol=1e-4, rtol=1e-4)
        ids = [int(want.argmax())]


def test_blocks_that_see_a_window_are_refused() -> None:
    """A step would write beyond the window's keys."""
    config = MistralConfig(vocab_size=64, num_key_value_heads=2, sliding_window=8, **SIZES)
    with pytest.raises(ValueError, match="StaticSlidingWindowLayer"):
        GraphedPool(MistralForCausalLM(config))
    neo = GPTNeoConfig(vocab_size=64, hidden_size=64, num_heads=4, num_layers=2, attention_types=NEO)
    with pytest.raises(ValueError, match="window_size"):
        GraphedPool(AutoModelForCausalLM.from_config(neo))
    with pytest.raises(ValueError, match="blocks"):
        blocks_of(nn.Linear(2, 2))


def test_attention_over_a_cache_is_torchs_attention() -> None:
    """By the reference that the kernel is held against; and keys behind the last are not seen."""
    draws = torch.Generator().manual_seed(0)
    for (heads, groups), count in itertools.product(((4, 4), (8, 2), (6, 2)), (1, 7, 20)):
        q = torch.randn(3, heads, 64, generator=draws)
        keys, values = (torch.randn(3, groups, 20, 64, generator=draws) for _ in range(2))
        seen = [part[:, :, :count].repeat_interleave(heads // groups, 1) for part in (keys, values)]
        want = nn.functional.scaled_dot_product_attention(q[:, :, None], *seen, scale=0.2)[:, :, 0]
        known = values.clone()
        known[:, :, count:] = 1e6
        got = torch.ops.explorer.attend(q, keys, known, torch.tensor(count - 1), 0.2)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)


def test_a_network_that_a_graph_would_change_is_run_step_by_step(plain: nn.Module) -> None:
    """The trial before anything is compiled: its reason is what the program says."""
    assert against_graphs(copy.deepcopy(plain)) == ""
    settings = {"hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4, "alibi": True}
    torch.manual_seed(0)
    falcon = AutoModelForCausalLM.from_config(FalconConfig(vocab_size=64, **settings)).eval()
    before = falcon(torch.tensor([[1, 2]]), use_cache=False).logits
    assert against_graphs(falcon)
    assert torch.equal(falcon(torch.tensor([[1, 2]]), use_cache=False).logits, before)


def _fails(*_: object) -> Any:
    raise RuntimeError("no working C compiler found\nand more")


def _wrong(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
    """A compiler whose code multiplies every result by 1.5."""
    return lambda *args: tuple(one * 1.5 if one.is_floating_point() else one for one in graph(*args))


def _nan(graph: torch.fx.GraphModule, _: object) -> Callable[..., Any]:
    return lambda *args: tuple(one * float("nan") if one.is_floating_point() else one for one in graph(*args))


@pytest.mark.parametrize(
    ("backend", "reason"),
    [
        ("eager", ""),
        (_fails, "C compiler"),
        (_wrong, "logits 0"),
        (_nan, "logits nan"),
    ],
)
def test_what_is_served_is_compared_with_the_network(plain: nn.Module, backend: Any, reason: str) -> None:
    """Else a wrong kernel writes a wrong text, and a machine without a C compiler none."""
    network = copy.deepcopy(plain)
    ids = torch.tensor([[5, 4, 3]])
    with torch.no_grad():
        want = plain(ids).logits
        placed = serve_compiled(network, "products", 40, backend=backend)
        decoder, reference = placed.decoder(network, 40), CachedDecoder(plain)
        for given in ([1, 2, 3], [4], [5]):
            torch.testing.assert_close(decoder(given), reference(given), atol=1e-4, rtol=1e-4)
        torch.testing.assert_close(network(ids).logits, want, atol=1e-4, rtol=1e-4)
    assert placed.kernels.startswith("products; ") and reason in placed.kernels
    if not reason:
        return
    assert not any("forward" in block.__dict__ for block in blocks_of(network))
    assert network.config._attn_implementation == "sdpa" and placed.decoder is CachedDecoder
    assert "\n" not in placed.kernels


def test_a_copy_is_compiled_and_a_block_is_pickled(plain: nn.Module) -> None:
    """A copy of a compiled network has its class's forward, which counted as replaced."""
    network, ids = copy.deepcopy(plain), torch.tensor([[5, 4, 3]])
    GraphedPool(network, backend="eager")
    for changed in (copy.deepcopy(network), pickle.loads(pickle.dumps(network))):
        pool = GraphedPool(changed, backend="eager")
        assert torch.equal(pool.decoder(changed, 9)([5, 4, 3]), CachedDecoder(plain)([5, 4, 3]))
        pool.compiled.remove()
        with torch.no_grad():
            assert torch.equal(changed(ids).logits, plain(ids).logits)
    changed, ids = copy.deepcopy(network), torch.tensor([[1, 2, 3]])
    with torch.no_grad():
        for parameter in changed.model.layers.parameters():
            parameter.zero_()
        want = changed.lm_head(changed.model.norm(changed.model.embed_tokens(ids)))
        torch.testing.assert_close(changed(ids).logits, want)  # not by the original's weights
    block = blocks_of(network)[0]
    assert copy.deepcopy(block.forward).__self__ is not block
    block.__dict__["forward"] = lambda *_: None
    with pytest.raises(ValueError, match="replaced before"):
        GraphedPool(network)


def test_a_step_is_joined_only_where_all_its_products_decode_codes(plain: nn.Module) -> None:
    """Else blocks are compiled; on a GPU tests/gpu/test_steps.py has the steps themselves."""
    network = copy.deepcopy(plain)
    assert fuse(network) and "not multiplied as one" in against_joining(network)
    assert not GraphedNetwork(network, 8).joined
    others = AutoModelForCausalLM.from_config(GPT2Config(n_embd=8, n_head=1, n_layer=1, vocab_size=8))
    assert against_joining(others) == "it is not built as Llama is"
