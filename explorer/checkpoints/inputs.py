"""Schemes for the inputs of layers, and the schemes of weights that engines multiply them with.

Engines multiply codes by codes only where both have one format: INT8 inputs with INT8 weights, FP8 inputs
with FP8 weights, NVFP4 inputs with NVFP4 weights. Scales stand outside the product, so that they may not
change within a row, but for tiles of 128 x 128 with inputs in blocks of 128, and for NVFP4's blocks of 16,
whose scales the product itself takes. INT4 in groups of 128 is restored to FP8 on its way into the product
with FP8 inputs per token (W4A8), by kernels for Hopper.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from explorer.schemes import Scheme

INPUTS = {
    "int8_row": "INT8 per token",
    "fp8_e4m3_row": "FP8 per token",
    "fp8_e4m3_1x128": "FP8 in blocks of 128",
    "int8_tensor": "INT8, one fixed scale a layer",
    "fp8_e4m3_tensor": "FP8, one fixed scale a layer",
    "nvfp4": "NVFP4, one fixed scale over the blocks of a layer",
}
"""Scheme of inputs -> its label. The last three have fixed scales, which are found by running texts."""
RANGES = {"max": "minmax", "percentile": "percentile"}
"""Range of the inputs that a fixed scale spans -> its calibrator: all values, or 99.99 % of them."""
_ROWS, _TILES, _BLOCKS = ((1, None), (None, None)), ((128, 128),), ((1, 16),)
_WEIGHTS = {(1, None): _ROWS, (None, None): _ROWS, (1, 128): _TILES, (1, 16): _BLOCKS}
"""Block of the inputs -> blocks of weights that engines multiply them with."""


def check_inputs(name: str, span: str = "") -> None:
    """``ValueError`` with the accepted values for an unknown scheme (``name``) or range (``span``), and for a
    range of scales that are found at run time."""
    if name not in INPUTS:
        raise ValueError(f"inputs are quantized by {', '.join(INPUTS)}, not by {name!r}")
    if span and span not in RANGES:
        raise ValueError(f"no range {span!r} of inputs; there are {', '.join(RANGES)}")
    if span and not name.endswith("_tensor"):
        fixed = [other for other in INPUTS if other.endswith("_tensor")]
        raise ValueError(f"scales of {name} are found as inputs come: a range is for {' and '.join(fixed)}")


def inputs_of(name: str, span: str = "") -> Scheme:
    """Return the scheme of inputs called ``name`` with the calibrator of ``span``; errors as
    ``check_inputs``."""
    from explorer.schemes import Scheme

    check_inputs(name, span)
    return with_calibrator(Scheme.parse(name), RANGES[span or "max"])


def with_calibrator(scheme: Scheme, name: str) -> Scheme:
    """Give ``scheme`` the calibrator of this name."""
    from explorer.schemes import Scheme
    from explorer.schemes.calibrators import calibrator_named

    return Scheme.parse(dataclasses.replace(scheme, calibrator=calibrator_named(name)).text)


def is_fixed(scheme: Scheme) -> bool:
    """True if inputs by ``scheme`` have one fixed scale: over all values, or over NVFP4's block scales."""
    return scheme.block == (None, None) or _two_levels(scheme)


def _two_levels(scheme: Scheme) -> bool:
    return scheme.scale is not None and scheme.scale.per_tensor


def check_scheme(scheme: Scheme) -> None:
    """``ValueError`` if no target quantizes inputs by ``scheme``."""
    name, calibrator = str(with_calibrator(scheme, "minmax")), scheme.calibrator.name
    check_inputs(name)
    accepted = tuple(RANGES.values()) if scheme.block == (None, None) else ("minmax",)
    if calibrator not in accepted:
        raise ValueError(
            f"the range of inputs by {name} is found by {' or '.join(accepted)}, not {calibrator}"
        )


def label_of_inputs(scheme: Scheme) -> str:
    """Label a ``scheme`` of inputs, with the calibrator of a fixed range unless that is the whole range."""
    words = INPUTS.get(str(with_calibrator(scheme, "minmax")), scheme.label)
    return words if scheme.calibrator.name == "minmax" else f"{words} ({scheme.calibrator.label})"


def product_refusal(inputs: Scheme, scheme: Scheme) -> str:
    """Reason why engines have no product of ``inputs`` with weights by ``scheme``; empty if they have one."""
    blocks, offset = _WEIGHTS.get(inputs.block, ()), scheme.asymmetric or scheme.mapping.has_offset
    if (inputs.name, scheme.format.name, scheme.block) == ("fp8_e4m3_row", "int4", (1, 128)) and not offset:
        return ""
    alike = scheme.format.name == inputs.format.name and scheme.block in blocks and not offset
    if alike and _two_levels(scheme) == _two_levels(inputs):
        return ""
    where = "by row or tensor"
    if blocks in (_TILES, _BLOCKS):
        where = "in tiles of 128 x 128" if blocks == _TILES else "in blocks of 16"
    return (
        f"it multiplies inputs by {inputs.label} with symmetric {inputs.format.label} weights {where}, not "
        f"with {scheme.label}"
    )
