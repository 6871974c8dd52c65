"""Recorded matrix products: ``assets/measurements/gemm.json``, and by machine."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Annotated

from pydantic import BeforeValidator, Field

from explorer.recordings.files import Recording, recorded, recorded_by_machine
from explorer.recordings.machine import Machine
from explorer.recordings.times import AgainstBaseline, DeviceState, TimeSpread

Shape = tuple[int, int, int]
"""M, N and K."""
NAME = "gemm"
RENAMED = {"fp8_fine": "fp8_blockwise"}
"""Names of products in older links and recordings -> today's."""


def canonical_name(name: str) -> str:
    """Today's name of a product that older links and recordings may name otherwise."""
    return RENAMED.get(name, name)


Name = Annotated[str, BeforeValidator(canonical_name)]
Decibels = Annotated[float, BeforeValidator(lambda value: math.inf if value is None else value)]
"""JSON has no infinity: null is an exact result."""


@dataclass(frozen=True)
class GemmTiming(AgainstBaseline):
    """One kernel of one product at one shape (M, N, K).

    Times are seconds of the product alone.

    activation_s   what quantizing X (from bfloat16) takes before it; inside the product where ``dynamic``,
                   None without a GPU
    floor_s        the modelled least time: bytes at the copy's speed or operations at the core's rate,
                   whichever is longer
    share          ``floor_s`` over the measured time
    sqnr_db        the output against the float64 product of the float32 X and W
    threads        on a CPU, how many were the fastest of those tried; None on a GPU

    On a CPU ``graph`` is single calls, each after the caches were overwritten, in turns with the baseline's;
    ``file`` is the package with its version and the layout it chose. In files
    the first two fields are called ``row`` and ``step``, and the baseline's ``peer…``.
    """

    gemm: Annotated[Name, Field(alias="row")]
    label: str
    variant: Annotated[str, Field(alias="step")]
    file: str
    shape: Shape
    native: bool
    dynamic: bool
    graph: TimeSpread
    flush: TimeSpread | None
    activation_s: float | None
    baseline: Annotated[str, Field(alias="peer")]
    baseline_graph: Annotated[TimeSpread | None, Field(alias="peer_graph")]
    baseline_flush: Annotated[TimeSpread | None, Field(alias="peer_flush")]
    baseline_note: Annotated[str, Field(alias="peer_note")]
    operations: int
    bytes_moved: int
    weight_bytes: int
    tflops: float
    floor_s: float | None
    share: float | None
    sqnr_db: Decibels
    state: DeviceState | None
    threads: int | None = None

    @property
    def total_seconds(self) -> float:
        """The product and, where X has to be quantized before it, that too."""
        return self.seconds + (0.0 if self.dynamic else self.activation_s or 0.0)

    @property
    def on_cpu(self) -> bool:
        """True for a product of a CPU (``explorer.cpu``)."""
        return self.threads is not None

    @property
    def on_chip(self) -> str:
        """ "native" where the chip multiplies both operands as they are, else "emulated"; on a CPU with the
        number of threads."""
        native = "native" if self.native else "emulated"
        if self.threads is None:
            return native
        return f"{native}, {self.threads} thread{'' if self.threads == 1 else 's'}"

    @property
    def shape_text(self) -> str:
        """ "4096×4096×4096"."""
        return "×".join(map(str, self.shape))


LAYERS_NAME = "gemm-layers"


def recorded_layers() -> Recording[GemmTiming]:
    """The recording of small layers, ``assets/measurements/gemm-layers.json``; empty if there is none."""
    return recorded(LAYERS_NAME, GemmTiming)


def recorded_gemms() -> Recording[GemmTiming]:
    """The recording in ``assets/measurements/gemm.json``; empty if it was never recorded."""
    return recorded(NAME, GemmTiming)


def gemms_by_machine() -> dict[str, Recording[GemmTiming]]:
    """The recordings beside the one of ``recorded_gemms``: that of layers under ``LAYERS_NAME``, of whatever
    machine it is, and by the names of their folders those of other CPUs and GPUs,
    ``assets/measurements/machines/<machine>/gemm.json``."""
    layers, machines = recorded_layers(), recorded_by_machine(NAME, GemmTiming)
    return {LAYERS_NAME: layers, **machines} if layers else machines


def recorded_cpu() -> Recording[GemmTiming]:
    """The recording of a CPU that ships, the first by name; empty if there is none."""
    cpus = (recording for recording in gemms_by_machine().values() if recording.machine.cpu)
    return next(cpus, Recording(Machine(), ()))
