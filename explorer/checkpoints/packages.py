"""Packages that only some targets need, imported when they are."""

from __future__ import annotations

import importlib
from types import ModuleType


def needed(module: str, target: str) -> ModuleType:
    """Import the package; ``ValueError`` with installation instructions if it is missing."""
    try:
        return importlib.import_module(module)
    except ImportError as error:
        package = module.split(".")[0]
        raise ValueError(
            f"writing {target} needs the package {package} ({error}): pip install {package}"
        ) from error
