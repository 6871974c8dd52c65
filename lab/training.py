"""The runs behind the training tables of docs/which-format.md: accuracy on digits, and gradients lost in
float16."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import torch

from explorer.recordings.files import Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.training.digits import Underflow, gradient_magnitudes, train, underflow

NAME, GRADIENTS = "training", "gradients"
PACKAGES = ("scikit-learn", "numpy")
LOSS_SCALE_EXPONENTS = tuple(range(0, 31, 2))


@dataclass(frozen=True)
class TrainingResult:
    """One network: the width of its weights ("32": float32), how it was trained, its seed, its accuracy on
    the test images (0 … 1)."""

    width: str
    stage: str
    seed: int
    accuracy: float


def record_training() -> tuple[Path, Path]:
    """Train every width with three seeds, count lost gradients, and write both recordings."""
    machine = this_machine(torch.device("cpu"), PACKAGES)
    gradients = tuple(underflow(gradient_magnitudes(), LOSS_SCALE_EXPONENTS))
    return (
        record(NAME, Recording(machine, tuple(run_training()))),
        record(GRADIENTS, Recording(machine, gradients)),
    )


def run_training() -> Iterator[TrainingResult]:
    """Each network as it is trained."""
    for trained in train():
        yield TrainingResult(trained.width, trained.stage, trained.seed, trained.accuracy)


def recorded_training() -> Recording[TrainingResult]:
    """The recorded networks; empty if there are none."""
    return recorded(NAME, TrainingResult)


def recorded_gradients() -> Recording[Underflow]:
    """Recorded losses of each loss scale; empty if never recorded."""
    return recorded(GRADIENTS, Underflow)
