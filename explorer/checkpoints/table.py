"""``EXPORTS``: the targets, one file each. A new one is a file and a row."""

from __future__ import annotations

from explorer.checkpoints import (
    to_awq,
    to_bitsandbytes,
    to_compressed_tensors,
    to_gguf,
    to_gptq,
    to_onnx,
)
from explorer.checkpoints.export import Export

EXPORTS: dict[str, Export] = {
    row.name: row
    for row in (
        to_compressed_tensors.EXPORT,
        to_gguf.EXPORT,
        *to_onnx.EXPORTS,
        to_gptq.EXPORT,
        to_awq.EXPORT,
        to_bitsandbytes.EXPORT,
    )
}
