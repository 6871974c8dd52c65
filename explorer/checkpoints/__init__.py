"""Checkpoints that other programs load: ``export``, and the targets in ``EXPORTS``.

The names below are imported on first use: a command refuses a wrong target without waiting for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from explorer.checkpoints.model import ModelFolder
    from explorer.checkpoints.target import Export, Plan
    from explorer.checkpoints.targets import EXPORTS
    from explorer.checkpoints.write import Request, Written, export, rounded, write_one

_HOMES = {
    "EXPORTS": "targets", "Export": "target", "ModelFolder": "model", "Plan": "target", "Request": "write",
    "Written": "write", "export": "write", "rounded": "write", "write_one": "write",
}  # fmt: skip
__all__ = [
    "EXPORTS", "Export", "ModelFolder", "Plan", "Request", "Written", "export", "rounded", "write_one",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a public name at its first use."""
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = getattr(import_module(f"{__name__}.{_HOMES[name]}"), name)
    globals()[name] = value
    return value
