"""Training in NVFP4 beside BF16, and without each of its rules: the loss of a small network.

The network recognizes scikit-learn's digits: four hidden layers of 64, whose first and last linear layers the
rules keep in float32. Networks of one seed start from the same parameters and see the same batches.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

import torch

from explorer.analysis.report import compare
from explorer.core.quantize import quantize
from explorer.progress import checkpoint
from explorer.recordings.files import NOT_RECORDED, Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import CALIBRATORS, SCHEMES
from explorer.training.digits import accuracy, losses, network
from explorer.training.products import BF16, NVFP4, TrainingPrecision, prepare_training
from lab.intervals import interval
from lab.tables import fixed, markdown, signed
from lab.training import PACKAGES

NAME = "training-nvfp4"
HIDDEN, EPOCHS, SEEDS = (64, 64, 64, 64), 20, 12
KEPT = ("0", str(2 * len(HIDDEN)))
"""The first and the last linear layer."""
_PLAIN = SCHEMES["nvfp4"]


@dataclass(frozen=True)
class Variant:
    """A precision, and the layers that stay in float32."""

    label: str
    precision: TrainingPrecision
    keep: tuple[str, ...] = KEPT


VARIANTS: Mapping[str, Variant] = {
    "bf16": Variant("BF16", BF16),
    "nvfp4": Variant("NVFP4 by all rules", NVFP4),
    "clipped": Variant("without headroom (largest gradients clipped)", replace(NVFP4, gradients=_PLAIN)),
    "nearest": Variant(
        "without stochastic rounding", replace(NVFP4, gradients=_PLAIN, stochastic=False)
    ),
    "no_hadamard": Variant("without the Hadamard matrix", replace(NVFP4, hadamard=1)),
    "rows": Variant("weights in blocks of 16 instead of tiles", replace(NVFP4, weights=_PLAIN)),
    "all_layers": Variant("first and last layer too", NVFP4, ()),
    "none": Variant(
        "NVFP4 by none of them", TrainingPrecision(_PLAIN, _PLAIN, _PLAIN, stochastic=False, hadamard=1), ()
    ),
}  # fmt: skip
"""Each is compared with the first one, seed by seed."""


@dataclass(frozen=True)
class PrecisionRun:
    """One network: its variant and seed, the mean cross-entropy of the training images in the last epoch in
    nats, and the share of the test images that it recognizes."""

    variant: str
    seed: int
    loss: float
    accuracy: float


def run_precisions(seeds: int = SEEDS, epochs: int = EPOCHS) -> Iterator[PrecisionRun]:
    """Train every variant from each seed, one seed after another; ``ValueError`` for numbers below one."""
    if min(seeds, epochs) < 1:
        raise ValueError("seeds and epochs are at least one")
    for seed in range(seeds):
        for name, variant in VARIANTS.items():
            checkpoint()
            model = network(seed, HIDDEN)
            prepare_training(model, variant.precision, keep=variant.keep)
            *_, last = losses(model, epochs, seed)
            yield PrecisionRun(name, seed, last, accuracy(model))


def record_precisions(seeds: int = SEEDS) -> Path:
    """Run ``run_precisions`` and write ``assets/measurements/training-nvfp4.json``."""
    rows = tuple(run_precisions(seeds))
    return record(NAME, Recording(this_machine(torch.device("cpu"), PACKAGES), rows))


def recorded_precisions() -> Recording[PrecisionRun]:
    """The recorded networks; empty if there are none."""
    return recorded(NAME, PrecisionRun)


def losses_over_bf16(rows: Sequence[PrecisionRun], variant: str) -> list[float]:
    """The loss of each seed's network less that of the BF16 network of the same seed, in nats."""
    loss = {(row.variant, row.seed): row.loss for row in rows}
    return [loss[variant, seed] - loss["bf16", seed] for name, seed in loss if name == variant]


def precisions_table(rows: Sequence[PrecisionRun]) -> str:
    """A row for each variant: loss, what BF16 has less, accuracy; means and 95 % intervals over the seeds."""
    lines = []
    for name, variant in VARIANTS.items():
        of = [row for row in rows if row.variant == name]
        cells = [NOT_RECORDED, "", ""]
        if of:
            more = "–" if name == "bf16" else plus_minus(losses_over_bf16(rows, name), 4, signed)
            right = plus_minus([100 * row.accuracy for row in of], 1)
            cells = [plus_minus([row.loss for row in of], 4), more, f"{right} %"]
        lines.append([variant.label, *cells])
    return markdown(["linear layers", "training loss", "more than BF16", "test images recognized"], lines)


def plus_minus(values: Sequence[float], digits: int, written: Callable[[float, int], str] = fixed) -> str:
    """ "0.1234 ± 0.0056"; the value alone of one."""
    if len(values) == 1:
        return written(values[0], digits)
    middle, half = interval(values)
    return f"{written(middle, digits)} ± {half:.{digits}f}"


def seed_count(rows: Sequence[PrecisionRun]) -> int:
    """The number of recorded seeds."""
    return len({row.seed for row in rows})


@cache
def stochastic_db(calibrator: str) -> str:
    """SQNR of 1024 x 1024 values of N(0, 1) that NVFP4 rounds stochastically in ranges by ``calibrator``, the
    median of five draws."""
    found = []
    for seed in range(1, 6):
        x = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(seed))
        scheme = replace(_PLAIN.with_ranges_by(CALIBRATORS[calibrator]), seed=seed)
        found.append(compare(x, quantize(x, scheme)).sqnr_db)
    return f"{statistics.median(found):.1f} dB"


def in_words(rows: Sequence[PrecisionRun]) -> str:
    """Name the variants that differ from all rules together by more than the interval of the difference, seed
    by seed."""
    loss = {(row.variant, row.seed): row.loss for row in rows}
    seeds = sorted({row.seed for row in rows})
    groups: dict[str, list[str]] = {"a higher loss": [], "a lower loss": [], "no certain difference": []}
    for name in VARIANTS:
        if name in ("bf16", "nvfp4") or len(seeds) < 2:
            continue
        middle, half = interval([loss[name, seed] - loss["nvfp4", seed] for seed in seeds])
        certain = "a higher loss" if middle > 0 else "a lower loss"
        kind = certain if abs(middle) > half else "no certain difference"
        groups[kind].append(f"{VARIANTS[name].label} ({signed(middle)} ± {half:.4f})")
    words = [
        f"Compared with NVFP4 by all rules, {kind}: {'; '.join(of)}." for kind, of in groups.items() if of
    ]
    return " ".join(words)
