"""Rotation: multiply inputs and weights by one random orthogonal matrix, so that no channel stands out.

S. Ashkboos et al., "QuaRot: Outlier-Free 4-Bit Inference in Rotated LLMs", arXiv 2404.00456.
"""

from __future__ import annotations

from torch import Tensor

from explorer.core.hadamard import Rotation, find_rotation
from explorer.methods.layer import Objective
from explorer.schemes import Scheme


def rotation(
    weight: Tensor, activations: Tensor, scheme: Scheme, of_inputs: Scheme | None
) -> tuple[Rotation, Objective]:
    """The rotation of the input channels of ``weight`` [N, K]; neither values nor schemes matter to it."""
    return find_rotation(weight.shape[1], device=weight.device), ()
