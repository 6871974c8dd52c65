"""What tests of all targets ask of a model that another program has read."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch
from torch import Tensor, nn
from transformers import LlamaForCausalLM

from explorer import Scheme
from explorer.methods.recipe import Recipe

Expected = Callable[[Mapping[str, Recipe], torch.dtype], LlamaForCausalLM]


def uniform(layers: list[str], scheme: str) -> dict[str, Recipe]:
    """All ``layers`` by one scheme."""
    return dict.fromkeys(layers, Recipe(Scheme.parse(scheme)))


def compare(theirs: Any, ours: nn.Module, layers: list[str], tokens: Tensor) -> float:
    """Every weight equal in the reader's dtype; the largest difference of logits over their largest."""
    with torch.no_grad():  # compressed-tensors restores a layer when it first runs
        there, here = theirs(tokens).logits.float(), ours(tokens).logits.float()
    for name in layers:
        weight = theirs.get_submodule(name).weight
        assert torch.equal(weight, ours.get_submodule(name).weight.to(weight.dtype)), name
    return float((there - here).abs().max() / here.abs().max())


def continuation(model: Any, tokens: Tensor) -> list[int]:
    """Eight tokens, the most likely each."""
    out = model.generate(tokens, max_new_tokens=8, do_sample=False, pad_token_id=1)
    return out[0, tokens.shape[1] :].tolist()
