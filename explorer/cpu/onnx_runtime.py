"""ONNX Runtime's products on a CPU: one graph of one operation, run by a session of so many threads.

Accuracy levels of MatMulNBits: 0 leaves the choice to the library, 1 multiplies in float32, 4 rounds X to
INT8 in blocks and multiplies integers (onnxruntime, docs/ContribOperators.md)."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable
from functools import cache, partial
from typing import Any

import torch
from torch import Tensor

from explorer.checkpoints.onnx_graph import CONTRIB, Graph, StoredTensor
from explorer.checkpoints.onnx_layers import by_codes, dequantized
from explorer.core.backend import backend_for
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.cpu.kernels import F32, S8, Call, CpuKernel, Held, Library
from explorer.schemes import SCHEMES, Scheme

ONNX_RUNTIME = Library("ONNX Runtime", ("onnxruntime", "onnx"), "pip install onnxruntime onnx")
LEVELS = {0: F32, 1: F32, 4: S8}
"""Accuracy level -> the type of the product."""
X_RANGE = 5.0
"""Range of X where it is fixed beforehand: one value of N(0, 1) in two million lies outside."""
_ERRORS_ONLY = 3
Build = Callable[[Graph, Tensor, Scheme], tuple[str, int]]
"""Function that adds the product of "x" [M, K] and W [N, K] to a graph, and returns the name of its output
and the bytes of W."""


def _held(build: Build, w: Tensor, scheme: Scheme) -> Held:
    graph = Graph()
    out, nbytes = build(graph, w, scheme)
    graph.rename(out, "y")
    n, k = w.shape
    model = graph.serialized({"x": ("FLOAT", ["rows", k])}, {"y": ["rows", n]})
    session = cache(partial(_session, model))

    def bind(x: Tensor, threads: int) -> Call:
        running, given = session(threads), {"x": x.numpy()}
        return lambda: torch.from_numpy(running.run(None, given)[0])

    return Held(nbytes, bind)


def _session(model: bytes, threads: int) -> Any:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = _ERRORS_ONLY
    # Otherwise its threads go on spinning after a run, and what is timed next has one CPU less.
    options.add_session_config_entry("session.force_spinning_stop", "1")
    return onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])


def _float32(graph: Graph, w: Tensor, _scheme: Scheme) -> tuple[str, int]:
    return graph.node("MatMul", "x", graph.put("w", StoredTensor.of(w.t()))), w.nbytes


def _dynamic(graph: Graph, w: Tensor, scheme: Scheme) -> tuple[str, int]:
    """Quantize X to uint8 with one scale and zero point, found in every call."""
    q, put = quantize(w, scheme), graph.put
    codes, scale = q.codes.view(torch.int8).t().contiguous(), q.scales.scale.reshape(-1)
    sides = put("codes", StoredTensor.of(codes)), put("scale", StoredTensor.of(scale))
    out = graph.node("DynamicQuantizeMatMul", "x", *sides, domain=CONTRIB)
    return out, codes.nbytes + scale.nbytes


def _static(graph: Graph, w: Tensor, scheme: Scheme) -> tuple[str, int]:
    """Pass X and W through QuantizeLinear and DequantizeLinear, which ONNX Runtime fuses with the MatMul."""
    q, put = quantize(w, scheme), graph.put
    scale = put("x_scale", StoredTensor.of(torch.tensor(X_RANGE / 127)))
    zero = put("x_zero", StoredTensor.of(torch.tensor(128, dtype=torch.uint8)))
    rounded = graph.node("DequantizeLinear", graph.node("QuantizeLinear", "x", scale, zero), scale, zero)
    weight = dequantized(graph, "w", q)
    return graph.node("MatMul", rounded, weight), q.codes.nbytes + q.scales.scale.nbytes


def _nbits(level: int, quantized: Callable[[Tensor, Scheme], QuantizedTensor] = quantize) -> Build:
    def build(graph: Graph, w: Tensor, scheme: Scheme) -> tuple[str, int]:
        q = quantized(w, scheme)
        columns, width = w.shape[1], q.scheme.block[1]
        if width and columns % width:
            raise ValueError(f"rows of {columns} values are no whole groups of {width}")
        nbytes = w.numel() * q.scheme.format.bits // 8 + 4 * q.scales.scale.numel()
        return by_codes(graph, "w", "x", q, level), nbytes

    return build


def _ternary(w: Tensor, scheme: Scheme) -> QuantizedTensor:
    """Store ternary codes −1, 0 and 1 of W in 2 bits, with the one scale in every group."""
    coarse = quantize(w, scheme)
    pairs = SCHEMES["int2_group128"]
    q = quantize(w, pairs)
    scales = dataclasses.replace(
        q.scales, stored=torch.full_like(q.scales.stored, float(coarse.scales.scale))
    )
    packed, scales = backend_for(w).encode(coarse.dequantize(), scales, pairs)
    return QuantizedTensor(packed, scales, pairs, q.shape)


def _kernel(name: str, build: Build, core: str) -> CpuKernel:
    return CpuKernel(name, ONNX_RUNTIME, partial(_held, build), core)


FLOAT32 = _kernel("ONNX Runtime", _float32, F32)
DYNAMIC = _kernel("ONNX Runtime", _dynamic, S8)
STATIC = _kernel("ONNX Runtime, QDQ", _static, S8)
NBITS = tuple(_kernel(f"ONNX Runtime, level {level}", _nbits(level), core) for level, core in LEVELS.items())
TERNARY = _kernel("ONNX Runtime, level 4, in 2 bits", _nbits(4, _ternary), S8)
