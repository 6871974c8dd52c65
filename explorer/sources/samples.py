"""Tensors that ship with the explorer: layers of all-MiniLM-L6-v2, a photograph, seeded synthetic ones."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from explorer.paths import ASSETS
from explorer.sources.matrix import Matrix
from explorer.sources.tensors import open_tensors

FOLDER = ASSETS / "tensors"


@dataclass(frozen=True)
class Sample:
    """Built-in tensor: drawn by a seeded generator if ``synthetic``, else stored, from ``origin``."""

    name: str
    label: str
    synthetic: bool
    explanation: str
    draw: Callable[[], Tensor]
    origin: str = "all-MiniLM-L6-v2"

    def load(self) -> Matrix:
        values = self.draw()
        origin = "synthetic" if self.synthetic else self.origin
        return Matrix(values, self.label, origin, tuple(values.shape), "float32")


def _stored(file: str, tensor: str) -> Callable[[], Tensor]:
    return lambda: open_tensors(FOLDER / f"{file}.safetensors").matrix(tensor).values


def _portrait() -> Tensor:
    """The stored grey, 0 to 255, as ``picture_file`` reads pictures: from 0 (black) to 1 (white)."""
    return _stored("portrait", "grey")() / 255


def _normal(size: int) -> Callable[[], Tensor]:
    return lambda: torch.from_numpy(np.random.default_rng(0).standard_normal((size, size), dtype=np.float32))


def _student_t() -> Tensor:
    return torch.from_numpy(np.random.default_rng(1).standard_t(4, (1024, 1024)).astype(np.float32)) * 0.02


def _outlier_channels() -> Tensor:
    """Activations as LLM.int8() describes them: six channels 15 to 40 times larger than the rest."""
    rng = np.random.default_rng(2)
    x = rng.standard_normal((512, 1024)).astype(np.float32)
    x[:, rng.choice(1024, 6, replace=False)] *= rng.uniform(15, 40, 6).astype(np.float32)
    return torch.from_numpy(x)


def _massive_token() -> Tensor:
    """Activations with one token that is about a thousand times the median in two channels.

    Such massive activations are described by Sun et al., arXiv 2402.17762.
    """
    rng = np.random.default_rng(3)
    x = rng.standard_normal((512, 1024)).astype(np.float32)
    x[0, [138, 700]] = (900.0, -650.0)
    return torch.from_numpy(x)


SAMPLES: dict[str, Sample] = {
    row.name: row
    for row in (
        Sample("mlp_up", "MLP up-projection, layer 3", False, "weights", _stored("mlp_up", "weight")),
        Sample("mlp_down", "MLP down-projection, layer 3", False, "weights", _stored("mlp_down", "weight")),
        Sample("attention_query", "attention query, layer 0", False, "weights",
               _stored("attention_query", "weight")),
        Sample("mlp_up_in", "inputs of MLP up, layer 3", False, "activations",
               _stored("mlp_up", "activations")),
        Sample("mlp_down_in", "inputs of MLP down, layer 3", False, "activations",
               _stored("mlp_down", "activations")),
        Sample("query_in", "inputs of attention query, layer 0", False, "activations",
               _stored("attention_query", "activations")),
        Sample("portrait", "A photograph (Grace Hopper)", False, "a picture's grey values, 0 to 1", _portrait,
               "US Navy"),
        Sample("normal", "normal, 1024×1024", True, "N(0, 1)", _normal(1024)),
        Sample("normal_4096", "normal, 4096×4096", True, "N(0, 1)", _normal(4096)),
        Sample("student_t", "Student-t with 4 degrees of freedom", True, "heavy tails", _student_t),
        Sample("outlier_channels", "LLM-like outlier channels", True, "six large channels",
               _outlier_channels),
        Sample("massive_token", "one massive token", True, "one row with two huge values", _massive_token),
    )
}  # fmt: skip
"""Every built-in tensor by its name in links and on the command line."""
