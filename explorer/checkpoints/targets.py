"""``EXPORTS``: the targets by name. Each is a file ``to_NAME.py`` of this folder with an ``EXPORT``.

Names come from the files: targets import torch, and are imported when they are first asked for.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.checkpoints.target import Export
    from explorer.schemes import Scheme

_FIRST = ("compressed-tensors", "vllm", "gguf", "onnx", "onnx-nbits", "gptq", "awq", "bitsandbytes")
"""Order of targets in pickers; others follow by name."""
_PREFIX = "to_"
_ROOMY = 256
"""Side of layers that every target takes multiples of."""
_SHORT = (
    ("compressed-tensors (vLLM)", ("vllm",)),
    ("compressed-tensors", ("compressed-tensors",)),
    ("GPTQ", ("gptq",)),
    ("AWQ", ("awq",)),
    ("GGUF", ("gguf",)),
    ("bitsandbytes", ("bitsandbytes",)),
    ("ONNX", ("onnx", "onnx-nbits")),
)
"""Short name -> targets, one of which suffices. vLLM reads compressed-tensors."""


@cache
def _modules() -> dict[str, str]:
    files = [m.name for m in iter_modules([str(Path(__file__).parent)]) if m.name.startswith(_PREFIX)]
    found = {file.removeprefix(_PREFIX).replace("_", "-"): file for file in files}
    return {name: found.pop(name) for name in _FIRST} | found


class _Exports(Mapping[str, "Export"]):
    """The targets by name, each imported at its first use."""

    def __getitem__(self, name: str) -> Export:
        row: Export = import_module(f"explorer.checkpoints.{_modules()[name]}").EXPORT
        return row

    def __contains__(self, name: object) -> bool:
        return name in _modules()

    def __iter__(self) -> Iterator[str]:
        return iter(_modules())

    def __len__(self) -> int:
        return len(_modules())


EXPORTS: Mapping[str, Export] = _Exports()


def export_of(target: str) -> Export:
    """Return the target of this name; ``ValueError`` lists the accepted names."""
    check_target(target)
    return EXPORTS[target]


def check_target(target: str) -> None:
    """Raise ``ValueError`` with the accepted names unless ``target`` is one of them."""
    if target not in EXPORTS:
        raise ValueError(f"no checkpoint format {target!r}; there are {', '.join(EXPORTS)}")


def held_by(scheme: Scheme, shape: tuple[int, int]) -> tuple[str, ...]:
    """Short names of the checkpoint formats that can hold a layer of ``shape`` [N, K] by ``scheme``. The
    method that chose the codes does not matter to a format."""
    found = [
        short
        for short, targets in _SHORT
        if any(not EXPORTS[target].refusal(scheme, shape) for target in targets)
    ]
    if _SHORT[0][0] in found:
        found.remove("compressed-tensors")
    return tuple(found)


def why_unheld(scheme: Scheme, shape: tuple[int, int]) -> str:
    """Reason why no checkpoint format holds a layer of ``shape`` [N, K] by ``scheme``: its shape, or the
    scheme itself. Empty if one does."""
    if held_by(scheme, shape):
        return ""
    width = math.lcm(scheme.block[1] or 1, _ROOMY)
    roomy = (math.ceil(shape[0] / _ROOMY) * _ROOMY, math.ceil(shape[1] / width) * width)
    for export in EXPORTS.values():
        if not export.refusal(scheme, roomy):
            rule, size = scheme.scale, scheme.block[1] or 1
            size = _ROOMY if rule is not None and rule.super_bits is not None else size
            uneven = shape[1] % size != 0
            return f"{shape[1]:,} is not a multiple of {size}" if uneven else export.refusal(scheme, shape)
    return f"no file format of an engine has {scheme.label}"
