"""Quantization schemes: a number format, the blocks that share a scale, and the choice and storage of that
scale."""

from explorer.schemes.calibrators import CALIBRATORS, Calibrator, Range
from explorer.schemes.named import ALIASES
from explorer.schemes.parts import Block
from explorer.schemes.rules import OWN_CODES, CodeRule, Convention, ExponentRule, MappingType, ScaleRule, Ties
from explorer.schemes.scales import (
    Scales,
    fit_scales,
    join_scales,
    scale_for,
    tensor_scale_for,
    through_bfloat16,
)
from explorer.schemes.scheme import SCHEMES, BitBudget, Scheme
from explorer.schemes.text import SCALE_RULES

__all__ = [
    "ALIASES", "CALIBRATORS", "OWN_CODES", "SCALE_RULES", "SCHEMES", "BitBudget", "Block", "Calibrator",
    "CodeRule", "Convention", "ExponentRule", "MappingType", "Range", "ScaleRule", "Scales", "Scheme", "Ties",
    "fit_scales", "join_scales", "scale_for", "tensor_scale_for", "through_bfloat16",
]  # fmt: skip
