"""The machines whose numbers the Speed section shows: those recorded, and this one."""

from __future__ import annotations

from collections import Counter

from app.sections.speed_live import Own
from explorer.recordings.files import Recording, RecordingError
from explorer.recordings.gemm import LAYERS_NAME, gemms_by_machine, recorded_gemms
from explorer.recordings.machine import Machine

RECORDED, LIVE, OPENED = "recorded", "live", "opened-"
"""The machine whose recordings ship; the visitor's own run; what the names of recordings begin with that the
visitor opened. Others have the names of ``gemms_by_machine``."""
Opened = tuple[Own, ...]
"""Recordings that a visitor opened, in the order in which they were."""


def machine_of(view: str, own: Own | None, opened: Opened = ()) -> Own:
    """Whose numbers: those of the GPU whose recordings ship, the visitor's own, or those of the machine that
    ``view`` names. ``ValueError`` for one that is not recorded."""
    if view == RECORDED:
        return recorded_gemms()
    if view == LIVE:
        return own or Recording(Machine(), ())
    machines = gemms_by_machine()
    if view not in machines:
        raise ValueError(f"no machine {view[:60]!r} is recorded; there are {', '.join(machines) or 'none'}")
    return machines[view]


def is_opened(name: str) -> bool:
    """True for the name of a recording that a visitor opened."""
    return name.startswith(OPENED)


def choices(opened: Opened = ()) -> list[tuple[str, str]]:
    """Whose numbers can be shown, as labels and names: of the machine whose recordings ship, of other
    machines, of this one. Machines of one name are told apart by what was recorded."""
    recorded = {RECORDED: recorded_chip(), **{name: _chip(one) for name, one in _others().items()}}
    alike = Counter(recorded.values())
    said = []
    for name, chip in recorded.items():
        which = "layers of models" if name == LAYERS_NAME else name
        told_apart = alike[chip] > 1 and name != RECORDED
        said.append((f"Recorded on {chip}{f', {which}' if told_apart else ''}", name))
    return [*said, ("Measured here", LIVE)]


def others(view: str, opened: Opened = ()) -> list[tuple[str, str]]:
    """The machines that can stand beside the one that ``view`` names, none of them first."""
    return [("no other machine", ""), *(one for one in choices(opened) if one[1] != view)]


def recorded_chip() -> str:
    """The machine whose numbers ship, for a label; a damaged recording is reported when it is shown."""
    try:
        return _chip(recorded_gemms())
    except RecordingError:
        return "a GPU"


def _others() -> dict[str, Own]:
    try:
        return gemms_by_machine()
    except RecordingError:
        return {}


def _chip(recording: Own) -> str:
    """A GPU with its article, a CPU without one."""
    machine = recording.machine
    if not machine.gpu:
        return machine.chip or "a GPU"
    return f"{'an' if machine.gpu.startswith(('NVIDIA', 'AMD', 'Intel')) else 'a'} {machine.gpu}"
