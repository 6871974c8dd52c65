"""Rotation: multiply inputs and weights by one random orthogonal matrix, which spreads outliers over
channels.

S. Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", arXiv 2404.00456.
"""

from __future__ import annotations

from explorer.core.hadamard import Rotation, find_rotation
from explorer.methods.factors import Readers
from explorer.methods.layer import Objective


def rotation(readers: Readers) -> tuple[Rotation, Objective]:
    """Choose the rotation of K input channels; it does not depend on weights and activations."""
    return find_rotation(readers.activations.shape[1], device=readers.activations.device), ()
