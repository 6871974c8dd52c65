"""ONNX graph built operation by operation, with weights streamed to an external file."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
import torch
from torch import Tensor

from explorer.checkpoints.packages import needed

FILE, DATA = "model.onnx", "model.onnx_data"
OPSET, IR = 21, 10
INT2_OPSET, INT2_IR = 25, 13
"""The first of each that have 2-bit integers; the others are the first with 4-bit ones and blocks."""
_ALIGNED = 64


@dataclass(frozen=True)
class StoredTensor:
    """A tensor as ONNX stores it: the name of its type, its shape, its bytes."""

    kind: str
    shape: tuple[int, ...]
    data: Tensor

    @classmethod
    def of(cls, tensor: Tensor) -> StoredTensor:
        """A tensor of a dtype that ONNX has under torch's meaning."""
        flat = tensor.detach().cpu().contiguous()
        return cls(_KINDS[tensor.dtype], tuple(tensor.shape), flat.reshape(-1).view(torch.uint8))


_KINDS = {
    torch.float32: "FLOAT", torch.float16: "FLOAT16", torch.bfloat16: "BFLOAT16", torch.int8: "INT8",
    torch.uint8: "UINT8", torch.int64: "INT64", torch.float8_e4m3fn: "FLOAT8E4M3FN",
    torch.float8_e5m2: "FLOAT8E5M2",
}  # fmt: skip


class Graph:
    """Nodes and initializers; ``data`` is where the bytes of large ones go, None to keep none of them."""

    def __init__(self, data: BinaryIO | None) -> None:
        self._onnx = needed("onnx", "ONNX")
        self._data = data
        self._nodes: list[Any] = []
        self._initializers: list[Any] = []
        self._count = 0
        self._constants: dict[tuple[object, ...], str] = {}
        self.int2 = False
        self.contrib = False

    def node(
        self, operation: str, *inputs: str, outputs: int = 1, domain: str = "", **attributes: Any
    ) -> Any:
        """Add one operation; the name of its output, or the names of several."""
        self._count += 1
        names = [
            f"{operation}_{self._count}.{i}" if outputs > 1 else f"{operation}_{self._count}"
            for i in range(outputs)
        ]
        self._nodes.append(
            self._onnx.helper.make_node(operation, list(inputs), names, names[0], domain=domain, **attributes)
        )
        self.contrib |= bool(domain)
        return names[0] if outputs == 1 else names

    def constant(self, value: Sequence[float] | float | int, dtype: type = np.int64) -> str:
        """A small array inside the graph; equal ones are one."""
        array: np.ndarray[Any, Any] = np.asarray(value, dtype)
        key = (array.tobytes(), array.shape, array.dtype.str)
        if key not in self._constants:
            self._constants[key] = f"constant_{len(self._constants)}"
            tensor = self._onnx.numpy_helper.from_array(array, self._constants[key])
            self._initializers.append(tensor)
        return self._constants[key]

    def initializer(self, name: str, stored: StoredTensor) -> str:
        """A tensor of the model, in the external data file."""
        onnx = self._onnx
        proto = onnx.TensorProto(name=name, dims=stored.shape, data_location=onnx.TensorProto.EXTERNAL)
        proto.data_type = getattr(onnx.TensorProto, stored.kind)
        self.int2 |= stored.kind in ("INT2", "UINT2")
        if self._data is not None:
            self._data.write(b"\0" * (-self._data.tell() % _ALIGNED))
            entries = {"location": DATA, "offset": self._data.tell(), "length": stored.data.numel()}
            for key, value in entries.items():
                proto.external_data.add(key=key, value=str(value))
            self._data.write(stored.data.numpy().data)
        self._initializers.append(proto)
        return name

    def cast(self, x: str, kind: str = "FLOAT") -> str:
        """``x`` in another type."""
        return str(self.node("Cast", x, to=getattr(self._onnx.TensorProto, kind)))

    def inline(self, stored: Sequence[tuple[str, StoredTensor]]) -> list[str]:
        """Tensors inside the graph's own file."""
        for name, tensor in stored:
            proto = self._onnx.TensorProto(name=name, dims=tensor.shape)
            proto.data_type = getattr(self._onnx.TensorProto, tensor.kind)
            proto.raw_data = tensor.data.numpy().tobytes()
            self.int2 |= tensor.kind in ("INT2", "UINT2")
            self._initializers.append(proto)
        return [name for name, _ in stored]

    def save(
        self, path: Path, inputs: dict[str, tuple[str, list[str | int]]], outputs: dict[str, list[str | int]]
    ) -> None:
        """Write the graph; inputs by name with type and shape, float outputs with shape."""
        path.write_bytes(self.serialized(inputs, outputs))

    def serialized(
        self, inputs: dict[str, tuple[str, list[str | int]]], outputs: dict[str, list[str | int]]
    ) -> bytes:
        """The bytes that ``save`` writes."""
        helper, kinds = self._onnx.helper, self._onnx.TensorProto
        ins = [helper.make_tensor_value_info(n, getattr(kinds, k), s) for n, (k, s) in inputs.items()]
        outs = [helper.make_tensor_value_info(n, kinds.FLOAT, shape) for n, shape in outputs.items()]
        graph = helper.make_graph(self._nodes, "model", ins, outs, self._initializers)
        opset = helper.make_opsetid("", INT2_OPSET if self.int2 else OPSET)
        contrib = [helper.make_opsetid("com.microsoft", 1)] if self.contrib else []
        model = helper.make_model(
            graph,
            opset_imports=[opset, *contrib],
            ir_version=INT2_IR if self.int2 else IR,
            producer_name="quantization-explorer",
        )
        return bytes(model.SerializeToString())

    def rename(self, name: str, to: str) -> None:
        """Give the output ``name`` another one."""
        self._nodes.append(self._onnx.helper.make_node("Identity", [name], [to]))


Put = Callable[[str, StoredTensor], str]
"""Places one tensor in a graph: (name, tensor) -> its name there."""
