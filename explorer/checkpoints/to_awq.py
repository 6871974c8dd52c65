"""AWQ's layout ("gemm"): what gptqmodel, transformers and vLLM load as ``quant_method: awq``.

A layer has three tensors, with eight outputs to a word in the order 0 2 4 6 1 3 5 7::

    qweight  I32 [K, N/8]
    qzeros   I32 [groups, N/8]
    scales   F16 [groups, N]
"""

from __future__ import annotations

import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints import integer_words, safetensors_folder
from explorer.checkpoints.integer_words import groups_in, half_scales_refusal, integer_refusal, ragged
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Export, Plan, Shape
from explorer.core.quantize import QuantizedTensor
from explorer.models.skeleton import LayerPlace
from explorer.schemes import Scheme
from explorer.sources.quantized_forms import AWQ_ORDER

NAME = "awq"
BITS, EACH = 4, 8


def refuses(scheme: Scheme, shape: Shape) -> str:
    """Reason why AWQ's layout cannot hold a layer [N, K] by ``scheme``, or an empty text."""
    if why := integer_refusal(scheme, (BITS,), shape[1]) or half_scales_refusal(scheme):
        return why
    if scheme.block[1] is None:
        return f"it has groups along a row, not {scheme.granularity}"
    return ragged(shape[0], EACH, "column")


def family(scheme: Scheme) -> str:
    """One group size for all layers."""
    return str(scheme.block[1])


def together(plan: Plan) -> str:
    """Reason why these layers cannot form an AWQ model, or an empty text: all need one group size."""
    if plan.input_schemes:
        return "its inputs are not quantized"
    sizes = set(map(family, plan.schemes))
    return "" if len(sizes) < 2 else f"it has one group size for all layers, not {sorted(sizes)}"


def tensors(q: QuantizedTensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Make the tensors of a layer; ``dtype`` has no effect."""
    return {
        ".qweight": _interleaved(integer_words.unsigned(q).t()),
        ".qzeros": _interleaved(integer_words.zero_codes(q).t()),
        ".scales": integer_words.half_scales(q),
    }


def _interleaved(codes: Tensor) -> Tensor:
    """Pack ``codes`` [rows, N] into int32 [rows, N/8]."""
    mixed = codes.unflatten(1, (-1, EACH))[:, :, list(AWQ_ORDER)].flatten(1)
    return integer_words.int32_words(mixed, BITS)


def _place(model: ModelFolder, layer: str, scheme: Scheme) -> LayerPlace:
    """The place of the layer in the reader's network. Readers build a plain head, whose weights would stay
    random if it had codes; transformers finds no codes of single experts."""
    if model.is_head(layer):
        return LayerPlace("", "readers of this layout have no codes in the head")
    found, why = model.place(layer), "transformers finds no codes of experts in this layout"
    return LayerPlace("", why) if found.experts else found


def stored_bits(scheme: Scheme, shape: Shape, dtype: torch.dtype) -> float:
    """Bits per weight; symmetric schemes store zero points too."""
    return BITS + (16 + BITS) * groups_in(scheme, shape) / math.prod(shape)


def settings(plan: Plan) -> dict[str, Any]:
    """``quantization_config`` of config.json."""
    return {
        "quant_method": "awq",
        "bits": BITS,
        "group_size": plan.schemes[0].block[1],
        "zero_point": True,
        "version": "gemm",
        "modules_to_not_convert": safetensors_folder.kept(plan) or None,
    }


def load(plan: Plan) -> str:
    """Return the code that opens the folder."""
    return safetensors_folder.opened(plan, "gptqmodel optimum", "float16")


EXPORT = Export(
    NAME,
    "AWQ's layout",
    "what gptqmodel, transformers and vLLM load as AWQ, by whatever method the codes were found",
    "gptqmodel 7.7.0, once; in the tests by a decoder of the layout",
    "equal in float16",
    refuses,
    together,
    partial(safetensors_folder.write_model, layer=tensors, settings=settings),
    safetensors_folder.one(tensors),
    load,
    place=_place,
    family=family,
    bits=stored_bits,
    usual=("int4_group128_asym", "int4_group64_asym", "int4_group32_asym"),
    around=safetensors_folder.around,
)
