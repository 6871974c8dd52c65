"""Recorded matrix products: ``assets/measurements/gemm.json``, and recordings of single machines."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import AfterValidator, BeforeValidator, Field

from explorer.recordings.files import (
    Recording,
    RecordingError,
    recorded,
    recorded_by_machine,
    recording_of,
)
from explorer.recordings.machine import Machine
from explorer.recordings.times import AgainstBaseline, DeviceState, Positive, TimeSpread

NAME = "gemm"
Text = Annotated[str, Field(max_length=500)]
Count = Annotated[int, Field(gt=0, lt=10**30)]
Side = Annotated[int, Field(gt=0, le=999_999_999)]
"""Number of elements along a side, up to the limit of the page's picker."""
Shape = tuple[Side, Side, Side]
"""M, N and K."""
_LONGEST_MACHINE = 2000
"""Accepted characters of a machine's description."""


def _decibels(value: float) -> float:
    if abs(value) > 1000 and value != math.inf:
        raise ValueError("decibels are from -1000 to 1000, or null for an exact result")
    return value


Decibels = Annotated[
    float,
    BeforeValidator(lambda value: math.inf if value is None else value),
    AfterValidator(_decibels),
]
"""SQNR in dB. JSON has no infinity: null stands for an exact result."""


@dataclass(frozen=True)
class GemmTiming(AgainstBaseline):
    """Time of one kernel for one product at one shape (M, N, K).

    Times are seconds of the product alone.

    activation_s   time to quantize X (from bfloat16) before the product; part of the product if ``dynamic``,
                   None without a GPU
    floor_s        the limit, not measured: bytes at the copy's speed or operations at the core's rate,
                   whichever is longer
    share          ``floor_s`` over the measured time
    sqnr_db        the output against the float64 product of the float32 X and W
    threads        on a CPU, the fastest of the numbers of threads tried; None on a GPU

    On a CPU ``graph`` holds single calls, in turns with the baseline's, each after the caches were
    overwritten; ``file`` is the package with its version and the layout it chose. In files ``gemm`` is called
    ``row``, ``variant`` is ``step``, and the baseline's fields are ``peer…``.
    """

    gemm: Annotated[Text, Field(alias="row")]
    label: Text
    variant: Annotated[Text, Field(alias="step")]
    file: Text
    shape: Shape
    native: bool
    dynamic: bool
    graph: TimeSpread
    flush: TimeSpread | None
    activation_s: Annotated[float, Field(ge=0, lt=1e30)] | None
    baseline: Annotated[Text, Field(alias="peer")]
    baseline_graph: Annotated[TimeSpread | None, Field(alias="peer_graph")]
    baseline_flush: Annotated[TimeSpread | None, Field(alias="peer_flush")]
    baseline_note: Annotated[Text, Field(alias="peer_note")]
    operations: Count
    bytes_moved: Count
    weight_bytes: Count
    tflops: Positive
    floor_s: Positive | None
    share: Positive | None
    sqnr_db: Decibels
    state: DeviceState | None
    threads: Count | None = None

    @property
    def total_seconds(self) -> float:
        """Seconds of the product, with the quantization of X if that runs before it."""
        return self.seconds + (0.0 if self.dynamic else self.activation_s or 0.0)

    @property
    def on_cpu(self) -> bool:
        """True for a product computed on a CPU (``explorer.cpu``)."""
        return self.threads is not None

    @property
    def on_chip(self) -> str:
        """Return "native" if the chip multiplies both operands as they are, else "emulated"; on a CPU with
        the number of threads."""
        native = "native" if self.native else "emulated"
        if self.threads is None:
            return native
        return f"{native}, {self.threads} thread{'' if self.threads == 1 else 's'}"

    @property
    def shape_text(self) -> str:
        """Return the shape in words: "4096×4096×4096"."""
        return "×".join(map(str, self.shape))


LAYERS_NAME = "gemm-layers"


def recorded_layers() -> Recording[GemmTiming]:
    """Load the recording of small layers, ``assets/measurements/gemm-layers.json``; empty if there is
    none."""
    return recorded(LAYERS_NAME, GemmTiming)


LATER_NAME = "gemm-later"


def recorded_gemms() -> Recording[GemmTiming]:
    """Load the recording ``assets/measurements/gemm.json``, which is of one run; empty if there is none.

    For a shape that was not recorded, the nearest recorded one is used.
    """
    return recorded(NAME, GemmTiming)


def newest_gemms() -> Recording[GemmTiming]:
    """Return ``recorded_gemms`` with the shapes that a later, shorter run on the same GPU timed again."""
    return _with_later(recorded_gemms(), later_gemms())


def later_gemms() -> Recording[GemmTiming]:
    """Return the later run by itself; empty if there is none."""
    return recorded(LATER_NAME, GemmTiming)


def later_shapes() -> list[Shape]:
    """Return the shapes of ``newest_gemms`` that come from the later run."""
    return _renewed(recorded_gemms(), later_gemms())


def runs_of_gemms() -> tuple[Machine, Machine | None]:
    """Return the machine of ``gemm.json``, and the later run's machine if ``newest_gemms`` uses that run."""
    return recorded_gemms().machine, later_gemms().machine if later_shapes() else None


def covers(rows: Iterable[GemmTiming], others: Iterable[GemmTiming]) -> bool:
    """Return True if ``rows`` time each product at each shape that ``others`` time."""
    return {(t.gemm, t.shape) for t in others} <= {(t.gemm, t.shape) for t in rows}


def _renewed(whole: Recording[GemmTiming], later: Recording[GemmTiming]) -> list[Shape]:
    """Return the shapes at which ``later`` timed every product of ``whole``, on the same GPU and not
    earlier."""
    if later.machine.gpu != whole.machine.gpu or later.machine.date < whole.machine.date:
        return []
    timed = {(t.gemm, t.shape) for t in later.rows}
    lacking = {t.shape for t in whole.rows if (t.gemm, t.shape) not in timed}
    return [shape for shape in dict.fromkeys(t.shape for t in later.rows) if shape not in lacking]


def _with_later(whole: Recording[GemmTiming], later: Recording[GemmTiming]) -> Recording[GemmTiming]:
    renewed = set(_renewed(whole, later))
    if not renewed:
        return whole
    kept = [t for t in whole.rows if t.shape not in renewed]
    rows = (*(t for t in later.rows if t.shape in renewed), *kept)
    if not kept:
        return later
    machine = dataclasses.replace(
        later.machine,
        date=f"{whole.machine.date} and {later.machine.date}",
        commit=f"{whole.machine.commit} and {later.machine.commit}",
    )
    return Recording(machine, rows)


def gemms_by_machine() -> dict[str, Recording[GemmTiming]]:
    """Return all recordings but ``recorded_gemms``, by name.

    ``LATER_NAME``: the later run, only shapes at which it timed every product. ``LAYERS_NAME``: small layers,
    on any machine. Folders of ``assets/measurements/machines``: other CPUs and GPUs.
    """
    later, whole = later_gemms(), set(later_shapes())
    later = dataclasses.replace(later, rows=tuple(t for t in later.rows if t.shape in whole))
    beside = {LATER_NAME: later, LAYERS_NAME: recorded_layers()}
    every = {**beside, **recorded_by_machine(NAME, GemmTiming)}
    return {name: recording for name, recording in every.items() if recording}


def gemms_in(value: Any) -> Recording[GemmTiming]:
    """Restore a recording from the values of a JSON file (`bench gemm --record-to`, `--json`, or the page's).

    ``RecordingError`` names the first defect with its place: a missing field, no timing at all, an impossible
    time or size, or a row that was modelled instead of measured.
    """
    recording = recording_of(value, GemmTiming, "matrix products")
    if not recording:
        raise RecordingError("it has no timing in it: rows is empty")
    if not recording.machine.chip:
        raise RecordingError("machine: it names no GPU and no CPU")
    if len(recording.machine.describe()) > _LONGEST_MACHINE:
        raise RecordingError(f"machine: its words have more than {_LONGEST_MACHINE} characters")
    for index, written in enumerate(value["rows"]):
        if how := isinstance(written, dict) and written.get("how"):
            raise RecordingError(f"rows.{index}: it was not measured, but is {str(how)[:60]}")
    return recording


def gemms_of_text(text: bytes) -> Recording[GemmTiming]:
    """Restore a recording as ``gemms_in`` does, from a file's bytes; ``RecordingError`` also for invalid
    JSON."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # of text that is no JSON, or no UTF-8, or nested too deep
        raise RecordingError(f"it is no JSON file: {error}") from error
    return gemms_in(value)


def recorded_cpus() -> list[Recording[GemmTiming]]:
    """Return the recordings of CPUs that ship with the explorer, the newest first."""
    cpus = (recording for recording in gemms_by_machine().values() if recording.machine.cpu)
    return sorted(cpus, key=lambda recording: recording.machine.date, reverse=True)
