"""The machines whose numbers the Speed section shows: those recorded, those of files that a visitor opened,
and this one."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import gradio as gr

from app import limits
from app.parts import html
from app.parts.views import Shown, StatusView, shows
from app.sections.speed_live import Own
from explorer import words
from explorer.cpu.table import product_of
from explorer.recordings.files import Recording, RecordingError
from explorer.recordings.gemm import LAYERS_NAME, GemmTiming, gemms_by_machine, gemms_of_text, recorded_gemms
from explorer.recordings.machine import Machine

RECORDED, LIVE, OPENED = "recorded", "live", "opened-"
"""The machine whose recordings ship; the visitor's own run; what the names of recordings begin with that the
visitor opened. Others have the names of ``gemms_by_machine``."""
ACCEPTED = (
    "Accepted is a JSON file of matrix products: what explorer bench gemm --record-to FILE writes, or what "
    "Download JSON in this section does"
)
OpenedRecordings = tuple[Own, ...]
"""Recordings that a visitor opened, in the order in which they were."""


def machine_of(view: str, own: Own | None, opened: OpenedRecordings = ()) -> Own:
    """Whose numbers: those of the GPU whose recordings ship, the visitor's own, or those of the machine that
    ``view`` names. ``ValueError`` for one that is not recorded."""
    if view == RECORDED:
        return recorded_gemms()
    if view == LIVE:
        return own or Recording(Machine(), ())
    machines = {**gemms_by_machine(), **_by_name(opened)}
    if view not in machines:
        raise ValueError(f"no machine {view[:60]!r} is recorded; there are {', '.join(machines) or 'none'}")
    return machines[view]


def is_opened(name: str) -> bool:
    """True for the name of a recording that a visitor opened."""
    return name.startswith(OPENED)


def choices(opened: OpenedRecordings = ()) -> list[tuple[str, str]]:
    """Whose numbers can be shown, as labels and names: of the machine whose recordings ship, of other
    machines, of this one. Machines of one name are told apart by what was recorded."""
    recorded = {RECORDED: recorded_chip(), **{name: _chip(one) for name, one in _others().items()}}
    alike = Counter(recorded.values())
    said = []
    for name, chip in recorded.items():
        which = "layers of models" if name == LAYERS_NAME else name
        told_apart = alike[chip] > 1 and name != RECORDED
        said.append((f"Recorded on {chip}{f', {which}' if told_apart else ''}", name))
    mine = [(f"Opened: {opened_words(one.machine)}", name) for name, one in _by_name(opened).items()]
    return [*said, *mine, ("Measured here", LIVE)]


@dataclass(frozen=True)
class OpenedView(StatusView):
    """A recording that was opened: a status, all that are open, and the picker that shows it."""

    opened: Shown
    view: Shown


@shows(OpenedView)
def open_recording(path: str | None, opened: OpenedRecordings) -> OpenedView:
    """Open a visitor's recording as one more machine, which is shown; ``ValueError`` says what is wrong with
    the file and what is accepted."""
    if not path:
        return OpenedView.unchanged()
    found, file = _read(Path(path)), words.plain(Path(path).name, 60)
    bounds = limits.current()
    if found not in opened:
        if len(opened) >= bounds.recordings:
            raise ValueError(
                f"{file} was not opened: {bounds.recordings} recordings are open, as many as may be. Load "
                "the page again to begin with none"
            )
        opened = (*opened, found)
    name = next(name for name, one in _by_name(opened).items() if one == found)
    timings = f"{words.count(len(found.rows))} timing{'' if len(found.rows) == 1 else 's'}"
    told = f"Opened: {file}, {timings} on {words.plain(found.machine.describe(), 400)}. Only you see it."
    return OpenedView(
        status=html.status(told), opened=opened, view=gr.update(choices=choices(opened), value=name)
    )


def _read(path: Path) -> Own:
    """The recording in a file, with the names of products that today's tables have."""
    file, most = words.plain(path.name, 60), limits.current().recording_bytes
    if (size := path.stat().st_size) > most:
        raise ValueError(
            f"{file} was not opened: it has {words.bytes_(size)}; a recording may have {words.bytes_(most)} "
            "here"
        )
    try:
        found = gemms_of_text(path.read_bytes())
    except RecordingError as error:
        raise ValueError(f"{file} was not opened: {error}. {ACCEPTED}") from error
    return replace(found, rows=tuple(map(_with_plain_texts, found.rows)))


def _with_plain_texts(row: GemmTiming) -> GemmTiming:
    """``row`` with texts in which a figure reads no markup, and with the label that its product has here."""
    texts = ("gemm", "label", "variant", "file", "baseline", "baseline_note")
    plain: dict[str, Any] = {name: words.plain(getattr(row, name)).replace("<", "‹") for name in texts}
    known = product_of(row.gemm, row.on_cpu)
    return replace(row, **plain | ({"label": known.label} if known else {}))


def _by_name(opened: OpenedRecordings) -> dict[str, Own]:
    return {f"{OPENED}{number}": one for number, one in enumerate(opened, 1)}


def opened_words(machine: Machine) -> str:
    """A machine of an opened recording in a picker: chip and date."""
    return words.plain(", ".join(filter(None, (machine.chip, machine.date))), 60)


def others(view: str, opened: OpenedRecordings = ()) -> list[tuple[str, str]]:
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
