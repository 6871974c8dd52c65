"""compressed-tensors: what llm-compressor writes, and transformers, vLLM and SGLang read.

The tensors of a layer (compressed-tensors 0.20, ``compressors/``)::

    pack-quantized        weight_packed I32 [N, K·b/32], weight_scale [N, groups], weight_shape I64 [2],
                          asymmetric: weight_zero_point I32 [N·b/32, groups], packed along N
    int-quantized         weight I8 [N, K], weight_scale [N, 1] or [1]; weight_zero_point I8 alike
    float-quantized       weight F8_E4M3 [N, K], weight_scale [N, 1], [1] or [N/128, K/128]
    nvfp4-pack-quantized  weight_packed U8 [N, K/2], weight_scale F8_E4M3 [N, K/16],
                          weight_global_scale F32 [1], by which the scales are divided
    mxfp4-, mxfp6-pack-quantized, mxfp8-quantized
                          weight_packed U8 or weight F8_E4M3, weight_scale U8 [N, K/32]: exponent + 127

Scales are stored in the model's dtype, as llm-compressor writes them: engines cast them to it, and
transformers restores experts in the dtype of their scales.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints import cache_scales, integer_words, safetensors_folder
from explorer.checkpoints.inputs import is_fixed, product_refusal
from explorer.checkpoints.integer_words import groups_in, integer_refusal, is_asymmetric, ragged
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Export, ExportJob, Plan, Shape
from explorer.core.lowering import raw_scales
from explorer.core.quantize import QuantizedTensor
from explorer.formats import E8M0, IntegerFormat, float_format
from explorer.models.skeleton import LayerPlace
from explorer.schemes import SCHEMES, Convention, MappingType, Scheme

NAME = "compressed-tensors"
VERSION = "0.20.0"
INTEGERS = (2, 3, 4, 5, 6, 7, 8)
TILE = 128
_UNPACKED = ("int-quantized", "float-quantized", "mxfp8-quantized")
"""Formats that store codes under the name ``.weight``."""
EXPERTS = r"re:.*\.experts\.\d+\..*"
_WORD = 32
_SHAPE_BITS = 128
"""Size of ``weight_shape`` in bits."""
Parts = dict[str, Tensor]


@dataclass(frozen=True)
class CompressedLayout:
    """One format of compressed-tensors: its name, the config entry of the weights, and the tensors of a
    layer.

    ``bfloat16``: True if the reader restores to bfloat16, whatever the model's dtype.
    """

    format: str
    weights: dict[str, Any]
    tensors: Callable[[QuantizedTensor, torch.dtype], Parts]
    bfloat16: bool = False


Layouts = Callable[[Scheme], CompressedLayout | None]
"""Scheme -> the format that holds its codes."""


def compressed_layout(scheme: Scheme) -> CompressedLayout | None:
    """The format that holds codes of ``scheme``; None without one."""
    if isinstance(scheme.format, IntegerFormat):
        if integer_refusal(_as_row(scheme), INTEGERS, 0):
            return None
        packed = packed_layout(scheme)
        whole_rows = scheme.format.bits == 8 and scheme.block[1] is None
        return CompressedLayout("int-quantized", packed.weights, _int8) if whole_rows else packed
    if scheme.scale is None or scheme.flat:
        return None
    element, block, rule = scheme.format.name, scheme.block, scheme.scale
    if rule.format is E8M0 and block == (1, 32) and element in _MX:
        return _MX[element]
    if rule.per_tensor:
        return _NVFP4 if element == "float4_e2m1fn" and block == (1, 16) else None
    if element == "float8_e4m3fn" and rule.format is not E8M0 and block in _FLOAT_STRATEGIES:
        return CompressedLayout("float-quantized", _args(8, "float") | _FLOAT_STRATEGIES[block], _float8)
    return None


def _as_row(scheme: Scheme) -> Scheme:
    """Replace the tensor's scale by a scale for each row, which INT8 may have too."""
    whole = scheme.block == (None, None) and scheme.format.bits == 8
    return replace(scheme, block=(1, None)) if whole else scheme


def packed_layout(scheme: Scheme) -> CompressedLayout:
    """The format of integers packed into words."""
    if scheme.block[1] is not None:
        strategy: dict[str, Any] = {"strategy": "group", "group_size": scheme.block[1]}
    else:
        strategy = {"strategy": "tensor" if scheme.block[0] is None else "channel"}
    weights = _args(scheme.format.bits, "int", not is_asymmetric(scheme)) | strategy
    return CompressedLayout("pack-quantized", weights, _packed)


def _args(bits: int, kind: str, symmetric: bool = True) -> dict[str, Any]:
    return {"num_bits": bits, "type": kind, "symmetric": symmetric, "dynamic": False}


def _packed(q: QuantizedTensor, dtype: torch.dtype) -> Parts:
    bits = q.scheme.format.bits
    parts = {
        ".weight_packed": integer_words.int32_words(integer_words.unsigned(q), bits),
        ".weight_scale": _scales(q, dtype),
        ".weight_shape": torch.tensor(q.shape),
    }
    if is_asymmetric(q.scheme):
        parts[".weight_zero_point"] = (
            integer_words.int32_words(integer_words.zero_codes(q).t(), bits).t().contiguous()
        )
    return parts


def _int8(q: QuantizedTensor, dtype: torch.dtype) -> Parts:
    whole = q.scheme.block == (None, None)
    parts = {".weight": q.codes.view(torch.int8).contiguous(), ".weight_scale": _scales(q, dtype)}
    if q.scales.zero_points is not None:
        parts[".weight_zero_point"] = q.scales.zero_points
    return {k: v.view(1) if whole and k != ".weight" else v for k, v in parts.items()}


def _float8(q: QuantizedTensor, dtype: torch.dtype) -> Parts:
    scales = _scales(q, dtype)
    return {
        ".weight": q.codes.contiguous().view(torch.float8_e4m3fn),
        ".weight_scale": scales.view(1) if q.scheme.block == (None, None) else scales,
    }


def _nvfp4(q: QuantizedTensor, dtype: torch.dtype) -> Parts:
    top = q.scales.tensor_scale
    assert top is not None
    return {
        ".weight_packed": q.packed.contiguous(),
        ".weight_scale": raw_scales(q.scales, q.scheme).view(torch.float8_e4m3fn),
        ".weight_global_scale": (top if q.scales.divided else 1 / top).reshape(1),
    }


def _mx(q: QuantizedTensor, dtype: torch.dtype, weight: str = ".weight_packed") -> Parts:
    codes = q.packed.contiguous()
    return {
        weight: codes.view(torch.float8_e4m3fn) if weight == ".weight" else codes,
        ".weight_scale": E8M0.encode_unchecked(q.scales.stored).to(torch.uint8),
    }


def _scales(q: QuantizedTensor, dtype: torch.dtype) -> Tensor:
    return q.scales.scale.to(dtype).contiguous()


def stored(q: QuantizedTensor, dtype: torch.dtype) -> QuantizedTensor:
    """Round the scales to ``dtype``. This moves weights by up to 2⁻⁹ of their size, and by more if scales are
    subnormal numbers of float16.

    Scales of two levels, and powers of two, are unchanged. ``ValueError`` for one beyond the largest number
    of ``dtype``.
    """
    layout, scale = compressed_layout(q.scheme), q.scales.stored
    if layout is None or layout.bfloat16 or q.scales.tensor_scale is not None:
        return q
    held = scale.to(dtype).float()
    if not bool(held.isfinite().all()):
        raise ValueError(f"scales of {q.scheme} are larger than the numbers of {dtype}")
    least = torch.finfo(dtype).smallest_normal * torch.finfo(dtype).eps
    held = torch.where((held == 0) & (scale != 0), torch.full_like(held, least).copysign(scale), held)
    return replace(q, scales=replace(q.scales, stored=held, raw=None))


def stored_bits(scheme: Scheme, shape: Shape, dtype: torch.dtype) -> float:
    """Bits per weight of a layer [N, K] of a model in ``dtype``."""
    return bits_of(compressed_layout(scheme), scheme, shape, dtype)


def bits_of(layout: CompressedLayout | None, scheme: Scheme, shape: Shape, dtype: torch.dtype) -> float:
    """Bits per weight of codes, scales and zero points in ``layout``."""
    assert layout is not None
    (rows, columns), bits, groups = shape, scheme.format.bits, groups_in(scheme, shape)
    if layout.bfloat16:
        return bits + (8 * groups + (32 if layout is _NVFP4 else 0)) / math.prod(shape)
    total = groups * dtype.itemsize * 8.0
    if layout.format == "pack-quantized":
        total += -(-columns * bits // _WORD) * _WORD * rows + _SHAPE_BITS
        zeros = -(-rows * bits // _WORD) * _WORD * (groups // rows)
    else:
        total += bits * rows * columns
        zeros = bits * groups
    return (total + (zeros if is_asymmetric(scheme) else 0)) / math.prod(shape)


_FLOAT_STRATEGIES: dict[tuple[int | None, int | None], dict[str, Any]] = {
    (None, None): {"strategy": "tensor"},
    (1, None): {"strategy": "channel"},
    (TILE, TILE): {"strategy": "block", "block_structure": [TILE, TILE]},
}
_E8M0 = {"strategy": "group", "group_size": 32, "scale_dtype": "torch.uint8", "zp_dtype": "torch.uint8"}
_MX = {
    "float4_e2m1fn": CompressedLayout("mxfp4-pack-quantized", _args(4, "float") | _E8M0, _mx, True),
    "float6_e2m3fn": CompressedLayout("mxfp6-pack-quantized", _args(6, "float") | _E8M0, _mx, True),
    "float8_e4m3fn": CompressedLayout(
        "mxfp8-quantized", _args(8, "float") | _E8M0, partial(_mx, weight=".weight"), True
    ),
}
_TWO_LEVELS: dict[str, Any] = {
    "strategy": "tensor_group",
    "group_size": 16,
    "scale_dtype": "torch.float8_e4m3fn",
    "zp_dtype": "torch.float8_e4m3fn",
}
_NVFP4 = CompressedLayout("nvfp4-pack-quantized", _args(4, "float") | _TWO_LEVELS, _nvfp4, True)
_INPUTS: dict[tuple[str, tuple[int | None, int | None]], dict[str, Any]] = {
    ("int8", (1, None)): {"strategy": "token"},
    ("int8", (None, None)): {"strategy": "tensor"},
    ("float8_e4m3fn", (1, None)): {"strategy": "token"},
    ("float8_e4m3fn", (None, None)): {"strategy": "tensor"},
    ("float8_e4m3fn", (1, TILE)): {"strategy": "group", "group_size": TILE},
    ("float4_e2m1fn", (1, 16)): _TWO_LEVELS | {"dynamic": "local"},
}
"""Format and block of the inputs' scheme -> its description in compressed-tensors."""


def _format(scheme: Scheme) -> str:
    layout = compressed_layout(scheme)
    return "" if layout is None else layout.format


def refuses(scheme: Scheme, shape: Shape) -> str:
    """Reason why compressed-tensors cannot hold a layer [N, K] by ``scheme``, or an empty text."""
    if isinstance(scheme.format, IntegerFormat):
        if why := integer_refusal(_as_row(scheme), INTEGERS, shape[1]):
            return why
        if family(scheme) and shape[0] * scheme.format.bits <= _WORD:
            return f"its reader fails on packed zero points of {shape[0]} rows: it takes {_WORD} bits or more"
        return ""
    if not _format(scheme):
        return f"it has no format for {scheme.label}"
    height, width = scheme.block
    return ragged(shape[1], width) or ragged(shape[0], height, "column")


def family(scheme: Scheme) -> str:
    """Schemes that can be mixed. A scheme with packed zero points stands alone: transformers loads it with
    ``dequantize=True`` only, which in turn decodes every layer by the first group."""
    return scheme.text if _format(scheme) == "pack-quantized" and is_asymmetric(scheme) else ""


def together(plan: Plan) -> str:
    """Reason why layers of different schemes, or these inputs, cannot be combined, or an empty text."""
    if why := experts_refusal(plan):
        return why
    packed = [scheme for scheme in plan.schemes if family(scheme)]
    if packed and (len(plan.groups) > 1 or plan.cache is not None):
        where = "in mixed recipes" if len(plan.groups) > 1 else "with the scales of a cache"
        return f"transformers loads no packed zero points ({packed[0]}) {where}: take symmetric ones"
    return inputs_refusal(plan)


def inputs_refusal(plan: Plan) -> str:
    """Reason why the layers' inputs cannot be quantized so, or an empty text."""
    for name, inputs in plan.input_schemes.items():
        if _input_args(inputs) is None:
            return f"it cannot state inputs by {inputs.label}"
        if why := ragged(plan.shape(name)[1], inputs.block[1]):
            return f"of the inputs of {name} {why}"
    fixed = [name for name, inputs in plan.input_schemes.items() if is_fixed(inputs)]
    if missing := [name for name in fixed if name not in plan.input_scales]:
        return f"one scale for all inputs is fixed beforehand: {missing[0]} has none"
    if plan.input_scales.keys() - set(fixed):
        return "inputs with fixed scales have one for the whole tensor"
    return ""


def place(model: ModelFolder, layer: str, scheme: Scheme) -> LayerPlace:
    """The place of the layer in transformers. Experts are stacked after their codes are restored. Packed
    codes take the place of ``.weight``; other codes keep that name, and weights with packed zero points are
    restored while loading."""
    keeps = family(scheme) or _format(scheme) in _UNPACKED
    found = model.place(layer) if keeps else model.coded(layer)
    return LayerPlace(layer) if found.experts else found


def experts_refusal(plan: Plan) -> str:
    """Reason why these layers of experts cannot be combined, or an empty text: transformers 5.23 restores all
    of them by one scheme."""
    experts = plan.model.experts
    coded = [name for name in experts if name in plan.coded]
    left = [name for name in experts if name not in plan.coded]
    if left and (coded or any(_format(scheme) != "float-quantized" for scheme in plan.schemes)):
        return (
            f"transformers opens a model of experts only if all of them hold codes: {len(left)} of "
            f"{len(experts)} layers of experts have none, such as {left[0]}"
        )
    if len({plan.input_schemes.get(name) for name in coded}) > 1:
        return "transformers finds all experts by one pattern: their inputs are quantized alike, or none"
    schemes = {plan.coded[name].scheme for name in coded}
    if len(schemes) > 1:
        names = ", ".join(sorted(str(scheme) for scheme in schemes))
        return f"transformers reads all experts by one scheme, not by {names}"
    return expert_refusal(schemes.pop()) if schemes else ""


def expert_refusal(scheme: Scheme) -> str:
    """Reason why transformers 5.23 cannot restore experts by ``scheme`` before it stacks them; empty if it
    can."""
    packed = _format(scheme) == "pack-quantized" and not is_asymmetric(scheme)
    if packed or (_format(scheme) == "float-quantized" and scheme.block == (1, None)):
        return ""
    return f"transformers restores experts from packed symmetric integers or FP8 by row, not {scheme.label}"


def _input_args(scheme: Scheme) -> dict[str, Any] | None:
    """Config entry for inputs by ``scheme``; None if the config cannot describe them."""
    strategy = _INPUTS.get((scheme.format.name, scheme.block))
    if scheme.scale is None or is_asymmetric(scheme) or strategy is None:
        return None
    kind = "int" if isinstance(scheme.format, IntegerFormat) else "float"
    dynamic = {"dynamic": scheme.block != (None, None)}
    return _args(scheme.format.bits, kind) | dynamic | strategy


BF16 = float_format("bfloat16")


def _as_read(inputs: Scheme, dtype: torch.dtype) -> Scheme:
    """The scheme by which compressed-tensors rounds inputs.

    INT8 with scales found at run time spans 127.5 steps on each side. Scales of NVFP4 inputs are computed in
    bfloat16, with x / scale; in a bfloat16 model all scales found at run time are.
    """
    if inputs.block == (1, 16):
        return SCHEMES["nvfp4_vllm"]
    if isinstance(inputs.format, IntegerFormat) and not is_fixed(inputs):
        inputs = Scheme.parse(replace(inputs, mapping=MappingType.FULL).text)
    if dtype is torch.bfloat16 and inputs.scale is not None and not is_fixed(inputs):
        scale = replace(inputs.scale, format=BF16, convention=Convention.COMPRESSED_TENSORS)
        return Scheme.parse(replace(inputs, scale=scale, codes=replace(inputs.codes, bfloat16=True)).text)
    return inputs


def settings(
    plan: Plan,
    layout: Callable[[Scheme, bool], CompressedLayout | None] = lambda scheme, _: compressed_layout(scheme),
) -> dict[str, Any]:
    """``quantization_config``: a group for each scheme and quantization of inputs, with its layers by name;
    all others are ignored. ``layout`` takes a scheme, and True for quantized inputs."""
    groups = {}
    for number, ((scheme, inputs), names) in enumerate(plan.groups.items()):
        found = layout(scheme, inputs is not None)
        assert found is not None
        groups[f"group_{number}"] = {
            "targets": _targets(plan, names),
            "weights": found.weights,
            "input_activations": None if inputs is None else _input_args(inputs),
            "output_activations": None,
            "format": found.format,
        }
    formats = {str(group["format"]) for group in groups.values()}
    cache = {"kv_cache_scheme": cache_scales.settings(plan)} if plan.cache else {}
    experts = [EXPERTS] if plan.model.replaced else []
    return {
        "quant_method": NAME,
        "version": VERSION,
        "format": formats.pop() if len(formats) == 1 else "mixed-precision",
        "quantization_status": "compressed",
        "ignore": [*safetensors_folder.not_coded(plan), *experts],
        "config_groups": groups,
        **cache,
    }


def _targets(plan: Plan, names: list[str]) -> list[str]:
    """The layers' paths in the reader's network; experts, which have none there, by the pattern that the
    reader looks for."""
    experts = set(plan.model.experts)
    paths = [plan.model.place(name).module for name in names if name not in experts]
    return paths + ([EXPERTS] if experts.intersection(names) else [])


def reads_in(plan: Plan) -> torch.dtype:
    """bfloat16 if the reader restores a layer's format to it whatever the model's dtype is; else that
    dtype."""
    return torch.bfloat16 if _restores_to_bfloat16(plan) else plan.model.dtype


def _restores_to_bfloat16(plan: Plan) -> bool:
    return any(layout.bfloat16 for layout in map(compressed_layout, plan.schemes) if layout)


def load(plan: Plan) -> str:
    """Return the code that opens the folder."""
    auto, more, argument = plan.model.auto_class, "", ""
    if any(map(family, plan.schemes)):
        more = "from transformers import CompressedTensorsConfig\n"
        argument = ", quantization_config=CompressedTensorsConfig(dequantize=True)"
    return (
        f"from transformers import {auto}  # pip install compressed-tensors\n{more}\n"
        f'model = {auto}.from_pretrained("this folder"{argument})'
    )


def layer(q: QuantizedTensor, dtype: torch.dtype, layout: Layouts = compressed_layout) -> Parts:
    """Make the tensors of a layer, by the suffix of its name."""
    found = layout(q.scheme)
    assert found is not None
    return found.tensors(q, dtype)


def write(
    job: ExportJob,
    settings: safetensors_folder.Settings = settings,
    own: Callable[[str], safetensors_folder.Layer] | None = None,
) -> None:
    """Write all tensors of the model, the scales of its cache, and its changed configuration."""
    config = {"dtype": "bfloat16"} if _restores_to_bfloat16(job.plan) else {}
    scales = cache_scales.tensors(job.plan)
    safetensors_folder.write_model(job, layer, settings, scales, own, apart=True, config=config)


EXPORT = Export(
    NAME,
    "compressed-tensors",
    "what transformers, vLLM and SGLang load: integers, FP8, MX and NVFP4, mixed by layer",
    f"transformers with compressed-tensors {VERSION}",
    "equal in the model's dtype, which scales have too, MX and NVFP4 in bfloat16, which the reader restores "
    "them to",
    refuses,
    together,
    write,
    safetensors_folder.one(layer),
    load,
    place=place,
    expert_refusal=expert_refusal,
    family=family,
    bits=stored_bits,
    usual=("int4_group128", "int4_group64", "int4_group32"),
    multiplies=product_refusal,
    as_read=_as_read,
    around=safetensors_folder.around,
    joined=True,
    reads_in=reads_in,
    stored=stored,
    against_cache=cache_scales.refusal,
)
