"""Steps of a network by compiled blocks and a cache of fixed room, where nothing is captured: the text is
that of the network as it is. The graph's own tests are in tests/gpu/test_steps.py."""

from __future__ import annotations

import copy
import gc

import pytest
import torch
from torch import nn
from transformers import LlamaConfig, LlamaForCausalLM, MistralConfig, MistralForCausalLM

from explorer.running import attention
from explorer.running.fused import JoinedLayer, fuse
from explorer.running.graphed import GraphedNetwork, GraphedPool, blocks_of
from explorer.running.placing import CachedDecoder

SIZES = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 3, "num_attention_heads": 4}


@pytest.fixture(scope="module")
def plain() -> nn.Module:
    torch.manual_seed(0)
    config = LlamaConfig(vocab_size=64, num_key_value_heads=2, max_position_embeddings=64, **SIZES)
    return LlamaForCausalLM(config).eval()


def test_all_blocks_share_one_compilation_and_write_the_same_text(plain: nn.Module) -> None:
    """With layers of one input joined, two texts in turn from one pool. If blocks are compiled one by one, a
    large model takes minutes before its first token."""
    network = copy.deepcopy(plain)
    assert fuse(network) == 6 and sum(isinstance(m, JoinedLayer) for m in network.modules()) == 15
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
    assert len(graphs) == 1
    with torch.no_grad():
        ids = torch.tensor([[3, 1, 4]])
        whole = network(input_ids=ids, use_cache=False).logits
        torch.testing.assert_close(whole, plain(input_ids=ids).logits, atol=1e-4, rtol=1e-4)


def test_a_cache_without_room_says_so(plain: nn.Module) -> None:
    graphed = GraphedNetwork(copy.deepcopy(plain), 4)
    graphed.prefill(torch.tensor([[1, 2, 3, 4]]))
    with pytest.raises(ValueError, match="room for 4 tokens"):
        graphed.step(torch.tensor([[1]]))


def test_blocks_that_see_a_window_are_refused() -> None:
    """A step would write beyond the window's keys."""
    config = MistralConfig(vocab_size=64, num_key_value_heads=2, sliding_window=8, **SIZES)
    with pytest.raises(ValueError, match="StaticSlidingWindowLayer"):
        GraphedPool(MistralForCausalLM(config))
    with pytest.raises(ValueError, match="no list of its blocks"):
        blocks_of(nn.Linear(2, 2))


@pytest.mark.parametrize(("heads", "groups"), [(4, 4), (8, 2), (6, 2)])
def test_attention_over_a_cache_is_torchs_attention(heads: int, groups: int) -> None:
    """By the reference that the kernel is held against; and keys behind the last are not seen."""
    draws = torch.Generator().manual_seed(0)
    q = torch.randn(3, heads, 64, generator=draws)
    keys, values = (torch.randn(3, groups, 20, 64, generator=draws) for _ in range(2))
    for count in (1, 7, 20):
        seen = [part[:, :, :count].repeat_interleave(heads // groups, 1) for part in (keys, values)]
        want = nn.functional.scaled_dot_product_attention(q[:, :, None], *seen, scale=0.2)[:, :, 0]
        known = values.clone()
        known[:, :, count:] = 1e6
        got = torch.ops.explorer.attend(q, keys, known, torch.tensor(count - 1), 0.2)
        torch.testing.assert_close(got, want, atol=1e-5, rtol=1e-5)
