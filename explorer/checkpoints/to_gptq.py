"""GPTQ's layout: what gptqmodel, transformers and vLLM load as ``quant_method: gptq``.

A layer has four tensors::

    qweight  I32 [K·b/32, N]       code k of a column at bit k·b of the column's stream
    qzeros   I32 [groups, N·b/32]  zero points alike, packed along N
    scales   F16 [groups, N]
    g_idx    I32 [K]               the group of each input

Version 1 stores the zero point less one, so that it cannot store 0: symmetric schemes are written in it,
asymmetric ones in version 2, which stores the zero point itself.
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints import integer_words, safetensors_folder
from explorer.checkpoints.integer_words import (
    groups_in,
    half_scales_refusal,
    integer_refusal,
    is_asymmetric,
    ragged,
)
from explorer.checkpoints.target import Export, Plan, Shape
from explorer.core.quantize import QuantizedTensor
from explorer.models.kinds import depth_of
from explorer.schemes import Scheme

NAME = "gptq"
BITS = (2, 3, 4, 8)
_WORD = 32


def refuses(scheme: Scheme, shape: Shape) -> str:
    """Reason why GPTQ's layout cannot hold a layer [N, K] by ``scheme``, or an empty text."""
    if why := integer_refusal(scheme, BITS, shape[1]) or half_scales_refusal(scheme):
        return why
    each = _WORD if scheme.format.bits == 3 else _WORD // scheme.format.bits
    return ragged(shape[1], each) or ragged(shape[0], each, "column")


def family(scheme: Scheme) -> str:
    """One scheme for all layers."""
    return scheme.text


def together(plan: Plan) -> str:
    """Reason why these layers cannot form a GPTQ model, or an empty text: it needs one scheme, and all
    layers of the blocks."""
    if plan.input_schemes:
        return "its inputs are not quantized"
    if len(set(map(family, plan.schemes))) > 1:
        return f"it has one width and one group size for all layers: {' and '.join(map(str, plan.schemes))}"
    blocks = [name for name in plan.model.matrices if depth_of(name) is not None]
    if missing := [name for name in blocks if name not in plan.coded]:
        return f"it quantizes all layers of the blocks, and {missing[0]} is kept"
    if outside := [name for name in plan.coded if name not in blocks]:
        return f"it quantizes the layers of the blocks alone, and {outside[0]} is outside of them"
    return ""


def tensors(q: QuantizedTensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Make the tensors of a layer; ``dtype`` has no effect."""
    bits, columns = q.scheme.format.bits, q.shape[1]
    zeros = integer_words.zero_codes(q).to(torch.int16) - (0 if is_asymmetric(q.scheme) else 1)
    return {
        ".qweight": integer_words.int32_words(integer_words.unsigned(q), bits).t().contiguous(),
        ".qzeros": integer_words.int32_words(zeros.to(torch.uint8).t(), bits),
        ".scales": integer_words.half_scales(q),
        ".g_idx": torch.arange(columns, dtype=torch.int32) // (q.scheme.block[1] or columns),
    }


def stored_bits(scheme: Scheme, shape: Shape, dtype: torch.dtype) -> float:
    """Bits per weight; symmetric schemes store zero points too, and each input's group takes 32 bits."""
    groups = groups_in(scheme, shape)
    return scheme.format.bits + ((16 + scheme.format.bits) * groups + _WORD * shape[1]) / math.prod(shape)


def settings(plan: Plan) -> dict[str, Any]:
    """``quantization_config`` of config.json."""
    scheme = plan.schemes[0]
    return {
        "quant_method": "gptq",
        "bits": scheme.format.bits,
        "group_size": scheme.block[1] or -1,
        "desc_act": False,
        "sym": not is_asymmetric(scheme),
        "checkpoint_format": "gptq_v2" if is_asymmetric(scheme) else "gptq",
        "lm_head": False,
    }


def load(plan: Plan) -> str:
    """Return the code that opens the folder."""
    return safetensors_folder.opened(plan, "gptqmodel optimum", "float16")


EXPORT = Export(
    NAME,
    "GPTQ's layout",
    "what gptqmodel, transformers and vLLM load as GPTQ, by whatever method the codes were found",
    "gptqmodel 7.7.0, once; in the tests by a decoder of the layout",
    "equal in float16",
    refuses,
    together,
    partial(safetensors_folder.write_model, layer=tensors, settings=settings),
    safetensors_folder.one(tensors),
    load,
    place=lambda model, layer, scheme: model.apart(layer),
    family=family,
    bits=stored_bits,
    usual=("int4_group128", "int4_group64", "int4_group32"),
    around=safetensors_folder.around,
)
