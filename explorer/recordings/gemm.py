"""Recorded matrix products: ``assets/measurements/gemm.json``, and by machine."""

from __future__ import annotations

import dataclasses
import json
import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from explorer.recordings.files import (
    Recording,
    RecordingError,
    recorded,
    recorded_by_machine,
    recording_of,
)
from explorer.recordings.machine import Machine
from explorer.recordings.times import AgainstBaseline, DeviceState, TimeSpread

Shape = tuple[int, int, int]
"""M, N and K."""
NAME = "gemm"
LONGEST_SIDE = 999_999_999
"""Elements of a side, at most, as the page's picker takes it."""
SHORTEST_S, LONGEST_S = 1e-12, 1e6
"""Seconds that a product can have taken."""
_MOST, _LONGEST_TEXT, _LONGEST_MACHINE = 1e30, 500, 2000
"""Numbers and texts of a recording stay below."""
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
    floor_s        the limit, not measured: bytes at the copy's speed or operations at the core's rate,
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


LATER_NAME = "gemm-later"


def recorded_gemms() -> Recording[GemmTiming]:
    """The recording in ``assets/measurements/gemm.json``; empty if it was never recorded. It is of one
    run, and the nearest of its shapes stands for a shape that was not recorded."""
    return recorded(NAME, GemmTiming)


def newest_gemms() -> Recording[GemmTiming]:
    """The same, with the shapes of a later, shorter run on the same GPU in ``gemm-later.json`` in place of
    its own."""
    global _joined
    whole, later = recorded(NAME, GemmTiming), later_gemms()
    if _joined is None or _joined[0] is not whole or _joined[1] is not later:
        _joined = whole, later, _with_later(whole, later)
    return _joined[2]


_joined: tuple[Recording[GemmTiming], Recording[GemmTiming], Recording[GemmTiming]] | None = None
"""Both files as they were read last, and what they make together."""


def later_gemms() -> Recording[GemmTiming]:
    """The later run by itself; empty if there is none."""
    return recorded(LATER_NAME, GemmTiming)


def later_shapes() -> list[Shape]:
    """The shapes of ``newest_gemms`` that are those of the later run."""
    whole, later = recorded(NAME, GemmTiming), later_gemms()
    return _renewed(whole, later)


def runs_of_gemms() -> tuple[Machine, Machine | None]:
    """The machine of ``gemm.json``, and that of the later run where shapes are taken from one."""
    later = later_gemms()
    return recorded(NAME, GemmTiming).machine, later.machine if later_shapes() else None


def covers(rows: Iterable[GemmTiming], others: Iterable[GemmTiming]) -> bool:
    """Whether ``rows`` time each product at each shape that ``others`` time."""
    return {(t.gemm, t.shape) for t in others} <= {(t.gemm, t.shape) for t in rows}


def _renewed(whole: Recording[GemmTiming], later: Recording[GemmTiming]) -> list[Shape]:
    """Shapes that ``later`` times whole, on the GPU of ``whole`` and no earlier."""
    if later.machine.gpu != whole.machine.gpu or later.machine.date < whole.machine.date:
        return []
    return [
        shape
        for shape in dict.fromkeys(t.shape for t in later.rows)
        if covers((t for t in later.rows if t.shape == shape), (t for t in whole.rows if t.shape == shape))
    ]


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
    """The recordings beside the one of ``recorded_gemms``: of the later run, under ``LATER_NAME``, the shapes
    that it timed whole; that of layers under ``LAYERS_NAME``, of whatever machine it is; and by the names of
    their folders those of other CPUs and GPUs, ``assets/measurements/machines/<machine>/gemm.json``."""
    later, whole = later_gemms(), set(later_shapes())
    later = dataclasses.replace(later, rows=tuple(t for t in later.rows if t.shape in whole))
    beside = {LATER_NAME: later, LAYERS_NAME: recorded_layers()}
    every = {**beside, **recorded_by_machine(NAME, GemmTiming)}
    return {name: recording for name, recording in every.items() if recording}


def gemms_in(value: Any) -> Recording[GemmTiming]:
    """The recording in the values of a JSON file, of `bench gemm --record-to`, of `--json` or of the page's
    download. ``RecordingError`` names the first defect with its place: what is no recording, no timing at
    all, a time or size that cannot be, or a row that an earlier version had modelled."""
    recording = recording_of(value, GemmTiming, "matrix products")
    if not recording:
        raise RecordingError("it has no timing in it: rows is empty")
    if not recording.machine.chip:
        raise RecordingError("machine: it names no GPU and no CPU")
    if len(recording.machine.describe()) > _LONGEST_MACHINE:
        raise RecordingError(f"machine: its words have more than {_LONGEST_MACHINE} characters")
    for index, (row, written) in enumerate(zip(recording.rows, value["rows"], strict=True)):
        if how := isinstance(written, dict) and written.get("how"):
            raise RecordingError(f"rows.{index}: it was not measured, but is {str(how)[:60]}")
        _check(f"rows.{index}", row)
    chip = recording.limits
    for name, rate in {"copy": chip.copy, **chip.rates}.items() if chip else ():
        _check_above_0(f"machine.limits.{name}", rate)
    return recording


def gemms_of_text(text: bytes) -> Recording[GemmTiming]:
    """``gemms_in`` of a file's bytes; ``RecordingError`` for what is no JSON, too."""
    try:
        value = json.loads(text)
    except (ValueError, RecursionError) as error:  # of text that is no JSON, or no UTF-8, or nested too deep
        raise RecordingError(f"it is no JSON file: {error}") from error
    return gemms_in(value)


def _check(place: str, row: GemmTiming) -> None:
    """``RecordingError`` unless figures and words can be made of ``row``."""
    spreads = {"graph": row.graph, "flush": row.flush, "peer_graph": row.baseline_graph}
    spreads["peer_flush"] = row.baseline_flush
    for name, spread in spreads.items():
        for what, seconds in vars(spread).items() if spread else ():
            _check_above_0(f"{place}.{name}.{what}", seconds)
            if not SHORTEST_S <= seconds <= LONGEST_S:
                raise RecordingError(f"{place}.{name}.{what}: {seconds:g} s are no time of a product")
    numbers = {
        "operations": row.operations,
        "bytes_moved": row.bytes_moved,
        "weight_bytes": row.weight_bytes,
        "tflops": row.tflops,
        "floor_s": row.floor_s,
        "share": row.share,
        "threads": row.threads,
        "shape": min(row.shape),
    }
    if max(row.shape) > LONGEST_SIDE:
        raise RecordingError(f"{place}.shape: a side has more than {LONGEST_SIDE:,} elements")
    for name, number in numbers.items():
        if number is not None:
            _check_above_0(f"{place}.{name}", number)
    if row.activation_s is not None and not 0 <= row.activation_s < _MOST:
        raise RecordingError(f"{place}.activation_s: {row.activation_s} are no seconds")
    if math.isnan(row.sqnr_db):
        raise RecordingError(f"{place}.sqnr_db: not a number")
    for name in ("gemm", "label", "variant", "file", "baseline", "baseline_note"):
        if len(getattr(row, name)) > _LONGEST_TEXT:
            raise RecordingError(f"{place}: the {name} has more than {_LONGEST_TEXT} characters")


def _check_above_0(place: str, number: float) -> None:
    if not 0 < number < _MOST:
        raise RecordingError(f"{place}: {str(number)[:30]} is not above 0, or not finite")


def recorded_cpus() -> list[Recording[GemmTiming]]:
    """The recordings of CPUs that ship, the newest first."""
    cpus = (recording for recording in gemms_by_machine().values() if recording.machine.cpu)
    return sorted(cpus, key=lambda recording: recording.machine.date, reverse=True)


def recorded_cpu() -> Recording[GemmTiming]:
    """The newest of ``recorded_cpus``; empty if there is none."""
    return next(iter(recorded_cpus()), Recording(Machine(), ()))
