"""A layer of codes as operations of ONNX: DequantizeLinear before a product, or MatMulNBits. ONNX Runtime's
own quantizer (``matmul_nbits_quantizer``) rounds weights itself and takes no codes.

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
from explorer.checkpoints.onnx_graph import CONTRIB, Graph, StoredTensor
from explorer.checkpoints.target import Shape
from explorer.core.quantize import QuantizedTensor
from explorer.formats import IntegerFormat
from explorer.formats.packing import pack_bits
from explorer.schemes import Scheme

BITS = (2, 4, 8)
_FLOAT8 = {"float8_e4m3fn": "FLOAT8E4M3FN", "float8_e5m2": "FLOAT8E5M2"}
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
    """Bits per weight: scales are stored in float16 or float32. The model's ``dtype`` changes nothing."""
    each = 16 if _has_half_scales(scheme) else 32
    zeros = scheme.format.bits if is_asymmetric(scheme) else 0
    return scheme.format.bits + (each + zeros) * groups_in(scheme, shape) / math.prod(shape)


def dequantized(graph: Graph, name: str, q: QuantizedTensor) -> str:
    """Restore the layer by a DequantizeLinear; returns the name of its output, float32 [K, N]."""
    bits, width, floats = q.scheme.format.bits, q.scheme.block[1], _FLOAT8.get(q.scheme.format.name)
    kind = f"INT{bits}" if floats is None else floats
    line = () if q.scheme.block == (None, None) else (-1,)

    def grid(values: Tensor) -> Tensor:
        """Arrange scales or zero points as [K/B, N], as [N] for rows, or as one number."""
        return values.t().contiguous() if width is not None else values.reshape(line)

    parts = [
        graph.put(f"{name}.weight_codes", _stored(q.codes.t(), kind)),
        _scales(graph, f"{name}.weight_scale", grid(q.scales.scale), q.scheme),
    ]
    if q.scales.zero_points is not None:
        zeros = grid(q.scales.zero_points).view(torch.uint8) & ((1 << bits) - 1)
        parts.append(graph.put(f"{name}.weight_zero_point", _stored(zeros, kind)))
    attributes: dict[str, Any] = {"axis": 0, "block_size": width} if width is not None else {"axis": 1}
    return graph.node("DequantizeLinear", *parts, **attributes)


def by_dequantizing(graph: Graph, name: str, x: str, q: QuantizedTensor) -> str:
    """Multiply ``x`` [..., K] by the restored layer: [..., N]."""
    return graph.node("MatMul", x, dequantized(graph, name, q))


def by_codes(graph: Graph, name: str, x: str, q: QuantizedTensor, accuracy_level: int = 0) -> str:
    """Multiply ``x`` [..., K] by the layer with MatMulNBits: [..., N].

    ``accuracy_level``, the type of the product: 0 ONNX Runtime's choice, 1 float32, 4 INT8 (``x`` is rounded
    to it, block by block).
    """
    bits, (rows, columns), width = q.scheme.format.bits, q.shape, q.scheme.block[1]
    assert width is not None
    packed = pack_bits(unsigned(q).contiguous(), bits).view(rows, columns // width, width * bits // 8)
    parts = [
        graph.put(f"{name}.weight_codes", StoredTensor.of(packed)),
        _scales(graph, f"{name}.weight_scale", q.scales.scale, q.scheme),
    ]
    if is_asymmetric(q.scheme):
        zeros = StoredTensor.of(pack_bits(zero_codes(q).contiguous(), bits))
        parts.append(graph.put(f"{name}.weight_zero_point", zeros))
    sides = {"K": columns, "N": rows, "bits": bits, "block_size": width}
    return graph.node("MatMulNBits", x, *parts, domain=CONTRIB, **sides, accuracy_level=accuracy_level)


def _scales(graph: Graph, name: str, scales: Tensor, scheme: Scheme) -> str:
    """The scales as float32, stored in float16 if the scheme rounds them to it."""
    if not _has_half_scales(scheme):
        return graph.put(name, StoredTensor.of(scales))
    return graph.cast(graph.put(name, StoredTensor.of(scales.half())))


def _has_half_scales(scheme: Scheme) -> bool:
    return scheme.scale is not None and scheme.scale.format.name == "float16"


def _stored(codes: Tensor, kind: str) -> StoredTensor:
    """Pack uint8 ``codes`` as ONNX does, in one run over the flattened tensor."""
    bits = {"INT2": 2, "INT4": 4}.get(kind, 8)
    return StoredTensor(kind, tuple(codes.shape), pack_bits(codes.reshape(1, -1).contiguous(), bits)[0])
