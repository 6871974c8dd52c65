"""``EXPORTS``, the targets by name. Each is a file ``to_NAME.py`` of this folder with an ``EXPORT``.

Names come from the files: targets import torch, and are imported when they are first asked for.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cache
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.checkpoints.target import Export

_FIRST = ("compressed-tensors", "vllm", "gguf", "onnx", "onnx-nbits", "gptq", "awq", "bitsandbytes")
"""The order of pickers; others follow by name."""
_PREFIX = "to_"


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
