"""Where the files that are not Python lie: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_DATA = _PACKAGE if (_PACKAGE / "assets").is_dir() else _PACKAGE.parent

CHECKOUT = None if _DATA == _PACKAGE else _DATA
"""The folder of a checkout, where documentation and recordings are written; None once installed."""

ASSETS = _DATA / "assets"
"""Sample tensors, texts, fonts, recorded measurements."""
KERNELS = _DATA / "kernels"
"""CUDA C++ sources."""


def checkout() -> Path:
    """``CHECKOUT``; ``ValueError`` if this is an installed package, in which nothing is written."""
    if CHECKOUT is None:
        raise ValueError(f"documentation and recordings are written in a checkout, not in {_PACKAGE}")
    return CHECKOUT
