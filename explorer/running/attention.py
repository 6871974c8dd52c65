"""Attention of one token over a cache of fixed room, for transformers' networks.

``NAME`` is registered as an attention that a network's configuration can choose. On a GPU a step of a
``GraphedNetwork`` attends by attend.cu, which reads only the keys so far and repeats none for grouped
queries; everything else uses torch's own attention.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from explorer.gpu import attend as kernel
from explorer.gpu.runtime import on_device_of

NAME, COUNTER = "explorer_decode", "tokens_before"
"""The attention's name, and the attribute of a block's attention that counts the tokens before a step."""

_LIBRARY = torch.library.Library("explorer", "FRAGMENT")
_LIBRARY.define(
    "attend(Tensor q, Tensor keys, Tensor values, Tensor before, float scale) -> Tensor",
    tags=(torch.Tag.pt2_compliant_tag,),
)


def attend_reference(q: Tensor, keys: Tensor, values: Tensor, before: Tensor, scale: float) -> Tensor:
    """Compute the result of ``kernel.attend`` by torch's operations."""
    texts, heads, size = q.shape
    groups, room = keys.shape[1], keys.shape[2]
    grouped = q.float().view(texts, groups, heads // groups, size)
    scores = grouped @ keys.float().transpose(2, 3) * scale
    seen = torch.arange(room, device=q.device) <= before
    weights = scores.masked_fill(~seen, float("-inf")).softmax(-1)
    return (weights @ values.float()).view(texts, heads, size).to(q.dtype)


def _attend_fake(q: Tensor, keys: Tensor, values: Tensor, before: Tensor, scale: float) -> Tensor:
    return torch.empty_like(q, memory_format=torch.contiguous_format)


_LIBRARY.impl("attend", attend_reference, "CPU")
_LIBRARY.impl("attend", on_device_of("q")(kernel.attend), "CUDA")
torch.library.register_fake("explorer::attend", _attend_fake, lib=_LIBRARY)


def attention(
    module: nn.Module,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    scaling: float | None = None,
    dropout: float = 0.0,
    **others: Any,
) -> tuple[Tensor, None]:
    """Attend: queries [batch, heads, tokens, size], keys and values [batch, groups, room, size] -> [batch,
    tokens, heads, size].

    Arguments and result are those of transformers' attention functions.
    """
    from transformers.integrations.sdpa_attention import sdpa_attention_forward

    before, plain = getattr(module, COUNTER, None), not (others.get("sliding_window") or dropout)
    if before is None or not plain or not _by_kernel(query, key, value, scaling):
        return sdpa_attention_forward(
            module, query, key, value, attention_mask, dropout=dropout, scaling=scaling, **others
        )
    texts, heads, _, size = query.shape
    out = torch.ops.explorer.attend(query.reshape(texts, heads, size), key, value, before, scaling)
    return out.view(texts, 1, heads, size), None


def _by_kernel(query: Tensor, key: Tensor, value: Tensor, scaling: float | None) -> bool:
    """True if attend.cu supports the call."""
    _, heads, tokens, size = query.shape
    fits = value.shape == key.shape and size in kernel.SIZES and kernel.together_of(heads, key.shape[1]) > 0
    return tokens == 1 and fits and scaling is not None and query.dtype == torch.bfloat16


def choose(network: nn.Module) -> bool:
    """Make a network with torch's own attention use this one; False, and no change, for any other network."""
    from transformers.masking_utils import ALL_MASK_ATTENTION_FUNCTIONS
    from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

    config: Any = getattr(network, "config", None)
    if getattr(config, "_attn_implementation", "") != "sdpa":
        return False
    ALL_ATTENTION_FUNCTIONS.register(NAME, attention)
    ALL_MASK_ATTENTION_FUNCTIONS.register(NAME, ALL_MASK_ATTENTION_FUNCTIONS["sdpa"])
    config._attn_implementation = NAME
    return True


def choose_back(network: nn.Module) -> None:
    """Undo ``choose``."""
    config: Any = getattr(network, "config", None)
    if getattr(config, "_attn_implementation", "") == NAME:
        config._attn_implementation = "sdpa"
