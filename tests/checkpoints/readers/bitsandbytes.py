"""By ``dequantize_4bit`` under the state that the file holds."""

from __future__ import annotations

from pathlib import Path

import torch
from bitsandbytes.functional import QuantState, dequantize_4bit
from torch import Tensor

from explorer import Scheme
from tests.checkpoints.reading import parts_of


def read(path: Path, scheme: Scheme) -> Tensor:
    """The weight [N, K] of a file of one tensor."""
    parts = parts_of(path)
    weight = parts.pop("weight")
    state = QuantState.from_dict(parts, torch.device("cpu"))
    return dequantize_4bit(weight, state)
