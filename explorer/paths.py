"""Folders of files that are not Python: beside the package in a checkout, inside it once installed."""

from __future__ import annotations

from pathlib import Path

_PACKAGE = Path(__file__).resolve().parent
_DATA = _PACKAGE if (_PACKAGE / "assets").is_dir() else _PACKAGE.parent

CHECKOUT = None if _DATA == _PACKAGE else _DATA
"""The folder of a checkout, where documentation and recordings are written; None once installed."""

ASSETS = _DATA / "assets"
"""Sample tensors, texts, recorded measurements; fonts, styles and scripts."""
PLOTLY = ASSETS / "plotly" / "plotly-cartesian.min.js"
"""plotly's script with the traces of lines, bars and maps: a third of the one in plotly's package."""
KERNELS = _DATA / "kernels"
"""CUDA C++ sources."""
PAGE = _PACKAGE / "_page" if CHECKOUT is None else _DATA
"""The folder in which the page, the package ``app``, lies; to be the first of ``sys.path``."""


def checkout() -> Path:
    """Return ``CHECKOUT``; ``ValueError`` if this is an installed package, in which nothing is written."""
    if CHECKOUT is None:
        raise ValueError(f"documentation and recordings are written in a checkout, not in {_PACKAGE}")
    return CHECKOUT


def check_new_folder(out: str | Path) -> None:
    """``ValueError`` if there is something at ``out``: a folder is written whole or not at all."""
    path = Path(out)
    if path.exists() and (not path.is_dir() or any(path.iterdir())):
        raise ValueError(f"{out} exists already; name a folder that does not")
