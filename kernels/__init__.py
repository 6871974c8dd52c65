"""CUDA kernels and their loader. Imports torch, numpy and pycuda; nothing of the project's own."""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class Availability:
    """Whether kernels can run here; ``reason`` says why not, or what they run on."""

    ok: bool
    reason: str


def available() -> Availability:
    """Whether there is a GPU with a driver, a CUDA toolkit and pycuda."""
    if not torch.cuda.is_available():
        return Availability(False, "no GPU found")
    return Availability(False, f"{torch.cuda.get_device_name()} found, but the kernels are not built yet")
