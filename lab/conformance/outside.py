"""Result of another implementation in this library's layout, and the import of its package."""

from __future__ import annotations

import contextlib
import importlib
import importlib.metadata
import io
import logging
from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType

from torch import Tensor

PACKAGES = {
    "torchao": "0.18.0",
    "compressed-tensors": "0.20.0",
    "bitsandbytes": "0.50.2",
    "gguf": "0.19.0",
    "ml_dtypes": "0.6.0",
    "gfloat": "0.5.2",
}
"""The distributions compared with, and the versions for which the table's reasons were found."""

FULL_RANGE = "full range: amax / (2^(b-1) - 1/2)"
"""The convention of symmetric integers in torchao and compressed-tensors."""
ZERO_E8M0 = "a block of zeros has the scale 2^-127 there, 1 here; the codes are the same"


@dataclass(frozen=True, eq=False)
class Outside:
    """Codes and scales that another implementation gives.

    codes         integers [rows, cols]               the bits of each code, as ours
    scales        float32 [grid rows, grid columns]   what multiplies a code's value; None for a cast
    zero_points   integers [grid rows, grid columns]  the code's value that stands for 0, where there are any
    minimums      float32 [grid rows, grid columns]   instead of zero points: the value of the lowest code
    tensor_scale  float32 [1]                         multiplies every scale, where there are two levels
    restored      float32 [rows, cols]                instead of all these: our codes, dequantized there
    """

    codes: Tensor | None = None
    scales: Tensor | None = None
    zero_points: Tensor | None = None
    minimums: Tensor | None = None
    tensor_scale: Tensor | None = None
    restored: Tensor | None = None


Quantizer = Callable[[Tensor], Outside]
"""[rows, cols] of float32, BF16 or FP16 -> the package's result. A package that takes float32 alone is given
the same values in float32."""


def load(module: str, package: str) -> ModuleType:
    """Import an outside module, and suppress its output. ``ValueError`` with installation instructions."""
    level = logging.root.manager.disable
    logging.disable(logging.WARNING)
    try:
        with contextlib.redirect_stderr(io.StringIO()):
            return importlib.import_module(module)
    except ImportError as error:
        raise ValueError(
            f"these rows compare with {package}, which cannot be imported ({error}); "
            f"pip install --no-deps {package}=={PACKAGES[package]}"
        ) from error
    finally:
        logging.disable(level)


def version_of(package: str) -> str:
    """The installed version; ``ValueError`` with installation instructions if it is missing."""
    try:
        return importlib.metadata.version(package)
    except importlib.metadata.PackageNotFoundError as error:
        raise ValueError(
            f"{package} is not installed: pip install --no-deps {package}=={PACKAGES[package]}"
        ) from error
