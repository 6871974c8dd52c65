"""Which checkpoint formats can hold a layer, in the short names that people know."""

from __future__ import annotations

from explorer.checkpoints.targets import EXPORTS
from explorer.schemes import Scheme

OWN = "Quantization Explorer"
"""The folder that every scheme can be written to."""
_SHORT = (
    ("compressed-tensors (vLLM)", ("vllm",)),
    ("compressed-tensors", ("compressed-tensors",)),
    ("GPTQ", ("gptq",)),
    ("AWQ", ("awq",)),
    ("GGUF", ("gguf",)),
    ("bitsandbytes", ("bitsandbytes",)),
    ("ONNX", ("onnx", "onnx-nbits")),
)
"""A short name, and the targets of ``EXPORTS`` any of which suffices; vLLM reads compressed-tensors."""


def held_by(scheme: Scheme, shape: tuple[int, int]) -> tuple[str, ...]:
    """Short names of the checkpoint formats that can hold a layer of ``shape`` [N, K] by ``scheme``, ``OWN``
    last. The method by which codes were found does not matter to a format."""
    found = [
        short
        for short, targets in _SHORT
        if any(not EXPORTS[target].refusal(scheme, shape) for target in targets)
    ]
    if _SHORT[0][0] in found:
        found.remove("compressed-tensors")
    return (*found, OWN)
