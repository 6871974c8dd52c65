"""A model off the grid of the file that it was restored from.

Weights that were restored from codes lie on a grid, and every type that holds that grid loses nothing: of
Q4_1 also Q5_1 under importances, and nearly Q4_K and Q5_K, whose blocks are the same. A comparison of types
would be one of grids. Here each weight gets a number drawn evenly from within its cell, half a step to either
side, so that no type has the values. It is another model than the original, of about the same weights, in
bfloat16 as models are published.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

CONFIG = "config.json"
BLOCK = 32
LEVELS = 15
"""Steps of Q4_1's blocks. A step that is found is at most this part of a block's range."""


def dithered(weight: Tensor, generator: torch.Generator) -> Tensor:
    """float32 [N, K], K a multiple of 32: ``weight`` with uniform noise of one step of each block of 32.

    The step of a block is the least difference of two of its values."""
    blocks = weight.float().reshape(-1, BLOCK)
    ordered = blocks.sort(1).values
    span = ordered[:, -1:] - ordered[:, :1]
    steps = ordered.diff(dim=1)
    steps = torch.where(steps > 1e-4 * span, steps, torch.inf)
    step = torch.minimum(steps.amin(1, keepdim=True), span / LEVELS)
    noise = torch.rand(blocks.shape, generator=generator) - 0.5
    return (blocks + noise * step).view(weight.shape)


def write_dithered(model: Path, out: Path, seed: int = 0) -> Path:
    """Write the folder ``model``, whose weights are in one file, with all matrices dithered into ``out``, in
    bfloat16. ``FileExistsError`` if ``out`` is there."""
    out.mkdir(parents=True)
    generator = torch.Generator().manual_seed(seed)
    for path in sorted(model.iterdir()):
        if path.name != "model.safetensors":
            shutil.copy(path, out)
    weights = load_file(model / "model.safetensors")
    changed = {
        name: (
            dithered(weight, generator) if weight.ndim == 2 and weight.shape[1] % BLOCK == 0 else weight
        ).bfloat16()
        for name, weight in sorted(weights.items())
    }
    config = json.loads((out / CONFIG).read_text())
    (out / CONFIG).write_text(json.dumps(config | {"dtype": "bfloat16"}, indent=2))
    save_file(changed, out / "model.safetensors", {"format": "pt"})
    return out
