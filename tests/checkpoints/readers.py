"""One tensor of each target, read by the program that it is for.

gptqmodel asks for another torch and compiles an extension when it first loads: for the layouts of GPTQ and
AWQ the arithmetic of their readers is written out here.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import gguf
import numpy as np
import onnxruntime
import torch
from bitsandbytes.functional import QuantState, dequantize_4bit
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
from gguf.quants import dequantize
from safetensors.torch import load_file
from torch import Tensor

from explorer import Scheme
from explorer.checkpoints.to_compressed_tensors import layout_of

NAME = "layer"
Reader = Callable[[Path, Scheme], Tensor]
"""(file of one tensor, its scheme) -> the weight [N, K] as the program restores it."""


def parts_of(path: Path, name: str = NAME) -> dict[str, Tensor]:
    """The tensors of one layer by what follows its name."""
    start = f"{name}."
    tensors = {key: value for key, value in load_file(path).items() if key.startswith(start)}
    return {key.removeprefix(start): value for key, value in tensors.items()}


def by_compressed_tensors(path: Path, scheme: Scheme) -> Tensor:
    """``decompress`` of the format's own compressor."""
    layout = layout_of(scheme)
    assert layout is not None
    weights = QuantizationArgs(**layout.weights)
    said = QuantizationScheme(targets=["Linear"], weights=weights, format=layout.format)
    reader = BaseCompressor.get_value_from_registry(layout.format)
    return reader.decompress(parts_of(path), said)["weight"]


def by_gguf(path: Path, scheme: Scheme) -> Tensor:
    """The package's ``dequantize``."""
    (tensor,) = gguf.GGUFReader(path).tensors
    assert tensor.name == f"{NAME}.weight"
    return torch.from_numpy(dequantize(tensor.data, tensor.tensor_type))


def by_onnxruntime(path: Path, scheme: Scheme) -> Tensor:
    """The product of the unit matrix."""
    run = session(path)
    columns = run.get_inputs()[0].shape[1]
    return torch.from_numpy(run.run(None, {"x": np.eye(columns, dtype=np.float32)})[0]).t()


def session(path: Path) -> onnxruntime.InferenceSession:
    """ONNX Runtime with one thread, and inputs of 4-bit products left in float32."""
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.add_session_config_entry("session.qdq_matmulnbits_accuracy_level", "1")
    return onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])


def by_gptq(path: Path, scheme: Scheme) -> Tensor:
    """float16, as gptqmodel's ``TorchLinear`` computes it."""
    return gptq_weight(parts_of(path), scheme.format.bits, 2 if scheme.asymmetric else 1)


def gptq_weight(parts: dict[str, Tensor], bits: int, version: int) -> Tensor:
    """float16 [N, K], bit by bit: code k of column n is at bit k · b of the column's words."""
    codes = _stream(parts["qweight"].t(), bits)  # [N, K]
    points = _stream(parts["qzeros"], bits) + (1 if version == 1 else 0)  # [groups, N]
    group = parts["g_idx"].long()
    return (parts["scales"][group] * (codes.t() - points[group]).half()).t()


def _stream(words: Tensor, bits: int) -> Tensor:
    """int64 [rows, codes] of int32 [rows, words]."""
    each = ((words.long() & 0xFFFFFFFF)[:, :, None] >> torch.arange(32)) & 1
    return (each.flatten(1).unflatten(1, (-1, bits)) << torch.arange(bits)).sum(2)


def by_awq(path: Path, scheme: Scheme) -> Tensor:
    """float16, as gptqmodel's ``dequantize_gemm`` computes it."""
    return awq_weight(parts_of(path))


def awq_weight(parts: dict[str, Tensor]) -> Tensor:
    """float16 [N, K]: eight outputs a word, taken out in the order 0 4 1 5 2 6 3 7."""
    shifts = 4 * torch.tensor([0, 4, 1, 5, 2, 6, 3, 7])
    codes, zeros = (((parts[key][:, :, None] >> shifts) & 15).flatten(1) for key in ("qweight", "qzeros"))
    group = len(codes) // len(zeros)
    points, scales = (x.repeat_interleave(group, 0) for x in (zeros, parts["scales"]))
    return ((codes - points).half() * scales).t()


def by_bitsandbytes(path: Path, scheme: Scheme) -> Tensor:
    """``dequantize_4bit`` under the state that the file holds."""
    parts = parts_of(path)
    weight = parts.pop("weight")
    state = QuantState.from_dict(parts, torch.device("cpu"))
    return dequantize_4bit(weight, state)


READERS: dict[str, Reader] = {
    "compressed-tensors": by_compressed_tensors,
    "gguf": by_gguf,
    "onnx": by_onnxruntime,
    "onnx-nbits": by_onnxruntime,
    "gptq": by_gptq,
    "awq": by_awq,
    "bitsandbytes": by_bitsandbytes,
}
