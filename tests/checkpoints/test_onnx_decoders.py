"""ONNX graphs of every kind of decoder on the list, compared with transformers.

If these fail, a graph of that kind computes another function than its model: a norm, a rotation, a window or
a scale is missing or stands at another place.
"""

from __future__ import annotations

from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from torch import Tensor, nn

from explorer import quantize
from explorer.checkpoints.to_onnx import MODELS, _traced
from explorer.methods.recipe import Recipe
from explorer.models.skeleton import Skeleton
from tests.checkpoints.readers.onnx import session
from tests.checkpoints.reading import uniform
from tests.checkpoints.writing import write_checkpoint
from tests.covering import sampled

BOUND = 1e-4
"""Of the largest logit: the same weights meet other orders of summation."""
SMALL: dict[str, Any] = {
    "vocab_size": 64, "hidden_size": 64, "intermediate_size": 96, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "initializer_range": 0.2, "pad_token_id": 0,
    "max_position_embeddings": 64,
}  # fmt: skip
WIDE = {"head_dim": 32}
MIXED = {"layer_types": ["sliding_attention", "full_attention"], "sliding_window": 5}
FAR = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 16, "rope_theta": 1e4}
STRETCHED = {"rope_type": "linear", "factor": 8.0, "rope_theta": 1e6}
NEAR = {"rope_type": "default", "rope_theta": 1e4}
LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 1e4, "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}  # fmt: skip
DECODERS: dict[str, tuple[str, Mapping[str, Any]]] = {
    "llama": ("Llama", {"rope_parameters": LLAMA3, "attention_bias": True, "mlp_bias": True}),
    "llama, tied": ("Llama", {"tie_word_embeddings": True}),
    "mistral": ("Mistral", WIDE | {"sliding_window": 5}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": True}),
    "qwen2, windows": (
        "Qwen2", {"use_sliding_window": True, "sliding_window": 5, "max_window_layers": 1}
    ),
    "qwen3": ("Qwen3", WIDE | {"tie_word_embeddings": True}),
    "qwen3, relu": ("Qwen3", WIDE | {"hidden_act": "relu"}),
    "gemma3_text, capped": ("Gemma3", WIDE | {"final_logit_softcapping": 30.0}),
    "qwen3, windows": ("Qwen3", WIDE | MIXED | {"use_sliding_window": True}),
    "gemma3_text": (
        "Gemma3",
        WIDE | MIXED | {
            "query_pre_attn_scalar": 24,
            "rope_parameters": {"sliding_attention": NEAR, "full_attention": STRETCHED},
        },
    ),
    "phi3": ("Phi3", {"rope_parameters": NEAR | {"partial_rotary_factor": 0.5}}),
    "phi3, window": ("Phi3", {"sliding_window": 5}),
    "olmo2": ("Olmo2", {}),
    "olmo3": (
        "Olmo3", MIXED | {"rope_parameters": {"sliding_attention": NEAR, "full_attention": FAR}},
    ),
    "smollm3": ("SmolLM3", {"num_hidden_layers": 4, "tie_word_embeddings": True}),
}  # fmt: skip
TOKENS = torch.randint(1, 64, (2, 17), generator=torch.Generator().manual_seed(3))
"""Longer than every window."""
PADS = 3
CARRIED = [("onnx", "fp32"), ("onnx", "int4_group32"), ("onnx-nbits", "int4_group32")]


QUICK = ("llama", "mistral", "qwen3, windows", "gemma3_text", "phi3", "olmo3", "smollm3")
"""Between them each kind of norm, rotation, window, bias and tie."""


@pytest.fixture(scope="module", params=sampled(DECODERS, QUICK))
def network(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> nn.Module:
    """A random model whose vectors, norms and biases, are no constants, and its folder as ``.folder``."""
    name, settings = DECODERS[request.param]
    torch.manual_seed(0)
    made = made_of(name, settings).eval()
    made.set_attn_implementation("eager")
    for parameter in made.parameters():
        if parameter.dim() == 1:
            nn.init.normal_(parameter, 0.5, 0.5)
    made.folder = tmp_path_factory.mktemp("models") / name
    made.save_pretrained(made.folder)
    return made


def made_of(name: str, settings: Mapping[str, Any]) -> nn.Module:
    """A random network; what is not said is as in ``SMALL``."""
    config = getattr(transformers, "Gemma3TextConfig" if name == "Gemma3" else f"{name}Config")
    return getattr(transformers, f"{name}ForCausalLM")(config(**SMALL | settings))


def layers_of(network: nn.Module) -> list[str]:
    """Its linear layers; of a tied head none, as its weight is that of the embeddings."""
    linear = [name for name, part in network.named_modules() if isinstance(part, nn.Linear)]
    return [name for name in linear if not (network.config.tie_word_embeddings and name == "lm_head")]


def rounded_logits(network: nn.Module, recipes: Mapping[str, Recipe]) -> Tensor:
    """[texts, tokens, vocabulary]: of transformers, with the weights that the codes stand for."""
    own = {name: network.get_submodule(name).weight.data for name in recipes}
    try:
        for name, weight in own.items():
            network.get_submodule(name).weight.data = quantize(weight, recipes[name].scheme).dequantize()
        with torch.no_grad():
            return network(TOKENS).logits
    finally:
        for name, weight in own.items():
            network.get_submodule(name).weight.data = weight


@pytest.mark.parametrize(("target", "scheme"), sampled(CARRIED, CARRIED[1:]))
def test_logits_are_those_of_transformers(
    target: str, scheme: str, network: nn.Module, tmp_path: Path
) -> None:
    """All layers rounded, of a text longer than the window of tokens; padded in front they are the same."""
    recipes = uniform(layers_of(network), scheme)
    written = write_checkpoint(target, network.folder, recipes, tmp_path / "out")
    here, run = rounded_logits(network, recipes), session(written.folder / "model.onnx")
    padded = np.pad(TOKENS.numpy(), ((0, 0), (PADS, 0)))
    for ids, skipped in ((TOKENS.numpy(), 0), (padded, PADS)):
        mask = np.broadcast_to(np.arange(ids.shape[1]) >= skipped, ids.shape).astype(np.int64)
        (there,) = run.run(None, {"input_ids": ids, "attention_mask": mask})
        assert difference(there[:, skipped:], here) < BOUND


def difference(there: np.ndarray, here: Tensor) -> float:
    """The largest of the logits, over the largest logit."""
    return float((torch.from_numpy(there) - here).abs().max() / here.abs().max())


def test_every_decoder_on_the_list_is_compared() -> None:
    """A kind of model without a comparison may have been added to the list by mistake."""
    assert {name.split(",")[0] for name in DECODERS} == {*MODELS} - {"bert"}


LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "factor": 2.0, "short_factor": [1.0] * 8,
    "long_factor": [2.0] * 8,
}  # fmt: skip
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "'longrope' .*default, linear, llama3, yarn": ("Phi3", {"rope_parameters": LONG}),
    "'dynamic'": ("Llama", {"rope_parameters": {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}}),
    "use_bidirectional_attention": ("Gemma3", {"use_bidirectional_attention": True, "head_dim": 32}),
    "llama, mistral, .*smollm3, bert .*'cohere'": ("Cohere", {}),
}


@pytest.mark.parametrize("fact", REFUSED)
def test_what_no_graph_is_built_of_is_refused_by_name(fact: str, tmp_path: Path) -> None:
    """Before anything is written: a graph without that part would be another model."""
    made = made_of(*REFUSED[fact])
    made.save_pretrained(tmp_path / "model")
    recipes = uniform(layers_of(made)[:1], "int8_row")
    with pytest.raises(ValueError, match=fact):
        write_checkpoint("onnx", tmp_path / "model", recipes, tmp_path / "out")
    assert [path.name for path in tmp_path.iterdir()] == ["model"]


def test_a_model_without_a_head_of_tokens_is_refused(tmp_path: Path) -> None:
    """Classes of texts, or hidden states, would be called logits of the vocabulary."""
    made = transformers.LlamaForTokenClassification(transformers.LlamaConfig(**SMALL, num_labels=2))
    made.save_pretrained(tmp_path / "model")
    recipes = uniform(["model.layers.0.mlp.up_proj"], "int8_row")
    with pytest.raises(ValueError, match="LlamaForTokenClassification has no head"):
        write_checkpoint("onnx", tmp_path / "model", recipes, tmp_path / "out")


def test_a_trace_holds_no_table_of_tokens() -> None:
    """Of 64 TB. Two models are traced at the same time."""
    config = transformers.BertConfig(**SMALL | {"vocab_size": 1 << 38})
    with torch.device("meta"):
        network = transformers.BertModel(config)
    infos = [SimpleNamespace(name=name, shape=part.shape) for name, part in network.named_parameters()]
    model: Any = SimpleNamespace(skeleton=Skeleton(network), settings=config, infos=infos)
    with ThreadPoolExecutor() as threads:
        found = list(threads.map(lambda _: _traced(model, MODELS["bert"]), range(2)))
    assert [len(graph.node) for graph in found] == [len(found[0].node)] * 2
