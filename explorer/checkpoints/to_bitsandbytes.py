"""bitsandbytes: NF4 and its FP4, as transformers loads them in 4 bits.

The tensors of a layer, with the first of two codes in the high half of a byte::

    weight                                   U8 [N·K/2, 1]
    weight.absmax                            F32 [blocks]; doubly quantized: U8 codes of the next
    weight.nested_absmax, .nested_quant_map  F32 [blocks / 256], F32 [256]
    weight.quant_map                         F32 [16]
    weight.quant_state.bitsandbytes__nf4     U8: JSON with type, block, dtype and shape
"""

from __future__ import annotations

import json
import math
from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints import safetensors_folder
from explorer.checkpoints.integer_words import ragged
from explorer.checkpoints.target import Export, Plan, Shape, own_bits
from explorer.core.file_levels import packed_levels
from explorer.core.quantize import QuantizedTensor
from explorer.formats.codebooks import BNB_FP4_LEVELS, NF4_LEVELS
from explorer.schemes import Scheme
from explorer.schemes.levels import DYNAMIC_MAP
from explorer.schemes.rules import NESTED_BLOCK

NAME = "bitsandbytes"
BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096)
_FP4_CODES = (11, 10, 13, 12, 15, 14, 9, 0, 1, 6, 7, 4, 5, 2, 3)
"""bitsandbytes' codes of the 15 levels of its FP4 in rising order; 0 has two, of which this is the first."""
_FP4_MAP = tuple(BNB_FP4_LEVELS[_FP4_CODES.index(code)] if code in _FP4_CODES else -0.0 for code in range(16))
_TYPES = {"nf4": ("nf4", NF4_LEVELS), "bnb_fp4": ("fp4", _FP4_MAP)}
_STATE_BYTES = 120
"""The approximate length of a layer's state."""
_DTYPES = {torch.float16: "float16", torch.bfloat16: "bfloat16"}


def refuses(scheme: Scheme, shape: Shape) -> str:
    """Reason why bitsandbytes cannot hold a layer [N, K] by ``scheme``, or an empty text."""
    width, rule = scheme.block[1], scheme.scale
    if scheme.format.name not in _TYPES or rule is None:
        return f"it holds NF4 and its FP4, not {scheme.label}"
    if width not in BLOCKS or not (scheme.flat or scheme.block[0] == 1):
        return f"its blocks have {', '.join(map(str, BLOCKS))} values along a row, not {scheme.granularity}"
    if rule.exponent is not None or rule.per_tensor:
        return f"its scales are float32, or those doubly quantized, not {rule.format.label}"
    return ragged(shape[0] * shape[1] if scheme.flat else shape[1], width)


def family(scheme: Scheme) -> str:
    """One type and one kind of scales for all layers."""
    return f"{scheme.format.name}, {'doubly quantized' if _nested(scheme) else 'float32'} scales"


def together(plan: Plan) -> str:
    """Reason why these layers cannot form one model, or an empty text: all need one type, and one kind of
    scales."""
    if plan.input_schemes:
        return "its inputs are not quantized"
    kinds = set(map(family, plan.schemes))
    return "" if len(kinds) < 2 else "it has one type and one kind of scales for all layers"


def _nested(scheme: Scheme) -> bool:
    return scheme.scale is not None and scheme.scale.nested


def tensors(q: QuantizedTensor, dtype: torch.dtype) -> dict[str, Tensor]:
    """Make the tensors of a layer, which is restored to ``dtype``."""
    kind, table = _TYPES[q.scheme.format.name]
    codes = q.codes.reshape(-1, 2)
    if kind == "fp4":
        codes = torch.tensor(_FP4_CODES, dtype=torch.uint8)[codes.long()]
    state: dict[str, Any] = {
        "quant_type": kind,
        "blocksize": q.scheme.block[1],
        "dtype": _DTYPES.get(dtype, "float32"),
        "shape": list(q.shape),
    }
    scales = {".weight.absmax": q.scales.scale.reshape(-1).contiguous()}
    if _nested(q.scheme):
        parts = packed_levels(q.scales, q.scheme)
        mean = float(parts["mean"])
        state |= {"nested_blocksize": NESTED_BLOCK, "nested_dtype": "float32", "nested_offset": mean}
        scales = {
            ".weight.absmax": parts["scale"].reshape(-1).contiguous(),
            ".weight.nested_absmax": parts["super_scale"],
            ".weight.nested_quant_map": DYNAMIC_MAP.clone(),
        }
    said = torch.tensor(list(json.dumps(state).encode()), dtype=torch.uint8)
    return {
        ".weight": (codes[:, :1] << 4 | codes[:, 1:]).contiguous(),
        **scales,
        ".weight.quant_map": torch.tensor(table),
        f".weight.quant_state.bitsandbytes__{kind}": said,
    }


def stored_bits(scheme: Scheme, shape: Shape, dtype: torch.dtype) -> float:
    """Bits per weight: each layer has a table of values and a state in JSON; a layer with two levels of
    scales also has a table of scales."""
    values = 16 + (len(DYNAMIC_MAP) if _nested(scheme) else 0)
    return own_bits(scheme, shape) + (32 * values + 8 * _STATE_BYTES) / math.prod(shape)


def settings(plan: Plan) -> dict[str, Any]:
    """``quantization_config`` of config.json."""
    scheme = plan.schemes[0]
    return {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "bnb_4bit_quant_type": _TYPES[scheme.format.name][0],
        "bnb_4bit_use_double_quant": _nested(scheme),
        "bnb_4bit_compute_dtype": _DTYPES.get(plan.model.dtype, "float32"),
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_skip_modules": safetensors_folder.not_coded(plan),
    }


def load(plan: Plan) -> str:
    """Return the code that opens the folder."""
    return safetensors_folder.opened(plan, "bitsandbytes accelerate", "auto")


EXPORT = Export(
    NAME,
    "bitsandbytes",
    "what transformers loads in 4 bits, to run or to train adapters on (QLoRA)",
    "transformers with bitsandbytes 0.50.2",
    "equal; its product on a CPU rounds on the way",
    refuses,
    together,
    partial(safetensors_folder.write_model, layer=tensors, settings=settings),
    safetensors_folder.one(tensors),
    load,
    family=family,
    bits=stored_bits,
    usual=("nf4_block64",),
    around=safetensors_folder.around,
)
