"""Quantization Explorer: the exact effect of a number format on a tensor.

>>> import explorer
>>> w = explorer.load_matrix("sample:mlp_up").values
>>> tuple(w.shape), w.dtype
((1536, 384), torch.float32)
>>> q = explorer.quantize(w, explorer.Scheme.parse("int4_group128_asym"))
>>> report = explorer.compare(w, q)
>>> print(f"{report.sqnr_db:.1f} dB, {q.bits_per_element.total:.3f} bits")
19.5 dB, 4.156 bits

The names below are imported on first use: the command line shows its help without waiting for torch.
The torch operators ``torch.ops.explorer.*`` are registered with them, or by ``import explorer.core.ops``.
"""

import importlib
import sys
from typing import TYPE_CHECKING, Any

from explorer.version import __version__

if TYPE_CHECKING:
    from explorer.analysis.report import Report, compare
    from explorer.analysis.schemes import ComparisonRow, compare_schemes, mark_frontier
    from explorer.core.backend import use_device
    from explorer.core.file import load
    from explorer.core.ops import fake_quantize
    from explorer.core.quantize import (
        QuantizedTensor,
        dequantize,
        nvfp4_exactly,
        quantize,
        quantize_with_scales,
    )
    from explorer.formats import FORMATS, Format
    from explorer.models.serve import quantize_model
    from explorer.products.layer import QuantizedLinear
    from explorer.products.linear import explain, linear
    from explorer.schemes import SCHEMES, BitBudget, ExponentRule, MappingType, ScaleRule, Scales, Scheme
    from explorer.schemes.calibrators import CALIBRATORS, Calibrator, Range
    from explorer.sources import SourceError, load_matrix, open_source

_HOMES = {
    "analysis.report": ("Report", "compare"),
    "analysis.schemes": ("ComparisonRow", "compare_schemes", "mark_frontier"),
    "core.backend": ("use_device",),
    "core.file": ("load",),
    "core.ops": ("fake_quantize",),
    "core.quantize": ("QuantizedTensor", "dequantize", "nvfp4_exactly", "quantize", "quantize_with_scales"),
    "formats": ("FORMATS", "Format"),
    "models.serve": ("quantize_model",),
    "products.layer": ("QuantizedLinear",),
    "products.linear": ("explain", "linear"),
    "schemes": ("SCHEMES", "BitBudget", "ExponentRule", "MappingType", "ScaleRule", "Scales", "Scheme"),
    "schemes.calibrators": ("CALIBRATORS", "Calibrator", "Range"),
    "sources": ("SourceError", "load_matrix", "open_source"),
}
_SUBPACKAGES = ("analysis", "core", "formats", "gpu", "schemes", "sources")

__all__ = [
    "CALIBRATORS", "FORMATS", "SCHEMES", "BitBudget", "Calibrator", "ComparisonRow", "ExponentRule", "Format",
    "MappingType", "QuantizedLinear", "QuantizedTensor", "Range", "Report", "ScaleRule", "Scales", "Scheme",
    "SourceError", "__version__", "compare", "compare_schemes", "dequantize", "explain", "fake_quantize",
    "linear", "load", "load_matrix", "mark_frontier", "nvfp4_exactly", "open_source", "quantize",
    "quantize_model", "quantize_with_scales", "use_device",
]  # fmt: skip


def __getattr__(name: str) -> Any:
    """A public name, looked up for the first time: all of them are imported then. Or a subpackage."""
    if name in _SUBPACKAGES:
        return importlib.import_module(f"explorer.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'explorer' has no attribute {name!r}")
    _import_all()
    return globals()[name]


def _import_all() -> None:
    for home, names in _HOMES.items():
        module = importlib.import_module(f"explorer.{home}")
        globals().update({name: getattr(module, name) for name in names})


def __dir__() -> list[str]:
    return sorted(__all__)


if "torch" in sys.modules:  # nothing to wait for, and torch.ops.explorer is there at once
    _import_all()
