"""ONNX: one graph of a whole model, which ONNX Runtime and others run.

Two targets: the standard's DequantizeLinear before each product (``onnx``), and ONNX Runtime's own
MatMulNBits (``onnx-nbits``), which multiplies codes. A decoder takes ``input_ids`` and ``attention_mask``
[batch, tokens], gives ``logits`` [batch, tokens, vocabulary], and keeps no cache of keys and values. BERT
also takes ``token_type_ids`` and gives ``last_hidden_state`` [batch, tokens, width].

The network of transformers is traced by torch's TorchScript exporter, which needs no further package; each
linear layer is one node of the trace. Parameters are inputs of the trace, so that no weight is read for it.
"""

from __future__ import annotations

import copy
import tempfile
import threading
import warnings
from collections.abc import Callable
from contextlib import redirect_stderr
from dataclasses import dataclass, replace
from functools import partial
from io import StringIO
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.onnx_graph import DATA, FILE, Axes, Graph, StoredTensor
from explorer.checkpoints.onnx_layers import (
    by_codes,
    by_dequantizing,
    refuses_dequantize,
    refuses_matmul,
    stored_bits,
)
from explorer.checkpoints.target import Export, ExportJob, Plan, Shape, needed
from explorer.core.quantize import QuantizedTensor
from explorer.progress import held
from explorer.schemes import Scheme
from explorer.sources.coded import SETTINGS

Multiply = Callable[[Graph, str, str, QuantizedTensor], str]
"""(graph, layer, x [..., K], codes) -> the product [..., N]."""
ROPES = ("default", "linear", "llama3", "yarn")
"""Rotations with frequencies that do not depend on the length of the text."""
_DOMAIN, _PARAMETER, _OUTPUT = "explorer", "network.", "traced"
"""In a trace: the domain of the nodes of linear layers, the beginning of the names of parameters, the name of
the output."""
_TRACED_OPSET = 20
"""Latest version of the operations that the exporter has; they are unchanged in later versions."""
_TOKENS = 8
"""Number of tokens of a trace. Positions and ids are below it."""
_EXPORTING = threading.Lock()
"""The exporter keeps its state in globals."""


@dataclass(frozen=True)
class _Kind:
    """Kind of model: its inputs, the name and last side of its output, and the beginnings of the names of
    unused layers. ``base``: the network without its head is traced."""

    inputs: tuple[str, ...] = ("input_ids", "attention_mask")
    output: str = "logits"
    width: str = "vocab_size"
    unused: tuple[str, ...] = ()
    base: bool = False


_BERT = _Kind(
    ("input_ids", "attention_mask", "token_type_ids"),
    "last_hidden_state",
    "hidden_size",
    ("pooler.", "bert.pooler.", "cls.", "classifier", "qa_outputs"),
    True,
)
_DECODERS = (
    "llama", "mistral", "qwen2", "qwen3", "gemma3_text", "phi3", "olmo2", "olmo3", "smollm3",
)  # fmt: skip
MODELS = {**dict.fromkeys(_DECODERS, _Kind()), "bert": _BERT}
"""The kinds that the tests compare with transformers, by ``model_type`` of config.json."""


def together(plan: Plan) -> str:
    """Reason why no graph can be built of this model or one of its layers, or an empty text."""
    if plan.input_schemes:
        return "inputs are not quantized in its graphs"
    kind, config = plan.model.type, plan.model.settings
    if kind not in MODELS:
        return f"graphs are built of {', '.join(MODELS)} models, not of {kind!r}"
    if config is None or plan.model.skeleton is None:
        return f"transformers cannot read its config.json as {kind!r}"
    if getattr(config, "use_bidirectional_attention", False):
        return "its configuration sets use_bidirectional_attention, which graphs do not have"
    rope = getattr(config, "rope_parameters", None) or {}
    for one in (rope, *(part for part in rope.values() if isinstance(part, dict))):
        if (scaled := one.get("rope_type", ROPES[0])) not in ROPES:
            return f"positions scaled by {scaled!r} are not carried; {', '.join(ROPES)} are"
    if not (MODELS[kind].base or plan.model.skeleton.head):
        return f"{type(plan.model.skeleton.network).__name__} has no head that gives logits of tokens"
    left = [name for name in plan.layers if name.startswith(MODELS[kind].unused or "-")]
    return f"{left[0]} takes no part in {MODELS[kind].output}" if left else ""


class _Traced(nn.Module):
    """Network for a trace: its inputs in order, and only its first output."""

    def __init__(self, network: Any, kind: _Kind) -> None:
        super().__init__()
        self.network, self._kind = network, kind

    def forward(self, *inputs: Tensor) -> Any:
        network = self.network.base_model if self._kind.base else self.network
        cached = {} if self._kind.base else {"use_cache": False}
        return network(**dict(zip(self._kind.inputs, inputs, strict=True)), **cached)[0]


class _Layer(torch.autograd.Function):
    """Linear layer in a trace: one node that names it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, path: str, width: int) -> Tensor:
        return x.new_zeros(*x.shape[:-1], width)

    @staticmethod
    def symbolic(g: Any, x: Any, path: str, width: int) -> Any:
        out = g.op(f"{_DOMAIN}::Layer", x, path_s=path)
        out.setType(x.type().with_sizes([None] * (x.type().dim() - 1) + [width]))
        return out


def _one_node(x: Tensor, path: str, width: int) -> Any:
    return _Layer.apply(x, path, width)


def _traced(model: ModelFolder, kind: _Kind) -> Any:
    """Trace the network in float32; its parameters are inputs called "network.…"."""
    assert model.skeleton is not None
    config: Any = copy.deepcopy(model.settings)
    if hasattr(config, SETTINGS):
        del config.quantization_config
    # A parameter is one number, spread over its shape; the exporter would merge equal ones.
    numbers = {
        info.name: torch.tensor(1 + place / 1024).expand(info.shape) for place, info in enumerate(model.infos)
    }
    opened: Any = type(model.skeleton.network)
    with (
        held(_EXPORTING),
        redirect_stderr(StringIO()),
        warnings.catch_warnings(),
        tempfile.TemporaryDirectory() as room,
    ):
        warnings.simplefilter("ignore")
        network = opened.from_pretrained(
            None, config=config, state_dict=numbers, dtype=torch.float32, attn_implementation="eager"
        ).eval()
        for path, module in network.named_modules():
            if isinstance(module, nn.Embedding):  # of a spread table, a look-up would copy all rows
                module.weight.data, module.padding_idx = module.weight.data[:_TOKENS], None
            elif isinstance(module, nn.Linear):
                apply = partial(_one_node, path=path, width=module.out_features)
                module.forward = apply  # type: ignore[method-assign]
        inputs = (torch.ones(2, _TOKENS, dtype=torch.int64),) * len(kind.inputs)
        axes = {name: {0: "batch", 1: "tokens"} for name in (*kind.inputs, _OUTPUT)}
        torch.onnx.export(
            _Traced(network, kind),
            inputs,
            str(Path(room) / FILE),
            dynamo=False,
            export_params=False,
            do_constant_folding=False,
            opset_version=_TRACED_OPSET,
            input_names=list(kind.inputs),
            output_names=[_OUTPUT],
            dynamic_axes=axes,
            custom_opsets={_DOMAIN: 1},
        )
        return needed("onnx", "ONNX").load(Path(room) / FILE).graph


class _Tensors:
    """The model's tensors in a graph, each read when the graph first needs it."""

    def __init__(self, job: ExportJob, graph: Graph, multiply: Multiply) -> None:
        self._job, self._graph, self._multiply = job, graph, multiply
        model = job.plan.model
        assert model.skeleton is not None
        self._network = model.skeleton.network
        known = dict(self._network.named_parameters(remove_duplicate=False))
        paths = {info.name: model.skeleton.parameter(info.name)[0] for info in model.infos}
        self._files = {id(known[path]): name for name, path in paths.items() if path in known}
        self._placed: dict[str, str] = {}
        self.left = set(job.plan.layers)
        """The layers of the plan that are not in the graph yet."""

    def parameter(self, path: str) -> str:
        """Add a parameter of the network unquantized, in float32."""
        return self._tensor(self._file(path))

    def linear(self, path: str, x: str) -> str:
        """Multiply ``x`` [..., K] by a layer, and add its bias if it has one."""
        graph, layer = self._graph, self._file(f"{path}.weight").removesuffix(".weight")
        if layer not in self._job.plan.layers:
            out = _product(graph, x, self._tensor(f"{layer}.weight"))
        else:
            q = self._job.layer(layer)
            self._job.step()
            self.left.discard(layer)
            if q.scheme.plain_dtype is None:
                out = self._multiply(graph, layer, x, q)
            else:
                kept = graph.put(f"{layer}.weight", StoredTensor.of(q.dequantize(q.scheme.plain_dtype)))
                out = _product(graph, x, graph.cast(kept))
        if self._network.get_submodule(path).bias is None:
            return out
        return graph.node("Add", out, self.parameter(f"{path}.bias"))

    def _file(self, path: str) -> str:
        """Find the tensor of the files that holds a parameter, also a shared one."""
        return self._files[id(self._network.get_parameter(path))]

    def _tensor(self, name: str) -> str:
        if name not in self._placed:
            stored = StoredTensor.of(self._job.plan.model.read(name))
            placed = self._graph.put(name, stored)
            self._placed[name] = placed if stored.kind == "FLOAT" else self._graph.cast(placed)
            self._job.step()
        return self._placed[name]


def _product(graph: Graph, x: str, weight: str) -> str:
    return graph.node("MatMul", x, graph.node("Transpose", weight, perm=[1, 0]))


def write(job: ExportJob, multiply: Multiply) -> None:
    """Write the graph, and the tensors to a second file in the order of their use."""
    model = job.plan.model
    kind = MODELS[model.type]
    steps, step = 0, job.step

    def counted() -> None:
        nonlocal steps
        steps += 1
        step()

    job = replace(job, step=counted)
    traced = _traced(model, kind)
    renamed: dict[str, str] = {}
    with (job.folder / DATA).open("wb") as data:
        graph = Graph(data)
        tensors = _Tensors(job, graph, multiply)
        for node in traced.node:
            for place, name in enumerate(node.input):
                if name.startswith(_PARAMETER):
                    node.input[place] = tensors.parameter(name.removeprefix(_PARAMETER))
                else:
                    node.input[place] = renamed.get(name, name)
            if node.domain == _DOMAIN:
                renamed[node.output[0]] = tensors.linear(node.attribute[0].s.decode(), node.input[0])
            else:
                graph.nodes.append(node)
        graph.rename(renamed.get(_OUTPUT, _OUTPUT), kind.output)
    if tensors.left:
        raise ValueError(f"{min(tensors.left)} takes no part in {kind.output}")
    for _ in range(steps, len(model.infos)):  # tensors that take no part
        step()
    axes: Axes = ["batch", "tokens"]
    outputs = {kind.output: [*axes, getattr(model.settings, kind.width)]}
    inputs = dict.fromkeys(kind.inputs, ("INT64", axes))
    (job.folder / FILE).write_bytes(graph.serialized(inputs, outputs))


def one(q: QuantizedTensor, name: str, path: Path, multiply: Multiply) -> None:
    """Write a graph of one product: x [rows, K] -> y [rows, N]."""
    graph, dtype = Graph(), q.scheme.plain_dtype
    if dtype is None:
        out = multiply(graph, name, "x", q)
    else:
        kept = graph.put(f"{name}.weight", StoredTensor.of(q.dequantize(dtype)))
        out = _product(graph, "x", graph.cast(kept))
    graph.rename(out, "y")
    path.write_bytes(graph.serialized({"x": ("FLOAT", ["rows", q.shape[1]])}, {"y": ["rows", q.shape[0]]}))


def load(plan: Plan) -> str:
    """Return the code that runs the graph."""
    return (
        "import onnxruntime  # pip install onnxruntime\n\n"
        "options = onnxruntime.SessionOptions()\n"
        "# Otherwise ONNX Runtime may round the inputs of 4-bit products to 8 bits:\n"
        'options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")\n'
        f'session = onnxruntime.InferenceSession("this folder/{FILE}", options)'
    )


def _export(
    name: str, label: str, why: str, refuses: Callable[[Scheme, Shape], str], multiply: Multiply
) -> Export:
    return Export(
        name,
        label,
        why,
        "onnxruntime 1.31.1",
        "equal in float32, in which the graph computes",
        refuses,
        together,
        partial(write, multiply=multiply),
        partial(one, multiply=multiply),
        load,
        ".onnx",
        bits=stored_bits,
        usual=("int4_group32", "int8_row"),
    )


EXPORT = _export(
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
    by_codes,
)
