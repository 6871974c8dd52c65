"""A layer of codes as operations of ONNX: DequantizeLinear before a product, or MatMulNBits.

Weights of DequantizeLinear are stored [K, N], as MatMul takes them: codes of 8 bits a byte each, smaller
ones in one stream over the flattened tensor; scales [N], or [K/B, N] for blocks of B (opset 21). MatMulNBits
has B [N, K/B, B·b/8] of unsigned codes, scales [N, K/B], zero points packed row by row.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints.integer_words import (
    groups_in,
    integer_refusal,
    is_asymmetric,
    ragged,
    unsigned,
    zero_codes,
)
from explorer.checkpoints.onnx_graph import Graph, Put, StoredTensor
from explorer.checkpoints.target import Shape
from explorer.core.quantize import QuantizedTensor
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack_bits
from explorer.schemes import Scheme

BITS = (2, 4, 8)
_FLOAT8 = {"float8_e4m3fn": torch.float8_e4m3fn, "float8_e5m2": torch.float8_e5m2}
_KEPT = {"float16": torch.float16}
_SMALLEST_BLOCK = 16


def refuses_dequantize(scheme: Scheme, shape: Shape) -> str:
    """Reason why DequantizeLinear cannot restore a layer [N, K] by ``scheme``, or an empty text."""
    rule, block = scheme.scale, scheme.block
    if rule is not None and scheme.format.name in _FLOAT8 and not scheme.flat:
        if block not in ((None, None), (1, None)) or rule.per_tensor:
            return f"its 8-bit floats have a scale for the tensor or a row, not {scheme.granularity}"
        return ""
    if block == (None, None) and scheme.format.bits == 8 and isinstance(scheme.format, IntegerFormat):
        return ""
    if why := integer_refusal(scheme, BITS, shape[1]):
        return why
    if scheme.format.bits == 2 and shape[0] % 4:
        return f"ONNX Runtime restores 2-bit codes wrongly where rows ({shape[0]}) are no multiple of 4"
    return ragged(shape[0] * shape[1], 8 // scheme.format.bits)


def refuses_matmul(scheme: Scheme, shape: Shape) -> str:
    """Reason why MatMulNBits cannot hold a layer [N, K] by ``scheme``, or an empty text."""
    if why := integer_refusal(scheme, BITS, shape[1]):
        return why
    width = scheme.block[1]
    if width is None or width < _SMALLEST_BLOCK or width & (width - 1):
        return f"its blocks have 16, 32, 64 … values along a row, not {scheme.granularity}"
    return ""


def stored_bits(scheme: Scheme, shape: Shape, dtype: torch.dtype) -> float:
    """Bits per weight: scales are float16 where they are such, else float32. ``dtype`` changes nothing."""
    rule, each = scheme.scale, 32
    if rule is not None and rule.format.name in _KEPT:
        each = 16
    zeros = scheme.format.bits if is_asymmetric(scheme) else 0
    return scheme.format.bits + (each + zeros) * groups_in(scheme, shape) / math.prod(shape)


def dequantized(graph: Graph, name: str, q: QuantizedTensor, put: Put) -> str:
    """float32 [K, N]: the output of the DequantizeLinear that restores the layer."""
    bits, width = q.scheme.format.bits, q.scheme.block[1]
    whole = q.scheme.block == (None, None)
    kind = "FLOAT8E4M3FN" if q.scheme.format.name == "float8_e4m3fn" else "FLOAT8E5M2"
    kind = f"INT{bits}" if isinstance(q.scheme.format, IntegerFormat) else kind
    codes = put(f"{name}.weight_codes", _stored(q.codes.t(), kind))
    scales = q.scales.scale.t().contiguous()
    scale = _scales(
        graph, f"{name}.weight_scale", scales if width is not None else _line(scales, whole), q, put
    )
    zeros = []
    if q.scales.zero_points is not None:
        grid = q.scales.zero_points.t().contiguous().view(torch.uint8)
        grid = (grid & ((1 << bits) - 1)) if width is not None else _line(grid & ((1 << bits) - 1), whole)
        zeros = [put(f"{name}.weight_zero_point", _stored(grid, kind))]
    attributes: dict[str, Any] = {"axis": 0, "block_size": width} if width is not None else {"axis": 1}
    return str(graph.node("DequantizeLinear", codes, scale, *zeros, **attributes))


def product(graph: Graph, name: str, x: str, q: QuantizedTensor, put: Put, accuracy_level: int = 0) -> str:
    """The output of the MatMulNBits of ``x`` [..., K] by the layer: [..., N]. ``accuracy_level``: what may
    multiply: 0 what ONNX Runtime takes, 1 float32, 4 INT8 (``x`` is rounded to it, block by block)."""
    bits, (rows, columns), width = q.scheme.format.bits, q.shape, q.scheme.block[1]
    assert width is not None
    packed = pack_bits(unsigned(q).contiguous(), bits).view(rows, columns // width, width * bits // 8)
    codes = put(f"{name}.weight_codes", StoredTensor.of(packed))
    scale = _scales(graph, f"{name}.weight_scale", q.scales.scale.contiguous(), q, put)
    zeros = []
    if is_asymmetric(q.scheme):
        zeros = [
            put(f"{name}.weight_zero_point", StoredTensor.of(pack_bits(zero_codes(q).contiguous(), bits)))
        ]
    sides = {"K": columns, "N": rows, "bits": bits, "block_size": width}
    level = {"accuracy_level": accuracy_level}
    return str(graph.node("MatMulNBits", x, codes, scale, *zeros, domain="com.microsoft", **sides, **level))


def _scales(graph: Graph, name: str, scales: Tensor, q: QuantizedTensor, put: Put) -> str:
    """The scales as float32, stored in float16 where they are such."""
    rule = q.scheme.scale
    dtype = _KEPT.get(rule.format.name) if rule else None
    if dtype is None:
        return put(name, StoredTensor.of(scales))
    return graph.cast(put(name, StoredTensor.of(scales.to(dtype))))


def _line(grid: Tensor, whole: bool) -> Tensor:
    """[N], or one number for the whole tensor."""
    return grid.reshape(()) if whole else grid.reshape(-1)


def _stored(codes: Tensor, kind: str) -> StoredTensor:
    """uint8 ``codes`` as ONNX packs them: one run over the flattened tensor."""
    bits = {"INT2": 2, "INT4": 4}.get(kind, 8)
    flat = codes.contiguous().reshape(1, -1)
    return StoredTensor(kind, tuple(codes.shape), pack_bits(flat, bits).reshape(-1).view(torch.uint8))
