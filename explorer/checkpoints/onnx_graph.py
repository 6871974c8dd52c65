"""ONNX graphs built operation by operation; a model's tensors go to a second file as they are read."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, BinaryIO

import torch
from torch import Tensor

from explorer.checkpoints.target import needed

FILE, DATA = "model.onnx", "model.onnx_data"
OPSET, IR = 21, 10
INT2_OPSET, INT2_IR = 25, 13
"""The first versions of the operations and of the file that have 2-bit integers. ``OPSET`` and ``IR`` are the
first with 4-bit integers and blocks."""
CONTRIB = "com.microsoft"
"""The domain of ONNX Runtime's own operations."""
_ALIGNED = 64
_KINDS = {
    torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.int8: "INT8",
    torch.uint8: "UINT8", torch.int64: "INT64", torch.float8_e4m3fn: "FLOAT8E4M3FN",
    torch.float8_e5m2: "FLOAT8E5M2",
}  # fmt: skip
Axes = list[str | int]


@dataclass(frozen=True)
class StoredTensor:
    """Tensor as ONNX stores it: the name of its type, its shape, its bytes."""

    kind: str
    shape: tuple[int, ...]
    data: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> StoredTensor:
        """Convert a tensor of a dtype that torch and ONNX both have."""
        flat = tensor.detach().cpu().contiguous()
        return cls(_KINDS[tensor.dtype], tuple(tensor.shape), flat.reshape(-1).view(torch.uint8))


class Graph:
    """Nodes and tensors. ``data``: the file that the tensors' bytes go to; None to keep them in the graph."""

    def __init__(self, data: BinaryIO | None = None) -> None:
        self._onnx, self._data = needed("onnx", "ONNX"), data
        self.nodes: list[Any] = []
        self._tensors: list[Any] = []

    def node(self, operation: str, *inputs: str, domain: str = "", **attributes: Any) -> str:
        """Add one operation; returns the name of its output."""
        name = f"{operation}_{len(self.nodes)}"
        make = self._onnx.helper.make_node
        self.nodes.append(make(operation, list(inputs), [name], name, domain=domain, **attributes))
        return name

    def cast(self, x: str, kind: str = "FLOAT") -> str:
        """Convert ``x`` to another type."""
        return self.node("Cast", x, to=getattr(self._onnx.TensorProto, kind))

    def rename(self, name: str, to: str) -> None:
        """Give the output ``name`` another name."""
        self.nodes.append(self._onnx.helper.make_node("Identity", [name], [to]))

    def put(self, name: str, stored: StoredTensor) -> str:
        """Add a tensor; returns its name."""
        proto = self._onnx.TensorProto(name=name, dims=stored.shape)
        proto.data_type = getattr(self._onnx.TensorProto, stored.kind)
        raw = stored.data.numpy()
        if self._data is None:
            proto.raw_data = raw.tobytes()
        else:
            proto.data_location = self._onnx.TensorProto.EXTERNAL
            self._data.write(b"\0" * (-self._data.tell() % _ALIGNED))
            entries = {"location": DATA, "offset": self._data.tell(), "length": raw.size}
            for key, value in entries.items():
                proto.external_data.add(key=key, value=str(value))
            self._data.write(raw.data)
        self._tensors.append(proto)
        return name

    def serialized(self, inputs: dict[str, tuple[str, Axes]], outputs: dict[str, Axes]) -> bytes:
        """The bytes of the graph's file. Inputs have a type and a shape, float32 outputs a shape."""
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        ins = [helper.make_tensor_value_info(n, getattr(kinds, k), s) for n, (k, s) in inputs.items()]
        outs = [helper.make_tensor_value_info(n, kinds.FLOAT, shape) for n, shape in outputs.items()]
        int2 = any(proto.data_type in (kinds.INT2, kinds.UINT2) for proto in self._tensors)
        opsets = [helper.make_opsetid("", INT2_OPSET if int2 else OPSET)]
        if any(node.domain for node in self.nodes):
            opsets.append(helper.make_opsetid(CONTRIB, 1))
        model = helper.make_model(
            helper.make_graph(self.nodes, "model", ins, outs, self._tensors),
            opset_imports=opsets,
            ir_version=INT2_IR if int2 else IR,
            producer_name="quantization-explorer",
        )
        return bytes(model.SerializeToString())
