"""What pickers of several sections offer, and what their entries mean."""

from __future__ import annotations

from explorer import Scheme
from explorer.methods import choices

INPUT_SCHEMES = {
    "as they are": "",
    "INT8 per token": "int8_row",
    "INT8, one scale": "int8_tensor",
    "FP8 E4M3 per token": "fp8_e4m3_row",
    "MXFP4": "mxfp4",
    "NVFP4": "nvfp4",
    "INT4 per token": "int4_row",
}
"""How the inputs of a layer may be quantized: the picker's label, and the scheme's name ("" for none)."""


def input_scheme(label: str | None) -> Scheme | None:
    """The scheme behind a label of ``INPUT_SCHEMES``; None for "as they are" and for unknown labels."""
    name = INPUT_SCHEMES.get(label or "", "")
    return Scheme.parse(name) if name else None


def method_choices() -> list[tuple[str, str]]:
    """Every method and every combination worth offering, as (label, name)."""
    return [(label, name) for name, label in choices().items()]
