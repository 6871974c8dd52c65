"""ONNX: one graph of a whole model, which ONNX Runtime and others run.

Two targets: the standard's DequantizeLinear before each product (``onnx``), and ONNX Runtime's own
MatMulNBits (``onnx-nbits``), which multiplies codes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path

from explorer.checkpoints.onnx_graph import DATA, FILE, Graph, Put, StoredTensor
from explorer.checkpoints.onnx_layers import (
    dequantized,
    product,
    refuses_dequantize,
    refuses_matmul,
    stored_bits,
)
from explorer.checkpoints.onnx_models import MODELS
from explorer.checkpoints.target import Export, ExportJob, Plan, Shape
from explorer.core.quantize import QuantizedTensor
from explorer.schemes import Scheme

Multiply = Callable[[Graph, str, str, QuantizedTensor, Put], str]
"""(graph, layer, x [..., K], codes, where tensors go) -> the product [..., N]."""


def by_dequantizing(graph: Graph, name: str, x: str, q: QuantizedTensor, put: Put) -> str:
    """DequantizeLinear, then MatMul."""
    return str(graph.node("MatMul", x, dequantized(graph, name, q, put)))


class _Names:
    """``Weights`` that are only counted: which tensors and layers a graph uses."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._all = {info.name for info in plan.model.infos}
        self.used: set[str] = set()

    def has(self, name: str) -> bool:
        return name in self._all

    def tensor(self, name: str) -> str:
        self._plan.model.info(name)
        self.used.add(name)
        return name

    def linear(self, layer: str, x: str) -> str:
        return self.tensor(f"{layer}.weight")


class _Tensors:
    """``Weights`` read from the model, each when the graph first needs it."""

    def __init__(self, job: ExportJob, graph: Graph, multiply: Multiply) -> None:
        self._job, self._graph, self._multiply = job, graph, multiply
        self._names = _Names(job.plan)
        self._placed: dict[str, str] = {}

    def has(self, name: str) -> bool:
        return self._names.has(name)

    def tensor(self, name: str) -> str:
        if name not in self._placed:
            stored = StoredTensor.of(self._job.plan.model.read(name))
            placed = self._graph.initializer(name, stored)
            self._placed[name] = placed if stored.kind == "FLOAT" else self._graph.cast(placed)
            self._job.step()
        return self._placed[name]

    def linear(self, layer: str, x: str) -> str:
        out = self._product(layer, x)
        if not self.has(f"{layer}.bias"):
            return out
        return str(self._graph.node("Add", out, self.tensor(f"{layer}.bias")))

    def _product(self, layer: str, x: str) -> str:
        graph = self._graph
        if layer not in self._job.plan.layers:
            return str(
                graph.node("MatMul", x, graph.node("Transpose", self.tensor(f"{layer}.weight"), perm=[1, 0]))
            )
        q = self._job.layer(layer)
        self._job.step()
        dtype = q.scheme.plain_dtype
        if dtype is None:
            return self._multiply(graph, layer, x, q, graph.initializer)
        kept = graph.cast(graph.initializer(f"{layer}.weight", StoredTensor.of(q.dequantize(dtype))))
        return str(graph.node("MatMul", x, graph.node("Transpose", kept, perm=[1, 0])))


def together(plan: Plan) -> str:
    """Reason why no graph can be built of this model or one of its layers, or an empty text."""
    if plan.input_schemes:
        return "inputs are not quantized in its graphs"
    kind, config = plan.model.type, plan.model.settings
    if kind not in MODELS:
        return f"graphs are built of {', '.join(MODELS)} models, not of {kind!r}"
    if config is None:
        return f"its config.json is none that transformers reads as {kind!r}"
    if why := MODELS[kind].refusal(config):
        return why
    names = _Names(plan)
    MODELS[kind].build(Graph(None), names, config)
    left = [name for name in plan.layers if f"{name}.weight" not in names.used]
    return f"{left[0]} takes no part in {MODELS[kind].output}" if left else ""


def write(job: ExportJob, multiply: Multiply) -> None:
    """Write the graph, and the tensors to an external file in the order of their use."""
    model = job.plan.model
    whole, config = MODELS[model.type], model.settings
    with (job.folder / DATA).open("wb") as data:
        graph = Graph(data)
        names = _Names(job.plan)
        whole.build(Graph(None), names, config)
        for info in model.infos:
            if info.name not in names.used and not _is_bias(info.name, names.used):
                job.step()
        graph.rename(whole.build(graph, _Tensors(job, graph, multiply), config), whole.output)
    axes: list[str | int] = ["batch", "tokens"]
    inputs = dict.fromkeys(whole.inputs, ("INT64", axes))
    graph.save(job.folder / FILE, inputs, {whole.output: [*axes, getattr(config, whole.width)]})


def _is_bias(name: str, used: set[str]) -> bool:
    return name.endswith(".bias") and f"{name.removesuffix('.bias')}.weight" in used


def one(q: QuantizedTensor, name: str, path: Path, multiply: Multiply) -> None:
    """Write a graph of one product: x [rows, K] -> y [rows, N]."""
    graph = Graph(None)

    def put(part: str, stored: StoredTensor) -> str:
        return graph.inline([(part, stored)])[0]

    dtype = q.scheme.plain_dtype
    if dtype is None:
        out = multiply(graph, name, "x", q, put)
    else:
        kept = graph.cast(put(f"{name}.weight", StoredTensor.of(q.dequantize(dtype).t())))
        out = str(graph.node("MatMul", "x", kept))
    graph.rename(out, "y")
    graph.save(path, {"x": ("FLOAT", ["rows", q.shape[1]])}, {"y": ["rows", q.shape[0]]})


def load(plan: Plan) -> str:
    """Return the code that runs the graph."""
    return (
        "import onnxruntime  # pip install onnxruntime\n\n"
        "options = onnxruntime.SessionOptions()\n"
        "# Otherwise ONNX Runtime may round the inputs of 4-bit products to 8 bits:\n"
        'options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")\n'
        f'session = onnxruntime.InferenceSession("this folder/{FILE}", options)'
    )


_EXACT = "equal in float32, in which the graph computes"


def _export(
    name: str, label: str, why: str, refuses: Callable[[Scheme, Shape], str], multiply: Multiply
) -> Export:
    parts = (refuses, together, partial(write, multiply=multiply), partial(one, multiply=multiply))
    row = Export(name, label, why, "onnxruntime 1.31.1", _EXACT, *parts, load, ".onnx")
    return replace(row, bits=stored_bits, usual=("int4_group32", "int8_row"))


DEQUANTIZED = _export(
    "onnx",
    "ONNX",
    "what any runtime of opset 21 runs: codes are restored before each product",
    refuses_dequantize,
    by_dequantizing,
)
MULTIPLIED = _export(
    "onnx-nbits",
    "ONNX, MatMulNBits",
    "what ONNX Runtime multiplies as codes, with a dedicated operation",
    refuses_matmul,
    product,
)
