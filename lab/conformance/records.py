"""The runs behind docs/conformance.md: other implementations on a whole model, and where NF4 overtakes INT4.

Codes and scales are those of ``lab.conformance``; the crossover is measured here.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from explorer.analysis.report import Sums
from explorer.core.quantize import quantize
from explorer.recordings.files import Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import Scheme
from lab.conformance.cases import model_weights
from lab.conformance.compare import Conformance
from lab.conformance.outside import PACKAGES

NAME, CROSSOVER = "conformance", "crossover"
BLOCKS = (16, 32, 64, 128, 256)
"""Block sizes of the crossover, along the row."""
CODEBOOK, INTEGER = "nf4~1x{}~symmetric~float16~minmax", "int4~1x{}~asymmetric~float16~minmax"
"""Both with float16 scales, so that the bits differ by the zero points alone."""


@dataclass(frozen=True)
class Crossover:
    """One block size: SQNR in dB of NF4 and of asymmetric INT4, signal and noise summed over all linear
    layers of a model, and bits per weight."""

    block: int
    nf4_db: float
    nf4_bits: float
    int4_db: float
    int4_bits: float


def run_crossover(model: str, blocks: Sequence[int] = BLOCKS) -> Iterator[Crossover]:
    """Each block size as it is measured, on the weights of a model's linear layers."""
    weights = [weight for _, weight in model_weights(model)]
    for block in blocks:
        codebook, integer = (Scheme.parse(text.format(block)) for text in (CODEBOOK, INTEGER))
        yield Crossover(block, *_sqnr_and_bits(weights, codebook), *_sqnr_and_bits(weights, integer))


def _sqnr_and_bits(weights: Sequence[Tensor], scheme: Scheme) -> tuple[float, float]:
    sums, bits, elements = Sums(), 0.0, 0
    for weight in weights:
        q = quantize(weight, scheme)
        sums.add_part(weight, q.dequantize(), q)
        bits += q.bits_per_element.total * weight.numel()
        elements += weight.numel()
    return 10 * math.log10(sums.signal / sums.noise), bits / elements


def record_conformance(rows: Sequence[Conformance], model: str) -> tuple[Path, Path]:
    """Write the rows, and measure and write the crossover."""
    machine = this_machine(torch.device("cpu"), (*PACKAGES, "numpy"))
    crossover = tuple(run_crossover(model))
    return record(NAME, Recording(machine, tuple(rows))), record(CROSSOVER, Recording(machine, crossover))


def recorded_conformance() -> Recording[Conformance]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, Conformance)


def recorded_crossover() -> Recording[Crossover]:
    """The recorded block sizes; empty if there are none."""
    return recorded(CROSSOVER, Crossover)
