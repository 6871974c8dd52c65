"""Data that the server holds for each open page because an address is too short for it."""

from __future__ import annotations

import threading
from collections import Counter, OrderedDict
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from app import limits
from app.serving.sessions import current_request
from app.state.memo import size_of
from explorer.cached import cached_property
from explorer.checkpoints.diff import Diff
from explorer.methods.evaluate import Outcome
from explorer.recordings.files import Recording
from explorer.recordings.gemm import GemmTiming
from explorer.reports.training import Settings
from explorer.survey.check import Check
from explorer.training.digits import Trained


@dataclass(frozen=True)
class OpenedRecording:
    """A recording that a visitor opened.

    name      what pickers and the address call it: made of what it holds, so that an address never leads to
              another file
    file      the name of its file
    left_out  in words what of the file is not shown
    """

    name: str
    file: str
    recording: Recording[GemmTiming]
    left_out: str = ""


@dataclass(frozen=True)
class Owner:
    """Owner of the displayed results: the layer's name, and the selected tensor if it is that layer (else
    None); for reports the outcomes, without the layers, and the scheme of the inputs."""

    label: str
    tensor: tuple[Hashable, ...] | None
    outcomes: tuple[Outcome, ...] = ()
    activations: str = ""


@dataclass(frozen=True)
class TrainedNetworks:
    """Networks that a visitor has trained so far, and what the run was asked for."""

    settings: Settings
    results: tuple[Trained, ...]


@dataclass
class ComparedCheckpoints:
    """A comparison of checkpoints, and its files once they are written. names: the original, its revision,
    and the quantized one."""

    names: tuple[str, str, str]
    found: Diff
    files: tuple[Path, ...] = ()


@dataclass
class VisitData:
    """Data of one open page.

    opened_recordings: recordings of machines that the visitor opened, in that order.
    method_results: what the visitor's run of methods left of the layer.
    captured: the file of the layer that was captured last.
    gemm_timings: products that were timed for the visitor.
    compared: the two checkpoints that the visitor's last run compared.
    trained: networks of the visitor's last training.
    failed: why recipes on a tensor could not be computed; the next filling empties it and tries again.
    taken: files that were made last of a tensor, and of what they are.
    written: the model of the visitor's last run, by its keys of the address, and its texts as they are shown.
    unfinished: files of surveys that were stopped, by the model's place and revision.
    checks: losses that were measured here, by the recipe's file.

    A field is assigned anew where what it holds grows: ``bytes`` are those of what was assigned.
    """

    opened_recordings: tuple[OpenedRecording, ...] = ()
    method_results: Owner | None = None
    captured: Path | None = None
    gemm_timings: Recording[GemmTiming] | None = None
    failed: dict[Hashable, str] = field(default_factory=dict)
    compared: ComparedCheckpoints | None = None
    trained: TrainedNetworks | None = None
    taken: tuple[tuple[Hashable, ...], tuple[Path, ...]] | None = None
    written: tuple[tuple[str, ...], Mapping[str, str]] | None = None
    unfinished: dict[tuple[str, str], Path] = field(default_factory=dict)
    checks: Mapping[str, Check] = field(default_factory=dict)

    def __setattr__(self, name: str, value: Any) -> None:
        object.__setattr__(self, name, value)
        self._sizes[name] = size_of(value)

    @cached_property
    def _sizes(self) -> dict[str, int]:
        return {}

    @property
    def bytes(self) -> int:
        """Bytes of what its fields were assigned last."""
        return sum(self._sizes.values())


_visits: OrderedDict[str, tuple[str, VisitData]] = OrderedDict()
"""By session, the address that it began from and its data; the one that was used last comes last."""
_LOCK = threading.Lock()


def visit() -> VisitData:
    """The visit of the current session, empty at first; outside a server one that is not kept.

    At most ``Limits.sessions`` are kept, of ``Limits.visit_bytes`` together. One that is dropped begins anew:
    of the address with the most visits, or with the most bytes, the one that was used longest ago.
    """
    asked = current_request()
    if asked.session is None:
        return VisitData()
    with _LOCK:
        _, found = _visits.setdefault(asked.session, (asked.address, VisitData()))
        _visits.move_to_end(asked.session)
        while len(_visits) > limits.current().sessions:
            _drop_of_most(lambda _: 1)
        while (
            len(_visits) > 1 and sum(one.bytes for _, one in _visits.values()) > limits.current().visit_bytes
        ):
            _drop_of_most(lambda one: one.bytes)
    return found


def _drop_of_most(measure: Callable[[VisitData], int]) -> None:
    """Drop the visit that was used longest ago of the address of which the most is kept."""
    held = Counter[str]()
    for address, one in _visits.values():
        held[address] += measure(one)
    ((most, _),) = held.most_common(1)
    del _visits[next(session for session, (address, _) in _visits.items() if address == most)]
