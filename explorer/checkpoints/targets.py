"""``EXPORTS``: the targets, one file each. A new one is a file and a row.

Names are known without the targets themselves, which import torch when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.checkpoints.target import Export

_ROWS = (
    ("compressed-tensors", "to_compressed_tensors.EXPORT"),
    ("vllm", "to_vllm.EXPORT"),
    ("gguf", "to_gguf.EXPORT"),
    ("onnx", "to_onnx.DEQUANTIZED"),
    ("onnx-nbits", "to_onnx.MULTIPLIED"),
    ("gptq", "to_gptq.EXPORT"),
    ("awq", "to_awq.EXPORT"),
    ("bitsandbytes", "to_bitsandbytes.EXPORT"),
)
"""Name of a target, and its ``Export``: the module here, the name there."""
_PLACES = dict(_ROWS)


@cache
def _row(name: str) -> Export:
    module, _, attribute = _PLACES[name].partition(".")
    row: Export = getattr(import_module(f"explorer.checkpoints.{module}"), attribute)
    return row


class _Exports(Mapping[str, "Export"]):
    """The rows by name, in the order of ``_ROWS``."""

    def __getitem__(self, name: str) -> Export:
        return _row(name)

    def __contains__(self, name: object) -> bool:
        return name in _PLACES

    def __iter__(self) -> Iterator[str]:
        return iter(_PLACES)

    def __len__(self) -> int:
        return len(_PLACES)


EXPORTS: Mapping[str, Export] = _Exports()


def export_of(target: str) -> Export:
    """The row of ``EXPORTS`` called ``target``; ``ValueError`` with the names there are."""
    check_target(target)
    return EXPORTS[target]


def check_target(target: str) -> None:
    """``ValueError`` with the names there are if ``target`` is none of them."""
    if target not in EXPORTS:
        raise ValueError(f"no checkpoint format {target!r}; there are {', '.join(EXPORTS)}")
